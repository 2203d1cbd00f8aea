"""Tokens per second of a generator's engine: ``python benchmarks/generation.py MODEL_FOLDER torch|vllm``.

32 prompts of 16 tokens, 8 answers each of exactly TOKENS tokens (default 12), all submitted at once. One small request
warms the engine up first and is not counted.
"""

import argparse
import random
import time
from pathlib import Path

from rollog.pipeline.generation.engine import Engine, Request

PROMPTS, PROMPT_TOKENS, ROLLOUTS = 32, 16, 8


def start(engine: str, folder: Path) -> Engine:
    """The engine, float32."""
    if engine == "torch":
        from rollog.pipeline.generation.torch_engine import TorchEngine

        return TorchEngine.from_folder(folder)
    from rollog.pipeline.generation.vllm_start import VllmTerms, start_engine

    return start_engine(folder, VllmTerms(dtype="float32"))


def finish(engine: Engine) -> int:
    """Step until nothing runs; returns the tokens written."""
    tokens = 0
    while engine.running():
        tokens += sum(len(answer.tokens) for ended in engine.step() for answer in ended.answers)  # type: ignore[union-attr]
    return tokens


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("engine", choices=("torch", "vllm"))
    parser.add_argument("--tokens", type=int, default=12)
    found = parser.parse_args()
    engine, chance = start(found.engine, found.folder), random.Random(0)

    def submit(number: int, rollouts: int) -> None:
        engine.submit(
            Request(
                key=str(number),
                prompt_tokens=tuple(chance.randrange(10) for _ in range(PROMPT_TOKENS)),
                seeds=tuple(1000 * number + rollout for rollout in range(rollouts)),
                max_tokens=found.tokens,
                temperature=1.0,
                stop_tokens=frozenset(),
            )
        )

    submit(0, 1)
    finish(engine)
    began = time.perf_counter()
    for number in range(1, PROMPTS + 1):
        submit(number, ROLLOUTS)
    tokens = finish(engine)
    seconds = time.perf_counter() - began
    print(f"{found.engine}: {tokens:,} tokens in {seconds:.2f} s, {tokens / seconds:,.0f} tokens/s")


if __name__ == "__main__":
    main()
