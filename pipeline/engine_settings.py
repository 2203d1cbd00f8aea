"""The settings of the engines that train.

Rule: as in ``settings``: units in names, and what the edge values mean.
"""

from typing import Literal, Self

from pydantic import model_validator

from rollog.pipeline.settings import Positive, Section


class Training(Section):
    """The processes that train."""

    engine: Literal["torch", "megatron"] = "torch"
    """torch: one process, plain PyTorch. megatron: Megatron-core's GPTModel over one or more processes, for dense
    models of the families Llama, Qwen2 and Qwen3; needs the extra ``megatron``."""
    ranks: Positive = 1
    """Processes that train one model together and share a step's rows: ranks / tensor_parallel copies of the model. On
    GPUs one for each. The torch engine has 1."""
    tensor_parallel: Positive = 1
    """Ranks that share one copy of the model, each with a part of every matrix; the torch engine has 1. Must divide the
    model's attention heads, its heads of keys and values, and ranks."""
    micro_batch: Positive = 8
    """Rows in one forward and backward pass of one rank."""
    logprob_batch: Positive = 8
    """Rows in one forward pass of one rank that only computes old logprobs."""
    sequence_packing: Literal[False] = False
    """false: a row of a micro batch is one row of a rollout. Not several: their number would vary."""
    dynamic_batching: Literal[False] = False
    """false: every micro batch has micro_batch rows. Not a number of tokens: ranks would have unequal numbers."""
    interleaved_pipeline: Literal[False] = False
    """false: no pipeline that interleaves stages, which needs a number of micro batches that does not vary."""

    @property
    def data_parallel(self) -> int:
        """Copies of the model."""
        return self.ranks // self.tensor_parallel

    @model_validator(mode="after")
    def _ranks_fit(self) -> Self:
        if self.engine == "torch" and (self.ranks, self.tensor_parallel) != (1, 1):
            raise ValueError(
                f"training.ranks={self.ranks} with training.tensor_parallel={self.tensor_parallel} cannot go with "
                f"training.engine=torch, which is one process. Set both to 1, or the engine to megatron."
            )
        if self.ranks % self.tensor_parallel:
            raise ValueError(
                f"training.ranks={self.ranks} is not a multiple of training.tensor_parallel={self.tensor_parallel}: "
                f"copies of the model would be incomplete. Set ranks to {self.tensor_parallel} or a multiple of it."
            )
        return self
