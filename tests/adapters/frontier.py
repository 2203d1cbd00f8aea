"""kind "frontier": which prompts a resume hands out again.

The history is rebuilt up to its checkpoint (some prompts trained, some in the buffer, some being answered), everything
dies, and a new controller goes on to the end of the data. With a log none is skipped and none is trained twice, so ours
hands out what the recording did, less what that trained again, and with what that skipped.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from adapters.ledger import BLOB, Ledger
from adapters.mismatch import Mismatch, compare
from rollog.events.vocabulary import Checkpoint, Dispatch, Event, Open, Resume, Save, SaveReason
from rollog.pipeline.decisions import decide
from rollog.pipeline.inputs import LeaseLost
from rollog.pipeline.scheduling import schedule
from rollog.replay.state import Place


def run(scenario: Mapping[str, Any]) -> Iterator[Mismatch]:
    """Rebuild, kill, resume, and look at what is sent.

    An outstanding prompt below the frontier counts as trained in the recording. It may as well be a hole that training
    has overtaken, so both are replayed; a hole is always answered again.
    """
    trained = set(range(scenario["trained_frontier"])) - set(scenario["retained_in_buffer"])
    holes = trained & set(scenario["outstanding"])
    yield from _resume(scenario, trained, set())
    if holes:
        yield from _resume(scenario, trained - holes, holes)


def _resume(scenario: Mapping[str, Any], trained: set[int], holes: set[int]) -> Iterator[Mismatch]:
    size, last = scenario["batch_size"], scenario["num_batches"] * scenario["batch_size"]
    buffer = set(scenario["retained_in_buffer"])
    sent = resumed(history(scenario, trained, buffer))
    expect = scenario["expect"]
    if "resumed_batches" in expect:
        again = set(chain.from_iterable(expect["resumed_batches"]))
    else:  # recorded without alignment: it went on where the loader stood
        again = set(range(expect["loader_pos"] * size, last))
    want = again - set(expect.get("retrained", ())) | set(expect["skipped"]) | holes
    yield from compare(scenario, "sent after the resume", sorted(want), sent)
    yield from compare(scenario, "skipped", [], sorted(set(range(last)) - trained - buffer - set(sent)))
    yield from compare(scenario, "retrained", [], sorted(trained & set(sent)))


def history(scenario: Mapping[str, Any], trained: set[int], buffer: set[int]) -> Ledger:
    """A run under windowed, whose steps may train any prompts, up to a durable checkpoint."""
    size = scenario["batch_size"]
    rows = scenario["num_batches"] * size
    ledger = Ledger(
        num_rows=rows,
        grpo={"prompts_per_step": size},
        sampler={"name": "windowed", "max_staleness": rows},
        flow={"max_inflight_prompts": rows, "max_buffered_groups": 2 * rows},
    )
    for _ in range(scenario["handed_out_batches"]):
        ledger.admit()
        for _ in range(size):
            ledger.dispatch(weights=0, step=None)
    for prompt in sorted(trained | buffer):
        ledger.commit(prompt, done=0)
    if trained:
        ledger.select(sorted(trained), last=False)
        ledger.train()
        ledger.append(Save(version=1, reason=SaveReason.PERIODIC))
        ledger.append(Checkpoint(version=1, manifest="1-1-1", digest=BLOB))
    return ledger


def resumed(ledger: Ledger) -> list[int]:
    """Everything dies and begins again; returns the prompts that are sent until the data is at its end."""
    state = ledger.state
    ledger.append(Open(epoch=2, reason="resume", rollog="vectors", machine={}), epoch=2)
    newest = state.newest_checkpoint()
    ledger.append(Resume(version=newest or 0, checkpoint="" if newest is None else "1-1-1", reason="resume"))
    for group in state.at(Place.IN_FLIGHT):
        lost = LeaseLost(prompt=group.prompt, attempt=group.attempt, worker="gen-0")
        ledger.append(*decide(state, ledger.policy, lost, ledger.now))
    sent: list[int] = []
    while isinstance(answer := schedule(state, ledger.policy, ledger.now), tuple):
        events: tuple[Event, ...] = answer
        ledger.append(*events)
        sent.extend(event.prompt for event in events if isinstance(event, Dispatch))
    return sorted(sent)
