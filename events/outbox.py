"""How an outbox is written beside its entry, and what the control stream must still tell a late reader.

Rule 1: an outbox with orders rings the doorbell: the log adds one ``Doorbell`` to control, nobody else needs to.
Rule 2: control is cut at every Publish, so it stays short however long the run. An outbox that names published
        weights names all that hold (``pinned`` loads older ones); what else was cut and still holds is said again in
        the same script, before them: the last ``NewGeneration`` and ``FleetSize``. So a notice can come twice, which
        no reader minds.
Rule 3: train is cut from its front, up to the first message of a step that may be trained again. So what an older
        trainer generation was told may stay a while behind it, and a reader skips that.
Rule 4: the arguments are packed once; a resend carries the same bytes.
"""

from collections.abc import Sequence

from rollog.events.codec import pack_message
from rollog.events.connection import Argument
from rollog.events.log import Outbox
from rollog.events.messages import Chunk, Doorbell, FleetSize, NewGeneration, NewWeights, Notice, TrainMessage
from rollog.events.stream_ids import id_after


class ControlBook:
    """What control says in one writer epoch."""

    def __init__(self) -> None:
        self._generation: NewGeneration | None = None
        self._fleet: FleetSize | None = None

    def notices(self, outbox: Outbox) -> tuple[Sequence[Notice], bool]:
        """The notices to be written for this outbox, and whether everything before them is cut."""
        said = list(outbox.control)
        if outbox.orders and Doorbell() not in said:
            said.append(Doorbell())
        cut = any(isinstance(notice, NewWeights) for notice in said)
        again = [notice for notice in (self._generation, self._fleet) if cut and notice is not None]
        for notice in said:
            match notice:
                case NewGeneration():
                    self._generation = notice
                case FleetSize():
                    self._fleet = notice
                case _:
                    pass
        return [*again, *said], cut


def step_of(message: TrainMessage) -> int:
    """The step that a train message belongs to; a checkpoint is ordered before the step of its version."""
    return message.step if isinstance(message, Chunk) else message.version


def append_arguments(outbox: Outbox, book: ControlBook) -> list[Argument]:
    """The outbox as ``append.lua`` reads it."""
    notices, cut = book.notices(outbox)
    keep = "" if outbox.results_read is None else id_after(outbox.results_read)
    train_from = "" if outbox.train_from is None else outbox.train_from
    return [keep, train_from, int(cut), *_lists(outbox, notices)]


def hand_over_arguments(outbox: Outbox, book: ControlBook) -> list[Argument]:
    """The outbox as ``hand_over.lua`` reads it."""
    notices, _ = book.notices(outbox)
    return _lists(outbox, notices)


def _lists(outbox: Outbox, notices: Sequence[Notice]) -> list[Argument]:
    arguments: list[Argument] = [len(outbox.ended), *outbox.ended, len(outbox.orders)]
    for order in outbox.orders:
        arguments += [order.prompt, order.attempt, order.weights, pack_message(order)]
    arguments.append(len(outbox.train))
    for message in outbox.train:
        arguments += [pack_message(message), step_of(message)]
    arguments += [len(notices), *map(pack_message, notices)]
    return arguments
