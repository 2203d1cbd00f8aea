"""How a verb that runs something speaks: data on stdout, everything else on stderr.

Rule 1: ``-q`` leaves errors and data; ``-v`` says every entry as it lands.
Rule 2: ``-o json`` and its like give one object at the verb's end, whatever the progress on stderr was.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rollog.events.log import Entry
from rollog.replay import options
from rollog.replay.output import Format, written
from rollog.replay.screens import oneline
from rollog.replay.wording import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """What the person asked for. ``no_color``: also for progress on a terminal."""

    format: Format = Format.TABLE
    quiet: bool = False
    verbose: bool = False
    no_color: bool = False

    @classmethod
    def of(cls, output: Format, json: bool, quiet: bool, verbose: bool, no_color: bool = False) -> "Manner":
        """The options as they stand on the command line; ``-q`` wins over ``-v``."""
        format = Format.JSON if json else output
        return cls(format=format, quiet=quiet, verbose=verbose and not quiet, no_color=no_color)

    def say(self, message: str) -> None:
        """A message."""
        if not self.quiet:
            print(message, file=sys.stderr)

    def entry(self, entry: Entry) -> None:
        """An entry that has just landed, for ``-v``."""
        if self.verbose:
            self.say(printable(oneline(entry)))

    def answer(self, model: Mapping[str, Any], table: Iterable[str] = (), rows: str | None = None) -> None:
        """The verb's data: the table for people, else the model."""
        options.write(table if self.format is Format.TABLE else written(model, self.format, rows=rows))
