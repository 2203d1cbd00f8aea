"""The plan: the settings of a run as one frozen value, from a YAML file to the log's Start entry and back.

    file + its defaults + a.b=c  --load_plan-->  Plan  --settings()-->  Start.config  --Plan.from_settings-->  Plan

Rule 1: a plan that exists is right: ranges and contradictions are refused when it is made.
Rule 2: functions of the run receive the section they need, never the whole plan.
Rule 3: what was derived is not recorded; it follows from the settings (``plan_bounds``) at any time.
Rule 4: a password never enters the recorded settings.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, ValidationError, model_validator

from rollog.events.server_url import SECRETS
from rollog.pipeline import compaction_checks, plan_bounds, plan_checks, plan_file
from rollog.pipeline.engine_settings import Training
from rollog.pipeline.errors import PlanError
from rollog.pipeline.settings import (
    CheckpointSettings,
    Compaction,
    Count,
    Data,
    Determinism,
    Environment,
    Failure,
    Flow,
    Generation,
    Grpo,
    LogSettings,
    Model,
    Named,
    Optimizer,
    Sampler,
    Section,
    Track,
)

MAY_CHANGE: Final = (
    "sampler.",
    "failure.",
    "flow.",
    "environment.timeout_s",
    "checkpoint.",
    "generation.workers",
    "training.ranks",
    "grpo.max_steps",
    "log.archive_every",
    "log.redis",
    "launch",
)
"""What a resume may change: sampler, failure policy, capacity and deadlines, save period, worker counts, end target,
where the log's server is (it must hold this log), where workers run. A name that ends in a dot means its section."""


class Plan(Section):
    """All settings of a run. Make one with ``load_plan`` or ``Plan.from_settings``, which explain mistakes."""

    run: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    """The run's name and its folder under runs/: letters, digits, dot, underscore and hyphen."""
    seed: Count = 0
    """Fixes the order of the rows and the sampling of every answer."""
    model: Model
    data: Data
    reward: Named = "rollog.pipeline.environments.rewards:exact"
    """``module:function`` or ``file.py:function`` (relative to the settings file) with the signature
    ``(prompt, completion, answer, **row) -> float``."""
    environment: Environment = Environment()
    grpo: Grpo = Grpo()
    optimizer: Optimizer = Optimizer()
    sampler: Sampler = Sampler()
    failure: Failure = Failure()
    flow: Flow = Flow()
    generation: Generation = Generation()
    training: Training = Training()
    compaction: Compaction = Compaction()
    determinism: Determinism = "off"
    """off: a step's prompts are fixed, its bits are not; pinned: the same final weights bit for bit, killed or not."""
    checkpoint: CheckpointSettings = CheckpointSettings()
    log: LogSettings = LogSettings()
    launch: Literal["local", "ray"] = "local"
    """local: workers are processes on this machine. ray: on the nodes of a Ray cluster, the one at RAY_ADDRESS or a
    private one; the run's folder lies on a filesystem that they share."""
    track: Track = Track()

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        plan_checks.check(self)
        return self

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], origin: str = "settings") -> "Plan":
        """The plan that ``settings`` (nested, plain) describe; what they lack takes its default.

        PlanError names every wrong setting by its dotted path; ``origin`` says where the settings stand.
        """
        plan_checks.refuse_later(settings, origin)
        compaction_checks.refuse_unfixed_batches(settings, origin)
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            raise PlanError("\n".join(f"{origin}: {line}" for line in _explain(error))) from error

    def settings(self) -> dict[str, Any]:
        """Every setting as nested dicts of JSON values, defaults included: what ``Start.config`` holds."""
        settings = self.model_dump(mode="json")
        settings["log"]["redis"] = without_password(self.log.redis)
        return settings

    def derived(self, num_rows: int, slate: tuple[int, int] = (0, 0)) -> plan_bounds.Derived:
        """The bounds that follow for a data set of ``num_rows`` rows. PlanError when it cannot fill one step.

        ``slate``: step and ordinal from which batches are counted.
        """
        return plan_bounds.derive(self, num_rows, slate)

    @property
    def max_buffered_groups(self) -> int:
        """``flow.max_buffered_groups``, derived when null."""
        return plan_bounds.buffer_capacity(self)

    @property
    def min_groups_for_streaming(self) -> int:
        """``flow.min_groups_for_streaming``, derived when null."""
        return plan_bounds.streaming_minimum(self)

    @property
    def step_floor(self) -> int:
        """Fewest groups that a step may train."""
        return plan_bounds.step_floor(self)


def load_plan(path: str | Path, overrides: Sequence[str] = ()) -> Plan:
    """The plan in the YAML file ``path``, with its ``defaults:`` beneath it and ``a.b=c`` overrides on top.

    PlanError says which setting is wrong, by its dotted path, and what to do.
    """
    settings = plan_file.read(Path(path), overrides)
    return Plan.from_settings(plan_file.anchored(settings, Path(path).resolve().parent), origin=str(path))


def resumed_plan(recorded: Mapping[str, Any], overrides: Mapping[str, Any]) -> Plan:
    """The plan to go on with: ``recorded`` settings with a resume's ``overrides`` (dotted paths) on top.

    Another sampler begins with its own defaults: what the old one was told means nothing to it. Files are relative to
    the working directory. PlanError says what is wrong.
    """
    wanted = {
        path: plan_file.anchored_name(value, Path()) if path in plan_file.NAMES_CODE else value
        for path, value in overrides.items()
    }
    before, sampler = dict(recorded), dict(recorded.get("sampler") or {})
    for name in ("name", "target"):
        if wanted.get(f"sampler.{name}", sampler.get(name)) != sampler.get(name):
            before["sampler"] = {"name": sampler.get("name")}
    return Plan.from_settings(apply_changes(before, wanted), origin="resumed settings")


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted path -> new value of every setting that differs; None where ``new`` lacks it."""
    before = dict(_leaves({name: value for name, value in old.items() if new.get(name) != value}))
    after = dict(_leaves({name: value for name, value in new.items() if old.get(name) != value}))
    return {
        path: after.get(path) for path in sorted(before.keys() | after.keys()) if before.get(path) != after.get(path)
    }


def apply_changes(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``settings`` with the values of a Configure event's ``changes`` (dotted paths) put in; a copy."""
    result = dict(settings)
    for path, value in changes.items():
        name, _, rest = path.partition(".")
        result[name] = apply_changes(result.get(name) or {}, {rest: value}) if rest else value
    return result


def may_change(path: str) -> bool:
    """Whether a resume may change the setting at this dotted path; anything else needs a fork."""
    return any(path.startswith(known) if known.endswith(".") else path == known for known in MAY_CHANGE)


def changes_on_resume(recorded: Mapping[str, Any], wanted: Plan) -> dict[str, Any]:
    """What Configure holds when a run with the ``recorded`` settings is resumed as ``wanted``; empty: nothing changed.

    PlanError names each difference that a resume cannot carry.
    """
    old = Plan.from_settings(recorded, origin="recorded settings").settings()
    new = wanted.settings()
    before, found = dict(_leaves(old)), changes(old, new)
    refused = {path: value for path, value in found.items() if not may_change(path)}
    if refused:
        listed = "; ".join(f"{path} was {before.get(path)!r} and is now {value!r}" for path, value in refused.items())
        raise PlanError(
            f"run {old['run']} cannot be resumed with other settings here: {listed}. Take the old values back, or use "
            f"`rollog fork` for a run that has the new ones from this point on."
        )
    pinned = [path for path in found if wanted.determinism == "pinned" and path.startswith("sampler.")]
    if pinned:
        path = pinned[0]
        raise PlanError(
            f"determinism=pinned cannot go with a change of {path} from {before[path]!r} to {found[path]!r}: prompts "
            f"would be answered with other weights. Take the old value back or use `rollog fork`."
        )
    return found


def without_password(url: str) -> str:
    """The server's address without user and password, so that it can be recorded and shown."""
    if url == "embedded":
        return url
    parts = urlsplit(url)
    query = "&".join(item for item in parts.query.split("&") if item and item.partition("=")[0] not in SECRETS)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}{'?' if query else ''}{query}"


def _leaves(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of every value that is not itself a group of settings."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _explain(error: ValidationError) -> Iterator[str]:
    """One line for each mistake: dotted path, value, what to do."""
    known = dict(_fields(Plan))
    for found in error.errors(include_url=False):
        path = ".".join(str(part) for part in found["loc"])
        value = found["input"]
        # The alternatives of a union stand in pydantic's path and not in ours.
        setting = re.sub(r"\.(constrained-|literal\[).*", "", path)
        match found["type"]:
            case "extra_forbidden":
                yield f"{path}: unknown setting.{_suggestion(path)}"
            case "unknown_names":
                for name in found["ctx"]["names"]:
                    yield f"{path}.{name}: unknown setting.{_suggestion(f'{path}.{name}')}"
            case "missing":
                yield f"{path}: missing. Set it in the file, or give {path}=... on the command line."
            case "value_error":
                yield str(found["ctx"]["error"])
            case "model_type" | "model_attributes_type":
                yield f"{path}={value!r}: this is a group of settings. Write {path}: {{name: value, ...}}."
            case _:
                message = f"{setting}={value!r}: {found['msg'][0].lower()}{found['msg'][1:]}."
                yield f"{message} It means: {known[setting]}" if known.get(setting) else message


def _suggestion(path: str) -> str:
    """Did-you-mean: the nearest name in the same section, else the same or nearest name anywhere."""
    known = dict(_fields(Plan))
    section, _, name = path.rpartition(".")
    siblings = [other for other in known if other.rpartition(".")[0] == section]
    near = difflib.get_close_matches(path, siblings, n=1, cutoff=0.75)
    near = near or [other for other in known if other.rpartition(".")[2] == name]
    near = near or [other for other in known if difflib.get_close_matches(name, [other.rpartition(".")[2]], 1, 0.8)]
    if near:
        return f" Did you mean {near[0]}?"
    names = ", ".join(other.rpartition(".")[2] for other in siblings)
    return f" {section or 'A plan'} has: {names}." if siblings else " Remove it."


def _fields(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, str]]:
    """(dotted path, description) of every setting."""
    for name, field in model.model_fields.items():
        yield f"{above}{name}", field.description or ""
        for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from _fields(part, f"{above}{name}.")
