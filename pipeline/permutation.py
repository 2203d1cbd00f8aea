"""The order of the rows: a keyed permutation that is computed for one position at a time.

Rule 1: no state. The row of an ordinal follows from (seed, number of rows, ordinal), on any machine, at any time.
Rule 2: the result never changes between versions: a log's rows would become others. Golden values are tests.
Rule 3: integers and blake2b only, so that no platform can round differently.

A Feistel network turns any function into a permutation: (left, right) -> (right, left + F(right)) can be undone
whatever F is (Luby and Rackoff, 1988, https://doi.org/10.1137/0217022). Here left and right are numbers below
side = ceil(sqrt(M)), so the network permutes side x side >= M numbers. A result that is not below M is put through
again (cycle walking: Black and Rogaway, 2002, https://doi.org/10.1007/3-540-45760-7_9): the walk follows the cycle
that began below M, so it comes back below M, and two positions never end on one row. Since side x side is less than
M + 2 sqrt(M) + 1, a second walk is rare for large M.
"""

import math
from hashlib import blake2b
from typing import Final

ROUNDS: Final = 8
"""Four make it hard to tell from a random permutation of a large set; small sets need more."""


def row_index(ordinal: int, *, num_rows: int, seed: int) -> int:
    """Row of the data set that belongs to ``ordinal``: epoch o div M, position o mod M, permuted anew in each epoch."""
    epoch, position = divmod(ordinal, num_rows)
    return permute(position, num_rows, key_of(seed, epoch))


def key_of(seed: int, epoch: int) -> bytes:
    """32 bytes that name the order of one epoch. ``seed`` may be any integer."""
    return blake2b(f"rollog rows {seed} {epoch}".encode(), digest_size=32).digest()


def permute(position: int, size: int, key: bytes) -> int:
    """Image of ``position`` under the permutation of 0 .. size - 1 that ``key`` names. ValueError outside them."""
    if not 0 <= position < size:
        raise ValueError(f"position {position} is not in 0 .. {size - 1}")
    side = math.isqrt(size - 1) + 1
    while True:
        left, right = divmod(position, side)
        for number in range(ROUNDS):
            left, right = right, (left + _scramble(right, number, key)) % side
        position = left * side + right
        if position < size:
            return position


def _scramble(value: int, number: int, key: bytes) -> int:
    """The round function: 64 bits that look random. Taken modulo side, their bias is below side / 2**64."""
    message = number.to_bytes(1, "little") + value.to_bytes(8, "little")
    return int.from_bytes(blake2b(message, digest_size=8, key=key).digest(), "little")
