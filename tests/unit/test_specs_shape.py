"""Laws of the KV size: growth, its inverse, tensor parallelism, storage formats."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.errors import ConfigError
from kvlib.specs import KV_DTYPES, KvDtype, KvShape, LayerGroup, StateTensor

LAW = settings(derandomize=True, deadline=None, max_examples=200)

groups = st.builds(
    LayerGroup,
    layers=st.integers(1, 40),
    kv_heads=st.integers(1, 16),
    elements_per_head=st.integers(1, 512),
    window=st.none() | st.integers(1, 5000),
)
state_tensors = st.builds(
    StateTensor,
    name=st.just("state"),
    layers=st.integers(1, 40),
    units=st.integers(1, 64),
    elements_per_unit=st.integers(1, 500),
    bytes_per_element=st.sampled_from([2, 4]),
)
shapes = st.builds(
    KvShape,
    groups=st.lists(groups, max_size=4).map(tuple),
    states=st.lists(state_tensors, max_size=2).map(tuple),
)
dtypes = st.sampled_from(sorted(KV_DTYPES))
policies = st.sampled_from(["ideal", "uniform"])

LLAMA_8B = KvShape.uniform(layers=32, kv_heads=8, head_dim=128)
DEEPSEEK_V3 = KvShape.mla(layers=61, kv_lora_rank=512, qk_rope_head_dim=64)
GPT_OSS_20B = KvShape((LayerGroup(12, 8, 128, 128), LayerGroup(12, 8, 128)))
GEMMA3_27B = KvShape((LayerGroup(52, 16, 256, 1024), LayerGroup(10, 16, 256)))


@LAW
@given(shape=shapes, tokens=st.integers(0, 20_000), dtype=dtypes)
def test_ideal_never_exceeds_uniform_and_both_grow(shape, tokens, dtype):
    ideal, uniform = (shape.kv_bytes(tokens, dtype, policy) for policy in ("ideal", "uniform"))
    assert ideal <= uniform == shape.state_bytes + tokens * shape.kv_bytes_per_token(dtype)
    assert shape.kv_bytes(0, dtype) == shape.state_bytes
    step = shape.kv_bytes(tokens + 1, dtype) - ideal
    assert 0 <= step <= shape.kv_bytes_per_token(dtype)


@LAW
@given(shape=shapes, budget=st.integers(0, 10**10), dtype=dtypes, policy=policies)
def test_max_tokens_is_the_exact_inverse(shape, budget, dtype, policy):  # case B10
    tokens = shape.max_tokens(budget, dtype, policy)
    if tokens is None:
        assert shape.kv_bytes(10**9, dtype, policy) <= budget
    elif shape.state_bytes > budget:
        assert tokens == 0
    else:
        assert shape.kv_bytes(tokens, dtype, policy) <= budget < shape.kv_bytes(tokens + 1, dtype, policy)


@LAW
@given(shape=shapes, tokens=st.integers(0, 20_000), policy=policies)
def test_max_tokens_at_the_boundary(shape, tokens, policy):
    size = shape.kv_bytes(tokens, "bf16", policy)
    found = shape.max_tokens(size, "bf16", policy)
    assert found is None or found >= tokens
    if size > shape.state_bytes and shape.kv_bytes(tokens - 1, "bf16", policy) < size:
        assert shape.max_tokens(size - 1, "bf16", policy) == tokens - 1


def test_max_tokens_of_gemma3_27b_in_10_gib():  # case B10
    # 62 layers of 16 * 256 * 2 = 8192 B per token; 52 of them stop at 1,024 tokens:
    # (10 * 2^30 - 52 * 8192 * 1024) / (10 * 8192) = 125,747.2
    assert GEMMA3_27B.max_tokens(10 * 2**30) == 125_747
    assert GEMMA3_27B.max_tokens(10 * 2**30, policy="uniform") == 10 * 2**30 // 507_904


def test_a_sequence_that_never_runs_out_or_never_starts():
    recurrent = KvShape((), (StateTensor("state", 4, 8, 100),))
    assert recurrent.max_tokens(6400) is None and recurrent.max_tokens(6399) == 0
    assert recurrent.kv_bytes_per_token() == 0
    windowed = KvShape.uniform(layers=2, kv_heads=1, head_dim=8, window=10)  # 64 B per token
    assert windowed.max_tokens(640) is None and windowed.max_tokens(639) == 9
    assert windowed.max_tokens(640, policy="uniform") == 10


def test_gpt_oss_20b_at_8192_tokens_and_32_sequences():  # case B09
    assert GPT_OSS_20B.kv_bytes(8192, policy="uniform") * 32 == 12 * 2**30
    # 12 layers hold 8,192 tokens and 12 hold 128, of 1,024 elements of 2 bytes
    assert GPT_OSS_20B.kv_bytes(8192) * 32 == 32 * 12 * (8192 + 128) * 1024 * 2
    assert abs(GPT_OSS_20B.kv_bytes(8192) * 32 / 2**30 - 6.09) < 0.01


@LAW
@given(heads=st.integers(1, 128), gpus=st.integers(1, 128), layers=st.integers(1, 100))
def test_tensor_parallel_deals_heads_out_or_replicates_them(heads, gpus, layers):
    shape = KvShape.uniform(layers=layers, kv_heads=heads, head_dim=64)
    if heads % gpus and gpus % heads:
        with pytest.raises(ConfigError, match="tensor_parallel"):
            shape.per_gpu(gpus)
        return
    one = shape.per_gpu(gpus).kv_bytes_per_token()
    assert one == shape.kv_bytes_per_token() // min(heads, gpus)
    assert one * gpus >= shape.kv_bytes_per_token()


def test_tensor_parallel_examples():
    # Qwen3-30B-A3B, 4 KV heads: kv_sizes.yaml, tensor_parallel_rules
    qwen = KvShape.uniform(layers=48, kv_heads=4, head_dim=128)
    assert [qwen.per_gpu(n).kv_bytes_per_token() for n in (1, 2, 4, 8)] == [98304, 49152, 24576, 24576]
    assert [DEEPSEEK_V3.per_gpu(n).kv_bytes_per_token() for n in (1, 3, 8)] == [70272] * 3  # case B04
    two_geometries = KvShape((LayerGroup(25, 8, 512, 1024), LayerGroup(5, 2, 1024)))  # Gemma-4-26B
    assert two_geometries.per_gpu(4).groups == (LayerGroup(25, 2, 512, 1024), LayerGroup(5, 1, 1024))


def test_tensor_parallel_shards_state_and_cross_attention():
    shape = KvShape(
        (LayerGroup(4, 6, 128),),
        (StateTensor("cross-attention", 4, 6, 128 * 1500),),
        cross_groups=(LayerGroup(4, 6, 128),),
    )
    half = shape.per_gpu(2)
    assert half.state_bytes == shape.state_bytes // 2
    assert half.cross_bytes_per_encoder_token() == shape.cross_bytes_per_encoder_token() // 2


@pytest.mark.parametrize(
    "dtype, size",
    [  # Llama-3.1-8B: 65,536 elements per token; case B18
        ("bf16", 131072),
        ("fp16", 131072),
        ("fp32", 262144),
        ("fp8", 65536),
        ("int8", 65536),
        ("int4", 32768),
        ("fp4", 32768),
        ("q8_0", 65536 + 65536 // 32 * 2),
        ("q4_0", 32768 + 4096),
        ("mxfp8", 65536 + 2048),
        ("nvfp4", 32768 + 4096),
        ("bfloat16", 131072),
        ("float16", 131072),
        ("fp8_e4m3", 65536),
        ("torch.float32", 262144),
        (KvDtype("8 bits, an fp16 scale per 32", 8, 32, 16), 69632),
    ],
)
def test_storage_formats(dtype, size):
    assert LLAMA_8B.kv_bytes_per_token(dtype) == size


@pytest.mark.parametrize("dtype", ["fp7", "", None, 16, "int3"])
def test_an_unknown_format_is_refused(dtype):
    with pytest.raises(ConfigError, match="kv_dtype: got"):
        LLAMA_8B.kv_bytes_per_token(dtype)


def test_auto_is_the_dtype_of_the_file_and_an_explicit_one_overrules_it():  # case B18
    config = {"model_type": "llama", "num_key_value_heads": 8, "torch_dtype": "float32"}
    shape = KvShape.from_hf_config(config)
    assert shape.kv_bytes_per_token("auto") == 262144
    assert shape.kv_bytes_per_token("fp8") == 65536
    assert shape.kv_bytes_per_token() == 131072
    with pytest.raises(ConfigError, match="'auto'"):
        LLAMA_8B.kv_bytes_per_token("auto")


def test_state_is_not_changed_by_the_kv_format():
    whisper = KvShape((LayerGroup(4, 6, 128),), (StateTensor("cross-attention", 4, 6, 128 * 1500),))
    assert {whisper.kv_bytes(0, dtype) for dtype in KV_DTYPES} == {9_216_000}  # case B21


@pytest.mark.parametrize(
    "call",
    [
        lambda: LLAMA_8B.kv_bytes(-1),
        lambda: LLAMA_8B.kv_bytes(True),
        lambda: LLAMA_8B.kv_bytes(1.0),
        lambda: LLAMA_8B.kv_bytes(1, policy="lazy"),
        lambda: LLAMA_8B.max_tokens(-1),
        lambda: LLAMA_8B.max_tokens(float("nan")),
        lambda: LLAMA_8B.max_tokens(float("inf")),
        lambda: LLAMA_8B.max_tokens("1 GB"),
        lambda: LLAMA_8B.per_gpu(0),
        lambda: LLAMA_8B.per_gpu(3),
        lambda: KvShape.uniform(layers=0, kv_heads=1, head_dim=1),
        lambda: KvShape.uniform(layers=1, kv_heads=1, head_dim=True),
        lambda: KvShape.uniform(layers=1, kv_heads=1, head_dim=1, window=0),
        lambda: KvShape.mla(layers=1, kv_lora_rank=0, qk_rope_head_dim=64),
        lambda: StateTensor("s", 1, 1, -1),
    ],
)
def test_bad_arguments_are_config_errors_that_show_the_value(call):
    with pytest.raises(ConfigError, match="got"):
        call()


def test_the_lectures_sizes():
    assert (
        KvShape.uniform(layers=40, kv_heads=40, head_dim=128).kv_bytes_per_token() == 819_200
    )  # L7.kv.opt13b
    assert (
        KvShape.uniform(layers=80, kv_heads=8, head_dim=128).kv_bytes_per_token() == 327_680
    )  # L7.kv.llama70
    assert LLAMA_8B.kv_bytes(8000) == 1_048_576_000  # L9.kv8000
    odd = KvShape.uniform(layers=32, kv_heads=80, head_dim=128)  # S3.kv5.2
    assert (odd.kv_bytes(4000), odd.kv_bytes(4096), odd.kv_bytes(4000, "int8")) == (
        5_242_880_000,
        5 * 2**30,
        2_621_440_000,
    )
