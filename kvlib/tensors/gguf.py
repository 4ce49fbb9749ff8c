"""A reader of GGUF files: what a model file says of itself, and its weights as float32.

The format is that of ggml, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (version 3); the block
formats are those of ``ggml-quants.c``. The `gguf` package reads the same, several times slower.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvlib.errors import ConfigError

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
VALUES_PER_BLOCK = 32
# Weight formats by ggml's number: name, values in a block, bytes of a block.
FORMATS = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34)}


@dataclass(frozen=True)
class GgufTensor:
    """Where a tensor lies: `shape` as in numpy (rows first), ggml's format number, offset in the data
    section."""

    shape: tuple[int, ...]
    format: int
    offset: int


class GgufFile:
    """A GGUF file, mapped into memory.

    Parameters
    ----------
    path : path of the file

    Attributes
    ----------
    metadata : dict
        Keys such as ``llama.block_count``, with plain Python values.
    tensors : dict of GgufTensor

    Raises
    ------
    ConfigError
        If the file is missing, is no GGUF of version 3, or ends early.
    """

    def __init__(self, path):
        self.path = Path(path)
        if not self.path.is_file():
            raise ConfigError(f"path: got {str(path)!r}, expected a GGUF file")
        # An empty file cannot be mapped.
        self._bytes = np.memmap(self.path, mode="r") if self.path.stat().st_size else np.zeros(0, np.uint8)
        self._at = 0
        try:
            self._read_header()
        except (struct.error, UnicodeDecodeError, OverflowError, MemoryError) as damage:
            raise ConfigError(f"{self.path.name}: the header is damaged or cut off ({damage})") from None
        for name, tensor in self.tensors.items():
            if self._data_at + tensor.offset + _num_bytes(name, tensor) > len(self._bytes):
                raise ConfigError(f"{self.path.name}: cut off inside tensor {name!r}, at byte {len(self._bytes)}")

    def floats(self, name: str) -> np.ndarray:
        """The weights of one tensor, float32 ``[rows, columns]``."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise ConfigError(f"{self.path.name}: has no tensor {name!r}")
        start = self._data_at + tensor.offset
        raw = self._bytes[start:start + _num_bytes(name, tensor)]
        return dequantize(np.asarray(raw), tensor.format).reshape(tensor.shape)

    def _read_header(self) -> None:
        magic, version = self._unpack("4sI")
        if magic != b"GGUF" or version != 3:
            raise ConfigError(f"{self.path.name}: got {magic!r}, version {version}, expected GGUF version 3")
        num_tensors, num_fields = self._unpack("QQ")
        self.metadata = {self._string(): self._value(*self._unpack("I")) for _ in range(num_fields)}
        self.tensors = dict(self._tensor() for _ in range(num_tensors))
        alignment = self.metadata.get("general.alignment", 32)
        self._data_at = -(-self._at // alignment) * alignment

    def _unpack(self, codes: str) -> tuple:
        size = struct.calcsize("<" + codes)
        values = struct.unpack("<" + codes, self._bytes[self._at:self._at + size].tobytes())
        self._at += size
        return values

    def _string(self) -> str:
        (length,) = self._unpack("Q")
        return self._unpack(f"{length}s")[0].decode()

    def _value(self, kind: int):
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            item, count = self._unpack("IQ")
            if item in SCALARS:
                return list(self._unpack(f"{count}{SCALARS[item]}"))
            return [self._value(item) for _ in range(count)]
        if kind not in SCALARS:
            raise ConfigError(f"{self.path.name}: field type {kind} at byte {self._at} is not known")
        return self._unpack(SCALARS[kind])[0]

    def _tensor(self) -> tuple[str, GgufTensor]:
        name = self._string()
        (num_axes,) = self._unpack("I")
        # ggml names the fastest axis first, numpy last.
        shape = self._unpack(f"{num_axes}Q")[::-1]
        return name, GgufTensor(shape, *self._unpack("IQ"))


def dequantize(raw: np.ndarray, format: int) -> np.ndarray:
    """The float32 values of a tensor's bytes.

    A Q8_0 block is a float16 scale and 32 int8; a Q4_0 or Q4_1 block a float16 scale (Q4_1: and a minimum),
    then 16 bytes whose low halves are the first 16 values and whose high halves the others.

    Examples
    --------
    >>> block = np.concatenate([np.array([0.5], np.float16).view(np.uint8), np.arange(32, dtype=np.uint8)])
    >>> dequantize(block, 8)[:4].tolist()
    [0.0, 0.5, 1.0, 1.5]
    """
    name, _, block_bytes = FORMATS[format]
    if name in ("F32", "F16"):
        return raw.view("<f4" if name == "F32" else "<f2").astype(np.float32)
    blocks = raw.reshape(-1, block_bytes)
    scale = _halves(blocks, 0)
    if name == "Q8_0":
        return (scale * blocks[:, 2:].view(np.int8)).reshape(-1)
    packed = blocks[:, -VALUES_PER_BLOCK // 2:]
    levels = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)
    return (scale * (levels - 8) if name == "Q4_0" else scale * levels + _halves(blocks, 2)).reshape(-1)


def _halves(blocks: np.ndarray, start: int) -> np.ndarray:
    return np.ascontiguousarray(blocks[:, start:start + 2]).view("<f2").astype(np.float32)


def _num_bytes(name: str, tensor: GgufTensor) -> int:
    if tensor.format not in FORMATS:
        known = ", ".join(format_name for format_name, _, _ in FORMATS.values())
        raise ConfigError(f"tensor {name!r}: has format {tensor.format}, expected one of {known}")
    _, values, block_bytes = FORMATS[tensor.format]
    return int(np.prod(tensor.shape, dtype=object)) // values * block_bytes
