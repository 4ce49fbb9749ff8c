"""Attention through block tables, and SmolLM2: ``python bench/bench_tensors.py``.

Everything is compared inside one run, so the ratios mean something on any machine. One thread, unless
``--threads`` says otherwise; ``--device cuda`` times the Triton kernel.
"""

import argparse
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
parser.add_argument("--json", metavar="FILE", help="also write the ratios of the attention part to FILE")
OPTIONS = parser.parse_args()
# Read when numpy loads its linear algebra, hence before any import of it.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(OPTIONS.threads)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from speeds import Speed, report  # noqa: E402

from kvlib.errors import ConfigError  # noqa: E402
from kvlib.tensors.attention import paged_attention  # noqa: E402
from kvlib.tensors.backend import get_backend  # noqa: E402
from kvlib.tensors.session import PagedSession  # noqa: E402
from kvlib.tensors.smollm import load_smollm  # noqa: E402

ON_GPU = OPTIONS.device == "cuda"
# A GPU is only busy with many sequences, and serves them in bfloat16.
BATCH, DTYPE = (128, "bfloat16") if ON_GPU else (16, "float32")
HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 32, 8, 128, 2048
BLOCK_SIZES = (1, 4, 16, 64, 256)


def seconds(run) -> float:
    """The median of five timings after one to warm up; on a GPU each is the mean of 20 calls."""
    calls = 20 if ON_GPU else 1
    taken = []
    for _ in range(6):
        start = time.perf_counter()
        for _ in range(calls):
            run()
        if ON_GPU:
            torch.cuda.synchronize()
        taken.append((time.perf_counter() - start) / calls)
    return statistics.median(taken[1:])


def decode_example(xp, block_size: int):
    """Random keys and values of `BATCH` sequences, scattered over a pool that they fill."""
    rng, num_blocks = np.random.default_rng(0), BATCH * CONTEXT // block_size
    shape = (KV_HEADS, num_blocks, block_size, HEAD_DIM)
    keys, values = (xp.floats(rng.standard_normal(shape, dtype=np.float32)) for _ in range(2))
    query = xp.floats(rng.standard_normal((BATCH, 1, HEADS, HEAD_DIM), dtype=np.float32))
    order = list(range(num_blocks))
    random.Random(0).shuffle(order)
    each = CONTEXT // block_size
    return query, keys, values, [order[row * each:(row + 1) * each] for row in range(BATCH)]


def time_attention() -> tuple[float, dict]:
    """Print times; return that of contiguous attention in seconds, and the ratios of the others to it."""
    print(f"decode attention: batch {BATCH}, {HEADS} heads on {KV_HEADS}, width {HEAD_DIM}, context {CONTEXT}, {DTYPE}")
    xp = get_backend("torch", DTYPE, OPTIONS.device)
    query, keys, values, tables = decode_example(xp, 16)
    wanted, index = query.swapaxes(1, 2), xp.ints(tables)

    def gather():
        side_by_side = (pool[:, index].reshape(KV_HEADS, BATCH, CONTEXT, HEAD_DIM) for pool in (keys, values))
        return [rows.swapaxes(0, 1).contiguous() for rows in side_by_side]

    together = gather()
    sdpa = torch.nn.functional.scaled_dot_product_attention
    contiguous = seconds(lambda: sdpa(wanted, *together, enable_gqa=True))
    say("contiguous SDPA", contiguous, contiguous)
    ratios = {"gather": say("gather + SDPA", seconds(lambda: sdpa(wanted, *gather(), enable_gqa=True)), contiguous)}
    if ON_GPU:
        return contiguous, {**ratios, "triton": time_triton(xp, contiguous)}
    for name in ("torch", "numpy"):
        xp, ratios[name] = get_backend(name, DTYPE), {}
        for block_size in BLOCK_SIZES:
            example = decode_example(xp, block_size)
            taken = seconds(lambda: paged_attention(xp, *example, [CONTEXT] * BATCH))
            ratios[name][block_size] = say(f"{name}, blocks of {block_size}", taken, contiguous)
    return contiguous, ratios


def time_triton(xp, contiguous: float) -> dict:
    """The kernel against the loop over blocks, first in value, then in time."""
    from kvlib.tensors.triton_decode import paged_decode

    ratios, lengths = {}, xp.ints([CONTEXT] * BATCH)
    for block_size in BLOCK_SIZES:
        query, keys, values, tables = decode_example(xp, block_size)
        rows, index = query[:, 0].contiguous(), xp.ints(tables)
        wanted = paged_attention(xp, query, keys, values, tables, [CONTEXT] * BATCH)[:, 0]
        error = float((paged_decode(rows, keys, values, index, lengths) - wanted).abs().max())
        taken = seconds(lambda: paged_decode(rows, keys, values, index, lengths))
        ratios[block_size] = say(f"Triton, blocks of {block_size} (max |Δ| {error:.1e})", taken, contiguous)
    return ratios


def say(what: str, taken: float, contiguous: float) -> float:
    print(f"  {what:40s} {1e3 * taken:8.2f} ms   {taken / contiguous:6.2f} × contiguous SDPA", flush=True)
    return float(f"{taken / contiguous:.3g}")


def write_json(ratios: dict, path: str) -> None:
    """What the book's explorer `paging.indirection` shows."""
    device = torch.cuda.get_device_name() if ON_GPU else f"CPU, {OPTIONS.threads} thread"
    versions = f"torch {torch.__version__}, numpy {np.__version__}, Python {platform.python_version()}"
    machine = (f"{device}, {versions}; batch {BATCH}, {HEADS} query heads on {KV_HEADS}, width {HEAD_DIM}, "
               f"context {CONTEXT}, {DTYPE}")
    command = f"python bench/bench_tensors.py --device {OPTIONS.device} --json FILE"
    Path(path).write_text(json.dumps({"command": command, "machine": machine, "ratios": ratios}, indent=1) + "\n")


def attention(contiguous: float, ratios: dict) -> Iterator[Speed]:
    """The figures of the CPU with a target, all for blocks of 16."""
    blocks, numpy_blocks = ratios["torch"][16], ratios["numpy"][16]
    yield Speed("tensors.gather", "gather + SDPA against torch, block by block", ratios["gather"] / blocks, "times", 2, True)
    yield Speed("tensors.sdpa", "torch, block by block, against contiguous SDPA", blocks, "times")
    yield Speed("tensors.numpy", "numpy, block by block, against contiguous SDPA", numpy_blocks, "times", 4)
    kv_bytes = 2 * BATCH * CONTEXT * KV_HEADS * HEAD_DIM * 4
    gb_per_s = kv_bytes / (contiguous * min(blocks, numpy_blocks)) / 1e9
    yield Speed("tensors.bytes", "KV read by decode attention, block by block", gb_per_s, "GB/s", None, True)


def smollm() -> Iterator[Speed]:
    for name in ("numpy", "torch"):
        model = load_smollm(get_backend(name, "float32", OPTIONS.device if name == "torch" else "cpu"))
        tokens = [random.Random(0).randrange(model.shape.vocabulary) for _ in range(1024)]
        session = PagedSession(model, num_blocks=80, block_size=16, scatter_seed=0)
        start = time.perf_counter()
        row = session.feed({"a": tokens})["a"]
        prefill_s = time.perf_counter() - start
        yield Speed(f"tensors.prefill_{name}", f"SmolLM2: prefill of 1,024 tokens, {name}", prefill_s, "s", 6)
        start, steps = time.perf_counter(), 40
        for _ in range(steps):
            row = session.feed({"a": [max(range(len(row)), key=row.__getitem__)]})["a"]
        per_s = steps / (time.perf_counter() - start)
        yield Speed(f"tensors.decode_{name}", f"SmolLM2: decode through the paged cache, {name}", per_s, "tokens/s", 12, True)


def measure() -> Iterator[Speed]:
    contiguous, ratios = time_attention()
    if OPTIONS.json:
        write_json(ratios, OPTIONS.json)
    if not ON_GPU:
        yield from attention(contiguous, ratios)
    try:
        yield from smollm()
    except ConfigError as refusal:
        print(f"SmolLM2 left out: {refusal}")


if __name__ == "__main__":
    torch.set_num_threads(OPTIONS.threads)
    report(measure())
