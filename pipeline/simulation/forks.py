"""Forks of played runs: the same rules as ``pipeline.fork``, with a played disk in the place of links."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace

from rollog.events.errors import MissingEntry
from rollog.events.log import GENESIS, Entry, Head
from rollog.events.memory_log import MemoryServer
from rollog.pipeline.config import Plan, changes
from rollog.pipeline.forking import NoFork, Terms, fork_entry, newest_start
from rollog.pipeline.simulate import Outcome, simulate
from rollog.pipeline.simulation.world import Clock, Manifest, Script, World
from rollog.replay.projector import fold_all
from rollog.replay.state import SavedCheckpoint, State


@dataclass(frozen=True, slots=True)
class Sealed:
    """``Reader`` on entries that lie in segments."""

    entries: tuple[Entry, ...]

    def head(self) -> Head:
        """Offset and digest of the last one."""
        last = self.entries[-1] if self.entries else None
        return Head(offset=0, digest=GENESIS) if last is None else Head(offset=last.offset, digest=last.digest)

    def read(self, first: int = 1, last: int | None = None) -> Iterator[Entry]:
        """The entries ``first``..``last``."""
        end = len(self.entries) if last is None else last
        if first < 1 or end > len(self.entries):
            raise MissingEntry(f"entries {first}..{end} were asked for; 1..{len(self.entries)} are sealed")
        yield from self.entries[first - 1 : end]


def play_fork(parent: Outcome, offset: int, plan: Plan, num_rows: int, script: Script) -> Outcome:
    """Fork a played run after the entry at ``offset`` under another plan and data set, and play it to its end.

    Raises ``NoFork`` where none can begin, and what ``simulate`` raises.
    """
    entries = tuple(parent.world.server.log().read(1, offset))
    before = fold_all(entries)
    recorded = Plan.from_settings(before.settings)
    plan = Plan.from_settings({**plan.settings(), "run": f"{before.run}-fork"})
    changed = changes(recorded.settings(), plan.settings())
    del changed["run"]
    terms = Terms(
        run=plan.run, parent=before.run, reason="played", dataset=f"played {num_rows}" if num_rows != before.num_rows
        else before.dataset, seed=plan.seed, num_rows=num_rows, changes=changed,
    )  # fmt: skip
    disk = {name: manifest for name, manifest in parent.world.disk.items() if int(name.split("-")[1]) <= offset}
    entry = fork_entry(before, terms, _start(before, newest_start(before, terms), disk), lambda blob: True)
    sealed = Sealed((*entries, entry))

    def planted(clock: Clock) -> MemoryServer:
        server = MemoryServer(clock, archive=sealed)
        server.log().plant(sealed.head(), entry.epoch, "memory")
        return server

    world = World(script, plan, planted)
    world.disk = {name: replace(manifest) for name, manifest in disk.items()}
    world.files = deepcopy(parent.world.files)
    return simulate(plan, num_rows, script, world=world)


def _start(state: State, newest: int, disk: dict[str, Manifest]) -> SavedCheckpoint | None:
    """The newest whole checkpoint from which every step is recorded."""
    usable = sorted(
        (manifest.saved for manifest in disk.values() if manifest.whole and manifest.saved.version <= newest),
        key=lambda saved: (saved.version, int(saved.manifest.split("-")[1])),
    )
    for saved in reversed(usable):
        recorded = all(state.step(number).closed for number in range(saved.version, state.version))
        if recorded and saved.version >= state.oldest_kept_checkpoint():
            return saved
    if not all(state.step(number).closed for number in range(state.version)):
        raise NoFork(f"no checkpoint is left from which v{state.version} can be trained again")
    return None
