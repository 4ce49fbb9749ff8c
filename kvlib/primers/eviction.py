"""Why a KV cache evicts all of a sequence or nothing: every decode step reads every block of its sequence."""

from collections.abc import Sequence

from kvlib.errors import ConfigError
from kvlib.specs.checks import whole


def evict_blocks(held: Sequence[int], needed: int) -> list[int]:
    """Take single blocks, oldest first, as an operating system takes pages: every first block, then ….

    Parameters
    ----------
    held : sequence of int
        Blocks of each sequence; all began together.
    needed : int
        Blocks to free.

    Returns
    -------
    list of int
        Blocks taken from each sequence.

    Raises
    ------
    ConfigError
        When fewer than `needed` blocks are held.

    Examples
    --------
    >>> evict_blocks([3, 3, 3], 4)
    [2, 1, 1]
    """
    _check(held, needed)
    taken = [0] * len(held)
    while sum(taken) < needed:
        next_one = min((i for i in range(len(held)) if taken[i] < held[i]), key=lambda i: (taken[i], i))
        taken[next_one] += 1
    return taken


def evict_sequences(held: Sequence[int], needed: int) -> list[int]:
    """Take whole sequences, the last one first, until enough blocks are free.

    Source: Kwon et al. 2023 (PagedAttention), section 4.5.

    Raises
    ------
    ConfigError
        When fewer than `needed` blocks are held.

    Examples
    --------
    >>> evict_sequences([3, 3, 3], 4)
    [0, 3, 3]
    """
    _check(held, needed)
    taken = [0] * len(held)
    for sequence in reversed(range(len(held))):
        if sum(taken) >= needed:
            break
        taken[sequence] = held[sequence]
    return taken


def able_to_run(taken: Sequence[int]) -> int:
    """Sequences that can take their next decode step: those that lost nothing.

    Examples
    --------
    >>> able_to_run([2, 1, 1]), able_to_run([0, 3, 3])
    (0, 1)
    """
    return sum(lost == 0 for lost in taken)


def _check(held: Sequence[int], needed: int) -> None:
    for blocks in held:
        whole("held", blocks)
    if whole("needed", needed, minimum=0) > sum(held):
        raise ConfigError(f"needed: got {needed}, expected at most the {sum(held)} blocks held")
