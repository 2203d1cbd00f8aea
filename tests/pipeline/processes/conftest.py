"""A run of real processes with scripted engines, in a folder of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from scene import Scene


@pytest.fixture(scope="session")
def make_scene() -> type[Scene]:
    """A builder of scenes for tests that need another one."""
    return Scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.clean()
