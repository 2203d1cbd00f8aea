"""A run whose log is behind TLS: controller, workers and reading verbs all show their certificate."""

import json

import pytest
from typer.testing import CliRunner

from rollog.events.vocabulary import FinishReason, Join
from rollog.pipeline.cli import app
from rollog.pipeline.launch.process import PidFile
from tls_server import Authority, serving

SECRET = "no-one-sees-this"


@pytest.fixture
def url(tmp_path):
    """The server's, with all that a client needs."""
    ca = Authority.make(tmp_path / "ca")
    certificate, key = ca.sign("client")
    with serving(tmp_path / "server", ca, ca.sign("server"), SECRET) as port:
        files = f"ssl_ca_certs={ca.certificate}&ssl_certfile={certificate}&ssl_keyfile={key}"
        yield f"rediss://:{SECRET}@127.0.0.1:{port}/0?{files}"


@pytest.mark.long
def test_a_run_over_tls_trains_to_its_end_and_shows_its_password_to_nobody(scene, url, monkeypatch):
    monkeypatch.chdir(scene.folder)
    scene.settings["log"] = {"redis": url}
    scene.settings["grpo"]["max_steps"] = 2
    scene.start()

    assert scene.finish() == 0, scene.output
    assert f"log {url.partition('?')[0].replace(f':{SECRET}@', '')}" in scene.output
    assert SECRET not in scene.output
    commands = [PidFile.read(path).command for path in (scene.run / "logs").glob("*.pid")]
    assert not any(SECRET in word for command in commands for word in command)
    written = [path for path in scene.run.rglob("*") if path.is_file()]
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]
    assert scene.state().finish is FinishReason.MAX_STEPS
    assert {event.worker for event in scene.events(Join)} == {"gen-0", "gen-1", "rank-0"}

    monkeypatch.setenv("ROLLOG_REDIS_URL", url)
    status = CliRunner().invoke(app, ["status", "demo", "--json"])
    assert (status.exit_code, json.loads(status.stdout)["version"]) == (0, 2), status.output


def test_a_bad_certificate_is_refused_before_anything_is_made(scene, url, tmp_path, monkeypatch):
    monkeypatch.chdir(scene.folder)
    other = Authority.make(tmp_path / "other")
    scene.settings["log"] = {"redis": url.replace(str(tmp_path / "ca" / "ca.pem"), str(other.certificate))}
    (scene.folder / "run.yaml").write_text(json.dumps(scene.settings))

    refused = CliRunner().invoke(app, ["train", "run.yaml"])

    assert refused.exit_code == 4, refused.output
    assert "shows a certificate of a CA that is not known here" in refused.stderr
    assert SECRET not in refused.output
    assert not scene.run.exists()
