"""Attention for one new token, in lists of floats, with every multiplication counted."""

import math
from dataclasses import dataclass, field

Vector = list[float]
Matrix = list[Vector]


@dataclass
class Tally:
    """Counts multiply-adds: one multiplication and the addition that goes with it."""

    multiply_adds: int = 0


def dot(a: Vector, b: Vector, tally: Tally) -> float:
    """The inner product of two vectors.

    Examples
    --------
    >>> tally = Tally()
    >>> dot([1.0, 2.0], [3.0, 4.0], tally), tally.multiply_adds
    (11.0, 2)
    """
    tally.multiply_adds += len(a)
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def times(matrix: Matrix, vector: Vector, tally: Tally) -> Vector:
    """Matrix times vector; a matrix is a list of rows."""
    return [dot(row, vector, tally) for row in matrix]


def softmax(scores: Vector) -> Vector:
    """Positive weights that add up to one; the largest score is taken out first, so that exp cannot overflow.

    Examples
    --------
    >>> softmax([1000.0, 1000.0])
    [0.5, 0.5]
    """
    highest = max(scores)
    grown = [math.exp(score - highest) for score in scores]
    total = math.fsum(grown)
    return [value / total for value in grown]


def attend(query: Vector, keys: Matrix, values: Matrix, tally: Tally) -> Vector:
    """One head's answer to one query: softmax(q K^T / sqrt(d)) V.

    The rows of `keys` and `values` are the tokens up to and including the one that asks. This is all that
    makes attention causal here: later rows do not exist yet.

    Source: Vaswani et al. 2017, equation 1.

    Examples
    --------
    A query that matches both keys equally gets the mean of their values.

    >>> attend([1.0, 0.0], [[0.0, 1.0], [0.0, 2.0]], [[2.0, 0.0], [4.0, 0.0]], Tally())
    [3.0, 0.0]
    """
    scale = 1 / math.sqrt(len(query))
    weights = softmax([scale * dot(query, key, tally) for key in keys])
    return [dot(weights, list(column), tally) for column in zip(*values, strict=True)]


@dataclass
class KvCache:
    """The key and value rows of one sequence: ``keys[layer][kv_head]`` is a list of vectors, one a token."""

    layers: int
    kv_heads: int
    keys: list[list[Matrix]] = field(init=False)
    values: list[list[Matrix]] = field(init=False)

    def __post_init__(self) -> None:
        self.keys, self.values = (
            [[[] for _ in range(self.kv_heads)] for _ in range(self.layers)] for _ in range(2)
        )

    @property
    def num_tokens(self) -> int:
        """Tokens whose rows are held.

        Examples
        --------
        >>> KvCache(layers=2, kv_heads=1).num_tokens
        0
        """
        return len(self.keys[-1][-1])
