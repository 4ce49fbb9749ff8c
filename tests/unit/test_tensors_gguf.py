"""The GGUF reader: hand-made files, damage of every kind, and the `gguf` package as the oracle of
dequantization."""

import struct

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.errors import ConfigError
from kvlib.tensors.backend import NumpyBackend
from kvlib.tensors.gguf import FORMATS, GgufFile, dequantize
from kvlib.tensors.smollm import decoder_from_gguf, find_weights
from kvlib.tensors.tokenizer import SmolTokenizer


def text(words: str) -> bytes:
    return struct.pack("<Q", len(words)) + words.encode()


def field(name: str, words: str) -> bytes:
    return text(name) + struct.pack("<I", 8) + text(words)


def gguf_bytes(*, magic=b"GGUF", version=3, format_number=0, architecture="llama") -> bytes:
    """One tensor of shape [2, 3] that counts up, and two fields."""
    header = magic + struct.pack("<IQQ", version, 1, 2)
    fields = field("general.architecture", architecture)
    fields += text("sizes") + struct.pack("<IIQ3I", 9, 4, 3, 7, 8, 9)
    tensor = text("w") + struct.pack("<IQQIQ", 2, 3, 2, format_number, 0)
    head = header + fields + tensor
    return head + bytes(-len(head) % 32) + np.arange(6, dtype="<f4").tobytes()


def written(tmp_path, content: bytes):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    return path


def test_reads_fields_and_tensors(tmp_path):
    file = GgufFile(written(tmp_path, gguf_bytes()))
    assert file.metadata == {"general.architecture": "llama", "sizes": [7, 8, 9]}
    assert file.floats("w").tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ConfigError, match="nothing"):
        file.floats("nothing")


def test_every_truncation_is_refused(tmp_path):
    whole = gguf_bytes()
    for length in range(len(whole)):
        with pytest.raises(ConfigError):
            GgufFile(written(tmp_path, whole[:length]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gguf_bytes(magic=b"GGML"), "GGUF"),
        (gguf_bytes(version=2), "version 2"),
        (gguf_bytes(format_number=99), "format 99"),
        (b"\x80\x04K\x01.", "damaged or cut off"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    with pytest.raises(ConfigError, match=message):
        GgufFile(written(tmp_path, content))


def test_a_missing_file_and_another_model_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="path"):
        GgufFile(tmp_path / "none.gguf")
    with pytest.raises(ConfigError, match="path"):
        find_weights(tmp_path / "none.gguf")
    for architecture, message in (("gemma", "gemma"), ("llama", "embedding_length")):
        file = GgufFile(written(tmp_path, gguf_bytes(architecture=architecture)))
        with pytest.raises(ConfigError, match=message):
            decoder_from_gguf(NumpyBackend(), file)
        with pytest.raises(ConfigError, match="tokenizer"):
            SmolTokenizer(file)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(format_number=st.sampled_from(sorted(FORMATS)), blocks=st.integers(1, 5), seed=st.integers(0, 99))
def test_dequantize_equals_the_gguf_package(format_number, blocks, seed):
    name, values, block_bytes = FORMATS[format_number]
    raw = np.random.default_rng(seed).integers(0, 256, (blocks, block_bytes), dtype=np.uint8)
    if values > 1:  # finite scales
        raw[:, 1] &= 0x3B
        raw[:, 3] &= 0x3B
    wanted = gguf.quants.dequantize(raw.reshape(1, -1), gguf.GGMLQuantizationType[name])
    assert np.array_equal(dequantize(raw.reshape(-1), format_number), wanted.reshape(-1), equal_nan=True)
