"""A sampler of the user's own: ``sampler: {name: custom, target: "module:Class", any: setting}``.

    class NewestFirst:
        def __init__(self, state, depth=2):     # every other name in the section, by name
            self.state, self.depth = state, depth

        def gate_open(self):                    # whether the next batch may be admitted
            return self.state.cursor < self.state.version + self.depth

        def eligible(self):                     # finished prompts that the step being filled may take, best first
            return reversed(self.state.ready.by_slot.values())

Rule 1: the class is pure. It is made anew from (state, settings) for every question, keeps nothing, reads no clock and
        no random number, and leaves the state as it is: what it answers must be the same after a crash.
Rule 2: it is checked when the run starts, and every answer is checked before it becomes an entry. Whatever is wrong is
        a PlanError; the run can be resumed when the class is mended.
Rule 3: these are answered for a class that does not answer them itself:

        stamps = False         class attribute: whether an admitted batch is meant for one step, the batch's number
        too_old()              finished prompts to evict: those born of weights below v or, if it stamps, those
                               stamped for steps that are closed
        oldest_useful()        running attempts born of weights below this are cancelled: 0, none is
        minimum(wanted)        groups that a chunk waits for, where the settings ask for ``wanted``: as many
        rest()                 what a step may take at the end of the data, when nothing runs any more: what is eligible
        capacity(n)            room in groups that it needs for steps of n, asked of a fresh state: 2n - 1, so that a
                               whole batch still fits when n - 1 groups are there that no step can begin with
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from rollog.pipeline import named_code
from rollog.pipeline.errors import PlanError
from rollog.replay.state import Group, Place, State

REQUIRED: Final = ("gate_open", "eligible")
OPTIONAL: Final = ("too_old", "oldest_useful", "minimum", "rest", "capacity")

END: Final = object()
Answer = TypeVar("Answer", bool, int)


class CustomSampler:
    """``samplers.Sampler`` by a class of the user's. Raises ``PlanError`` when the class cannot be one."""

    window = sys.maxsize
    """Its gate alone says how far ahead a batch may be admitted; an admitted one may start at any time."""

    def __init__(self, target: str, options: Mapping[str, Any]) -> None:
        self._said = f"sampler.target={target}"
        self._options = dict(options)
        self._class = _checked(named_code.load("sampler.target", target, "Class"), self._said, self._options)
        self.stamps: bool = getattr(self._class, "stamps", False)

    def gate_open(self, state: State) -> bool:
        """As the class says."""
        return self._answer(state, "gate_open", bool)

    def may_start(self, state: State, group: Group) -> bool:
        """At any time."""
        return True

    def eligible(self, state: State) -> Iterator[int]:
        """As the class says; each must be a finished group that is named once."""
        return self._finished(state, "eligible")

    def minimum(self, state: State, wanted: int) -> int:
        """As the class says, and at least 1; else as the settings say."""
        return max(1, self._answer(state, "minimum", int, wanted)) if self._answers("minimum") else wanted

    def rest(self, state: State) -> Iterator[int]:
        """As the class says, else what is eligible."""
        return self._finished(state, "rest" if self._answers("rest") else "eligible")

    def too_old(self, state: State) -> Sequence[int]:
        """As the class says, else what the step at hand can no longer be on policy with, or came too late for."""
        ready = state.ready
        if not self._answers("too_old"):
            if not self.stamps:
                return list(ready.older_than(state.version))
            return list(ready.of_steps_before(state.version))
        prompts = list(self._finished(state, "too_old"))
        for prompt in prompts:
            step = state.groups[prompt].step
            if step is not None and step >= state.version:
                self._refuse(f"too_old() names prompt {prompt}, which step {step} still waits for")
        return prompts

    def oldest_useful(self, state: State) -> int:
        """As the class says, else 0."""
        return self._answer(state, "oldest_useful", int) if self._answers("oldest_useful") else 0

    def capacity(self, prompts_per_step: int) -> int:
        """As the class says, else 2N - 1."""
        if not self._answers("capacity"):
            return 2 * prompts_per_step - 1
        return self._answer(State(), "capacity", int, prompts_per_step)

    def _answers(self, question: str) -> bool:
        return hasattr(self._class, question)

    def _answer(self, state: State, question: str, kind: type[Answer], *arguments: int) -> Answer:
        answer = self._ask(state, question, *arguments)
        if type(answer) is not kind:
            self._refuse(f"{question}() answers {answer!r}, which is no {kind.__name__}")
        return cast(Answer, answer)

    def _finished(self, state: State, question: str) -> Iterator[int]:
        """Prompts, one after the other as they are asked for, so that a long answer costs only what is taken of it."""
        answer = self._ask(state, question)
        prompts = self._try(question, lambda: iter(answer))
        named: set[int] = set()
        while (prompt := self._try(question, lambda: next(prompts, END))) is not END:
            if prompt in named:
                self._refuse(f"{question}() names prompt {prompt!r} twice")
            if prompt not in state.places[Place.BUFFER]:
                self._refuse(f"{question}() names prompt {prompt!r}, which is no finished group in the buffer")
            named.add(prompt)
            yield prompt

    def _ask(self, state: State, question: str, *arguments: int) -> Any:
        return self._try(question, lambda: getattr(self._class(state, **self._options), question)(*arguments))

    def _try(self, question: str, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except Exception as error:
            raise PlanError(
                f"{self._said}: {question}() raises {type(error).__name__}: {error}. Mend the class, then resume."
            ) from error

    def _refuse(self, what: str) -> None:
        raise PlanError(f"{self._said}: {what}. Mend the class, then resume.")


def _checked(found: Any, said: str, options: Mapping[str, Any]) -> type[Any]:
    """Refuse what could never answer."""
    if not isinstance(found, type):
        raise PlanError(f"{said}: it is a {type(found).__name__} and no class. Name a class.")
    missing = [f"{name}()" for name in REQUIRED if not hasattr(found, name)]
    if missing:
        raise PlanError(f"{said}: it has no {' and no '.join(missing)}. A sampler must answer these; add them.")
    wrong = [name for name in (*REQUIRED, *OPTIONAL) if hasattr(found, name) and not callable(getattr(found, name))]
    if wrong:
        raise PlanError(f"{said}: {', '.join(wrong)} must be methods. Write `def {wrong[0]}(self, ...)`.")
    stamps = getattr(found, "stamps", False)
    if not isinstance(stamps, bool):
        raise PlanError(f"{said}: stamps must be a class attribute that is True or False; it is {stamps!r}.")
    try:
        inspect.signature(found).bind(State(), **options)
    except TypeError as error:
        raise PlanError(
            f"{said}: it cannot be made from a state and the settings {sorted(options)}: {error}. The other names in "
            f"the section sampler are given to it by name."
        ) from error
    return found
