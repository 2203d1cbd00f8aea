"""Dies at every file operation of a real trainer's checkpoints. Run by test_saving_deaths.py in a process of its own.

    python saving_death.py MODEL FOLDER

Before each operation, and in the middle of a write, a forked child that saves, or that deletes old checkpoints, ends on
the spot. Then the newest whole checkpoint is chosen as a resume does, and compared
with one that was saved in peace; then the next owner sweeps, and the same is done to its end. Prints how often it died.
"""

import os
import resource
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from resumed_trainer import SETTINGS

from file_operations import operations
from rollog.events.codec import seal
from rollog.events.log import GENESIS, Entry, Outbox
from rollog.events.memory_log import MemoryServer
from rollog.events.vocabulary import Note
from rollog.pipeline import checkpoints
from rollog.pipeline.checkpoint_store import CheckpointStore
from rollog.pipeline.checkpoints import FileEntry, Manifest, Ordered
from rollog.pipeline.durable import TEMPORARY, sweep
from rollog.pipeline.rollouts import GroupRollouts, Rollout, Row, Span
from rollog.pipeline.training.models import deterministic, load_model
from rollog.pipeline.training.torch_trainer import TorchTrainer
from rollog.replay.state import SavedCheckpoint, State

KILLED = 9


class Scene:
    """A log, a trainer that stands at some version, and the folder that it saves into."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model, self.root, self.peace = model, folder / "checkpoints", folder / "peace"
        self.log = MemoryServer(clock=lambda: 0.0).log()
        self.epoch = self.log.open("pen").epoch
        self.trainer = TorchTrainer(load_model(model), SETTINGS)
        self.state = State(version=2)
        self.orders = [self.order(version) for version in range(3)]

    def order(self, version: int) -> Ordered:
        """The order to save this version, which stands in the log."""
        head = self.log.head()
        entry: Entry = seal(
            offset=head.offset + 1, epoch=self.epoch, time=0.0, input=None, previous=head.digest or GENESIS,
            events=(Note(what="save", text=str(version)),),
        )  # fmt: skip
        self.log.append([(entry, Outbox())])
        return Ordered(
            log="memory", offset=entry.offset, digest=entry.digest, epoch=self.epoch, version=version, generation=1
        )

    def save(self, root: Path) -> Manifest:
        """Write the checkpoint of the version that the trainer stands at."""
        order = self.orders[self.trainer.version]
        return checkpoints.write(root, order, lambda folder: self.trainer.write_checkpoint(folder, self.model))

    def step(self) -> None:
        """Train one step."""
        rows = [
            Row(
                tokens=np.array([10, digit, 11, 1 + digit, 12], np.int32),
                written=np.array([False, False, False, True, True]),
                logprobs=np.array([0, 0, 0, -1, -1], np.float32),
                spans=(Span(version=self.trainer.version, tokens=2),),
            )
            for digit in range(4)
        ]
        rollouts = tuple(Rollout(rows=(row,), reward=float(at)) for at, row in enumerate(rows))
        self.trainer.accumulate([GroupRollouts(prompt=self.trainer.version, attempt=1, rollouts=rollouts)])
        self.trainer.close_step()

    @property
    def store(self) -> CheckpointStore:
        """What a new controller looks with."""
        return CheckpointStore(self.root, self.log, lambda: "memory")


def dies(do: Callable[[], object], strike: Callable[[int, str], None], torn_at: int | None = None) -> bool:
    """Whether a forked child ended by a blow while it did this; else it came to its end."""
    if (child := os.fork()) == 0:
        if torn_at is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (torn_at, torn_at))
        with operations(strike):
            do()
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, KILLED, -signal.SIGXFSZ), code
    return code != 0


def blow_at(wanted: int) -> Callable[[int, str], None]:
    """The process ends before this operation."""

    def strike(number: int, name: str) -> None:
        if number == wanted:
            os._exit(KILLED)

    return strike


def check_save(scene: Scene, expected: Mapping[int, Mapping[str, FileEntry]]) -> bool:
    """What a resume finds after a death while version 2 was saved; whether it finds version 2."""
    (chosen,) = scene.store.whole(scene.state)
    manifest = checkpoints.read_manifest(scene.root / chosen.manifest)
    assert manifest is not None
    assert manifest.files == expected[chosen.version], chosen
    assert checkpoints.broken_files(manifest) == []
    sweep(scene.root)  # the next trainer comes
    assert scene.save(scene.root).files == expected[2]
    assert sorted(path.name for path in scene.root.iterdir()) == sorted(each.folder_name for each in scene.orders)
    checkpoints.delete_folder(scene.root / scene.orders[2].folder_name)
    return chosen.version == 2


def check_prune(scene: Scene, expected: Mapping[int, Mapping[str, FileEntry]]) -> None:
    """What is left after a death while all but the newest two were deleted; then they are deleted to the end."""
    whole = {manifest.version: manifest for manifest in scene.store.on_this_log()}
    assert whole.keys() >= {1, 2}
    assert all(checkpoints.broken_files(manifest) == [] for manifest in whole.values())
    assert [each.version for each in scene.store.whole(scene.state)] == [2]
    sweep(scene.root)
    scene.store.prune(scene.state)
    assert sorted(path.name for path in scene.root.iterdir()) == sorted(each.folder_name for each in scene.orders[1:])
    assert [manifest.files for manifest in scene.store.on_this_log()] == [expected[1], expected[2]]


def main(model: Path, folder: Path) -> None:
    deterministic(threads=1)
    scene, expected = Scene(model, folder), {}
    for version in range(3):
        expected[version] = scene.save(scene.peace).files
        if version < 2:
            scene.save(scene.root)
            scene.step()
    scene.state.checkpoints = {version: SavedCheckpoint(version=version, manifest="", digest="") for version in (0, 1)}
    names: Counter[str] = Counter()
    with operations(lambda number, name: names.update([name])) as watched:
        scene.save(scene.root)
    checkpoints.delete_folder(scene.root / scene.orders[2].folder_name)

    found = []
    for number in range(watched.count):
        assert dies(lambda: scene.save(scene.root), blow_at(number)), number
        found.append(check_save(scene, expected))
    assert found == sorted(found), "a death later finds no less"
    assert found[0] is False
    assert found[-1] is True

    sizes = sorted({0, *(entry.size_bytes // 2 for entry in expected[2].values())})
    for size in sizes:
        assert dies(lambda: scene.save(scene.root), blow_at(-1), torn_at=size), size
        assert check_save(scene, expected) is False, size

    scene.save(scene.root)
    scene.state.checkpoints = {version: SavedCheckpoint(version=version, manifest="", digest="") for version in (1, 2)}
    oldest = scene.orders[0].folder_name
    prunes = 0
    while dies(lambda: scene.store.prune(scene.state), blow_at(prunes)):
        check_prune(scene, expected)
        shutil.copytree(scene.peace / oldest, scene.root / oldest)
        prunes += 1
    check_prune(scene, expected)
    assert not [path for path in scene.root.rglob("*") if path.name.startswith(TEMPORARY)]
    print(watched.count, len(sizes), prunes, " ".join(sorted(names)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
