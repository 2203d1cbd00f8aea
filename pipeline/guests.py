"""The verbs that visit a run which another process drives: ``stop`` and ``ps`` (and ``scale``, in ``scaling``).

Rule 1: a guest sees leases and entries and puts one wish into the results stream; it takes no pen.
Rule 2: ``ps`` looks at every run that it can: one that it cannot read is told and left out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from rollog.events import server
from rollog.events.connection import pause
from rollog.events.errors import LogError, ServerUnreachable
from rollog.events.file_log import GrowingLog
from rollog.events.log import Desk, Entry, Leases, Reader
from rollog.events.messages import StopRequest
from rollog.events.reading import segments_of
from rollog.events.redis_reader import RedisReader
from rollog.events.vocabulary import Finish, StopReason
from rollog.pipeline.config import Plan
from rollog.pipeline.errors import PipelineError
from rollog.pipeline.heartbeat import CONTROLLER
from rollog.pipeline.run_folder import EMBEDDED, RUNS, RunFolder
from rollog.replay import snapshots
from rollog.replay.state import Place

SHUTDOWN_WITHIN_S: Final = 60.0
"""How long after its Finish a run may take to let its workers go and to end its server."""
SCHEMA: Final = "rollog.ps/1"


class NotRunning(PipelineError):
    """No controller drives this run."""

    exit_code = 3


def stop(
    folder: RunFolder,
    within_s: float,
    clock: Callable[[], float],
    watch: Callable[[Entry], None] = lambda entry: None,
) -> None:
    """Ask for a stop and wait for the end of the run; ``watch`` is shown what lands. Raises ``NotRunning``."""
    plan = folder.plan()
    served(folder, plan)
    with closing(folder.desk(plan)) as desk, reader_of(folder, plan) as reader:
        steered(desk, plan, folder.name)
        seen = reader.head().offset
        desk.report(StopRequest(reason=StopReason.REQUEST, within_s=within_s))
        try:
            while not _finished(later := _after(reader, seen)):
                for entry in later:
                    watch(entry)
                    seen = entry.offset
                steered(desk, plan, folder.name)
                pause()
            for entry in later:
                watch(entry)
        except ServerUnreachable:
            if server.is_running(folder.path):
                raise
    deadline = clock() + SHUTDOWN_WITHIN_S
    while plan.log.redis == EMBEDDED and server.is_running(folder.path) and clock() < deadline:
        pause()


def running(warn: Callable[[str], None], runs: Path = RUNS) -> dict[str, Any]:
    """The runs that a controller drives: ``{"schema", "runs": [{run, version, offset, in_flight, workers}]}``.

    ``warn`` is told of each run that cannot be looked at.
    """
    found: list[dict[str, Any]] = []
    for config in sorted(runs.glob("[!.]*/config.yaml")):  # a run that is just being forked has a temporary name
        folder = RunFolder(config.parent)
        try:
            found += _one_if_driven(folder)
        except (LogError, PipelineError) as error:
            warn(f"{folder.name} is left out: {error}")
    return {"schema": SCHEMA, "runs": found}


def drawn(model: Mapping[str, Any]) -> Iterator[str]:
    """One line a run."""
    for run in model["runs"]:
        yield (
            f"{run['run']}  v{run['version']}  @{run['offset']:,}  in flight {run['in_flight']}  "
            f"{' '.join(run['workers'])}"
        )


def _one_if_driven(folder: RunFolder) -> Iterable[dict[str, Any]]:
    plan = folder.plan()
    if plan.log.redis == EMBEDDED and not server.is_running(folder.path):
        return
    with closing(folder.desk(plan)) as desk, reader_of(folder, plan) as reader:
        leases = desk.leases()
        if not _fresh(leases, CONTROLLER, plan):
            return
        state = snapshots.at(folder.snapshots, reader, reader.head().offset)
    workers = [key.removeprefix("worker:") for key in sorted(leases.by_key) if key.startswith("worker:")]
    yield {
        "run": folder.name,
        "version": state.version,
        "offset": state.offset,
        "in_flight": state.count(Place.IN_FLIGHT),
        "workers": [name for name in workers if _fresh(leases, f"worker:{name}", plan)],
    }


def served(folder: RunFolder, plan: Plan) -> None:
    """Raises ``NotRunning`` when nobody serves the log."""
    if plan.log.redis == EMBEDDED and not server.is_running(folder.path):
        raise NotRunning(f"run {folder.name} does not run: nobody serves its log")


@contextmanager
def reader_of(folder: RunFolder, plan: Plan) -> Iterator[Reader]:
    """A reader of the whole log, the sealed part included."""
    address, older = folder.address(plan, "controller"), GrowingLog(segments_of(folder.path))
    with closing(RedisReader(address, plan.run, archive=older)) as reader:
        yield reader


def steered(desk: Desk, plan: Plan, run: str) -> None:
    """Raises ``NotRunning`` when no controller drives the run."""
    if not _fresh(desk.leases(), CONTROLLER, plan):
        raise NotRunning(f"run {run} does not run: no controller has renewed its lease for {plan.flow.lease_s:g} s")


def _fresh(leases: Leases, key: str, plan: Plan) -> bool:
    lease = leases.by_key.get(key)
    return lease is not None and leases.now - lease.refreshed <= plan.flow.lease_s


def _after(reader: Reader, seen: int) -> Sequence[Entry]:
    """What has landed behind entry ``seen``."""
    head = reader.head().offset
    return list(reader.read(seen + 1, head)) if head > seen else ()


def _finished(entries: Sequence[Entry]) -> bool:
    """Whether there is a Finish among them."""
    return any(isinstance(event, Finish) for entry in entries for event in entry.events)
