"""Take one rule out of the code at a time, and see the tests go red: ``make mutate``.

    python tests/mutate.py [NAME ...]     all, or those whose name contains one of these words

Each mutation is an exact text and what stands in its place. The tree is copied once; a mutation is put in, its tests
run until the first failure, and it is taken out again. It survives when they all pass: then a rule is written down
that nothing defends, and the command ends with 1.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CORE: Final = ("tests/pipeline/test_section9.py", "tests/pipeline/test_section9_samplers.py", "tests/replay",
               "tests/pipeline/test_scheduling.py", "tests/pipeline/test_decisions.py",
               "tests/pipeline/test_trainer_generations.py", "tests/pipeline/test_run_end.py",
               "tests/test_conformance.py", "tests/pipeline/test_public_faults.py",
               "tests/pipeline/test_simulation.py")  # fmt: skip
LOG: Final = ("tests/events",)
TORN: Final = ("tests/events/test_torn_blocks.py",)
DURABLE: Final = ("tests/events/test_synced_files.py",)
ARCHIVE: Final = ("tests/pipeline/test_archivist.py",)
CHECKPOINT: Final = ("tests/pipeline/training/test_served_checkpoint.py",)
LAUNCH: Final = ("tests/pipeline/processes/test_workers_launch.py",)
LAYOUT: Final = ("tests/pipeline/training/test_megatron_layout.py",)
ROWS: Final = ("tests/pipeline/training/test_rows_of_a_step.py",)
TURNS: Final = ("tests/pipeline/test_conversation.py",)
SHORT: Final = ("tests/pipeline/test_compaction_steps.py",)
WORKERS: Final = ("tests/pipeline/test_workers_trainer.py", "tests/pipeline/test_workers_generator.py")


@dataclass(frozen=True, slots=True)
class Mutation:
    """A rule by its name, where it stands, and what takes its place."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = CORE


MUTATIONS: Final = (
    # the log
    Mutation("epoch check of the append script", "events/append.lua",
             "if meta[1] ~= ARGV[1] or meta[2] ~= ARGV[2] then", "if false then", LOG),
    Mutation("epoch check of the memory log", "events/memory_log.py",
             "if (server.nonce, server.epoch) != (self._nonce, self._epoch):", "if False:", LOG),
    Mutation("previous digest checked at append", "events/append.lua",
             "if offset ~= head + 1 or ARGV[4] ~= meta[4] then", "if offset ~= head + 1 then", LOG),
    Mutation("a torn block is left behind", "events/rewriting.py",
             "if cuts_torn_blocks(connection):", "if True:", TORN),
    Mutation("digest checked at read", "events/codec.py",
             "if digest_of(previous, header, payload) != digest:", "if False:", LOG),
    Mutation("a message's digest is checked", "events/codec.py",
             "if message_digest(packed) != body[:MESSAGE_DIGEST_BYTES]:", "if False:", LOG),
    Mutation("a name is synced after it was given", "events/durable.py",
             "    sync_folder(path.parent)\n", "", DURABLE),
    Mutation("bytes are synced before they get their name", "events/durable.py",
             "            os.fsync(file.fileno())\n", "", DURABLE),
    Mutation("a log behind its mark is refused", "events/mark.py",
             "if head.offset < mark.offset:", "if False:", LOG),
    Mutation("a server must sync each append", "events/server_settings.py",
             '    "appendfsync": "always",', '    "appendfsync": "everysec",', LOG),
    Mutation("the default user keeps its permissions", "events/server_settings.py",
             'if "+@all" not in default_user.get("commands", "") or', 'if False and', LOG),
    Mutation("no server is started without room", "events/server.py",
             "    _require_room(_prepare(run_folder))\n", "", LOG),
    Mutation("an order that is leased is not handed out", "events/take.lua",
             "    if lease then\n", "    if lease and false then\n", LOG),
    Mutation("nothing is cut off while the file is rewritten", "pipeline/archivist.py",
             "if self._cut < state.archived and not self._shortens:", "if self._cut < state.archived:", ARCHIVE),
    Mutation("damaged weights are not shared with a checkpoint", "pipeline/training/weights.py",
             "    if file_digest(target) == digest:", "    if True:", CHECKPOINT),
    # the fold
    Mutation("slot order is that of the latest dispatch", "replay/projector.py",
             "            state.slots += 1\n", "            state.slots += group.slot == 0\n"),
    Mutation("the last answered result is remembered", "replay/projector.py",
             "            state.input = entry.input\n", "            pass\n"),
    Mutation("conservation law", "replay/laws.py",
             "    if state.handed_out != len(state.groups) + state.settled():", "    if False:"),
    Mutation("a fate per ordinal", "replay/invariants.py",
             "        booked = {name: getattr(state, name) for name in SETTLED}", "        booked = counted"),
    Mutation("only an Open after a Finish clears a Stop", "replay/projector.py",
             "            if state.finish is not None:\n                new_terms.pardon(state)",
             "            if True:\n                new_terms.pardon(state)"),
    Mutation("only the counter that ran out starts anew", "replay/new_terms.py",
             "    elif group is not None and group.last_failure is FailureKind.DATA:\n        group.data_failures = 0",
             "    elif group is not None and group.last_failure is FailureKind.DATA:\n"
             "        group.data_failures = group.seed_failures = group.infra_failures = 0"),
    Mutation("lost attempts are counted under one writer epoch", "replay/projector.py",
             "                group.lost_attempts = 0\n", "                pass\n"),
    Mutation("selections are kept back to the oldest checkpoint", "replay/state.py",
             "        return min(self.oldest_kept_checkpoint(), self.standing)",
             "        return min(self.newest_checkpoint() or 0, self.standing)"),
    Mutation("train is cut only below the oldest kept step", "pipeline/outbox.py",
             "train_from = state.oldest_kept_step()", "train_from = state.version"),
    Mutation("train is cut at all", "pipeline/outbox.py",
             "train_from = state.oldest_kept_step()", "train_from = 0"),
    Mutation("checkpoints above the one that is loaded are not whole", "replay/projector.py",
             "            for version in [v for v in state.checkpoints if v > event.version or not event.checkpoint]:",
             "            for version in []:"),
    # decisions
    Mutation("an answer counts only for the order that it echoes", "pipeline/decisions.py",
             '            if group is None or group.order != result.cause:\n                return (Late(what="group"',
             '            if group is None:\n                return (Late(what="group"'),
    Mutation("a step of another generation is late", "pipeline/decisions.py",
             "    trained = result.generation == state.generation and result.step == state.standing",
             "    trained = result.step == state.standing"),
    Mutation("published again when steps trained again reach the version", "pipeline/decisions.py",
             "    if result.digest and (result.step >= state.version or _asked_for(state, result.step + 1)):",
             "    if result.digest and result.step >= state.version:"),
    Mutation("a prompt that stops the run backs off", "pipeline/decisions.py",
             "    return (retry, Stop(reason=StopReason.FAILED,", "    return (Stop(reason=StopReason.FAILED,"),
    Mutation("the newest checkpoint at or below the version", "pipeline/decisions.py",
             "if oldest <= checkpoint.version <= state.version]", "if oldest <= checkpoint.version]"),
    Mutation("a finished spare repays", "pipeline/decisions.py",
             "    repaid = () if group.loan is None else (Repay(loan=group.loan, prompt=group.prompt),)",
             "    repaid = ()"),
    # scheduling
    Mutation("steps take groups only when v = filling = standing", "pipeline/scheduling.py",
             "    settled = state.version == state.filling == state.standing",
             "    settled = state.version == state.filling"),
    Mutation("an empty last selection closes a step that has its target", "pipeline/scheduling.py",
             "    if wanted == 0:\n", "    if wanted == 0:\n        return None\n    if wanted < 0:\n"),
    Mutation("finish only when everything trained is durable", "pipeline/scheduling.py",
             "    if version > 0 and state.newest_checkpoint() != version:", "    if False:"),
    Mutation("the checkpoint is ordered before the first selection", "pipeline/scheduling.py",
             "        if _checkpoint_due(state, policy):\n"
             "            return (Save(version=state.version, reason=SaveReason.PERIODIC),)\n"
             "        chosen = _evict(state, policy) or _fill(state, policy, now)\n"
             "        if chosen is not None:\n            return chosen\n",
             "        chosen = _evict(state, policy) or _fill(state, policy, now)\n"
             "        if chosen is not None:\n            return chosen\n"
             "        if _checkpoint_due(state, policy):\n"
             "            return (Save(version=state.version, reason=SaveReason.PERIODIC),)\n"),
    Mutation("the end of the data waits for what backs off", "pipeline/scheduling.py",
             " and not state.places[Place.IN_FLIGHT] and not state.places[Place.BACKING_OFF]:",
             " and not state.places[Place.IN_FLIGHT]:"),
    Mutation("a partial step is completed", "pipeline/admission.py",
             "    missing = _missing(state, policy)\n", "    missing = 0\n"),
    Mutation("a batch needs room in the buffer", "pipeline/admission.py",
             "    if state.num_open() + policy.prompts_per_step > policy.capacity:", "    if False:"),
    # samplers
    Mutation("a stamped prompt starts within the window", "pipeline/samplers.py",
             "        return group.step is None or group.step <= state.version + self.window", "        return True"),
    Mutation("in_order's gate", "pipeline/samplers.py",
             "        return state.cursor < state.version + self.window\n",
             "        return state.cursor <= state.version + self.window\n"),
    Mutation("what was lost is given back", "pipeline/samplers.py",
             "        given_back = -(-state.lost // state.rules.prompts_per_step)", "        given_back = 0"),
    Mutation("weight_fifo takes fewer when no more can come", "pipeline/samplers.py",
             "        return 1 if ready is not None and ready not in state.ready.unfinished else wanted",
             "        return wanted"),
    Mutation("weight_fifo counts what runs", "pipeline/samplers.py",
             "        if ready is not None and (running is None or ready <= running):",
             "        if ready is not None:"),
    Mutation("capacity of the gated samplers", "pipeline/samplers.py",
             "        return prompts_per_step * (self.window + 1) + prompts_per_step - 1",
             "        return prompts_per_step * (self.window + 1)"),
    Mutation("capacity of windowed", "pipeline/samplers.py",
             "        return 2 * prompts_per_step - 1", "        return prompts_per_step"),
    # loans
    Mutation("the furthest later step lends", "replay/ready.py",
             "        return next(self.of_step(self.by_step[-1][0]))",
             "        return next(self.of_step(self.by_step[0][0]))"),
    Mutation("whoever stands in for a debtor owes the debt", "replay/projector.py",
             "                if loan.spare == event.dropped:",
             "                if False and loan.spare == event.dropped:"),
    Mutation("a slot has so many replacements", "pipeline/dropping.py",
             "group.nth >= policy.failure.max_replacement_attempts", "False"),
    # a change of settings
    Mutation("a new sampler counts nothing as lost", "replay/new_terms.py",
             "    state.lost, state.stamps_made = 0, False\n    for group",
             "    state.stamps_made = False\n    for group"),
    Mutation("what a begun step has taken counts", "pipeline/reconfigure.py",
             "    end = size - taken\n", "    end = size\n"),
    # what the workers are told
    Mutation("saves that no checkpoint answered are said again", "pipeline/outbox.py",
             "        if number >= first_save and number in state.saves and number not in state.checkpoints:",
             "        if False:"),
    Mutation("an ended attempt takes its order along", "pipeline/outbox.py",
             "                ended.append(prompt)\n", "                pass\n"),
    Mutation("results are read before anybody is judged dead", "pipeline/mailbox.py",
             "        return inputs + judgements", "        return judgements + inputs",
             ("tests/pipeline/test_harness_is_checked.py", "tests/pipeline/test_crash_points.py",
              "tests/pipeline/test_simulation.py")),
    Mutation("a rank skips the chunks that it has", "pipeline/training/worker.py",
             "        if chunk.step == self.unreadable_step or (chunk.step, chunk.chunk) < here:",
             "        if chunk.step == self.unreadable_step:", WORKERS),
    # the ranks of one trainer
    Mutation("a rank that hangs ends its trainer", "pipeline/mailbox.py",
             'if key.startswith("rank:") and', 'if key == "rank:0" and', ("tests/pipeline/test_hung_rank.py",)),
    Mutation("ranks end together", "pipeline/launch/local.py",
             "            gone += self._end_ranks(gone[0].worker)\n", "            pass\n", LAUNCH),
    Mutation("a chunk is trained when all ranks can read it", "pipeline/training/worker.py",
             "if not self.all_ready(groups is not None) or groups is None:", "if groups is None:", WORKERS),
    Mutation("a part holds whole heads", "pipeline/training/megatron_layout.py",
             "        return torch.cat([rows for head in list(heads)[rank * own : (rank + 1) * own] for rows in head])",
             "        return torch.cat([torch.cat(p)[rank::parts] for p in zip(*heads, strict=True)])", LAYOUT),
    # context compaction
    Mutation("padding has no valid token", "pipeline/training/batching.py",
             "return 0 if self.padding else self.row.num_written", "return self.row.num_written", ROWS),
    Mutation("every rank gets as many rows", "pipeline/training/batching.py",
             "return [*rows, *[copy] * (-len(rows) % multiple)]", "return [*rows]", ROWS),
    Mutation("what is carried into a new row is not trained again", "pipeline/environments/conversation.py",
             "[False] * (len(self.tokens) - len(self.written))", "[True] * (len(self.tokens) - len(self.written))",
             TURNS),
    Mutation("a turn begins only with room for a reply", "pipeline/environments/conversation.py",
             "return self._window is None or length + self._reserve <= self._window.max_context_tokens",
             "return True", TURNS),
    Mutation("no step loses what nothing replaces", "pipeline/dropping.py",
             "return policy.whole_steps and group.step is not None and _spare(state, policy, group) is None",
             "return False", SHORT),
)  # fmt: skip


def main(words: list[str]) -> int:
    """Run the mutations whose name contains one of the words; returns the exit code."""
    chosen = [m for m in MUTATIONS if not words or any(word in m.name for word in words)]
    survivors = []
    with tempfile.TemporaryDirectory() as place:
        tree = Path(place) / "rollog"
        shutil.copytree(
            ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv", "build", "runs", ".*_cache", "__pycache__")
        )
        for tests in {mutation.tests for mutation in chosen}:
            if _run(tree, tests) != 0:
                raise SystemExit(f"{' '.join(tests)} fail with every rule in place: mend that first.")
        for mutation in chosen:
            red = _is_red(tree, mutation)
            print(f"{'red     ' if red else 'SURVIVES'}  {mutation.name}  ({mutation.file})", flush=True)
            if not red:
                survivors.append(mutation)
    print(f"{len(chosen)} rules taken out, {len(chosen) - len(survivors)} noticed, {len(survivors)} survive")
    return 1 if survivors else 0


def _is_red(tree: Path, mutation: Mutation) -> bool:
    path = tree / mutation.file
    text = path.read_text()
    if text.count(mutation.old) != 1:
        raise SystemExit(
            f"{mutation.name}: its text stands {text.count(mutation.old)} times in {mutation.file}, not once. The code "
            f"was changed: correct MUTATIONS in tests/mutate.py."
        )
    path.write_text(text.replace(mutation.old, mutation.new))
    try:
        return _run(tree, mutation.tests) == 1
    finally:
        path.write_text(text)


def _run(tree: Path, tests: tuple[str, ...]) -> int:
    """pytest's exit code for these tests of the tree: 0 all pass, 1 some fail."""
    # The copy stands before the installed package: `rollog` is a namespace, and the first place that has it wins.
    package = tree / "build" / "mutated"
    package.mkdir(parents=True, exist_ok=True)
    link = package / "rollog"
    if not link.exists():
        link.symlink_to(tree)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not long", *tests],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
