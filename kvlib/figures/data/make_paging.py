"""Compute chapter 3's tensor results and write ``paging.json`` beside this file.

    python -m kvlib.tensors.fetch                    # once: the weights, 93 MB
    OMP_NUM_THREADS=1 python kvlib/figures/data/make_paging.py     # about two minutes

Logit differences are stored as upper bounds (the next power of ten), which hold on every machine; tokens as
text.
"""

import hashlib
import json
import math
import platform
from pathlib import Path

import numpy as np
import torch

from kvlib.blocks import BlockManager
from kvlib.tensors.backend import get_backend
from kvlib.tensors.cache import ContiguousCache, PagedCache
from kvlib.tensors.gguf import GgufFile
from kvlib.tensors.kv_store import KvStore
from kvlib.tensors.placement import scatter_free_blocks
from kvlib.tensors.smollm import decoder_from_gguf, find_weights
from kvlib.tensors.tiny_llm import tiny_llm
from kvlib.tensors.tokenizer import SmolTokenizer

TEXT = "Rome is the capital of Italy, and Paris is the capital of France. The capital of Italy is"
POOL_BLOCKS = 16
PLACEMENTS = 9
BLOCK_SIZES = (2, 4, 8)
EQUALITY_BLOCK_SIZES = (1, 4, 16, 64)
DECODE_STEPS = 20
# Four prompts of the fable, of different lengths, for the ragged batch.
BATCH_TEXT = "A crow, half dead with thirst, came upon a jug that had once been full of water, but it was too low to reach."
BATCH_LENGTHS = (5, 9, 17, 24)


def store_for(model, manager) -> KvStore:
    shape = model.shape
    return KvStore(model.xp, num_layers=shape.num_layers, num_blocks=manager.num_blocks, block_size=manager.block_size,
                   kv_heads=shape.kv_heads, head_dim=shape.head_dim)


def bound(difference: float) -> float:
    """The power of ten at or above a difference; 0 stays 0."""
    return 10.0 ** math.ceil(math.log10(difference)) if difference else 0.0


def shuffles(model, tokenizer, tokens) -> list[dict]:
    """The next token for each placement of the blocks, with the right table and with one that was not kept
    up."""
    xp = model.xp
    expected = model.forward([tokens], ContiguousCache(xp))
    results = []
    for block_size in BLOCK_SIZES:
        for placement in range(PLACEMENTS):
            for stale in (False, True):
                manager = BlockManager(POOL_BLOCKS, block_size)
                store = store_for(model, manager)
                cache = PagedCache(manager, store, ["prompt"])
                if not stale:
                    place(manager, placement)
                model.forward([tokens[:-1]], cache)
                if stale:
                    # The blocks go where the placement says; the table still names where they were.
                    store.move_blocks(full_order(placement, block_size))
                logits = model.forward([tokens[-1:]], cache)
                results.append({
                    "block_size": block_size, "placement": placement, "stale": stale,
                    "token": tokenizer.decode([int(logits[0].argmax())]),
                    "bound": bound(float(abs(logits - expected).max())),
                })
    return results


def place(manager: BlockManager, placement: int) -> None:
    """Placement 0 is in order."""
    if placement:
        scatter_free_blocks(manager, placement)


def full_order(placement: int, block_size: int) -> list[int]:
    """The block table of a sequence that fills the pool under a placement: where each block in order has
    gone."""
    manager = BlockManager(POOL_BLOCKS, block_size)
    place(manager, placement)
    manager.allocate("all", POOL_BLOCKS * block_size)
    return manager.block_table("all")


def equality(model, prompts, block_size: int) -> float:
    """The largest logit difference between paged and contiguous over a prefill and some decode steps."""
    blocks = sum(-(-(len(prompt) + DECODE_STEPS) // block_size) for prompt in prompts)
    manager = BlockManager(blocks, block_size)
    scatter_free_blocks(manager, seed=1)
    paged = PagedCache(manager, store_for(model, manager), list(range(len(prompts))))
    contiguous, batch, largest = ContiguousCache(model.xp, len(prompts)), prompts, 0.0
    for _ in range(DECODE_STEPS + 1):
        wanted, got = model.forward(batch, contiguous), model.forward(batch, paged)
        largest = max(largest, float(abs(wanted - got).max()))
        batch = [[int(row.argmax())] for row in wanted]
    return largest


def main() -> None:
    torch.set_num_threads(1)
    weights = find_weights()
    file = GgufFile(weights)
    tokenizer = SmolTokenizer(file)
    words = tokenizer.encode(BATCH_TEXT)
    rows = []
    for backend in ("numpy", "torch"):
        for name, dtype in (("tiny_llm", "float64"), ("SmolLM2-135M", "float64"), ("SmolLM2-135M", "float32")):
            xp = get_backend(backend, dtype)
            model = tiny_llm(xp) if name == "tiny_llm" else decoder_from_gguf(xp, file)
            vocabulary = model.shape.vocabulary
            prompts = [[word % vocabulary for word in words[:length]] for length in BATCH_LENGTHS]
            rows += [
                {"model": name, "backend": backend, "dtype": dtype, "block_size": size, "bound": bound(equality(model, prompts, size))}
                for size in EQUALITY_BLOCK_SIZES
            ]
    tokens = tokenizer.encode(TEXT)
    made = {
        "provenance": {
            "command": "python kvlib/figures/data/make_paging.py",
            "model": weights.name,
            "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
            "versions": {"numpy": np.__version__, "torch": torch.__version__, "python": platform.python_version()},
        },
        "text": TEXT,
        "words": [tokenizer.decode([token]) for token in tokens],
        "pool_blocks": POOL_BLOCKS,
        "shuffles": shuffles(decoder_from_gguf(get_backend("numpy", "float32"), file), tokenizer, tokens),
        "equality": rows,
    }
    Path(__file__).with_name("paging.json").write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
