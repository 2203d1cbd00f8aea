"""The trainer's files in a checkpoint: all that the next step depends on.

    model/                 a Hugging Face folder that any engine serves as it is: model.safetensors, config.json, the
                           tokenizer's files, chat template and generation settings of the model that the run began with
    optimizer.safetensors  AdamW's state, <parameter>/exp_avg and so on
    trainer.json           version, parameter groups with the names of their parameters, state of the random numbers

Rule 1: a trainer made from these files continues bit for bit as the one that wrote them would have.
Rule 2: the learning rate follows from the version, so no scheduler is saved.
Rule 3: anything missing, extra or of another shape is a CheckpointError; nothing is filled in.
Rule 4: weights that lie published in the same bytes are not written a second time: the file is linked.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from transformers import PreTrainedModel

from rollog.pipeline.checkpoints import CheckpointError
from rollog.pipeline.durable import canonical_json
from rollog.pipeline.training.weights import (
    WEIGHTS_FILE,
    copy_into,
    link_weights,
    read_tensors,
    unique_tensors,
    write_tensors,
)

FORMAT: Final = 1
MODEL_FOLDER: Final = "model"
OPTIMIZER_FILE: Final = "optimizer.safetensors"
TRAINER_FILE: Final = "trainer.json"
_STATE: Final = ("step", "exp_avg", "exp_avg_sq")
# What of a model folder is not weights: tokenizer, chat template, generation settings.
_SMALL_FILES: Final = (".json", ".jinja", ".txt", ".model")


def write_trainer(
    folder: Path,
    *,
    model: PreTrainedModel,
    optimizer: torch.optim.AdamW,
    version: int,
    model_folder: Path,
    published: tuple[Path, str] | None = None,
) -> None:
    """Fill `folder` with the trainer's files. Small files of `model_folder` are copied, so that the result is a model.

    `published`: folder and digest of this very model's published weights, in its own number format. Does not sync;
    `rollog.pipeline.checkpoints.write` does.
    """
    target = folder / MODEL_FOLDER
    target.mkdir()
    copy_small_files(model_folder, target)
    model.config.to_json_file(target / "config.json")
    if published is None or not link_weights(*published, target / WEIGHTS_FILE):
        write_tensors(unique_tensors(model), target / WEIGHTS_FILE)
    names = _names(model)
    state = {
        f"{parameter_name}/{name}": optimizer.state[parameter][name].contiguous()
        for parameter, parameter_name in names.items()
        if parameter in optimizer.state
        for name in _STATE
    }
    write_tensors(state, folder / OPTIMIZER_FILE)
    description = {
        "format": FORMAT,
        "version": version,
        "groups": [
            {**_options(group), "params": [names[parameter] for parameter in group["params"]]}
            for group in optimizer.param_groups
        ],
        "random": {"cpu": torch.get_rng_state().numpy().tobytes().hex(), "cuda": _cuda_random()},
    }
    (folder / TRAINER_FILE).write_bytes(canonical_json(description))


def copy_small_files(model_folder: Path, target: Path) -> None:
    """Copy what of a model folder is not weights, nor an index of them."""
    for path in sorted(model_folder.iterdir()):
        if path.is_file() and path.suffix in _SMALL_FILES and not path.name.endswith(".safetensors.index.json"):
            shutil.copyfile(path, target / path.name)


def read_trainer(folder: Path, *, model: PreTrainedModel, optimizer: torch.optim.AdamW) -> int:
    """Put a checkpoint's weights, optimizer state and random numbers into place; returns its version.

    `model` and `optimizer` must have the shape of those that wrote it. Settings of the optimizer (learning rate, betas,
    weight decay) become the recorded ones. Raises CheckpointError or WeightsError.
    """
    description = _read_description(folder / TRAINER_FILE)
    copy_into(model, read_tensors(folder / MODEL_FOLDER / WEIGHTS_FILE), folder / MODEL_FOLDER)
    names = _names(model)
    recorded = [group["params"] for group in description["groups"]]
    present = [[names[parameter] for parameter in group["params"]] for group in optimizer.param_groups]
    if recorded != present:
        raise CheckpointError(
            f"{folder} groups other parameters than this trainer; resume with the rollog that wrote it"
        )
    tensors = read_tensors(folder / OPTIMIZER_FILE)
    state = {parameter: _state_of(tensors, name, parameter, folder) for parameter, name in names.items()}
    if tensors:
        raise CheckpointError(
            f"{folder / OPTIMIZER_FILE} holds {min(tensors)}, which no parameter has; it is another model's"
        )
    for parameter, value in state.items():
        if value:
            optimizer.state[parameter] = value
    for group, options in zip(optimizer.param_groups, description["groups"], strict=True):
        group.update({**_options(options), "betas": tuple(options["betas"])})
    _set_random(description["random"])
    version: int = description["version"]
    return version


def _names(model: PreTrainedModel) -> dict[torch.nn.Parameter, str]:
    """Trainable parameters and the first name of each."""
    return {parameter: name for name, parameter in model.named_parameters() if parameter.requires_grad}


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _state_of(
    tensors: dict[str, torch.Tensor], name: str, parameter: torch.nn.Parameter, folder: Path
) -> dict[str, torch.Tensor]:
    """AdamW's state of one parameter, taken out of `tensors`; empty before the first step."""
    found = {key: tensors.pop(f"{name}/{key}") for key in _STATE if f"{name}/{key}" in tensors}
    if not found:
        return {}
    if len(found) < len(_STATE):
        raise CheckpointError(f"{folder / OPTIMIZER_FILE} has only {sorted(found)} of {name}; use an older checkpoint")
    for key, tensor in found.items():
        expected = torch.Size([]) if key == "step" else parameter.shape
        if tensor.shape != expected:
            raise CheckpointError(f"{folder / OPTIMIZER_FILE} has {key} of {name} in shape {list(tensor.shape)}")
    return {key: tensor.to(parameter.device, copy=True) for key, tensor in found.items()}


def _read_description(path: Path) -> dict[str, Any]:
    try:
        description: dict[str, Any] = json.loads(path.read_bytes())
        if description["format"] != FORMAT:
            raise CheckpointError(f"{path} has format {description['format']}; this rollog reads {FORMAT}")
        if "engine" in description:
            raise CheckpointError(
                f"{path} was written by training.engine={description['engine']}; go on with that engine"
            )
        if not {"version", "groups", "random"} <= description.keys():
            raise CheckpointError(f"{path} is incomplete; use an older checkpoint")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); use an older checkpoint") from error
    return description


def _cuda_random() -> list[str]:
    if not torch.cuda.is_initialized():
        return []
    return [state.numpy().tobytes().hex() for state in torch.cuda.get_rng_state_all()]


def _set_random(states: Mapping[str, Any]) -> None:
    """Random numbers go on where they were. On a machine with other devices only the CPU's do."""
    torch.set_rng_state(_bytes_tensor(states["cpu"]))
    if torch.cuda.is_available() and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([_bytes_tensor(state) for state in states["cuda"]])


def _bytes_tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
