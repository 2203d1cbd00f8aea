"""A run from its command to its end: server, log, controller, workers, and the order in which they go.

    checks --> folder --> server --> log --> controller.run() --> workers leave --> tail sealed --> server ends

Rule 1: what can be refused is refused before anything is written.
Rule 2: a fresh start is the recovery of an empty log: ``train`` and ``resume`` end in the same ``drive``.
Rule 3: whoever is fenced leaves everything as it is: workers and server are another controller's now.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from rollog.events.errors import Fenced
from rollog.events.reading import segments_of
from rollog.events.vocabulary import FinishReason, Start
from rollog.pipeline.archivist import EVERY, Archivist
from rollog.pipeline.checkpoint_store import CheckpointStore
from rollog.pipeline.config import Plan, changes_on_resume, resumed_plan
from rollog.pipeline.controller import Controller, Observer
from rollog.pipeline.environments.environment_child import environment_of
from rollog.pipeline.environments.filters import rule_of
from rollog.pipeline.environments.reward_child import RewardChild
from rollog.pipeline.errors import ModelError, PlanError
from rollog.pipeline.halves import sweep_at_start
from rollog.pipeline.inputs import StopAsked
from rollog.pipeline.launch.hosts import host_of
from rollog.pipeline.launch.local import Crew, LocalLauncher, threads_of
from rollog.pipeline.loader import Loader
from rollog.pipeline.log_server import LogServer
from rollog.pipeline.losses import Loss, loss_of, set_aside
from rollog.pipeline.machine import describe, version_of
from rollog.pipeline.mailbox import Mailbox
from rollog.pipeline.observers import Observers, PrunesCheckpoints, SavesSnapshots, WritesSettings
from rollog.pipeline.policy import Policy
from rollog.pipeline.reconfigure import configure, drop, refuse_change
from rollog.pipeline.run_folder import RunFolder
from rollog.pipeline.training.megatron_checks import check_megatron
from rollog.replay import snapshots
from rollog.replay.openings import last_machine
from rollog.replay.state import State

EXIT_CODES: Final[Mapping[FinishReason, int]] = {
    FinishReason.MAX_STEPS: 0,
    FinishReason.EXHAUSTED: 0,
    FinishReason.STOPPED: 75,
    FinishReason.FAILED: 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A run that can be driven: everything about it has been checked."""

    folder: RunFolder
    plan: Plan
    loader: Loader
    policy: Policy
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings that a resume changes."""
    drops: Sequence[int] = ()
    """Prompts that a resume gives up."""
    loss: Loss | None = None
    """What a log that lost its tail no longer holds, accepted by a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a run ended. ``state`` is the fold of its whole log."""

    reason: FinishReason
    state: State

    @property
    def exit_code(self) -> int:
        """What the command line ends with."""
        return EXIT_CODES[self.reason]


def check(plan: Plan, slate: tuple[int, int] = (0, 0)) -> tuple[Loader, Policy]:
    """Refuse what cannot work: model, data, bounds, reward. Raises ``ModelError``, ``DataError``, ``PlanError``.

    ``slate``: step and ordinal from which batches are counted.
    """
    folder = Path(plan.model.path)
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"model.path={folder}: {'no config.json in it' if folder.is_dir() else 'no such folder'}. Name a folder in "
            f"the Hugging Face layout (config.json, *.safetensors, tokenizer)."
        )
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"model.path={folder}: no *.safetensors in it. Save the model again with save_pretrained.")
    if plan.training.engine == "megatron":
        check_megatron(plan)
    loader = Loader.open(plan.data, seed=plan.seed, prompts_per_step=plan.grpo.prompts_per_step)
    policy = Policy.of(plan, loader, slate)
    with (
        RewardChild(plan.reward, plan.flow.reward_timeout_s, rule=rule_of(plan.failure.filter)),
        environment_of(plan.environment),
    ):
        return loader, policy


def prepare_resume(
    folder: RunFolder, server: LogServer, state: State, overrides: Mapping[str, Any], drops: Sequence[int] = ()
) -> Ready:
    """A run to go on with, ``overrides`` (dotted paths) put over its recorded settings, without the prompts ``drops``.

    Raises ``PlanError`` for what a resume may not change, ``LogBehindCheckpoint``.
    """
    recorded = state.settings or folder.plan().settings()
    wanted = resumed_plan(recorded, overrides)
    changes = changes_on_resume(recorded, wanted)
    loader, policy = check(wanted, state.slate)
    if state.offset and loader.fingerprint != state.dataset:
        raise PlanError(
            f"data.path={wanted.data.path}: its rows are not those that run {wanted.run} began with (fingerprint "
            f"{loader.fingerprint[:12]}, recorded {state.dataset[:12]}). Put the old rows back, or use `rollog fork`."
        )
    store, loss = CheckpointStore(folder.checkpoints, server.log, server.log_id), None
    if state.offset and server.accept_loss:
        loss = loss_of(folder, server.log, store)
    elif state.offset:  # a log that nobody has opened yet has no id, and nothing can be behind it
        store.on_this_log()
    if state.rules is not None:
        refuse_change(state, changes, policy.sampler)
    for prompt in drops:
        drop(state, policy, prompt)  # refused now rather than when the pen is taken
    return Ready(folder=folder, plan=wanted, loader=loader, policy=policy, changes=changes, drops=drops, loss=loss)


def drive(
    ready: Ready,
    server: LogServer,
    observer: Observer,
    clock: Callable[[], float],
    listen: Callable[[Callable[[StopAsked], None]], None] = lambda ask: None,
    crew: Crew | None = None,
) -> End:
    """Run it to its end. ``listen`` is told how to ask for a stop. The server stays; the workers do not.

    Raises ``Fenced``, ``RunFailed`` and other errors of the log; the workers are ended then, but not when fenced.
    """
    plan, folder, log = ready.plan, ready.folder, server.log
    crew = crew or Crew(lease_s=plan.flow.lease_s, max_steps=ready.policy.max_steps, ranks=plan.training.ranks)
    sweep_at_start(folder)
    folder.write_plan(plan)
    if ready.loss is not None:
        set_aside(ready.loss)
    store = CheckpointStore(folder.checkpoints, log, server.log_id)
    launcher = LocalLauncher(log, server.log_id, folder, crew, host=host_of(plan, folder, server.log_id))
    every = EVERY if plan.log.archive_every is None else plan.log.archive_every
    snapshots_every = min(snapshots.EVERY, max(1, every // 4)) if every else snapshots.EVERY
    saver = SavesSnapshots(folder.snapshots, log, snapshots_every)
    archivist = Archivist(log, segments_of(folder.path), folder.snapshots, server.log_id, every=every)
    mailbox = Mailbox(log, launcher, store, plan.flow, archivist)
    listen(mailbox.signal)
    controller = Controller(
        log=log,
        mailbox=mailbox,
        policy=ready.policy,
        start=Start(
            run=plan.run,
            config=plan.settings(),
            dataset=ready.loader.fingerprint,
            seed=plan.seed,
            num_rows=ready.loader.num_rows,
        ),
        clock=clock,
        nonce=lambda: secrets.token_hex(16),
        version=version_of("rollog"),
        machine=machine_of(plan),
        observer=Observers((observer, PrunesCheckpoints(store), saver, WritesSettings(folder))),
        recall=lambda: snapshots.newest(folder.snapshots, log),
        changes=[
            lambda state: configure(state, ready.changes),
            *(partial(drop, policy=ready.policy, prompt=prompt) for prompt in ready.drops),
        ],
    )
    if ready.changes:
        launcher.end_earlier()
    try:
        reason = controller.run()
    except Fenced:
        raise
    except BaseException:
        launcher.close(kill=True)
        raise
    store.prune(controller.state)
    launcher.close(kill=False)
    archivist.close()
    return End(reason=reason, state=controller.state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A run as it lies there: the fold of its log, and the machine that its last controller ran on."""

    state: State
    machine: Mapping[str, Any]


def look(server: LogServer) -> Found:
    """What the log holds now: a snapshot and what stands after it.

    Raises ``LostTail`` when the mark beside it knows of more; an accepted loss leaves at least a log.
    """
    if not server.accept_loss or server.log.log_id() is None:
        server.log.check_mark()
    offset = server.log.head().offset
    return Found(state=snapshots.at(server.snapshots, server.log, offset), machine=last_machine(server.log, offset))


def machine_of(plan: Plan) -> dict[str, Any]:
    """What Open says of this machine under this plan."""
    threads = threads_of(plan.generation.workers, plan.training.ranks)
    return describe(threads=threads, ranks=plan.training.ranks)
