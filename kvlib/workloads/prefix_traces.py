"""Synthetic traces with prefix reuse: four kinds of application, and two that resemble published traces."""

import random
from dataclasses import replace
from itertools import dropwhile, islice

from kvlib.specs.checks import one_of, real, whole
from kvlib.workloads.arrivals import US_PER_S
from kvlib.workloads.block_numbering import BlockNumbering
from kvlib.workloads.lengths import EXPONENTIAL, NARROW, WIDE, LengthDistribution
from kvlib.workloads.published import CONVERSATION, TOOL_AGENT
from kvlib.workloads.request import Request
from kvlib.workloads.sessions import SessionLoad, turns_in_order
from kvlib.workloads.traces import Trace

# The longest prompt of Mooncake's conversation trace has 126,195 tokens.
MAX_TOKENS = 126_000
# A trace begins in the middle of a service's day, when sessions that started earlier are already returning:
# this many mean sessions after the first one started.
WARM_UP_SESSIONS = 3


def _about(shape, mean_tokens):
    return LengthDistribution.fitted(shape, mean_tokens=mean_tokens, max_tokens=MAX_TOKENS)


LOADS = {
    # Four assumptions of ours, which differ in where their reuse comes from.
    # Short system prompts and many turns, with a person thinking in between.
    "chat": SessionLoad(
        num_pieces=5, pieces_per_session=1, piece_tokens=_about(NARROW, 300),
        first_tokens=_about(WIDE, 200), message_tokens=_about(WIDE, 100),
        answer_tokens=_about(EXPONENTIAL, 300),
        return_share=0.8, again_share=0.8, shortest_gap_s=5, mean_gap_s=60,
    ),
    # A popular document and one or a few short questions about it.
    "documents": SessionLoad(
        num_pieces=300, pieces_per_session=1, piece_tokens=_about(WIDE, 12_000),
        first_tokens=_about(NARROW, 50), message_tokens=_about(NARROW, 50),
        answer_tokens=_about(EXPONENTIAL, 200),
        return_share=0.4, again_share=0.5, shortest_gap_s=5, mean_gap_s=60,
    ),
    # Several popular chunks, but in an order of their own: often only the first one is a shared prefix.
    "rag": SessionLoad(
        num_pieces=1000, pieces_per_session=6, piece_tokens=_about(NARROW, 800),
        first_tokens=_about(NARROW, 50), message_tokens=_about(NARROW, 50),
        answer_tokens=_about(EXPONENTIAL, 200),
        return_share=0.1, again_share=0.1, shortest_gap_s=5, mean_gap_s=60,
    ),
    # A long prompt with tools and many quick steps, each adding a tool's result.
    "agents": SessionLoad(
        num_pieces=8, pieces_per_session=1, piece_tokens=_about(NARROW, 4_000),
        first_tokens=_about(WIDE, 500), message_tokens=_about(WIDE, 800),
        answer_tokens=_about(EXPONENTIAL, 150),
        return_share=0.95, again_share=0.92, shortest_gap_s=1, mean_gap_s=8,
    ),
    # Fitted by hand to kvlib.workloads.published: one block that every request shares, long first prompts,
    # and few sessions that return, within minutes.
    "conversation": SessionLoad(
        num_pieces=1, pieces_per_session=1, piece_tokens=LengthDistribution.always(600),
        first_tokens=_about(WIDE, 10_700), message_tokens=_about(WIDE, 400),
        answer_tokens=_about(EXPONENTIAL, 342.62),
        return_share=0.23, again_share=0.58, shortest_gap_s=20, mean_gap_s=190,
    ),
    # Likewise: five system prompts of six blocks, the first of them used more than 10,000 times.
    "tool_agent": SessionLoad(
        num_pieces=5, pieces_per_session=1, piece_tokens=LengthDistribution.always(3_100),
        first_tokens=_about(WIDE, 4_900), message_tokens=_about(WIDE, 400),
        answer_tokens=_about(EXPONENTIAL, 182),
        return_share=0.23, again_share=0.6, shortest_gap_s=5, mean_gap_s=240,
    ),
}  # fmt: skip


def prefix_trace(
    kind: str, n: int, rate: float, seed: int, block_size: int = 512, answers: bool = False
) -> Trace:
    """Return a synthetic trace of ``n`` requests whose prompts share prefixes.

    Parameters
    ----------
    kind : str
        ``"chat"``, ``"documents"``, ``"rag"``, ``"agents"``, ``"conversation"`` or ``"tool_agent"``; what
        each assumes is written in ``LOADS``.
    n : int
        Number of requests, at least 1.
    rate : float
        Mean requests per second.
    seed : int
        Same seed, same trace; the prompts do not depend on the block size, only their ids do.
    block_size : int
        Tokens per block id.
    answers : bool
        Give ``answered_block_ids``, too: a later turn of a session repeats the answers before it.

    Returns
    -------
    Trace
        Every request has ``block_ids``, numbered by first appearance.

    Raises
    ------
    ConfigError
        If the kind is not known, or a number is of the wrong type or not positive.

    Examples
    --------
    >>> trace = prefix_trace("chat", n=200, rate=2.0, seed=0, block_size=16)
    >>> len(trace.requests), trace.block_size
    (200, 16)
    """
    load = LOADS[one_of("kind", kind, LOADS)]
    whole("n", n)
    real("rate", rate, above=True)
    turns = turns_in_order(load, rate, random.Random(whole("seed", seed, minimum=0)))
    start_us = round(WARM_UP_SESSIONS * load.mean_turns * load.mean_gap_s * US_PER_S)
    window = islice(dropwhile(lambda turn: turn.arrival_us < start_us, turns), n)
    numbering = BlockNumbering(block_size)
    turns = list(window)
    requests = [_request(turn, start_us, numbering) for turn in turns]
    if answers:
        requests = [_answered(one, turn, numbering) for one, turn in zip(requests, turns)]
    return Trace(kind, "synthetic", tuple(requests), block_size)


def conversation_like(n: int, seed: int, block_size: int = 512) -> Trace:
    """Return a trace that resembles Mooncake's conversation trace, at that trace's rate.

    Near the published values at 12,031 requests: lengths, the share of blocks used once, the block that
    every request shares, and LRU at every capacity. Not reproduced: the few sessions that return more than
    20 times (apart from block 0 the hottest blocks are used 43 times there), and so the full lead that LFU
    has over LRU at 1,000 blocks.

    Parameters, returned value and errors are those of :func:`prefix_trace`.

    Examples
    --------
    >>> conversation_like(n=100, seed=0).requests[0].block_ids[0]
    0
    """
    return prefix_trace("conversation", n, CONVERSATION.rate, seed, block_size)


def tool_agent_like(n: int, seed: int, block_size: int = 512) -> Trace:
    """Return a trace that resembles Mooncake's tool and agent trace, the one of its arXiv paper.

    Near the published values at 23,608 requests, as for :func:`conversation_like`.

    Parameters, returned value and errors are those of :func:`prefix_trace`.

    Examples
    --------
    >>> len(tool_agent_like(n=100, seed=0).requests)
    100
    """
    return prefix_trace("tool_agent", n, TOOL_AGENT.rate, seed, block_size)


def _request(turn, start_us, numbering):
    return Request(
        arrival_s=(turn.arrival_us - start_us) / US_PER_S,
        num_input_tokens=sum(num_tokens for _, num_tokens in turn.segments),
        num_output_tokens=turn.num_output_tokens,
        block_ids=numbering.block_ids(turn.segments),
    )


def _answered(request, turn, numbering):
    return replace(request, answered_block_ids=numbering.block_ids((*turn.segments, turn.answer)))
