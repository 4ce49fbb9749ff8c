"""The codec: KV in, bytes out, and back.

A context is cut into chunks that decode independently. In each chunk the first token of every group of ten is
an anchor; the others are differences from it, in bins that widen with depth; and all of these integers are
entropy-coded with the profile's tables. Source: CacheGen (Liu et al., SIGCOMM 2024), section 5.
"""

import struct

import numpy as np

from kvlib.cachegen import bitstream
from kvlib.cachegen.entropy import decode_lanes, encode_lanes
from kvlib.cachegen.kv_input import LARGEST, checked_kv, dtype_name
from kvlib.cachegen.levels import level_index
from kvlib.cachegen.profile import Profile
from kvlib.cachegen.quantize import Steps, anchor_places, from_steps, from_symbols, to_steps, to_symbols
from kvlib.errors import ConfigError, DecodeError
from kvlib.specs.checks import whole
from kvlib.tensors.backend import get_backend

# The paper's chunk: 1.5K tokens.
CHUNK_TOKENS = 1500
LANE_TOKENS = 10
_COUNTS = struct.Struct("<III")
_LARGEST = {"float64": LARGEST, "float32": LARGEST, "bfloat16": 255 * 2.0**120, "float16": 65504.0}


def encode(
    kv,
    profile: Profile,
    level: int,
    backend: str = "numpy",
    *,
    chunk_tokens: int = CHUNK_TOKENS,
    lane_tokens: int = LANE_TOKENS,
    device: str = "cpu",
) -> bytes:
    """Encode `kv`.

    Parameters
    ----------
    kv : array or tensor [layers, 2, tokens, channels]
        Keys and values of one context, float16, bfloat16, float32 or float64; channels are KV heads × head
        dimension. Any number of tokens, none included.
    profile : Profile
        Learned on other contexts of the same model.
    level : int
        Index into `LEVELS`; 0 is the finest.
    backend : str
        ``"numpy"`` or ``"torch"``; the bytes are the same.
    chunk_tokens : int
        Tokens per chunk, at most 65,535.
    lane_tokens : int
        Tokens per lane of the entropy coder, at most 255: more is smaller and slower.

    Raises
    ------
    ConfigError
        For a missing layer, another shape than the profile's, NaN or infinity (with layer and token), or an
        unknown level.

    Examples
    --------
    >>> from kvlib.cachegen.profile import learn_profile
    >>> rng = np.random.default_rng(0)
    >>> contexts = [rng.normal(size=(4, 2, 100, 16)).astype(np.float32) for _ in range(4)]
    >>> blob = encode(contexts[0], learn_profile(contexts[1:]), level=2)
    >>> decode(blob, learn_profile(contexts[1:])).shape, len(blob) < contexts[0].nbytes / 5
    ((4, 2, 100, 16), True)
    """
    planes = checked_kv(kv)
    if planes.shape[0] != 2 * profile.layers or planes.shape[2] != profile.channels:
        got, wanted = (planes.shape[0] // 2, planes.shape[2]), (profile.layers, profile.channels)
        raise ConfigError(f"kv: got {got} layers and channels, expected the profile's {wanted}")
    for field, value, largest in (("chunk_tokens", chunk_tokens, 65535), ("lane_tokens", lane_tokens, 255)):
        if whole(field, value) > largest:
            raise ConfigError(f"{field}: got {value}, expected at most {largest}")
    header = bitstream.Header(
        level_index(level),
        dtype_name(kv),
        lane_tokens,
        profile.recipe.exact_tokens,
        profile.layers,
        chunk_tokens,
        profile.channels,
        planes.shape[1],
        profile.digest,
    )
    xp = get_backend(backend, device=device)
    payloads = []
    for chunk, length in enumerate(header.chunk_lengths):
        begin = chunk * chunk_tokens
        payloads.append(
            _encode_chunk(planes[:, begin : begin + length], header.exact_in(chunk), header, profile, xp)
        )
    return bitstream.write(header, payloads)


def _encode_chunk(
    planes: np.ndarray, exact_tokens: int, header: bitstream.Header, profile: Profile, xp
) -> bytes:
    steps = to_steps(planes, exact_tokens, profile.means, profile.bins(header.level), profile.recipe)
    others, escapes = to_symbols(steps.others, profile.slots[header.level])
    coded = []
    for symbols, slots in ((steps.anchors, profile.anchor_slots), (others, profile.slots[header.level])):
        by_channel = np.ascontiguousarray(symbols.transpose(2, 0, 1))
        coded.append(encode_lanes(by_channel, slots, _lanes(symbols.shape[1], header), xp))
    (anchor_states, anchor_words), (states, words) = coded
    counts = _COUNTS.pack(len(anchor_words), len(words), len(escapes))
    return counts + bitstream.join_arrays([
        steps.exact_scale,
        steps.exact,
        steps.anchor_scale,
        anchor_states,
        anchor_words,
        states,
        words,
        escapes,
    ])


def decode(blob: bytes, profile: Profile, backend: str = "numpy", *, device: str = "cpu"):
    """Decode what `encode` wrote.

    Parameters
    ----------
    profile : Profile
        The very profile that the stream was encoded with.

    Returns
    -------
    array or tensor [layers, 2, tokens, channels]
        In the dtype that was encoded. numpy has no bfloat16, so there such KV comes back as float32 numbers
        that bfloat16 can hold.

    Raises
    ------
    DecodeError
        When the stream is damaged, cut, of another version, or was encoded with another profile.

    Examples
    --------
    >>> from kvlib.cachegen.profile import learn_profile
    >>> kv = np.random.default_rng(0).normal(size=(2, 2, 30, 4)).astype(np.float32)
    >>> profile = learn_profile([kv])
    >>> back = decode(encode(kv, profile, level=0), profile)
    >>> back.shape == kv.shape, bool(abs(back - kv).mean() < 0.2)
    (True, True)
    """
    header, payloads = bitstream.read(blob)
    if header.profile != profile.digest:
        raise DecodeError(f"profile: the stream needs {header.profile.hex()}, got {profile.digest.hex()}")
    if (header.layers, header.channels) != (profile.layers, profile.channels):
        raise DecodeError(
            f"header: {header.layers} layers × {header.channels} channels do not fit the profile"
        )
    xp = get_backend(backend, device=device)
    # Chunk by chunk: what a header promises is believed only as far as its bytes bear it out.
    parts = [
        _narrow(_decode_chunk(payload, chunk, header, profile, xp), header.dtype)
        for chunk, payload in enumerate(payloads)
    ]
    nothing = _narrow(np.empty((2 * header.layers, 0, header.channels)), header.dtype)
    kv = np.concatenate([nothing, *parts], axis=1).reshape(header.layers, 2, header.tokens, header.channels)
    return get_backend(backend, header.dtype, device).floats(kv) if backend == "torch" else kv


def _decode_chunk(payload: bytes, chunk: int, header: bitstream.Header, profile: Profile, xp) -> np.ndarray:
    if len(payload) < _COUNTS.size:
        raise DecodeError(f"chunk {chunk}: {len(payload)} bytes, expected at least {_COUNTS.size}")
    num_anchor_words, num_words, num_escapes = _COUNTS.unpack_from(payload)
    exact = header.exact_in(chunk)
    anchor_at, other_at = anchor_places(header.chunk_lengths[chunk] - exact, profile.recipe)
    anchors, others, planes = len(anchor_at), len(other_at), 2 * header.layers
    parts = bitstream.cut_arrays(
        payload[_COUNTS.size :],
        [
            ("<f4", (planes, exact)),
            ("<i2", (planes, exact, header.channels)),
            ("<f4", (planes, anchors)),
            ("<u4", (planes, _lanes(anchors, header))),
            ("<u2", (num_anchor_words,)),
            ("<u4", (planes, _lanes(others, header))),
            ("<u2", (num_words,)),
            ("<i4", (num_escapes,)),
        ],
    )
    exact_scale, exact_steps, anchor_scale, anchor_states, anchor_words, states, words, escapes = parts
    anchor_symbols = decode_lanes(anchor_states, anchor_words, anchors, profile.anchor_slots, xp)
    symbols = decode_lanes(states, words, others, profile.slots[header.level], xp)
    others = from_symbols(np.ascontiguousarray(symbols.transpose(1, 2, 0)), escapes)
    steps = Steps(exact_steps, exact_scale, anchor_symbols.transpose(1, 2, 0), anchor_scale, others)
    return from_steps(steps, profile.means, profile.bins(header.level), profile.recipe)


def split(blob: bytes) -> list[bytes]:
    """One stream per chunk, each of which decodes alone to the same bits.

    Examples
    --------
    >>> from kvlib.cachegen.profile import learn_profile
    >>> kv = np.random.default_rng(0).normal(size=(2, 2, 25, 4)).astype(np.float32)
    >>> profile = learn_profile([kv])
    >>> blob = encode(kv, profile, 0, chunk_tokens=10)
    >>> parts = [decode(part, profile) for part in split(blob)]
    >>> [part.shape[2] for part in parts]
    [10, 10, 5]
    >>> bool((np.concatenate(parts, axis=2) == decode(blob, profile)).all())
    True
    """
    header, payloads = bitstream.read(blob)
    return [bitstream.write(header.only(chunk), [payload]) for chunk, payload in enumerate(payloads)]


def _lanes(tokens: int, header: bitstream.Header) -> int:
    return -(-tokens // header.lane_tokens)


def _narrow(part: np.ndarray, dtype: str) -> np.ndarray:
    """Round to `dtype`, never up to infinity: the largest number may have been decoded a little larger."""
    part = np.clip(part, -_LARGEST[dtype], _LARGEST[dtype])
    if dtype != "bfloat16":
        return part.astype(dtype)
    bits = part.astype(np.float32).view(np.uint32)
    # To nearest, ties to even, on the upper half of the float32.
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
