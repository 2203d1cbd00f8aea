"""Which source a prompt is of: what the log does not say and the run's data set does.

Rule 1: the data is read as the run reads it, and must be the data that the log names (its fingerprint).
"""

from collections.abc import Callable

from pydantic import ValidationError

from rollog.pipeline.errors import DataError
from rollog.pipeline.loader import Loader
from rollog.pipeline.settings import Data
from rollog.replay.errors import ReplayError
from rollog.replay.state import State


class NoSources(ReplayError):
    """The data set of the run is not here, or is another one."""

    exit_code = 2


def source_of_prompts(state: State) -> Callable[[int], str]:
    """From an ordinal to its source, for the run that the log tells of. Raises ``NoSources``."""
    try:
        data = Data.model_validate(state.settings["data"])
        loader = Loader.open(data, seed=state.seed, prompts_per_step=state.settings["grpo"]["prompts_per_step"])
        loader.check_unchanged(state.dataset)
    except (DataError, ValidationError, OSError) as error:
        raise NoSources(f"the sources of prompts stand in the run's data set: {error}") from error
    sources = [str(loader.row(index)["source"]) for index in range(loader.num_rows)]
    return lambda ordinal: sources[loader.row_index(ordinal)]
