"""A real generator between scripted parts: desk, heartbeat, engine, reward, rows, blobs. Nothing is asserted."""

from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from rollog.events.errors import BlobError
from rollog.events.messages import (
    Cause,
    Ending,
    NewWeights,
    Order,
)
from rollog.events.vocabulary import FailureKind
from rollog.pipeline.errors import PipelineError, RewardFailure
from rollog.pipeline.generation.attempts import Asking, SingleTurnAttempts
from rollog.pipeline.generation.engine import Answer, AnswerEnd, EngineLost, Failed, Finished, Request
from rollog.pipeline.generation.worker import Generator, GeneratorTerms

CAUSE = Cause(offset=7, epoch=1, digest="ab")


def order(prompt: int, *, weights: int = 0, attempt: int = 1, data_failures: int = 0) -> Order:
    return Order(
        prompt=prompt, attempt=attempt, step=0, weights=weights, row=prompt, data_failures=data_failures, cause=CAUSE
    )


def weights(version: int, digest: str = "d") -> NewWeights:
    return NewWeights(version=version, file=f"{version}-{digest}", digest=digest)


@dataclass
class Desk:
    """Hands out one batch of notices for each read of control, then the end."""

    batches: list[list]
    orders: list[Order] = field(default_factory=list)
    epochs: list[int] = field(default_factory=lambda: [1])
    reports: list = field(default_factory=list)
    read_after: list = field(default_factory=list)
    on_take: object = None

    def epoch(self) -> int:
        return self.epochs.pop(0) if len(self.epochs) > 1 else self.epochs[0]

    def control(self, epoch, after, block_s):
        self.read_after.append((epoch, after))
        batch = self.batches.pop(0) if self.batches else [Ending(reason="script")]
        return [(f"{len(self.read_after)}-{at}", notice) for at, notice in enumerate(batch)]

    def take_up_to(self, most, worker, epoch, version, *, exactly=False):
        fitting = [o for o in self.orders if o.weights == version or (o.weights < version and not exactly)][:most]
        for found in fitting:
            self.orders.remove(found)
        return fitting

    def report(self, result, lease=None):
        self.reports.append((result, lease))

    def report_all(self, results):
        self.reports += results

    def said(self, kind):
        return [result for result, _ in self.reports if isinstance(result, kind)]


@dataclass
class Pulse:
    """A heartbeat that loses what the script says, one list for each question."""

    losses: list[list[tuple[str, int]]] = field(default_factory=list)
    held: tuple = ()

    def hold(self, claims):
        self.held = tuple(claims)

    def lost(self):
        return self.losses.pop(0) if self.losses else []


@dataclass
class Engine:
    """Finishes every request after ``steps`` steps."""

    steps: int = 1
    version: int = 0
    loaded: list[int] = field(default_factory=list)
    missing: set[int] = field(default_factory=set)
    lost_at: set[int] = field(default_factory=set)
    """Versions that the engine dies of."""
    gives_up: FailureKind | None = None
    """It fails every request for this reason."""
    running_: dict[str, tuple[Request, int]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)

    def load(self, folder, version, digest):
        if version in self.missing:
            raise PipelineError(f"{folder} does not exist")
        if version in self.lost_at:
            raise EngineLost(f"the engine did not answer when version {version} was loaded")
        self.version = version
        self.loaded.append(version)

    def submit(self, request):
        self.requests.append(request)
        self.running_[request.key] = (request, 0)

    def step(self):
        finished = []
        for key, (request, done) in list(self.running_.items()):
            self.running_[key] = (request, done + 1)
            if done + 1 >= self.steps:
                del self.running_[key]
                if self.gives_up:
                    finished.append(Failed(request=request, kind=self.gives_up, error="it gave up"))
                    continue
                answer = Answer(tokens=(5,), logprobs=(-0.5,), versions=(self.version,), end=AnswerEnd.EOS)
                finished.append(Finished(request=request, answers=(answer,) * len(request.seeds)))
        return finished

    def running(self):
        return {key: self.version if done else None for key, (_, done) in self.running_.items()}

    def abort(self, key):
        self.aborted.append(key)
        return self.running_.pop(key, None) is not None


@dataclass
class Reward:
    failure: RewardFailure | None = None
    refuses_with: tuple[float, ...] = ()

    def score(self, samples):
        if self.failure:
            raise self.failure
        return [float(at) for at, _ in enumerate(samples)]

    def refuses(self, samples, rewards):
        return tuple(rewards) == self.refuses_with


class Rows:
    def row(self, index):
        return {"prompt": "" if index == 13 else "3", "answer": "4", "source": "test"}


class Environment:
    def prompt_tokens(self, row):
        from rollog.pipeline.errors import DataError

        if not row["prompt"]:
            raise DataError("it has no tokens")
        return [3]

    def sample(self, index, row, tokens):
        return tokens


@dataclass
class Blobs:
    full: bool = False
    stored: dict[str, bytes] = field(default_factory=dict)

    def put(self, data):
        if self.full:
            raise BlobError("No space left on device: make room, then rollog resume")
        digest = blake2b(data, digest_size=32).hexdigest()
        self.stored[digest] = data
        return digest


def generator(desk: Desk, *, pinned: bool = False, room: int = 4, engine=None, pulse=None, reward=None, blobs=None):
    asking = Asking(run_seed=1, rollouts=2, max_tokens=4, temperature=1.0, stop_tokens=frozenset({9}))
    engine = engine or Engine()
    return Generator(
        name="gen-0",
        desk=desk,
        heartbeat=pulse or Pulse(),
        engine=engine,
        attempts=SingleTurnAttempts(engine, asking, Rows(), Environment(), reward or Reward()),
        blobs=blobs or Blobs(),
        weights=Path("weights"),
        terms=GeneratorTerms(max_inflight=room, generators=1, pinned=pinned, patience_s=5.0),
        machine={},
    )
