"""Measure chapter 13 on the real KV of SmolLM2 and write ``smaller_kv.json`` beside this file.

    python -m kvlib.tensors.fetch                                        # once: the weights, 93 MB
    OMP_NUM_THREADS=1 python kvlib/figures/data/make_smaller_kv.py       # about 20 minutes on a busy machine

The two texts ship with Python and with this repository. Each gives 1,536 tokens of context, whose cache is made
smaller, and a continuation of 256 tokens, which is scored on what is left. Every row is the mean over the texts.
"""

import hashlib
import json
import platform
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch

from kvlib.cachegen.quality import compare, continuation_log_probs
from kvlib.tensors import eviction
from kvlib.tensors.backend import get_backend
from kvlib.tensors.gguf import GgufFile
from kvlib.tensors.quantized_kv import (
    PER_CHANNEL, PER_TOKEN, Float8, Groups, OneScale, bits_per_number, quantized, relative_error,
)
from kvlib.tensors.smollm import find_weights, load_smollm
from kvlib.tensors.sparse_attention import SelectedPages
from kvlib.tensors.tokenizer import SmolTokenizer

ROOT = Path(__file__).resolve().parents[3]
OUT = Path(__file__).with_name("smaller_kv.json")
TEXTS: dict[str, tuple[str, Callable[[], str]]] = {
    "license": (
        "LICENSE of this repository (Apache License 2.0)",
        lambda: (ROOT / "LICENSE").read_text(encoding="utf-8"),
    ),
    "topics": (
        "pydoc_data.topics of Python, entries in alphabetical order",
        lambda: "\n".join(topics[name] for name in sorted(topics)),
    ),
}
# Enough characters for the tokens below; tokenizing half a megabyte would take longer than measuring.
CHARACTERS = 20_000
CONTEXT, CONTINUATION = 1536, 256
BUDGETS = (96, 192, 384, 768, 1152)
SINK_COUNTS = (0, 1, 2, 4, 8, 16)
SINK_BUDGETS = (192, 384)
GRID_BITS = (8, 4, 3, 2)
AXIS_BITS = (4, 2)
AXES = (PER_TOKEN, PER_CHANNEL)
BLOCK_SIZES = (1, 4, 16, 64)
BLOCK_TOKENS = 16
PAGE_TOKENS = (4, 8, 16, 32)
SPARSE_BUDGETS = (192, 384, 768)
# Layers whose kept tokens are drawn: one early, one in the middle, one late.
DRAWN_LAYERS = (2, 15, 27)


class Text:
    """One text: its context's KV, the attention its tokens got, and the untouched distributions."""

    def __init__(self, model, tokens: list[int]):
        self.model, self.continuation = model, tokens[CONTEXT:]
        noted = eviction.AttentionByHead(model.xp)
        model.forward([tokens[:CONTEXT]], noted)
        self.sums = noted.sums()
        self.kv = np.array([
            [model.xp.to_numpy(part[0][layer]).reshape(CONTEXT, -1) for part in (noted.keys, noted.values)]
            for layer in range(model.shape.num_layers)
        ])
        self._untouched = continuation_log_probs(model, self.kv, self.continuation)
        self.loss = self._judge(self._untouched).loss

    def with_kv(self, kv: np.ndarray):
        """Quality when `kv` stands in for the context's cache."""
        kv = kv.astype(np.float32)
        return self._judge(continuation_log_probs(self.model, kv, self.continuation, position=CONTEXT))

    def with_pages(self, page_tokens: int, budget: int):
        """Quality when each query reads `budget` tokens of the context, whole pages of them."""
        kv_heads, pages = self.model.shape.kv_heads, budget // page_tokens
        cache = SelectedPages(self.model.xp, self.kv, kv_heads, page_tokens, pages)
        logits = self.model.forward([self.continuation], cache, all_positions=True)
        return self._judge(self.model.xp.to_numpy(self.model.xp.log_softmax(logits)))

    def kept(self, policy: str, budget: int) -> np.ndarray:
        return eviction.POLICIES[policy](self.sums, budget)

    def kept_kv(self, policy: str, budget: int) -> np.ndarray:
        return eviction.kept_kv(self.kv, self.kept(policy, budget))

    def _judge(self, log_probs):
        return compare(log_probs, self._untouched, self.continuation)


def read_text(name: str, model, tokenizer) -> tuple[Text, str]:
    """A text and the SHA-256 of the characters that were used."""
    words = TEXTS[name][1]()[:CHARACTERS]
    tokens = tokenizer.encode(words)[: CONTEXT + CONTINUATION]
    return Text(model, tokens), hashlib.sha256(words.encode()).hexdigest()


def row(texts: dict[str, Text], measure: Callable[[Text], object], **labels) -> dict:
    """Mean quality over the texts, with each text's own divergence."""
    found = {name: measure(text) for name, text in texts.items()}
    losses = [quality.loss for quality in found.values()]
    base = [text.loss for text in texts.values()]
    made = {
        **labels,
        "kl": float(np.mean([quality.kl for quality in found.values()])),
        "top1": float(np.mean([quality.top1 for quality in found.values()])),
        "perplexity_change": float(np.exp(np.mean(losses) - np.mean(base)) - 1),
        "kl_by_text": {name: quality.kl for name, quality in found.items()},
    }
    print(made, flush=True)
    return made


def rounded_row(texts, keys, values, **labels) -> dict:
    bits = bits_per_number(keys, values)
    return row(texts, lambda text: text.with_kv(quantized(text.kv, keys, values)), **labels, bits=bits)


def kivi_axes(key_bits: int, value_bits: int) -> tuple[Groups, Groups]:
    return Groups(key_bits, PER_CHANNEL), Groups(value_bits, PER_TOKEN)


def formats(texts) -> list:
    """One scale for everything, as engines offer it."""
    forms = {"FP8": Float8(), "INT8": OneScale(8), "INT4": OneScale(4)}
    return [rounded_row(texts, form, form, name=f"{name}, one scale") for name, form in forms.items()]


def key_value_grid(texts) -> list:
    return [
        rounded_row(texts, *kivi_axes(key_bits, value_bits), key_bits=key_bits, value_bits=value_bits)
        for key_bits in GRID_BITS for value_bits in GRID_BITS
    ]


def axes(texts) -> list:
    """All four choices of an axis for keys and one for values."""
    return [
        rounded_row(
            texts, Groups(number_bits, keys), Groups(number_bits, values),
            key_axis=keys, value_axis=values, number_bits=number_bits,
        )
        for number_bits in AXIS_BITS for keys in AXES for values in AXES
    ]


def errors(texts) -> list:
    """Relative error of keys and values on each axis: the mean over layers and texts."""
    return [
        {"tensor": tensor, "axis": axis, "number_bits": number_bits, "error": float(np.mean([
            relative_error(layer[part], Groups(number_bits, axis))
            for text in texts.values() for layer in text.kv
        ]))}
        for number_bits in AXIS_BITS for part, tensor in enumerate(("K", "V")) for axis in AXES
    ]


def dropping(texts) -> list:
    return [
        row(texts, lambda text: text.with_kv(text.kept_kv(policy, budget)), policy=policy, budget=budget)
        for policy in eviction.POLICIES for budget in BUDGETS
    ]


def sinks(texts) -> list:
    def windowed(text, budget, count):
        return text.with_kv(eviction.kept_kv(text.kv, eviction.sinks_and_window(text.sums, budget, count)))

    return [
        row(texts, lambda text: windowed(text, budget, count), sinks=count, budget=budget)
        for budget in SINK_BUDGETS for count in SINK_COUNTS
    ]


def sparse(texts) -> list:
    return [
        row(texts, lambda text: text.with_pages(page_tokens, budget), page_tokens=page_tokens, budget=budget)
        for page_tokens in PAGE_TOKENS for budget in SPARSE_BUDGETS
    ]


def stacked(texts) -> list:
    """Tokens dropped, and the rest quantized along KIVI's axes."""
    def both(text, policy, budget, number_bits):
        return text.with_kv(quantized(text.kept_kv(policy, budget), *kivi_axes(number_bits, number_bits)))

    return [
        row(
            texts, lambda text: both(text, policy, budget, number_bits), policy=policy, budget=budget,
            number_bits=number_bits, bits=bits_per_number(*kivi_axes(number_bits, number_bits)),
        )
        for policy in ("sinks + window", "H2O") for budget in (384, 768) for number_bits in (4, 2)
    ]


def places(texts) -> dict:
    """Where the kept tokens of the first text lie, block by block, and how many blocks that frees."""
    text = next(iter(texts.values()))
    slots, freed = [], []
    for policy in eviction.POLICIES:
        for budget in BUDGETS:
            kept = text.kept(policy, budget)
            per_block = eviction.kept_per_block(kept, CONTEXT, BLOCK_TOKENS).mean(1)
            slots.append({"policy": policy, "budget": budget, "by_layer": {
                str(layer): [round(float(x), 2) for x in per_block[layer]] for layer in DRAWN_LAYERS}})
            freed += [
                {"policy": policy, "budget": budget, "block_size": size,
                 "freed": eviction.freed_blocks(kept, CONTEXT, size)}
                for size in BLOCK_SIZES
            ]
    return {"kept_per_block": slots, "freed": freed}


def sink_mass(texts) -> list:
    """Share of all attention that the first `SINKS` tokens get, by layer."""
    noted = [text.sums.from_all for text in texts.values()]
    shares = [mass[:, :, : eviction.SINKS].sum((1, 2)) / mass.sum((1, 2)) for mass in noted]
    return [float(x) for x in np.mean(shares, axis=0)]


def main() -> None:
    torch.set_num_threads(1)
    model = load_smollm(get_backend("torch", "float32"))
    tokenizer = SmolTokenizer(GgufFile(find_weights()))
    read = {name: read_text(name, model, tokenizer) for name in TEXTS}
    texts = {name: text for name, (text, _) in read.items()}
    measures = (formats, key_value_grid, axes, errors, dropping, sinks, sparse, stacked, places, sink_mass)
    made = {measure.__name__: measure(texts) for measure in measures}
    provenance = {
        "command": "OMP_NUM_THREADS=1 python kvlib/figures/data/make_smaller_kv.py",
        "model": "SmolLM2-135M-Instruct, Q4_1 weights as float32",
        "model_sha256": hashlib.sha256(find_weights().read_bytes()).hexdigest(),
        "texts": {name: {"what": TEXTS[name][0], "sha256": digest, "perplexity": float(np.exp(text.loss))}
                  for name, (text, digest) in read.items()},
        "context_tokens": CONTEXT, "continuation_tokens": CONTINUATION, "block_tokens": BLOCK_TOKENS,
        "seed": 0,
        "versions": {
            "python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__,
        },
    }
    OUT.write_text(json.dumps(short({"provenance": provenance, **made}), indent=1) + "\n", encoding="utf-8")


def short(value):
    """Floats to four significant digits: the measurements are no better than that."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: short(item) for key, item in value.items()}
    return [short(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
