"""A server that other machines can reach has a password, or the run is refused."""

import pytest

from rollog.pipeline.config import Plan
from rollog.pipeline.errors import PlanError
from rollog.pipeline.run_folder import URL_VARIABLE, server_url


def plan(url: str) -> Plan:
    return Plan.from_settings(
        {"run": "demo", "model": {"path": "m"}, "data": {"path": "d.jsonl"}, "log": {"redis": url}}
    )


@pytest.mark.parametrize(
    "url", ["redis://10.0.0.7:6379/0", "redis://log.example/0", "rediss://log.example/0", "redis://[fd00::7]/0"]
)
def test_a_server_beyond_this_machine_needs_a_password_in_the_environment(url, monkeypatch):
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    with pytest.raises(PlanError, match="requirepass") as refused:
        server_url(plan(url))
    assert URL_VARIABLE in str(refused.value)

    scheme, rest = url.split("://")
    monkeypatch.setenv(URL_VARIABLE, f"{scheme}://:sesame@{rest}")
    assert "sesame" in server_url(plan(url))
    monkeypatch.setenv(URL_VARIABLE, f"{url}?password=sesame")
    assert "sesame" in server_url(plan(url))


@pytest.mark.parametrize(
    "url", ["redis://localhost/0", "redis://127.0.0.1:7000/0", "redis://[::1]/0", "unix:///srv/log.sock"]
)
def test_over_loopback_and_a_unix_socket_none_is_asked_for(url, monkeypatch):
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    assert server_url(plan(url)) == url
