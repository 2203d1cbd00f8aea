"""Published weights: what generators load, one folder for each version.

    weights/<version>-<digest>/model.safetensors, config.json

Rule 1: a folder appears whole by a rename and is never overwritten; its name tells what is in it.
Rule 2: the digest is the blake2b-256 of model.safetensors, as 64 hex digits, and is checked at every load.
Rule 3: tensors that share memory are written once, under the first of their names: a tied head is left out. The layout
is that of Hugging Face, so other engines can load the folder too.
Rule 4: the newest two versions are kept, or those that the caller names.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from transformers import PreTrainedConfig, PreTrainedModel

from rollog.pipeline.durable import AlreadyThere, delete_folder, file_digest, keep, new_folder
from rollog.pipeline.errors import PipelineError
from rollog.pipeline.links import link_file

WEIGHTS_FILE = "model.safetensors"
_FOLDER_NAME = re.compile(r"(0|[1-9]\d{0,17})-([0-9a-f]{64})")


class WeightsError(PipelineError):
    """A weights file is missing, broken or does not fit the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Weights that generators may load. `file` is the folder's name under weights/, `digest` that of its tensors."""

    version: int
    file: str
    digest: str


def publish(model: PreTrainedModel, version: int, root: Path, *, dtype: torch.dtype | None = None) -> Published:
    """Write the model's weights as `version` under `root`, durably; cast to `dtype` if given.

    The same version with the same weights gives the same name; a folder that is there already is left as it is.
    """
    return publish_tensors(unique_tensors(model, dtype=dtype), model.config, version, root)


def publish_tensors(
    tensors: Mapping[str, torch.Tensor], config: PreTrainedConfig, version: int, root: Path
) -> Published:
    """Write the weights of a model of this ``config`` as ``publish`` does."""
    with new_folder(root) as folder:
        digest = write_tensors(tensors, folder / WEIGHTS_FILE)
        config.to_json_file(folder / "config.json")
        name = f"{version}-{digest}"
        try:
            keep(folder, name)
        except AlreadyThere:
            _read(root / name, digest)
    return Published(version=version, file=name, digest=digest)


def published(root: Path) -> list[Published]:
    """What lies under `root`, oldest version first. Contents are checked at load, not here."""
    found = []
    for folder in root.iterdir() if root.is_dir() else ():
        if match := _FOLDER_NAME.fullmatch(folder.name):
            found.append(Published(version=int(match[1]), file=folder.name, digest=match[2]))
    return sorted(found, key=lambda weights: (weights.version, weights.digest))


def prune(root: Path, *, keep_versions: Collection[int] | None = None) -> list[Published]:
    """Delete published weights but those of `keep_versions` (None: the newest two versions); returns the deleted."""
    present = published(root)
    kept = set(sorted({weights.version for weights in present})[-2:] if keep_versions is None else keep_versions)
    gone = [weights for weights in present if weights.version not in kept]
    for weights in gone:
        delete_folder(root / weights.file)
    return gone


def load_into(model: PreTrainedModel, folder: Path, digest: str) -> None:
    """Overwrite the model's weights in place with the ones published in `folder`.

    Raises WeightsError, and leaves the model as it was, if the file is not what `digest` says or does not fit the
    model.
    """
    copy_into(model, _read(folder, digest), folder)


def link_weights(folder: Path, digest: str, target: Path) -> bool:
    """Give the file of the weights published in `folder` another name. False if it is gone, or not what `digest` says.

    Where the disk has no links it is a copy.
    """
    try:
        link_file(folder / WEIGHTS_FILE, target)
    except FileNotFoundError:
        return False
    if file_digest(target) == digest:
        return True
    target.unlink()
    return False


def unique_tensors(model: PreTrainedModel, *, dtype: torch.dtype | None = None) -> dict[str, torch.Tensor]:
    """The model's parameters and buffers by name; of names that share memory only the first. Not copied if not cast."""
    tensors: dict[str, torch.Tensor] = {}
    seen: set[tuple[int, torch.Size]] = set()
    for name, tensor in model.state_dict().items():
        place = (tensor.data_ptr(), tensor.shape)
        if place in seen:
            continue
        seen.add(place)
        cast = dtype is not None and tensor.is_floating_point()
        tensors[name] = tensor.detach().to(dtype if cast else tensor.dtype).contiguous()
    return tensors


def write_tensors(tensors: Mapping[str, torch.Tensor], path: Path) -> str:
    """Write a safetensors file; returns its digest. The caller syncs it."""
    safetensors.torch.save_file(dict(tensors), path, metadata={"format": "pt"})
    return file_digest(path)


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, mapped: whoever keeps one makes a copy.

    Parsing the bytes in memory instead would stop every other thread, the heartbeat too, for seconds per gigabyte.
    Raises WeightsError if there is no such file or it is malformed.
    """
    try:
        return safetensors.torch.load_file(path)
    except FileNotFoundError as error:
        raise WeightsError(f"{path} does not exist; it was deleted, or the folder is not the run's own") from error
    except safetensors.SafetensorError as error:
        raise WeightsError(f"{path} is no safetensors file ({error}); restore it or go on from an older one") from error


def copy_into(model: PreTrainedModel, tensors: Mapping[str, torch.Tensor], source: Path) -> None:
    """Overwrite the model's weights in place, all or none. Raises WeightsError if names or shapes differ."""
    own = unique_tensors(model)
    if own.keys() != tensors.keys():
        odd = sorted(own.keys() ^ tensors.keys())
        raise WeightsError(
            f"{source} does not fit the model: {odd[0]} is in one of them only; use weights of this model"
        )
    for name, tensor in tensors.items():
        if own[name].shape != tensor.shape:
            raise WeightsError(
                f"{source} does not fit the model: {name} has shape {list(tensor.shape)}, "
                f"the model's has {list(own[name].shape)}; use weights of this model"
            )
    target = model.state_dict()
    with torch.no_grad():
        for name, tensor in tensors.items():
            target[name].copy_(tensor)


def check_weights(folder: Path, digest: str) -> Path:
    """The file of the weights published in `folder`. Raises WeightsError if it is not what `digest` says."""
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise WeightsError(f"{path} does not exist; it was deleted, or the folder is not the run's own")
    if (actual := file_digest(path)) != digest:
        raise WeightsError(
            f"{path} has digest {actual}, not {digest}; it was changed after it was published: delete it"
        )
    return path


def _read(folder: Path, digest: str) -> dict[str, torch.Tensor]:
    return read_tensors(check_weights(folder, digest))
