"""Resumes a trainer in a process of its own, trains, and prints the digest of all that it holds.

python resumed_trainer.py MODEL CHECKPOINT GROUPS...
"""

import sys
from pathlib import Path

from rollog.pipeline.durable import bytes_digest
from rollog.pipeline.rollout_codec import decode
from rollog.pipeline.training.grpo_trainer import TrainerSettings
from rollog.pipeline.training.models import deterministic, load_model
from rollog.pipeline.training.optimizer import OptimizerSettings
from rollog.pipeline.training.torch_trainer import TorchTrainer

SETTINGS = TrainerSettings(max_steps=20, optimizer=OptimizerSettings(lr=1e-3, warmup_steps=4, weight_decay=0.1))


def digest_of(trainer: TorchTrainer) -> str:
    """Weights and optimizer state, bit for bit."""
    state = [tensor.numpy().tobytes() for tensor in trainer.model.state_dict().values()]
    for parameter in trainer.model.parameters():
        state += [tensor.numpy().tobytes() for _, tensor in sorted(trainer.optimizer.state[parameter].items())]
    return bytes_digest(b"".join(state))


def train(trainer: TorchTrainer, files: list[Path]) -> None:
    """One step for each file, a group each."""
    for file in files:
        trainer.accumulate([decode(file.read_bytes())])
        trainer.close_step()


def main() -> None:
    deterministic(threads=1)
    model, checkpoint, *files = map(Path, sys.argv[1:])
    trainer = TorchTrainer(load_model(model), SETTINGS)
    trainer.read_checkpoint(checkpoint)
    train(trainer, files)
    print(trainer.version, digest_of(trainer))


if __name__ == "__main__":
    main()
