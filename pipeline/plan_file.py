"""From a YAML file to plain settings: ``defaults:`` beneath, ``a.b=c`` overrides on top, nothing checked yet.

Rule 1: ``defaults: [base, other]`` names files beside this one (with or without ``.yaml``). Later ones win over earlier
        ones, the file's own settings win over all of them, and overrides win over the file.
Rule 2: a group of settings is merged name by name; anything else is replaced.
Rule 3: YAML holds plain values only: OmegaConf's loader makes no objects and refuses a key that stands twice.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rollog.pipeline.errors import PlanError

NAMES_CODE: Final = ("reward", "environment.play", "failure.filter", "sampler.target")
"""Settings that may name a function or a class in a file."""


def read(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """The merged settings as nested plain dicts, interpolations resolved. PlanError names the file or the override."""
    merged = _read(path, ())
    for override in overrides:
        merged = _with_override(merged, override)
    try:
        settings = OmegaConf.to_container(merged, resolve=True)
    except OmegaConfBaseException as error:
        raise PlanError(f"{path}: {_first_line(error)}. Correct the ${{...}} that names it.") from error
    assert isinstance(settings, dict)
    return {str(name): value for name, value in settings.items()}


def parse_override(override: str) -> tuple[str, Any]:
    """``a.b=c`` as the dotted path and its value, read as YAML. PlanError when it is neither."""
    settings = _with_override(OmegaConf.create({}), override)
    path = override.partition("=")[0].strip()
    value = OmegaConf.select(settings, path)
    return path, OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def anchored(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A copy of ``settings`` (nested) in which every ``file.py:name`` is absolute; it was relative to ``folder``."""
    found = {name: dict(value) if isinstance(value, Mapping) else value for name, value in settings.items()}
    for path in NAMES_CODE:
        *above, name = path.split(".")
        section = found.get(above[0]) if above else found
        if isinstance(section, dict) and name in section:
            section[name] = anchored_name(section[name], folder)
    return found


def anchored_name(spec: Any, folder: Path) -> Any:
    """``file.py:name`` with the file made absolute; anything else as it is.

    Absolute, because workers and later resumes start from other folders.
    """
    place, _, name = spec.rpartition(":") if isinstance(spec, str) else ("", "", "")
    return f"{(folder.resolve() / place).resolve()}:{name}" if place.endswith(".py") else spec


def _read(path: Path, above: tuple[Path, ...]) -> DictConfig:
    """One file over its defaults. ``above``: the files whose defaults led here, to see a circle."""
    if path.resolve() in above:
        raise PlanError(f"{path}: its defaults lead back to itself. Remove one of the `defaults:` entries.")
    try:
        own = OmegaConf.load(path)
    except FileNotFoundError as error:
        named = f" (named in the defaults of {above[-1]})" if above else ""
        raise PlanError(f"{path}: no such settings file{named}. Check the path.") from error
    except (OSError, UnicodeDecodeError, YAMLError, OmegaConfBaseException) as error:
        raise PlanError(f"{path}: not readable as YAML: {error}") from error
    if not isinstance(own, DictConfig) or any(not isinstance(name, str) for name in own):
        raise PlanError(f"{path}: must hold settings by name, such as `run: demo`.")
    defaults = own.pop("defaults", [])
    names = OmegaConf.to_container(defaults) if isinstance(defaults, ListConfig) else defaults
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise PlanError(f"{path}: defaults={names!r} must be a list of files beside it, such as `defaults: [base]`.")
    result = OmegaConf.create({})
    for name in names:
        file = name if str(name).endswith((".yaml", ".yml")) else f"{name}.yaml"
        result = _merge(result, _read(path.parent / file, (*above, path.resolve())), str(path))
    return _merge(result, own, str(path))


def _with_override(settings: DictConfig, override: str) -> DictConfig:
    """``a.b=c``; the value is read as YAML, so ``null``, ``[1, 2]`` and ``{x: 1}`` mean what they mean in a file."""
    name, equals, _ = override.partition("=")
    if not equals or not name.strip() or not all(name.split(".")):
        raise PlanError(f"override {override!r}: write it as name=value, for instance grpo.prompts_per_step=16.")
    try:
        parsed = OmegaConf.from_dotlist([override])
    except (YAMLError, OmegaConfBaseException, ValueError) as error:
        raise PlanError(f"override {override!r}: its value is not readable: {_first_line(error)}. Quote it.") from error
    return _merge(settings, parsed, f"override {override!r}")


def _merge(below: DictConfig, above: DictConfig, origin: str) -> DictConfig:
    try:
        merged = OmegaConf.merge(below, above)
    except (OmegaConfBaseException, TypeError, ValueError) as error:
        raise PlanError(f"{origin}: cannot be put over the settings below it: {_first_line(error)}.") from error
    assert isinstance(merged, DictConfig)
    return merged


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
