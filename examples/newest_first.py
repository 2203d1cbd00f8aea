"""A sampler of one's own: groups of the newest weights are trained first, and a bounded number of batches runs.

    sampler: {name: custom, target: "newest_first.py:NewestFirst", depth: 2, max_age: 3}

It is made anew from the state and its settings for every question, so there is nothing in it that a crash could lose.
Which questions there are, and what is answered for a class that does not answer them, stands in
``pipeline/custom_sampler.py``.
"""


class NewestFirst:
    """At most ``depth`` batches beyond the first are outstanding; no group is trained more than ``max_age`` late."""

    def __init__(self, state, depth=1, max_age=1):
        self.state, self.depth, self.oldest = state, depth, max(0, state.version - max_age)

    def gate_open(self):
        """Batches of which a prompt was lost are given back, or the run would wait for groups that never come."""
        given_back = -(-self.state.lost // self.state.rules.prompts_per_step)
        return self.state.cursor - given_back < self.state.version + self.depth

    def eligible(self):
        """Newest weights first; in the order of dispatch among those of the same."""
        ready = self.state.ready
        for born in reversed(list(ready.weights_between(self.oldest, self.state.version))):
            yield from ready.of_weight(born)

    def too_old(self):
        """Nothing keeps a group that is never taken."""
        return self.state.ready.older_than(self.oldest)

    def capacity(self, n):
        """As ready_first: depth + 1 batches, and what is left of one of which a prompt was lost."""
        return n * (self.depth + 1) + n - 1
