"""Primer 1, what is cached: decoding with and without a cache, the work it saves, and who shares K and V."""

from __future__ import annotations

import random
from functools import lru_cache

from kvlib.explore import (
    COMPUTED, MEASURED, Choice, Option, Prediction, Problem, Slip, Stepper, View, exercise, explorer,
)
from kvlib.explore.palette import INTERNAL, USED
from kvlib.explore.view import cell_text
from kvlib.figures.charts import Line, Mark, axis, line_chart
from kvlib.figures.primer_cache_drawings import HEADS, draw_sharing, draw_step
from kvlib.primers.decoder import LAYERS, QUERY_HEADS, TinyDecoder, generate, worst_difference
from kvlib.primers.work import flops_with_cache, flops_without_cache, rows_without_cache, tokens_run
from kvlib.specs import LayerGroup, get_model
from kvlib.specs.attention_kinds import KINDS, MLA_RANK, MLA_ROPE

# ---------------------------------------------------------------- decoding, step by step

PROMPT = (3, 1, 4, 1)
LAST_STEP = 6
SAME = 1e-12
SHARING = ((4, "4 (MHA)"), (2, "2 (GQA)"), (1, "1 (MQA)"))


@lru_cache(maxsize=len(SHARING))
def _both_runs(kv_heads: int):
    decoder = TinyDecoder(kv_heads)
    return tuple(generate(decoder, PROMPT, LAST_STEP + 1, keep_cache=kept) for kept in (True, False))


def _predict_rows() -> Prediction:
    kept, _ = _both_runs(QUERY_HEADS)
    step = kept[4]
    reply = (
        f"The pass over token {step.position} computes {step.rows_computed} new row and reads "
        f"{step.rows_read} that earlier passes left behind."
    )
    return Prediction(
        f"A model has read {step.rows_read} tokens and kept their keys. It now takes in token "
        f"{step.position}. How many key rows must it compute in each layer and head?",
        (
            Option(
                str(step.position),
                f"That is what it costs when the earlier keys were thrown away. {reply}",
            ),
            Option("1", reply),
            Option("0", f"The new token has a key too, and every later token will ask for it. {reply}"),
        ),
        answer=(step.position, 1, 0).index(step.rows_computed),
    )


@explorer(
    title="Decoding with a cache and without",
    controls=[
        Stepper("step", "Step (0 is the prompt)", last=LAST_STEP),
        Choice("kv_heads", "KV heads", SHARING, default=QUERY_HEADS),
    ],
    predict=_predict_rows,
    expects={"step": "rises:times_the_work", "kv_heads": "changes:total_with"},
)
def attention_steps(step, kv_heads) -> View:
    """Both runs at the same step: which key and value rows are computed, which are read."""
    kept, forgot = (run[: step + 1] for run in _both_runs(kv_heads))
    totals = [sum(one.multiply_adds for one in run) for run in (kept, forgot)]
    same = worst_difference(kept, forgot) <= SAME
    now_kept, now_forgot = kept[-1], forgot[-1]
    return View(
        title=_step_title(step, now_kept, now_forgot),
        picture=draw_step(step, [*PROMPT, *(one.token for one in kept[:-1])], now_kept, now_forgot),
        table=[
            ["", "with a cache", "without"],
            ["key rows computed (per layer and KV head)", now_kept.rows_computed, now_forgot.rows_computed],
            ["key rows read from the cache", now_kept.rows_read, now_forgot.rows_read],
            ["multiply-adds of this step", now_kept.multiply_adds, now_forgot.multiply_adds],
            ["multiply-adds so far", *totals],
            ["next token", now_kept.token, now_forgot.token],
            [f"all logits so far within {SAME:g} of each other", same, same],
        ],
        source=MEASURED + f" on a random decoder of {LAYERS} layers, by counting every multiplication",
        note=(
            "One layer and one KV head are drawn; the others do the same. The lines are the newest query "
            "reading every key. The logits of both runs agree at every step, because the rows are the same "
            "rows."
        ),
        numbers={
            "total_with": totals[0], "total_without": totals[1], "times_the_work": totals[1] / totals[0],
            "computed_with": now_kept.rows_computed, "computed_without": now_forgot.rows_computed,
            "same": int(same),
        },
    )


def _step_title(step, kept, forgot) -> str:
    if step == 0:
        return f"Prefill: both runs compute the rows of all {kept.rows_computed} prompt tokens"
    again = forgot.rows_computed - kept.rows_computed
    return f"Step {step}: {kept.rows_computed} new row with the cache, and {again} old ones again without it"


# ---------------------------------------------------------------- how the work grows

MODEL = "llama-3-8b"
LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def _predict_growth() -> Prediction:
    model = get_model(MODEL)
    short, long = (flops_without_cache(model, 1, n) for n in (1024, 2048))
    kept_short, kept_long = (flops_with_cache(model, 1, n) for n in (1024, 2048))
    ratio = long / short
    reply = f"Without a cache the work grows {ratio:.2g} times; with one, {kept_long / kept_short:.2g} times."
    return Prediction(
        "Without a cache you generate 2,048 tokens instead of 1,024, from a one-token prompt. The "
        "arithmetic, in all, becomes …",
        (
            Option(
                "twice as much",
                f"Twice as many steps, but each late step also runs a longer text. {reply}",
            ),
            Option("about four times as much", reply),
            Option(
                "about eight times as much",
                f"Attention alone grows so; at this length the weights dominate. {reply}",
            ),
        ),
        answer=min(range(3), key=lambda i: abs((2, 4, 8)[i] - ratio)),
    )


@explorer(
    title="How the work grows with the text",
    controls=[
        Choice("output_tokens", "Generated tokens", LENGTHS[4:], default=256, unit="tokens"),
        Choice("prompt_tokens", "Prompt", (1, 16, 128, 1024, 4096), default=128, unit="tokens"),
    ],
    predict=_predict_growth,
    expects={"output_tokens": "rises:times_the_work", "prompt_tokens": "rises:times_the_work"},
)
def work_growth(output_tokens, prompt_tokens) -> View:
    """FLOPs to generate, with and without a cache, against the number of generated tokens."""
    model = get_model(MODEL)
    kept = [flops_with_cache(model, prompt_tokens, n) for n in LENGTHS]
    forgot = [flops_without_cache(model, prompt_tokens, n) for n in LENGTHS]
    here = [work(model, prompt_tokens, output_tokens) for work in (flops_with_cache, flops_without_cache)]
    ratio = here[1] / here[0]
    held = tokens_run(prompt_tokens, output_tokens)
    tera = 1e12
    return View(
        title=(
            f"Without a cache, {output_tokens:,} tokens after a prompt of {prompt_tokens:,} take "
            f"{cell_text(ratio)} times the work"
        ),
        picture=line_chart(
            [
                Line("without a cache", LENGTHS, [f / tera for f in forgot], INTERNAL, dash=1),
                Line("with a cache", LENGTHS, [f / tera for f in kept], USED),
            ],
            axis("generated tokens", log=True), axis("work in all (TFLOP)", log=True),
            marks=[
                Mark("you, without", output_tokens, here[1] / tera, INTERNAL),
                Mark("you, with", output_tokens, here[0] / tera, USED),
            ],
        ),
        table=[
            ["", "with a cache", "without"],
            ["tokens run through the model", held, rows_without_cache(prompt_tokens, output_tokens)],
            ["work in all (TFLOP)", here[0] / tera, here[1] / tera],
            ["cache at the end (MB)", model.shape.kv_bytes(held) / 1e6, 0],
        ],
        source=COMPUTED + f", for {MODEL} with its cache in bf16; one multiply-add is two operations",
        note=(
            "On these axes a straight line is a power law. With a one-token prompt the upper line climbs "
            "two decades while the lower climbs one. A long prompt bends both: the first steps then cost "
            "one prefill each."
        ),
        numbers={"times_the_work": ratio, "tflop_with": here[0] / tera, "tflop_without": here[1] / tera},
    )


# ---------------------------------------------------------------- who shares keys and values

HEAD_DIM = 128


def _cached_by(kind: str, gqa_heads: int) -> LayerGroup:
    """What one layer with eight query heads of width 128 caches."""
    if kind == "MLA":
        return LayerGroup(1, 1, MLA_RANK + MLA_ROPE, latent=True)
    return LayerGroup(1, {"MHA": HEADS, "GQA": gqa_heads, "MQA": 1}[kind], 2 * HEAD_DIM)


@explorer(
    title="Which query heads share which keys and values",
    controls=[
        Choice("kind", "Attention", KINDS, default="GQA"),
        Choice("gqa_heads", "KV heads in GQA", [1, 2, 4, 8], default=2),
    ],
    expects={"kind": "changes:elements", "gqa_heads": "rises:elements"},
)
def shared_heads(kind, gqa_heads) -> View:
    """Eight query heads above, what is cached for one token of one layer below."""
    group = _cached_by(kind, gqa_heads)
    full = _cached_by("MHA", gqa_heads).elements_per_token
    rows = [(name, _cached_by(name, gqa_heads)) for name in KINDS]
    return View(
        title=_sharing_title(kind, group),
        picture=draw_sharing(kind, group.kv_heads, _sharing_title(kind, group), _cached_words(kind, group)),
        table=[
            ["attention", "cached per token and layer", "elements", "share of MHA"],
            *(
                [name, _cached_words(name, one), one.elements_per_token, one.elements_per_token / full]
                for name, one in rows
            ),
        ],
        source=COMPUTED,
        note=(
            f"Eight query heads of width {HEAD_DIM}. The MLA latent ({MLA_RANK}) and its position part "
            f"({MLA_ROPE}) are DeepSeek-V2's; they stay as wide when the number of heads grows, while every "
            "MHA head adds its own pair."
        ),
        numbers={"elements": group.elements_per_token, "share": group.elements_per_token / full},
    )


def _cached_words(kind: str, group: LayerGroup) -> str:
    if kind == "MLA":
        return f"1 latent of {MLA_RANK} + {MLA_ROPE}"
    return f"2 × {group.kv_heads} KV {'head' if group.kv_heads == 1 else 'heads'} × {HEAD_DIM}"


def _sharing_title(kind: str, group: LayerGroup) -> str:
    size = f"{group.elements_per_token:,} elements per token and layer"
    if kind == "MLA":
        return f"MLA: all query heads read one latent; {size}"
    sharing = HEADS // group.kv_heads
    whom = f"{sharing} query heads share one K and V" if sharing > 1 else "each head has its own K and V"
    return f"{kind}: {whom}; {size}"


# ---------------------------------------------------------------- three questions

@exercise(title="Rows computed twice")
def ready_1(rng: random.Random) -> Problem:
    """Key rows computed when every step runs the whole text."""
    prompt, output = rng.randrange(5, 13), rng.randrange(4, 9)
    answer = rows_without_cache(prompt, output)
    end = tokens_run(prompt, output)
    return Problem(
        f"A prompt of {prompt} tokens, then {output} generated tokens. No cache is kept, so each of the "
        f"{output} steps runs the whole text so far. How many key rows does one KV head of one layer "
        "compute in all?",
        answer, "rows",
        f"The first token comes from the prompt, so the steps run {prompt}, {prompt + 1}, … {end} tokens; "
        f"the last token generated is never run. The sum is {answer}. With a cache it would be {end}: each "
        "token once.",
        slips=(
            Slip(end, "That is the count with a cache, where each token is run once."),
            Slip(
                rows_without_cache(prompt, output + 1),
                "One step too many: the last generated token is never run.",
            ),
            Slip(answer - prompt, "You left out the first step, the prompt itself."),
        ),
    )


@exercise(title="What one token leaves behind")
def ready_2(rng: random.Random) -> Problem:
    """Elements per token of a grouped-query layer."""
    sharing, kv_heads, head_dim = rng.choice([2, 4, 8]), rng.choice([2, 4, 8]), rng.choice([64, 80, 128])
    answer = LayerGroup(1, kv_heads, 2 * head_dim).elements_per_token
    return Problem(
        f"A layer has {sharing * kv_heads} query heads and {kv_heads} KV heads, each {head_dim} wide (GQA). "
        "How many numbers does it cache for each token?",
        answer, "numbers",
        f"A key and a value for each KV head: 2 × {kv_heads} × {head_dim} = {answer:,}. Query heads leave "
        "nothing behind.",
        slips=(
            Slip(answer // 2, "You counted the key and forgot the value."),
            Slip(answer * sharing, "You counted query heads. Only KV heads leave rows behind."),
            Slip(
                answer * sharing // 2,
                "You counted query heads, and one row each. A KV head leaves a key and a value.",
            ),
        ),
    )


@exercise(title="A latent against heads")
def ready_3(rng: random.Random) -> Problem:
    """The fewest KV heads at which GQA caches more than MLA."""
    rank, rope, head_dim = rng.choice([384, 512, 768]), rng.choice([32, 64]), rng.choice([64, 96, 128])
    latent = LayerGroup(1, 1, rank + rope, latent=True).elements_per_token

    def heads_above(elements: int, per_head: int) -> int:
        return elements // per_head + 1

    answer = heads_above(latent, 2 * head_dim)
    return Problem(
        f"A model with MLA caches, for each token and layer, a latent of {rank} numbers and a position part "
        f"of {rope}. From how many KV heads on does a GQA model with heads {head_dim} wide cache more than "
        "that?",
        answer, "KV heads",
        f"MLA caches {rank} + {rope} = {latent} numbers, one KV head 2 × {head_dim} = {2 * head_dim}. "
        f"{latent} / {2 * head_dim} = {latent / (2 * head_dim):.2f}, and the next whole number is {answer}.",
        slips=(
            Slip(
                heads_above(latent, head_dim),
                "You counted one row per KV head. A key and a value make two.",
            ),
            Slip(
                heads_above(2 * latent, 2 * head_dim),
                "You doubled the latent. K and V are both made from the one latent.",
            ),
            Slip(answer - 1, "At that number GQA caches less, or just as much. The question asks for more."),
        ),
    )
