"""The architecture is a test.

Rule 1: imports point one way: events <- replay <- pipeline.
Rule 2: a heavy library is imported only in its folder, and what reads runs works without any of them.
Rule 3: what can happen and what it means never ask for the time or for a random number.
Rule 4: nothing that is read may run code.
Rule 5: files are small and open with their rules.

A rule that needs an exception names the file and the reason in a table below.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("events", "replay", "pipeline")

MAY_IMPORT = {"events": {"events"}, "replay": {"events", "replay"}, "pipeline": {"events", "replay", "pipeline"}}

# Library -> where it may be imported. Reading a run needs none of these.
HOMES = {
    "torch": ("pipeline/generation/", "pipeline/training/"),
    "transformers": ("pipeline/generation/", "pipeline/training/"),
    "tokenizers": ("pipeline/generation/", "pipeline/training/"),
    "accelerate": ("pipeline/generation/", "pipeline/training/"),
    "gguf": ("pipeline/generation/", "pipeline/training/"),
    "vllm": ("pipeline/generation/",),
    "megatron": ("pipeline/training/",),
    "ray": ("pipeline/launch/",),
    "datasets": ("pipeline/",),
    "reasoning_gym": ("pipeline/",),
    "math_verify": ("pipeline/",),
}
GPU_FOLDERS = ("pipeline/generation/", "pipeline/training/")

CLOCKS_AND_CHANCE = {"time", "datetime", "random", "secrets", "uuid"}
TIMELESS = ("events/", "replay/state.py", "replay/projector.py", "replay/invariants.py")
# These talk to a server that answers late or not at all: a deadline needs the monotonic clock. No time that they read
# reaches an entry.
MAY_MEASURE_DEADLINES = {"events/connection.py", "events/server.py"}

RUNS_CODE_WHEN_READ = {"pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"}
FORBIDDEN_CALLS = {
    "eval": "runs text as code",
    "exec": "runs text as code",
    "torch.load": "unpickles; use safetensors",
    "torch.save": "pickles; use safetensors",
    "yaml.load": "builds any object; use yaml.safe_load or omegaconf",
    "time.sleep": "waiting is a question about the state",
    "asyncio.sleep": "waiting is a question about the state",
}

MAX_LINES = 400
# One list, one idea: every event with its fields stands in one file.
MAY_BE_LONG = {"events/vocabulary.py": 500}


@dataclass(frozen=True, slots=True)
class Import:
    """One import, wherever it stands in its file. ``module`` is dotted; a relative import keeps its leading dots."""

    file: str
    line: int
    module: str
    names: tuple[str, ...] = ()

    @property
    def root(self) -> str:
        return self.module.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


@cache
def sources() -> dict[str, ast.Module]:
    """Path from the repository root -> syntax tree, for every Python file of the three folders."""
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_bytes()) for path in paths}


def imports_of(file: str, tree: ast.Module) -> Iterator[Import]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            module = "." * node.level + (node.module or "")
            if module == "rollog":  # `from rollog import events` names the folder in its second half
                yield from (Import(file, node.lineno, f"rollog.{name}") for name in names)
            else:
                yield Import(file, node.lineno, module, names)


def imports() -> list[Import]:
    return [found for file, tree in sources().items() for found in imports_of(file, tree)]


def calls_of(file: str, tree: ast.Module) -> Iterator[tuple[str, str, ast.Call]]:
    """(place, dotted name, node) of every call; a method of something computed keeps its source text as its name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield f"{file}:{node.lineno}", ast.unparse(node.func), node


def test_the_scan_sees_lazy_relative_and_split_imports() -> None:
    tree = ast.parse(
        "def f():\n    import torch.nn\nfrom . import state\nfrom rollog import replay\nfrom time import sleep"
    )

    found = {(each.line, each.module, each.names) for each in imports_of("events/x.py", tree)}

    assert found == {
        (2, "torch.nn", ()),
        (3, ".", ("state",)),
        (4, "rollog.replay", ()),
        (5, "time", ("sleep",)),
    }


def test_the_scan_reads_every_package() -> None:
    packages = {str(Path(file).parent) for file in sources() if file.endswith("__init__.py")}

    assert packages >= {
        "events",
        "replay",
        "pipeline",
        *(f"pipeline/{p}" for p in ("generation", "training", "launch")),
    }


def test_imports_point_one_way() -> None:
    inside = [each for each in imports() if each.root == "rollog"]

    assert inside
    wrong = [each for each in inside if each.module.split(".")[1] not in MAY_IMPORT[each.file.partition("/")[0]]]
    assert [str(each) for each in wrong] == []


def test_the_folders_are_always_named_through_rollog() -> None:
    wrong = [each for each in imports() if each.root == "" or each.root in FOLDERS]

    assert [str(each) for each in wrong] == []


def test_heavy_libraries_stay_in_their_folders() -> None:
    wrong = [each for each in imports() if each.root in HOMES and not each.file.startswith(HOMES[each.root])]
    wrong += [
        each for each in imports() if each.module == "safetensors.torch" and not each.file.startswith(GPU_FOLDERS)
    ]

    assert [str(each) for each in wrong] == []


IMPORT_WITHOUT = """
import importlib, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HEAVY:
            raise ModuleNotFoundError(f"{name} is not part of the base install", name=name)

HEAVY, modules = set(sys.argv[1].split(",")), sys.argv[2].split(",")
sys.meta_path.insert(0, Missing())
for module in modules:
    importlib.import_module(module)
loaded = HEAVY & {name.partition(".")[0] for name in sys.modules}
assert not loaded, loaded
print(len(modules))
"""


def test_the_base_install_imports_without_any_heavy_library() -> None:
    files = [Path(file) for file in sources() if not file.startswith(GPU_FOLDERS)]
    modules = [
        ".".join(("rollog", *file.parent.parts, *(() if file.stem == "__init__" else (file.stem,))))
        for file in files
        if file.stem != "__main__"
    ]

    done = subprocess.run(
        [sys.executable, "-c", IMPORT_WITHOUT, ",".join(HOMES), ",".join(modules)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.stderr == ""
    assert done.stdout.strip() == str(len(modules))


def test_what_can_happen_and_what_it_means_read_no_clock_and_no_random_number() -> None:
    timeless = [each for each in imports() if each.file.startswith(TIMELESS) and each.root in CLOCKS_AND_CHANCE]

    wrong = [each for each in timeless if not (each.file in MAY_MEASURE_DEADLINES and each.root == "time")]
    assert [str(each) for each in wrong] == []


def test_deadlines_are_measured_on_the_monotonic_clock() -> None:
    read = {
        (file, node.attr)
        for file in MAY_MEASURE_DEADLINES & sources().keys()
        for node in ast.walk(sources()[file])
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "time"
    }
    split = [
        str(each) for each in imports() if each.file in MAY_MEASURE_DEADLINES and each.root == "time" and each.names
    ]

    assert {attribute for _, attribute in read} <= {"monotonic"}
    assert split == []


def test_nothing_that_is_read_can_run_code() -> None:
    wrong = [str(each) for each in imports() if each.root in RUNS_CODE_WHEN_READ]
    for file, tree in sources().items():
        for place, _, call in calls_of(file, tree):
            wrong += [f"{place} passes {word.arg}" for word in call.keywords if word.arg in ("allow_pickle", "shell")]

    assert wrong == []


@pytest.mark.parametrize(("name", "reason"), FORBIDDEN_CALLS.items())
def test_a_forbidden_call_is_nowhere(name: str, reason: str) -> None:
    called = [place for file, tree in sources().items() for place, call, _ in calls_of(file, tree) if call == name]
    module, _, function = name.rpartition(".")
    split = [str(each) for each in imports() if module and each.module == module and function in each.names]

    assert called + split == [], reason


def test_every_file_is_short_enough_to_hold_one_idea() -> None:
    folders = [ROOT / folder for folder in (*FOLDERS, "tests")]
    paths = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".lua")]

    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in paths}

    assert lengths
    assert {file: n for file, n in lengths.items() if n > MAY_BE_LONG.get(file, MAX_LINES)} == {}


def test_every_file_opens_with_its_rules() -> None:
    assert [file for file, tree in sources().items() if not ast.get_docstring(tree)] == []
