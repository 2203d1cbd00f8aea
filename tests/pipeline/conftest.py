"""What tests of generation and training share: the quickstart's small model and builders of rollouts."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from rollog.pipeline.rollouts import GroupRollouts, Rollout, Row, Span


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart's model, untrained: 13 tokens, ids 0-9 digits, 10 <bos>, 11 <sep>, 12 <eos>."""
    from rollog.pipeline.training.models import deterministic
    from rollog.pipeline.training.quickstart_model import write_model

    deterministic(threads=1)
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_model(folder, seed=0)
    return folder


GroupMaker = Callable[..., GroupRollouts]


@pytest.fixture(scope="session")
def random_group() -> GroupMaker:
    """A builder: one group of rollouts with random tokens; `rows` is the number of rows of each rollout."""

    def make(prompt: int = 0, *, rows: Sequence[int] = (1, 1, 1, 1), seed: int = 0, version: int = 0) -> GroupRollouts:
        numbers = np.random.default_rng([seed, prompt])
        return GroupRollouts(
            prompt=prompt,
            attempt=1,
            rollouts=tuple(
                Rollout(rows=tuple(_row(numbers, version) for _ in range(count)), reward=float(numbers.integers(0, 5)))
                for count in rows
            ),
        )

    return make


def _row(numbers: np.random.Generator, version: int) -> Row:
    length = int(numbers.integers(3, 9))
    written = numbers.random(length) < 0.6
    written[0], written[-1] = False, True
    logprobs = np.where(written, -3 * numbers.random(length), 0).astype(np.float32)
    return Row(
        tokens=numbers.integers(0, 13, length).astype(np.int32),
        written=written,
        logprobs=logprobs,
        spans=(Span(version=version, tokens=int(written.sum())),),
    )
