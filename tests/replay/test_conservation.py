"""The coverage table adds up, and does not when a prompt is lost or counted twice."""

from rollog.events.log import Entry
from rollog.events.vocabulary import Select, Train
from rollog.pipeline.simulate import Outcome, Script, simulate
from rollog.pipeline.simulation.histories import draw, play, small_plan
from rollog.replay.conservation import Conservation, table


def rows_of(outcome: Outcome, entries: list[Entry] | None = None) -> list[dict[str, int]]:
    book = Conservation()
    for entry in entries or outcome.world.server.log().read():
        book.follow(entry)
    return book.rows(outcome.state, outcome.world.plan.data.epochs)


def test_every_prompt_of_every_random_history_is_accounted_for() -> None:
    for seed in range(12):
        outcome = play(draw(seed))
        for row in rows_of(outcome):
            assert row["unaccounted"] == 0, f"seed {seed}: {row}"
        assert sum(row["trained"] for row in rows_of(outcome)) == outcome.state.trained


def test_a_training_that_the_log_does_not_hold_leaves_prompts_unaccounted() -> None:
    outcome = simulate(small_plan(), 12, Script())
    entries = [entry for entry in outcome.world.server.log().read() if not isinstance(entry.events[0], Train)]

    (row,) = rows_of(outcome, entries)

    assert (row["trained"], row["unaccounted"]) == (0, 12)


def test_prompts_that_are_trained_twice_show_as_less_than_nothing() -> None:
    outcome = simulate(small_plan(), 12, Script())
    entries = list(outcome.world.server.log().read())
    again = [entry for entry in entries if isinstance(entry.events[0], (Select, Train))]

    (row,) = rows_of(outcome, [*entries, *again])

    assert (row["trained"], row["unaccounted"]) == (24, -12)


def test_the_table_has_a_sum_when_there_are_several_epochs() -> None:
    row = {"epoch": 0, "prompts": 1500, "trained": 1500}

    assert table([row]) == ["epoch  prompts  trained", "    0    1,500    1,500"]
    assert table([row, {**row, "epoch": 1}])[-1] == "  all    3,000    3,000"
