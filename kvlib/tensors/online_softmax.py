"""The online softmax on plain numbers: what one query remembers on its way through the blocks.

The same steps as in :mod:`kvlib.tensors.attention`, with one query, one head and values of one number each
(Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvlib.errors import ConfigError


@dataclass(frozen=True)
class Running:
    """What is known after some blocks.

    Attributes
    ----------
    top : float
        The largest score so far.
    total : float
        Sum of ``exp(score - top)``.
    weighted : float
        Sum of ``exp(score - top) · value``.
    """

    top: float
    total: float
    weighted: float

    @property
    def answer(self) -> float:
        """The attention over all keys seen so far."""
        return self.weighted / self.total


def walk_blocks(blocks: Iterable[Sequence[tuple[float, float]]]) -> list[Running]:
    """Visit blocks of ``(score, value)`` pairs one after another; the state after each.

    Raises
    ------
    ConfigError
        For an empty block, or a score or value that is not finite.

    Examples
    --------
    >>> states = walk_blocks([[(0.0, 1.0), (math.log(2), 4.0)], [(math.log(3), 2.0)]])
    >>> [round(state.answer, 12) for state in states]
    [3.0, 2.5]
    """
    states: list[Running] = []
    before = Running(-math.inf, 0.0, 0.0)
    for index, block in enumerate(blocks):
        if not block or not all(math.isfinite(number) for pair in block for number in pair):
            raise ConfigError(f"blocks[{index}]: got {list(block)!r}, expected pairs of finite numbers")
        top = max(before.top, *(score for score, _ in block))
        weights = [math.exp(score - top) for score, _ in block]
        shrink = math.exp(before.top - top)
        before = Running(
            top,
            before.total * shrink + math.fsum(weights),
            before.weighted * shrink + math.fsum(w * value for w, (_, value) in zip(weights, block)),
        )
        states.append(before)
    return states
