"""``make turns``: a small model from nothing, trained in conversations of several turns with context compaction.

build/turns/model  -->  rollog train examples/turns.yaml  -->  what came of it
"""

import argparse
from pathlib import Path
from typing import Final

from rollog.pipeline.example_run import look_next, mean, rewards, run_name, train
from rollog.pipeline.training.legs_model import write_model

NAME: Final = "turns"
CONFIG: Final = Path("examples/turns.yaml")
MODEL: Final = Path("build/turns/model")
ENDS: Final = 10
"""Steps whose rewards are averaged, at the beginning and at the end."""


def summary(run: str) -> str:
    """How the rewards grew, and what to look at next."""
    by_step = rewards(run)
    lines = [
        f"mean reward {mean(by_step[:ENDS]):.3f} in the first {ENDS} steps, {mean(by_step[-ENDS:]):.3f} in the last "
        f"{ENDS} of {len(by_step)}; `rollog status` counts the rows",
        "",
        *look_next(run),
    ]
    return "\n".join(lines)


def main() -> None:
    """Make the model if it is missing, train, say what came of it; ends with the exit code of the training."""
    parser = argparse.ArgumentParser(description="Train a small model in several turns.")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=f"settings put over {CONFIG}")
    arguments = parser.parse_args()
    run = run_name(NAME, arguments.overrides)
    write_model(MODEL, seed=0)
    code = train(CONFIG, [f"run={run}", *arguments.overrides])
    if code == 0:
        print(summary(run))
    raise SystemExit(code)


if __name__ == "__main__":
    main()
