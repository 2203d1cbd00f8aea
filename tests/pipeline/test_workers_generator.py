"""What a generator does with notices and orders, one script at a time."""

import json
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path

import pytest

from rollog.events.errors import BlobError
from rollog.events.messages import (
    Cause,
    Ending,
    GroupCancelled,
    GroupDone,
    GroupFailed,
    NewWeights,
    Order,
    WeightsLoaded,
    WorkerJoined,
    WorkerLeft,
)
from rollog.events.vocabulary import FailureKind
from rollog.pipeline.errors import PipelineError, RewardFailure
from rollog.pipeline.generation.attempts import Asking, Attempts, stop_tokens
from rollog.pipeline.generation.engine import Answer, AnswerEnd, Finished, Request
from rollog.pipeline.generation.worker import Generator, GeneratorTerms
from rollog.pipeline.rollout_codec import decode

CAUSE = Cause(offset=7, epoch=1, digest="ab")


def order(prompt: int, *, weights: int = 0, attempt: int = 1, data_failures: int = 0) -> Order:
    return Order(
        prompt=prompt, attempt=attempt, step=0, weights=weights, row=prompt, data_failures=data_failures, cause=CAUSE
    )


def weights(version: int, digest: str = "d") -> NewWeights:
    return NewWeights(version=version, file=f"{version}-{digest}", digest=digest)


@dataclass
class Desk:
    """Hands out one batch of notices for each read of control, then the end."""

    batches: list[list]
    orders: list[Order] = field(default_factory=list)
    epochs: list[int] = field(default_factory=lambda: [1])
    reports: list = field(default_factory=list)
    read_after: list = field(default_factory=list)
    on_take: object = None

    def epoch(self) -> int:
        return self.epochs.pop(0) if len(self.epochs) > 1 else self.epochs[0]

    def control(self, epoch, after, block_s):
        self.read_after.append((epoch, after))
        batch = self.batches.pop(0) if self.batches else [Ending(reason="script")]
        return [(f"{len(self.read_after)}-{at}", notice) for at, notice in enumerate(batch)]

    def take_up_to(self, most, worker, epoch, version, *, exactly=False):
        fitting = [o for o in self.orders if o.weights == version or (o.weights < version and not exactly)][:most]
        for found in fitting:
            self.orders.remove(found)
        return fitting

    def report(self, result, lease=None):
        self.reports.append((result, lease))

    def report_all(self, results):
        self.reports += results

    def said(self, kind):
        return [result for result, _ in self.reports if isinstance(result, kind)]


@dataclass
class Pulse:
    """A heartbeat that loses what the script says, one list for each question."""

    losses: list[list[tuple[str, int]]] = field(default_factory=list)
    held: tuple = ()

    def hold(self, claims):
        self.held = tuple(claims)

    def lost(self):
        return self.losses.pop(0) if self.losses else []


@dataclass
class Engine:
    """Finishes every request after ``steps`` steps."""

    steps: int = 1
    version: int = 0
    loaded: list[int] = field(default_factory=list)
    missing: set[int] = field(default_factory=set)
    running_: dict[str, tuple[Request, int]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)

    def load(self, folder, version, digest):
        if version in self.missing:
            raise PipelineError(f"{folder} does not exist")
        self.version = version
        self.loaded.append(version)

    def submit(self, request):
        self.requests.append(request)
        self.running_[request.key] = (request, 0)

    def step(self):
        finished = []
        for key, (request, done) in list(self.running_.items()):
            self.running_[key] = (request, done + 1)
            if done + 1 >= self.steps:
                del self.running_[key]
                answer = Answer(tokens=(5,), logprobs=(-0.5,), versions=(self.version,), end=AnswerEnd.EOS)
                finished.append(Finished(request=request, answers=(answer,) * len(request.seeds)))
        return finished

    def running(self):
        return {key: self.version if done else None for key, (_, done) in self.running_.items()}

    def abort(self, key):
        self.aborted.append(key)
        return self.running_.pop(key, None) is not None


@dataclass
class Reward:
    failure: RewardFailure | None = None
    refuses_with: tuple[float, ...] = ()

    def score(self, samples):
        if self.failure:
            raise self.failure
        return [float(at) for at, _ in enumerate(samples)]

    def refuses(self, samples, rewards):
        return tuple(rewards) == self.refuses_with


class Rows:
    def row(self, index):
        return {"prompt": "" if index == 13 else "3", "answer": "4", "source": "test"}


class Environment:
    def prompt_tokens(self, row):
        from rollog.pipeline.errors import DataError

        if not row["prompt"]:
            raise DataError("it has no tokens")
        return [3]

    def sample(self, index, row, tokens):
        return tokens


@dataclass
class Blobs:
    full: bool = False
    stored: dict[str, bytes] = field(default_factory=dict)

    def put(self, data):
        if self.full:
            raise BlobError("No space left on device: make room, then rollog resume")
        digest = blake2b(data, digest_size=32).hexdigest()
        self.stored[digest] = data
        return digest


def generator(desk: Desk, *, pinned: bool = False, room: int = 4, engine=None, pulse=None, reward=None, blobs=None):
    asking = Asking(run_seed=1, rollouts=2, max_tokens=4, temperature=1.0, stop_tokens=frozenset({9}))
    return Generator(
        name="gen-0",
        desk=desk,
        heartbeat=pulse or Pulse(),
        engine=engine or Engine(),
        attempts=Attempts(asking, Rows(), Environment(), reward or Reward()),
        blobs=blobs or Blobs(),
        weights=Path("weights"),
        terms=GeneratorTerms(room=room, pinned=pinned, patience_s=5.0),
        machine={},
    )


def test_a_finished_group_is_stored_first_and_reported_with_its_lease_and_cause():
    desk, blobs = Desk([[weights(0)], []], [order(3)]), Blobs()

    generator(desk, blobs=blobs).run()

    (done,) = desk.said(GroupDone)
    group = decode(blobs.stored[done.blob])
    assert (done.prompt, done.attempt, done.cause, done.worker) == (3, 1, CAUSE, "gen-0")
    assert (
        (done.rollouts, done.rows, done.tokens) == (group.num_rollouts, group.num_rows, group.num_tokens) == (2, 2, 2)
    )
    assert (done.reward_mean, done.reward_std) == (0.5, 0.5)
    assert (done, "p:3") in desk.reports


@pytest.mark.parametrize(("rewards", "refused"), [((0.0, 1.0), True), ((1.0, 0.0), False)])
def test_a_finished_group_says_whether_the_filter_rule_refuses_it(rewards, refused):
    desk, blobs = Desk([[weights(0)], []], [order(3)]), Blobs()

    generator(desk, blobs=blobs, reward=Reward(refuses_with=rewards)).run()

    (done,) = desk.said(GroupDone)
    assert done.refused is refused
    assert done.blob in blobs.stored


def test_it_joins_first_and_says_goodbye():
    desk = Desk([])

    assert generator(desk).run() == "the run ended: script"

    assert isinstance(desk.reports[0][0], WorkerJoined)
    assert isinstance(desk.reports[-1][0], WorkerLeft)


def test_nothing_is_answered_before_published_weights_are_loaded():
    desk = Desk([[], [], []], [order(0)])

    generator(desk).run()

    assert not desk.said(GroupDone)
    assert desk.orders


def test_only_the_newest_of_several_versions_is_loaded_and_never_a_lower_one():
    desk, engine = Desk([[weights(1), weights(2), weights(3)], [weights(2)], [weights(4)]]), Engine()

    generator(desk, engine=engine).run()

    assert engine.loaded == [3, 4]
    assert [loaded.version for loaded in desk.said(WeightsLoaded)] == [3, 4]


def test_a_version_that_was_published_anew_with_other_bytes_is_loaded_again():
    desk, engine = Desk([[weights(3, "a")], [weights(3, "a")], [weights(3, "b")]]), Engine()

    generator(desk, engine=engine).run()

    assert engine.loaded == [3, 3]
    assert [loaded.digest for loaded in desk.said(WeightsLoaded)] == ["a", "b"]


def test_an_order_waits_for_weights_as_new_as_it_names():
    desk, engine = Desk([[weights(1)], [], [weights(2)], []], [order(0, weights=2)]), Engine()

    generator(desk, engine=engine).run()

    (done,) = desk.said(GroupDone)
    assert (done.born, done.done) == (2, 2)


def test_weights_are_loaded_while_an_answer_runs_and_it_goes_on():
    desk, engine = Desk([[weights(1)], [weights(2)], [], []], [order(0, weights=1)]), Engine(steps=2)

    generator(desk, engine=engine).run()

    assert engine.loaded == [1, 2]
    assert len(engine.requests) == 1
    assert desk.said(GroupDone)


def test_pinned_loads_exactly_what_an_order_names_after_the_others_are_finished():
    desk = Desk([[weights(0), weights(1), weights(2)], *([[]] * 6)], [order(0, weights=1), order(1, weights=0)])
    engine = Engine(steps=2)

    generator(desk, engine=engine, pinned=True).run()

    assert engine.loaded == [0, 1]
    assert {done.prompt: done.born for done in desk.said(GroupDone)} == {1: 0, 0: 1}


def test_weights_that_were_deleted_meanwhile_are_passed_over_when_newer_ones_come():
    desk, engine = Desk([[weights(1)], [weights(3)]]), Engine(missing={1})

    generator(desk, engine=engine).run()

    assert engine.loaded == [3]


def test_weights_that_stay_unreadable_end_the_generator():
    desk, engine = Desk([[weights(1)], *([[]] * 9)]), Engine(missing={1})
    slow = generator(desk, engine=engine)
    ticks = iter(range(0, 1000, 3))
    slow.clock = lambda: float(next(ticks))

    with pytest.raises(PipelineError, match="does not exist"):
        slow.run()


def test_no_more_orders_are_taken_than_there_is_room():
    desk, engine = Desk([[weights(0)], []], [order(n) for n in range(6)]), Engine(steps=99)

    generator(desk, engine=engine, room=4).run()

    assert len(engine.requests) == 4
    assert len(desk.orders) == 2


def test_an_order_whose_lease_is_gone_is_forgotten_without_a_word():
    desk, engine = Desk([[weights(0)], [], []], [order(5)]), Engine(steps=99)

    generator(desk, engine=engine, pulse=Pulse([[], [("p:5", 1)]])).run()

    assert engine.aborted == ["5.1"]
    assert not desk.said(GroupDone)
    assert not desk.said(GroupFailed)


def test_what_was_born_too_early_for_every_step_is_cancelled_and_reported():
    too_new = replace(weights(4), oldest_useful=2)
    desk, engine = Desk([[weights(1)], [too_new], []], [order(5)]), Engine(steps=99)

    generator(desk, engine=engine).run()

    (cancelled,) = desk.said(GroupCancelled)
    assert (cancelled.prompt, cancelled.attempt, cancelled.cause, cancelled.born) == (5, 1, CAUSE, 1)
    assert (cancelled, "p:5") in desk.reports
    assert engine.aborted == ["5.1"]


def test_a_lost_claim_of_an_earlier_attempt_touches_nothing():
    desk, engine = Desk([[weights(0)], [], []], [order(5, attempt=2)]), Engine(steps=2)

    generator(desk, engine=engine, pulse=Pulse([[], [("p:5", 1)]])).run()

    assert not engine.aborted
    assert [done.attempt for done in desk.said(GroupDone)] == [2]


def test_what_is_held_is_told_to_the_heartbeat_and_let_go_after_the_report():
    pulse, engine = Pulse(), Engine(steps=2)
    desk = Desk([[weights(0)], []], [order(5)])
    seen = []
    desk.report_all = lambda results: seen.extend((type(result).__name__, pulse.held) for result, _ in results)

    generator(desk, engine=engine, pulse=pulse).run()

    assert ("GroupDone", (("p:5", 1),)) in seen
    assert pulse.held == ()


@pytest.mark.parametrize("kind", [FailureKind.DATA, FailureKind.INFRA])
def test_a_reward_that_fails_fails_the_attempt_with_its_kind(kind):
    desk = Desk([[weights(0)], []], [order(2)])

    generator(desk, reward=Reward(RewardFailure(kind, "it raised for row 2"))).run()

    (failed,) = desk.said(GroupFailed)
    assert (failed.kind, failed.prompt, failed.attempt, failed.cause) == (kind, 2, 1, CAUSE)
    assert "it raised for row 2" in failed.error


def test_a_row_that_cannot_be_asked_is_the_datas_failure():
    desk = Desk([[weights(0)], []], [order(13)])

    generator(desk).run()

    (failed,) = desk.said(GroupFailed)
    assert failed.kind is FailureKind.DATA
    assert "row 13" in failed.error


def test_a_full_disk_is_the_machinerys_failure_and_says_what_to_do():
    desk = Desk([[weights(0)], []], [order(2)])

    generator(desk, blobs=Blobs(full=True)).run()

    (failed,) = desk.said(GroupFailed)
    assert failed.kind is FailureKind.INFRA
    assert "make room" in failed.error


def test_a_new_writer_epoch_is_read_from_its_start():
    desk = Desk([[weights(0)], [], [weights(1)]], epochs=[1, 1, 2])

    generator(desk).run()

    assert desk.read_after[:3] == [(1, None), (1, "1-0"), (2, None)]


def test_only_a_data_failure_draws_new_tokens():
    desk, engine = (
        Desk([[weights(0)], []], [order(1), order(1, attempt=2), order(1, attempt=3, data_failures=1)]),
        Engine(),
    )

    generator(desk, engine=engine).run()

    first, lost, failed = (request.seeds for request in engine.requests)
    assert first == lost
    assert not set(first) & set(failed)


def test_answers_stop_where_tokenizer_and_model_say(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 2}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))

    assert stop_tokens(tmp_path, 5) == {2, 5, 7}
    assert stop_tokens(tmp_path / "nowhere", None) == set()


def test_an_order_is_named_by_prompt_and_attempt():
    desk, engine = Desk([[weights(0)], []], [order(1), replace(order(2), attempt=4)]), Engine()

    generator(desk, engine=engine).run()

    assert [request.key for request in engine.requests] == ["1.1", "2.4"]
