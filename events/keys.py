"""The keys of one run on a server. They share a hash tag, so that one script may use them all."""

from dataclasses import dataclass

from rollog.events.wire import MAX_INT


@dataclass(frozen=True, slots=True)
class Keys:
    """Every key, made from the run's name."""

    run: str

    def __post_init__(self) -> None:
        if not self.run or any(character in self.run for character in "{}*?[]\\ \n"):
            raise ValueError(f"{self.run!r} cannot name a run's keys: use letters, digits, '-', '_' and '.'")

    def _key(self, name: str) -> str:
        return f"{{{self.run}}}:{name}"

    @property
    def log(self) -> str:
        """Stream: one message an entry, its id is ``<offset>-0``."""
        return self._key("log")

    @property
    def meta(self) -> str:
        """Hash: epoch, nonce, offset, digest, log_id, format, ordered, oldest, archived.

        The entries up to ``archived`` never stood here: they lie in segments.
        """
        return self._key("meta")

    @property
    def results(self) -> str:
        """Stream: what workers report, trimmed when answered, never deleted."""
        return self._key("results")

    @property
    def leases(self) -> str:
        """Hash: who holds what (``leases.py``)."""
        return self._key("leases")

    def work(self, epoch: int) -> str:
        """Sorted set: ordinals in flight, in the order of their dispatch."""
        return self._key(f"work:{epoch}")

    def orders(self, epoch: int) -> str:
        """Hash: ordinal -> attempt|weights|order."""
        return self._key(f"orders:{epoch}")

    def train(self, epoch: int) -> str:
        """Stream: what trainer ranks do, in order."""
        return self._key(f"train:{epoch}")

    def control(self, epoch: int) -> str:
        """Stream: what everybody should know."""
        return self._key(f"control:{epoch}")

    def derived(self, epoch: int) -> list[str]:
        """The four keys that a writer epoch owns."""
        return [self.work(epoch), self.orders(epoch), self.train(epoch), self.control(epoch)]


def entry_id(offset: int) -> str:
    """The stream id of an entry."""
    if not 0 <= offset <= MAX_INT:
        raise ValueError(f"{offset} is not an offset")
    return f"{offset}-0"
