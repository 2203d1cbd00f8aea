"""Published weights of an earlier version, to measure the gap under.

Rule: the trained model is left alone: older weights go into a copy of it, made when it is first needed.
"""

import copy
from pathlib import Path

from transformers import PreTrainedModel

from rollog.pipeline.training.weights import Published, load_into, published


def only_file(root: Path | None, version: int) -> Published | None:
    """The published weights of this version under ``root``; None if there is not exactly one such file."""
    files = [weights for weights in published(root) if weights.version == version] if root else []
    return files[0] if len(files) == 1 else None


class OlderWeights:
    """Models of earlier versions. ``root``: the folder of published weights, None if there is none."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._scratch: PreTrainedModel | None = None
        self._digest = ""

    def model(self, trained: PreTrainedModel, version: int) -> PreTrainedModel | None:
        """A model like ``trained`` with the weights of ``version``; valid until the next call. None: they are gone."""
        file = only_file(self._root, version)
        if self._root is None or file is None:
            return None
        if self._scratch is None:
            self._scratch = copy.deepcopy(trained).requires_grad_(False)
            self._scratch.zero_grad(set_to_none=True)
        if self._digest != file.digest:
            load_into(self._scratch, self._root / file.file, file.digest)
            self._digest = file.digest
        return self._scratch
