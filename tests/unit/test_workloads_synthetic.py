"""Generated workloads: deterministic, calibrated, and refused when they make no sense."""

import math

import pytest
from hash_seeds import printed_under_hash_seeds

from kvlib.errors import ConfigError
from kvlib.workloads import Request, alpaca_like, fixed_lengths, mean_lengths, sharegpt_like


@pytest.mark.parametrize(
    "generate, mean_input, mean_output",
    [(sharegpt_like, 161.31, 337.99), (alpaca_like, 19.31, 58.45)],  # vLLM paper, section 6.1
)
def test_realized_means_are_near_the_published_ones(generate, mean_input, mean_output):
    realized = mean_lengths(generate(20_000, rate=3.0, seed=5))
    # Standard deviations are at most 1.6 means: four standard errors of 20,000 draws are 4.5 %.
    assert abs(realized[0] / mean_input - 1) < 0.045
    assert abs(realized[1] / mean_output - 1) < 0.045


def test_sharegpt_fits_the_position_limit_of_opt():
    assert all(
        r.num_input_tokens + r.num_output_tokens <= 2048 for r in sharegpt_like(5_000, rate=1.0, seed=6)
    )


@pytest.mark.parametrize("generate", [sharegpt_like, alpaca_like])
def test_seed_decides_everything_and_rate_changes_only_times(generate):
    slow, again, fast = (generate(50, rate=rate, seed=7) for rate in (1.0, 1.0, 10.0))
    assert slow == again
    assert slow != generate(50, rate=1.0, seed=8)
    assert [lengths_of(r) for r in slow] == [lengths_of(r) for r in fast]
    assert slow[-1].arrival_s > fast[-1].arrival_s
    assert slow[:20] == generate(20, rate=1.0, seed=7)


def lengths_of(request):
    return request.num_input_tokens, request.num_output_tokens


def test_result_does_not_depend_on_the_hash_seed():
    program = "from kvlib.workloads import sharegpt_like; print(sharegpt_like(20, rate=2.0, seed=9))"
    outputs = printed_under_hash_seeds(program)
    assert len(outputs) == 1


def test_fixed_lengths_are_fixed():
    requests = fixed_lengths(10, rate=1.0, seed=0, num_input_tokens=100, num_output_tokens=300)
    assert {lengths_of(request) for request in requests} == {(100, 300)}
    assert len({request.arrival_s for request in requests}) == 10


@pytest.mark.parametrize(
    "field, value", [("n", 0), ("n", 1.0), ("rate", 0), ("rate", math.nan), ("seed", "0")]
)
def test_bad_argument_is_refused_by_name(field, value):
    arguments = {"n": 3, "rate": 1.0, "seed": 0, field: value}
    with pytest.raises(ConfigError, match=f"{field}: "):
        sharegpt_like(**arguments)


@pytest.mark.parametrize(
    "field, value",
    [
        ("arrival_s", -1), ("arrival_s", math.nan), ("arrival_s", math.inf), ("arrival_s", "1"),
        ("arrival_s", True), ("arrival_s", 10**400),
        ("num_input_tokens", 0), ("num_input_tokens", 1.0), ("num_input_tokens", True),
        ("num_output_tokens", -1), ("num_output_tokens", "3"),
        ("block_ids", [1]), ("block_ids", (1.0,)), ("block_ids", (True,)), ("block_ids", (-1,)),
        ("block_ids", "12"),
    ],
)  # fmt: skip
def test_bad_request_is_refused_by_name(field, value):
    arguments = {"arrival_s": 0.0, "num_input_tokens": 1, "num_output_tokens": 0, field: value}
    with pytest.raises(ConfigError, match=f"{field}: "):
        Request(**arguments)
