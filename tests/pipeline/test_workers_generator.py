"""What a generator does with orders, one script at a time."""

import json
from dataclasses import replace

import pytest

from rollog.events.messages import (
    GroupDone,
    GroupFailed,
    WorkerJoined,
    WorkerLeft,
)
from rollog.events.vocabulary import FailureKind
from rollog.pipeline.errors import RewardFailure
from rollog.pipeline.generation.attempts import stop_tokens
from rollog.pipeline.rollout_codec import decode
from scripted_generator import CAUSE, Blobs, Desk, Engine, Pulse, Reward, generator, order, weights


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


@pytest.mark.parametrize("kind", [FailureKind.DATA, FailureKind.INFRA])
def test_a_request_that_the_engine_gives_up_fails_its_attempt_and_no_answer_is_made_up(kind):
    """Public fault B53: an engine's failure must not become rows without a reward."""
    desk, blobs = Desk([[weights(0)], []], [order(2)]), Blobs()

    generator(desk, engine=Engine(gives_up=kind), blobs=blobs).run()

    (failed,) = desk.said(GroupFailed)
    assert (failed.kind, failed.prompt, failed.attempt) == (kind, 2, 1)
    assert "row 2: it gave up" in failed.error
    assert not blobs.stored


def test_a_full_disk_is_the_machinerys_failure_and_says_what_to_do():
    desk = Desk([[weights(0)], []], [order(2)])

    generator(desk, blobs=Blobs(full=True)).run()

    (failed,) = desk.said(GroupFailed)
    assert failed.kind is FailureKind.INFRA
    assert "make room" in failed.error


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
