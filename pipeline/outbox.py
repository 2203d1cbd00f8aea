"""What the workers are told: derived from the log, entry by entry, or all at once from its fold.

``of_entry`` is written in the same script as the entry; ``of_state`` fills the streams of a new writer epoch. Both say
the same things: whoever has read either knows all there is to do.
"""

from collections.abc import Callable, Iterator

from rollog.events.log import Entry, Outbox
from rollog.events.messages import (
    Chunk,
    Ending,
    NewGeneration,
    NewWeights,
    Notice,
    Order,
    SaveOrder,
    TrainMessage,
)
from rollog.events.vocabulary import (
    Cancel,
    Checkpoint,
    Commit,
    Configure,
    Dispatch,
    Drop,
    Evict,
    Finish,
    Publish,
    Resume,
    Retry,
    Save,
    SaveReason,
    Select,
)
from rollog.pipeline import fleet
from rollog.replay.state import Group, Place, Selection, State

OldestUseful = Callable[[State], int]
"""Attempts born of weights below its answer are of no use to any step: ``Sampler.oldest_useful``."""


def of_entry(state: State, entry: Entry, oldest_useful: OldestUseful) -> Outbox:
    """What this entry tells the workers; ``state`` is the fold up to and including it."""
    orders: list[Order] = []
    ended: list[int] = []
    train: list[TrainMessage] = []
    control: list[Notice] = []
    train_from: int | None = None
    for event in entry.events:
        match event:
            case Dispatch(prompt=prompt):
                orders.append(_order(state.groups[prompt]))
            case Commit(prompt=prompt) | Retry(prompt=prompt) | Drop(prompt=prompt) | Cancel(prompt=prompt):
                ended.append(prompt)
            case Evict(prompts=prompts):
                ended.extend(prompts)
            case Select(step=step, chunk=chunk):
                train.append(_chunk(state, step, chunk))
            case Save(version=version, reason=reason):
                train.append(SaveOrder(generation=state.generation, version=version, reason=reason, cause=entry.cause))
            case Checkpoint():
                train_from = state.oldest_kept_step()
            case Resume(version=version):
                train.extend(_recorded(state, version, version + 1))
                control.append(NewGeneration(generation=state.generation))
            case Publish():
                control.extend(_published(state, oldest_useful))
            case Configure(changes=changes) if fleet.SETTING in changes:
                control.append(fleet.notice_of(state))
            case Finish(reason=finish):
                control.append(Ending(reason=finish.value))
            case _:
                pass
    return Outbox(
        orders=tuple(orders),
        ended=tuple(ended),
        train=tuple(train),
        control=tuple(control),
        results_read=entry.input,
        train_from=train_from,
    )


def of_state(state: State, oldest_useful: OldestUseful) -> Outbox:
    """Everything that the workers must know, for a new writer epoch.

    Ranks skip what they have: they stand at ``standing`` or above, so nothing below it is said again.
    """
    running = sorted(state.at(Place.IN_FLIGHT), key=lambda group: group.slot)
    control: list[Notice] = [NewGeneration(generation=state.generation), fleet.notice_of(state)]
    control.extend(_published(state, oldest_useful))
    return Outbox(
        orders=tuple(_order(group) for group in running),
        train=tuple(_recorded(state, state.standing, state.standing)),
        control=tuple(control),
        results_read=state.input,
    )


def _published(state: State, oldest_useful: OldestUseful) -> Iterator[NewWeights]:
    """All published weights that hold, the newest last."""
    useful = oldest_useful(state)
    for version, weights in sorted(state.published.items()):
        yield NewWeights(version=version, file=weights.file, digest=weights.digest, oldest_useful=useful)


def _recorded(state: State, first_step: int, first_save: int) -> Iterator[TrainMessage]:
    """Recorded selections and the Saves that no checkpoint has answered, in the order in which they were ordered."""
    for number in sorted({*state.steps, *state.saves}):
        if number >= first_save and number in state.saves and number not in state.checkpoints:
            cause = state.saves[number]
            yield SaveOrder(generation=state.generation, version=number, reason=SaveReason.PERIODIC, cause=cause)
        if number >= first_step:
            yield from (_chunk(state, number, chunk) for chunk in range(len(state.step(number).chunks)))


def _chunk(state: State, step: int, chunk: int) -> Chunk:
    selection: Selection = state.steps[step].chunks[chunk]
    finished = [member.finished for member in selection.members]
    return Chunk(
        generation=state.generation,
        step=step,
        chunk=chunk,
        last=selection.last,
        prompts=tuple(member.prompt for member in selection.members),
        blobs=tuple(group.blob for group in finished),
        rollouts=tuple(group.rollouts for group in finished),
        rows=tuple(group.rows for group in finished),
        tokens=tuple(group.tokens for group in finished),
        cause=selection.cause,
    )


def _order(group: Group) -> Order:
    assert group.order is not None
    return Order(
        prompt=group.prompt,
        attempt=group.attempt,
        step=group.step,
        weights=group.weights,
        row=group.row,
        data_failures=group.seed_failures,
        cause=group.order,
    )
