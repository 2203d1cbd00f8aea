"""The user's filter rule (``failure.filter``): which finished groups are worth training.

Rule 1: a rule is ``(prompt, completions, rewards, **row) -> bool`` and says whether the group is REFUSED. It sees the
        row's prompt, what the model answered as texts, their rewards in the same order, and every other column of the
        row by its name (the answer among them).
Rule 2: it answers with a bool. It may raise; that and any other answer fail the attempt as the data's fault, as with a
        reward, and name the rule and the row.
Rule 3: it depends on its arguments alone: a group that is generated again with the same tokens is judged again.
"""

import inspect
from collections.abc import Callable

from rollog.pipeline import named_code
from rollog.pipeline.errors import PlanError

Rule = Callable[..., bool]

BUILT_IN = ("none", "equal_rewards")
"""Values of ``failure.filter`` that name no function: the controller decides about these by itself."""


def rule_of(setting: str) -> str | None:
    """The function that ``failure.filter`` names; None when it names none."""
    return None if setting in BUILT_IN else setting


def resolve_rule(spec: str) -> Rule:
    """The function that ``module:function`` or ``file.py:function`` names. PlanError says what is wrong with the name.

    This runs the module's own code, so the run does it in the reward child only.
    """
    function = named_code.load("failure.filter", spec, "function")
    if not callable(function):
        raise PlanError(f"failure.filter={spec}: it is a {type(function).__name__} and no function. Name a function.")
    try:
        inspect.signature(function).bind(prompt="", completions=[], rewards=[], answer="", source="", other_column="")
    except TypeError as error:
        raise PlanError(
            f"failure.filter={spec}: cannot be called with a group: {error}. Give it the signature "
            f"(prompt, completions, rewards, **row) -> bool, true for a group that is refused."
        ) from error
    except ValueError:  # some functions written in C tell nothing
        pass
    rule: Rule = function
    return rule
