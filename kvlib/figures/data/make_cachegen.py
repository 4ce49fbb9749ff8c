"""Measure chapter 14's tables on the real KV of SmolLM2 and write ``cachegen.json`` beside this file.

    python -m kvlib.tensors.fetch                              # once: the weights, 93 MB
    python kvlib/figures/data/make_cachegen.py TEXTS [WORK]    # about 25 minutes on two busy cores

TEXTS is a folder with the five texts named in `TEXTS` below, which are not ours to ship; WORK keeps each
text's KV (354 MB in all) so that a second run starts at once. The text, model and library versions are
written into the file. Every codec size is the size of real bytes, under a profile learned on the other four
texts; every quality is measured on what those bytes decode to.
"""

import hashlib
import json
import platform
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from kvlib.cachegen import observe, rivals
from kvlib.cachegen.codec import decode, encode
from kvlib.cachegen.levels import CENTRED, LEVELS, PAPER, Recipe
from kvlib.cachegen.profile import learn_profile
from kvlib.cachegen.quality import compare, context_kv, continuation_log_probs, noised, rotated
from kvlib.cachegen.quantize import ZERO, quantize_rows
from kvlib.tensors.backend import get_backend
from kvlib.tensors.decoder import Decoder, DecoderShape, LayerWeights
from kvlib.tensors.eviction import AttentionByHead, heavy_hitters
from kvlib.tensors.gguf import GgufFile
from kvlib.tensors.smollm import find_weights, load_smollm
from kvlib.tensors.tokenizer import SmolTokenizer

TEXTS = {
    "gpl3": "GNU GPL 3, /usr/share/common-licenses/GPL-3 of Debian",
    "ruth": (
        "King James Bible, Ruth, Debian packages bible-kjv and bible-kjv-text: bible -f 'Ruth 1:1-Ruth 4:22'"
    ),
    "topics": (
        "Python 3.11 pydoc_data.topics, entries in alphabetical order joined by newlines, first 40,000"
        " characters"
    ),
    "fortunes": "Debian package fortunes 1.99.1, file people",
    "argparse": "Python 3.11 argparse.py",
}
JUDGED = ("gpl3", "ruth", "argparse")
CONTEXT, CONTINUATION = 1536, 256
# Attention sinks: the first tokens, left out of the observations and kept where a row says so.
SINKS = 4
OUT = Path(__file__).with_name("cachegen.json")


class Bench:
    """The model, the texts' tokens and KV, and the untouched distributions to compare with."""

    def __init__(self, texts: Path, work: Path | None):
        self.model = load_smollm(get_backend("torch", "float32"))
        tokenizer = SmolTokenizer(GgufFile(find_weights()))
        self.sha256, self.tokens, self.kv = {}, {}, {}
        for name in TEXTS:
            text = (texts / f"{name}.txt").read_bytes()
            self.sha256[name] = hashlib.sha256(text).hexdigest()
            self.tokens[name] = tokenizer.encode(text.decode())[: CONTEXT + CONTINUATION]
            self.kv[name] = self._kept(work, name)
        self.before_rotation = {name: turned_back(kv, self.model.shape) for name, kv in self.kv.items()}
        self.base = {name: self._log_probs(name, self.kv[name]) for name in JUDGED}

    def _kept(self, work: Path | None, name: str) -> np.ndarray:
        file = work and work / f"kv_{name}.npy"
        if file and file.is_file():
            return np.load(file)
        kv = context_kv(self.model, self.tokens[name][:CONTEXT])
        if file:
            np.save(file, kv)
        return kv

    def _log_probs(self, name: str, kv: np.ndarray):
        return continuation_log_probs(self.model, kv, self.tokens[name][CONTEXT:], CONTEXT)

    def judge(self, kv_of) -> dict:
        """Mean quality over the judged texts of what `kv_of(name)` returns."""
        kl, top1, loss, base = [], [], [], []
        for name in JUDGED:
            continuation = self.tokens[name][CONTEXT:]
            quality = compare(self._log_probs(name, kv_of(name)), self.base[name], continuation)
            kl.append(quality.kl)
            top1.append(quality.top1)
            loss.append(quality.loss)
            base.append(compare(self.base[name], self.base[name], continuation).loss)
        return {
            "kl": float(np.mean(kl)),
            "top1": float(np.mean(top1)),
            "perplexity_change": float(np.exp(np.mean(loss) - np.mean(base)) - 1),
        }

    def others(self, name: str, kvs: dict) -> list:
        return [kv for other, kv in kvs.items() if other != name]


def turned_back(kv: np.ndarray, shape) -> np.ndarray:
    """Keys as they were before RoPE."""
    return rotated(kv, shape.head_dim, shape.rope_base, back=True)


def observation_1(before: dict, shape) -> list:
    """Variance gains, geometric means over layers and means over texts.

    Shuffling moves whole tokens: keys are shuffled as they were before RoPE and rotated to their new places.
    """
    orders = {
        "true": before,
        "shuffled": {name: observe.shuffled(kv, i) for i, (name, kv) in enumerate(before.items())},
    }
    cached = {
        order: {name: rotated(kv, shape.head_dim, shape.rope_base) for name, kv in kvs.items()}
        for order, kvs in orders.items()
    }
    rows = []
    for what, by_order, which in (("K", cached, 0), ("K before RoPE", orders, 0), ("V", orders, 1)):
        for order, kvs in by_order.items():
            for to in (observe.PREVIOUS, observe.ANCHOR):
                for centred in (False, True):
                    thirds = [
                        observe.third_means(
                            [observe.variance_gain(layer[which], to, centred) for layer in kv]
                        )
                        for kv in kvs.values()
                    ]
                    mean = [float(x) for x in np.mean(thirds, axis=0)]
                    rows.append({"tensor": what, "order": order, "to": to, "centred": centred, "gain": mean})
    return rows


def random_weights(bench: Bench) -> list:
    """Observation 1 on the same architecture before any training."""
    model = untrained(bench.model.xp, bench.model.shape)
    kvs = {name: context_kv(model, bench.tokens[name][:CONTEXT]) for name in JUDGED[:2]}
    before = {name: without_sinks(turned_back(kv, model.shape)) for name, kv in kvs.items()}
    return observation_1(before, model.shape)


def untrained(xp, shape: DecoderShape) -> Decoder:
    """Weights as SmolLM2's training starts: normal, with a standard deviation of 1 / sqrt(hidden)."""
    rng = np.random.default_rng(0)

    def drawn(rows: int, columns: int):
        return xp.floats(rng.normal(0, shape.hidden**-0.5, (rows, columns)))

    ones = xp.floats(np.ones(shape.hidden))
    queries, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layers = [
        LayerWeights(
            attention_norm=ones,
            query=drawn(shape.hidden, queries),
            key=drawn(shape.hidden, kv),
            value=drawn(shape.hidden, kv),
            output=drawn(queries, shape.hidden),
            mlp_norm=ones,
            gate=drawn(shape.hidden, shape.mlp),
            up=drawn(shape.hidden, shape.mlp),
            down=drawn(shape.mlp, shape.hidden),
        )
        for _ in range(shape.num_layers)
    ]
    return Decoder(xp, shape, drawn(shape.vocabulary, shape.hidden), layers, ones)


def without_sinks(kv: np.ndarray) -> np.ndarray:
    return kv[:, :, SINKS:]


def observation_2(bench: Bench) -> list:
    """The same relative noise on one third of the layers, with and without the sinks protected."""
    rows = []
    for width in (1.0, 2.0):
        for exact in (0, SINKS):
            for third, name in enumerate(("shallow", "middle", "deep")):
                quality = bench.judge(lambda text: noised(bench.kv[text], width, third, exact))
                rows.append({"width": width, "exact_tokens": exact, "third": name, **quality})
    return rows


def observation_3(bench: Bench) -> list:
    """Bits per symbol of 8-bit rows and of fixed bins, by how tables are shared; mean over texts."""
    rows = []
    for what, source, which in (
        ("K", bench.kv, 0),
        ("K before RoPE", bench.before_rotation, 0),
        ("V", bench.kv, 1),
    ):
        symbols = {name: quantize_rows(kv[:, which, SINKS:], 8)[0] + ZERO for name, kv in source.items()}
        for grouping in observe.GROUPINGS:
            own, held_out = [], []
            for name in JUDGED:
                own.append(observe.grouped_bits(symbols[name], grouping))
                if grouping != "token":
                    learned = np.concatenate(bench.others(name, symbols), axis=1)
                    held_out.append(observe.held_out_bits(symbols[name], learned, grouping))
            rows.append({
                "tensor": what,
                "grouping": grouping,
                "own": float(np.mean(own)),
                "held_out": float(np.mean(held_out)) if held_out else None,
            })
    return rows


def rates(bench: Bench) -> list:
    """Size against quality for the codec, its ablations and its rivals."""
    uniform_recipe = Recipe(group_tokens=1)
    equal = (1.0, 1.0, 1.0)
    rows = []
    for bits in (8, 5, 4, 3):
        fixed = {name: rivals.uniform(bench.kv[name], bits) for name in JUDGED}
        quality = bench.judge(lambda name: fixed[name][0].astype(np.float32))
        rows.append(row("uniform", f"{bits} bits", fixed[JUDGED[0]][1], quality))
        coded, _ = codec_rows(bench, replace(uniform_recipe, anchor_bits=bits), False, (0,), judged=False)
        rows.append(row("uniform + entropy coding", f"{bits} bits", coded[0], quality))
    for bits in (4, 2):
        fixed = {name: rivals.kivi(bench.kv[name], bits) for name in JUDGED}
        rows.append(
            row(
                "KIVI axes",
                f"{bits} bits",
                fixed[JUDGED[0]][1],
                bench.judge(lambda n: fixed[n][0].astype(np.float32)),
            )
        )
    every = range(len(LEVELS))
    for family, recipe, before_rotation, levels in (
        ("CacheGen (paper's recipe)", PAPER, False, every),
        ("same bin in all layers", replace(PAPER, widths=equal), False, (1, 2)),
        ("channel mean instead of anchors", Recipe(group_tokens=0), False, (1, 2)),
        ("mean, K before RoPE", Recipe(group_tokens=0), True, (1, 2)),
        ("mean, K before RoPE, equal bins", replace(CENTRED, exact_tokens=0), True, (1, 2)),
        ("centered, 4 sinks kept", CENTRED, True, every),
    ):
        sizes, qualities = codec_rows(bench, recipe, before_rotation, levels)
        rows += [row(family, LEVELS[i].name, size, q) for i, size, q in zip(levels, sizes, qualities)]
    for tables, family in (("layer", "one table per layer"), ("global", "one table for everything")):
        sizes, _ = codec_rows(bench, replace(PAPER, tables=tables), False, (1, 2), judged=False)
        kept = {r["level"]: r for r in rows if r["family"] == "CacheGen (paper's recipe)"}
        rows += [
            row(
                family,
                LEVELS[i].name,
                size,
                {k: kept[LEVELS[i].name][k] for k in ("kl", "top1", "perplexity_change")},
            )
            for i, size in zip((1, 2), sizes)
        ]
    return rows


def row(family: str, level: str, bits: float, quality: dict) -> dict:
    return {"family": family, "level": level, "bits": bits, **quality}


def codec_rows(
    bench: Bench, recipe: Recipe, before_rotation: bool, levels, judged: bool = True
) -> tuple[list, list]:
    """Bits per number and quality at each level, profiles learned on the other texts."""
    source = bench.before_rotation if before_rotation else bench.kv
    profiles = {name: learn_profile(bench.others(name, source), recipe) for name in JUDGED}
    sizes, qualities = [], []
    for level in levels:
        blobs = {name: encode(source[name], profiles[name], level) for name in JUDGED}
        sizes.append(float(np.mean([8 * len(blob) / source[name].size for name, blob in blobs.items()])))
        if judged:

            def restored(name):
                kv = decode(blobs[name], profiles[name])
                return (
                    rotated(kv, bench.model.shape.head_dim, bench.model.shape.rope_base)
                    if before_rotation
                    else kv
                )

            qualities.append(bench.judge(restored))
        print(recipe, level, sizes[-1], qualities[-1:], flush=True)
    return sizes, qualities


def stacking(bench: Bench) -> list:
    """H2O keeps half of the tokens; then the codec codes what is left."""
    picked = {}
    for name in TEXTS:
        noted = AttentionByHead(bench.model.xp)
        bench.model.forward([bench.tokens[name][:CONTEXT]], noted)
        keep = heavy_hitters(noted.sums().over_heads(), CONTEXT // 2)[:, 0]  # all heads of a layer keep the same
        picked[name] = np.take_along_axis(bench.kv[name], keep[:, None, :, None], axis=2)
    whole = bench.kv[JUDGED[0]].size
    profiles = {name: learn_profile(bench.others(name, picked), PAPER) for name in JUDGED}
    fixed = {name: rivals.uniform(picked[name], 8) for name in JUDGED}
    rows = [
        row(
            "H2O, half the tokens",
            "8 bits",
            fixed[JUDGED[0]][1] / 2,
            bench.judge(lambda n: fixed[n][0].astype(np.float32)),
        )
    ]
    for level in (1, 2):
        blobs = {name: encode(picked[name], profiles[name], level) for name in JUDGED}
        bits = float(np.mean([8 * len(blob) / whole for blob in blobs.values()]))
        quality = bench.judge(lambda name: decode(blobs[name], profiles[name]))
        rows.append(row("H2O, half the tokens + CacheGen", LEVELS[level].name, bits, quality))
    return rows


def main(texts: str, work: str | None = None) -> None:
    torch.set_num_threads(1)
    bench = Bench(Path(texts), Path(work) if work else None)
    made = {}
    for name, measure in (
        (
            "observation_1",
            lambda: observation_1(
                {name: without_sinks(kv) for name, kv in bench.before_rotation.items()}, bench.model.shape
            ),
        ),
        ("observation_3", lambda: observation_3(bench)),
        ("rates", lambda: rates(bench)),
        ("observation_2", lambda: observation_2(bench)),
        ("stacking", lambda: stacking(bench)),
        ("random_weights", lambda: random_weights(bench)),
    ):
        made[name] = measure()
        print(name, made[name], flush=True)
    provenance = {
        "command": "python kvlib/figures/data/make_cachegen.py TEXTS [WORK]",
        "model": "SmolLM2-135M-Instruct, Q4_1 weights as float32",
        "model_sha256": hashlib.sha256(find_weights().read_bytes()).hexdigest(),
        "texts": {name: {"what": TEXTS[name], "sha256": bench.sha256[name]} for name in TEXTS},
        "context_tokens": CONTEXT,
        "continuation_tokens": CONTINUATION,
        "judged": list(JUDGED),
        "seed": 0,
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "torch": torch.__version__,
        },
    }
    OUT.write_text(json.dumps({"provenance": provenance, **_short(made)}, indent=1) + "\n")


def _short(value):
    """Floats to four significant digits: the measurements are no better than that."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    return [_short(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main(*sys.argv[1:])
