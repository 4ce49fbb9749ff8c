"""Chapter 5: bringing a preempted request back, over the bus or through the model."""

from __future__ import annotations

from collections.abc import Callable

from kvlib.cost import recompute_s, swap_s, transfer_s
from kvlib.explore import COMPUTED, Choice, Option, Prediction, Range, Toggle, View, explorer
from kvlib.explore.palette import LIMIT, PREFILL, TRANSFER
from kvlib.figures.charts import Line, Mark, axis, line_chart
from kvlib.specs import LinkSpec, ModelSpec, get_gpu, get_link, get_model
from kvlib.specs.names import spoken

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
OVERHEAD_S = get_link("pcie-lecture7").overhead_s
MODELS = ("opt-13b", "llama-3-8b", "mistral-7b", "qwen2.5-14b")
GPU = "a100-40gb"


def link_of(bytes_per_s: float) -> LinkSpec:
    """A link of this rate with the lecture's overhead per copy."""
    return LinkSpec("yours", bytes_per_s, OVERHEAD_S)


def round_trip_s(model: ModelSpec, link: LinkSpec, num_tokens: int, block_size: int, merged: bool) -> float:
    """Swapping a sequence out and in again; ``merged`` lays all layers of a block into one copy."""
    if not merged:
        return 2 * swap_s(model, link, num_tokens, block_size)
    blocks = -(-num_tokens // block_size)
    return 2 * transfer_s(model.shape.kv_bytes(blocks * block_size), link, copies=blocks)


def bytes_only_s(model: ModelSpec, link: LinkSpec, num_tokens: int, block_size: int) -> float:
    """The part of the round trip that the bytes take."""
    blocks = -(-num_tokens // block_size)
    return 2 * transfer_s(model.shape.kv_bytes(blocks * block_size), LinkSpec("bytes", link.effective_bytes_per_s))


def first_block_size_to_swap(round_trip: Callable[[int], float], recompute: float) -> int | None:
    """The smallest block size whose round trip is shorter than the recomputation."""
    return next((size for size in BLOCK_SIZES if round_trip(size) < recompute), None)


def _predict() -> Prediction:
    model = get_model("opt-13b")
    before, after = (round_trip_s(model, link_of(rate), 1024, 1, False) for rate in (25e9, 50e9))
    saved = 1 - after / before
    reply = f"The round trip falls from {1e3 * before:,.0f} to {1e3 * after:,.0f} ms, by {100 * saved:.0f} %."
    shares = (0.5, 0.2, 0.02)
    return Prediction(
        "Blocks of a single token, 1,024 tokens of OPT-13B, swapped to host memory and back. You double the bandwidth of the bus. "
        "The round trip gets shorter by …",
        (
            Option("half", f"That would be so if the time went into moving bytes. {reply}"),
            Option("a fifth", f"The bytes are a smaller part than that. {reply}"),
            Option("2 %", f"{reply} It goes into starting copies: 80 for every token, 10 µs each."),
        ),
        answer=min(range(3), key=lambda i: abs(shares[i] - saved)),
    )


@explorer(
    title="Swap or recompute?",
    controls=[
        Choice("block_size", "Block size", [(1, "1 token"), *BLOCK_SIZES[1:]], default=1, unit="tokens"),
        Range("bandwidth", "Bandwidth of the bus", 5, 100, 20, default=25, unit="GB/s"),
        Toggle("merged", "All layers of a block in one copy"),
        Choice("num_tokens", "Tokens of the request", [128, 256, 512, 1024, 2048], default=1024),
        Choice("model", "Model", [(name, spoken(name)) for name in MODELS], default="opt-13b"),
    ],
    predict=_predict,
    expects={
        "block_size": "falls:swap_ms", "bandwidth": "falls:swap_ms", "merged": "falls:swap_ms",
        "num_tokens": "rises:recompute_ms", "model": "changes:swap_ms",
    },
)
def swap_or_recompute(block_size, bandwidth, merged, num_tokens, model) -> View:
    """The round trip over the bus against one prefill, by block size."""
    spec, link = get_model(model), link_of(1e9 * bandwidth)
    again = recompute_s(spec, get_gpu(GPU), num_tokens)

    def trip(size):
        return round_trip_s(spec, link, num_tokens, size, merged)

    here, moving = trip(block_size), bytes_only_s(spec, link, num_tokens, block_size)
    first = first_block_size_to_swap(trip, again)
    figure = line_chart(
        [
            Line("swap out and in", BLOCK_SIZES, [1e3 * trip(size) for size in BLOCK_SIZES], TRANSFER, markers=True),
            Line(
                "of which bytes", BLOCK_SIZES,
                [1e3 * bytes_only_s(spec, link, num_tokens, size) for size in BLOCK_SIZES], TRANSFER, dash=2,
            ),
            Line("recompute", (BLOCK_SIZES[0], BLOCK_SIZES[-1]), [1e3 * again] * 2, PREFILL, dash=1),
        ],
        axis("block size (tokens)", log=True, low=0.8, high=330),
        axis("time (ms)", log=True, low=5, high=5000),
        marks=[Mark("your setting", block_size, 1e3 * here, LIMIT)],
    )
    winner = "recomputing" if again < here else "swapping"
    return View(
        title=f"Block size {block_size}: swap {1e3 * here:,.0f} ms, recompute {1e3 * again:,.0f} ms; {winner} wins",
        picture=figure,
        table=[
            ["quantity", "value"],
            ["swap out and in (ms)", 1e3 * here],
            ["of which starting copies (ms)", 1e3 * (here - moving)],
            ["of which bytes (ms)", 1e3 * moving],
            ["recompute (ms)", 1e3 * again],
            ["copies each way", round((here - moving) / 2 / OVERHEAD_S)],
            ["smallest block size at which swapping wins", first or "none up to 256"],
        ],
        source=COMPUTED,
        note=(
            f"{spoken(model)} on an {spoken(GPU)}; starting a copy takes 10 µs, as lecture 7 assumes. K and V of every layer are a copy "
            "of their own, unless they are merged."
        ),
        numbers={"swap_ms": 1e3 * here, "recompute_ms": 1e3 * again, "bytes_ms": 1e3 * moving, "first": first or 0},
    )
