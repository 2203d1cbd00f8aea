"""The files of a Megatron trainer in a checkpoint: all that the next step depends on.

    model/                 a Hugging Face folder; with several ranks its weights are in a file for each, with an index
    optimizer*.safetensors AdamW's state, <parameter>/exp_avg and so on, in a file for each rank
    trainer.json           version, how often the optimizer stepped, how many ranks wrote

Rule 1: each rank writes the whole tensors of its share of the parameters, under their Hugging Face names. So a trainer
of any other number of ranks, cut in any other way, reads them.
Rule 2: the learning rate follows from the version, and nothing is drawn: no scheduler and no random state is saved.
Rule 3: anything missing or of another shape is an error; nothing is filled in.
Rule 4: what the torch engine wrote is read too: its tensors have the same names. A fork may change the engine.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from rollog.pipeline.checkpoints import CheckpointError
from rollog.pipeline.durable import canonical_json
from rollog.pipeline.training.checkpoint_files import MODEL_FOLDER, TRAINER_FILE, copy_small_files
from rollog.pipeline.training.megatron_model import PerParameter
from rollog.pipeline.training.megatron_optimizer import MEANS
from rollog.pipeline.training.megatron_trainer import MegatronTrainer
from rollog.pipeline.training.rank_group import RankGroup
from rollog.pipeline.training.tensor_folder import TensorFolder, shard_name, write_index
from rollog.pipeline.training.weights import write_tensors

FORMAT: Final = 1
ENGINE: Final = "megatron"


def write_shards(folder: Path, trainer: MegatronTrainer, group: RankGroup) -> None:
    """Write this rank's files. All ranks must do so, into the same folder, which rank 0 has prepared."""
    rank, ranks = group.seat.rank, group.seat.ranks
    own = _share(trainer, group, torch.nn.Parameter.detach, "")
    write_tensors(own, folder / MODEL_FOLDER / shard_name("model", rank, ranks))
    state: dict[str, torch.Tensor] = {}
    for which in MEANS if trainer.mover.steps else ():
        state |= _share(trainer, group, partial(trainer.mover.mean, which=which), f"/{which}")
    write_tensors(state, folder / shard_name("optimizer", rank, ranks))


def prepare(folder: Path, trainer: MegatronTrainer, model_folder: Path) -> None:
    """What is not a tensor: rank 0 writes it first. ``model_folder`` lends the tokenizer's files."""
    target = folder / MODEL_FOLDER
    target.mkdir()
    copy_small_files(model_folder, target)
    trainer.hf_config.to_json_file(target / "config.json")


def complete(folder: Path, trainer: MegatronTrainer, group: RankGroup) -> None:
    """What is written last, by rank 0, when all shards are there."""
    write_index(folder / MODEL_FOLDER, "model")
    description = {
        "format": FORMAT,
        "engine": ENGINE,
        "version": trainer.version,
        "steps": trainer.mover.steps,
        "ranks": group.seat.ranks,
    }
    (folder / TRAINER_FILE).write_bytes(canonical_json(description))


def read(folder: Path, trainer: MegatronTrainer) -> None:
    """Become the trainer that wrote ``folder``, whatever its ranks were. Raises CheckpointError or WeightsError."""
    description = _read_description(folder / TRAINER_FILE)
    trainer.model.load(TensorFolder(folder / MODEL_FOLDER, "model"))
    state = TensorFolder(folder, "optimizer")
    steps = description["steps"] if description.get("engine") == ENGINE else _steps_of_torch(state)
    for layout, parameter in trainer.model.parameters if steps else ():
        means = {which: trainer.model.part(layout, state, f"/{which}") for which in MEANS}
        for which, mean in means.items():
            if mean.shape != parameter.shape:
                raise CheckpointError(f"{folder} has {which} of {layout.sources[0]} in shape {list(mean.shape)}")
        trainer.mover.restore(parameter, means, steps)
    trainer.version = description["version"]


def _steps_of_torch(state: TensorFolder) -> int:
    """How often the torch engine's optimizer has stepped."""
    return max((int(state[name]) for name in state if name.endswith("/step")), default=0)


def _share(trainer: MegatronTrainer, group: RankGroup, value: PerParameter, suffix: str) -> dict[str, torch.Tensor]:
    """Every so many-th parameter's tensors, so that the ranks' files are about equally large."""
    return {
        f"{name}{suffix}": tensor
        for place, named in enumerate(trainer.model.whole(value))
        if place % group.seat.ranks == group.seat.rank
        for name, tensor in named
    }


def _read_description(path: Path) -> dict[str, Any]:
    try:
        description: dict[str, Any] = json.loads(path.read_bytes())
        if description["format"] != FORMAT:
            raise CheckpointError(f"{path} has format {description['format']}; this rollog reads {FORMAT}")
        needed = ("version", "steps") if description.get("engine") == ENGINE else ("version",)
        if not all(type(description[name]) is int for name in needed):
            raise CheckpointError(f"{path} is incomplete; use an older checkpoint")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); use an older checkpoint") from error
    return description
