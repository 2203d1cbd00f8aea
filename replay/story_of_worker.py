"""The life of a worker: when it came and went, which weights it ran, what it finished.

Rule 1: an attempt is tied to a worker by its result: one that failed or vanished names nobody in the log.
"""

from dataclasses import dataclass, field

from rollog.events.log import Entry
from rollog.events.vocabulary import Commit, Event, Join, Late, Leave, Load, Role
from rollog.replay.state import State
from rollog.replay.story import Answer, Fact, note
from rollog.replay.wording import counted, words


@dataclass(slots=True)
class WorkerStory:
    """Follows one worker, by its name."""

    name: str
    facts: list[Fact] = field(default_factory=list)
    role: Role | None = None
    groups: int = 0
    tokens: int = 0
    late: int = 0
    reason: str = ""
    seen: dict[str, None] = field(default_factory=dict)

    def follow(self, state: State, entry: Entry) -> None:
        """Take the next entry."""
        note(self.facts, entry, [words(event) for event in entry.events if self._tells(event)])

    def _tells(self, event: Event) -> bool:
        """Count the event; whether it is told by itself: commits are only counted."""
        if not isinstance(event, (Join, Leave, Load, Late, Commit)) or event.worker is None:
            return False
        self.seen[event.worker] = None
        if event.worker != self.name:
            return False
        match event:
            case Join():
                self.role = event.role
            case Leave():
                self.reason = event.reason
            case Late():
                self.late += 1
            case Commit():
                self.groups, self.tokens = self.groups + 1, self.tokens + event.tokens
                return False
        return True

    def told(self, state: State) -> Answer:
        """What came of the worker."""
        if self.name not in self.seen:
            there = f"there were: {', '.join(sorted(self.seen))}" if self.seen else "no worker ever came"
            return Answer(known=False, verdict=f"worker {self.name} never came: {there}.")
        now = state.workers.get(self.name)
        went = f"gone: {self.reason}" if self.reason else "not there"
        is_there = went if now is None else "there"
        runs = "" if now is None or now.version is None else f", runs v{now.version}"
        made = (
            f" It finished {counted(self.groups, 'group')}, {counted(self.tokens, 'token')}, and sent "
            f"{counted(self.late, 'late result')}."
            if self.role is not Role.TRAINER
            else ""
        )
        return Answer(
            known=True,
            verdict=f"{self.name}, a {self.role.value if self.role else 'worker'}, is {is_there}{runs}.{made}",
            details={
                "worker": self.name,
                "role": None if self.role is None else self.role.value,
                "there": now is not None,
                "version": None if now is None else now.version,
                "groups": self.groups,
                "tokens": self.tokens,
                "late": self.late,
            },
        )
