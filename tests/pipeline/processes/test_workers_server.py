"""A run whose log is on somebody else's server, with a password: workers get it, and nobody gets to see it."""

import json
import os
import socket
import subprocess
from contextlib import closing

import pytest
from typer.testing import CliRunner

from rollog.events.connection import Address, Patience
from rollog.events.server import shipped_binary
from rollog.pipeline.cli import app
from rollog.pipeline.launch.process import PidFile

SECRET = "no-one-sees-this"


@pytest.fixture
def port(tmp_path):
    """A server as ``docker-compose.yml`` starts it, on a loopback port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "server").mkdir()
    settings = (
        f"port {port}\nbind 127.0.0.1\ndir {tmp_path / 'server'}\nappendonly yes\nappendfsync always\n"
        f'save ""\nmaxmemory-policy noeviction\nauto-aof-rewrite-percentage 0\nrequirepass {SECRET}\n'
    )
    command = [shipped_binary(), "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as running:
        running.stdin.write(settings)
        running.stdin.close()
        with closing(Address.parse(f"redis://:{SECRET}@127.0.0.1:{port}").connect()) as connection:
            Patience(20).insist(lambda: connection.call("PING"))
        yield port
        running.terminate()


def test_the_password_in_the_setting_reaches_the_workers_and_is_printed_and_written_nowhere(scene, port):
    scene.settings["log"] = {"redis": f"redis://:{SECRET}@127.0.0.1:{port}/0"}
    scene.settings["grpo"]["max_steps"] = 1
    scene.settings["generation"]["workers"] = 1
    scene.start()

    assert scene.finish() == 0, scene.output
    assert f"log redis://127.0.0.1:{port}/0 (server" in scene.output
    assert SECRET not in scene.output
    commands = [PidFile.read(path).command for path in (scene.run / "logs").glob("*.pid")]
    assert len(commands) == 2
    assert not any(SECRET in word for command in commands for word in command)
    written = [path for path in scene.run.rglob("*") if path.is_file()]
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]


@pytest.mark.parametrize("password", [":wrong@", ""])
def test_a_wrong_password_is_refused_with_the_place_where_the_right_one_goes(scene, port, monkeypatch, password):
    monkeypatch.chdir(scene.folder)
    scene.settings["log"] = {"redis": f"redis://{password}127.0.0.1:{port}/0"}
    (scene.folder / "run.yaml").write_text(json.dumps(scene.settings))

    refused = CliRunner().invoke(app, ["train", "run.yaml"])

    assert refused.exit_code == 4
    assert "does not accept this user and password" in refused.stderr
    assert "ROLLOG_REDIS_URL=redis://USER:PASSWORD@HOST:PORT/0" in refused.stderr
    assert "wrong" not in refused.stderr.replace("WRONGPASS", "")
    assert not scene.run.exists()
    assert "ROLLOG_REDIS_URL" not in os.environ
