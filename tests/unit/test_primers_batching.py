"""Laws of the batching primer: conservation, causality, slots, and what sets the two methods apart."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.errors import ConfigError
from kvlib.primers.batching import SCHEDULING, Request, Served, goodput_per_s, serve, time_in

quick = settings(max_examples=60, deadline=None, derandomize=True)
one_request = st.builds(Request, st.just("r"), st.integers(0, 300), st.integers(1, 80), st.integers(1, 12))
many = st.lists(one_request, min_size=1, max_size=8)
slots = st.integers(1, 5)
scheduling = st.sampled_from(SCHEDULING)
DECODE_MS = 20


@quick
@given(many, slots, scheduling)
def test_every_request_gets_all_its_tokens_and_none_before_its_cause(requests, slots, scheduling):
    for one in serve(requests, slots=slots, scheduling=scheduling):
        assert one.done
        assert one.token_ms == sorted(set(one.token_ms))
        assert one.spans[0].kind == "prefill" and one.spans[0].start_ms >= one.request.arrival_ms
        assert one.token_ms[0] == one.spans[0].end_ms == one.spans[0].start_ms + one.request.prompt_tokens
        assert one.token_ms[1:] == [span.end_ms for span in one.spans if span.kind == "decode"]


@quick
@given(many, slots, scheduling)
def test_a_slot_is_never_in_two_states_and_never_in_none(requests, slots, scheduling):
    for one in serve(requests, slots=slots, scheduling=scheduling):
        for before, after in zip(one.spans, one.spans[1:]):
            assert before.start_ms < before.end_ms == after.start_ms


@quick
@given(many, slots, scheduling)
def test_no_more_requests_hold_slots_than_there_are(requests, slots, scheduling):
    served = serve(requests, slots=slots, scheduling=scheduling)
    held = [(one.spans[0].start_ms, one.spans[-1].end_ms) for one in served]
    for start, _ in held:
        assert sum(first <= start < last for first, last in held) <= slots


@quick
@given(many, slots, scheduling)
def test_nothing_else_runs_beside_a_prefill(requests, slots, scheduling):
    served = serve(requests, slots=slots, scheduling=scheduling)
    busy = [(span, one) for one in served for span in one.spans if span.kind in ("prefill", "decode")]
    for span, owner in busy:
        if span.kind == "prefill":
            others = [other for other, one in busy if one is not owner]
            assert all(other.end_ms <= span.start_ms or span.end_ms <= other.start_ms for other in others)


@quick
@given(many, slots, scheduling)
def test_requests_start_in_order_of_arrival(requests, slots, scheduling):
    served = serve(requests, slots=slots, scheduling=scheduling)
    served = sorted(served, key=lambda one: one.request.arrival_ms)
    starts = [one.spans[0].start_ms for one in served]
    assert starts == sorted(starts)


@quick
@given(many, slots)
def test_continuous_batching_holds_no_slot_idle(requests, slots):
    assert time_in(serve(requests, slots=slots, scheduling="continuous"), "held") == 0


@quick
@given(many, slots)
def test_a_static_batch_starts_only_when_the_one_before_has_ended(requests, slots):
    served = serve(requests, slots=slots, scheduling="static")
    lives = [(one.spans[0].start_ms, one.spans[-1].end_ms) for one in served]
    for start, end in lives:
        for other_start, other_end in lives:
            overlap = start < other_end and other_start < end
            assert not overlap or end == other_end


@quick
@given(st.integers(1, 4), st.integers(1, 60), st.integers(2, 10))
def test_equal_lengths_at_once_look_the_same_both_ways(count, prompt, output):
    # Output 1 is left out: a continuous batch frees that slot during the others' prefills already.
    requests = [Request(f"r{i}", 0, prompt, output) for i in range(count)]
    static, continuous = (serve(requests, slots=count, scheduling=kind) for kind in SCHEDULING)
    assert static == continuous


@quick
@given(many, slots, scheduling)
def test_waiting_idling_and_working_add_up(requests, slots, scheduling):
    served = serve(requests, slots=slots, scheduling=scheduling)
    decode_steps = sum(one.request.output_tokens - 1 for one in served)
    assert time_in(served, "decode") == DECODE_MS * decode_steps
    assert time_in(served, "prefill") == sum(one.request.prompt_tokens for one in served)


def test_static_batch_by_hand():
    # Prefills 40 + 40; A: one step to 100. B: five steps to 180. A's slot idles 180 - 100. C: 180 + 40 + 20.
    a, b, c = serve(
        [Request("A", 0, 40, 2), Request("B", 0, 40, 6), Request("C", 0, 40, 2)], slots=2, scheduling="static"
    )
    assert (a.ttft_ms, b.ttft_ms, c.ttft_ms) == (40, 80, 220)
    assert (a.token_ms[-1], b.token_ms[-1], c.token_ms[-1]) == (100, 180, 240)
    assert time_in((a, b, c), "held") == 80


def test_a_newcomer_stalls_who_is_running():
    # A: prefill to 40, a step to 60. B has arrived by then and runs 60 to 90, so A's next token is at 110.
    a, b = serve([Request("A", 0, 40, 4), Request("B", 50, 30, 2)], slots=2, scheduling="continuous")
    assert a.token_ms == [40, 60, 110, 130]
    assert a.tbt_ms == [20, 50, 20] and a.tpot_ms == 30.0
    assert b.ttft_ms == 90 - 50


def test_goodput_counts_only_those_who_got_both():
    # TTFT / TPOT: 100 / 20, 100 / 60, 300 / 20; the last token of all is out at 2,000 ms.
    def with_times(ttft, tpot):
        return Served(Request("r", 2000 - tpot - ttft, 1, 2), token_ms=[2000 - tpot, 2000])

    served = [with_times(100, 20), with_times(100, 60), with_times(300, 20)]
    assert goodput_per_s(served, 200, 50) == 0.5
    assert goodput_per_s(served, 300, 60) == 1.5


def test_one_token_has_no_gaps():
    (one,) = serve([Request("A", 5, 10, 1)], slots=1, scheduling="continuous")
    assert (one.ttft_ms, one.tbt_ms, one.tpot_ms) == (10, [], 0.0)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"slots": 0}, "slots"), ({"slots": True}, "slots"), ({"scheduling": "dynamic"}, "scheduling"),
        ({"decode_ms": 0}, "decode_ms"), ({"decode_ms": 1.5}, "decode_ms"),
        ({"prefill_ms_per_token": -1}, "prefill_ms_per_token"), ({"requests": []}, "requests"),
    ],
)
def test_bad_settings_are_refused(change, field):
    settings = {"requests": [Request("A", 0, 1, 1)], "slots": 1, "scheduling": "static", **change}
    with pytest.raises(ConfigError, match=field):
        serve(settings.pop("requests"), **settings)


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ((-1, 1, 1), "arrival_ms"), ((0, 0, 1), "prompt_tokens"),
        ((0, 1, 0), "output_tokens"), ((0, 1, "2"), "output_tokens"),
    ],
)
def test_bad_requests_are_refused(row, field):
    with pytest.raises(ConfigError, match=field):
        Request("A", *row)
