"""What a generator worker asks of an engine. No engine is imported here.

Rule 1: an engine is stepped. `step()` moves everything that runs on by one token (or a few) and returns what finished,
so that between two steps the worker can refresh leases, take orders, abort answers, and load weights.
Rule 2: a token is labelled with the version of the weights that computed it, when it is computed. `load` changes the
label of later tokens only; running answers go on. Whether they keep their keys and values or compute them again under
the new weights is the engine's own.
Rule 3: a log probability is that of the sampled token under softmax(logits / temperature), the distribution it was
drawn from. Nothing else shapes the distribution (no top-k, no top-p, no penalties), so the trainer computes the same
number.
Rule 4: no prefix cache survives a `load`.
Rule 5: what ends one request is `Failed`, what ends the engine is EngineLost: its process is replaced then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from rollog.events.vocabulary import FailureKind
from rollog.pipeline.errors import PipelineError


class EngineError(PipelineError):
    """The engine cannot do what it was asked to; the work order is at fault, not the machine."""


class EngineLost(PipelineError):
    """The engine is dead, hangs, or answers with other weights than it was given: end its worker, start another one."""


class AnswerEnd(StrEnum):
    """Why an answer ended."""

    EOS = "eos"
    """The model wrote one of the stop tokens; it is the answer's last token."""
    LENGTH = "length"
    """The answer reached max_tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt to be answered once for each seed. `key` is the caller's name for it, unique among what runs."""

    key: str
    prompt_tokens: tuple[int, ...]
    seeds: tuple[int, ...]
    max_tokens: int
    temperature: float
    stop_tokens: frozenset[int]

    def __post_init__(self) -> None:
        if not self.prompt_tokens:
            raise EngineError(f"request {self.key} has an empty prompt; give it at least one token")
        if not self.seeds:
            raise EngineError(f"request {self.key} asks for no answer; give it one seed for each answer")
        if self.max_tokens < 1:
            raise EngineError(f"request {self.key} has max_tokens={self.max_tokens}; set it to 1 or more")
        if not self.temperature > 0:
            raise EngineError(f"request {self.key} has temperature={self.temperature}; it must be above 0 to sample")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the model wrote for one seed: `tokens`, `logprobs` and `versions` have one item for each token.

    `logprobs` are natural logarithms (see rule 3), `versions` the weights that computed each token (see rule 2).
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    end: AnswerEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """All answers to a request, in the order of its seeds."""

    request: Request
    answers: tuple[Answer, ...]

    @property
    def born(self) -> int:
        """The oldest weights that wrote a token of it."""
        return min(min(answer.versions) for answer in self.answers)

    @property
    def done(self) -> int:
        """The newest weights that wrote a token of it."""
        return max(max(answer.versions) for answer in self.answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A request that the engine gave up. `kind`: whether the prompt is to blame (data) or the engine (infra)."""

    request: Request
    kind: FailureKind
    error: str


class Engine(Protocol):
    """Answers prompts, step by step. Every method may raise EngineLost."""

    @property
    def bitwise(self) -> bool:
        """Whether tokens and log probabilities depend on weights, prompt and seeds alone, whatever runs beside them."""
        ...

    @property
    def version(self) -> int:
        """The version of the weights that the next step uses."""
        ...

    def load(self, folder: Path, version: int, digest: str) -> None:
        """Use the weights published in `folder` from the next step on. Raises WeightsError if they are not `digest`."""
        ...

    def submit(self, request: Request) -> None:
        """Begin to answer a request with the next step. Raises EngineError if its key already runs."""
        ...

    def step(self) -> Sequence[Finished | Failed]:
        """Move everything that runs on; returns the requests whose last answer ended. Nothing runs: returns []."""
        ...

    def running(self) -> Mapping[str, int | None]:
        """The keys that run, each with the version that wrote its first token (None before its first step)."""
        ...

    def abort(self, key: str) -> bool:
        """Forget a request and what it wrote. False if no such key runs."""
        ...
