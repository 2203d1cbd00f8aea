"""A reward of one's own: a function in a file, named in the settings as examples/last_number.py:last_number."""

import re


def last_number(prompt: object, completion: str, answer: str, **row: object) -> float:
    """1 if the last whole number of the completion is the answer, else 0."""
    numbers = re.findall(r"-?\d+", completion)
    return float(numbers[-1:] == [answer])
