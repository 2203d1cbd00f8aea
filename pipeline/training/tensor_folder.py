"""The tensors of a folder by name, however many files they are spread over.

Rule 1: one file, or shards named as Hugging Face names them with an index of who holds what: both are read alike.
Rule 2: files are mapped and a tensor is read when it is asked for: a rank that needs a part reads no more.
Rule 3: a name that two files hold is an error, a name that none holds too.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from rollog.pipeline.durable import canonical_json
from rollog.pipeline.training.weights import WeightsError


class TensorFolder:
    """The tensors of all ``<stem>*.safetensors`` files of ``folder``. Raises WeightsError."""

    def __init__(self, folder: Path, stem: str) -> None:
        self._folder = folder
        self._stem = stem
        self._files: dict[str, Path] = {}
        for path in sorted(folder.glob(f"{stem}*.safetensors")):
            for name in _names(path):
                if name in self._files:
                    raise WeightsError(f"{path} and {self._files[name].name} both hold {name}; remove one of them")
                self._files[name] = path

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def __getitem__(self, name: str) -> torch.Tensor:
        """The tensor of this name."""
        if name not in self._files:
            raise WeightsError(
                f"{self._folder} holds no {name} in {self._stem}*.safetensors; its files are incomplete or another "
                f"model's"
            )
        with safe_open(self._files[name], framework="pt") as file:
            found: torch.Tensor = file.get_tensor(name)
        return found


def shard_name(stem: str, shard: int, shards: int) -> str:
    """The name of one of ``shards`` files; of a single one it is the stem."""
    return f"{stem}.safetensors" if shards == 1 else f"{stem}-{shard + 1:05}-of-{shards:05}.safetensors"


def write_index(folder: Path, stem: str) -> None:
    """Say which shard holds what, for those who read ``folder`` as a Hugging Face model."""
    paths = sorted(folder.glob(f"{stem}-*.safetensors"))
    if not paths:
        return
    names: Mapping[str, str] = {name: path.name for path in paths for name in _names(path)}
    total = sum(path.stat().st_size for path in paths)
    index = {"metadata": {"total_size": total}, "weight_map": names}
    (folder / f"{stem}.safetensors.index.json").write_bytes(canonical_json(index))


def _names(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise WeightsError(f"{path} is no safetensors file ({error}); restore it or go on from an older one") from error
