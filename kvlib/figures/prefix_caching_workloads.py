"""Chapter 7: where reuse comes from, what block size does to it, and few-shot examples on a real model."""

from __future__ import annotations

from kvlib.explore import SIMULATED, Choice, Option, Prediction, Range, Toggle, View, explorer
from kvlib.explore.palette import IDLE, LIMIT, SERIES
from kvlib.figures.charts import Line, axis, line_chart, stacked_bars
from kvlib.figures.prefix_caching_hashing import RAN_BEFOREHAND, model_runs
from kvlib.figures.prefix_caching_sweeps import KINDS, stored_sweeps

SOURCES = {
    "opening": "shared opening",
    "message": "own earlier messages",
    "answer": "own earlier answers",
    "new": "computed for the first time",
}
SOURCE_COLOURS = {"opening": SERIES[0], "message": SERIES[2], "answer": SERIES[3], "new": IDLE}
SHORT_NAMES = {
    "conversation": "conversation",
    "tool_agent": "tools",
    "chat": "short chats",
    "documents": "documents",
    "rag": "RAG",
    "agents": "agents",
}
BLOCK_KINDS = tuple(stored_sweeps()["tokens_saved"])
BLOCK_SIZES = tuple(stored_sweeps()["block_sizes"])
# The page's controls hold numbers, so a cache that never evicts is 0 there and None in the runs.
ROOMS = tuple(
    (tokens or 0, f"{tokens:,} tokens" if tokens else "without end")
    for tokens in stored_sweeps()["token_capacities"]
)


def _predict_answers() -> Prediction:
    kept, forgotten = (stored_sweeps()["reuse"]["chat"][name]["new"] for name in ("kept", "forgotten"))
    reply = (
        f"In short chats {forgotten:.0%} of the prompt tokens are computed without generated tokens in the"
        f" cache, and {kept:.0%} with them."
    )
    return Prediction(
        "In a chat the model's own answers come back in the next prompt. An engine that caches prompts, but"
        " not what it generated, computes how much of the prompts of short chats?",
        (
            Option(
                f"about {kept:.0%}",
                f"That needs the answers in the cache as soon as they are generated. {reply}",
            ),
            Option(f"about {forgotten:.0%}", reply),
            Option("all of them", f"The opening and the turns before the last are found. {reply}"),
        ),
        answer=1 if forgotten > kept else 0,
    )


@explorer(
    title="Where reuse comes from",
    controls=[
        Toggle("keep_answers", "Generated tokens stay cached", default=True),
        Choice("workload", "Look closely at", tuple(KINDS.items()), default="chat"),
    ],
    predict=_predict_answers,
    expects={"keep_answers": "falls:new", "workload": "changes:new"},
)
def reuse(keep_answers, workload) -> View:
    """The tokens of prompts by where they were seen before."""
    shares = {
        kind: runs["kept" if keep_answers else "forgotten"] for kind, runs in stored_sweeps()["reuse"].items()
    }
    own = shares[workload]
    best = max(("opening", "message", "answer"), key=own.get)
    return View(
        title=(
            f"{KINDS[workload][0].upper()}{KINDS[workload][1:]}: {1 - own['new']:.0%} of the prompt tokens"
            f" can be reused, most of them from {SOURCES[best]}"
        ),
        picture=stacked_bars(
            [SHORT_NAMES[kind] for kind in shares],
            [
                (name, [100 * one[source] for one in shares.values()], SOURCE_COLOURS[source])
                for source, name in SOURCES.items()
            ],
            axis("share of all prompt tokens (%)", low=0, high=100),
        ),
        table=[["workload", *SOURCES.values()]]
        + [
            [SHORT_NAMES[kind], *(f"{one[source]:.0%}" for source in SOURCES)] for kind, one in shares.items()
        ],
        source=SIMULATED,
        note=(
            "Synthetic sessions, counted token by token, with a cache that never evicts. A shared opening is"
            " a system prompt with tools or examples, a document, or retrieved chunks in the same order."
        ),
        numbers={"new": own["new"], **{source: own[source] for source in ("opening", "message", "answer")}},
    )


def _saved(kind: str, room: int) -> list[float]:
    column = [tokens for tokens, _ in ROOMS].index(room)
    return [row[column] for row in stored_sweeps()["tokens_saved"][kind]]


def _predict_block_size() -> Prediction:
    kept = {kind: _kept(_saved(kind, 0), 512) for kind in ("documents", "chat")}
    facts = (
        f"Blocks of 512 keep {kept['documents']:.0%} of the reuse for documents and {kept['chat']:.0%} for"
        " short chats."
    )
    return Prediction(
        "Blocks grow from 16 to 512 tokens. Who loses more of the reuse: questions about long documents, or"
        " short chats?",
        (
            Option(
                "the documents",
                f"They share thousands of tokens; at most one block of them is cut off. {facts}",
            ),
            Option("the short chats", facts),
            Option(
                "both lose the same",
                f"A shared prefix loses half a block on average, whatever its length. {facts}",
            ),
        ),
        answer=1 if kept["chat"] < kept["documents"] else 0,
    )


def _kept(saved: list[float], block_size: int) -> float:
    return saved[BLOCK_SIZES.index(block_size)] / saved[0]


@explorer(
    title="Block size against reuse",
    controls=[
        Choice("block_size", "Block size", BLOCK_SIZES, default=512, unit="tokens"),
        Choice("room", "Room in the cache", ROOMS, default=0),
    ],
    predict=_predict_block_size,
    expects={"block_size": "falls:chat", "room": "changes:documents"},
)
def block_size(block_size, room) -> View:
    """The share of prompt tokens saved, for blocks of 16 to 4,096 tokens."""
    saved = {kind: _saved(kind, room) for kind in BLOCK_KINDS}
    at = BLOCK_SIZES.index(block_size)
    figure = line_chart(
        [
            Line(
                SHORT_NAMES[kind],
                BLOCK_SIZES,
                [100 * share for share in shares],
                SERIES[i],
                dash=i,
                markers=True,
            )
            for i, (kind, shares) in enumerate(saved.items())
        ],
        axis("block size (tokens)", log=True, low=BLOCK_SIZES[0] / 1.2, high=BLOCK_SIZES[-1] * 1.2),
        axis("prompt tokens saved (%)", low=0, high=100),
        walls=[(block_size, f"{block_size:,} tokens", LIMIT)],
    )
    return View(
        title=(
            f"Blocks of {block_size:,} keep {_kept(saved['documents'], block_size):.0%} of the reuse for"
            f" documents, {_kept(saved['chat'], block_size):.0%} for short chats"
        ),
        picture=figure,
        table=[["workload", "tokens saved", f"of what blocks of {BLOCK_SIZES[0]} save"]]
        + [
            [SHORT_NAMES[kind], f"{shares[at]:.1%}", f"{_kept(shares, block_size):.0%}"]
            for kind, shares in saved.items()
        ],
        source=SIMULATED,
        note=(
            "LRU over full blocks; a partial last block is not cached, and generated tokens are not either."
            " What smaller blocks cost is the subject of the chapter on Strata."
        ),
        numbers={kind: shares[at] for kind, shares in saved.items()},
    )


@explorer(
    title="Eight requests behind the same examples",
    controls=[
        Choice(
            "shots",
            "Examples in the prompt",
            tuple(
                (name, f"{name}: {run['shots_tokens']} tokens")
                for name, run in model_runs()["few_shot"].items()
            ),
            default="5-shot",
        ),
        Range("requests", "Requests", 1, 8, 8, default=8),
    ],
    expects={"shots": "changes:saved", "requests": "rises:saved"},
)
def few_shot(shots, requests) -> View:
    """Tokens computed and reused by SmolLM2, and whether its logits stayed the same."""
    runs = model_runs()["few_shot"][shots]["requests"][:requests]
    computed = [run["tokens"] - run["hit_tokens"] for run in runs]
    reused = [run["hit_tokens"] for run in runs]
    saved = sum(reused) / sum(computed + reused)
    equal = all(run["max_difference"] <= 1e-3 for run in runs)
    return View(
        title=(
            f"{saved:.0%} of the prompt tokens are reused, and the logits are"
            f" {'the same to rounding' if equal else 'not the same'}"
        ),
        picture=stacked_bars(
            [f"request {number}" for number in range(1, len(runs) + 1)],
            [("reused", reused, SERIES[0]), ("computed", computed, SERIES[1])],
            axis("prompt tokens", low=0, high=400),
        ),
        table=[["request", "tokens", "reused", "max |Δ logit| ≤ 0.001", "same next token"]]
        + [
            [
                str(i),
                run["tokens"],
                run["hit_tokens"],
                "yes" if run["max_difference"] <= 1e-3 else "no",
                "yes" if run["same_next_token"] else "no",
            ]
            for i, run in enumerate(runs, start=1)
        ],
        source=RAN_BEFOREHAND,
        numbers={"saved": saved, "computed": sum(computed), "equal": int(equal)},
    )
