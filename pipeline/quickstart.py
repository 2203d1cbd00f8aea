"""``make quickstart``: a small model from nothing, trained on a task that can be checked, on two cores.

    build/quickstart/model, data.jsonl  -->  rollog train examples/quickstart.yaml  -->  what came of it

Rule 1: it can be run again: model and data are made once, and each time trains a run of its own.
"""

import argparse
from pathlib import Path
from typing import Final

from rollog.pipeline.example_run import look_next, mean, rewards, run_name, train
from rollog.pipeline.training.quickstart_model import write_dataset, write_model

NAME: Final = "quickstart"
CONFIG: Final = Path("examples/quickstart.yaml")
PLACE: Final = Path("build/quickstart")
ROWS: Final = 1000
FIRST, LAST = 3, 10


def prepare(seed: int) -> Path:
    """Make what is missing of model and data; returns the model's folder. Another seed makes another model."""
    model = PLACE / ("model" if seed == 0 else f"model-{seed}")
    if not model.is_dir():
        write_model(model, seed=seed)
    data = PLACE / "data.jsonl"
    if not data.is_file():
        write_dataset(data, rows=ROWS)
    return model


def summary(run: str) -> str:
    """How the rewards grew, and what to look at next."""
    by_step = rewards(run)
    lines = [
        f"mean reward {mean(by_step[:FIRST]):.3f} in the first {FIRST} steps, {mean(by_step[-LAST:]):.3f} in the last "
        f"{LAST} of {len(by_step)}",
        "",
        *look_next(run),
    ]
    return "\n".join(lines)


def main() -> None:
    """Prepare, train, say what came of it; ends with the exit code of the training."""
    parser = argparse.ArgumentParser(description="Train a small model on two cores.")
    parser.add_argument("--seed", type=int, default=0, help="of the model's weights and of the run")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings put over examples/quickstart.yaml")
    arguments = parser.parse_args()
    run = run_name(NAME, arguments.overrides)
    if run != NAME:
        print(f"there is a run named {NAME} already: this one is named {run}", flush=True)
    model = prepare(arguments.seed)
    own = [f"run={run}", f"seed={arguments.seed}", f"model.path={model}"]
    code = train(CONFIG, [*own, *arguments.overrides])
    if code == 0:
        print(summary(run))
    raise SystemExit(code)


if __name__ == "__main__":
    main()
