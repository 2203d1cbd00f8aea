"""After which inputs a run cannot go on, so that nothing is decided any more and a person must act.

Not a Stop: a Stop ends with a checkpoint, and these are the cases in which the trainer cannot write one.
"""

from rollog.events.messages import BlobUnreadable
from rollog.events.vocabulary import StopReason
from rollog.pipeline.inputs import Answer, Input, Stalled, TrainerGone
from rollog.pipeline.stalls import progress
from rollog.replay.state import State

MAX_RESUMES_IN_VAIN = 5
"""Trainer generations that may end one after the other, under one controller, with no new step and no newer
checkpoint. What is trained *again* does not count: a disk that is full at the checkpoint would end each of them at the
same place."""


def fatal(state: State, event: Input) -> str | None:
    """Why the run cannot go on after this input, and what to do; None when it can."""
    match event:
        case Answer(result=BlobUnreadable(generation=generation) as blob) if generation == state.generation:
            return (
                f"step {blob.step} cannot be trained: the blob of prompt {blob.prompt} is unreadable ({blob.error}). "
                f"Restore the file, then resume."
            )
        case Stalled(progress=seen, idle_s=idle_s) if seen == progress(state) and state.stopping is not None:
            if state.stopping.reason is StopReason.FAILED:
                return (
                    f"the failed run cannot end: what is recorded is neither trained nor saved since {idle_s:.0f} s. "
                    f"It failed by this: {state.stopping.detail}. The trainer's log (logs/rank-0.log in the run's "
                    f"folder) may say more; then resume."
                )
        case TrainerGone(generation=generation, reason=reason) if generation == state.generation:
            if state.resumes_in_vain >= MAX_RESUMES_IN_VAIN:
                return (
                    f"the trainer ended {state.resumes_in_vain + 1} times without a new step or a newer checkpoint, "
                    f"at last: {reason}. Its log (logs/rank-0.log in the run's folder) says why; then resume."
                )
            usable = [c.version for c in event.whole if state.oldest_kept_checkpoint() <= c.version <= state.version]
            if not usable and not all(state.step(number).closed for number in range(state.version)):
                return (
                    f"no checkpoint from version {state.oldest_kept_checkpoint()} to {state.version} is whole, and the "
                    f"selections of earlier steps are forgotten. Restore one under checkpoints/, then resume."
                )
    return None
