"""Sessions that come back: the one source of prefix reuse behind chat, documents, RAG and agents.

A session opens with one or more pieces that other sessions share, goes on with something of its own, and
returns with everything said so far plus a new message.
"""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, count
from random import Random

from kvlib.workloads.arrivals import US_PER_S
from kvlib.workloads.lengths import LengthDistribution


@dataclass(frozen=True)
class SessionLoad:
    """What the sessions of one kind of application look like.

    Attributes
    ----------
    num_pieces : int
        Different pieces to open with: system prompts, documents, retrieved chunks. The one of rank ``r`` is
        chosen in proportion to ``1 / r``.
    pieces_per_session : int
        How many different pieces open a session, in the order drawn.
    piece_tokens, first_tokens, message_tokens, answer_tokens : LengthDistribution
        Length of a piece, of what the first prompt adds, of each later message, and of each answer.
    return_share : float
        Probability that a session has a second turn.
    again_share : float
        Probability that a session of two or more turns has yet another one.
    shortest_gap_s, mean_gap_s : float
        Time between two turns: at least the one, the other on average (the rest is exponential).
    """

    num_pieces: int
    pieces_per_session: int
    piece_tokens: LengthDistribution
    first_tokens: LengthDistribution
    message_tokens: LengthDistribution
    answer_tokens: LengthDistribution
    return_share: float
    again_share: float
    shortest_gap_s: float
    mean_gap_s: float

    @property
    def mean_turns(self) -> float:
        """Mean number of requests per session."""
        return 1 + self.return_share / (1 - self.again_share)


@dataclass(frozen=True, order=True)
class Turn:
    """One request of a session; turns are ordered by arrival, then by session."""

    arrival_us: int
    session: int
    segments: tuple
    number: int
    num_output_tokens: int

    @property
    def answer(self) -> tuple:
        """The segment that a later turn of the session repeats."""
        return ("answer", self.session, self.number), self.num_output_tokens


def turns_in_order(load: SessionLoad, rate: float, rng: Random) -> Iterator[Turn]:
    """Yield the turns of endless sessions in order of arrival.

    Parameters
    ----------
    load : SessionLoad
        What the sessions look like.
    rate : float
        Mean requests per second, once the first sessions have had time to return. Sessions start as a
        Poisson process of ``rate / load.mean_turns`` per second.
    rng : random.Random
        The source of every draw.
    """
    pieces = [(("piece", number), load.piece_tokens.draw(rng)) for number in range(load.num_pieces)]
    # Whole-number weights: sums of 1 / rank would depend on the order of addition.
    popularity = list(accumulate(10**9 // rank for rank in range(1, load.num_pieces + 1)))
    waiting, now_us = [], 0
    for session in count():
        now_us += _exponential_us(load.mean_turns / rate, rng)
        while waiting and waiting[0].arrival_us <= now_us:
            yield heapq.heappop(waiting)
        opening = _draw_different(pieces, popularity, load.pieces_per_session, rng)
        for turn in _turns(load, session, now_us, opening, rng):
            heapq.heappush(waiting, turn)


def _turns(load, session, start_us, opening, rng):
    arrival_us, segments, number = start_us, list(opening), 0
    message_tokens, chance = load.first_tokens, load.return_share
    while True:
        segments.append((("message", session, number), message_tokens.draw(rng)))
        num_output_tokens = load.answer_tokens.draw(rng)
        turn = Turn(arrival_us, session, tuple(segments), number, num_output_tokens)
        yield turn
        if rng.random() >= chance:
            return
        segments.append(turn.answer)
        message_tokens, chance, number = load.message_tokens, load.again_share, number + 1
        # At least a microsecond, so that the turns of a session keep their order.
        arrival_us += max(1, round(load.shortest_gap_s * US_PER_S))
        arrival_us += _exponential_us(load.mean_gap_s - load.shortest_gap_s, rng)


def _exponential_us(mean_s, rng):
    return round(-math.log(1.0 - rng.random()) * mean_s * US_PER_S)


def _draw_different(pieces, cumulative_weights, how_many, rng):
    drawn = {}
    while len(drawn) < how_many:
        (piece,) = rng.choices(pieces, cum_weights=cumulative_weights)
        drawn[piece] = None
    return drawn
