"""The engine on plain transformers: one forward pass for each group and token, with a key-value cache.

Rule 1: one group is one batch. No batch holds two prompts, so no prompt needs padding and tokens depend on weights,
prompt and seeds alone: the engine is bitwise reproducible on the same machine and number of threads.
Rule 2: a rollout owns its random numbers. They are drawn from its own generator when it is submitted, and token i is
found with number i by inverting the cumulative distribution; how many siblings still run changes nothing.
Rule 3: a finished rollout leaves the batch, so the batch shrinks as a group's answers end.

Shapes: A answers still being written, P prompt tokens, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import DynamicCache, PreTrainedModel

from rollog.pipeline.generation.engine import Answer, AnswerEnd, EngineError, Finished, Request
from rollog.pipeline.training.models import load_model
from rollog.pipeline.training.weights import load_into


@dataclass(slots=True)
class _Draft:
    """An answer being written."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    end: AnswerEnd = AnswerEnd.LENGTH


@dataclass(slots=True)
class _Group:
    """A request being answered. `writing` lists the drafts that the cache's batch rows belong to, in row order."""

    request: Request
    drafts: list[_Draft]
    uniforms: torch.Tensor  # [seeds, max_tokens] in [0, 1), float64, on the CPU
    writing: list[int]
    cache: DynamicCache | None = None

    @property
    def born(self) -> int | None:
        return self.drafts[0].versions[0] if self.drafts[0].versions else None


class TorchEngine:
    """Fills the Engine protocol with a transformers causal language model."""

    bitwise = True

    def __init__(self, model: PreTrainedModel, version: int = 0) -> None:
        self._model = model.eval()
        self._version = version
        self._groups: dict[str, _Group] = {}

    @classmethod
    def from_folder(cls, folder: Path, *, dtype: str = "float32", device: str = "cpu") -> "TorchEngine":
        """An engine with the model of a Hugging Face folder, standing at version 0 until `load` says otherwise."""
        model = load_model(folder, dtype=dtype)
        model.to(torch.device(device))  # type: ignore[arg-type]
        return cls(model)

    @property
    def version(self) -> int:
        return self._version

    def load(self, folder: Path, version: int, digest: str) -> None:
        load_into(self._model, folder, digest)
        self._version = version

    def submit(self, request: Request) -> None:
        if request.key in self._groups:
            raise EngineError(f"request {request.key} already runs; abort it before sending it again")
        config = self._model.config.get_text_config()
        vocabulary, positions = config.vocab_size, getattr(config, "max_position_embeddings", None)
        strange = [token for token in request.prompt_tokens if not 0 <= token < vocabulary]
        if strange:
            raise EngineError(
                f"request {request.key} holds token {strange[0]}, but the model knows {vocabulary}; "
                "use the tokenizer of the model's own folder"
            )
        length = len(request.prompt_tokens) + request.max_tokens
        if positions is not None and length > positions:
            raise EngineError(
                f"request {request.key} may reach {length} tokens, but the model holds {positions}; "
                "lower model.max_tokens or leave out long prompts"
            )
        self._groups[request.key] = _Group(
            request=request,
            drafts=[_Draft() for _ in request.seeds],
            uniforms=torch.stack([_uniforms(seed, request.max_tokens) for seed in request.seeds]),
            writing=list(range(len(request.seeds))),
        )

    def running(self) -> Mapping[str, int | None]:
        return {key: group.born for key, group in self._groups.items()}

    def abort(self, key: str) -> bool:
        return self._groups.pop(key, None) is not None

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        for group in self._groups.values():
            self._write_one_token(group)
        ended = [key for key, group in self._groups.items() if not group.writing]
        return [_finish(self._groups.pop(key)) for key in ended]

    def _write_one_token(self, group: _Group) -> None:
        request = group.request
        logits = self._next_logits(group).float() / request.temperature  # [A, V]
        logprobs = torch.log_softmax(logits, dim=-1)
        position = len(group.drafts[group.writing[0]].tokens)
        tokens = _invert(logprobs.exp(), group.uniforms[group.writing, position].to(logits.device))  # [A]
        chosen = logprobs.gather(-1, tokens[:, None])[:, 0]
        for row, token, logprob in zip(group.writing, tokens.tolist(), chosen.tolist(), strict=True):
            draft = group.drafts[row]
            draft.tokens.append(token)
            draft.logprobs.append(logprob)
            draft.versions.append(self._version)
            if token in request.stop_tokens:
                draft.end = AnswerEnd.EOS
        self._let_go(group)

    def _next_logits(self, group: _Group) -> torch.Tensor:
        """The logits of the next token, [A, V]. The prompt is read once and its keys and values copied to every row."""
        device = self._model.device
        if group.cache is None:
            group.cache = DynamicCache(config=self._model.config)
            tokens = torch.tensor([group.request.prompt_tokens], device=device)  # [1, P]
            logits = self._forward(tokens, group.cache)
            if len(group.writing) > 1:
                group.cache.batch_repeat_interleave(len(group.writing))
            return logits.expand(len(group.writing), -1)
        last = [[group.drafts[row].tokens[-1]] for row in group.writing]
        return self._forward(torch.tensor(last, device=device), group.cache)

    def _forward(self, tokens: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        output = self._model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def _let_go(self, group: _Group) -> None:
        """Take ended answers out of the batch."""
        request = group.request
        kept = [
            place
            for place, row in enumerate(group.writing)
            if group.drafts[row].end is not AnswerEnd.EOS and len(group.drafts[row].tokens) < request.max_tokens
        ]
        if len(kept) == len(group.writing):
            return
        group.writing = [group.writing[place] for place in kept]
        if kept and group.cache is not None:
            group.cache.batch_select_indices(torch.tensor(kept, device=self._model.device))


def _uniforms(seed: int, count: int) -> torch.Tensor:
    """The random numbers of one rollout, [count] in [0, 1). Drawn on the CPU, so every device sees the same ones."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, generator=generator, dtype=torch.float64)


def _invert(probabilities: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The token [A] whose slice of the cumulative distribution [A, V] holds each uniform number [A].

    Summed in float64: the tail of a large vocabulary would vanish in float32.
    """
    cumulative = probabilities.double().cumsum(-1)
    target = uniforms[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp(max=probabilities.shape[-1] - 1)


def _finish(group: _Group) -> Finished:
    answers = tuple(
        Answer(
            tokens=tuple(draft.tokens),
            logprobs=tuple(draft.logprobs),
            versions=tuple(draft.versions),
            end=draft.end,
        )
        for draft in group.drafts
    )
    return Finished(request=group.request, answers=answers)
