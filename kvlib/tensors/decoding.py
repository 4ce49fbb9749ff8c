"""Greedy search, parallel sampling and beam search over four verbs: feed, fork, free, and append inside feed.

As in vLLM (Kwon et al. 2023, sections 4.4 and 5.2), a decoding method never sees a block. It talks to a
*session*:

- ``feed({seq: new tokens})`` runs the model on new tokens of any number of sequences, makes a sequence that
  is new, and returns for each the log-probabilities of the next token, as a list over the vocabulary;
- ``fork(parent, child)`` lets ``child`` begin with all that ``parent`` has;
- ``free(seq)`` forgets a sequence.

Sessions that share blocks and sessions that copy are in :mod:`kvlib.tensors.session`. Each method is a
generator: it yields what it wants to feed and receives the log-probabilities, so that `generate` can run many
methods in one batch.
"""

import heapq
import math
import random
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass

from kvlib.errors import ConfigError
from kvlib.specs.checks import real, whole

Feeds = dict[Hashable, list[int]]
Scores = dict[Hashable, list[float]]


@dataclass(frozen=True)
class Hypothesis:
    """A generated sequence and the sum of its tokens' log-probabilities."""

    tokens: tuple[int, ...]
    log_probability: float


@dataclass(frozen=True)
class Decoded:
    """What a method returns.

    Attributes
    ----------
    hypotheses : tuple of Hypothesis
        In order of sample, or best beam first.
    parents : tuple of tuple of int
        Step by step, for each live sequence, which of the step before it continues: the family tree that
        :func:`kvlib.tensors.sharing.replay` needs.
    """

    hypotheses: tuple[Hypothesis, ...]
    parents: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Sampling:
    """`num_samples` independent continuations of one prompt, which share its keys and values.

    Parameters
    ----------
    prompt : tokens
    max_new_tokens, num_samples : int
    seed : int
    temperature : float
        0 takes the most likely token each time (greedy search).
    stop_token : int, optional
        A sample ends with it.
    """

    prompt: Sequence[int]
    max_new_tokens: int
    num_samples: int = 1
    seed: int = 0
    temperature: float = 1.0
    stop_token: int | None = None

    def __post_init__(self):
        _check_lengths(self.prompt, self.max_new_tokens)
        whole("num_samples", self.num_samples)
        real("temperature", self.temperature)

    def steps(self, session, name: Hashable) -> Generator[Feeds, Scores, Decoded]:
        """Feed the prompt, fork, then extend every sample that has not ended."""
        seeds = random.Random(self.seed)
        draws = [random.Random(seeds.randrange(2**32)) for _ in range(self.num_samples)]
        root = (name, 0)
        first = (yield {root: list(self.prompt)})[root]
        seqs = descend(session, [root], [0] * self.num_samples, _names(name))
        tokens: list[list[int]] = [[] for _ in seqs]
        likelihoods = [0.0] * self.num_samples
        scores, live = dict.fromkeys(seqs, first), list(range(self.num_samples))
        parents = [(0,) * self.num_samples]
        while live:
            for sample in live:
                row = scores[seqs[sample]]
                token = draw_token(row, self.temperature, draws[sample])
                tokens[sample].append(token)
                likelihoods[sample] += row[token]
            going_on = [sample for sample in live if not self._has_ended(tokens[sample])]
            for sample in live:
                if sample not in going_on:
                    session.free(seqs[sample])
            if going_on:
                parents.append(tuple(live.index(sample) for sample in going_on))
                scores = yield {seqs[sample]: tokens[sample][-1:] for sample in going_on}
            live = going_on
        return Decoded(tuple(Hypothesis(tuple(t), p) for t, p in zip(tokens, likelihoods)), tuple(parents))

    def _has_ended(self, tokens: Sequence[int]) -> bool:
        return len(tokens) == self.max_new_tokens or tokens[-1] == self.stop_token


@dataclass(frozen=True)
class Beam:
    """The `width` most likely continuations, all of the same length.

    At each step every hypothesis offers its `width` best tokens, and the best `width` of all offers live on,
    ties going to the earlier hypothesis and the smaller token. Some have several children then, and some
    none.
    """

    prompt: Sequence[int]
    max_new_tokens: int
    width: int

    def __post_init__(self):
        _check_lengths(self.prompt, self.max_new_tokens)
        whole("width", self.width)

    def steps(self, session, name: Hashable) -> Generator[Feeds, Scores, Decoded]:
        """Feed, choose, fork and free, until the length is reached."""
        new_name, seqs = _names(name), [(name, 0)]
        hypotheses, parents = [Hypothesis((), 0.0)], []
        feeds = {seqs[0]: list(self.prompt)}
        while len(parents) < self.max_new_tokens:
            scores = yield feeds
            chosen = self._choose(hypotheses, [scores[seq] for seq in seqs])
            parents.append(tuple(parent for parent, _ in chosen))
            hypotheses = [child for _, child in chosen]
            seqs = descend(session, seqs, parents[-1], new_name)
            feeds = {seq: [child.tokens[-1]] for seq, child in zip(seqs, hypotheses)}
        for seq in seqs:
            session.free(seq)
        return Decoded(tuple(hypotheses), tuple(parents))

    def _choose(self, hypotheses, rows) -> list[tuple[int, Hypothesis]]:
        """The best children as ``(parent, child)``, the likeliest first."""
        offers = [
            (-(hypothesis.log_probability + row[token]), parent, token)
            for parent, (hypothesis, row) in enumerate(zip(hypotheses, rows))
            for token in heapq.nlargest(self.width, range(len(row)), key=row.__getitem__)
        ]
        return [
            (parent, Hypothesis((*hypotheses[parent].tokens, token), -cost))
            for cost, parent, token in heapq.nsmallest(self.width, offers)
        ]


def generate(session, requests: Mapping[Hashable, Sampling | Beam]) -> dict[Hashable, Decoded]:
    """Run requests with any mixture of decoding methods, one batch a step, until all have ended.

    Examples
    --------
    A session needs no model: this one always expects the token after the last one.

    >>> def next_is(token): return [0.0 if t == token % 5 else -9.0 for t in range(5)]
    >>> class Counting:
    ...     def feed(self, feeds): return {seq: next_is(new[-1] + 1) for seq, new in feeds.items()}
    ...     def fork(self, parent, child): pass
    ...     def free(self, seq): pass
    >>> done = generate(Counting(), {"a": Sampling([1], 3, temperature=0.0), "b": Beam([2], 2, width=2)})
    >>> done["a"].hypotheses[0].tokens, done["b"].hypotheses[0].tokens
    ((2, 3, 4), (3, 4))
    """
    running = {name: request.steps(session, name) for name, request in requests.items()}
    wanted = {name: next(steps) for name, steps in running.items()}
    results = {}
    while wanted:
        scores = session.feed({seq: new for feeds in wanted.values() for seq, new in feeds.items()})
        for name, feeds in list(wanted.items()):
            try:
                wanted[name] = running[name].send({seq: scores[seq] for seq in feeds})
            except StopIteration as end:
                results[name] = end.value
                del wanted[name]
    return results


def descend(memory, seqs: Sequence[Hashable], parents: Sequence[int],
            new_name: Callable[[], Hashable]) -> list[Hashable]:
    """The sequences of the children, child ``i`` going on from ``seqs[parents[i]]``.

    The first child of a parent takes over its sequence, the others are forked from it, and a parent without
    children is freed: forks first, so that no block is lost that a child needs.
    """
    children, taken_over = [], set()
    for parent in parents:
        child = seqs[parent]
        if parent in taken_over:
            child = new_name()
            memory.fork(seqs[parent], child)
        taken_over.add(parent)
        children.append(child)
    for index, seq in enumerate(seqs):
        if index not in taken_over:
            memory.free(seq)
    return children


def draw_token(log_probabilities: Sequence[float], temperature: float, rng: random.Random) -> int:
    """A token drawn by the inverse of the cumulative distribution; the likeliest one at temperature 0."""
    if not temperature:
        return max(range(len(log_probabilities)), key=log_probabilities.__getitem__)
    highest = max(log_probabilities)
    weights = [math.exp((value - highest) / temperature) for value in log_probabilities]
    left = rng.random() * math.fsum(weights)
    for token, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return token
    return max(token for token, weight in enumerate(weights) if weight)


def _names(name: Hashable) -> Callable[[], Hashable]:
    count = 0

    def new_name():
        nonlocal count
        count += 1
        return (name, count)

    return new_name


def _check_lengths(prompt: Sequence[int], max_new_tokens: int) -> None:
    if not len(prompt):
        raise ConfigError("prompt: got no tokens, expected at least one")
    whole("max_new_tokens", max_new_tokens)
