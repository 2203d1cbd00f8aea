"""The command ``rollog``: verbs that run something here, verbs that read in ``rollog.replay.cli``.

Rule 1: data on stdout, progress and messages on stderr.
Rule 2: an error that a person can mend is one message and an exit code, never a traceback.
"""

from typing import Final

import typer

from rollog.pipeline.prompt_sources import source_of_prompts
from rollog.pipeline.run_verbs import register as register_run_verbs
from rollog.pipeline.scaling import register as register_scale
from rollog.pipeline.simulation.verb import register as register_simulate
from rollog.pipeline.time_verbs import register as register_time_verbs
from rollog.replay import cli as reading

ABOUT: Final = """Asynchronous GRPO on a log: every prompt of every epoch is in exactly one place, at every offset.

train, resume, stop, scale and ps run something; status, log, show, state, why, coverage, report and verify read."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help=ABOUT,
    context_settings={"obj": source_of_prompts},
)
reading.register(app)
register_time_verbs(app)
register_simulate(app)
register_run_verbs(app)
register_scale(app)


def main() -> None:
    """The entry point of the command."""
    app()


if __name__ == "__main__":
    main()
