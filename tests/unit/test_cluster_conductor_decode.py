"""Decode instances: skipping steps is the same as taking them one by one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.cluster import DecodeInstance, DecodePool
from kvlib.errors import ConfigError
from kvlib.serving.clock import StepClock
from kvlib.specs import get_gpu, get_model

CLOCK = StepClock(get_model("llama-2-70b"), get_gpu("a800-80gb"), 8)
MS = 10**6


class OneByOne:
    """The same batch, one step at a time."""

    def __init__(self):
        self.now_ps, self.running, self.finished = 0, [], 0

    def join(self, tokens, steps):
        self.running.append([tokens + 1, steps])

    def advance(self, now_ps):
        while self.running and self.now_ps < now_ps:
            self.now_ps += CLOCK.step_ps((), len(self.running), sum(tokens for tokens, _ in self.running))
            for request in self.running:
                request[0] += 1
                request[1] -= 1
            self.finished += sum(left == 0 for _, left in self.running)
            self.running = [request for request in self.running if request[1]]
        self.now_ps = max(self.now_ps, now_ps)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    joins=st.lists(
        st.tuples(st.integers(0, 400 * MS), st.integers(1, 20_000), st.integers(1, 40)), min_size=1, max_size=12
    )
)
def test_skipping_ahead_lands_where_single_steps_would(joins):
    fast, slow = DecodeInstance(CLOCK), OneByOne()
    for gap_ns, tokens, steps in joins:
        for instance in (fast, slow):
            instance.advance(slow.now_ps + gap_ns * 1000 if instance is fast else fast._now_ps)
        assert fast._now_ps == slow.now_ps
        assert (fast.num_running, fast.num_finished) == (len(slow.running), slow.finished)
        assert fast.kv_tokens == sum(held for held, _ in slow.running)
        fast.join(tokens, steps)
        slow.join(tokens, steps)
    fast.advance(10**18)
    slow.advance(10**18)
    assert (fast.num_running, fast.kv_tokens, fast.num_finished) == (0, 0, slow.finished) == (0, 0, len(joins))


def test_the_shortest_step_is_chosen_until_the_limit():
    step_ps = CLOCK.step_ps((), 1, 1001)
    pool = DecodePool(2, CLOCK, tbt_slo_s=(step_ps + 5 * MS) / 1e12)
    first = pool.select(0, 1000)
    first.join(1000, 50)
    second = pool.select(0, 1000)
    assert second is not first
    # A request so long that its KV alone takes the step over the limit is refused.
    too_long = 2 * 5 * MS // CLOCK.kv_ps + 2000
    assert pool.select(0, too_long) is None


def test_bad_values_are_refused():
    with pytest.raises(ConfigError, match="steps"):
        DecodeInstance(CLOCK).join(100, steps=0)
    for bad in (0, -1, float("nan"), "0.1", True):
        with pytest.raises(ConfigError, match="tbt_slo_s"):
            DecodePool(1, CLOCK, tbt_slo_s=bad)
