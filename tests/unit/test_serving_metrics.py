"""Percentiles, throughput, goodput and the timeline export."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.errors import ConfigError
from kvlib.serving import KINDS, SPAN_KINDS, RequestOutcome, chrome_trace, percentile, request_spans, simulate
from kvlib.workloads import Request, sharegpt_like


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(-50, 50), min_size=1, max_size=40), st.integers(1, 10_000))
def test_a_percentile_is_the_least_value_with_enough_at_or_below_it(values, hundredths):
    found = percentile(values, hundredths / 100)
    enough = hundredths * len(values) / 10_000
    assert found in values
    assert sum(value <= found for value in values) >= enough
    assert sum(value < found for value in values) < enough


@pytest.mark.parametrize("percent", [0, -1, 100.1, math.nan, "99", True])
def test_a_percentage_out_of_range_is_refused(percent):
    with pytest.raises(ConfigError, match="percent"):
        percentile([1, 2], percent)


def outcome(ttft_s, tbt_s, num_output_tokens=11):
    """A request of 11 tokens has 10 gaps."""
    first_s = 1.0 + ttft_s
    return RequestOutcome(0, 1.0, 10, num_output_tokens, first_s, first_s + tbt_s * (num_output_tokens - 1))


@pytest.mark.parametrize(
    "row, is_met",
    [
        (outcome(0.25, 0.0625), True),
        (outcome(0.5, 0.125), True),  # both exactly at the limit
        (outcome(0.75, 0.0625), False),
        (outcome(0.25, 0.25), False),
        (outcome(0.25, 0.0, num_output_tokens=1), True),  # one token has no gap
        (RequestOutcome(0, 1.0, 10, 11, rejection="too large"), False),
        (RequestOutcome(0, 1.0, 10, 11, first_token_s=1.25), False),  # never finished
    ],
)
def test_both_objectives_must_be_met(row, is_met):
    assert row.meets(ttft_slo_s=0.5, tbt_slo_s=0.125) is is_met


def test_goodput_counts_requests_that_meet_both_objectives():
    result = simulate(sharegpt_like(80, rate=6.0, seed=5), num_slots=4096)
    slow_start = sum(row.ttft_s > 1.0 for row in result.per_request)
    slow_tokens = sum(row.tbt_s is not None and row.tbt_s > 0.03 for row in result.per_request)
    both = sum(row.ttft_s <= 1.0 and (row.tbt_s or 0) <= 0.03 for row in result.per_request)
    assert slow_start and slow_tokens and both < 80 - max(slow_start, slow_tokens)  # attainment is joint
    assert result.goodput_per_s(ttft_slo_s=1.0, tbt_slo_s=0.03) == both / result.duration_s
    assert result.attainment(ttft_slo_s=1.0, tbt_slo_s=0.03) == both / 80
    assert result.goodput_per_s(ttft_slo_s=1e6, tbt_slo_s=1e6) == result.requests_per_s
    assert result.output_tokens_per_s == pytest.approx(
        result.requests_per_s * result.output_tokens / result.completed
    )


def test_percentiles_of_a_run():
    result = simulate(sharegpt_like(80, rate=6.0, seed=5), num_slots=4096)
    ttfts = sorted(row.ttft_s for row in result.per_request)
    assert result.percentile("ttft_s", 100) == ttfts[-1]
    assert result.percentile("ttft_s", 50) == ttfts[39]  # 40 of 80 are at or below it
    assert result.percentile("normalized_latency_s", 99) == max(
        row.normalized_latency_s for row in result.per_request
    )
    with pytest.raises(ConfigError, match="latency: got 'speed', expected one of latency_s, normalized"):
        result.percentile("speed", 50)


def test_without_rows_there_are_no_percentiles():
    result = simulate([Request(0.0, 10, 10)], record=False)
    for ask in (
        lambda: result.percentile("ttft_s", 99),
        lambda: result.goodput_per_s(ttft_slo_s=1.0, tbt_slo_s=1.0),
    ):
        with pytest.raises(ConfigError, match="record: got False"):
            ask()


def test_the_empty_run_has_no_throughput():
    empty = simulate([])
    assert (empty.requests_per_s, empty.output_tokens_per_s) == (0.0, 0.0)
    assert empty.percentile("ttft_s", 99) is None
    assert empty.attainment(ttft_slo_s=1.0, tbt_slo_s=1.0) == 0.0
    assert empty.goodput_per_s(ttft_slo_s=1.0, tbt_slo_s=1.0) == 0.0


def test_spans_name_what_happened():
    """Two prompts of 8 outgrow 8 blocks of 4 (pedagogy, chapter 5, exercise 1)."""
    two = [Request(0.0, 8, 16)] * 2

    def kinds(**knobs):
        spans = request_spans(simulate(two, num_slots=32, block_size=4, **knobs))
        return [[span.kind for span in spans[index]] for index in (0, 1)]

    assert kinds() == [["prefill", "decode"], ["prefill", "decode", "preempted", "prefill", "decode"]]
    assert kinds(cpu_slots=16) == [["prefill", "decode"], ["prefill", "decode", "swapped", "decode"]]
    assert kinds(memory="oracle") == [["prefill", "decode"], ["waiting", "prefill", "decode"]]
    uneven = [Request(0.0, 8, 4), Request(0.0, 8, 16)]
    spans = request_spans(simulate(uneven, memory="static", num_slots=64, max_len=32))
    assert [span.kind for span in spans[0]] == ["prefill", "decode", "held"]


def test_the_trace_of_a_run_can_be_viewed():
    result = simulate(sharegpt_like(40, rate=6.0, seed=5), num_slots=2048, cpu_slots=1024)
    events = json.loads(chrome_trace(result))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["tid"] for event in spans} == set(range(40))
    kinds = {event["name"] for event in spans}
    assert {"waiting", "prefill", "decode", "swapped"} <= kinds <= set(SPAN_KINDS)
    assert all(event["dur"] > 0 for event in spans)
    life_us = math.fsum(event["dur"] for event in spans)
    assert life_us == pytest.approx(1e6 * math.fsum(row.latency_s for row in result.per_request))
    counters = [event for event in events if event["ph"] == "C"]
    assert len(counters) == len(result.timeline)
    assert all(sum(event["args"][kind] for kind in KINDS) == 2048 for event in counters)
