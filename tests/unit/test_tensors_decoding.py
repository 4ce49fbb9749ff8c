"""Decoding methods: the same answers with and without sharing, alone and mixed (law L4), and exact
bookkeeping."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.errors import ConfigError, OutOfBlocks, UnknownSequence
from kvlib.tensors.backend import NumpyBackend, TorchBackend
from kvlib.tensors.decoding import Beam, Sampling, descend, draw_token, generate
from kvlib.tensors.session import CopyingSession, PagedSession
from kvlib.tensors.sharing import replay
from kvlib.tensors.tiny_llm import TINY_SHAPE, tiny_llm

torch.set_num_threads(1)
RNG = random.Random(5)
PROMPT = [RNG.randrange(TINY_SHAPE.vocabulary) for _ in range(40)]
MODEL = tiny_llm(NumpyBackend())
MIXED = {
    "greedy": Sampling(PROMPT, 9, temperature=0.0),
    "samples": Sampling(PROMPT[:21], 7, num_samples=3, seed=4),
    "beam": Beam(PROMPT[:33], 8, width=3),
}


def tokens_of(results):
    return {name: [h.tokens for h in decoded.hypotheses] for name, decoded in results.items()}


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_sharing_and_copying_give_the_same_outputs(block_size):
    session = PagedSession(MODEL, num_blocks=400 // block_size + 8, block_size=block_size, scatter_seed=1)
    shared, copied = generate(session, MIXED), generate(CopyingSession(MODEL), MIXED)
    assert tokens_of(shared) == tokens_of(copied)
    for name, decoded in shared.items():
        for ours, theirs in zip(decoded.hypotheses, copied[name].hypotheses):
            assert math.isclose(ours.log_probability, theirs.log_probability, abs_tol=1e-10)
    session.manager.check_integrity()
    assert session.manager.num_free == session.manager.num_blocks


def test_torch_gives_the_same_outputs():
    session = PagedSession(tiny_llm(TorchBackend()), num_blocks=60, block_size=8)
    assert tokens_of(generate(session, MIXED)) == tokens_of(generate(CopyingSession(MODEL), MIXED))


def test_one_batch_or_alone_is_the_same():
    alone = {}
    for name, request in MIXED.items():
        alone |= generate(PagedSession(MODEL, 60, 8), {name: request})
    assert tokens_of(alone) == tokens_of(generate(PagedSession(MODEL, 60, 8), MIXED))


def test_beam_search_finds_what_trying_everything_finds():
    # With a width that holds every continuation (5 tokens, 2 steps: 25), beam search is exhaustive.
    rows = {(): [0.5, 0.2, 0.1, 0.1, 0.1]} | {(t,): [0.2 + 0.1 * (t == i) - 0.025 * (t != i) for i in range(5)] for t in range(5)}

    class Table:
        def __init__(self):
            self.seen = {}

        def feed(self, feeds):
            for seq, new in feeds.items():
                self.seen[seq] = self.seen[seq] + tuple(new) if seq in self.seen else ()
            return {seq: [math.log(p) for p in rows[self.seen[seq]]] for seq in feeds}

        def fork(self, parent, child):
            self.seen[child] = self.seen[parent]

        def free(self, seq):
            del self.seen[seq]

    everything = sorted(((rows[()][a] * rows[(a,)][b], (a, b)) for a in range(5) for b in range(5)), key=lambda x: -x[0])
    found = generate(Table(), {"b": Beam([0], 2, width=25)})["b"].hypotheses
    assert [math.exp(h.log_probability) for h in found] == pytest.approx([p for p, _ in everything])
    assert found[0].tokens == (0, 0)


def test_replay_predicts_the_blocks_of_a_real_run():
    # A real run never feeds the last token it chose, so its tree is one step shorter.
    for request in (Sampling(PROMPT[:21], 12, num_samples=4, seed=2), Beam(PROMPT[:21], 12, width=4)):
        session = PagedSession(MODEL, num_blocks=80, block_size=4)
        parents = generate(session, {"x": request})["x"].parents
        assert session.copied_blocks == replay(21, parents[:-1], 4).copies


def test_a_sample_ends_at_its_stop_token_and_its_blocks_come_back():
    free = generate(PagedSession(MODEL, 60, 8), {"s": Sampling(PROMPT, 12, num_samples=3, seed=4)})["s"]
    stop = free.hypotheses[1].tokens[2]
    session = PagedSession(MODEL, 60, 8)
    stopped = generate(session, {"s": Sampling(PROMPT, 12, num_samples=3, seed=4, stop_token=stop)})["s"]
    for before, after in zip(free.hypotheses, stopped.hypotheses):
        end = before.tokens.index(stop) + 1 if stop in before.tokens else 12
        assert after.tokens == before.tokens[:end]
    assert session.manager.num_free == 60


@settings(max_examples=100, deadline=None, derandomize=True)
@given(weights=st.lists(st.floats(0, 10), min_size=1, max_size=8).filter(any), seed=st.integers(0, 99))
def test_a_drawn_token_is_possible(weights, seed):
    logs = [math.log(w) if w > 1e-300 else -math.inf for w in weights]
    if max(logs) > -math.inf:
        assert weights[draw_token(logs, 1.0, random.Random(seed))] > 0
        assert weights[draw_token(logs, 0.0, random.Random(seed))] == pytest.approx(max(weights))


def test_draws_follow_the_probabilities():
    rng, logs = random.Random(0), [math.log(0.7), math.log(0.2), math.log(0.1)]
    share = sum(draw_token(logs, 1.0, rng) == 0 for _ in range(4000)) / 4000
    # Four standard deviations: 4 · sqrt(0.7 · 0.3 / 4000) = 0.029.
    assert abs(share - 0.7) < 0.029


def test_bad_requests_are_refused():
    for make in (lambda: Sampling([], 3), lambda: Sampling([1], 0), lambda: Sampling([1], 3, num_samples=0),
                 lambda: Sampling([1], 3, temperature=-1.0), lambda: Sampling([1], 3, temperature=math.nan),
                 lambda: Beam([1], 3, width=0), lambda: Beam([1], True, width=2)):
        with pytest.raises(ConfigError):
            make()


def test_a_pool_that_is_too_small_refuses_the_batch_and_keeps_the_sequences():
    session = PagedSession(MODEL, num_blocks=3, block_size=4)
    session.feed({"a": PROMPT[:8]})
    with pytest.raises(OutOfBlocks):
        session.feed({"a": PROMPT[:4], "b": PROMPT[:5]})
    assert session.manager.num_tokens("a") == 8 and session.manager.num_free == 1
    with pytest.raises(ConfigError, match="seqs"):
        session.feed({})
    for attempt in (session.free, session.swap_out, session.swap_in, lambda seq: session.fork(seq, "c")):
        with pytest.raises(UnknownSequence):
            attempt("nobody")
    with pytest.raises(UnknownSequence):
        CopyingSession(MODEL).free("nobody")


def test_descend_forks_before_it_frees():
    calls = []

    class Recorder:
        def fork(self, parent, child):
            calls.append(("fork", parent, child))

        def free(self, seq):
            calls.append(("free", seq))

    names = iter("xyz")
    assert descend(Recorder(), ["a", "b", "c"], [2, 0, 2], names.__next__) == ["c", "a", "x"]
    assert calls == [("fork", "c", "x"), ("free", "b")]
