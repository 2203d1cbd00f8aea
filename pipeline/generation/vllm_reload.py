"""What vLLM's worker processes do for us beside their own work: they read new weights, all of them.

Rule 1: the class is mixed into vLLM's worker (`worker_extension_cls`), where it is called by the name of its method.
Rule 2: without a GPU, linear layers compute with a packed copy of their weights. vLLM packs anew what a file holds. A
head that is tied to the embedding stands in no file, so it is packed anew here; else it would never change.
"""

from typing import Any

from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.platforms import current_platform


class ReadsWeights:
    """Part of a worker of vLLM's."""

    model_runner: Any
    reload_weights: Any

    def read_weights(self, folder: str) -> None:
        """Overwrite the model's weights with those of a Hugging Face folder. Call it while generation is paused."""
        self.reload_weights(weights_path=folder)
        if current_platform.is_cpu():
            for layer in self.model_runner.get_model().modules():
                if isinstance(layer, ParallelLMHead):
                    layer.quant_method.process_weights_after_loading(layer)
