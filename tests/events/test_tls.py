"""A server over TLS: reached with its CA and a certificate of one's own; what is wrong is said, never passed over."""

import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rollog.events.connection import Address
from rollog.events.errors import ServerRefused, ServerUnreachable
from rollog.events.reading import open_reader
from rollog.events.redis_desk import RedisDesk
from rollog.events.redis_log import RedisLog
from rollog.events.server_settings import settings_check
from tls_server import Authority, serving

PASSWORD = "no-one-sees-this"
Url = Callable[..., str]


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("tls") / "ca")


@pytest.fixture(scope="module")
def url(ca: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Url]:
    """``url(**options)``: the server's, with the right files unless ``options`` names others; None leaves one out."""
    folder = tmp_path_factory.mktemp("server")
    certificate, key = ca.sign("client")
    right = {"ssl_ca_certs": ca.certificate, "ssl_certfile": certificate, "ssl_keyfile": key}
    with serving(folder / "data", ca, ca.sign("server"), PASSWORD) as port:

        def made(host: str = "127.0.0.1", **options: object) -> str:
            given = {name: value for name, value in {**right, **options}.items() if value is not None}
            query = "&".join(f"{name}={value}" for name, value in given.items())
            return f"rediss://:{PASSWORD}@{host}:{port}/0?{query}"

        yield made


def refusal(url: str) -> str:
    address = Address.parse(url)
    with pytest.raises(ServerRefused) as refused, closing(RedisLog(address, "run", answer_within_s=0.1)) as log:
        log.open("a")
    assert PASSWORD not in str(refused.value)
    return str(refused.value)


def test_the_log_the_workers_and_whoever_reads_speak_tls(url: Url, writer: Any) -> None:
    address = Address.parse(url("localhost"))
    with closing(address.connect()) as connection:
        assert settings_check(connection).name == "redis"
    with closing(RedisLog(address, "run")) as log, closing(RedisDesk(address, "run")) as desk:
        order = writer(log).dispatch(1)
        assert desk.take("w", 1, 0) == order
        with open_reader(url(), "run") as reader:
            assert list(reader.read()) == list(log.read())
    assert str(address).startswith("rediss://localhost:")
    assert "ssl" not in str(address)


def test_a_certificate_of_an_unknown_ca_is_refused_with_the_place_where_the_ca_goes(url: Url, tmp_path: Path) -> None:
    other = Authority.make(tmp_path / "other")
    for ca in (None, other.certificate):
        said = refusal(url(ssl_ca_certs=ca))
        assert "shows a certificate of a CA that is not known here" in said
        assert "?ssl_ca_certs=/PATH/ca.pem" in said


@pytest.mark.parametrize(
    ("signed", "says"),
    [
        ({"valid_for": "DNS:another.host"}, "for another name"),
        ({"days": -1}, "does not count today (certificate has expired)"),
    ],
)
def test_a_certificate_for_another_name_or_of_another_time_is_refused(
    ca: Authority, url: Url, tmp_path: Path, signed: dict[str, Any], says: str
) -> None:
    with serving(tmp_path / "data", ca, ca.sign("bad", **signed), PASSWORD) as port:
        good = Address.parse(url()).url
        assert good is not None
        host, _, rest = good.partition("127.0.0.1:")
        assert says in refusal(f"{host}127.0.0.1:{port}/0?{rest.partition('?')[2]}")


def test_a_client_without_the_right_certificate_is_told_which_files_to_name(url: Url, tmp_path: Path) -> None:
    certificate, key = Authority.make(tmp_path / "other").sign("client")
    for options in ({"ssl_certfile": None, "ssl_keyfile": None}, {"ssl_certfile": certificate, "ssl_keyfile": key}):
        address = Address.parse(url(**options))
        with (
            pytest.raises((ServerRefused, ServerUnreachable)) as refused,  # by whether the server's alert comes through
            closing(RedisLog(address, "run", answer_within_s=0.1)) as log,
        ):
            log.open("a")
        assert "ssl_certfile=/PATH/client.pem&ssl_keyfile=/PATH/client.key" in str(refused.value)
        assert PASSWORD not in str(refused.value)


def test_a_file_that_is_missing_or_is_not_what_it_should_be_is_named(ca: Authority, url: Url, tmp_path: Path) -> None:
    _, other_key = ca.sign("another")
    nonsense = tmp_path / "nonsense"
    nonsense.write_text("nonsense")
    missing = tmp_path / "missing"
    assert f"ssl_ca_certs={missing} cannot be read (No such file" in refusal(url(ssl_ca_certs=missing))
    assert "ssl_keyfile does not belong to ssl_certfile" in refusal(url(ssl_keyfile=other_key))
    for option in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
        assert "Give PEM files" in refusal(url(**{option: nonsense}))


def test_the_key_may_be_encrypted_and_its_password_is_shown_to_nobody(ca: Authority, url: Url, tmp_path: Path) -> None:
    certificate, key = ca.sign("locked")
    locked = tmp_path / "locked.key"
    command = ["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:key-secret", "-out", locked]
    subprocess.run(command, check=True, capture_output=True)
    files = {"ssl_certfile": certificate, "ssl_keyfile": locked}
    with closing(Address.parse(url(**files, ssl_password="key-secret")).connect()) as connection:
        assert connection.call("PING") == b"PONG"
    said = refusal(url(**files, ssl_password="key-guess"))
    assert "ssl_password" in said
    assert "key-guess" not in said


def test_tls_and_its_absence_are_told_apart(url: Url) -> None:
    with socket.socket() as listener:  # a server that speaks something else
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        plain = f"rediss://:{PASSWORD}@127.0.0.1:{listener.getsockname()[1]}/0"
        with closing(Address.parse(plain).connect()) as connection:

            def answer() -> None:
                client, _ = listener.accept()
                client.recv(1 << 12)
                client.sendall(b"-ERR unknown command\r\n")
                client.close()

            thread = threading.Thread(target=answer)
            thread.start()
            with pytest.raises(ServerRefused, match="does not speak TLS at this port: write redis://"):
                connection.call("PING")
            thread.join()
    port = Address.parse(url()).url.split("127.0.0.1:")[1].split("/")[0]  # type: ignore[union-attr]
    with (
        closing(Address.parse(f"redis://:{PASSWORD}@127.0.0.1:{port}/0").connect()) as connection,
        pytest.raises(ServerUnreachable),
    ):
        connection.call("PING")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("rediss://host/0?ssl_cert_reqs=none", "'ssl_cert_reqs' cannot stand in a server's URL"),
        ("redis://host/0?retry_on_timeout=true", "'retry_on_timeout' cannot stand in a server's URL"),
        ("redis://host/0?ssl_ca_certs=/ca.pem", "ssl_ca_certs does nothing without TLS: write rediss://"),
        ("rediss://host/0?ssl_ca_certs=ca.pem", "ssl_ca_certs=ca.pem is not an absolute path"),
        ("rediss://host/0?ssl_keyfile=/key.pem", "give ssl_certfile too"),
        ("redis://host?db=x", "db=x is no number of a database"),
    ],
)
def test_an_option_that_would_weaken_the_connection_or_do_nothing_is_refused(wrong: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        Address.parse(wrong)


def test_a_sockets_url_brings_its_user_password_and_database() -> None:
    assert Address.parse("unix://me:a%20b@/run/redis.sock?db=3") == Address(
        socket=Path("/run/redis.sock"), user="me", password="a b", db=3
    )
