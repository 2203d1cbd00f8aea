"""Why: ``prompt:17``, ``step:9``, ``loan:3``, ``worker:gen-0`` each have a verdict and the entries it rests on.

Rule 1: one pass over the log, with the State beside it; the four stories (``story_of_*``) say what to keep.
Rule 2: an entry that cannot stand in the log is refused before a story is told of it.
Rule 3: the screen is drawn from the plain model, which is also what ``--json`` prints.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rollog.events.log import Entry
from rollog.replay.errors import BadReference
from rollog.replay.projector import fold
from rollog.replay.state import State
from rollog.replay.story import Story
from rollog.replay.story_of_loan import LoanStory
from rollog.replay.story_of_prompt import PromptStory
from rollog.replay.story_of_step import StepStory
from rollog.replay.story_of_worker import WorkerStory

SCHEMA: Final = "rollog.why/1"
NUMBERED: Final = {"prompt": PromptStory, "step": StepStory, "loan": LoanStory}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is asked about: ``kind`` is prompt, step, loan or worker; ``name`` a number, or a worker's name."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    def story(self) -> Story:
        """A story that has not begun."""
        return WorkerStory(self.name) if self.kind == "worker" else NUMBERED[self.kind](int(self.name))


def parse_subject(text: str) -> Subject:
    """``prompt:17`` and the like. Raises ``BadReference``."""
    kind, _, name = text.partition(":")
    numbered = kind in NUMBERED and name.isascii() and name.isdigit() and len(name) <= 15
    if not numbered and not (kind == "worker" and name):
        raise BadReference(f"{text!r} is nothing to ask about; write prompt:17, step:9, loan:3 or worker:gen-0")
    return Subject(kind=kind, name=name)


def why(subject: Subject, entries: Iterable[Entry]) -> dict[str, Any]:
    """The answer as one plain model. ``known`` is false when the log knows nothing of the subject.

    Raises ``BrokenHistory`` for a log that no correct controller wrote.
    """
    before, state, story = State(), State(), subject.story()
    for entry in entries:
        fold(state, entry)
        story.follow(before, entry)
        fold(before, entry)
    answer = story.told(state)
    return {
        "schema": SCHEMA,
        "run": state.run,
        "offset": state.offset,
        "subject": str(subject),
        "known": answer.known,
        "verdict": answer.verdict,
        "parts": list(answer.parts),
        "cost": answer.cost,
        "entries": [{"offset": fact.offset, "time": fact.time, "says": list(fact.says)} for fact in story.facts],
        **answer.details,
    }


def why_screen(model: Mapping[str, Any]) -> Iterator[str]:
    """The lines of ``rollog why``: the verdict, what adds up to it, the entries it rests on, the cost of a prompt."""
    yield model["verdict"]
    for part in model["parts"]:
        yield f"  {part}"
    for entry in model["entries"]:
        offset = f"@{entry['offset']:,}"
        for number, said in enumerate(entry["says"]):
            yield f"  {'' if number else offset:<7} {said}"
    if model["cost"]:
        yield f"  cost    {model['cost']}"
