"""Code of the user's that a setting names: ``module:name`` or ``file.py:name``.

Rule 1: loading runs the module, so it happens where the code is needed and nowhere else.
Rule 2: every way in which that can fail is a PlanError that begins with the setting.
Rule 3: modules are also looked for in the folder that rollog is started in, after everything that is installed.
"""

import difflib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from rollog.pipeline.errors import PlanError


def load(setting: str, spec: str, kind: str) -> Any:
    """What ``spec`` names. For messages: the dotted path that holds it, and its ``kind``, such as function.

    Raises ``PlanError``.
    """
    said = f"{setting}={spec}"
    place, colon, name = spec.rpartition(":")
    if not colon or not place or not name:
        raise PlanError(f"{said}: write it as module:{kind} or file.py:{kind}.")
    try:
        module = _file(place, setting, said) if place.endswith(".py") else _module(place)
    except PlanError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(f"{error.name}.")):
            raise PlanError(
                f"{said}: no module named {error.name}. Install it, put it into the folder that rollog is started in, "
                f"or write file.py:{kind}."
            ) from error
        raise PlanError(f"{said}: its module needs {error.name}, which is not installed.") from error
    except Exception as error:
        raise PlanError(f"{said}: its module raises {type(error).__name__}: {error}. Mend it.") from error
    if not hasattr(module, name):
        near = difflib.get_close_matches(name, [known for known in vars(module) if not known.startswith("_")], n=1)
        advice = f"Did you mean {near[0]}?" if near else "Correct the name."
        raise PlanError(f"{said}: {place} has no {name}. {advice}")
    return getattr(module, name)


def _module(place: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    return importlib.import_module(place)


def _file(place: str, setting: str, said: str) -> ModuleType:
    path = Path(place)
    if not path.is_file():
        raise PlanError(f"{said}: no file {path}. The path is relative to the settings file.")
    found = importlib.util.spec_from_file_location(f"rollog_{setting.replace('.', '_')}_{path.stem}", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    # Dataclasses and typing look their module up by name.
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module
