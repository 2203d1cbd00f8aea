"""The plan: what it refuses and how it says so, what it derives, what a resume may change."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollog.pipeline import plan_checks
from rollog.pipeline.config import (
    Plan,
    _fields,
    apply_changes,
    changes,
    changes_on_resume,
    load_plan,
    may_change,
    resumed_plan,
    without_password,
)
from rollog.pipeline.errors import PlanError

EXAMPLES = Path(__file__).parents[2] / "examples"


def plan(**sections: Any) -> Plan:
    return Plan.from_settings({"run": "demo", "model": {"path": "m"}, "data": {"path": "d.jsonl"}, **sections})


def write(folder: Path, text: str, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


MINIMAL = "run: demo\nmodel: {path: m}\ndata: {path: d.jsonl}\n"


# --- the names and defaults that people read --------------------------------------------------------------------------


def test_the_defaults_are_those_of_the_documentation() -> None:
    settings = plan().settings()
    assert settings["grpo"] == {
        "prompts_per_step": 16, "rollouts_per_prompt": 8, "max_steps": None, "clip_low": 0.2, "clip_high": 0.28,
        "kl": 0.0, "importance_cap": 2.0, "advantage": "group_norm",
    }  # fmt: skip
    assert settings["failure"] == {
        "max_infra_attempts": 5, "max_data_attempts": 2, "max_lost_attempts": 20, "backoff_base_s": 1,
        "backoff_max_s": 30, "max_skipped_prompts": 0, "max_consecutive_dropped_prompts": 0,
        "on_dropped_prompt": "shrink", "max_replacement_attempts": 1, "reserve_prompts": 1,
        "min_step_fraction": 0.9, "evicted_prompts": "drop", "max_requeues": 1, "filter": "none",
    }  # fmt: skip
    assert settings["sampler"] == {"name": "in_order", "lookahead": 1}
    assert settings["optimizer"]["betas"] == [0.9, 0.99]
    assert settings["checkpoint"] == {"every_steps": 10, "keep_last": 2}
    assert settings["log"].items() >= {"redis": "embedded", "durability": "synced"}.items()
    assert (settings["seed"], settings["determinism"], settings["launch"]) == (0, "off", "local")
    assert settings["reward"] == "rollog.pipeline.environments.rewards:exact"


def test_every_setting_says_what_it_is() -> None:
    silent = [path for path, text in _fields(Plan) if not text and "." in path]
    assert silent == []


def test_the_quickstart_example_is_a_plan() -> None:
    quickstart = load_plan(EXAMPLES / "quickstart.yaml")
    assert quickstart.derived(1000).max_steps == 400
    assert quickstart.optimizer.lr == 5e-4


# --- from the file ----------------------------------------------------------------------------------------------------


def test_overrides_win_over_the_file_and_the_file_over_its_defaults(tmp_path: Path) -> None:
    write(tmp_path, "seed: 1\ngrpo: {prompts_per_step: 2, rollouts_per_prompt: 4}\noptimizer: {lr: 1.0}\n", "base.yaml")
    write(tmp_path, "optimizer: {lr: 0.5}\n", "more.yml")
    path = write(tmp_path, f"defaults: [base, more.yml]\n{MINIMAL}grpo: {{prompts_per_step: 3}}\n")
    loaded = load_plan(path, ["seed=7", "optimizer.betas=[0.8, 0.9]"])
    assert (loaded.seed, loaded.grpo.prompts_per_step, loaded.grpo.rollouts_per_prompt) == (7, 3, 4)
    assert (loaded.optimizer.lr, loaded.optimizer.betas) == (0.5, (0.8, 0.9))


def test_defaults_that_lead_back_to_themselves_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "defaults: [run]\n", "base.yaml")
    with pytest.raises(PlanError, match="lead back to itself"):
        load_plan(write(tmp_path, f"defaults: [base]\n{MINIMAL}"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("run: [1\n", "not readable as YAML"),
        ("run: a\nrun: b\n", "duplicate key"),
        ("- run\n", "must hold settings by name"),
        ("defaults: {base: 1}\n", "must be a list of files"),
        ("defaults: [nowhere]\n", r"nowhere.yaml: no such settings file \(named in the defaults of"),
        (f"{MINIMAL}reward: ${{missing}}\n", "'missing' not found"),
        ("", "run: missing"),
    ],
)
def test_a_broken_file_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(PlanError, match=says) as raised:
        load_plan(write(tmp_path, text))
    assert str(tmp_path) in str(raised.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no such settings file"):
        load_plan(tmp_path / "none.yaml")


def test_off_means_off_with_and_without_quotes(tmp_path: Path) -> None:
    for written in ("off", "'off'"):
        assert load_plan(write(tmp_path, f"{MINIMAL}determinism: {written}\n")).determinism == "off"
    assert load_plan(write(tmp_path, MINIMAL), ["determinism=off"]).determinism == "off"


def test_files_of_filters_and_samplers_are_relative_to_the_settings_file_too(tmp_path: Path) -> None:
    text = f"{MINIMAL}failure: {{filter: 'mine.py:useful'}}\nsampler: {{name: custom, target: 'mine.py:Mine'}}\n"
    loaded = load_plan(write(tmp_path, text))
    assert loaded.failure.filter == f"{tmp_path / 'mine.py'}:useful"
    assert loaded.sampler.target == f"{tmp_path / 'mine.py'}:Mine"


def test_a_reward_file_is_relative_to_the_settings_file(tmp_path: Path) -> None:
    path = write(tmp_path, f"{MINIMAL}reward: mine.py:score\n")
    assert load_plan(path).reward == f"{tmp_path / 'mine.py'}:score"
    assert load_plan(path, ["reward=a.b:c"]).reward == "a.b:c"


# --- what is refused, and what the message says -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("grpo.promts_per_step=3", r"grpo\.promts_per_step: unknown setting\. Did you mean grpo\.prompts_per_step\?"),
        ("lr=3", r"lr: unknown setting\. Did you mean optimizer\.lr\?"),
        ("data.task.sise=3", r"data\.task\.sise: unknown setting\. Did you mean data\.task\.size\?"),
        ("sampler.lookahed=3", r"sampler\.lookahed: unknown setting\. Did you mean sampler\.lookahead\?"),
        ("quux=1", r"quux: unknown setting\. A plan has: run, seed,"),
        ("grpo.max_steps=1.5", r"grpo\.max_steps=1\.5: input should be a valid integer\. It means: Optimizer steps"),
        ("seed=abc", r"seed='abc': input should be a valid integer"),
        ("seed=true", r"seed=True: input should be a valid integer"),
        ("grpo.max_steps=0", r"grpo\.max_steps=0: input should be greater than or equal to 1"),
        ("optimizer.betas=[1, 0.5]", r"optimizer\.betas\.0=1: input should be less than 1"),
        ("failure.max_skipped_prompts=lots", r"failure\.max_skipped_prompts='lots': input should be"),
        ("sampler=3", r"sampler=3: this is a group of settings"),
        ("run=a/b", r"run='a/b': .*letters, digits"),
        ("log.redis=localhost", r"log\.redis: this names no server"),
        ("training.ranks=2", r"training\.ranks=2 .* cannot go with training\.engine=torch, which is one process"),
        ("training.ranks=0", r"training\.ranks=0: input should be greater than or equal to 1"),
        ("grpo.prompts_per_step", "write it as name=value"),
        ("=3", "write it as name=value"),
        ("grpo.kl=[1", "its value is not readable"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_path(tmp_path: Path, override: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        load_plan(write(tmp_path, MINIMAL), [override])


def test_every_mistake_is_listed_at_once(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as raised:
        load_plan(write(tmp_path, MINIMAL), ["seed=x", "grpo.kl=-1", "nope=1"])
    assert [line.split(": ")[1].split("=")[0] for line in str(raised.value).splitlines()] == ["seed", "grpo.kl", "nope"]


@pytest.mark.parametrize(
    ("path", "value"), [(path, value) for path, (values, _) in plan_checks.LATER.items() for value in values]
)
def test_what_a_later_release_brings_is_refused_by_name(path: str, value: Any) -> None:
    settings = apply_changes(plan().settings(), {path: value})
    with pytest.raises(PlanError, match=rf"{re.escape(path)}={str(value).lower()} comes with a later release.*Use "):
        Plan.from_settings(settings)


# --- what is derived --------------------------------------------------------------------------------------------------


@given(n=st.integers(2, 200), k=st.integers(0, 8))
def test_in_order_needs_room_for_the_step_being_filled_and_k_more(n: int, k: int) -> None:
    sections = {"grpo": {"prompts_per_step": n}, "sampler": {"lookahead": k}}
    assert plan(**sections).max_buffered_groups == n * (k + 1)
    with pytest.raises(PlanError, match="the run would wait for itself"):
        plan(**sections, flow={"max_buffered_groups": n * (k + 1) - 1})


@pytest.mark.parametrize(
    ("n", "fraction", "floor"), [(128, 0.9, 116), (4, 0.9, 4), (9, 0.9, 9), (10, 0.9, 9), (100, 0.55, 56), (7, 0.01, 1)]
)
def test_the_floor_is_the_rounded_up_double_product(n: int, fraction: float, floor: int) -> None:
    assert plan(grpo={"prompts_per_step": n}, failure={"min_step_fraction": fraction}).step_floor == floor


@given(n=st.integers(1, 50), rows=st.integers(1, 500), epochs=st.integers(1, 5), asked=st.none() | st.integers(1, 2000))
def test_steps_are_whole_and_end_with_the_data_or_before(n: int, rows: int, epochs: int, asked: int | None) -> None:
    made = plan(grpo={"prompts_per_step": n, "max_steps": asked}, data={"path": "d.jsonl", "epochs": epochs})
    if rows * epochs < n:
        with pytest.raises(PlanError, match="fewer than the"):
            made.derived(rows)
        return
    derived = made.derived(rows)
    whole = rows * epochs // n
    assert derived.max_steps == (whole if asked is None else min(asked, whole))
    assert derived.left + whole * n == rows * epochs
    assert 0 <= derived.left < n


@pytest.mark.parametrize(
    ("sampler", "needed"),
    [
        ({"name": "in_order", "lookahead": 2}, 12),
        ({"name": "ready_first", "max_staleness": 2}, 15),
        ({"name": "weight_fifo", "max_staleness": 0}, 7),
        ({"name": "windowed", "max_staleness": 9}, 7),
    ],
)
def test_each_sampler_gets_the_room_that_it_needs_and_no_less(sampler: dict[str, Any], needed: int) -> None:
    sections = {"grpo": {"prompts_per_step": 4}, "sampler": sampler}
    assert plan(**sections).max_buffered_groups == needed
    with pytest.raises(PlanError, match=rf"max_buffered_groups={needed - 1} .*sampler\.name={sampler['name']} with "):
        plan(**sections, flow={"max_buffered_groups": needed - 1})


def test_the_derivation_can_be_printed() -> None:
    text = "\n".join(plan().derived(100).lines())
    for says in (
        "grpo.max_steps: 6 ",
        "flow.max_buffered_groups: 32 (sampler.name=in_order with sampler.lookahead=1 needs 32)",
        "never handed out: 4 at the end",
        "smallest step: 15 groups",
    ):
        assert says in text


# --- what the log records, and what a resume may change ---------------------------------------------------------------


def test_recorded_settings_are_json_and_give_the_same_plan_back() -> None:
    made = plan(data={"path": "reasoning_gym:chain_sum", "task": {"options": {"min_terms": 2}}}, determinism="pinned")
    assert Plan.from_settings(json.loads(json.dumps(made.settings()))) == made


def test_a_plan_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        plan().seed = 3


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("embedded", "embedded"),
        ("redis://user:secret@host:6379/0", "redis://host:6379/0"),
        ("rediss://:secret@host/1?password=secret&db=2", "rediss://host/1?db=2"),
        ("unix://:secret@/run/redis.sock?db=1", "unix:///run/redis.sock?db=1"),
        (
            "rediss://:secret@host/1?ssl_certfile=/c.pem&ssl_keyfile=/c.key&ssl_password=secret",
            "rediss://host/1?ssl_certfile=/c.pem&ssl_keyfile=/c.key",
        ),
    ],
)
def test_a_password_is_never_recorded(url: str, shown: str) -> None:
    assert without_password(url) == shown
    made = plan(log={"redis": url})
    assert made.log.redis == url
    assert "secret" not in json.dumps(made.settings())


@pytest.mark.parametrize(
    "url",
    ["redis://u:secret@", "redis://:secret/x@host", "http://:secret@host", "redis://:secret@host:port", "unix://", "x"],
)
def test_an_address_that_names_no_server_is_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(PlanError, match=r"log\.redis: this names no server\. Write embedded, redis://") as refused:
        plan(log={"redis": url})
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("ssl_cert_reqs=none", "'ssl_cert_reqs' cannot stand in a server's URL"),
        ("%70assword=secret", "'%70assword' cannot stand in a server's URL"),
        ("ssl_ca_certs=ca.pem", "ssl_ca_certs=ca.pem is not an absolute path"),
    ],
)
def test_an_address_with_an_option_that_it_cannot_have_is_refused(option: str, says: str) -> None:
    with pytest.raises(PlanError, match=rf"log\.redis: .*{says}") as refused:
        plan(log={"redis": f"rediss://:secret@host/0?{option}"})
    assert "secret" not in str(refused.value)


def test_a_resume_may_change_how_the_run_goes_and_nothing_of_what_it_is() -> None:
    assert all(
        may_change(path)
        for path in ("sampler.lookahead", "failure.filter", "flow.lease_s", "checkpoint.every_steps",
                     "generation.workers", "grpo.max_steps", "flow.max_buffered_groups", "log.redis", "launch")
    )  # fmt: skip
    assert not any(
        may_change(path)
        for path in ("seed", "run", "model.path", "data.path", "data.epochs", "reward", "grpo.prompts_per_step",
                     "optimizer.lr", "determinism", "generation.engine", "log.durability")
    )  # fmt: skip


def test_a_resume_records_only_what_changed() -> None:
    recorded = plan().settings()
    assert changes_on_resume(recorded, plan()) == {}
    found = changes_on_resume(recorded, plan(sampler={"lookahead": 2}, grpo={"max_steps": 9}))
    assert found == {"sampler.lookahead": 2, "grpo.max_steps": 9}
    assert Plan.from_settings(apply_changes(recorded, found)) == plan(sampler={"lookahead": 2}, grpo={"max_steps": 9})


def test_settings_that_an_older_release_did_not_know_are_no_change() -> None:
    recorded = plan().settings()
    del recorded["flow"]["reward_timeout_s"]
    assert changes_on_resume(recorded, plan()) == {}


def test_a_resume_that_would_be_another_run_names_the_difference_and_the_fork() -> None:
    with pytest.raises(
        PlanError, match=r"optimizer\.lr was 1e-06 and is now 0\.1; seed was 0 and is now 3.*`rollog fork`"
    ):
        changes_on_resume(plan().settings(), plan(seed=3, optimizer={"lr": 0.1}))


def test_another_sampler_on_resume_begins_with_its_own_defaults_and_what_is_given_for_it() -> None:
    recorded = plan(sampler={"lookahead": 3}).settings()
    wanted = resumed_plan(recorded, {"sampler.name": "windowed", "sampler.freshest_first": True})
    found = changes_on_resume(recorded, wanted)
    assert found == {
        "sampler.freshest_first": True,
        "sampler.lookahead": None,
        "sampler.max_staleness": 1,
        "sampler.name": "windowed",
    }
    now = apply_changes(recorded, found)
    assert Plan.from_settings(now) == wanted
    back = resumed_plan(now, {"sampler.name": "in_order", "sampler.lookahead": 2})
    assert back.settings()["sampler"] == {"name": "in_order", "lookahead": 2}
    assert resumed_plan(now, {"sampler.max_staleness": 4}).sampler.freshest_first
    with pytest.raises(PlanError, match=r"resumed settings: sampler\.lookahead=3 would do nothing"):
        resumed_plan(now, {"sampler.lookahead": 3})


def test_a_pinned_run_keeps_its_lookahead() -> None:
    with pytest.raises(
        PlanError, match=r"determinism=pinned cannot go with a change of sampler\.lookahead from 1 to 2"
    ):
        changes_on_resume(plan(determinism="pinned").settings(), plan(determinism="pinned", sampler={"lookahead": 2}))


def test_changes_go_both_ways() -> None:
    old, new = {"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 4}, "e": {}}
    assert changes(old, new) == {"a.c": 4, "d": None, "e": {}}
    assert apply_changes(old, {"a.c": 4, "x.y": 1}) == {"a": {"b": 1, "c": 4}, "d": 3, "x": {"y": 1}}
    assert old["a"] == {"b": 1, "c": 2}
