"""How vLLM is started: what is asked of it, on GPUs and without any.

Rule 1: nothing is fetched, run or reported: local safetensors only, no code from the model's folder, no usage report.
Rule 2: log probabilities are those of the distribution that tokens are drawn from, after the temperature.
Rule 3: without a GPU nothing is compiled (it would take minutes), and threads stay where the system puts them.
"""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from rollog.pipeline.config import Plan
from rollog.pipeline.errors import ModelError

if TYPE_CHECKING:
    from rollog.pipeline.generation.vllm_engine import VllmEngine

GIB: Final = 2**30
CPU_CACHE_GIB: Final = 1.0
CPU_BLOCK_TOKENS: Final = 32
"""The CPU's kernels want multiples of 32; smaller blocks let shorter prompts be shared within a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmTerms:
    """What of the plan concerns vLLM. None: as vLLM or the model says. `timeout_s`: see VllmEngine."""

    dtype: str
    tensor_parallel: int = 1
    max_context_tokens: int | None = None
    kv_cache_gib: float | None = None
    timeout_s: float = 300.0

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """The plan's."""
        generation = plan.generation
        return cls(
            dtype=plan.model.dtype,
            tensor_parallel=generation.tensor_parallel,
            max_context_tokens=generation.max_context_tokens,
            kv_cache_gib=generation.kv_cache_gib,
            timeout_s=generation.engine_timeout_s,
        )


ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "1",
    "PYTHONWARNINGS": "ignore:resource_tracker:UserWarning",  # it would speak last, after the reason of an end
}
"""What is set unless it is set already. It is read when vllm is imported, and by the processes that it starts."""


def start_engine(folder: Path, terms: VllmTerms) -> "VllmEngine":
    """An engine with the model of a Hugging Face folder, standing at version 0 until `load` says otherwise.

    Takes tens of seconds. Raises ModelError when vLLM does not start with this model.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from vllm import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.async_llm import AsyncLLM

    from rollog.pipeline.generation.vllm_engine import VllmEngine

    arguments = engine_arguments(folder, terms, cpu=current_platform.is_cpu())
    try:
        llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"vLLM does not start with the model in {folder}: {error}") from error
    return VllmEngine(llm, asyncio.new_event_loop(), timeout_s=terms.timeout_s)


def engine_arguments(folder: Path, terms: VllmTerms, *, cpu: bool) -> dict[str, Any]:
    """The arguments of vLLM's engine."""
    cache_gib = terms.kv_cache_gib or (CPU_CACHE_GIB if cpu else None)
    return {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "load_format": "safetensors",
        "trust_remote_code": False,
        "generation_config": "vllm",
        "dtype": terms.dtype,
        "tensor_parallel_size": terms.tensor_parallel,
        "max_model_len": terms.max_context_tokens,
        "kv_cache_memory_bytes": None if cache_gib is None else round(cache_gib * GIB),
        "block_size": CPU_BLOCK_TOKENS if cpu else None,
        "enable_prefix_caching": True,
        "enforce_eager": cpu,
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": "rollog.pipeline.generation.vllm_reload.ReadsWeights",
        "disable_log_stats": True,
    }
