"""A proxy between a client and a server that loses, delays and cuts what it carries."""

import select
import socket
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rollog.events.connection import Address

QUIET_S = 0.05


@dataclass
class Proxy:
    """Stands between clients and a server's socket.

    ``faults``: one is used up by each request that is not an AUTH:
        ``lost``        the request does not reach the server, the connection ends
        ``reset``       the same, and the client hears that its connection was reset
        ``unanswered``  the server gets the request, the client no answer
        ``cut``         the server gets the first half of the bytes
        ``half``        the client gets the first half of the answer's bytes
        ``late``        the connection ends; the server gets the request only at ``release()``
    """

    target: Path
    path: Path
    faults: deque[str] = field(default_factory=deque)
    kept: list[tuple[socket.socket, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def address(self, of: Address) -> Address:
        """The same user, through the proxy."""
        return Address(socket=self.path, user=of.user, password=of.password, timeout_s=1.0)

    def release(self) -> None:
        """Deliver what came late, and wait for the server's answers; a server that was ended meanwhile gets nothing."""
        while self.kept:
            upstream, request = self.kept.pop()
            with suppress(BrokenPipeError, ConnectionResetError):
                upstream.sendall(request)
                drained(upstream)
            upstream.close()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        upstream = socket.socket(socket.AF_UNIX)
        keep = False
        with suppress(OSError):
            upstream.connect(str(self.target))
            while True:
                ready, _, _ = select.select([client, upstream], [], [])
                if upstream in ready:
                    data = upstream.recv(1 << 16)
                    if not data:
                        break
                    client.sendall(data)
                    continue
                request = client.recv(1 << 16, socket.MSG_PEEK)
                if not request:
                    break
                if self.faults and self.faults[0] == "reset" and b"AUTH" not in request[:40]:
                    self.faults.popleft()
                    break  # closing a socket with bytes unread resets its peer
                request = client.recv(1 << 16)
                fault = self.faults.popleft() if self.faults and b"AUTH" not in request[:40] else None
                if fault is None:
                    upstream.sendall(request)
                    continue
                request += drained(client)
                match fault:
                    case "unanswered":
                        upstream.sendall(request)
                        drained(upstream)
                    case "cut":
                        upstream.sendall(request[: len(request) // 2])
                        drained(upstream)
                    case "half":
                        upstream.sendall(request)
                        answer = drained(upstream)
                        client.sendall(answer[: len(answer) // 2])
                    case "late":
                        self.kept.append((upstream, request))
                        keep = True
                break
        client.close()
        if not keep:
            upstream.close()


def drained(from_: socket.socket) -> bytes:
    """All bytes until it is quiet."""
    found = b""
    while select.select([from_], [], [], QUIET_S)[0]:
        data = from_.recv(1 << 16)
        if not data:
            break
        found += data
    return found
