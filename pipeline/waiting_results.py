"""The files of results that lie in the results stream and that no entry has answered yet: blobs and weights.

A run that was stopped or killed can have such: they count as soon as somebody resumes it.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from rollog.events import server
from rollog.events.codec import unpack_message
from rollog.events.connection import Address
from rollog.events.errors import MalformedMessage
from rollog.events.messages import GroupDone, StepDone, WeightsReady
from rollog.events.planting import planting_of
from rollog.events.redis_reader import RedisReader
from rollog.pipeline.config import Plan
from rollog.pipeline.run_folder import EMBEDDED, RunFolder, server_url


def waiting_files(folder: RunFolder, plan: Plan) -> set[str]:
    """The names of their blobs and of their published weights. Starts the embedded server for the look if none runs.

    Raises ``ServerUnreachable``: whoever does not know what waits must not sweep.
    """
    with _reader(folder, plan) as reader:
        if reader is None:
            return set()
        return {name for body in reader.results_after(None) if (name := _file(body))}


def _file(body: bytes) -> str | None:
    try:
        message = unpack_message(body)
    except MalformedMessage:
        return None
    match message:
        case GroupDone():
            return message.blob
        case StepDone() | WeightsReady():
            return message.file
    return None


@contextmanager
def _reader(folder: RunFolder, plan: Plan) -> Iterator[RedisReader | None]:
    if planting_of(folder.path) is not None:
        yield None
    elif plan.log.redis != EMBEDDED:
        with closing(RedisReader(Address.parse(server_url(plan)), plan.run)) as reader:
            yield reader
    elif not (folder.log / "server.json").exists():
        yield None
    else:
        with server.start_for_reading(folder.path) as found, closing(RedisReader(found.address(), plan.run)) as reader:
            yield reader
