"""Chapter 3: the explorers that scatter the cache and show that no answer changes."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

from kvlib.blocks import BlockManager, tail_waste
from kvlib.cost import decode_step_s, weights_read_bytes
from kvlib.explore import COMPUTED, MEASURED, SIMULATED, Choice, Option, Prediction, Range, Stepper, Toggle, View, explorer
from kvlib.explore.palette import INTERNAL, LIMIT, POLICY, SERIES, USED
from kvlib.explore.words import as_many, counted
from kvlib.figures.charts import Line, Mark, axis, line_chart
from kvlib.figures.paging_drawings import draw_mapping, draw_memory, draw_shuffle, draw_workers
from kvlib.specs import get_gpu, get_model, kv_slots
from kvlib.specs.names import spoken
from kvlib.tensors.online_softmax import walk_blocks
from kvlib.tensors.placement import contiguous_runs, scatter_free_blocks
from kvlib.workloads import sharegpt_like

WORDS = "Four score and seven years ago our fathers brought forth on this continent".split()
PROMPT_WORDS = 7
POOL_SLOTS = 32
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# What vLLM keeps for a block: a 32-bit block number.
TABLE_ENTRY_BYTES = 4


@cache
def stored(name: str) -> dict:
    """What ``data/make_<name>.py`` computed on real tensors."""
    return json.loads((Path(__file__).parent / "data" / f"{name}.json").read_text())


def placed(placement: int, num_blocks: int, block_size: int) -> BlockManager:
    """A pool whose blocks are handed out in order (0) or in one of some random orders."""
    manager = BlockManager(num_blocks, block_size)
    if placement:
        scatter_free_blocks(manager, placement)
    return manager


def _predict_shuffle() -> Prediction:
    kept_up = [row for row in stored("paging")["shuffles"] if not row["stale"]]
    changed = sum(row["token"] != kept_up[0]["token"] for row in kept_up)
    fact = f"In {len(kept_up)} placements of SmolLM2's cache the next token changed {changed} times."
    return Prediction(
        "Shuffle every physical block of a prompt, and bring the block table up to date. The model's next token changes …",
        (
            Option("always", f"It would, if attention cared where a key lies. {fact}"),
            Option("sometimes, when blocks land badly", f"No place is bad: every key is still found. {fact}"),
            Option("never", f"Attention asks what a key says and at which position it stood, not where it lies. {fact}"),
        ),
        answer=2 if not changed else (0 if changed == len(kept_up) else 1),
    )


@explorer(
    title="Shuffle the cache",
    controls=[
        Choice("placement", "Placement of the blocks", [(0, "in order"), *((i, f"shuffle {i}") for i in range(1, 9))], default=3),
        Toggle("stale", "Forget to update the block table"),
        Choice("block_size", "Block size", [2, 4, 8], default=2, unit="tokens"),
    ],
    predict=_predict_shuffle,
    expects={"stale": "changes:bound"},
)
def shuffle(placement, stale, block_size) -> View:
    """What SmolLM2 says next when the blocks of its prompt lie elsewhere."""
    data = stored("paging")
    row = next(r for r in data["shuffles"]
               if (r["placement"], r["stale"], r["block_size"]) == (placement, stale, block_size))
    manager = placed(placement, data["pool_blocks"], block_size)
    manager.allocate("prompt", len(data["words"]))
    holds = manager.block_table("prompt")
    reads = list(range(len(holds))) if stale else holds
    same = row["bound"] <= 1e-3
    misread = sum(a != b for a, b in zip(reads, holds))
    return View(
        title=f"“… The capital of Italy is{row['token']}”: " + (
            "the blocks moved and the answer did not" if same and placement and not stale
            else "nothing moved" if same else f"{misread} of {len(holds)} blocks are misread"),
        picture=draw_shuffle(reads, holds, data["pool_blocks"]),
        table=[
            ["quantity", "value"],
            ["next token", row["token"].strip()],
            ["largest logit difference to the contiguous cache", f"at most {row['bound']:g}"],
            ["stretches of neighboring blocks", len(contiguous_runs(holds))],
            ["blocks misread", misread],
        ],
        source=f"computed beforehand on SmolLM2-135M (numpy {data['provenance']['versions']['numpy']}, float32); "
        "the block tables are simulated here by kvlib",
        note=f"The prompt: “{data['text']}”. With a stale table the same keys are read in the wrong places.",
        numbers={"bound": row["bound"], "misread": misread},
    )


@explorer(
    title="Seven tokens, block by block",
    controls=[
        Stepper("step", "Step", last=7, default=1),
        Choice("block_size", "Block size", [1, 2, 4, 8], default=4, unit="tokens"),
        Choice("placement", "Free blocks", [(0, "in order"), (1, "scattered"), (5, "scattered otherwise")], default=1),
    ],
    expects={"step": "rises:blocks", "block_size": "falls:blocks"},
)
def seven_tokens(step, block_size, placement) -> View:
    """Figure 6 of the paper, token by token: prefill, then six generated words."""
    manager = placed(placement, POOL_SLOTS // block_size, block_size)
    manager.allocate("other", 8)
    words = WORDS[:PROMPT_WORDS + step - 1] if step else []
    said = "Before the prompt: nothing is reserved"
    for moment in range(1, step + 1):
        before = manager.num_free
        manager.append("ours") if moment > 1 else manager.allocate("ours", PROMPT_WORDS)
        taken = before - manager.num_free
        what = f"“{words[PROMPT_WORDS + moment - 2]}”" if moment > 1 else f"The prompt of {PROMPT_WORDS} tokens"
        said = f"{what} takes {counted(taken, 'new block')}" if taken else f"{what} goes into a slot that is held already"
    table = manager.block_table("ours") if step else []
    empty = len(table) * block_size - len(words)
    return View(
        title=said,
        picture=draw_memory(manager, words, "other", "ours"),
        table=[
            ["quantity", "value"],
            ["tokens", len(words)],
            ["blocks held", len(table)],
            ["block table", ", ".join(map(str, table)) or "–"],
            ["held slots still empty", empty],
        ],
        source=SIMULATED,
        note="Solid: our tokens and the slots held for the next ones. Hatched: another sequence. Dashed: free.",
        numbers={"blocks": len(table), "empty": empty},
    )


@explorer(
    title="From position to slot",
    controls=[
        Range("position", "Token position", 0, 52, 27, default=37),
        Choice("num_tokens", "Tokens in the sequence", [53, 60, 64, 65, 72, 80], default=53, unit="tokens"),
        Choice("block_size", "Block size", [4, 8, 16, 32], default=16, unit="tokens"),
    ],
    expects={"num_tokens": "rises:blocks", "block_size": "falls:blocks"},
)
def which_slot(position, num_tokens, block_size) -> View:
    """Divide by the block size, look the quotient up, keep the remainder."""
    pool_blocks = max(12, -(-num_tokens // block_size) + 4)
    manager = placed(2, pool_blocks, block_size)
    manager.allocate("ours", num_tokens)
    table = manager.block_table("ours")
    logical, offset = divmod(position, block_size)
    tail = num_tokens % block_size or block_size
    return View(
        title=f"Token {position} lies in slot {table[logical] * block_size + offset}; {num_tokens} tokens hold {len(table)} blocks",
        picture=draw_mapping(table, pool_blocks, block_size, position, num_tokens),
        table=[
            ["quantity", "value"],
            ["logical block, offset", f"{logical}, {offset}"],
            ["physical block", table[logical]],
            ["slot", table[logical] * block_size + offset],
            ["full blocks", num_tokens // block_size],
            ["tokens in the last block", tail],
        ],
        source=SIMULATED,
        note="A full block never changes again, so others may share it for good. The last one is still being written: "
        "whoever shares it must copy it before writing.",
        numbers={"blocks": len(table), "slot": table[logical] * block_size + offset},
    )


STREAM = ((0.2, 1.0), (1.1, 4.0), (0.4, 2.0), (2.3, 3.0), (1.6, 0.0), (0.9, 5.0), (2.8, 2.0), (0.1, 6.0))


@explorer(
    title="Softmax that never looks back",
    controls=[
        Stepper("step", "Blocks read", last=8, default=2),
        Choice("block_size", "Block size", [1, 2, 4], default=2, unit="keys"),
    ],
    expects={"step": "changes:answer"},
)
def online_softmax(step, block_size) -> View:
    """One query walks through eight keys; the answer after each block is right for what was read."""
    blocks = [STREAM[i:i + block_size] for i in range(0, len(STREAM), block_size)]
    states = walk_blocks(blocks)
    whole, read = walk_blocks([STREAM])[-1].answer, min(step, len(blocks))
    answers = [state.answer for state in states[:read]]
    at = [min(len(STREAM), block_size * (i + 1)) for i in range(read)]
    answer, state = (answers[-1], states[read - 1]) if read else (0.0, None)
    figure = line_chart(
        [
            Line("answer so far", at, answers, SERIES[0], markers=True),
            Line("softmax over all keys at once", [0, len(STREAM)], [whole, whole], SERIES[1], dash=1),
        ],
        axis("keys read", low=0, high=len(STREAM) + 0.3), axis("attention output", low=0, high=5),
    )
    done = read == len(blocks)
    return View(
        title=f"After the last block the answer is {answer:.4g}, exactly the whole softmax" if done
        else f"After {read} of {len(blocks)} blocks the answer stands at {answer:.4g}",
        picture=figure,
        table=[
            ["the query remembers", "value"],
            ["largest score", state.top if state else "–"],
            ["sum of exp(score − largest)", state.total if state else "–"],
            ["weighted sum of values", state.weighted if state else "–"],
            ["answer = weighted ÷ sum", answer if state else "–"],
        ],
        source=COMPUTED,
        note="Three numbers are all that is kept between blocks. When a larger score turns up, the old sums are scaled down.",
        numbers={"answer": answer, "whole": whole},
    )


@cache
def _lengths() -> tuple[int, ...]:
    return tuple(r.num_input_tokens + r.num_output_tokens for r in sharegpt_like(1000, rate=1.0, seed=7))


@explorer(
    title="What the block size moves",
    controls=[
        Choice("block_size", "Block size", BLOCK_SIZES, default=16, unit="tokens"),
        Choice("model", "Model", ["opt-13b", "llama-3-8b", "llama-3-70b"], default="opt-13b"),
    ],
    expects={"block_size": "rises:run_bytes", "model": "changes:table_share"},
)
def block_size_costs(block_size, model) -> View:
    """Bytes read in one go, bytes of block table, and bytes wasted in the last block."""
    shape = get_model(model).shape
    group = shape.groups[0]
    per_token = shape.kv_bytes_per_token()
    run = {size: size * per_token / (2 * group.layers * group.kv_heads) for size in BLOCK_SIZES}
    wastes = {size: tail_waste(_lengths(), size) for size in BLOCK_SIZES}
    mean = math.fsum(_lengths()) / len(_lengths())
    table_bytes = {size: wastes[size].held_slots / size / len(_lengths()) * TABLE_ENTRY_BYTES for size in BLOCK_SIZES}
    wasted = {size: max(wastes[size].slots_per_sequence * per_token, 1.0) for size in BLOCK_SIZES}
    figure = line_chart(
        [
            Line("read in one piece (a head, K or V)", BLOCK_SIZES, list(run.values()), USED, markers=True),
            Line("block table of a request", BLOCK_SIZES, list(table_bytes.values()), SERIES[2], dash=1, markers=True),
            Line("wasted in the last block", BLOCK_SIZES[1:], [wasted[s] for s in BLOCK_SIZES[1:]], INTERNAL, dash=2, markers=True),
        ],
        axis("block size (tokens)", categories=[str(size) for size in BLOCK_SIZES]), axis("bytes", log=True, low=1, high=1e9),
        marks=[Mark("your block size", block_size, run[block_size], LIMIT)],
    )
    for trace in figure["data"]:
        trace["x"] = [str(x) for x in trace["x"]]
    share, table_share = wastes[block_size].share_of_held, table_bytes[block_size] / (mean * per_token)
    return View(
        title=f"Blocks of {block_size}: {run[block_size]:,.0f} bytes in one piece, {100 * share:.2g} % wasted",
        picture=figure,
        table=[
            ["quantity", "value"],
            ["contiguous piece (bytes)", round(run[block_size])],
            ["pieces read for one head of a mean request", -(-round(mean) // block_size)],
            ["block table (bytes)", table_bytes[block_size]],
            ["block table ÷ KV", table_share],
            ["wasted in the last block (% of held)", 100 * share],
        ],
        source=SIMULATED,
        note=f"1,000 ShareGPT-like requests of {mean:.0f} tokens on average, {spoken(model)} in 16 bits. A GPU fetches memory in "
        "pieces of 32 to 128 bytes, so one token of one head already fills several.",
        numbers={"run_bytes": run[block_size], "table_share": table_share, "waste": share},
    )


@explorer(
    title="Slower attention, larger batch",
    controls=[
        Range("slowdown", "Paged attention is slower by", 0, 100, 21, default=25, unit="%"),
        Choice("context", "Tokens per request", [125, 250, 500, 1000], default=500, unit="tokens"),
        Choice("reserved", "Slots reserved without paging", [1024, 2048], default=2048, unit="slots"),
    ],
    expects={"slowdown": "falls:tokens_per_s", "context": "changes:tokens_per_s", "reserved": "changes:without"},
)
def payback(slowdown, context, reserved) -> View:
    """OPT-13B on an A100-40GB: the step with paging is longer, and serves more requests."""
    model, gpu = get_model("opt-13b"), get_gpu("a100-40gb")
    slots = kv_slots(model, gpu)
    most = {"without": slots // reserved, "with": slots // (-(-context // 16) * 16)}

    def step_s(requests: int, slower: float) -> float:
        base = decode_step_s(model, gpu, [context] * requests)
        attention = base - decode_step_s(model, gpu, [0] * requests)
        return base + slower * attention

    slower = slowdown / 100
    steps = {way: sorted({max(1, round(held * i / 16)) for i in range(17)}) for way, held in most.items()}
    rates = {
        "without": [n / step_s(n, 0.0) for n in steps["without"]],
        "with": [n / step_s(n, slower) for n in steps["with"]],
    }
    loss = step_s(most["without"], slower) / step_s(most["without"], 0.0) - 1
    gain = rates["with"][-1] / rates["without"][-1]
    figure = line_chart(
        [
            Line("contiguous, reserved", steps["without"], rates["without"], POLICY["max"], dash=1, markers=True),
            Line("paged", steps["with"], rates["with"], POLICY["paged"]),
        ],
        axis("requests held at once", low=0, high=most["with"] * 1.1),
        axis("decoded tokens per second", low=0, high=max(rates["with"][-1], rates["without"][-1]) * 1.15),
        marks=[
            Mark("memory full", most["without"], rates["without"][-1], LIMIT, text="reserved"),
            Mark("memory full", most["with"], rates["with"][-1], LIMIT, text="paged"),
        ],
    )
    figure["data"][-1]["showlegend"] = False
    return View(
        title=f"A step takes {f'{100 * loss:.2g} %' if loss else 'no'} longer, and paging decodes {as_many(gain)} tokens",
        picture=figure,
        table=[
            ["quantity", "contiguous", "paged"],
            ["requests held", most["without"], most["with"]],
            ["step, memory full (ms)", 1e3 * step_s(most["without"], 0.0), 1e3 * step_s(most["with"], slower)],
            ["tokens per second", rates["without"][-1], rates["with"][-1]],
        ],
        source=COMPUTED,
        note=f"Reading {weights_read_bytes(model, 1) / 1e9:.3g} GB of weights is most of a step and knows nothing of blocks. "
        "The paper measured attention kernels 20–26 % slower.",
        numbers={"tokens_per_s": rates["with"][-1], "without": rates["without"][-1], "loss": loss, "gain": gain},
    )


@explorer(
    title="One table for all GPUs",
    controls=[
        Choice("num_gpus", "GPUs (tensor parallel)", [1, 2, 4, 8], default=4),
        Choice("num_tokens", "Tokens", [10, 30, 53, 64], default=53, unit="tokens"),
    ],
    expects={"num_gpus": "falls:block_bytes", "num_tokens": "changes:blocks"},
)
def tensor_parallel(num_gpus, num_tokens) -> View:
    """Llama-3-8B: each worker holds its heads of every token, under the same block numbers."""
    shape, block_size, pool_blocks = get_model("llama-3-8b").shape, 16, 12
    heads = shape.groups[0].kv_heads // num_gpus
    manager = placed(4, pool_blocks, block_size)
    manager.allocate("ours", num_tokens)
    block_bytes = block_size * shape.per_gpu(num_gpus).kv_bytes_per_token()
    names = [f"head {i}" if heads == 1 else f"heads {i * heads}–{(i + 1) * heads - 1}" for i in range(num_gpus)]
    return View(
        title=f"One block table serves {counted(num_gpus, 'GPU')}; a block takes {block_bytes / 2**10:,.0f} KiB on each",
        picture=draw_workers(manager.block_table("ours"), pool_blocks, names),
        table=[
            ["quantity", "value"],
            ["blocks of this sequence", len(manager.block_table("ours"))],
            ["KV heads on each GPU", heads],
            ["bytes of one block on each GPU", block_bytes],
            ["bytes of one block, summed", block_bytes * num_gpus],
        ],
        source=SIMULATED,
        note="All workers compute the same token positions, so one central block manager is enough. It sends the table with the "
        "tokens of each step.",
        numbers={"block_bytes": block_bytes, "blocks": len(manager.block_table("ours"))},
    )


MEASURED_ON = {
    "triton": ("one fused kernel on an H200 GPU", "paging_measured_cuda"),
    "torch": ("torch, one CPU thread", "paging_measured"),
    "numpy": ("numpy, one CPU thread", "paging_measured"),
}


@explorer(
    title="The price of indirection, measured",
    controls=[
        Choice("library", "Measured with", [(key, words) for key, (words, _) in MEASURED_ON.items()], default="triton")
    ],
    expects={"library": "changes:at_16"},
)
def indirection(library) -> View:
    """Decode attention through block tables against contiguous attention, and against gathering first."""
    words, name = MEASURED_ON[library]
    data = stored(name)
    ratios = {int(size): ratio for size, ratio in data["ratios"][library].items()}
    sizes, gather = sorted(ratios), data["ratios"]["gather"]
    places = [str(size) for size in sizes]
    figure = line_chart(
        [
            Line("through the block table", places, [ratios[size] for size in sizes], SERIES[0], markers=True),
            Line("put together first (blocks of 16)", places, [gather] * len(sizes), SERIES[1], dash=1),
            Line("contiguous", places, [1.0] * len(sizes), SERIES[5], dash=2),
        ],
        axis("block size (tokens)", categories=places), axis("time ÷ contiguous attention", log=True, low=0.3, high=100),
    )
    return View(
        title=f"Blocks of 16 take {ratios[16]:.3g} times as long as one contiguous array, gathering first {gather:.2g} times",
        picture=figure,
        table=[["block size", "time ÷ contiguous"], *([size, ratios[size]] for size in sizes), ["16, gathered first", gather]],
        source=f"{MEASURED} with {words}: {data['machine']}",
        note="Contiguous is torch's own fused attention. Gathering writes and reads every byte once more. The paper reports 20–26 % "
        "for its kernel. Run bench/bench_tensors.py for your machine.",
        numbers={"at_16": ratios[16], "gather": gather},
    )
