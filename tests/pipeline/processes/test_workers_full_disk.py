"""The disk under a whole run fills up: the run stops and says so, and goes on where it was when there is room."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from disks import fill, make_room, small_disk
from rollog.events.vocabulary import Train
from scene import Scene


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """The folder of all runs, on a disk of its own."""
    with small_disk(tmp_path / "runs", "64m") as mounted:
        yield mounted


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_run_on_a_full_disk_stops_with_what_to_do_and_goes_on_when_there_is_room(disk: Path, scene: Scene) -> None:
    scene.within_s = 180.0
    scene.start()
    scene.wait_for(lambda state: state.version >= 2)
    fill(disk)
    assert scene.finish() != 0
    assert "make room, then rollog resume" in scene.output
    make_room(disk)
    scene.start()
    assert scene.finish() == 0, scene.output
    trained = [event.step for event in scene.events(Train)]
    assert sorted(set(trained)) == list(range(12))
    prompts = [prompt for step in scene.trained().values() for prompt in step]
    assert sorted(prompts) == list(range(48))
