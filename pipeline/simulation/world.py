"""The world of a simulation: a virtual clock, a log's server, a disk, and who is alive.

Rule 1: one seed gives one history. Every random choice is drawn from ``World.rng``, or is a hash of what it is about.
Rule 2: time passes only while the controller waits for results (``run_for``).
Rule 3: workers speak to the log as real ones do, through a ``Desk``, and lie about nothing.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Protocol

from rollog.events.log import Desk, Log
from rollog.events.memory_log import MemoryServer
from rollog.pipeline.config import Plan
from rollog.pipeline.inputs import WorkerGone
from rollog.replay.state import SavedCheckpoint

if TYPE_CHECKING:
    from rollog.pipeline.simulation.generator import Generator
    from rollog.pipeline.simulation.trainer import Trainer

START_S: Final = 1_000_000.0
"""The virtual clock's first moment, in seconds."""


class Hang(AssertionError):
    """The run waits for itself: nothing will ever happen any more."""


class Server(Protocol):
    """One log, in memory or on a real server, whose leases live by the virtual clock."""

    def log(self) -> Log:
        """A controller's connection."""
        ...

    def desk(self) -> Desk:
        """A worker's connection."""
        ...


Clock = Callable[[], float]
MakeServer = Callable[[Clock], Server]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How the world behaves. Rates are probabilities: per attempt, per call of the log, or per second of a worker."""

    seed: int = 0
    generators: int = 2
    orders_per_generator: int = 4
    group_s: tuple[float, float] = (0.5, 3.0)
    slow_rate: float = 0.0
    slow_s: float = 60.0
    hang_rate: float = 0.0
    """Of attempts that never answer, although their generator lives and renews their leases."""
    step_s: float = 1.0
    trainer_hang_rate: float = 0.0
    """Of steps that the trainer never ends, although it lives; a person who reads a Stall ends it."""
    infra_rate: float = 0.0
    data_rate: float = 0.0
    """Of prompts whose reward function fails on their first tokens; a data retry draws new ones."""
    equal_rate: float = 0.0
    """Of prompts whose rollouts all get the same reward."""
    refused_rate: float = 0.0
    """Of prompts that the user's filter rule refuses."""
    controller_death_rate: float = 0.0
    uncertain_rate: float = 0.0
    rival_rate: float = 0.0
    """Of appends in the middle of which another controller takes the pen, and does nothing more."""
    twice_rate: float = 0.0
    """Of results that reach the stream twice."""
    late_rate: float = 0.0
    """Of finished groups whose report is on its way for so long that their lease may run out meanwhile."""
    generator_deaths_per_s: float = 0.0
    trainer_deaths_per_s: float = 0.0
    stop_rate: float = 0.0
    clock_jump_s: float = 0.0
    broken_manifest_rate: float = 0.0
    pressure_rate: float = 0.0
    """Of waits in which the server's memory runs short for a while."""
    limit_s: float = 1e6


@dataclass(slots=True)
class Manifest:
    """A checkpoint on the played disk."""

    saved: SavedCheckpoint
    weights: str
    whole: bool = True


@dataclass(slots=True)
class World:
    """Everything outside the controller. ``skew``: what the controller's clock is wrong by, in seconds."""

    script: Script
    plan: Plan
    make_server: MakeServer = MemoryServer
    now: float = START_S
    skew: float = 0.0
    pressed_until: float = 0.0
    rng: random.Random = field(init=False)
    server: Server = field(init=False)
    agenda: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    tick: Iterator[int] = field(default_factory=itertools.count)
    disk: dict[str, Manifest] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    generators: dict[str, "Generator"] = field(default_factory=dict)
    trainer: "Trainer | None" = None
    dead: list[WorkerGone] = field(default_factory=list)
    started: dict[tuple[int, int], int] = field(default_factory=dict)
    reported: dict[int, int] = field(default_factory=dict)
    """Prompt -> finished groups that reached the results stream before anything had ended their attempt."""
    model: str = field(default_factory=lambda: digest("model"))

    def __post_init__(self) -> None:
        self.rng = random.Random(self.script.seed)
        self.server = self.make_server(lambda: self.now)

    def at(self, delay_s: float, do: Callable[[], None]) -> None:
        """Put something on the agenda."""
        heapq.heappush(self.agenda, (self.now + delay_s, next(self.tick), do))

    def run_for(self, seconds: float, until: Callable[[], bool]) -> None:
        """Let the world go on for so long, or until something is so."""
        end = self.now + seconds
        met = until()
        while not met and self.agenda and self.agenda[0][0] <= end:
            self.now, _, do = heapq.heappop(self.agenda)
            do()
            met = until()
        if not met:
            self.now = end
        if self.now > START_S + self.script.limit_s:
            raise Hang(f"no end after {self.script.limit_s:.0f} virtual seconds")

    def strikes(self, rate: float) -> bool:
        """Whether something of this probability happens now."""
        return rate > 0 and self.rng.random() < rate

    def kill_workers(self) -> None:
        """All processes of workers end, and nobody is there who would see it."""
        for generator in self.generators.values():
            generator.alive = False
        if self.trainer is not None:
            self.trainer.alive = False


def befalls(rate: float, *parts: object) -> bool:
    """Whether something of this probability is the lot of these parts: always the same answer."""
    return rate > 0 and unit(*parts) < rate


def digest(*parts: object) -> str:
    """64 hexadecimal digits that stand for these parts."""
    return blake2b("|".join(map(str, parts)).encode(), digest_size=32).hexdigest()


def unit(*parts: object) -> float:
    """A number in [0, 1) that depends on these parts and on nothing else."""
    return int(digest(*parts)[:13], 16) / 16**13
