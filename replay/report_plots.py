"""The plots of ``rollog report``: each a function from the model's tables to one SVG, drawn by matplotlib.

Rule 1: a plot shows the numbers that stand beside it on the page, and no others.
Rule 2: the same model gives the same bytes: no date, no random ids, no state of the process (``pyplot`` is not used).
Rule 3: colours are those of Okabe and Ito, which colour-blind readers can tell apart (https://jfly.uni-koeln.de/color).
Rule 4: matplotlib is imported when something is drawn; the base install has it not.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rollog.replay.errors import ReplayError
from rollog.replay.fates import Fate
from rollog.replay.report_tables import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_IN: Final = 9.0
HEIGHT_IN: Final = 2.6
CELLS_A_LINE: Final = 100
LEAST_LINES: Final = 4
"""The map of prompts is at least so high."""
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PINK = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
)  # fmt: skip
NOTHING: Final = "#EEEEEE"
COLOURS: Final = {
    Fate.NEVER_SEEN: NOTHING, Fate.TRAINED: SKY, Fate.OPEN: YELLOW, Fate.FILTERED: ORANGE, Fate.EVICTED: PINK,
    Fate.DROPPED: BLACK, Fate.UNACCOUNTED: RED,
}  # fmt: skip


class NoMatplotlib(ReplayError):
    """The plots cannot be drawn here."""

    exit_code = 2


def drawn(draw: Callable[["Axes"], None], height_in: float = HEIGHT_IN) -> bytes:
    """One plot as SVG. Raises ``NoMatplotlib``."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise NoMatplotlib(f"rollog report draws with matplotlib, which is not here ({error}): "
                           f"pip install 'rollog[analysis]'") from None  # fmt: skip
    out = io.BytesIO()
    with rc_context({
        "svg.hashsalt": "rollog", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9,
        "axes.spines.top": False, "axes.spines.right": False,
    }):  # fmt: skip
        figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
        draw(figure.add_subplot())
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def epochs(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """The prompts of every epoch by what became of them."""

    def draw(axes: "Axes") -> None:
        places = range(len(rows))
        left = [0] * len(rows)
        for fate in (
            Fate.TRAINED,
            Fate.DROPPED,
            Fate.FILTERED,
            Fate.EVICTED,
            Fate.OPEN,
            Fate.UNACCOUNTED,
            Fate.NEVER_SEEN,
        ):
            counts = [row[fate.name.lower()] for row in rows]
            axes.barh(places, counts, left=left, color=COLOURS[fate], edgecolor="white", label=_words(fate))
            left = [before + count for before, count in zip(left, counts, strict=True)]
        axes.set_yticks(places, [str(row["epoch"]) for row in rows])
        axes.invert_yaxis()
        axes.set(xlabel="prompts", ylabel="epoch")
        axes.legend(ncols=7, loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False)

    return drawn(draw, 1.2 + 0.28 * len(rows))


def prompts(cells: Sequence[Fate], prompts_per_cell: int) -> bytes:
    """One cell a prompt, in the order in which prompts are handed out."""
    lines = max(LEAST_LINES, -(-len(cells) // CELLS_A_LINE))

    def draw(axes: "Axes") -> None:
        from matplotlib.colors import to_rgb
        from matplotlib.patches import Patch

        colours = [to_rgb(COLOURS[cell]) for cell in cells]
        colours += [(1.0, 1.0, 1.0)] * (lines * CELLS_A_LINE - len(cells))
        axes.imshow(
            [colours[at : at + CELLS_A_LINE] for at in range(0, len(colours), CELLS_A_LINE)],
            aspect="auto",
            interpolation="nearest",
            extent=(0, CELLS_A_LINE * prompts_per_cell, lines * CELLS_A_LINE * prompts_per_cell, 0),
        )
        axes.set(xlabel="prompt", ylabel="first of the line")
        marks = [Patch(facecolor=COLOURS[fate], label=_words(fate)) for fate in Fate if fate in set(cells)]
        axes.legend(handles=marks, ncols=7, loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False)

    return drawn(draw, min(8.0, 1.2 + 0.14 * lines))


def over_steps(points: Sequence[Point], *names: str, label: str) -> bytes:
    """Fields of the points over the steps, each with a colour and a mark of its own."""

    def draw(axes: "Axes") -> None:
        steps = [point.first for point in points]
        for name, colour, mark in zip(names, (BLUE, RED, GREEN), "o^s", strict=False):
            values = [getattr(point, name) for point in points]
            axes.plot(steps, values, color=colour, marker=mark, markersize=3, linewidth=1, label=_words(name))
        axes.set(xlabel="step", ylabel=label)
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        if len(names) > 1:
            axes.legend(frameon=False)

    return drawn(draw)


def bars(counts: Mapping[Any, int], *, x: str, y: str, colour: str = BLUE) -> bytes:
    """One bar a key, with its number."""

    def draw(axes: "Axes") -> None:
        places = range(len(counts))
        shown = axes.bar(places, list(counts.values()), color=colour, width=0.6)
        axes.bar_label(shown, labels=[f"{count:,}" for count in counts.values()], padding=2)
        axes.set_xticks(places, [_words(key) for key in counts])
        axes.margins(y=0.15)
        axes.set(xlabel=x, ylabel=y)

    return drawn(draw)


def _words(name: Any) -> str:
    return str(name.name if isinstance(name, Fate) else name).lower().replace("_", " ")
