"""What is asked of vLLM. vLLM itself is not needed here."""

from pathlib import Path

from rollog.pipeline.config import Plan
from rollog.pipeline.generation.vllm_start import GIB, VllmTerms, engine_arguments


def terms(**generation) -> VllmTerms:
    settings = {"run": "demo", "model": {"path": "m"}, "data": {"path": "d.jsonl"}}
    return VllmTerms.of(Plan.from_settings(settings | {"generation": {"engine": "vllm", **generation}}))


def test_the_plans_settings_reach_the_engine() -> None:
    made = engine_arguments(Path("m"), terms(tensor_parallel=4, max_context_tokens=2048, kv_cache_gib=2.5), cpu=False)

    assert (made["model"], made["dtype"], made["tensor_parallel_size"]) == ("m", "float32", 4)
    assert (made["max_model_len"], made["kv_cache_memory_bytes"]) == (2048, 2.5 * GIB)
    assert terms(engine_timeout_s=7.0).timeout_s == 7.0


def test_without_a_gpu_nothing_is_compiled_and_the_cache_is_small() -> None:
    cpu, gpu = (engine_arguments(Path("m"), terms(), cpu=cpu) for cpu in (True, False))

    assert (cpu["enforce_eager"], cpu["kv_cache_memory_bytes"], cpu["block_size"]) == (True, GIB, 32)
    assert (gpu["enforce_eager"], gpu["kv_cache_memory_bytes"], gpu["block_size"]) == (False, None, None)


def test_nothing_of_a_model_folder_can_run_code_and_log_probabilities_are_those_of_the_draw() -> None:
    made = engine_arguments(Path("m"), terms(), cpu=True)

    assert (made["load_format"], made["trust_remote_code"]) == ("safetensors", False)
    assert made["logprobs_mode"] == "processed_logprobs"
    assert made["generation_config"] == "vllm", "a model's own top-k or top-p would shape the distribution"
