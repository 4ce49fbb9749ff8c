"""The codec: bytes in, bytes out. Cases E01, E03, E04, E06, E10, E12, E13; laws L4 (both backends) and L8."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kvlib.cachegen import (
    CENTRED,
    LEVELS,
    PAPER,
    DecodeError,
    Profile,
    Recipe,
    decode,
    encode,
    learn_profile,
    split,
)
from kvlib.cachegen.levels import layer_group
from kvlib.cachegen.quantize import anchor_places
from kvlib.errors import ConfigError

LAW = settings(max_examples=60, deadline=None, derandomize=True)
LAYERS, CHANNELS = 3, 4
RECIPES = {"paper": PAPER, "centred": CENTRED, "uniform": Recipe(group_tokens=1, anchor_bits=4)}


def make_kv(tokens, layers=LAYERS, channels=CHANNELS, seed=0):
    """Channels with offsets and spreads of their own, as keys have."""
    rng = np.random.default_rng(seed)
    shape_of = np.random.default_rng(99)
    offset = shape_of.normal(size=(layers, 2, 1, channels)) * 3
    spread = shape_of.uniform(0.2, 2, (layers, 2, 1, channels))
    return (rng.normal(size=(layers, 2, tokens, channels)) * spread + offset).astype(np.float32)


PROFILES = {
    name: learn_profile([make_kv(90, seed=s) for s in (1, 2, 3)], recipe) for name, recipe in RECIPES.items()
}


def half_steps(kv, profile, level):
    """The most each number may move, worked out from the input and the bins, not from the codec's output."""
    planes = kv.astype(np.float64).reshape(2 * profile.layers, kv.shape[2], profile.channels)
    recipe, tokens = profile.recipe, kv.shape[2]
    bound = np.empty(planes.shape)
    bound[:] = (profile.bins(level) / 2)[:, None, None]
    highest = np.abs(planes).max(-1, keepdims=True, initial=0)
    exact = min(recipe.exact_tokens, tokens)
    anchor_at = exact + anchor_places(tokens - exact, recipe)[0]
    bound[:, anchor_at] = (highest / (2**recipe.anchor_bits - 2))[:, anchor_at]
    bound[:, :exact] = highest[:, :exact] / (2**16 - 2)
    # The scale is a float32 and so is the result; 1e-37 covers numbers near float32's smallest.
    return (bound * (1 + 1e-6) + np.abs(planes) * 2**-23 + 1e-37).reshape(kv.shape)


@LAW
@given(
    arrays(
        np.float32,
        st.tuples(st.just(LAYERS), st.just(2), st.integers(0, 25), st.just(CHANNELS)),
        elements=st.floats(-1e6, 1e6, width=32),
    ),
    st.integers(0, len(LEVELS) - 1),
    st.sampled_from(sorted(RECIPES)),
)
def test_every_number_returns_within_half_a_step(kv, level, name):
    back = decode(encode(kv, PROFILES[name], level, chunk_tokens=100), PROFILES[name])
    assert back.shape == kv.shape and back.dtype == np.float32
    assert (np.abs(back.astype(np.float64) - kv) <= half_steps(kv, PROFILES[name], level)).all()


def test_e13_an_outlier_channel_stays_within_half_a_step():
    kv = make_kv(60)
    kv[1, 0, :, 2] *= 50
    for name, profile in PROFILES.items():
        back = decode(encode(kv, profile, 3), profile)
        assert (np.abs(back.astype(np.float64) - kv) <= half_steps(kv, profile, 3)).all(), name


def test_the_sent_bytes_are_the_rate_and_each_level_is_smaller_and_coarser():
    kv = make_kv(800, seed=5)
    profile = learn_profile([make_kv(800, seed=s) for s in (1, 2, 3, 4)])
    blobs = [encode(kv, profile, level) for level in range(len(LEVELS))]
    sizes = [len(blob) for blob in blobs]
    errors = [float(np.abs(decode(blob, profile) - kv).mean()) for blob in blobs]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == len(LEVELS)
    assert errors == sorted(errors) and errors[0] < errors[-1] / 2
    assert sizes[-1] < kv.size  # fewer than 8 bits a number


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 5, 6, 28, 61])
def test_e01_any_layer_count_is_covered_without_gap_or_overlap(layers):
    groups = [layer_group(layer, layers) for layer in range(layers)]
    assert groups == sorted(groups) and set(groups) <= {0, 1, 2}
    sizes = [groups.count(group) for group in range(3)]
    assert sum(sizes) == layers and max(sizes) - min(sizes) <= 1
    kv = make_kv(12, layers=layers)
    profile = learn_profile([make_kv(30, layers=layers, seed=1)])
    assert decode(encode(kv, profile, 1), profile).shape == kv.shape


def test_e10_shallow_layers_get_finer_bins_and_less_error():
    # All layers are drawn alike, so only the widths can make the difference: 0.5, 1 and 1.5.
    rng = np.random.default_rng(0)
    contexts = [rng.normal(size=(6, 2, 200, 8)).astype(np.float32) for _ in range(3)]
    profile = learn_profile(contexts[1:])
    error = np.abs(decode(encode(contexts[0], profile, 2), profile) - contexts[0]).mean((1, 2, 3))
    assert error[0] < 0.6 * error[2] and error[2] < 0.8 * error[5]


def test_e10_tables_per_layer_and_channel_are_smaller_than_pooled_ones_on_channel_structured_data():
    contexts = [make_kv(1000, layers=3, channels=16, seed=s) for s in range(4)]
    sizes = [
        len(encode(contexts[0], learn_profile(contexts[1:], Recipe(tables=tables)), 2))
        for tables in ("layer_channel", "layer", "global")
    ]
    assert sizes[0] < 0.97 * sizes[1] and sizes[1] < sizes[2]


@pytest.mark.parametrize("chunks", [1, 127, 128, 129, 255, 256, 257])
def test_e06_chunks_decode_alone_to_the_same_bits(chunks):
    kv = make_kv(chunks, layers=1, channels=2, seed=8)
    for recipe in (PAPER, CENTRED):
        profile = learn_profile([make_kv(90, layers=1, channels=2, seed=1)], recipe)
        blob = encode(kv, profile, 1, chunk_tokens=1)
        alone = [decode(part, profile) for part in split(blob)]
        assert len(alone) == chunks
        assert np.array_equal(np.concatenate(alone, axis=2), decode(blob, profile))


@pytest.mark.parametrize("tokens", [0, 1, 3, 9, 10, 11, 25])
@pytest.mark.parametrize("name", sorted(RECIPES))
def test_any_length_round_trips(tokens, name):
    kv = make_kv(tokens)
    for chunk_tokens in (4, 10, 1500):
        assert (
            decode(encode(kv, PROFILES[name], 0, chunk_tokens=chunk_tokens), PROFILES[name]).shape == kv.shape
        )


def test_all_zero_rows_and_constant_channels_round_trip():
    kv = make_kv(40)
    kv[0] = 0
    kv[1, :, :, 1] = 7.25
    profile = learn_profile([kv])
    back = decode(encode(kv, profile, 0), profile)
    assert (back[0] == 0).all()
    assert (np.abs(back.astype(np.float64) - kv) <= half_steps(kv, profile, 0)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_e03_a_number_that_is_none_is_refused_with_its_place(bad):
    kv = make_kv(10).astype(np.float64)
    kv[2, 1, 7, 3] = bad
    with pytest.raises(ConfigError, match="V of layer 2, token 7, channel 3"):
        encode(kv, PROFILES["paper"], 0)


def test_e03_the_largest_float16_survives():
    kv = make_kv(10).astype(np.float16)
    kv[0, 0, 3, 1] = 65504
    back = decode(encode(kv, PROFILES["paper"], 3), PROFILES["paper"])
    assert back.dtype == np.float16 and np.isfinite(back).all()


@pytest.mark.parametrize(
    "largest, to",
    [
        (3.4028235e38, lambda kv: kv),
        (3.3895e38, lambda kv: torch.tensor(kv).to(torch.bfloat16)),
    ],
)
def test_e03_the_largest_numbers_never_become_infinite(largest, to):
    kv = make_kv(10)
    kv[0, 0, 3] = [largest, -largest, largest / 3, 1.0]
    back = decode(encode(to(kv), PROFILES["uniform"], 0), PROFILES["uniform"])
    assert np.isfinite(back).all() and back[0, 0, 3, 0] > 0.9 * largest


def test_e04_dtypes_return_and_strides_do_not_matter():
    kv = make_kv(33)
    profile = PROFILES["paper"]
    reference = decode(encode(kv, profile, 0), profile)
    for dtype in (np.float16, np.float32, np.float64):
        back = decode(encode(kv.astype(dtype), profile, 0), profile)
        assert back.dtype == dtype
    swapped = np.ascontiguousarray(kv.transpose(3, 2, 1, 0)).transpose(3, 2, 1, 0)
    assert not swapped.flags.c_contiguous
    assert np.array_equal(decode(encode(swapped, profile, 0), profile), reference)
    brain = torch.tensor(kv).to(torch.bfloat16)
    blob = encode(brain, profile, 0)
    back = decode(blob, profile, backend="torch")
    assert back.dtype == torch.bfloat16
    # numpy has no bfloat16: the same numbers as float32, and what the float32 copy gives, rounded.
    assert np.array_equal(back.float().numpy(), decode(blob, profile))
    as_float32 = decode(encode(brain.float(), profile, 0), profile)
    assert np.array_equal(torch.tensor(as_float32).to(torch.bfloat16).float().numpy(), decode(blob, profile))


def test_l4_numpy_and_torch_give_the_same_bytes_and_numbers():
    kv = make_kv(57)
    profile = PROFILES["paper"]
    blob = encode(kv, profile, 1)
    assert encode(torch.tensor(kv), profile, 1, backend="torch") == blob
    assert np.array_equal(decode(blob, profile, backend="torch").numpy(), decode(blob, profile))


def test_e12_a_layer_without_kv_is_named():
    parts = [make_kv(5)[layer] for layer in range(LAYERS)]
    parts[1] = None
    with pytest.raises(ConfigError, match="layer 1 is None"):
        encode(parts, PROFILES["paper"], 0)


@pytest.mark.parametrize(
    "kv, message",
    [
        (make_kv(5)[0], "shape"),
        (make_kv(5, layers=4), "4, 4.*expected the profile's .3, 4"),
        (make_kv(5).astype(np.int32), "int32"),
        (make_kv(5) + 1j, "complex"),
        ("kv", "got str"),
    ],
)
def test_what_is_not_kv_of_this_model_is_refused(kv, message):
    with pytest.raises(ConfigError, match=message):
        encode(kv, PROFILES["paper"], 0)


@pytest.mark.parametrize("level", [-1, 4, True, "fine", 1.0, None])
def test_an_unknown_level_is_refused(level):
    with pytest.raises(ConfigError, match="level"):
        encode(make_kv(5), PROFILES["paper"], level)


def test_numbers_far_outside_the_profile_are_refused_not_wrapped():
    kv = make_kv(12)
    kv[1, 0, 5, 0] = 1e30
    with pytest.raises(ConfigError, match="layer 1 .*2.31 bins"):
        encode(kv, PROFILES["paper"], 0)


def test_a_profile_survives_its_file_and_a_damaged_file_does_not(tmp_path):
    profile = PROFILES["centred"]
    path = tmp_path / "profile.npz"
    profile.save(path)
    loaded = Profile.load(path)
    assert loaded.digest == profile.digest and loaded.recipe == profile.recipe
    blob = encode(make_kv(20), profile, 1)
    assert np.array_equal(decode(blob, loaded), decode(blob, profile))
    raw = path.read_bytes()
    assert b"pickle" not in raw
    for damaged in (raw[: len(raw) // 2], b"not a profile", raw[:200] + bytes([raw[200] ^ 1]) + raw[201:]):
        path.write_bytes(damaged)
        with pytest.raises(DecodeError, match="profile"):
            Profile.load(path)


def test_a_profile_needs_tokens_to_learn_from():
    for kvs in ([], [make_kv(0)]):
        with pytest.raises(ConfigError, match="no token to learn from"):
            learn_profile(kvs)
    with pytest.raises(ConfigError, match="expected KV of one model"):
        learn_profile([make_kv(5), make_kv(5, layers=2)])


@pytest.mark.parametrize(
    "field, value",
    [
        ("group_tokens", -1),
        ("group_tokens", True),
        ("exact_tokens", 1.5),
        ("exact_tokens", 65536),
        ("anchor_bits", 1),
        ("anchor_bits", 9),
        ("widths", (1.0, 1.0)),
        ("widths", (0.0, 1.0, 1.0)),
        ("tables", "channel"),
    ],
)
def test_an_impossible_recipe_is_refused(field, value):
    with pytest.raises(ConfigError, match=field):
        Recipe(**{field: value})
