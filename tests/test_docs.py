"""The documentation is a test.

Rule 1: every verb of the command line is documented, and no verb is documented that does not exist.
Rule 2: every make target that a document names exists, and continuous integration runs the README's two commands.
Rule 3: a fenced block that is marked `bash ci` is run as it stands: all of them in order, in one folder in which
`make quickstart` has just ended, with the environment's commands on the PATH.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(document: Path, language: str) -> list[str]:
    """The text of every fenced block whose info string is exactly ``language``."""
    return re.findall(rf"^```{re.escape(language)}\n(.*?)^```$", document.read_text(), flags=re.MULTILINE | re.DOTALL)


def code(document: Path) -> list[str]:
    """Every line of the fenced blocks, comments aside, and every span between back quotes."""
    text = document.read_text()
    fenced = r"^```.*?\n(.*?)^```$"
    lines = [
        line.partition("#")[0].removeprefix("$ ")
        for block in re.findall(fenced, text, flags=re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]
    return lines + re.findall(r"`([^`\n]+)`", re.sub(fenced, "", text, flags=re.MULTILINE | re.DOTALL))


def verbs() -> set[str]:
    from rollog.pipeline.cli import app

    command = typer.main.get_command(app)
    return {name for name, verb in command.commands.items() if not verb.hidden}


def test_every_verb_is_in_the_readme_and_every_verb_of_the_readme_exists() -> None:
    documented = set(re.findall(r"^\| `rollog (\w+)", README.read_text(), flags=re.MULTILINE))

    assert documented == verbs()


def test_every_verb_that_a_document_shows_exists() -> None:
    shown = {
        (document.name, verb)
        for document in DOCUMENTS
        for line in code(document)
        for verb in re.findall(r"(?:^|\d )rollog ([a-z]+)\b", line)
    }

    assert shown
    assert {(name, verb) for name, verb in shown if verb not in verbs()} == set()


def test_every_make_target_that_a_document_names_exists() -> None:
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = {
        target
        for document in DOCUMENTS
        for target in re.findall(r"(?:^|`)make ([a-z][a-z0-9-]*)", document.read_text(), flags=re.MULTILINE)
    }

    assert named >= {"quickstart", "test", "test-long"}
    assert named - targets == set()


def test_every_test_that_a_document_names_exists() -> None:
    named = [
        (path, name)
        for document in DOCUMENTS
        for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", document.read_text())
    ]

    assert named
    assert [(path, name) for path, name in named if f"def {name}(" not in (ROOT / path).read_text()] == []


def test_continuous_integration_runs_the_commands_of_the_readme() -> None:
    commands = {line.partition("#")[0].strip() for block in blocks(README, "bash") for line in block.splitlines()}
    run = (ROOT / ".ci" / "run").read_text()

    assert {"make quickstart", "make test"} <= commands
    assert [command for command in commands if command.startswith("make ") and command not in run] == []


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_marked_commands_of_the_documents_run_after_a_quickstart(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    marked = [block for document in DOCUMENTS for block in blocks(document, "bash ci")]
    script = "".join(["python -m rollog.pipeline.quickstart\n", *marked])
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=840,
    )

    assert marked
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
