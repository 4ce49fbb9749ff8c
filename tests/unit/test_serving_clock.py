"""Integer step times: close to the cost model, and closed forms equal to adding step by step."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.cost import decode_step_s, mixed_step_s
from kvlib.errors import ConfigError
from kvlib.serving import StepClock
from kvlib.serving.clock import DecodeSteps
from kvlib.specs import get_gpu, get_model

PAIRS = [
    ("opt-13b", "a100-40gb", 1),
    ("opt-66b", "a100-40gb", 4),
    ("llama-3-8b", "h100-80gb", 1),
    ("deepseek-v3", "h200", 8),
]


@pytest.mark.parametrize("model, gpu, num_gpus", PAIRS)
@settings(derandomize=True, deadline=None, max_examples=30)
@given(
    chunks=st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 2000)), max_size=4),
    contexts=st.lists(st.integers(1, 4000), max_size=40),
)
def test_a_step_is_the_cost_model_rounded(model, gpu, num_gpus, chunks, contexts):
    """Each coefficient is off by at most half a picosecond, and the smallest here is 400 of them."""
    if not chunks and not contexts:
        return
    model, gpu = get_model(model), get_gpu(gpu)
    step_ps = StepClock(model, gpu, num_gpus).step_ps(chunks, len(contexts), sum(contexts))
    assert type(step_ps) is int
    assert step_ps / 1e12 == pytest.approx(
        mixed_step_s(model, gpu, chunks, contexts, num_gpus=num_gpus), rel=2e-3
    )


def test_decode_step_of_opt_13b():
    model, gpu = get_model("opt-13b"), get_gpu("a100-40gb")
    steps = StepClock(model, gpu).steps(num_decodes=16, kv_tokens=16 * 500)
    assert steps.elapsed_ps(1) / 1e12 == pytest.approx(decode_step_s(model, gpu, [500] * 16), rel=1e-6)


@settings(derandomize=True, deadline=None)
@given(
    st.integers(0, 10**9),
    st.integers(1, 5000),
    st.integers(1, 100),
    st.integers(0, 10**6),
    st.integers(1, 60),
)
def test_closed_forms_equal_adding_step_by_step(fixed_ps, kv_tokens, num_decodes, kv_ps, num_steps):
    first_ps = fixed_ps + kv_ps * kv_tokens + 1
    steps = DecodeSteps(first_ps, kv_tokens, num_decodes, kv_ps)
    elapsed = token_time = 0
    ends = []
    for step in range(num_steps):
        tokens = kv_tokens + step * num_decodes
        duration = fixed_ps + 1 + kv_ps * tokens
        elapsed += duration
        token_time += duration * tokens
        ends.append(elapsed)
    assert (steps.elapsed_ps(num_steps), steps.token_time(num_steps)) == (elapsed, token_time)
    for wait_ps in {1, ends[num_steps // 2], ends[num_steps // 2] + 1, ends[-1], ends[-1] + 1}:
        expected = next((step + 1 for step, end in enumerate(ends) if end >= wait_ps), num_steps)
        assert steps.steps_until(wait_ps, limit=num_steps) == expected


@pytest.mark.parametrize("model", ["gemma-3-27b", "gpt-oss-20b"])
def test_models_whose_reads_are_not_proportional_to_context_are_refused(model):
    with pytest.raises(ConfigError, match=model):
        StepClock(get_model(model), get_gpu("h200"))
