"""A log whose entries are sealed and folded, as the controller does it. Nothing is decided here."""

from collections.abc import Sequence
from typing import Any

from rollog.events.codec import seal
from rollog.events.vocabulary import Admit, Commit, Dispatch, Event, Open, Select, Stamp, Start, Train
from rollog.pipeline.config import Plan
from rollog.pipeline.policy import Policy
from rollog.replay.projector import fold
from rollog.replay.state import State

BLOB = "0" * 64


class NumberedRows:
    """A data set of which only the number of rows matters: ordinal o reads row o."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows

    def row_index(self, ordinal: int) -> int:
        """The row of an ordinal."""
        return ordinal


class Ledger:
    """A State, and the one way to change it."""

    def __init__(self, num_rows: int = 1 << 20, **sections: Any) -> None:
        """A run has been started and opened under these settings (a section each)."""
        given: dict[str, Any] = {"run": "vectors", "model": {"path": "none"}, "data": {"path": "none.jsonl"}}
        self.plan = Plan.from_settings({**given, **sections})
        self.policy = Policy.of(self.plan, NumberedRows(num_rows))
        self.state = State()
        self.now = 1000.0
        config = self.plan.settings()
        self.append(Start(run="vectors", config=config, dataset=BLOB, seed=0, num_rows=num_rows))
        self.append(Open(epoch=1, reason="start", rollog="vectors", machine={}), epoch=1)

    def append(self, *events: Event, epoch: int | None = None) -> tuple[Event, ...]:
        """One entry; returns its events."""
        state = self.state
        entry = seal(
            offset=state.offset + 1,
            epoch=max(state.epoch, 1) if epoch is None else epoch,
            time=self.now,
            input=None,
            events=events,
            previous=state.digest,
        )
        fold(state, entry)
        return events

    # --- what the vectors do one by one, and a run together -----------------------------------------------------------

    def admit(self, count: int = 1) -> None:
        """The cursor moves by ``count`` batches; their prompts come one by one, when they are dispatched."""
        for _ in range(count):
            self.append(Admit(batch=self.state.cursor + 1, prompts=(), rows=()))

    def dispatch(self, weights: int, step: int | None) -> int:
        """The next prompt of the last batch is handed out and dispatched; returns its ordinal."""
        prompt = self.state.handed_out
        self.append(Admit(batch=self.state.cursor, prompts=(prompt,), rows=(prompt,)))
        if step is not None:
            self.append(Stamp(prompts=(prompt,), step=step))
        self.append(Dispatch(prompt=prompt, attempt=1, step=step, weights=weights))
        return prompt

    def commit(self, prompt: int, done: int) -> None:
        """The group is finished by the weights that its order asked for, up to ``done``."""
        assert self.state.rules is not None
        group = self.state.groups[prompt]
        num = self.state.rules.rollouts_per_prompt
        self.append(
            Commit(
                prompt=prompt,
                attempt=group.attempt,
                blob=BLOB,
                born=group.weights,
                done=done,
                rollouts=num,
                rows=num,
                tokens=num,
                reward_mean=0.5,
                reward_std=0.5,
                worker="gen-0",
            )
        )

    def select(self, prompts: Sequence[int], *, last: bool) -> None:
        """A chunk for the step that is being filled."""
        step = self.state.filling
        chunk = len(self.state.step(step).chunks)
        self.append(Select(step=step, chunk=chunk, prompts=tuple(prompts), last=last))

    def train(self) -> None:
        """The step is closed with what it has taken, and trained."""
        self.select((), last=True)
        self.append(
            Train(
                step=self.state.standing,
                generation=self.state.generation,
                loss=0.0,
                grad_norm=0.0,
                tokens=1,
                rows=1,
                padding=0,
                seconds=1.0,
            )
        )
