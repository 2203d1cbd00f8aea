"""What a trainer rank does with its stream, one script at a time."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from rollog.events.errors import BlobError
from rollog.events.messages import (
    BlobUnreadable,
    Cause,
    CheckpointDone,
    Chunk,
    Ending,
    NewGeneration,
    SaveOrder,
    StepDone,
    WeightsReady,
    WorkerJoined,
    WorkerLeft,
)
from rollog.events.vocabulary import SaveReason
from rollog.pipeline.rollout_codec import encode
from rollog.pipeline.rollouts import GroupRollouts, Rollout, answer_row
from rollog.pipeline.training.rank import PublishedFile, StepFacts
from rollog.pipeline.training.worker import BrokenStream, TrainerRank, TrainerTerms, alone

CAUSE = Cause(offset=9, epoch=1, digest="ab")
START = Cause(offset=1, epoch=1, digest="cd")


def group(prompt: int) -> GroupRollouts:
    row = answer_row(prompt=[3], answer=[prompt % 10], logprobs=[np.float32(-0.5)], versions=[0])
    return GroupRollouts(prompt=prompt, attempt=1, rollouts=(Rollout(rows=(row,), reward=1.0),) * 2)


def chunk(step: int, at: int = 0, *, last: bool = True, generation: int = 5, prompts=None, tokens: int = 2) -> Chunk:
    prompts = (step,) if prompts is None else tuple(prompts)
    return Chunk(
        generation=generation,
        step=step,
        chunk=at,
        last=last,
        prompts=prompts,
        blobs=tuple(str(prompt) for prompt in prompts),
        rollouts=(2,) * len(prompts),
        rows=(2,) * len(prompts),
        tokens=(tokens,) * len(prompts),
        cause=CAUSE,
    )


def save(version: int, generation: int = 5) -> SaveOrder:
    return SaveOrder(generation=generation, version=version, reason=SaveReason.PERIODIC, cause=CAUSE)


@dataclass
class Desk:
    """One batch of train messages for each read, then the end."""

    batches: list[list]
    notices: list[list] = field(default_factory=list)
    epochs: list[int] = field(default_factory=lambda: [1])
    reports: list = field(default_factory=list)
    read_after: list = field(default_factory=list)

    def epoch(self):
        return self.epochs[0]

    def control(self, epoch, after, block_s):
        if self.notices:
            return [("1-0", notice) for notice in self.notices.pop(0)]
        return [] if self.batches else [("1-0", Ending(reason="script"))]

    def train(self, epoch, after, block_s):
        self.read_after.append((epoch, after))
        if len(self.epochs) > 1:
            self.epochs.pop(0)
        batch = self.batches.pop(0) if self.batches else []
        return [(f"{len(self.read_after)}-{at}", message) for at, message in enumerate(batch)]

    def report(self, result, lease=None):
        self.reports.append(result)

    def said(self, kind):
        return [result for result in self.reports if isinstance(result, kind)]


@dataclass
class Rank:
    version: int = 0
    fed: list[int] = field(default_factory=list)
    did: list[str] = field(default_factory=list)

    def accumulate(self, groups):
        self.fed += [each.prompt for each in groups]
        self.did.append(f"accumulate {[each.prompt for each in groups]}")

    def close_step(self):
        self.did.append(f"close {self.version}")
        self.version += 1
        return StepFacts(loss=0.1, grad_norm=1.0, tokens=4, rows=2, padding=0, logprob_gap=None)

    def publish(self):
        self.did.append(f"publish {self.version}")
        return PublishedFile(file=f"{self.version}-f", digest="f")

    def save(self, ordered):
        self.did.append(f"save {ordered.folder_name}")
        return SimpleNamespace(digest="m")


@dataclass
class Blobs:
    missing: set[str] = field(default_factory=set)

    def get(self, digest):
        if digest in self.missing:
            raise BlobError(f"the blob {digest} is missing")
        return encode(group(int(digest)))


@dataclass
class HelpingRank(Rank):
    """One that lends rank 0 its part."""

    def publish(self):
        super().publish()

    def save(self, ordered):
        super().save(ordered)


def trainer(desk, rank, *, publish_from: int = 0, fresh: bool = False, blobs=None, leads: bool = True,
            all_ready=alone) -> TrainerRank:  # fmt: skip
    return TrainerRank(
        name="rank-0",
        desk=desk,
        heartbeat=SimpleNamespace(lost=list),
        rank=rank,
        blobs=blobs or Blobs(),
        terms=TrainerTerms(generation=5, publish_from=publish_from, fresh=fresh, ordered=START, log="log", leads=leads),
        machine={},
        all_ready=all_ready,
    )


def test_a_step_is_trained_published_and_reported_in_this_order():
    desk, rank = Desk([[chunk(0, prompts=(0, 1))]]), Rank()

    trainer(desk, rank, publish_from=1).run()

    assert rank.did == ["accumulate [0, 1]", "close 0", "publish 1"]
    (done,) = desk.said(StepDone)
    assert (done.generation, done.step, done.file, done.digest) == (5, 0, "1-f", "f")


def test_the_first_generation_saves_version_0_by_its_start_then_publishes_it():
    desk, rank = Desk([]), Rank()

    trainer(desk, rank, fresh=True).run()

    assert rank.did == ["save 0-1-5", "publish 0"]
    assert [type(result) for result in desk.reports[:3]] == [WorkerJoined, CheckpointDone, WeightsReady]
    assert desk.said(CheckpointDone)[0].manifest == "0-1-5"


def test_steps_trained_again_are_not_published_until_the_version_is_reached():
    desk, rank = Desk([[chunk(3)], [chunk(4)], [chunk(5)]]), Rank(version=3)

    trainer(desk, rank, publish_from=5).run()

    assert [done.digest for done in desk.said(StepDone)] == ["", "f", "f"]
    assert not desk.said(WeightsReady)


def test_a_generation_that_loads_the_version_publishes_it_at_once():
    desk = Desk([])

    trainer(desk, Rank(version=5), publish_from=5).run()

    assert [ready.version for ready in desk.said(WeightsReady)] == [5]


def test_chunks_are_accumulated_until_the_last_and_an_empty_last_one_closes():
    desk, rank = Desk([[chunk(0, 0, last=False, prompts=(0,)), chunk(0, 1, last=False, prompts=(1,))],
                       [chunk(0, 2, prompts=())]]), Rank()  # fmt: skip

    trainer(desk, rank, publish_from=9).run()

    assert rank.fed == [0, 1]
    assert rank.did[-1] == "close 0"


def test_what_an_older_generation_was_told_is_skipped():
    desk, rank = Desk([[chunk(0, generation=4), save(7, generation=4), chunk(0)]]), Rank()

    trainer(desk, rank, publish_from=9).run()

    assert len(desk.said(StepDone)) == 1
    assert not desk.said(CheckpointDone)


def test_a_newer_generation_ends_the_rank():
    told = Desk([[chunk(0, generation=6), chunk(0)]])
    heard = Desk([[], []], notices=[[NewGeneration(generation=6)]])

    assert "generation 6" in trainer(told, Rank(), publish_from=9).run()
    assert "generation 6" in trainer(heard, Rank(), publish_from=9).run()
    assert not told.said(StepDone)


def test_its_own_generation_on_control_ends_nothing():
    desk = Desk([[chunk(0)], []], notices=[[NewGeneration(generation=5)]])

    trainer(desk, Rank(), publish_from=9).run()

    assert desk.said(StepDone)


def test_a_new_writer_epoch_is_read_from_its_start_and_nothing_is_done_twice():
    first = [chunk(0), save(1), chunk(1, 0, last=False, prompts=(1,))]
    again = [chunk(0), save(1), chunk(1, 0, last=False, prompts=(1,)), chunk(1, 1, prompts=(2,))]
    desk, rank = Desk([first, again], epochs=[1, 2]), Rank()

    trainer(desk, rank, publish_from=9).run()

    assert desk.read_after[:2] == [(1, None), (2, None)]
    assert rank.fed == [0, 1, 2]
    assert [done.step for done in desk.said(StepDone)] == [0, 1]
    assert [done.version for done in desk.said(CheckpointDone)] == [1]


@pytest.mark.parametrize("message", [chunk(1), chunk(0, 1), save(1)])
def test_a_gap_is_an_error(message):
    with pytest.raises(BrokenStream):
        trainer(Desk([[message]]), Rank(), publish_from=9).run()


def test_an_unreadable_blob_is_reported_once_and_saves_go_on():
    desk, rank = Desk([[chunk(0), save(0)], [chunk(0)]]), Rank()

    trainer(desk, rank, publish_from=9, blobs=Blobs({"0"})).run()

    (unreadable,) = desk.said(BlobUnreadable)
    assert (unreadable.step, unreadable.prompt) == (0, 0)
    assert not desk.said(StepDone)
    assert [done.version for done in desk.said(CheckpointDone)] == [0]


def test_a_blob_that_is_not_what_the_log_says_is_unreadable():
    desk = Desk([[chunk(0, tokens=3)]])

    trainer(desk, Rank(), publish_from=9).run()

    (unreadable,) = desk.said(BlobUnreadable)
    assert "the log says" in unreadable.error


def test_a_rank_that_helps_does_the_same_and_reports_only_that_it_came_and_left():
    desk, rank = Desk([[chunk(0), save(1)]]), HelpingRank()

    trainer(desk, rank, fresh=True, leads=False).run()

    assert rank.did == ["save 0-1-5", "publish 0", "accumulate [0]", "close 0", "publish 1", "save 1-9-5"]
    assert [type(result) for result in desk.reports] == [WorkerJoined, WorkerLeft]


def test_a_chunk_is_trained_only_when_all_ranks_can_read_it():
    desk, rank, asked = Desk([[chunk(0)], [chunk(0)]]), Rank(), []

    def another_cannot(ready):
        asked.append(ready)
        return False

    trainer(desk, rank, publish_from=9, all_ready=another_cannot).run()

    assert asked == [True]  # its step waits for a person, and is not asked about again
    assert rank.fed == []
    assert [type(result) for result in desk.reports] == [WorkerJoined, WorkerLeft]


def test_a_rank_that_cannot_read_says_so_to_the_others_too():
    desk, asked = Desk([[chunk(0)]]), []

    trainer(desk, Rank(), publish_from=9, blobs=Blobs({"0"}), all_ready=lambda ready: asked.append(ready)).run()

    assert asked == [False]
    assert len(desk.said(BlobUnreadable)) == 1


def test_a_save_of_a_version_that_lies_behind_is_not_written():
    desk = Desk([[chunk(0), save(0)]])

    trainer(desk, Rank(), publish_from=9).run()

    assert not desk.said(CheckpointDone)
