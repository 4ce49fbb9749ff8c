"""What sharing saves: the family tree of a decoding run, replayed on the block manager without any tensor.

The bookkeeping is exact: a run on real tensors makes the same calls, so it takes the same blocks and the same
copies. A family tree is a list with one entry a step, which says for each live sequence the index of the one
it continues. Parallel sampling is the tree that branches once; beam search branches at every step (Kwon et
al. 2023, figures 8 and 9).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvlib.blocks import BlockManager
from kvlib.errors import ConfigError
from kvlib.specs.checks import whole
from kvlib.tensors.decoding import descend


@dataclass(frozen=True)
class SharingRun:
    """A family tree on shared blocks, beside the same tree with a copy for everyone.

    Attributes
    ----------
    block_size : int
    tables : tuple of tuple of int
        Block tables at the end, one a sequence.
    tokens : tuple of int
        Tokens of each sequence at the end.
    refcounts : dict of int
        For each block held at the end.
    copies : int
        Blocks copied on write.
    new_blocks : int
        Blocks taken after the prompt, copies' included.
    blocks_alone : int
        Blocks at the end if no block were shared.
    block_steps, block_steps_alone : int
        Blocks held, summed over the steps, with sharing and without.
    whole_copy_tokens : int
        Tokens moved if every child, the first one of a parent too, copied all its parent had (the lecture's
        count).
    needed_copy_tokens : int
        Tokens moved if the first child took over its parent's memory and only the others copied it.
    """

    block_size: int
    tables: tuple[tuple[int, ...], ...]
    tokens: tuple[int, ...]
    refcounts: dict[int, int]
    copies: int
    new_blocks: int
    blocks_alone: int
    block_steps: int
    block_steps_alone: int
    whole_copy_tokens: int
    needed_copy_tokens: int

    @property
    def blocks(self) -> int:
        """Blocks held at the end."""
        return len(self.refcounts)

    @property
    def copied_tokens(self) -> int:
        """Token slots moved by copy-on-write: whole blocks, as the lecture counts."""
        return self.copies * self.block_size

    @property
    def saving(self) -> float:
        """Share of the blocks saved, over the whole run (the paper's figure 15 divides in this way)."""
        return 1 - self.block_steps / self.block_steps_alone


def replay(prompt_tokens: int, parents: Sequence[Sequence[int]], block_size: int) -> SharingRun:
    """Fork, free and append as the family tree says, one token a step for every sequence.

    Raises
    ------
    ConfigError
        For a size that is not a positive ``int``, an empty step, or a parent that is not there.

    Examples
    --------
    Four samples of 40 tokens from a prompt of 100 (oracle L7.par.blocks): 6 + 3 · 4 blocks instead of 9 · 4.

    >>> run = replay(100, samples_tree(4, 40), block_size=16)
    >>> run.blocks, run.blocks_alone, run.copies
    (18, 36, 3)
    """
    whole("prompt_tokens", prompt_tokens)
    whole("block_size", block_size)
    most = max((len(step) for step in parents), default=1)
    manager = BlockManager(2 * most * -(-(prompt_tokens + len(parents)) // block_size), block_size)
    manager.allocate(0, prompt_tokens)
    seqs, next_name = [0], 1
    copies = new_blocks = whole_copy = needed_copy = block_steps = block_steps_alone = 0
    for step, own in enumerate(parents):
        _check_step(step, own, len(seqs))
        seqs = descend(manager, seqs, own, iter(range(next_name, next_name + len(own))).__next__)
        next_name += len(own)
        length = prompt_tokens + step
        whole_copy += len(own) * length
        needed_copy += (len(own) - len(set(own))) * length
        for seq in seqs:
            new_blocks += manager.blocks_to_append(seq)
            manager.append(seq)
        copies += len(manager.take_copies())
        block_steps += manager.num_blocks - manager.num_free
        block_steps_alone += len(seqs) * manager.blocks_for(length + 1)
    tables = tuple(tuple(manager.block_table(seq)) for seq in seqs)
    return SharingRun(
        block_size=block_size, tables=tables, tokens=tuple(manager.num_tokens(seq) for seq in seqs),
        refcounts=dict(sorted(Counter(block for table in tables for block in table).items())),
        copies=copies, new_blocks=new_blocks, blocks_alone=sum(map(len, tables)),
        block_steps=block_steps, block_steps_alone=block_steps_alone,
        whole_copy_tokens=whole_copy, needed_copy_tokens=needed_copy,
    )


def samples_tree(num_samples: int, new_tokens: int) -> list[tuple[int, ...]]:
    """The family tree of parallel sampling: all fork from the prompt, then each goes its own way.

    Examples
    --------
    >>> samples_tree(2, 3)
    [(0, 0), (0, 1), (0, 1)]
    """
    whole("num_samples", num_samples)
    return [(0,) * num_samples] + [tuple(range(num_samples))] * (whole("new_tokens", new_tokens) - 1)


def _check_step(step: int, parents: Sequence[int], num_live: int) -> None:
    if not parents or not all(type(parent) is int and 0 <= parent < num_live for parent in parents):
        raise ConfigError(f"parents[{step}]: got {tuple(parents)!r}, expected indices below {num_live}")
