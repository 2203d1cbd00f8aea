"""Why, asked of everything in random histories: the lives of all prompts, steps and loans agree with the audit.

A failing history is named by its seed; ``rollog simulate --histories 1 --seed N`` plays it again.
"""

from collections import Counter
from typing import Any

import pytest

from rollog.events.log import Entry
from rollog.pipeline.simulation.histories import draw, play
from rollog.replay.lineage import parse_subject
from rollog.replay.projector import fold
from rollog.replay.state import Place, State
from rollog.replay.status import status
from rollog.replay.tally import follow_all

SETTLED = ("trained", "dropped", "filtered", "evicted")


def answers(entries: list[Entry], subjects: list[str]) -> dict[str, dict[str, Any]]:
    """What is told of each subject, all in one pass."""
    stories = {subject: parse_subject(subject).story() for subject in subjects}
    state = State()
    for entry in entries:
        for story in stories.values():
            story.follow(state, entry)
        fold(state, entry)
    told = {subject: story.told(state) for subject, story in stories.items()}
    assert all(answer.known and answer.verdict and stories[subject].facts for subject, answer in told.items())
    return {subject: dict(answer.details) for subject, answer in told.items()}


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 110), marks=pytest.mark.long)], ids=str)
def test_the_lives_of_all_prompts_steps_and_loans_agree_with_the_audit(seeds: range) -> None:
    origins: Counter[str] = Counter()
    for seed in seeds:
        outcome = play(draw(seed))
        entries, after = list(outcome.world.server.log().read()), outcome.state
        trained = {step: prompts for step, prompts in outcome.steps.items() if step < after.version}
        numbers = {"prompt": range(after.handed_out), "step": trained, "loan": range(after.loans_made)}
        told = answers(entries, [f"{kind}:{number}" for kind, all_ in numbers.items() for number in all_])
        lives = [life for subject, life in told.items() if subject.startswith("prompt")]
        model = status(*follow_all(entries))

        fates = {place.value: after.count(place) for place in Place} | {name: getattr(after, name) for name in SETTLED}
        assert Counter(life["fate"] for life in lives) == Counter({name: n for name, n in fates.items() if n}), seed
        for cost, total in (("attempts", model["attempts"]["sent"]), ("tokens_trained", model["tokens"]["trained"])):
            assert sum(life[cost] for life in lives) == total, f"seed {seed}: {cost}"
        assert sum(life["tokens_generated"] for life in lives) == model["tokens"]["generated"], seed
        for step, prompts in trained.items():
            made = told[f"step:{step}"]
            assert made["missing"] == 0 or (after.exhausted and step == after.version - 1), f"seed {seed} step {step}"
            assert sorted(each["prompt"] for each in made["groups"]) == sorted(prompts), f"seed {seed} step {step}"
            for each in made["groups"]:
                life = told[f"prompt:{each['prompt']}"]
                assert (life["step"], life["staleness"]) == (step, each["staleness"]), f"seed {seed} step {step}"
                origins[each["origin"]] += 1
        open_loans = [life["loan"] for subject, life in told.items() if subject.startswith("loan") and life["open"]]
        assert open_loans == sorted(after.loans), seed
    assert origins.keys() == {"stamped", "taken", "spare", "borrowed"}
