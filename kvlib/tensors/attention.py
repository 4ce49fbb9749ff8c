"""Attention that reads keys and values block by block, and never puts the cache together.

Equation (4) of Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention" (SOSP 2023), computed with the online softmax of Milakov and Gimelshein (2018): a running
maximum, a running sum and a running answer per query, corrected whenever a larger score turns up.
"""

from collections.abc import Sequence

from kvlib.errors import ConfigError
from kvlib.specs.checks import whole

# Keys visited in one step, over the whole batch: few enough for the processor's cache. At least one block
# each.
TILE_TOKENS = 512
# Queries of a long prefill that are answered together.
QUERY_TILE = 128
# Below every score, yet finite: -inf minus -inf would be NaN for a query that has seen no key yet.
NO_SCORE = -1e30


def paged_attention(xp, query, keys, values, block_tables: Sequence[Sequence[int]], num_tokens: Sequence[int],
                    window: int | None = None):
    """Causal attention of the newest tokens of each sequence over all its tokens, through the block tables.

    Beyond the output, memory for one tile of keys and values is needed, whatever the context length.

    Parameters
    ----------
    xp : NumpyBackend or TorchBackend
    query : array [batch, new, heads, head_dim]
        Queries of the last `new` tokens of each sequence.
    keys, values : array [kv_heads, num_blocks, block_size, head_dim]
        One layer of a :class:`~kvlib.tensors.kv_store.KvStore`. Query head ``h`` reads KV head
        ``h // (heads // kv_heads)``.
    block_tables : sequence of block ids for each sequence
    num_tokens : tokens of each sequence, the new ones included
    window : int, optional
        A token sees only the last `window` tokens, itself included.

    Returns
    -------
    array [batch, new, heads, head_dim]

    Raises
    ------
    ConfigError
        For an empty batch, heads that do not match, or a table too short for its tokens.

    Examples
    --------
    Two blocks of one token each, scores 0 and ln 2, values 1 and 4: (1·1 + 2·4) / 3.

    >>> import math
    >>> from kvlib.tensors.backend import NumpyBackend
    >>> xp = NumpyBackend()
    >>> keys, values = xp.floats([[[[math.log(2)]], [[0.0]]]]), xp.floats([[[[4.0]], [[1.0]]]])
    >>> out = paged_attention(xp, xp.floats([[[[1.0]]]]), keys, values, [[1, 0]], [2])
    >>> round(out.item(), 12)
    3.0
    """
    _check(query, keys, block_tables, num_tokens, window)
    new = query.shape[1]
    answers = []
    for start in range(0, new, QUERY_TILE):
        stop = min(start + QUERY_TILE, new)
        # A query never looks ahead, so for this tile the sequences end where the tile does.
        ends = [tokens - (new - stop) for tokens in num_tokens]
        answers.append(_attend(xp, query[:, start:stop], keys, values, block_tables, ends, window))
    return answers[0] if len(answers) == 1 else xp.concat(answers, axis=1)


def dense_attention(xp, query, keys, values, window: int | None = None):
    """The textbook softmax over one sequence whose keys and values lie side by side.

    Parameters
    ----------
    query : array [new, heads, head_dim]
    keys, values : array [tokens, kv_heads, head_dim]
        The last `new` of the tokens are the queries' own.

    Returns
    -------
    array [new, heads, head_dim]
    """
    new, heads, head_dim = query.shape
    tokens, kv_heads, _ = keys.shape
    grouped = (query * head_dim**-0.5).reshape(new, kv_heads, heads // kv_heads, head_dim).swapaxes(0, 1)
    scores = xp.wide(grouped.reshape(kv_heads, -1, head_dim) @ keys.swapaxes(0, 1).swapaxes(1, 2))
    scores = scores.reshape(kv_heads, new, heads // kv_heads, tokens)
    positions = xp.ints(range(tokens - new, tokens)).reshape(1, new, 1, 1)
    scores = xp.where(_visible(positions, xp.ints(range(tokens)), window), scores, NO_SCORE)
    weights = xp.exp(scores - xp.max(scores))
    weights = xp.narrow(weights / weights.sum(axis=-1, keepdims=True)).reshape(kv_heads, -1, tokens)
    answer = (weights @ values.swapaxes(0, 1)).reshape(kv_heads, new, heads // kv_heads, head_dim)
    return answer.swapaxes(0, 1).reshape(new, heads, head_dim)


def _attend(xp, query, keys, values, block_tables, num_tokens, window):
    batch, new, heads, head_dim = query.shape
    kv_heads, _, block_size, _ = keys.shape
    groups = heads // kv_heads
    rows = (query * head_dim**-0.5).swapaxes(1, 2).reshape(batch, kv_heads, groups * new, head_dim)
    rows = rows.swapaxes(0, 1)
    first, last = _blocks_to_visit(block_size, num_tokens, new, window)
    tables = xp.ints([_padded(table, last) for table in block_tables])
    answer, total, top = _nothing_yet(xp, rows)
    per_step = max(1, TILE_TOKENS // (batch * block_size))
    for start in range(first, last, per_step):
        blocks = tables[:, start:start + per_step]
        tile = (kv_heads, batch, blocks.shape[1] * block_size, head_dim)
        tile_keys = xp.take(keys, blocks.reshape(-1)).reshape(tile)
        tile_values = xp.take(values, blocks.reshape(-1)).reshape(tile)
        scores = xp.wide(rows @ tile_keys.swapaxes(-1, -2))
        begin, end = start * block_size, start * block_size + tile[2]
        if window or end > min(num_tokens) - new + 1:
            scores, tile_values = _hide(xp, scores, tile_values, range(begin, end), num_tokens, new, window)
        larger = xp.maximum(top, xp.max(scores))
        weights, shrink = xp.exp(scores - larger), xp.exp(top - larger)
        total = total * shrink + weights.sum(axis=-1, keepdims=True)
        answer = answer * shrink + xp.wide(xp.narrow(weights) @ tile_values)
        top = larger
    done = xp.narrow(answer / total).swapaxes(0, 1).reshape(batch, heads, new, head_dim)
    return done.swapaxes(1, 2)


def _blocks_to_visit(block_size, num_tokens, new, window) -> tuple[int, int]:
    """The first block that any query can see, and the end of the longest table."""
    oldest = min(num_tokens) - new + 1 - window if window else 0
    return max(0, oldest) // block_size, -(-max(num_tokens) // block_size)


def _padded(table: Sequence[int], num_blocks: int) -> list[int]:
    # Columns past the end of a short sequence are hidden from it, so any block will do there.
    return [*table[:num_blocks], *[table[0]] * (num_blocks - len(table))]


def _nothing_yet(xp, rows):
    nothing = xp.wide(rows) * 0.0
    return nothing, nothing[..., :1], nothing[..., :1] + NO_SCORE


def _hide(xp, scores, tile_values, keys_at: range, num_tokens, new, window):
    """Scores of keys that a query must not see become minus infinity, and unwritten values zero."""
    kv_heads, batch, rows, tile = scores.shape
    positions = xp.ints([[tokens - new + i for i in range(new)] for tokens in num_tokens])
    keys_at = xp.ints(keys_at)
    visible = _visible(positions.reshape(1, batch, 1, new, 1), keys_at, window)
    scores = xp.where(visible, scores.reshape(kv_heads, batch, rows // new, new, tile), float("-inf"))
    # A slot nobody has written may hold anything, and 0 · NaN is NaN: a zero weight alone does not hide it.
    written = keys_at.reshape(1, 1, tile, 1) < xp.ints(num_tokens).reshape(1, batch, 1, 1)
    return scores.reshape(kv_heads, batch, rows, tile), xp.where(written, tile_values, 0.0)


def _visible(query_at, key_at, window: int | None):
    seen = key_at <= query_at
    return seen & (key_at > query_at - window) if window else seen


def _check(query, keys, block_tables, num_tokens, window) -> None:
    batch, new, heads, head_dim = query.shape
    kv_heads, _, block_size, width = keys.shape
    if not batch or len(block_tables) != batch or len(num_tokens) != batch:
        raise ConfigError(f"batch: got {batch} queries, {len(block_tables)} block tables and "
                          f"{len(num_tokens)} lengths, expected as many of each and at least one")
    if heads % kv_heads or head_dim != width:
        raise ConfigError(f"heads: got {heads} query heads of {head_dim} on {kv_heads} KV heads of {width}, "
                          "expected a multiple of the KV heads and the same width")
    if query.dtype != keys.dtype:
        raise ConfigError(f"query: got dtype {query.dtype}, expected the store's {keys.dtype}")
    if window is not None:
        whole("window", window)
    for row, (table, tokens) in enumerate(zip(block_tables, num_tokens)):
        if whole(f"num_tokens[{row}]", tokens) < new or len(table) * block_size < tokens:
            raise ConfigError(f"num_tokens[{row}]: got {tokens} with {new} new ones in {len(table)} blocks "
                              f"of {block_size}, expected at least the new ones and at most what blocks hold")
