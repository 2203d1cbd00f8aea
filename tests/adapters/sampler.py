"""kind "sampler": gate, stamp, selection, eviction, cancelling and lending, operation by operation.

Each operation is folded as real events into a real State, and each answer comes from the sampler (or, for a loan, from
the index of finished groups) that the controller asks.

Taken away, because ours differs there on purpose: what was lost is not given back by the gate; the cursor of windowed,
which has no gate; the room that a sampler needs beyond N(K + 1).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from adapters.ledger import Ledger
from adapters.mismatch import Mismatch, compare
from rollog.events.vocabulary import Borrow, Divert, Drop, Evict, EvictReason, FailureKind
from rollog.pipeline.samplers import Sampler, make_sampler, select
from rollog.pipeline.settings import Sampler as SamplerSettings
from rollog.replay.state import Group, Place

MakeSampler = Callable[[SamplerSettings], Sampler]


def run(scenario: Mapping[str, Any], make: MakeSampler = make_sampler) -> Iterator[Mismatch]:
    """Replay one scenario, with the sampler that ``make`` gives."""
    bench = Bench(scenario, make)
    yield from compare(scenario, "facts", scenario["facts"], bench.facts())
    for number, op in enumerate(scenario["ops"]):
        yield from compare(scenario, f"op {number} {op['op']}", op["expect"], bench.do(op))
    yield from compare(scenario, "final", scenario["final"], bench.final())


class Bench:
    """One sampler over one State."""

    def __init__(self, scenario: Mapping[str, Any], make: MakeSampler) -> None:
        self.size, start = scenario["num_prompts_per_step"], scenario["start_version"]
        self.ledger = Ledger(sampler=settings(scenario["sampler"]), grpo={"prompts_per_step": self.size})
        self.name = scenario["sampler"]["name"]
        self.sampler = make(self.ledger.plan.sampler)
        self.first_cursor = start - 1
        self.admission_waits = False
        self.gids: dict[int, str] = {}
        self.ledger.admit(start)
        for _ in range(start):
            self.ledger.train()

    @property
    def cursor(self) -> int:
        """Windowed moves no cursor in the vectors, and has no gate that could see ours."""
        return self.first_cursor if self.name == "windowed" else self.ledger.state.cursor

    def facts(self) -> dict[str, Any]:
        """On policy or not, and the room in the buffer; windowed asks for what one step needs, whatever its window."""
        room: int | None = self.sampler.capacity(self.size)
        if self.name == "windowed":
            room = None if room == 2 * self.size - 1 else room
        elif self.name != "in_order":
            assert room is not None
            room -= self.size - 1
        return {"is_on_policy": self.sampler.window == 0, "required_buffer_capacity": room}

    def final(self) -> dict[str, Any]:
        """The buffer as the vectors write it down."""
        return {
            "version": self.ledger.state.version,
            "dispatch_index": self.cursor,
            "admit_pending": self.admission_waits,
            "slots": [
                [
                    self.gids[group.prompt],
                    group.weights if group.finished is None else group.finished.born,
                    group.step,
                    group.place is Place.BUFFER,
                ]
                for group in self.slots()
            ],
        }

    def do(self, op: Mapping[str, Any]) -> Any:
        """One operation; returns what it is expected to."""
        state = self.ledger.state
        match op["op"]:
            case "admit":
                self.admission_waits = True
                stamp = self._admitted()
                return {"blocked": stamp is None, **(stamp or {"dispatch_index": self.cursor})}
            case "advance":
                self.ledger.train()
                if not self.admission_waits:
                    return {"version": state.version}
                stamp = self._admitted()
                return {"version": state.version, "unblocked": stamp is not None, **(stamp or {})}
            case "reserve":
                self._dispatch(op["gid"], op["weight"], op["target"])
                return {"size": len(self.slots())}
            case "commit":
                self.ledger.commit(self._prompt(op["gid"]), op["end_weight"])
                return {"ready": state.count(Place.BUFFER)}
            case "fail":
                self.ledger.append(Drop(prompt=self._prompt(op["gid"]), kind=FailureKind.INFRA, error="as recorded"))
                return {"size": len(self.slots())}
            case "count":
                return sum(group.step == op["target"] for group in self.slots())
            case "restore":
                for gid, weight, target in op["groups"]:
                    self._dispatch(gid, weight, target)
                    self.ledger.commit(self._prompt(gid), weight)
                return {"size": len(self.slots())}
            case "evict":
                return {"evicted": self._evicted()}
            case "select":
                return self._selected(op["min"], op["max"])
            case "abort_check":
                oldest = self.sampler.oldest_useful(state)
                running = [group for group in self.slots() if group.place is Place.IN_FLIGHT]
                return {"abort": [self.gids[group.prompt] for group in running if group.weights < oldest]}
            case "promote":
                return self._lent(op["to"])
        raise ValueError(f"the vectors' README knows no operation {op['op']!r}")

    def slots(self) -> list[Group]:
        """Running and finished groups, in slot order."""
        state = self.ledger.state
        return sorted([*state.at(Place.IN_FLIGHT), *state.at(Place.BUFFER)], key=lambda group: group.slot)

    def _prompt(self, gid: str) -> int:
        return next(prompt for prompt, name in self.gids.items() if name == gid)

    def _dispatch(self, gid: str, weights: int, step: int | None) -> None:
        self.gids[self.ledger.dispatch(weights, step)] = gid

    def _admitted(self) -> dict[str, Any] | None:
        """The stamp of the batch if it is admitted now."""
        if not self.sampler.gate_open(replace(self.ledger.state, lost=0)):
            return None
        self.admission_waits = False
        self.ledger.admit()
        return {
            "stamp": self.ledger.state.cursor if self.sampler.stamps else None,
            "dispatch_index": self.cursor,
        }

    def _evicted(self) -> list[str]:
        prompts = sorted(self.sampler.too_old(self.ledger.state), key=lambda p: self.ledger.state.groups[p].slot)
        if prompts:
            self.ledger.append(Evict(prompts=tuple(prompts), reason=EvictReason.STALE))
        return [self.gids[prompt] for prompt in prompts]

    def _selected(self, minimum: int, maximum: int) -> dict[str, Any]:
        try:
            chosen = select(self.sampler.eligible(self.ledger.state), minimum, maximum)
        except ValueError:
            return {"error": "ValueError"}
        if chosen is None:
            return {"selected": None}
        self.ledger.select(chosen, last=False)
        return {"selected": [self.gids[prompt] for prompt in chosen]}

    def _lent(self, borrower: int) -> dict[str, Any]:
        state = self.ledger.state
        prompt = state.ready.furthest_after(borrower)
        if prompt is None:
            return {"lender": None, "gid": None}
        lender, spare = state.groups[prompt].step, state.handed_out
        assert lender is not None
        self.ledger.append(Divert(prompts=(spare,), rows=(spare,)))
        self.ledger.append(
            Borrow(
                loan=state.loans_made,
                prompt=prompt,
                lender=lender,
                borrower=borrower,
                dropped=spare,
                spare=spare,
                nth=1,
            )
        )
        return {"lender": lender, "gid": self.gids[prompt]}


def settings(sampler: Mapping[str, Any]) -> dict[str, Any]:
    """The sampler's settings under our names."""
    names = {
        "name": "name",
        "max_lookahead_versions": "lookahead",
        "max_staleness_versions": "max_staleness",
        "sample_freshest_first": "freshest_first",
    }
    return {names[name]: value for name, value in sampler.items()}
