"""The container: law L8, case E07. A damaged stream is an error, never numbers, a hang or much memory."""

import random
import tracemalloc

import numpy as np
import pytest

from kvlib.cachegen import DecodeError, decode, encode, learn_profile
from kvlib.cachegen import bitstream

KV = np.random.default_rng(0).normal(size=(2, 2, 25, 4)).astype(np.float32)
PROFILE = learn_profile([KV])
BLOB = encode(KV, PROFILE, 1, chunk_tokens=10)


def refused(blob, profile=PROFILE):
    with pytest.raises(DecodeError):
        decode(blob, profile)


def test_e07_every_single_flipped_bit_is_refused():
    for at in range(len(BLOB)):
        for bit in range(8):
            refused(BLOB[:at] + bytes([BLOB[at] ^ 1 << bit]) + BLOB[at + 1 :])


def test_e07_every_cut_and_any_appended_byte_is_refused():
    for at in range(len(BLOB)):
        refused(BLOB[:at])
    refused(BLOB + b"\0")


def test_e07_two_thousand_random_mutations_are_refused_within_a_memory_cap():
    rng = random.Random(1)
    tracemalloc.start()
    for _ in range(2000):
        damaged = bytearray(BLOB)
        for _ in range(rng.randrange(1, 6)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        if bytes(damaged) != BLOB:
            refused(bytes(damaged))
    assert tracemalloc.get_traced_memory()[1] < 5e6
    tracemalloc.stop()


def test_a_stream_whose_checksums_were_made_to_fit_is_still_refused_and_allocates_little():
    # An attacker recomputes the checksums: other counts no longer match the bytes that are there.
    header, payloads = bitstream.read(BLOB)
    rng = random.Random(2)
    tracemalloc.start()
    for field, value in (("tokens", 30), ("tokens", 26), ("lane_tokens", 1), ("exact_tokens", 7)):
        changed = bitstream.Header(**{**header.__dict__, field: value})
        refused(bitstream.write(changed, payloads))
    # Many tokens promised with few bytes behind them.
    changed = bitstream.Header(**{**header.__dict__, "tokens": 3 * 65535, "chunk_tokens": 65535})
    refused(bitstream.write(changed, payloads))
    for _ in range(300):
        payload = bytearray(payloads[0])
        payload[rng.randrange(12)] ^= 1 << rng.randrange(8)
        refused(bitstream.write(header, [bytes(payload), *payloads[1:]]))
    assert tracemalloc.get_traced_memory()[1] < 5e6
    tracemalloc.stop()


def test_a_header_that_promises_four_billion_chunks_is_refused_at_once():
    fixed = bytearray(BLOB[: bitstream._FIXED.size])
    fixed[14:16] = (1).to_bytes(2, "little")  # chunk_tokens, see Header's layout
    fixed[20:24] = (2**32 - 1).to_bytes(4, "little")  # tokens
    tracemalloc.start()
    refused(bytes(fixed) + BLOB[len(fixed) :])
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()


@pytest.mark.parametrize(
    "blob, message",
    [
        (b"", "magic"),
        (b"GGUF" + BLOB[4:], "magic"),
        (BLOB[:4] + b"\2" + BLOB[5:], "version: got 2, expected 1"),
        (BLOB[:9], "header"),
        ("text", "expected bytes"),
        (None, "expected bytes"),
    ],
)
def test_a_foreign_or_other_version_stream_says_so(blob, message):
    with pytest.raises(DecodeError, match=message):
        decode(blob, PROFILE)


def test_a_stream_of_another_profile_is_refused_by_name():
    other = learn_profile([KV * 2])
    with pytest.raises(DecodeError, match=f"needs {PROFILE.digest.hex()}, got {other.digest.hex()}"):
        decode(BLOB, other)


def test_swapped_chunks_are_refused():
    header, payloads = bitstream.read(BLOB)
    begin = len(BLOB) - sum(len(p) for p in payloads)
    refused(BLOB[:begin] + payloads[1] + payloads[0] + payloads[2])


def test_the_container_itself_is_a_few_dozen_bytes():
    # Issue 8: under 1 %. 38 bytes of header, 8 a chunk and a checksum of 4, by the layout in the module.
    header, payloads = bitstream.read(BLOB)
    assert len(BLOB) - sum(len(p) for p in payloads) == bitstream._FIXED.size + 8 * len(payloads) + 4
    assert bitstream._FIXED.size < 40
