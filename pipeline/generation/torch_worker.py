"""What a generator is made of: the engine that the plan names, and the run's way to ask it."""

from pathlib import Path
from typing import cast

from transformers import AutoTokenizer

from rollog.pipeline.config import Plan
from rollog.pipeline.environments.conversation import Window
from rollog.pipeline.environments.environment_child import EnvironmentChild
from rollog.pipeline.environments.reward_child import RewardChild
from rollog.pipeline.environments.single_turn import SingleTurn, Tokenizer
from rollog.pipeline.errors import ModelError
from rollog.pipeline.generation.attempts import Asking, Attempts, SingleTurnAttempts, stop_tokens
from rollog.pipeline.generation.conversations import MultiTurnAttempts
from rollog.pipeline.generation.engine import Engine
from rollog.pipeline.loader import Loader


def make_engine(plan: Plan) -> Engine:
    """The engine with the model that the run began with."""
    folder = Path(plan.model.path)
    match plan.generation.engine:
        case "torch":
            from rollog.pipeline.generation.torch_engine import TorchEngine

            return TorchEngine.from_folder(folder, dtype=plan.model.dtype)
        case "vllm":
            from rollog.pipeline.generation.vllm_start import VllmTerms, start_engine

            return start_engine(folder, VllmTerms.of(plan))


def make_attempts(plan: Plan, engine: Engine, reward: RewardChild, environment: EnvironmentChild | None) -> Attempts:
    """The run's data, its tokenizer, and how it asks the engine: in one turn, or as ``environment`` wishes."""
    folder = Path(plan.model.path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"the tokenizer in {folder} cannot be loaded: {error}") from error
    asking = Asking(
        run_seed=plan.seed,
        rollouts=plan.grpo.rollouts_per_prompt,
        max_tokens=plan.model.max_tokens,
        temperature=plan.model.temperature,
        stop_tokens=stop_tokens(folder, tokenizer.eos_token_id),
    )
    rows = Loader.open(plan.data, seed=plan.seed, prompts_per_step=plan.grpo.prompts_per_step)
    asks = SingleTurn(cast(Tokenizer, tokenizer), plan.model.chat_template, plan.model.system_prompt)
    if environment is None:
        return SingleTurnAttempts(engine, asking, rows, asks, reward)
    return MultiTurnAttempts(engine, asking, rows, asks, environment, reward, Window.of(plan.compaction))
