"""The torch trainer: one gradient however rows are cut, steps that cannot be trained, the gap to the generator."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from rollog.pipeline.generation.engine import Request
from rollog.pipeline.generation.torch_engine import TorchEngine
from rollog.pipeline.rollouts import GroupRollouts, Rollout, answer_row
from rollog.pipeline.training.batching import BatchShape, blocks, micro_batches, shard
from rollog.pipeline.training.grpo_loss import LossSettings, grpo_loss
from rollog.pipeline.training.grpo_trainer import StepResult, TrainerSettings, TrainingError
from rollog.pipeline.training.logprobs import Forward, token_logprobs
from rollog.pipeline.training.models import load_model
from rollog.pipeline.training.optimizer import OptimizerSettings, learning_rate
from rollog.pipeline.training.torch_trainer import TorchTrainer
from rollog.pipeline.training.weights import publish

GroupMaker = Callable[..., GroupRollouts]
Gradient = dict[str, torch.Tensor]
# Clipping off and a constant rate: a step then moves every weight by what its gradient says.
PLAIN = OptimizerSettings(lr=1e-3, warmup_steps=0, decay="constant", max_grad_norm=math.inf)


def a_trainer(
    folder: Path,
    shape: BatchShape | None = None,
    *,
    loss: LossSettings | None = None,
    weights: Path | None = None,
    version: int = 0,
) -> TorchTrainer:
    settings = TrainerSettings(
        max_steps=100, shape=shape or BatchShape(), optimizer=PLAIN, loss=loss or LossSettings(importance_cap=math.inf)
    )
    reference = load_model(folder) if settings.loss.kl else None
    return TorchTrainer(load_model(folder), settings, reference=reference, weights=weights, version=version)


def gradient_of(trainer: TorchTrainer) -> Gradient:
    """What the open step has summed so far."""
    return {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}


def distance(one: Gradient, other: Gradient) -> float:
    """The norm of the difference in shares of the norm."""
    assert one.keys() == other.keys()
    apart = sum(float((one[name] - other[name]).square().sum()) for name in one)
    whole = sum(float(one[name].square().sum()) for name in one)
    assert whole > 0
    return math.sqrt(apart / whole)


def generated(engine: TorchEngine, prompts: Sequence[int]) -> list[GroupRollouts]:
    """Groups that the engine really writes; rewards 0, 1, 2, 3."""
    for prompt in prompts:
        engine.submit(
            Request(
                key=str(prompt),
                prompt_tokens=(10, prompt % 10, 11),
                seeds=tuple(range(4 * prompt, 4 * prompt + 4)),
                max_tokens=4,
                temperature=1.0,
                stop_tokens=frozenset([12]),
            )
        )
    groups = []
    while engine.running():
        for done in engine.step():
            rollouts = tuple(
                Rollout(
                    rows=(
                        answer_row(
                            prompt=done.request.prompt_tokens,
                            answer=answer.tokens,
                            logprobs=answer.logprobs,
                            versions=answer.versions,
                        ),
                    ),
                    reward=float(place),
                )
                for place, answer in enumerate(done.answers)
            )
            groups.append(GroupRollouts(prompt=int(done.request.key), attempt=1, rollouts=rollouts))
    return groups


@pytest.mark.parametrize(
    "shape",
    [
        BatchShape(micro_batch=1, logprob_batch=1),
        BatchShape(micro_batch=3, logprob_batch=2),
        BatchShape(micro_batch=5, logprob_batch=7),
        BatchShape(micro_batch=64, logprob_batch=64),
        BatchShape(micro_batch=4, logprob_batch=6, block_per_group=True),
    ],
)
@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_the_gradient_does_not_depend_on_micro_batches_and_padding(
    model_folder: Path, random_group: GroupMaker, shape: BatchShape, kl: float
) -> None:
    groups = [random_group(0, rows=(1, 3)), random_group(1, rows=(2, 5)), random_group(2, rows=(1, 1))]
    loss = LossSettings(kl=kl, importance_cap=math.inf)
    plain, cut = a_trainer(model_folder, loss=loss), a_trainer(model_folder, shape, loss=loss)

    plain.accumulate(groups)
    cut.accumulate(groups)

    assert distance(gradient_of(plain), gradient_of(cut)) < 1e-5
    one, other = plain.close_step(), cut.close_step()
    assert (one.tokens, one.rows) == (other.tokens, other.rows) == (sum(group.num_tokens for group in groups), 13)
    assert one.loss == pytest.approx(other.loss, abs=1e-5)
    assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-4)


def test_the_gradient_does_not_depend_on_chunks(model_folder: Path, random_group: GroupMaker) -> None:
    groups = [random_group(prompt) for prompt in range(4)]
    whole, streamed = a_trainer(model_folder), a_trainer(model_folder)

    whole.accumulate(groups)
    streamed.accumulate(groups[:1])
    streamed.accumulate([])
    streamed.accumulate(groups[1:])

    assert distance(gradient_of(whole), gradient_of(streamed)) < 1e-5


def test_groups_of_a_chunk_give_the_same_bits_in_any_order(model_folder: Path, random_group: GroupMaker) -> None:
    groups = [random_group(prompt) for prompt in range(5)]
    one, other = a_trainer(model_folder), a_trainer(model_folder)

    one.accumulate(groups)
    other.accumulate([groups[place] for place in (3, 1, 4, 0, 2)])

    assert distance(gradient_of(one), gradient_of(other)) == 0
    assert one.close_step() == other.close_step()


def test_shards_of_all_ranks_add_up_to_the_whole_gradient(model_folder: Path, random_group: GroupMaker) -> None:
    groups = [random_group(0, rows=(1, 3)), random_group(1, rows=(2, 5))]
    whole = a_trainer(model_folder)
    whole.accumulate(groups)

    shape = BatchShape(micro_batch=2, logprob_batch=2, ranks=3, block_per_group=True)
    model = load_model(model_folder)
    for rank in range(shape.ranks):
        for block in blocks(groups, shape):
            for batch in micro_batches(shard(block, rank, shape.ranks), shape.micro_batch):
                new = token_logprobs(model, torch.from_numpy(batch.tokens), Forward())
                grpo_loss(
                    new,
                    old=new.detach(),
                    generator=torch.from_numpy(batch.generator),
                    advantages=torch.from_numpy(batch.advantages),
                    valid=torch.from_numpy(batch.valid),
                    settings=LossSettings(importance_cap=math.inf),
                ).backward()
    summed = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    assert distance(gradient_of(whole), summed) < 1e-5


def test_a_step_divides_once_by_all_its_valid_tokens(model_folder: Path, random_group: GroupMaker) -> None:
    groups = [random_group(prompt) for prompt in range(3)]
    trainer = a_trainer(model_folder)
    trainer.accumulate(groups)
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradient_of(trainer).values()))

    result = trainer.close_step()

    assert result.grad_norm == pytest.approx(norm / sum(group.num_tokens for group in groups), rel=1e-5)
    assert (result.step, result.version, trainer.version) == (0, 1, 1)


def test_a_second_step_knows_nothing_of_the_first(model_folder: Path, random_group: GroupMaker) -> None:
    trainer = a_trainer(model_folder)
    trainer.accumulate([random_group(0)])
    trainer.close_step()
    trainer.accumulate([random_group(1)])
    after = gradient_of(trainer)

    fresh = TorchTrainer(trainer.model, TrainerSettings(max_steps=100, loss=LossSettings(importance_cap=math.inf)))
    fresh.model.zero_grad()
    fresh.accumulate([random_group(1)])
    assert distance(after, gradient_of(fresh)) == 0


def test_equal_rewards_leave_the_weights_alone(model_folder: Path) -> None:
    (group,) = generated(TorchEngine.from_folder(model_folder), [3])
    flat = GroupRollouts(
        prompt=3, attempt=1, rollouts=tuple(Rollout(rows=rollout.rows, reward=0.5) for rollout in group.rollouts)
    )
    trainer, before = a_trainer(model_folder), load_model(model_folder).state_dict()
    trainer.accumulate([flat])

    assert trainer.close_step().grad_norm == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.model.state_dict().items())


def test_a_step_without_a_valid_token_is_an_error_and_changes_nothing(
    model_folder: Path, random_group: GroupMaker
) -> None:
    trainer, fresh = a_trainer(model_folder), a_trainer(model_folder)
    trainer.accumulate([])
    with pytest.raises(TrainingError, match="step 0 has no valid token"):
        trainer.close_step()
    assert trainer.version == 0

    results = []
    for each in (trainer, fresh):
        each.accumulate([random_group(0)])
        results.append(each.close_step())
    assert results[0] == results[1]


def test_a_gradient_that_is_no_number_is_an_error_and_changes_nothing(
    model_folder: Path, random_group: GroupMaker
) -> None:
    trainer, before = a_trainer(model_folder), load_model(model_folder).state_dict()
    trainer.accumulate([random_group(0)])
    next(trainer.model.parameters()).grad.fill_(math.nan)  # type: ignore[union-attr]

    with pytest.raises(TrainingError, match="norm nan"):
        trainer.close_step()
    assert trainer.version == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.model.state_dict().items())


def test_the_gap_is_measured_on_rows_that_the_trainers_version_wrote(model_folder: Path) -> None:
    trainer = a_trainer(model_folder)
    groups = generated(TorchEngine.from_folder(model_folder), [1, 2])
    trainer.accumulate(groups)
    gap = trainer.close_step().logprob_gap

    assert gap is not None
    assert (gap.version, gap.tokens) == (0, sum(group.num_tokens for group in groups))
    assert gap.mean <= gap.largest < 1e-4


def step_with_older_rows(model_folder: Path, root: Path, wrong: bool = False) -> StepResult:
    """A trainer at version 1 trains groups that version 0 wrote; `wrong`: the engine really held other weights."""
    trainer = a_trainer(model_folder, weights=root)
    engine = TorchEngine.from_folder(model_folder)
    groups = generated(engine, [1, 2])
    publish(trainer.model, 0, root)
    trainer.accumulate(groups)
    trainer.close_step()
    if wrong:
        engine.load(root / (new := publish(trainer.model, 1, root)).file, 0, new.digest)
    trainer.accumulate(generated(engine, [5, 4]))
    return trainer.close_step()


def test_without_such_rows_one_group_is_computed_again_under_its_own_weights(
    model_folder: Path, tmp_path: Path
) -> None:
    gap = step_with_older_rows(model_folder, tmp_path).logprob_gap

    assert gap is not None
    assert gap.version == 0
    assert gap.largest < 1e-4


def test_a_generator_with_other_weights_than_it_says_shows_at_once(model_folder: Path, tmp_path: Path) -> None:
    gap = step_with_older_rows(model_folder, tmp_path, wrong=True).logprob_gap

    assert gap is not None
    assert gap.mean > 1e-3


def test_measuring_the_gap_changes_no_bit_of_training(model_folder: Path, tmp_path: Path) -> None:
    measured = step_with_older_rows(model_folder, tmp_path)
    trainer, engine = a_trainer(model_folder), TorchEngine.from_folder(model_folder)
    trainer.accumulate(generated(engine, [1, 2]))
    trainer.close_step()
    trainer.accumulate(generated(engine, [4, 5]))
    plain = trainer.close_step()

    assert plain.logprob_gap is None
    assert (plain.loss, plain.grad_norm) == (measured.loss, measured.grad_norm)


def test_a_divergence_needs_its_reference(model_folder: Path) -> None:
    with pytest.raises(ValueError, match="reference"):
        TorchTrainer(load_model(model_folder), TrainerSettings(max_steps=1, loss=LossSettings(kl=0.1)))


def test_a_half_precision_forward_pass_stays_close_to_the_full_one(
    model_folder: Path, random_group: GroupMaker
) -> None:
    full = a_trainer(model_folder)
    half = TorchTrainer(
        load_model(model_folder),
        TrainerSettings(max_steps=100, dtype="bfloat16", loss=LossSettings(importance_cap=math.inf)),
    )
    for trainer in (full, half):
        trainer.accumulate([random_group(0), random_group(1)])

    assert 0 < distance(gradient_of(full), gradient_of(half)) < 0.1
    assert all(parameter.dtype is torch.float32 for parameter in half.model.parameters())


def test_the_learning_rate_rises_then_falls_to_a_twentieth() -> None:
    settings = OptimizerSettings(lr=1.0, warmup_steps=10)
    rates = [learning_rate(settings, step, 101) for step in range(110)]

    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == 1
    assert rates[55] == pytest.approx(1 - 0.95 / 2)
    assert rates[100:] == pytest.approx([0.05] * 10)
    assert learning_rate(OptimizerSettings(lr=1.0, warmup_steps=0), 0, 1) == 1
    assert learning_rate(OptimizerSettings(lr=1.0, decay="constant"), 90, 100) == 1
