"""The harness is checked: take out one safety, and what should notice must go red.

Each scenario is a function of the parts that it runs on. With the real parts it passes; with the part whose safety is
taken out it must fail, and fail for that reason.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from play import Play
from rollog.events.codec import seal
from rollog.events.errors import CorruptEntry, Fenced
from rollog.events.leases import claim_of
from rollog.events.log import Delivery, Entry, Outbox, Pen
from rollog.events.memory_log import MemoryDesk, MemoryLog, MemoryServer
from rollog.events.messages import Order, Result
from rollog.events.vocabulary import Drop, Train
from rollog.pipeline.inputs import Answer, Input
from rollog.pipeline.mailbox import Mailbox
from rollog.pipeline.simulate import Death
from rollog.replay.errors import BrokenInvariant
from rollog.replay.state import State
from stage import Stage, small_plan
from watched_log import Moment, WatchedLog

# --- scenarios --------------------------------------------------------------------------------------------------------


def two_controllers(**parts: Any) -> None:
    """A second controller takes the pen and dies before it has written; the first goes on, and must not."""
    stage = Stage(small_plan(), **parts)
    first, head = stage.controller, stage.state.offset
    assert first is not None

    def dies(moment: Moment) -> None:
        if moment.when == "after open":
            stage.hook = lambda later: None
            raise Death

    stage.hook = dies
    with pytest.raises(Death):
        stage.new_controller().open("second")
    stage.generator.join()
    with suppress(Fenced):
        first.turn()
    assert stage.state.offset == head, "something of the older controller has landed"


def trainer_reports_and_dies(**parts: Any) -> None:
    """What the trainer had reported before it died is believed, and not trained again."""
    stage = Stage(small_plan(), **parts)
    stage.finish(0, 1, 2, 3)
    stage.rank.step()
    stage.kill_trainer()
    stage.settle()
    assert stage.events(Train), "the step was reported, and is trained again"


def killed_at_every_tenth_moment(**parts: Any) -> None:
    """A run through many deaths of everything: each group once, every step the same prompts."""

    def blow(play: Play, moment: Moment) -> None:
        if moment.when == "after append" and moment.offset % 10 == 0 and play.deaths < 20:
            play.kill_trainer()
            raise Death

    plan = small_plan(grpo={"prompts_per_step": 2}, checkpoint={"every_steps": 2}, determinism="pinned")
    run = Play(plan, 16, blow, fails_once=frozenset({3}), parts=parts).run()
    assert run.deaths > 5
    assert run.stage.steps == {step: (2 * step, 2 * step + 1) for step in range(8)}
    assert set(run.reported.values()) == {1}, "a group was generated again although its result had arrived"


def three_of_five_orders_run(**parts: Any) -> None:
    """A second worker, and a second controller, while three of five orders run: each is begun once."""
    stage = Stage(small_plan(flow={"max_inflight_prompts": 5}), **parts)
    stage.generator.load()
    begun = stage.generator.take(3)
    stage.kill_controller()
    stage.resume()
    other = stage.new_generator("gen-9")
    other.load()
    assert {*begun}.isdisjoint(other.take(2)), "an order was begun twice"


def results_stay_in_the_stream(**parts: Any) -> None:
    """A restart on a server that has trimmed nothing answers nothing twice."""
    stage = Stage(small_plan(), **parts)
    stage.train_steps(2)
    stage.kill_controller()
    stage.resume()
    stage.train_steps(1)


def newest_checkpoint_broken(prune: Callable[[State], None] = lambda state: None) -> None:
    """The trainer falls back to the older checkpoint, and everything after it is still recorded."""
    stage = Stage(small_plan(checkpoint={"every_steps": 2}))
    stage.train_steps(5)
    stage.disk[stage.state.checkpoints[4].manifest].whole = False
    stage.kill_trainer()
    assert stage.controller is not None
    prune(stage.controller.state)
    stage.settle()
    stage.train(3)


def restarts_between_failures(forget: Callable[[State], None] = lambda state: None) -> None:
    """Three failures give a prompt up, also with a restart between each two."""
    failure = {"max_infra_attempts": 3, "max_consecutive_dropped_prompts": 9, "min_step_fraction": 0.1}
    stage = Stage(small_plan(failure=failure))
    for _ in range(3):
        assert stage.controller is not None
        forget(stage.controller.state)
        stage.fail(0)
        stage.kill_controller()
        stage.resume()
        stage.after(12)
    assert stage.events(Drop), "a restart has refilled the budget"


def replies_are_lost(**parts: Any) -> None:
    """Every window is sent a second time, as after a lost reply; each entry stands in the log once."""

    class SentTwice(WatchedLog):
        def append(self, window: Sequence[tuple[Entry, Outbox]]) -> None:
            super().append(window)
            super().append(window)

    stage = Stage(small_plan(), log=SentTwice, **parts)
    stage.train_steps(2)
    assert stage.steps == {0: (0, 1, 2, 3), 1: (4, 5, 6, 7)}


SCENARIOS: list[Callable[..., None]] = [
    two_controllers,
    trainer_reports_and_dies,
    killed_at_every_tenth_moment,
    three_of_five_orders_run,
    results_stay_in_the_stream,
    newest_checkpoint_broken,
    restarts_between_failures,
    replies_are_lost,
]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_with_the_real_parts_every_scenario_passes(scenario: Callable[..., None]) -> None:
    scenario()


# --- what goes red without a safety -----------------------------------------------------------------------------------


class Unfenced(MemoryLog):
    """Anybody may write."""

    def _fence(self) -> None:
        """Not looked at."""


class UnfencedServer(MemoryServer):
    """Without the check of the writer epoch."""

    def log(self) -> MemoryLog:
        """A controller's connection."""
        return Unfenced(self)


def test_without_the_epoch_check_something_of_the_older_controller_lands() -> None:
    with pytest.raises(AssertionError, match="something of the older controller has landed"):
        two_controllers(server=UnfencedServer)


class JudgesFirst(Mailbox):
    """Puts its judgements before what the judged had reported."""

    def wait(self, state: State, until: float | None, now: float) -> Sequence[Input]:
        """The next inputs, in the wrong order."""
        found = super().wait(state, until, now)
        return sorted(found, key=lambda event: isinstance(event, Answer))


def test_a_mailbox_that_judges_before_it_reads_does_not_believe_the_dead() -> None:
    with pytest.raises(AssertionError, match="is trained again"):
        trainer_reports_and_dies(mailbox=JudgesFirst)


class TakesOver(MemoryDesk):
    """Gives an order away although somebody holds it."""

    def take(self, worker: str, epoch: int, version: int, *, exactly: bool = False) -> Order | None:
        """The first order that fits, after everybody's claims are thrown away."""
        for key in [key for key in self._server.leases if key.startswith("p:")]:
            del self._server.leases[key]
        return super().take(worker, epoch, version, exactly=exactly)


class TakesOverServer(MemoryServer):
    """Without leases that hold."""

    def desk(self) -> MemoryDesk:
        """A worker's connection."""
        return TakesOver(self)


def test_without_leases_that_hold_an_order_is_begun_twice() -> None:
    with pytest.raises(AssertionError, match="an order was begun twice"):
        three_of_five_orders_run(server=TakesOverServer)


class NoHandOver(WatchedLog):
    """Takes the pen and tells the workers nothing."""

    def hand_over(self, outbox: Outbox) -> None:
        """Not done."""


def test_a_controller_that_hands_nothing_over_leaves_a_run_that_waits_for_itself() -> None:
    with pytest.raises(AssertionError, match="no end after"):
        killed_at_every_tenth_moment(log=NoHandOver)


class SharedPen(WatchedLog):
    """Every controller opens under the name of the first: to the server they are one."""

    def open(self, nonce: str) -> Pen:
        """Take the pen, in somebody else's name."""
        return super().open("the same")


def test_without_a_writer_epoch_of_its_own_a_controller_cannot_go_on() -> None:
    with pytest.raises(Exception, match="writer epoch 1 does not follow 1"):
        killed_at_every_tenth_moment(log=SharedPen)


class KeepsResults(MemoryServer):
    """Never trims the results stream."""

    @property
    def results(self) -> list[Delivery]:
        """All that has ever arrived."""
        return self.__dict__.setdefault("all_results", [])

    @results.setter
    def results(self, trimmed: list[Delivery]) -> None:
        """Not done."""


class ReadsFromTheStart(Mailbox):
    """Forgets which results the log has answered."""

    def start_after(self, result_id: str | None) -> None:
        """Read from the beginning, whatever was answered."""
        super().start_after(None)


def test_results_that_are_not_trimmed_are_no_danger_as_long_as_the_log_says_where_to_go_on() -> None:
    results_stay_in_the_stream(server=KeepsResults)


def test_a_controller_that_forgets_which_results_were_answered_breaks_a_law() -> None:
    with pytest.raises(BrokenInvariant, match="each result answered once, in order"):
        results_stay_in_the_stream(server=KeepsResults, mailbox=ReadsFromTheStart)


def prunes_to_the_newest(state: State) -> None:
    """What a fold does that keeps selections only back to the newest checkpoint."""
    for step in [step for step in state.steps if step < max(state.checkpoints)]:
        del state.steps[step]


def test_a_fold_that_keeps_selections_only_back_to_the_newest_checkpoint_cannot_train_them_again() -> None:
    with pytest.raises(AssertionError, match="asked to save 4 while at 2"):
        newest_checkpoint_broken(prunes_to_the_newest)


def refills(state: State) -> None:
    """What a controller does that keeps budgets in its own memory."""
    for group in state.groups.values():
        group.infra_failures = 0


def test_budgets_that_are_not_counted_from_the_log_are_refilled_by_a_restart() -> None:
    with pytest.raises(AssertionError, match="a restart has refilled the budget"):
        restarts_between_failures(refills)


class IdsByTheServer(MemoryLog):
    """Appends whatever comes, under the next number: what a stream does with ids by the server."""

    def append(self, window: Sequence[tuple[Entry, Outbox]]) -> None:
        """Append each entry, one more time if it comes one more time."""
        for entry, outbox in window:
            head = self._server.head
            again = seal(
                offset=head.offset + 1,
                epoch=entry.epoch,
                time=entry.time,
                input=entry.input,
                events=entry.events,
                previous=head.digest,
            )
            super().append([(again, outbox)])


class IdsByTheServerServer(MemoryServer):
    """Without dense offsets that the writer chooses."""

    def log(self) -> MemoryLog:
        """A controller's connection."""
        return IdsByTheServer(self)


def test_without_offsets_by_the_writer_a_lost_reply_writes_an_entry_twice() -> None:
    with pytest.raises(Exception, match=r"the run has started already|does not follow|cannot stand"):
        replies_are_lost(server=IdsByTheServerServer)


class Rots(MemoryServer):
    """Changes one bit of an entry behind everybody's back."""

    def rot(self, offset: int) -> None:
        """Flip the last bit of its payload."""
        stored = self.entries[offset - 1]
        payload = stored.entry.payload[:-1] + bytes([stored.entry.payload[-1] ^ 1])
        object.__setattr__(stored.entry, "payload", payload)


def test_one_flipped_bit_is_a_refusal_at_the_next_open_and_never_another_history() -> None:
    stage = Stage(small_plan(), server=Rots)
    stage.train_steps(1)
    stage.kill_controller()
    assert isinstance(stage.server, Rots)
    stage.server.rot(10)

    with pytest.raises(CorruptEntry):
        stage.resume()


class DeafToLeases(MemoryDesk):
    """Reports without marking the lease done."""

    def report(self, result: Result, lease: str | None = None) -> None:
        """Report, and forget to say so in the lease."""
        super().report(result)


class DeafServer(MemoryServer):
    """Workers whose leases never say that they are done."""

    def desk(self) -> MemoryDesk:
        """A worker's connection."""
        return DeafToLeases(self)


def test_results_are_read_before_leases_are_judged_so_a_lease_that_says_nothing_costs_nothing() -> None:
    """Two safeties stand one behind the other here: with one of them taken out, the other still holds."""
    stage = Stage(small_plan(), server=DeafServer)
    stage.generator.load()
    stage.generator.take()
    result = stage.generator.finish(0)
    assert claim_of(result) == (1, "gen-0")
    stage.kill_controller()
    stage.now += 60
    stage.resume()

    assert stage.state.groups[0].attempt == 1
