"""Child processes that run the user's code, and the frames that they and their parent exchange.

    frame = 4 bytes length, big endian, then MessagePack

Rule 1: data comes as plain values; nothing that is read can run code.
Rule 2: stdout belongs to the frames. Before any user's code runs, what prints there goes to stderr, C libraries too.
Rule 3: a child ends with its parent, even while the user's code never comes back.
"""

import ctypes
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, BinaryIO, Final

import msgpack

LENGTH: Final = struct.Struct(">I")
MAX_FRAME_BYTES: Final = 1 << 28
CHUNK_BYTES: Final = 1 << 16
START_TIMEOUT_S: Final = 120.0
"""The user's module may import heavy libraries; this long they may take, apart from every other deadline."""
MESSAGE_CHARS: Final = 300
"""Of an error's text, so much is passed on."""
PR_SET_PDEATHSIG: Final = 1


def frame(message: Mapping[str, Any]) -> bytes:
    """The bytes of one message. Text that is no Unicode is mended."""
    body = msgpack.packb(message, unicode_errors="replace")
    return LENGTH.pack(len(body)) + bytes(body)


def take_frames(received: bytearray) -> Iterator[dict[str, Any]]:
    """The whole frames at the beginning of ``received``, which they leave."""
    while is_whole(received):
        end = LENGTH.size + LENGTH.unpack_from(received)[0]
        message: dict[str, Any] = msgpack.unpackb(bytes(received[LENGTH.size : end]))
        del received[:end]
        yield message


def is_whole(received: bytearray) -> bool:
    """Whether a frame has come completely."""
    if len(received) < LENGTH.size:
        return False
    (length,) = LENGTH.unpack_from(received)
    assert length <= MAX_FRAME_BYTES, f"a frame of {length} bytes from a child"
    return len(received) >= LENGTH.size + int(length)


def start(module: str) -> "subprocess.Popen[bytes]":
    """A child that runs ``module`` in a session of its own; its pipes never block."""
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C in the terminal asks the run to drain; the child is needed for that
    )
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        os.set_blocking(pipe.fileno(), False)
    return process


def end(process: "subprocess.Popen[bytes]") -> int:
    """Kill the child's process group and say how the child ended; its pipes stay open.

    A child that is ending by itself has its exit code already when its pipe closes; the kill cannot change it.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def ending(process: "subprocess.Popen[bytes]") -> str:
    """End the child; how it ended, in words."""
    code = end(process)
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def close(process: "subprocess.Popen[bytes]") -> None:
    """End the child and let go of its pipes."""
    end(process)
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


def own_pipes() -> tuple[BinaryIO, BinaryIO]:
    """In the child: the pipes of the frames, (asks, answers). Ends with its parent from here on."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    asks, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    return asks, answers


def read(pipe: BinaryIO) -> dict[str, Any]:
    """In the child: the next frame; empty at the end of the pipe."""
    head = pipe.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return {}
    message: dict[str, Any] = msgpack.unpackb(pipe.read(*LENGTH.unpack(head)))
    return message


def write(pipe: BinaryIO, message: Mapping[str, Any]) -> None:
    """In the child: send one frame."""
    pipe.write(frame(message))
    pipe.flush()
