"""The engine on vLLM: its AsyncLLM in processes of its own, stepped from here.

    submit --> one task each, AsyncLLM.generate() --> tokens --> step() returns what ended
    load   --> pause (keep) --> reload --> caches empty? --> label --> resume --> canary

Rule 1: the event loop runs only inside a call, in the caller's thread. vLLM's own processes go on between two calls;
what they write waits in a socket.
Rule 2: a group is one request for `n` answers. vLLM gives answer i the seed `seeds[0] + i`, so the same request draws
the same tokens again under the same weights. What runs beside it may change last bits: the engine is not bitwise.
Rule 3: vLLM itself labels tokens: the label changes while nothing is computed. Running answers are computed again up to
where they are, under the new weights, so that no token rests on keys and values of two versions.
Rule 4: no answer rests on an older version's cache: a load proves that the caches are empty, and a request's blocks are
salted with the weights that it was submitted under.
Rule 5: every question to the engine has a deadline and a name. No answer, a pause that goes on, or weights that did not
change is EngineLost, which says which question it was.
"""

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from vllm import SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.inputs.engine import tokens_input
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from rollog.events.vocabulary import FailureKind
from rollog.pipeline.generation.canary import Canary
from rollog.pipeline.generation.engine import Answer, AnswerEnd, EngineError, EngineLost, Failed, Finished, Request
from rollog.pipeline.training.weights import check_weights

T = TypeVar("T")

STEP_S: Final = 0.1
"""A step waits this long at most for something new."""
QUIET_S: Final = 10.0
"""After so long without anything new the engine is asked whether it is there and not paused."""
PROGRESS_TOKENS: Final = 256
"""Tokens of an answer between two messages of vLLM's; the first and the last are always told."""
LOWEST_TEMPERATURE: Final = 0.01
"""vLLM silently raises a lower one to this."""
ENDS: Final = {"stop": AnswerEnd.EOS, "length": AnswerEnd.LENGTH}


@dataclass(slots=True)
class _Draft:
    """An answer being written. `versions` are known when it has ended."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    reason: str | None = None

    def add(self, output: CompletionOutput) -> None:
        assert output.logprobs is not None
        self.tokens += output.token_ids
        self.logprobs += [entry[token].logprob for token, entry in zip(output.token_ids, output.logprobs, strict=True)]
        self.reason = output.finish_reason
        for span in output.weight_versions or ():
            self.versions += [int(span.version)] * (span.end - span.start)


@dataclass(slots=True)
class _Group:
    """A request being answered. `born`: the version at its first token. `failed`: why it never will be."""

    request: Request
    drafts: list[_Draft]
    task: "asyncio.Task[None] | None" = None
    born: int | None = None
    failed: tuple[FailureKind, str] | None = None

    @property
    def ended(self) -> bool:
        return self.failed is not None or all(draft.reason for draft in self.drafts)


class VllmEngine:
    """Fills the Engine protocol. `start_engine` in vllm_start makes the AsyncLLM.

    `timeout_s`: the engine must answer every question in so many seconds, the loading of weights included.
    """

    bitwise = False

    def __init__(
        self, llm: AsyncLLM, loop: asyncio.AbstractEventLoop, *, timeout_s: float, quiet_s: float = QUIET_S
    ) -> None:
        self._llm = llm
        self._loop = loop
        self._timeout_s = timeout_s
        self._quiet_s = quiet_s
        self._version = 0
        self._salt = "initial"
        self._vocabulary = llm.model_config.get_vocab_size()
        self._positions = llm.model_config.max_model_len
        self._canary = Canary.of(self._vocabulary, self._positions)
        self._groups: dict[str, _Group] = {}
        self._news = asyncio.Event()
        self._heard_at = loop.time()
        self._run(self._ask("take the label of version 0", self._label(0)))

    @property
    def version(self) -> int:
        return self._version

    def load(self, folder: Path, version: int, digest: str) -> None:
        check_weights(folder, digest)
        self._run(self._load(folder, version, digest))

    def submit(self, request: Request) -> None:
        if request.key in self._groups:
            raise EngineError(f"request {request.key} already runs; abort it before sending it again")
        strange = [token for token in request.prompt_tokens if not 0 <= token < self._vocabulary]
        if strange:
            raise EngineError(
                f"request {request.key} holds token {strange[0]}, but the model knows {self._vocabulary}; "
                "use the tokenizer of the model's own folder"
            )
        length = len(request.prompt_tokens) + request.max_tokens
        if length > self._positions:
            raise EngineError(
                f"request {request.key} may reach {length} tokens, but the engine holds {self._positions}; "
                "lower model.max_tokens, leave out long prompts, or raise generation.max_context_tokens"
            )
        if request.temperature < LOWEST_TEMPERATURE:
            raise EngineError(
                f"request {request.key} has temperature={request.temperature:g}; vLLM samples at "
                f"{LOWEST_TEMPERATURE:g} or more"
            )
        group = _Group(request=request, drafts=[_Draft() for _ in request.seeds])
        group.task = self._loop.create_task(self._answer(group, self._salt))
        self._groups[request.key] = group

    def running(self) -> Mapping[str, int | None]:
        return {key: group.born for key, group in self._groups.items()}

    def abort(self, key: str) -> bool:
        group = self._groups.pop(key, None)
        if group is None:
            return False
        self._run(self._cancel(group))
        return True

    def step(self) -> Sequence[Finished | Failed]:
        if not self._groups:
            self._check_alive()
            self._heard_at = self._loop.time()
            return []
        self._run(self._wait())
        ended = [self._groups.pop(key) for key in [key for key, group in self._groups.items() if group.ended]]
        for group in ended:
            if group.failed is not None:
                self._run(self._cancel(group))  # its other answers may still be written
        return [_result(group) for group in ended]

    def close(self) -> None:
        """End the engine's processes. The engine cannot be used afterwards."""
        for group in self._groups.values():
            assert group.task is not None
            group.task.cancel()
        self._llm.shutdown()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    # --- what runs in the loop ----------------------------------------------------------------------------------------

    async def _answer(self, group: _Group, salt: str) -> None:
        """Follow one request to its end. Raises what means the end of the engine."""
        request = group.request
        prompt = tokens_input(list(request.prompt_tokens), cache_salt=salt)
        try:
            async for output in self._llm.generate(prompt, _sampling(request), request.key):
                self._take(group, output)
        except VLLMClientError as error:
            group.failed = (FailureKind.DATA, f"vLLM refuses it: {error}")
        finally:
            self._news.set()

    def _take(self, group: _Group, output: RequestOutput) -> None:
        if group.born is None:
            group.born = self._version
        for completion in output.outputs:
            group.drafts[completion.index].add(completion)
            if completion.finish_reason is not None and completion.finish_reason not in ENDS:
                group.failed = (FailureKind.INFRA, f"vLLM ended it with {completion.finish_reason!r}")
        self._news.set()

    async def _wait(self) -> None:
        """Until something is new, `STEP_S` at most. Raises EngineLost when the engine is dead or silent."""
        if not any(group.ended for group in self._groups.values()):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), STEP_S)
        if self._news.is_set():
            self._news.clear()
            self._heard_at = self._loop.time()
        for group in self._groups.values():
            if group.task is not None and group.task.done():
                await self._ask("go on with its requests", group.task)
        self._check_alive()
        if self._loop.time() - self._heard_at > self._quiet_s:
            await self._check_unpaused()
            self._heard_at = self._loop.time()

    async def _cancel(self, group: _Group) -> None:
        assert group.task is not None
        group.task.cancel()
        with suppress(asyncio.CancelledError):
            await self._ask("forget a request", group.task)

    async def _load(self, folder: Path, version: int, digest: str) -> None:
        doing = f"to load version {version}"
        await self._ask(f"pause {doing}", self._llm.pause_generation(mode="keep", clear_cache=True))
        await self._ask(f"read the weights, paused {doing}", self._reload(folder))
        if not await self._ask(f"empty its caches, paused {doing}", self._llm.reset_prefix_cache()):
            raise EngineLost(f"the engine's prefix cache is still in use while it is paused {doing}; start another one")
        await self._ask(f"take the label of version {version}, paused {doing}", self._label(version))
        await self._ask(f"resume, paused {doing}", self._resume())
        await self._check_unpaused()
        seen = await self._ask(f"answer the canary of version {version}", self._sing())
        self._canary.hear(seen, version, digest)
        self._version, self._salt = version, f"{version}-{digest}"
        self._heard_at = self._loop.time()

    async def _reload(self, folder: Path) -> None:
        await self._llm.collective_rpc("read_weights", args=(str(folder),))

    async def _label(self, version: int) -> None:
        await self._llm.update_weight_version(str(version))

    async def _resume(self) -> None:
        await self._llm.resume_generation()

    async def _sing(self) -> tuple[float, ...]:
        """The log probabilities of the canary's own tokens. Asking for them keeps the prefix cache out."""
        tokens = self._canary.tokens
        params = SamplingParams(
            max_tokens=1, temperature=1.0, prompt_logprobs=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )
        prompt = tokens_input(list(tokens), cache_salt="canary")
        async for output in self._llm.generate(prompt, params, "canary"):
            entries = output.prompt_logprobs or ()
        return tuple(entry[token].logprob for token, entry in zip(tokens, entries, strict=True) if entry is not None)

    async def _check_unpaused(self) -> None:
        if await self._ask("say whether it is paused", self._llm.is_paused()):
            raise EngineLost(
                f"the engine is paused although no weights are being loaded, with {len(self._groups)} requests and "
                f"version {self._version}; start another one"
            )

    async def _ask(self, what: str, answer: Awaitable[T]) -> T:
        """The engine's answer. Raises EngineLost when there is none in time, or it is an error.

        vLLM leaves questions open that a dead engine was asked, so whether it lives is asked too while one waits.
        """
        asked, deadline = asyncio.ensure_future(answer), self._loop.time() + self._timeout_s
        while not (await asyncio.wait({asked}, timeout=STEP_S))[0]:
            if self._llm.errored or self._loop.time() > deadline:
                asked.cancel()
                self._check_alive()
                raise EngineLost(
                    f"the engine did not {what} within {self._timeout_s:g} s (generation.engine_timeout_s); "
                    f"start another one"
                )
        try:
            return asked.result()
        except Exception as error:
            raise EngineLost(
                f"the engine could not {what}: {type(error).__name__}: {error}; start another one"
            ) from error

    def _check_alive(self) -> None:
        if self._llm.errored:
            raise EngineLost("the engine's process has died; start another one")

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)


def _sampling(request: Request) -> SamplingParams:
    """Nothing but the temperature shapes the distribution; only the request's own stop tokens end an answer."""
    return SamplingParams(
        n=len(request.seeds),
        seed=request.seeds[0],
        temperature=request.temperature,
        max_tokens=request.max_tokens,
        stop_token_ids=sorted(request.stop_tokens),
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        stream_interval=PROGRESS_TOKENS,
    )


def _result(group: _Group) -> Finished | Failed:
    if group.failed is not None:
        kind, error = group.failed
        return Failed(request=group.request, kind=kind, error=error)
    answers = tuple(
        Answer(
            tokens=tuple(draft.tokens),
            logprobs=tuple(draft.logprobs),
            versions=tuple(draft.versions),
            end=ENDS[draft.reason or ""],
        )
        for draft in group.drafts
    )
    return Finished(request=group.request, answers=answers)
