"""Bits: how short a message can be, and two coders that try (primer d, before chapter 14).

Entropy is the shortest average length of a symbol when all the coder knows is how likely each symbol is. A
prefix code (Huffman) spends a whole number of bits on each symbol; rANS keeps one number for the whole
message and so spends fractions of a bit. Sources: Shannon 1948; Huffman 1952; Duda 2013.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvlib.errors import ConfigError, DecodeError
from kvlib.specs.checks import real

TABLE_BITS = 12
SLOTS = 1 << TABLE_BITS
LOWEST_STATE = 1 << 16
WORD = 0xFFFF


def checked_probabilities(probabilities: Sequence[float]) -> list[float]:
    """Return `probabilities` as floats, or raise `ConfigError` unless they are >= 0 and add up to 1."""
    floats = [real("probabilities", p) for p in probabilities]
    if not floats or abs(math.fsum(floats) - 1) > 1e-9:
        raise ConfigError(f"probabilities: got {list(probabilities)}, expected numbers that add up to 1")
    return floats


def entropy(probabilities: Sequence[float]) -> float:
    """Bits per symbol that no lossless code can beat on average: -Σ p log2 p.

    Raises
    ------
    ConfigError
        For a negative probability, or when they do not add up to 1.

    Examples
    --------
    >>> entropy([0.5, 0.25, 0.25]), round(entropy([0.9, 0.05, 0.05]), 2)
    (1.5, 0.57)
    """
    # 0.0 + turns the -0.0 of a certain symbol into 0.0.
    return 0.0 + math.fsum(-p * math.log2(p) for p in checked_probabilities(probabilities) if p > 0)


def cross_entropy(probabilities: Sequence[float], believed: Sequence[float]) -> float:
    """Bits per symbol when the coder believes other probabilities than the true ones: -Σ p log2 q.

    Examples
    --------
    >>> cross_entropy([0.5, 0.5], [0.5, 0.5]), cross_entropy([0.5, 0.5], [0.25, 0.75]) > 1
    (1.0, True)
    """
    pairs = list(zip(checked_probabilities(probabilities), checked_probabilities(believed), strict=True))
    if any(p > 0 and q == 0 for p, q in pairs):
        raise ConfigError(f"believed: got {list(believed)}, expected more than 0 wherever a symbol can occur")
    return 0.0 + math.fsum(-p * math.log2(q) for p, q in pairs if p > 0)


def fixed_bits(num_symbols: int) -> int:
    """Bits per symbol when all get the same whole number of them: ceil(log2(symbols)).

    Examples
    --------
    >>> fixed_bits(3), fixed_bits(4), fixed_bits(255)
    (2, 2, 8)
    """
    return max(num_symbols - 1, 0).bit_length()


def huffman_lengths(probabilities: Sequence[float]) -> list[int]:
    """Bits of each symbol in the best code that gives every symbol its own string of whole bits.

    Examples
    --------
    >>> huffman_lengths([0.5, 0.25, 0.25]), huffman_lengths([0.9, 0.05, 0.05])
    ([1, 2, 2], [1, 2, 2])
    """
    lengths = [0] * len(probabilities)
    # The running number breaks ties, so the tree is the same everywhere.
    heap = [(p, i, [i]) for i, p in enumerate(checked_probabilities(probabilities))]
    heapq.heapify(heap)
    order = len(heap)
    while len(heap) > 1:
        (p, _, first), (q, _, second) = heapq.heappop(heap), heapq.heappop(heap)
        for symbol in first + second:
            lengths[symbol] += 1
        heapq.heappush(heap, (p + q, order, first + second))
        order += 1
    return lengths


def average_bits(probabilities: Sequence[float], lengths: Sequence[float]) -> float:
    """Bits per symbol of a code with these lengths.

    Examples
    --------
    >>> average_bits([0.5, 0.25, 0.25], [1, 2, 2])
    1.5
    """
    return math.fsum(p * bits for p, bits in zip(checked_probabilities(probabilities), lengths, strict=True))


def slots_of(probabilities: Sequence[float]) -> list[int]:
    """Deal out rANS's 4,096 slots in proportion, at least one to each symbol that can occur.

    Examples
    --------
    >>> slots_of([0.9, 0.05, 0.05]), slots_of([1.0, 0.0])
    ([3686, 205, 205], [4096, 0])
    """
    floats = checked_probabilities(probabilities)
    spread = SLOTS - len([p for p in floats if p > 0])
    slots = [int(p * spread) + 1 if p > 0 else 0 for p in floats]
    slots[floats.index(max(floats))] += SLOTS - sum(slots)
    return slots


def rans_encode(text: Sequence[int], slots: Sequence[int]) -> tuple[int, list[int]]:
    """Encode symbols into one number, spilling its low 16 bits whenever it would pass 32.

    Parameters
    ----------
    text : sequence of int
        Symbols, as indices into `slots`.
    slots : sequence of int
        Each symbol's share of 4,096.

    Returns
    -------
    state : int
        The number at the end, 2^16 to 2^32 - 1.
    words : list of int
        The spilled words, in the order in which the decoder wants them.

    Examples
    --------
    >>> state, words = rans_encode([0, 0, 1, 0, 2], [3686, 205, 205])
    >>> rans_decode(state, words, 5, [3686, 205, 205])
    [0, 0, 1, 0, 2]
    """
    starts = [sum(slots[:symbol]) for symbol in range(len(slots))]
    state, words = LOWEST_STATE, []
    # Backwards, because the decoder takes out last what went in first.
    for symbol in reversed(text):
        if not 0 <= symbol < len(slots) or not slots[symbol]:
            raise ConfigError(f"text: symbol {symbol} has no slot, expected one of the coder's symbols")
        if state >= slots[symbol] << 20:
            words.append(state & WORD)
            state >>= 16
        rounds, within = divmod(state, slots[symbol])
        state = (rounds << TABLE_BITS) + starts[symbol] + within
    return state, words[::-1]


def rans_decode(state: int, words: Sequence[int], length: int, slots: Sequence[int]) -> list[int]:
    """Undo `rans_encode`.

    Raises
    ------
    DecodeError
        When words are missing or left over, or the state does not return to where the encoder began.
    """
    symbol_of = [symbol for symbol, share in enumerate(slots) for _ in range(share)]
    starts = [sum(slots[:symbol]) for symbol in range(len(slots))]
    text, waiting = [], list(reversed(words))
    for _ in range(length):
        slot = state & (SLOTS - 1)
        symbol = symbol_of[slot]
        text.append(symbol)
        state = slots[symbol] * (state >> TABLE_BITS) + slot - starts[symbol]
        if state < LOWEST_STATE:
            if not waiting:
                raise DecodeError(f"words: {len(words)} given, expected more")
            state = state << 16 | waiting.pop()
    if waiting or state != LOWEST_STATE:
        raise DecodeError(
            f"state: ended at {state} with {len(waiting)} words left, expected {LOWEST_STATE} and none"
        )
    return text


@dataclass(frozen=True)
class Narrowing:
    """Arithmetic coding after some symbols: the message so far is an interval inside [0, 1).

    Parameters
    ----------
    low, width : Fraction
        The interval; its width is the product of the symbols' probabilities.
    parts : tuple of (Fraction, Fraction)
        Where the next symbol would narrow it to: low and width for each possible symbol.
    """

    low: Fraction
    width: Fraction
    parts: tuple[tuple[Fraction, Fraction], ...]

    @property
    def bits(self) -> float:
        """Bits that name a number inside the interval: -log2(width)."""
        return 0.0 - math.log2(self.width)


def narrow(text: Sequence[int], shares: Sequence[int]) -> Narrowing:
    """Where `text` leads, when symbol i has the probability shares[i] / sum(shares).

    rANS keeps the same information in one whole number; intervals are easier to draw.

    Examples
    --------
    >>> step = narrow([0, 2], [2, 1, 1])
    >>> step.low, step.width, step.bits
    (Fraction(3, 8), Fraction(1, 8), 3.0)
    """
    total = sum(shares)
    starts = [sum(shares[:symbol]) for symbol in range(len(shares))]
    low, width = Fraction(0), Fraction(1)
    for symbol in text:
        low += width * Fraction(starts[symbol], total)
        width *= Fraction(shares[symbol], total)
    parts = tuple(
        (low + width * Fraction(start, total), width * Fraction(share, total))
        for start, share in zip(starts, shares)
    )
    return Narrowing(low, width, parts)
