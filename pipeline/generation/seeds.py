"""The seed of a rollout: a hash of what it is, never of when or where it was made.

Rule 1: the same (run seed, ordinal, rollout, number of data failures) gives the same seed on every machine and version.
Rule 2: a lost or infra retry keeps the number of data failures, so it draws the same tokens again under the same
weights.
Rule 3: a data retry raises that number, so it draws new ones: the same failing answer would only fail again.
"""

import struct
from hashlib import blake2b

# Seeds fill 63 bits: every generator that we know takes a signed 64-bit seed that is not negative.
SEED_BITS = 63


def rollout_seed(*, run_seed: int, ordinal: int, rollout: int, data_failures: int) -> int:
    """The seed of one rollout, in [0, 2**63).

    `run_seed` is any signed 64-bit integer; `ordinal` names the prompt, `rollout` is the place of the rollout in its
    group (0, 1, ...), `data_failures` counts the failures of kind data that this ordinal had so far.
    """
    if not -(2**63) <= run_seed < 2**63:
        raise ValueError(f"run seed {run_seed} does not fit into 64 bits; choose one between -2**63 and 2**63 - 1")
    if min(ordinal, rollout, data_failures) < 0:
        raise ValueError(f"ordinal {ordinal}, rollout {rollout} and data failures {data_failures} must not be negative")
    what = struct.pack("<qQQQ", run_seed, ordinal, rollout, data_failures)
    digest = blake2b(what, digest_size=8, person=b"rollog-seed").digest()
    return int.from_bytes(digest, "little") >> (64 - SEED_BITS)


def group_seeds(*, run_seed: int, ordinal: int, rollouts: int, data_failures: int) -> tuple[int, ...]:
    """The seeds of a whole group: one for each of its `rollouts`, in their order."""
    return tuple(
        rollout_seed(run_seed=run_seed, ordinal=ordinal, rollout=rollout, data_failures=data_failures)
        for rollout in range(rollouts)
    )


def turn_seed(seed: int, turn: int) -> int:
    """The seed of one turn (0, 1, ...) of a rollout of several, in [0, 2**63). `seed` is the rollout's."""
    digest = blake2b(struct.pack("<QQ", seed, turn), digest_size=8, person=b"rollog-turn").digest()
    return int.from_bytes(digest, "little") >> (64 - SEED_BITS)
