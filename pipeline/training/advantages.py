"""How much better than its siblings a rollout was."""

import math
from collections.abc import Sequence

# Keeps the quotient finite when rewards differ by rounding only.
EPSILON = 1e-6


def group_norm(rewards: Sequence[float]) -> list[float]:
    """One advantage per rollout: reward minus the group's mean, divided by the group's standard deviation.

    (r_i - mean(r)) / std(r), section 4.1.2 of DeepSeekMath, https://arxiv.org/abs/2402.03300; std over the whole group
    (not a sample's). A group whose rewards are all equal says nothing: every advantage is exactly 0.
    """
    if not rewards:
        raise ValueError("a group needs at least one reward")
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    return [(reward - mean) / (deviation + EPSILON) for reward in rewards]
