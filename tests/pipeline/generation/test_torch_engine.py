"""The torch engine: what a token depends on, and what it is labelled with."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from rollog.pipeline.generation.engine import Answer, AnswerEnd, EngineError, Finished, Request
from rollog.pipeline.generation.torch_engine import TorchEngine
from rollog.pipeline.training.logprobs import Forward, token_logprobs
from rollog.pipeline.training.models import load_model
from rollog.pipeline.training.weights import Published, WeightsError, publish

EOS = 12


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


def finish(engine: TorchEngine) -> dict[str, Finished]:
    found: dict[str, Finished] = {}
    while engine.running():
        found.update({finished.request.key: finished for finished in engine.step()})
    return found


@pytest.fixture
def engine(model_folder: Path) -> TorchEngine:
    return TorchEngine.from_folder(model_folder)


@pytest.fixture
def other_weights(model_folder: Path, tmp_path: Path) -> tuple[Path, Published]:
    """Weights far from the model's own, published as version 1."""
    model = load_model(model_folder)
    numbers = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=numbers))
    found = publish(model, 1, tmp_path)
    return tmp_path / found.file, found


def test_the_same_seeds_give_the_same_bits_whatever_runs_beside(engine: TorchEngine) -> None:
    engine.submit(a_request())
    alone = finish(engine)["a"]

    engine.submit(a_request("before", prompt=(10, 5, 5, 5, 11), seeds=range(100, 103), max_tokens=20))
    engine.step()
    engine.step()
    engine.submit(a_request())
    engine.submit(a_request("after", prompt=(10, 9, 11), seeds=range(50, 60)))

    assert finish(engine)["a"] == alone


def test_other_seeds_give_other_answers(engine: TorchEngine) -> None:
    engine.submit(a_request("a", seeds=range(8)))
    engine.submit(a_request("b", seeds=range(8, 16)))
    found = finish(engine)

    assert found["a"].answers != found["b"].answers


def test_a_log_probability_is_the_one_that_the_trainer_computes(engine: TorchEngine, model_folder: Path) -> None:
    request = a_request(temperature=0.7, max_tokens=12)
    engine.submit(request)
    answers = finish(engine)["a"].answers

    model = load_model(model_folder)
    for answer in answers:
        tokens = torch.tensor([[*request.prompt_tokens, *answer.tokens]])
        computed = token_logprobs(model, tokens, Forward(temperature=0.7))[0, -len(answer.tokens) :]
        assert computed.tolist() == pytest.approx(answer.logprobs, abs=1e-4)
    assert {len(answer.tokens) for answer in answers} > {12}, "answers of several lengths share a batch"


def test_tokens_follow_the_models_distribution(engine: TorchEngine, model_folder: Path) -> None:
    count = 20_000
    engine.submit(a_request(seeds=range(count), max_tokens=1, temperature=0.05))
    answers = finish(engine)["a"].answers

    with torch.no_grad():
        logits = load_model(model_folder)(torch.tensor([[10, 3, 11]])).logits[0, -1]
    expected = torch.softmax(logits / 0.05, -1)
    drawn = torch.bincount(torch.tensor([answer.tokens[0] for answer in answers]), minlength=13) / count
    # Five standard deviations of a share drawn `count` times.
    assert ((drawn - expected).abs() < 5 * (expected * (1 - expected) / count).sqrt() + 1e-4).all()
    assert expected.max() > 2 / 13, "the distribution must not be flat, else any sampler passes"


def test_an_answer_ends_with_a_stop_token_or_at_its_limit(engine: TorchEngine) -> None:
    engine.submit(a_request(seeds=range(64), max_tokens=6))
    answers = finish(engine)["a"].answers

    for answer in answers:
        if answer.end is AnswerEnd.EOS:
            assert answer.tokens.index(EOS) == len(answer.tokens) - 1
        else:
            assert len(answer.tokens) == 6
            assert EOS not in answer.tokens
    assert {answer.end for answer in answers} == set(AnswerEnd)


def test_weights_loaded_while_answers_run_label_only_the_tokens_they_make(
    engine: TorchEngine, other_weights: tuple[Path, Published]
) -> None:
    folder, new = other_weights
    engine.submit(a_request(stop=()))
    before = finish(engine)["a"]

    engine.submit(a_request(stop=()))
    engine.step()
    engine.step()
    engine.load(folder, new.version, new.digest)
    across = finish(engine)["a"]

    assert all(answer.versions == (0, 0, 1, 1, 1, 1) for answer in across.answers)
    assert (across.born, across.done) == (0, 1)
    assert heads(across.answers) == heads(before.answers)
    assert across.answers != before.answers


def heads(answers: Sequence[Answer]) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    return [(answer.tokens[:2], answer.logprobs[:2]) for answer in answers]


def test_running_answers_keep_their_keys_and_values_when_weights_are_loaded(
    engine: TorchEngine, model_folder: Path, tmp_path: Path
) -> None:
    same = publish(load_model(model_folder), 5, tmp_path)
    engine.submit(a_request())
    before = finish(engine)["a"]

    engine.submit(a_request())
    engine.step()
    engine.load(tmp_path / same.file, 5, same.digest)
    after = finish(engine)["a"]

    assert [answer.tokens for answer in after.answers] == [answer.tokens for answer in before.answers]
    assert [answer.logprobs for answer in after.answers] == [answer.logprobs for answer in before.answers]
    assert (after.born, after.done) == (0, 5)


def test_a_new_request_sees_nothing_of_older_weights(
    engine: TorchEngine, other_weights: tuple[Path, Published]
) -> None:
    folder, new = other_weights
    fresh = TorchEngine(load_model(folder), version=1)
    fresh.submit(a_request())

    engine.submit(a_request("warm"))
    finish(engine)
    engine.load(folder, new.version, new.digest)
    engine.submit(a_request())

    assert finish(engine)["a"] == finish(fresh)["a"]


def test_weights_that_are_not_what_their_digest_says_are_not_loaded(
    engine: TorchEngine, other_weights: tuple[Path, Published]
) -> None:
    folder, new = other_weights
    engine.submit(a_request())
    before = finish(engine)["a"]

    with pytest.raises(WeightsError, match="digest"):
        engine.load(folder, 1, "0" * 64)
    with pytest.raises(WeightsError, match="does not exist"):
        engine.load(folder / "gone", 1, new.digest)

    assert engine.version == 0
    engine.submit(a_request())
    assert finish(engine)["a"] == before


def test_running_tells_the_weights_that_began_a_request(
    engine: TorchEngine, other_weights: tuple[Path, Published]
) -> None:
    folder, new = other_weights
    engine.submit(a_request("old", stop=()))
    engine.step()
    engine.load(folder, new.version, new.digest)
    engine.submit(a_request("new", stop=()))

    assert engine.running() == {"old": 0, "new": None}
    engine.step()
    assert engine.running() == {"old": 0, "new": 1}


def test_an_aborted_request_leaves_and_the_others_go_on(engine: TorchEngine) -> None:
    engine.submit(a_request("a"))
    alone = finish(engine)["a"]
    engine.submit(a_request("b"))
    engine.submit(a_request("a"))
    engine.step()

    assert engine.abort("b")
    assert not engine.abort("b")
    assert finish(engine) == {"a": alone}
    assert engine.step() == []


def test_a_request_that_cannot_be_answered_is_refused(engine: TorchEngine) -> None:
    engine.submit(a_request("a"))

    with pytest.raises(EngineError, match="already runs"):
        engine.submit(a_request("a"))
    with pytest.raises(EngineError, match="token 13"):
        engine.submit(a_request("b", prompt=(10, 13)))
    with pytest.raises(EngineError, match="may reach 65 tokens"):
        engine.submit(a_request("b", max_tokens=62))
    with pytest.raises(EngineError, match="empty prompt"):
        a_request(prompt=())
    with pytest.raises(EngineError, match="temperature"):
        a_request(temperature=0)
    with pytest.raises(EngineError, match="max_tokens"):
        a_request(max_tokens=0)
    with pytest.raises(EngineError, match="seed"):
        a_request(seeds=())
