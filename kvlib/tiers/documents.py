"""Requests that share contexts: questions about long documents, brand-new prompts, short chats.

A request is a prompt of two parts: the first `shared_tokens` tokens of a stream that others read too (a
document, a conversation), and tokens of its own. Equal streams agree token for token; different streams share
nothing.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvlib.errors import ConfigError
from kvlib.specs.checks import one_of, real, whole
from kvlib.workloads.arrivals import poisson_arrivals_us

WORKLOADS = ("long documents", "short chat")

# Page numbers are dealt out in stretches of 2**24, far more than any context has: one stretch per stream, and
# from `_OWN` on one per request for what is its own.
_STREAM_PAGES = 2**24
_OWN = 2**60
_MAX_STREAMS = 2**32


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes
    ----------
    arrival_ns : int
    stream : int
        Which document or conversation its prompt begins with.
    shared_tokens : int
        Leading tokens that are the stream's.
    own_tokens : int
        Tokens behind them that nobody else has.

    Examples
    --------
    >>> ask = Ask(arrival_ns=0, stream=7, shared_tokens=1000, own_tokens=50)
    >>> ask.num_tokens, ask.shared_pages(512)
    (1050, 1)
    """

    arrival_ns: int
    stream: int
    shared_tokens: int
    own_tokens: int

    def __post_init__(self) -> None:
        for field in ("arrival_ns", "stream", "shared_tokens", "own_tokens"):
            whole(field, getattr(self, field), minimum=0)
        whole("num_tokens", self.num_tokens)
        if self.stream >= _MAX_STREAMS:
            raise ConfigError(f"stream: got {self.stream}, expected a whole number below {_MAX_STREAMS}")

    @property
    def num_tokens(self) -> int:
        return self.shared_tokens + self.own_tokens

    def shared_pages(self, page_tokens: int) -> int:
        """Whole pages that lie in the stream: the most another request can reuse."""
        return self.shared_tokens // page_tokens

    def pages(self, page_tokens: int, number: int) -> tuple[int, ...]:
        """Identities of the prompt's whole pages; `number` tells this request's own from others'."""
        first = self.stream * _STREAM_PAGES
        shared, whole_pages = self.shared_pages(page_tokens), self.num_tokens // page_tokens
        own = _OWN + number * _STREAM_PAGES
        return (*range(first, first + shared), *range(own, own + whole_pages - shared))


def document_questions(
    num_asks: int, rate: float, seed: int, *, num_documents: int = 32, fresh_share: float = 0.2,
    document_tokens: tuple[int, int] = (8_000, 32_000), question_tokens: int = 256,
) -> tuple[Ask, ...]:
    """Short questions about long documents (like LooGLE or NarrativeQA).

    Parameters
    ----------
    num_asks : int
    rate : float
        Arrivals per second (Poisson).
    seed : int
    num_documents : int
        Documents that exist before the first request; each question is about one of the latest
        `num_documents`.
    fresh_share : float
        Share of requests that bring a document nobody has asked about.
    document_tokens : (int, int)
        Lengths are drawn evenly from this range.

    Examples
    --------
    >>> asks = document_questions(100, rate=2.0, seed=1)
    >>> len(asks), max(ask.shared_tokens for ask in asks) <= 32_000
    (100, True)
    """
    rng = random.Random(whole("seed", seed, minimum=0))
    low, high = document_tokens
    arrivals = poisson_arrivals_us(num_asks, rate, rng)
    lengths = [rng.randrange(low, high + 1) for _ in range(whole("num_documents", num_documents))]
    asks = []
    for us in arrivals:
        if rng.random() < fresh_share:
            lengths.append(rng.randrange(low, high + 1))
            stream = len(lengths) - 1
        else:
            stream = len(lengths) - 1 - rng.randrange(num_documents)
        asks.append(Ask(1000 * us, stream, lengths[stream], question_tokens))
    return tuple(asks)


def known_documents(asks: Sequence[Ask], num_documents: int = 32) -> tuple[Ask, ...]:
    """The documents of `document_questions` that existed before, without questions, to fill a cache with.

    Examples
    --------
    >>> known_documents([Ask(5, 1, 100, 7), Ask(6, 1, 100, 7), Ask(9, 40, 100, 7)])
    (Ask(arrival_ns=0, stream=1, shared_tokens=100, own_tokens=0),)
    """
    lengths = {ask.stream: ask.shared_tokens for ask in asks if ask.stream < num_documents}
    return tuple(Ask(0, stream, tokens, 0) for stream, tokens in lengths.items())


def chat_turns(
    num_asks: int, rate: float, seed: int, *, turn_tokens: int = 250, turns: int = 6, pause_s: float = 2.0
) -> tuple[Ask, ...]:
    """Conversations of short turns; each prompt is the whole conversation so far (like ShareGPT).

    Turn lengths are drawn evenly between half and one and a half times `turn_tokens`, answers included.
    Conversations are continued in random order, each after a pause of at least `pause_s`.

    Examples
    --------
    >>> asks = chat_turns(100, rate=2.0, seed=1)
    >>> max(ask.num_tokens for ask in asks) <= 6 * 375
    True
    """
    rng = random.Random(whole("seed", seed, minimum=0))
    whole("turn_tokens", turn_tokens, minimum=2)
    whole("turns", turns)
    pause_us = round(1e6 * real("pause_s", pause_s))
    chats: list[_Chat] = []
    asks = []
    for us in poisson_arrivals_us(num_asks, rate, rng):
        resting = [chat for chat in chats if chat.turns_left and chat.last_us + pause_us <= us]
        if not resting or rng.random() < 1 / turns:
            chats.append(_Chat(stream=len(chats), turns_left=turns))
            resting.append(chats[-1])
        chat = resting[rng.randrange(len(resting))]
        chat.tokens += rng.randrange(turn_tokens // 2, turn_tokens * 3 // 2 + 1)
        chat.turns_left -= 1
        chat.last_us = us
        asks.append(Ask(1000 * us, chat.stream, chat.tokens, 0))
    return tuple(asks)


@dataclass
class _Chat:
    stream: int
    turns_left: int
    tokens: int = 0
    last_us: int = 0


def workload(name: str, num_asks: int, rate: float, seed: int) -> tuple[Ask, ...]:
    """One of `WORKLOADS` by name.

    Examples
    --------
    >>> len(workload("short chat", 10, rate=1.0, seed=1))
    10
    """
    one_of("workload", name, WORKLOADS)
    return (document_questions if name == "long documents" else chat_turns)(num_asks, rate, seed)


def burst_order(first: Sequence, second: Sequence, burst: int) -> list:
    """`burst` of the first kind, then `burst` of the second, and so on: 1 alternates.

    Examples
    --------
    >>> "".join(burst_order("dddd", "nnnn", 1)), "".join(burst_order("dddd", "nnnn", 2))
    ('dndndndn', 'ddnnddnn')
    """
    whole("burst", burst)
    ordered = []
    for start in range(0, max(len(first), len(second)), burst):
        ordered += [*first[start : start + burst], *second[start : start + burst]]
    return ordered


def hit_ratio(asks: Iterable[Ask], page_tokens: int) -> float:
    """Share of prompt tokens found in a cache that forgets nothing and matches whole pages only.

    Only the stream's part can hit, since nobody else has a request's own tokens.

    Examples
    --------
    >>> asks = [Ask(0, 1, 1000, 24), Ask(1, 1, 1000, 24)]
    >>> [hit_ratio(asks, page_tokens) for page_tokens in (1, 512, 1024)]
    [0.48828125, 0.25, 0.0]
    """
    whole("page_tokens", page_tokens)
    stored: dict[int, int] = {}
    hits = total = 0
    for ask in asks:
        pages = ask.shared_pages(page_tokens)
        hits += page_tokens * min(pages, stored.get(ask.stream, 0))
        total += ask.num_tokens
        stored[ask.stream] = max(pages, stored.get(ask.stream, 0))
    return hits / total if total else 0.0
