"""Interleaved rANS: a lossless entropy coder whose many lanes run side by side.

One lane is one coder: an integer state that grows by about log2(1 / p) bits with each symbol of probability
p, and spills its low 16 bits into the stream whenever it would pass 32. All lanes take the same step at the
same time, so numpy and torch do a step of thousands of lanes with a dozen array operations; on a GPU a lane
would be a thread. The spilled words of all lanes share one stream: the decoder refills in the same order.

What a lane costs: its final state, 32 bits. What it buys: fewer steps, each over a longer array.

Symbols have the shape ``[channels, planes, tokens]`` (a plane is the K or the V of one layer), and so do
tables: ``freqs[channel, plane, symbol]`` counts slots out of 4,096. At each step all lanes of a plane use the
same table. Sources: Duda 2013 (asymmetric numeral systems); Giesen 2014 (interleaved entropy coders).
"""

import numpy as np

from kvlib.errors import DecodeError

TABLE_BITS = 12
SLOTS = 1 << TABLE_BITS
ALPHABET = 256
WORD_BITS = 16
LOWEST_STATE = 1 << WORD_BITS
STATE_BITS = 32


def slots_from_counts(counts: np.ndarray) -> np.ndarray:
    """Deal out the 4,096 slots of each table in proportion to `counts`, at least one to each symbol counted.

    Integer arithmetic only, so every machine gets the same tables.

    Parameters
    ----------
    counts : integer array [..., alphabet]
        How often each symbol was seen; every table needs at least one non-zero count.

    Examples
    --------
    >>> slots_from_counts(np.array([90, 5, 5, 0])).tolist()
    [3686, 205, 205, 0]
    """
    counts = counts.astype(np.int64)
    present = counts > 0
    spread = SLOTS - present.sum(-1, keepdims=True)
    slots = counts * spread // counts.sum(-1, keepdims=True) + present
    top = counts.argmax(-1)[..., None]
    left_over = SLOTS - slots.sum(-1, keepdims=True)
    np.put_along_axis(slots, top, np.take_along_axis(slots, top, -1) + left_over, -1)
    return slots.astype(np.uint16)


def encode_lanes(symbols, freqs: np.ndarray, lanes: int, xp):
    """Encode `symbols` losslessly.

    Parameters
    ----------
    symbols : numpy uint8 array [channels, planes, tokens]
    freqs : integer array [channels, planes, alphabet]
        Slots of each symbol, 4,096 in all. A symbol without a slot cannot be encoded.
    lanes : int
        Lanes per plane; lane i takes tokens i, i + lanes, i + 2 lanes, …
    xp : backend
        Where the arrays live, see `kvlib.tensors.backend.get_backend`.

    Returns
    -------
    states : numpy uint32 array [planes, lanes]
        What each lane is left with: the place where its decoder starts.
    words : numpy uint16 array
        The words of all lanes, in the order in which the decoder wants them.
    """
    channels, planes, tokens = symbols.shape
    states = xp.ints(np.full((planes, lanes), LOWEST_STATE))
    first_entry = xp.ints(np.arange(planes)[:, None] * freqs.shape[2])
    steps = []
    # Backwards, because rANS is a stack: the decoder takes out last what went in first.
    for channel in reversed(range(channels)):
        slots = freqs[channel].astype(np.int64)
        starts = xp.ints((np.cumsum(slots, -1) - slots).reshape(-1))
        slots = xp.ints(slots.reshape(-1))
        entries = first_entry + xp.ints(symbols[channel])
        for begin in reversed(range(0, tokens, max(lanes, 1))):
            entry = entries[:, begin : begin + lanes]
            state, slot = states[:, : entry.shape[1]], slots[entry]
            full = state >= slot << (STATE_BITS - TABLE_BITS)
            steps.append(xp.to_numpy(state[full]).astype(np.uint16))
            state[full] >>= WORD_BITS
            rounds = state // slot
            state[...] = (rounds << TABLE_BITS) + (state - rounds * slot) + starts[entry]
    words = np.concatenate(steps[::-1]) if steps else np.zeros(0, np.uint16)
    return xp.to_numpy(states).astype(np.uint32), words


def decode_lanes(states: np.ndarray, words: np.ndarray, tokens: int, freqs: np.ndarray, xp) -> np.ndarray:
    """Undo `encode_lanes`.

    Raises
    ------
    DecodeError
        When the words run out, are left over, or a lane does not end where its encoder began.

    Examples
    --------
    >>> from kvlib.tensors.backend import get_backend
    >>> xp = get_backend("numpy")
    >>> freqs = slots_from_counts(np.array([[[90, 5, 5]]]))
    >>> message = np.array([[[0, 0, 1, 0, 2, 0, 0]]], np.uint8)
    >>> states, words = encode_lanes(message, freqs, 2, xp)
    >>> decode_lanes(states, words, 7, freqs, xp).tolist() == message.tolist()
    True
    """
    channels, planes, _ = freqs.shape
    lanes = states.shape[1]
    states = xp.ints(states.astype(np.int64))
    stream = xp.ints(words.astype(np.int64))
    first_slot = xp.ints(np.arange(planes)[:, None] << TABLE_BITS)
    symbols = np.empty((channels, planes, tokens), np.uint8)
    taken = 0
    for channel in range(channels if tokens else 0):
        slot_table = xp.ints(_slot_table(freqs[channel]))
        for begin in range(0, tokens, max(lanes, 1)):
            state = states[:, : tokens - begin]
            entry = slot_table[(state & (SLOTS - 1)) + first_slot]
            symbols[channel, :, begin : begin + lanes] = xp.to_numpy(entry >> 24)
            state[...] = ((entry & 0xFFF) + 1) * (state >> TABLE_BITS) + ((entry >> TABLE_BITS) & 0xFFF)
            low = state < LOWEST_STATE
            wanted = int(low.sum())
            if taken + wanted > len(words):
                raise DecodeError(f"words: {len(words)} in the stream, expected more")
            state[low] = (state[low] << WORD_BITS) | stream[taken : taken + wanted]
            taken += wanted
    if taken != len(words) or bool((states != LOWEST_STATE).any()):
        raise DecodeError(f"words: {taken} of {len(words)} used, and a lane did not return to its start")
    return symbols


def _slot_table(freqs: np.ndarray) -> np.ndarray:
    """What each of a plane's 4,096 slots means: symbol (8 bits), slot - start (12), slots - 1 (12)."""
    planes, alphabet = freqs.shape
    slots = freqs.astype(np.int64).reshape(-1)
    starts = (np.cumsum(freqs, -1, dtype=np.int64) - freqs).reshape(-1)
    at_slot_0 = (np.tile(np.arange(alphabet), planes) << 24) - (starts << TABLE_BITS) + slots - 1
    return np.repeat(at_slot_0, slots) + np.tile(np.arange(SLOTS) << TABLE_BITS, planes)
