"""The container: a header, a table of chunks with a checksum each, and the chunks. Little-endian throughout.

Everything is covered by a CRC-32, so a flipped bit, a cut or an appended byte is refused before a single
number is decoded; and the length of every array is checked against the bytes that are there before any is
allocated.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvlib.cachegen.kv_input import DTYPES
from kvlib.cachegen.levels import LEVELS
from kvlib.errors import DecodeError

MAGIC = b"KVCG"
VERSION = 1
# magic, version, level, dtype, lane_tokens, exact_tokens, layers, chunk_tokens, channels, tokens, digest
_FIXED = struct.Struct("<4sBBBBHHHII8s")
_CHUNK = struct.Struct("<II")
_CRC = struct.Struct("<I")


@dataclass(frozen=True)
class Header:
    """What a stream says about itself; see `kvlib.cachegen.codec.encode` for the terms."""

    level: int
    dtype: str
    lane_tokens: int
    exact_tokens: int
    layers: int
    chunk_tokens: int
    channels: int
    tokens: int
    profile: bytes

    @property
    def chunk_lengths(self) -> list[int]:
        """Tokens of each chunk; only the last may be shorter."""
        starts = range(0, self.tokens, self.chunk_tokens)
        return [min(self.chunk_tokens, self.tokens - start) for start in starts]

    def exact_in(self, chunk: int) -> int:
        """How many tokens of this chunk are kept at 16 bits."""
        begin, length = chunk * self.chunk_tokens, min(
            self.chunk_tokens, self.tokens - chunk * self.chunk_tokens
        )
        return min(max(self.exact_tokens - begin, 0), length)

    def only(self, chunk: int) -> "Header":
        """The header of a stream that holds nothing but this chunk."""
        return replace(self, tokens=self.chunk_lengths[chunk], exact_tokens=self.exact_in(chunk))


def write(header: Header, payloads: Sequence[bytes]) -> bytes:
    """One stream out of a header and its chunks' payloads."""
    fixed = _FIXED.pack(
        MAGIC,
        VERSION,
        header.level,
        DTYPES.index(header.dtype),
        header.lane_tokens,
        header.exact_tokens,
        header.layers,
        header.chunk_tokens,
        header.channels,
        header.tokens,
        header.profile,
    )
    table = b"".join(_CHUNK.pack(len(payload), zlib.crc32(payload)) for payload in payloads)
    return b"".join([fixed, table, _CRC.pack(zlib.crc32(fixed + table)), *payloads])


def read(blob: bytes) -> tuple[Header, list[bytes]]:
    """Header and payloads of a stream, all checksums verified.

    Raises
    ------
    DecodeError
        When the bytes are not a stream, of another version, cut, extended or damaged anywhere.
    """
    if not isinstance(blob, (bytes, bytearray, memoryview)):
        raise DecodeError(f"blob: got {type(blob).__name__}, expected bytes")
    blob = bytes(blob)
    if blob[:4] != MAGIC:
        raise DecodeError(f"magic: got {blob[:4]!r}, expected {MAGIC!r}: this is not a CacheGen stream")
    if len(blob) < _FIXED.size + _CRC.size:
        raise DecodeError(f"header: {len(blob)} bytes, expected at least {_FIXED.size + _CRC.size}")
    _, version, level, dtype, *counts, profile = _FIXED.unpack_from(blob)
    if version != VERSION:
        raise DecodeError(f"version: got {version}, expected {VERSION}")
    lane_tokens, exact_tokens, layers, chunk_tokens, channels, tokens = counts
    if level >= len(LEVELS) or dtype >= len(DTYPES) or 0 in (lane_tokens, layers, chunk_tokens, channels):
        raise DecodeError(f"header: level {level}, dtype {dtype}, counts {counts} are not possible")
    header = Header(
        level, DTYPES[dtype], lane_tokens, exact_tokens, layers, chunk_tokens, channels, tokens, profile
    )
    return header, _payloads(blob, -(-tokens // chunk_tokens))


def _payloads(blob: bytes, chunks: int) -> list[bytes]:
    table_end = _FIXED.size + chunks * _CHUNK.size
    begin = table_end + _CRC.size
    if len(blob) < begin:
        raise DecodeError(f"chunk table: {len(blob)} bytes in all, expected at least {begin}")
    if _CRC.unpack_from(blob, table_end)[0] != zlib.crc32(blob[:table_end]):
        raise DecodeError("header: checksum does not match, expected an undamaged stream")
    payloads = []
    for chunk, (length, crc) in enumerate(_CHUNK.iter_unpack(blob[_FIXED.size : table_end])):
        payload = blob[begin : begin + length]
        if len(payload) != length or zlib.crc32(payload) != crc:
            raise DecodeError(f"chunk {chunk}: damaged or cut, its checksum does not match")
        payloads.append(payload)
        begin += length
    if begin != len(blob):
        raise DecodeError(f"stream: {len(blob) - begin} bytes too many at the end")
    return payloads


def join_arrays(arrays: Sequence[np.ndarray]) -> bytes:
    """The bytes of arrays, one after the other."""
    return b"".join(np.ascontiguousarray(a, a.dtype.newbyteorder("<")).tobytes() for a in arrays)


def cut_arrays(payload: bytes, wanted: Sequence[tuple[str, tuple[int, ...]]]) -> list[np.ndarray]:
    """Undo `join_arrays`.

    Parameters
    ----------
    wanted : sequence of (dtype, shape)
        Little-endian dtypes such as ``"<u2"``.

    Raises
    ------
    DecodeError
        When the payload is not exactly as long as these arrays are.

    Examples
    --------
    >>> payload = join_arrays([np.uint16([1, 2]), np.float32([[0.5]])])
    >>> [array.tolist() for array in cut_arrays(payload, [("<u2", (2,)), ("<f4", (1, 1))])]
    [[1, 2], [[0.5]]]
    """
    sizes = [int(np.dtype(dtype).itemsize * np.prod(shape, dtype=object)) for dtype, shape in wanted]
    if sum(sizes) != len(payload):
        raise DecodeError(f"chunk: {len(payload)} bytes, expected {sum(sizes)} for its shape")
    arrays, begin = [], 0
    for (dtype, shape), size in zip(wanted, sizes):
        arrays.append(
            np.frombuffer(payload, dtype, offset=begin, count=size // np.dtype(dtype).itemsize).reshape(shape)
        )
        begin += size
    return arrays
