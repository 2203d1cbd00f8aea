"""A log that an older rollog wrote: its events are lifted when they are read, its bytes stay as they are.

The registry of these tests is that of a later rollog, in which two types have moved on: version 1 of "commit" called
its tokens ``length``, version 2 had no ``rows`` (each rollout was one), and version 1 of "train" had no ``padding``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgpack
import pytest

from rollog.events.codec import digest_of, unseal
from rollog.events.errors import CorruptEntry, UnknownEvent
from rollog.events.log import GENESIS, Entry
from rollog.events.registry import EVENTS, UPCASTS, Fields, Registry
from rollog.events.vocabulary import OPTIONAL, TAGS, Commit, Train
from rollog.replay.projector import fold_all
from rollog.replay.state import State
from stage import Stage, small_plan


def without(fields: Fields, name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}


LATER = Registry(
    {**TAGS, "commit": (Commit, 3), "train": (Train, 2)},
    OPTIONAL,
    {
        ("commit", 1): lambda fields: without(fields, "length") | {"tokens": fields["length"]},
        ("commit", 2): lambda fields: {**fields, "rows": fields["rollouts"]},
        ("train", 1): lambda fields: {**fields, "padding": 0},
    },
)

Change = Callable[[dict[str, Any]], dict[str, Any]]

AS_WRITTEN: Mapping[tuple[str, int], Change] = {
    ("commit", 1): lambda wire: without(without(wire, "tokens"), "rows") | {"v": 1, "length": wire["tokens"]},
    ("commit", 2): lambda wire: without(wire, "rows") | {"v": 2},
    ("train", 1): lambda wire: without(wire, "padding") | {"v": 1},
}
"""What rollogs of those times had written where today's writes this."""


@pytest.fixture(scope="module")
def today() -> list[Entry]:
    """A run with commits and steps, written by today's rollog."""
    stage = Stage(small_plan())
    stage.train_steps(2)
    return stage.entries()


def written(
    entries: Sequence[Entry], change: Callable[[dict[str, Any]], dict[str, Any]]
) -> Iterator[tuple[bytes, ...]]:
    """Header, payload, digest and the digest before, of the same log with each event's wire map changed."""
    previous = GENESIS
    for entry in entries:
        payload = msgpack.packb([change(wire) for wire in msgpack.unpackb(entry.payload)])
        digest = digest_of(previous, entry.header, payload)
        yield entry.header, payload, digest, previous
        previous = digest


def aged(wire: dict[str, Any], versions: Mapping[str, int]) -> dict[str, Any]:
    version = versions.get(wire["t"])
    return wire if version is None else AS_WRITTEN[wire["t"], version](wire)


def facts(state: State) -> dict[str, Any]:
    """The State but for the digests of its entries, which are those of other bytes."""
    chosen = {number: [chunk.members for chunk in step.chunks] for number, step in state.steps.items()}
    places = {place: list(prompts) for place, prompts in state.places.items()}
    return {"version": state.version, "trained": state.trained, "places": places, "chosen": chosen}


@pytest.mark.parametrize("versions", [{"commit": 1}, {"commit": 2, "train": 1}, {"commit": 1, "train": 1}])
def test_a_log_of_an_older_version_folds_to_the_state_that_it_meant(
    today: list[Entry], versions: dict[str, int]
) -> None:
    old = list(written(today, lambda wire: aged(wire, versions)))
    read = [unseal(*frame, registry=LATER) for frame in old]

    assert [entry.events for entry in read] == [entry.events for entry in today]
    assert facts(fold_all(read)) == facts(fold_all(today))
    assert [(entry.header, entry.payload, entry.digest) for entry in read] == [frame[:3] for frame in old]
    assert any(entry.payload != same.payload for entry, same in zip(read, today, strict=True))


def test_what_an_upcaster_does_not_find_is_damage_and_no_traceback(today: list[Entry]) -> None:
    broken = written(today, lambda wire: without(wire, "tokens") | {"v": 1} if wire["t"] == "commit" else wire)
    with pytest.raises(CorruptEntry, match="is not version 1 of 'commit'"):
        [unseal(*frame, registry=LATER) for frame in broken]


def test_an_unknown_field_is_ignored_and_kept_through_all_versions(today: list[Entry]) -> None:
    old = [*written(today, lambda wire: aged(wire, {"commit": 1}) | {"colour": "blue"})]
    read = [unseal(*frame, registry=LATER) for frame in old]
    assert [entry.events for entry in read] == [entry.events for entry in today]
    assert all(b"blue" in entry.payload for entry in read)


def test_a_newer_version_stops_the_fold_and_the_rollog_that_wrote_it_is_named(today: list[Entry]) -> None:
    newer = written(today, lambda wire: wire | {"v": 2, "rollog": "9.1"} if wire["t"] == "train" else wire)
    with pytest.raises(UnknownEvent, match=r"'train' of version 2.*up to version 1.*was written by rollog staged"):
        fold_all(unseal(*frame) for frame in newer)
    unknown = written(today, lambda wire: wire | {"t": "teleport"} if wire["t"] == "train" else wire)
    with pytest.raises(UnknownEvent, match=r"'teleport'.*does not know.*entry 2 was written by rollog staged"):
        fold_all(unseal(*frame) for frame in unknown)


def test_optional_events_of_a_newer_version_are_passed_over(today: list[Entry]) -> None:
    remark = {"t": "whisper", "v": 3, "o": True}
    read = [
        unseal(header, payload, digest_of(previous, header, payload), previous)
        for header, payload, _, previous in [
            (entry.header, msgpack.packb([*msgpack.unpackb(entry.payload), remark]), "", GENESIS) for entry in today
        ]
    ]
    assert [entry.events for entry in read] == [entry.events for entry in today]


def test_a_registry_has_a_way_from_every_older_version_and_no_way_to_nowhere() -> None:
    def lift(fields: Fields) -> Fields:
        return fields

    with pytest.raises(ValueError, match=r"missing from \[\('commit', 1\)\]"):
        Registry({**TAGS, "commit": (Commit, 2)}, OPTIONAL, {})
    with pytest.raises(ValueError, match=r"lead nowhere from \[\('commit', 1\)\]"):
        Registry(TAGS, OPTIONAL, {("commit", 1): lift})
    assert Registry(TAGS, OPTIONAL, UPCASTS).shapes.keys() == EVENTS.shapes.keys()
