"""A trainer rank: turns selections into new weights.

    train stream -->  chunk, chunk, ..., last  -->  one optimizer step  -->  weights  -->  StepDone
                      save                     -->  checkpoint          -->  CheckpointDone

Rule 1: the stream is read in order. What this rank has done already is skipped, as is what an older generation was
        told; a gap is an error; a newer generation ends the process.
Rule 2: a chunk is trained only if its blobs are what the log says of them: digest, rollouts, rows, tokens.
Rule 3: weights are published before the report that names them, a checkpoint's manifest is written before its report.
Rule 4: a blob that cannot be read is reported once. Its step waits for a person; checkpoints are still written.
Rule 5: of several ranks each reads the stream, and a chunk is trained when all have read its blobs. Rank 0 reports what
        they did together. When one ends, the calls of the others fail, and all are started again by the launcher.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from rollog.events.blobs import Blobs
from rollog.events.errors import BlobError
from rollog.events.log import Desk
from rollog.events.messages import (
    BlobUnreadable,
    Cause,
    CheckpointDone,
    Chunk,
    Ending,
    NewGeneration,
    Notice,
    SaveOrder,
    StepDone,
    TrainMessage,
    WeightsReady,
    WorkerJoined,
    WorkerLeft,
)
from rollog.events.vocabulary import Role
from rollog.pipeline.checkpoints import Ordered
from rollog.pipeline.errors import PipelineError
from rollog.pipeline.heartbeat import Heartbeat
from rollog.pipeline.machine import describe
from rollog.pipeline.rollout_codec import decode
from rollog.pipeline.rollouts import CorruptRollouts, GroupRollouts
from rollog.pipeline.run_folder import RunFolder
from rollog.pipeline.training.rank import Rank
from rollog.pipeline.worker_desk import PatientDesk, Reading

NAME: Final = "rank-0"
"""The rank that reports."""

BLOCK_S: Final = 0.5
"""Longest wait for train messages before control is looked at."""


def name_of(rank: int) -> str:
    """The worker's name of a rank."""
    return f"rank-{rank}"


def alone(ready: bool) -> bool:
    """Whether all ranks are ready, when there is one."""
    return ready


class BrokenStream(PipelineError):
    """The train stream lacks something: the rank ends and the controller starts another one."""


class BlobSource(Protocol):
    """Where finished groups lie."""

    def get(self, digest: str) -> bytes:
        """The bytes of this digest. Raises ``BlobError`` when they are missing or not what their name says."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerTerms:
    """Which trainer this is. ``ordered``: the Start or Resume that made the generation; ``log``: the log's id.

    ``publish_from``: weights are published from this version on; those below have been published already.
    """

    generation: int
    publish_from: int
    fresh: bool
    """There is no checkpoint yet: write the one of version 0 first."""
    ordered: Cause
    log: str
    leads: bool = True
    """Whether it reports what all ranks did."""


@dataclass(slots=True, kw_only=True)
class TrainerRank:
    """The process of one rank. ``machine``: what it says of itself; ``all_ready``: asks all ranks."""

    name: str
    desk: Desk
    heartbeat: Heartbeat
    rank: Rank
    blobs: BlobSource
    terms: TrainerTerms
    machine: Mapping[str, Any]
    clock: Callable[[], float] = time.monotonic
    all_ready: Callable[[bool], bool] = alone
    chunks: int = 0
    """Chunks of the open step that are accumulated."""
    seconds: float = 0.0
    """Time spent on the open step."""
    unreadable_step: int | None = None
    saved: set[int] = field(default_factory=set)
    ending: str | None = None

    def run(self) -> str:
        """Work until the run or the generation ends; returns why."""
        train: Reading[TrainMessage] = Reading(self.desk.epoch, self.desk.train)
        control: Reading[Notice] = Reading(self.desk.epoch, self.desk.control)
        self.desk.report(WorkerJoined(worker=self.name, role=Role.TRAINER, machine=self.machine))
        self._begin()
        while self.ending is None:
            for notice in control.next(0.0):
                self._hear(notice)
            for message in train.next(BLOCK_S if self.ending is None else 0.0):
                if self.ending is None and message.generation >= self.terms.generation:
                    self._do(message)
            self.heartbeat.lost()
        self.desk.report(WorkerLeft(worker=self.name, role=Role.TRAINER, reason=self.ending))
        return self.ending

    def _begin(self) -> None:
        """The first checkpoint of a run, then the weights that this generation stands at."""
        version = self.rank.version
        if self.terms.fresh:
            self._save(version, self.terms.ordered)
        if version >= self.terms.publish_from:
            weights = self.rank.publish()
            if weights is not None:
                self.desk.report(
                    WeightsReady(
                        generation=self.terms.generation,
                        version=version,
                        file=weights.file,
                        digest=weights.digest,
                        worker=self.name,
                    )
                )

    def _hear(self, notice: Notice) -> None:
        match notice:
            case NewGeneration() if notice.generation > self.terms.generation:
                self.ending = f"generation {notice.generation} has begun"
            case Ending():
                self.ending = f"the run ended: {notice.reason}"
            case _:
                pass

    def _do(self, message: TrainMessage) -> None:
        if message.generation > self.terms.generation:
            self.ending = f"generation {message.generation} has begun"
            return
        match message:
            case SaveOrder():
                if message.version > self.rank.version:
                    raise BrokenStream(f"a checkpoint of version {message.version} is asked at {self.rank.version}")
                if message.version == self.rank.version and message.version not in self.saved:
                    self._save(message.version, message.cause)
            case Chunk():
                self._chunk(message)

    def _save(self, version: int, cause: Cause) -> None:
        ordered = Ordered(
            log=self.terms.log,
            offset=cause.offset,
            digest=cause.digest,
            epoch=cause.epoch,
            version=version,
            generation=self.terms.generation,
        )
        manifest = self.rank.save(ordered)
        self.saved.add(version)
        if manifest is not None:
            self.desk.report(
                CheckpointDone(
                    generation=self.terms.generation,
                    version=version,
                    manifest=ordered.folder_name,
                    digest=manifest.digest,
                    worker=self.name,
                )
            )

    def _chunk(self, chunk: Chunk) -> None:
        here = (self.rank.version, self.chunks)
        if chunk.step == self.unreadable_step or (chunk.step, chunk.chunk) < here:
            return
        if (chunk.step, chunk.chunk) != here:
            raise BrokenStream(
                f"step {chunk.step}, chunk {chunk.chunk} came when step {here[0]}, chunk {here[1]} was due"
            )
        began = self.clock()
        groups = self._load(chunk)
        if not self.all_ready(groups is not None) or groups is None:
            self.unreadable_step = chunk.step
            return
        self.rank.accumulate(groups)
        self.chunks += 1
        if chunk.last:
            self._close(chunk.step, began)
        else:
            self.seconds += self.clock() - began

    def _load(self, chunk: Chunk) -> list[GroupRollouts] | None:
        """The chunk's groups; None when one of them cannot be read, which is reported."""
        groups = []
        for at, prompt in enumerate(chunk.prompts):
            try:
                group = decode(self.blobs.get(chunk.blobs[at]))
                told = (prompt, chunk.rollouts[at], chunk.rows[at], chunk.tokens[at])
                found = (group.prompt, group.num_rollouts, group.num_rows, group.num_tokens)
                if found != told:
                    raise CorruptRollouts(f"(prompt, rollouts, rows, tokens) are {found}; the log says {told}")
            except (BlobError, CorruptRollouts, OSError) as error:
                self.desk.report(
                    BlobUnreadable(
                        generation=self.terms.generation,
                        step=chunk.step,
                        prompt=prompt,
                        error=str(error),
                        worker=self.name,
                    )
                )
                return None
            groups.append(group)
        return groups

    def _close(self, step: int, began: float) -> None:
        facts = self.rank.close_step()
        weights = self.rank.publish() if self.rank.version >= self.terms.publish_from else None
        seconds = self.seconds + self.clock() - began
        self.chunks, self.seconds = 0, 0.0
        if not self.terms.leads:
            return
        self.desk.report(
            StepDone(
                generation=self.terms.generation,
                step=step,
                loss=facts.loss,
                grad_norm=facts.grad_norm,
                tokens=facts.tokens,
                rows=facts.rows,
                padding=facts.padding,
                seconds=seconds,
                logprob_gap=facts.logprob_gap,
                file="" if weights is None else weights.file,
                digest="" if weights is None else weights.digest,
                worker=self.name,
            )
        )


def main() -> None:
    """``python -m rollog.pipeline.training.worker --run FOLDER --generation G --version V ...``: see the arguments."""
    arguments = parse(sys.argv[1:])
    folder = RunFolder(arguments.run)
    plan = folder.plan()
    name = name_of(arguments.rank)
    own = ((f"rank:{arguments.rank}", arguments.generation), (f"worker:{name}", arguments.generation))
    with Heartbeat.of(plan, folder, name, own) as heartbeat:  # before the imports, which take seconds
        import torch

        from rollog.pipeline.training.engines import start

        engine = start(plan, folder, arguments)
        trainer = TrainerRank(
            name=name,
            desk=PatientDesk(folder.desk(plan), heartbeat),
            heartbeat=heartbeat,
            rank=engine.rank,
            blobs=Blobs(folder.blobs),
            terms=terms_of(arguments),
            machine=describe(threads=torch.get_num_threads(), devices=engine.device, ranks=arguments.ranks),
            all_ready=engine.all_ready,
        )
        print(f"{name}, generation {arguments.generation}: {trainer.run()}", flush=True)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """What the launcher says to a trainer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--generation", type=int, required=True)
    parser.add_argument("--version", type=int, required=True, help="the version that it begins at")
    parser.add_argument("--checkpoint", required=True, help="folder name; empty: the model that the run began with")
    parser.add_argument("--publish-from", type=int, required=True, help="first version whose weights are published")
    parser.add_argument("--max-steps", type=int, required=True, help="where the learning rate's decay ends")
    parser.add_argument("--log-id", required=True)
    parser.add_argument("--ordered-epoch", type=int, required=True, help="writer epoch of the generation's entry")
    parser.add_argument("--ordered-digest", required=True, help="digest of the generation's entry")
    parser.add_argument("--rank", type=int, default=0, help="which of the trainer's processes this is")
    parser.add_argument("--ranks", type=int, default=1, help="how many there are")
    parser.add_argument("--rendezvous", default="", help="file:// or tcp:// address where they meet, if several")
    return parser.parse_args(arguments)


def terms_of(arguments: argparse.Namespace) -> TrainerTerms:
    """The trainer that the launcher asked for."""
    return TrainerTerms(
        generation=arguments.generation,
        publish_from=arguments.publish_from,
        fresh=not arguments.checkpoint,
        ordered=Cause(offset=arguments.generation, epoch=arguments.ordered_epoch, digest=arguments.ordered_digest),
        log=arguments.log_id,
        leads=arguments.rank == 0,
    )


if __name__ == "__main__":
    main()
