"""Real processes around scripted engines: everything of a run but the model.

    python scripted.py controller CONFIG      train, or resume if the run exists
    python scripted.py generator ...          as rollog.pipeline.generation.worker
    python scripted.py trainer ...            as rollog.pipeline.training.worker

"Weights" are a chain of digests over what was trained; an answer is a digest of weights and seed. So equal chains mean
equal weights, and a pinned run must end with the chain of the run that was never killed.
"""

import argparse
import json
import os
import select
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from rollog.events.blobs import Blobs
from rollog.pipeline import checkpoints, runner, verbs
from rollog.pipeline.checkpoints import Manifest, Ordered
from rollog.pipeline.config import Plan, load_plan
from rollog.pipeline.environments.reward_child import RewardChild
from rollog.pipeline.environments.single_turn import SingleTurn
from rollog.pipeline.foreground import foreground
from rollog.pipeline.generation.attempts import Asking, SingleTurnAttempts
from rollog.pipeline.generation.engine import Answer, AnswerEnd, Finished, Request
from rollog.pipeline.generation.worker import Generator, GeneratorTerms
from rollog.pipeline.heartbeat import Heartbeat
from rollog.pipeline.launch.local import Crew
from rollog.pipeline.loader import Loader
from rollog.pipeline.log_server import LogServer, plan_at
from rollog.pipeline.rollouts import GroupRollouts
from rollog.pipeline.run_folder import RunFolder
from rollog.pipeline.training import worker
from rollog.pipeline.training.rank import PublishedFile, StepFacts
from rollog.pipeline.worker_desk import PatientDesk
from witness import FOLDER, WitnessedDesk, WitnessedLog

PACE_S = float(os.environ.get("PACE_S", "0.002"))
"""One step of the engine."""
SLOW: Mapping[str, float] = json.loads(os.environ.get("SLOW", "{}"))
"""How much longer a step of some generators takes."""


def digest(*parts: object) -> str:
    return blake2b(json.dumps(parts).encode(), digest_size=32).hexdigest()


class Digits:
    """A tokenizer: each character is one token."""

    chat_template = None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(str(token) for token in token_ids)

    def apply_chat_template(self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool) -> str:
        raise AssertionError("these tests ask without a template")


@dataclass
class ScriptedEngine:
    """One digit a step; how many follows from the seed."""

    bitwise: bool = True
    pace_s: float = PACE_S
    version: int = 0
    chain: str = ""
    drafts: dict[str, tuple[Request, list[list[tuple[int, int]]]]] = field(default_factory=dict)

    def load(self, folder: Path, version: int, expected: str) -> None:
        chain = (folder / "chain").read_text()
        assert digest(chain) == expected
        self.version, self.chain = version, chain

    def submit(self, request: Request) -> None:
        self.drafts[request.key] = (request, [[] for _ in request.seeds])

    def step(self) -> list[Finished]:
        if self.drafts:
            select.select([], [], [], self.pace_s)
        finished = []
        for key, (request, answers) in list(self.drafts.items()):
            for seed, answer in zip(request.seeds, answers, strict=True):
                if len(answer) < 1 + seed % 4:
                    answer.append((int(digest(self.chain, seed, len(answer))[:6], 16) % 10, self.version))
            if all(len(answer) == 1 + seed % 4 for seed, answer in zip(request.seeds, answers, strict=True)):
                del self.drafts[key]
                finished.append(Finished(request=request, answers=tuple(map(_answer, answers))))
        return finished

    def running(self) -> Mapping[str, int | None]:
        return {key: answers[0][0][1] if answers[0] else None for key, (_, answers) in self.drafts.items()}

    def abort(self, key: str) -> bool:
        return self.drafts.pop(key, None) is not None


def _answer(tokens: list[tuple[int, int]]) -> Answer:
    return Answer(
        tokens=tuple(token for token, _ in tokens),
        logprobs=(-1.0,) * len(tokens),
        versions=tuple(version for _, version in tokens),
        end=AnswerEnd.EOS,
    )


@dataclass
class ScriptedRank:
    """Its weights are the digest of all that it was fed, in order."""

    folder: RunFolder
    pinned: bool
    lookahead: int
    version: int
    chain: str
    fed: list[str] = field(default_factory=list)
    tokens: int = 0
    rows: int = 0

    def accumulate(self, groups: Sequence[GroupRollouts]) -> None:
        for group in sorted(groups, key=lambda group: group.prompt):
            said = [(row.tokens.tolist(), row.logprobs.tolist()) for row in group.rows]
            self.fed.append(digest(group.prompt, said, group.rewards))
            self.tokens += group.num_tokens
            self.rows += group.num_rows

    def close_step(self) -> StepFacts:
        self.chain = digest(self.chain, self.fed)
        facts = StepFacts(loss=0.5, grad_norm=1.0, tokens=self.tokens, rows=self.rows, padding=0, logprob_gap=0.0)
        self.version += 1
        self.fed, self.tokens, self.rows = [], 0, 0
        return facts

    def publish(self) -> PublishedFile:
        name = f"{self.version}-{digest(self.chain)}"
        folder = self.folder.weights / name
        folder.mkdir(exist_ok=True)
        draft = folder / "draft"
        draft.write_text(self.chain)
        draft.rename(folder / "chain")
        return PublishedFile(file=name, digest=digest(self.chain))

    def save(self, ordered: Ordered) -> Manifest:
        def fill(folder: Path) -> None:
            (folder / "chain").write_text(self.chain)

        return checkpoints.write(self.folder.checkpoints, ordered, fill)


def desk_of(folder: RunFolder, plan: Plan, name: str) -> Any:
    desk = folder.desk(plan)
    return desk if FOLDER is None else WitnessedDesk(desk, name)


def generator(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    for name, kind in (("--run", Path), ("--name", str), ("--incarnation", int)):
        parser.add_argument(name, type=kind, required=True)
    found = parser.parse_args(arguments)
    folder = RunFolder(found.run)
    plan = folder.plan()
    with (
        Heartbeat.of(plan, folder, found.name, ((f"worker:{found.name}", found.incarnation),)) as heartbeat,
        RewardChild(plan.reward, plan.flow.reward_timeout_s) as reward,
    ):
        asking = Asking(
            run_seed=plan.seed,
            rollouts=plan.grpo.rollouts_per_prompt,
            max_tokens=plan.model.max_tokens,
            temperature=1.0,
            stop_tokens=frozenset(),
        )
        rows = Loader.open(plan.data, seed=plan.seed, prompts_per_step=plan.grpo.prompts_per_step)
        engine = ScriptedEngine(pace_s=PACE_S * SLOW.get(found.name, 1.0))
        print(
            Generator(
                name=found.name,
                desk=PatientDesk(desk_of(folder, plan, found.name), heartbeat),
                heartbeat=heartbeat,
                engine=engine,
                attempts=SingleTurnAttempts(engine, asking, rows, SingleTurn(Digits(), chat_template=False), reward),
                blobs=Blobs(folder.blobs),
                weights=folder.weights,
                terms=GeneratorTerms.of(plan),
                machine={},
            ).run(),
            flush=True,
        )


def trainer(arguments: Sequence[str]) -> None:
    found = worker.parse(arguments)
    folder = RunFolder(found.run)
    plan = folder.plan()
    own = (("rank:0", found.generation), (f"worker:{worker.NAME}", found.generation))
    with Heartbeat.of(plan, folder, worker.NAME, own) as heartbeat:
        chain = (folder.checkpoints / found.checkpoint / "chain").read_text() if found.checkpoint else "model"
        rank = ScriptedRank(folder, plan.determinism == "pinned", plan.sampler.lookahead, found.version, chain)
        print(
            worker.TrainerRank(
                name=worker.NAME,
                desk=PatientDesk(desk_of(folder, plan, worker.NAME), heartbeat),
                heartbeat=heartbeat,
                rank=rank,
                blobs=Blobs(folder.blobs),
                terms=worker.terms_of(found),
                machine={},
            ).run(),
            flush=True,
        )


def controller(arguments: Sequence[str]) -> None:
    config, *rest = arguments
    drops = [int(word.removeprefix("--drop=")) for word in rest if word.startswith("--drop=")]
    overrides = [word for word in rest if not word.startswith("--")]
    name = load_plan(config).run
    if Path("runs", name).exists():
        folder = RunFolder.open(name)
        changed = verbs.parsed(overrides)
        server = LogServer(folder, plan_at(folder.plan(), changed), accept_loss="--accept-loss" in rest)
        ready = runner.prepare_resume(folder, server, runner.look(server).state, changed, drops)
    else:
        plan = load_plan(config, overrides)
        loader, policy = runner.check(plan)
        folder = RunFolder.create(plan)
        ready = runner.Ready(folder=folder, plan=plan, loader=loader, policy=policy)
        server = LogServer(folder, plan)
    if FOLDER is not None:
        server.log = WitnessedLog(server.log)
    me = (sys.executable, str(Path(__file__).resolve()))
    crew = Crew(
        lease_s=ready.plan.flow.lease_s,
        max_steps=ready.policy.max_steps,
        generator=(*me, "generator"),
        trainer=(*me, "trainer"),
    )
    sys.exit(foreground(ready, server, crew))


ROLES: Mapping[str, Any] = {"controller": controller, "generator": generator, "trainer": trainer}

if __name__ == "__main__":
    ROLES[sys.argv[1]](sys.argv[2:])
