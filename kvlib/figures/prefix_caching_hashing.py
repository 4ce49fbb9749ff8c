"""Chapter 7: block hashes in an editable prompt, and what a hash that forgets the past does to a model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from kvlib.errors import ConfigError
from kvlib.explore import (
    COMPUTED,
    Choice,
    Drawing,
    Option,
    Prediction,
    Text,
    Toggle,
    View,
    explorer,
)
from kvlib.explore.palette import LIMIT, SERIES, USED
from kvlib.explore.svg import WIDTH
from kvlib.explore.words import counted
from kvlib.figures.charts import axis, stacked_bars
from kvlib.prefix import block_digest, block_digests, root_digest

ROW = 52
BOX_HEIGHT = 26
HASH_LETTERS = 6
LINE_LETTERS = 60
CACHED = "You are a travel guide . Be brief . Tell me where to find good bread in Paris . Thank you !"
EDITED = "You are a travel guide . Be brief . Tell me where to find good cheese in Paris . Thank you !"
EDITED_WORD = 9  # stands in the third block


@dataclass(frozen=True)
class Block:
    """One full block of the reader's prompt: its words, its hash in short, and how the cache sees it."""

    words: tuple[str, ...]
    digest: str
    found: bool
    right: bool


def token_of(word: str) -> int:
    """A token id for a word: the book's pages carry no tokenizer."""
    return int.from_bytes(sha256(word.encode()).digest()[:4], "big")


def look_up(cached: str, prompt: str, block_size: int, chained: bool) -> tuple[list[Block], int]:
    """The full blocks of `prompt` as a cache that holds `cached` finds them, and the words after them.

    A chained hash that is known vouches for all blocks before it. In both cases the last word is computed,
    because its logits are wanted.
    """
    words = prompt.split()
    if not words:
        raise ConfigError("prompt: got no words, expected at least 1")
    known, own = _digests(cached.split(), block_size, chained), _digests(words, block_size, chained)
    true_known, true_own = (_digests(text.split(), block_size, True) for text in (cached, prompt))
    blocks = []
    for index, digest in enumerate(own):
        found = digest in known and index < (len(words) - 1) // block_size
        block_words = tuple(words[index * block_size : (index + 1) * block_size])
        blocks.append(Block(block_words, digest.hex()[:HASH_LETTERS], found, true_own[index] in true_known))
    return blocks, len(words) - len(own) * block_size


def _digests(words, block_size: int, chained: bool) -> list[bytes]:
    tokens = [token_of(word) for word in words]
    if chained:
        return block_digests(tokens, block_size)
    starts = range(0, len(tokens) - block_size + 1, block_size)
    return [block_digest(root_digest(), tokens[start : start + block_size]) for start in starts]


def _predict_prompt() -> Prediction:
    changed = CACHED.split()
    changed[EDITED_WORD] = "us"
    blocks, _ = look_up(CACHED, " ".join(changed), 4, True)
    hits = sum(block.found for block in blocks)
    total = len(blocks)
    reply = (
        f"The keys and values of a word depend on every word before it, so {hits} blocks before the change"
        " can be reused."
    )
    return Prediction(
        f"A prompt of {total} full blocks is cached. You send it again with one word of the third block"
        " changed. How many blocks are found?",
        (
            Option(
                f"{total - 1}: all but that one",
                f"The later blocks hold the same words, but they stand behind another past. {reply}",
            ),
            Option("2: those before it", reply),
            Option("0", f"What comes before the change knows nothing of it. {reply}"),
        ),
        answer={total - 1: 0, 2: 1, 0: 2}[hits],
    )


@explorer(
    title="Edit a prompt and watch its block hashes",
    controls=[
        Text("prompt", "Your prompt", default=EDITED, longest=300),
        Toggle("chained", "Each hash includes the one before it", default=True),
        Choice("block_size", "Block size", [1, 2, 4, 8], default=4, unit="words"),
        Text("cached", "The prompt in the cache", default=CACHED, longest=300),
    ],
    predict=_predict_prompt,
    expects={"chained": "changes:false_hits", "block_size": "falls:hit_words"},
)
def prompt(prompt, chained, block_size, cached) -> View:
    """Which blocks of a prompt are found, and which are found wrongly."""
    blocks, rest = look_up(cached, prompt, block_size, chained)
    hits = sum(block.found for block in blocks)
    false_hits = sum(block.found and not block.right for block in blocks)
    words = len(prompt.split())
    return View(
        title=_found(hits, len(blocks), false_hits),
        picture=_draw_blocks(blocks, prompt.split()[words - rest :]),
        table=[
            ["quantity", "value"],
            ["words", words],
            ["full blocks", len(blocks)],
            ["blocks found", hits],
            ["of them with another past", false_hits],
            ["words to compute", words - hits * block_size],
        ],
        source=COMPUTED,
        note=(
            "Words stand in for tokens. The first letters of each SHA-256 are shown. A partial last block has"
            " no hash, and the last word is always computed."
        ),
        numbers={"hits": hits, "false_hits": false_hits, "hit_words": hits * block_size},
    )


def _found(hits: int, blocks: int, false_hits: int) -> str:
    if false_hits:
        return f"{hits} of {blocks} blocks are found, {false_hits} of them wrongly: same words, another past"
    return (
        f"{hits} of {blocks} blocks are found, all rightly" if hits else f"0 of {counted(blocks, 'block')} are found"
    )


def _draw_blocks(blocks: list[Block], rest: list[str]) -> str:
    said = "; ".join(f"block {i + 1} {_state(block)}" for i, block in enumerate(blocks))
    drawing = Drawing(
        ROW * (len(blocks) + bool(rest)) + 4,
        title="The blocks of your prompt",
        description=said or "No full block.",
    )
    for index, block in enumerate(blocks):
        wrong = block.found and not block.right
        y = index * ROW
        drawing.box(
            0,
            y + 2,
            WIDTH - 2,
            BOX_HEIGHT,
            fill=LIMIT if wrong else (USED if block.found else "none"),
            hatched=wrong,
        )
        # To the left, where a phone shows it without scrolling.
        drawing.text(8, y + 19, _cut(" ".join(block.words)), color="#000" if block.found else "currentColor")
        drawing.text(8, y + 42, f"hash {block.digest}: {_state(block)}", bold=block.found)
    if rest:
        y = len(blocks) * ROW
        drawing.box(0, y + 2, WIDTH - 2, BOX_HEIGHT, dashed=True)
        drawing.text(8, y + 19, _cut(" ".join(rest)))
        drawing.text(8, y + 42, "not full, so no hash: computed")
    return drawing.render()


def _cut(words: str) -> str:
    return words if len(words) <= LINE_LETTERS else words[: LINE_LETTERS - 1] + "…"


def _state(block: Block) -> str:
    if not block.found:
        return "computed"
    return "found" if block.right else "found, but behind another past"


RAN_BEFOREHAND = (
    "measured on SmolLM2-135M-Instruct in float32, blocks of 16 tokens; run beforehand by"
    " kvlib/figures/data/make_prefix_caching.py"
)


@cache
def model_runs() -> dict:
    """Runs of SmolLM2, made beforehand by ``data/make_prefix_caching.py``."""
    return json.loads((Path(__file__).parent / "data" / "prefix_caching.json").read_text())


STORIES = tuple(model_runs()["false_hit"])


def _predict_false_hit() -> Prediction:
    run = model_runs()["false_hit"][STORIES[0]]
    wrong, right = (run[name]["max_difference"] for name in ("unchained", "chained"))
    reply = (
        f"Reused behind its own past a block moves the logits by {_tiny(right)}, behind another past by"
        f" {wrong:.1f}."
    )
    return Prediction(
        "Two prompts have the same 16 tokens in the middle, behind different beginnings. The second one"
        " reuses the first one's KV for them. The logits of its next token …",
        (
            Option(
                "stay the same to rounding",
                f"That holds for the first layer only, where nothing has looked back yet. {reply}",
            ),
            Option("are visibly off", reply),
            Option(
                "cannot be computed: the shapes differ",
                f"The shapes fit perfectly, which is why nobody gets an error. {reply}",
            ),
        ),
        answer=1 if wrong > 0.1 else 0,
    )


@explorer(
    title="The same tokens, another past",
    controls=[
        Toggle("chained", "Each hash includes the one before it", default=False),
        Choice("story", "Prompts", tuple((name, name) for name in STORIES), default=STORIES[0]),
    ],
    predict=_predict_false_hit,
    expects={"chained": "falls:max_difference", "story": "changes:max_difference"},
)
def false_hit(chained, story) -> View:
    """What SmolLM2 says with a block that belongs to another prompt."""
    run = model_runs()["false_hit"][story]
    scratch, reused = run["scratch"], run["chained" if chained else "unchained"]
    difference = reused["max_difference"]
    same = scratch["text"] == reused["text"]
    words = [f"“{word.strip()}”" for word in scratch["words"]]
    by_word = dict(zip(reused["words"], reused["shares"]))
    figure = stacked_bars(
        words,
        [
            ("computed from scratch", scratch["shares"], SERIES[0]),
            ("with reused blocks", [by_word.get(word, 0.0) for word in scratch["words"]], SERIES[1]),
        ],
        axis("probability of the next token", low=0, high=max(scratch["shares"] + reused["shares"]) * 1.15),
    )
    figure["layout"]["barmode"] = "group"
    how = (
        "Chained: only the true prefix is reused. The logits differ by"
        if chained
        else "Unchained: the logits are off by"
    )
    return View(
        title=f"{how} {_tiny(difference)}, and the answer is {'the same' if same else 'another one'}",
        picture=figure,
        table=[
            ["", "what it says"],
            ["beginning, found in the cache", f"{run['begin']} …"],
            ["middle, which the other prompt has too", f"… {run['middle'].strip()} …"],
            ["the other prompt's beginning", f"{run['other_begin']} …"],
            ["end", f"… {run['end'].strip()}"],
            ["answer from scratch", scratch["text"].strip() + " …"],
            ["answer with reused blocks", reused["text"].strip() + " …"],
        ],
        source=RAN_BEFOREHAND,
        note="The likeliest word is taken at each step. A word missing among the five likeliest has no second bar.",
        numbers={"max_difference": difference, "same_answer": int(same)},
    )


def _tiny(difference: float) -> str:
    """A rounding error as a bound, because its digits differ between machines."""
    return "less than 0.001" if difference < 1e-3 else f"{difference:.1f}"
