"""Primer 4, bits: entropy, code length, and what an entropy coder can and cannot save."""

from __future__ import annotations

import random

from kvlib.explore import (
    COMPUTED,
    SIMULATED,
    Choice,
    Option,
    Prediction,
    Problem,
    Range,
    Slip,
    Stepper,
    View,
    exercise,
    explorer,
)
from kvlib.explore.palette import LIMIT, SERIES
from kvlib.explore.svg import WIDTH, Drawing
from kvlib.explore.words import counted
from kvlib.figures.charts import Line, Mark, axis, line_chart
from kvlib.primers.bits import (
    average_bits,
    cross_entropy,
    entropy,
    fixed_bits,
    huffman_lengths,
    narrow,
    rans_encode,
    slots_of,
)

LETTERS = "ABC"
SHARES = (8, 1, 1)
MESSAGE = (0, 0, 1, 0, 0, 0, 2, 0)


def spread(common: float, symbols: int) -> list[float]:
    """One symbol has the probability `common`, the others share the rest evenly."""
    return [common, *[(1 - common) / (symbols - 1)] * (symbols - 1)]


# ---------------------------------------------------------------- one message, step by step


def _predict_narrowing() -> Prediction:
    rare, common = narrow([1], SHARES).bits, narrow([0], SHARES).bits
    fact = f"B costs {rare:.2f} bits and A costs {common:.2f}: minus the logarithm of the probability."
    return Prediction(
        "A has probability 8/10, B and C 1/10 each. Coding one A makes the message longer by …",
        (
            Option(
                "2 bits, as three symbols need", f"Two bits would do for four equally likely symbols. {fact}"
            ),
            Option(
                "1 bit, the least there is",
                "A single symbol cannot take less than a bit, but a message can share bits between symbols."
                f" {fact}",
            ),
            Option("about a third of a bit", fact),
        ),
        answer=2 if common < 0.5 else 1,
    )


@explorer(
    title="A message is an interval",
    controls=[Stepper("symbols_coded", "Symbols coded", last=len(MESSAGE), default=0)],
    predict=_predict_narrowing,
    expects={"symbols_coded": "rises:bits"},
)
def narrowing(symbols_coded) -> View:
    """Arithmetic coding: each symbol narrows the interval to its share."""
    text = MESSAGE[:symbols_coded]
    state = narrow(text, SHARES)
    written = "".join(LETTERS[symbol] for symbol in text) or "(nothing yet)"
    fixed = fixed_bits(len(SHARES)) * len(text)
    return View(
        title=f"After {counted(len(text), 'symbol')}, {state.bits:.2f} bits say which message it is",
        picture=_draw_narrowing(text, state, written),
        table=[
            ["quantity", "value"],
            ["message so far", written],
            ["width of the interval", float(state.width)],
            ["bits that name it: −log₂ width", state.bits],
            ["bits at a fixed width of 2", fixed],
        ],
        source=COMPUTED,
        note=(
            "A likely symbol hardly narrows the interval and costs little. An unlikely one cuts it to a tenth"
            " and costs 3.3 bits."
        ),
        numbers={"bits": state.bits, "fixed": fixed},
    )


def _draw_narrowing(text, state, written: str) -> str:
    drawing = Drawing(
        196,
        title=f"The interval of {written}",
        description=(
            f"From {float(state.low):.5f}, {float(state.width):.3g} wide; the next symbol would narrow it to"
            " 8, 1 or 1 tenths."
        ),
    )
    left, right = 10, WIDTH - 10
    span = right - left
    drawing.text(left, 18, f"the line from 0 to 1, message {written}")
    drawing.box(left, 26, span, 26)
    x, wide = left + span * float(state.low), span * float(state.width)
    drawing.box(x, 26, max(wide, 1.5), 26, fill=SERIES[0], title="the interval")
    drawing.line(x, 52, left, 96, dashed=True)
    drawing.line(x + wide, 52, right, 96, dashed=True)
    drawing.text(left + 6, 82, "the interval, enlarged: where the next symbol leads")
    for symbol, (low, width) in enumerate(state.parts):
        begin = left + span * float((low - state.low) / state.width)
        drawing.box(
            begin,
            96,
            span * float(width / state.width),
            34,
            fill=SERIES[symbol],
            text=LETTERS[symbol],
            hatched=symbol == 2,
        )
    drawing.text(left, 152, f"from {float(state.low):.6f}", size=13)
    drawing.text(right, 152, f"to {float(state.low + state.width):.6f}", anchor="end", size=13)
    drawing.text(left, 180, f"{state.bits:.2f} bits", bold=True)
    drawing.text(right, 180, f"fixed width: {2 * len(text)} bits", anchor="end")
    return drawing.render()


# ---------------------------------------------------------------- entropy, Huffman, fixed width


@explorer(
    title="How short can it get?",
    controls=[
        Range("common", "Probability of the most common symbol", 0.1, 0.99, 90, default=0.5),
        Choice("symbols", "Number of symbols", [2, 3, 4, 8, 16, 64, 255], default=8),
    ],
    expects={"common": "changes:entropy", "symbols": "rises:entropy"},
)
def code_length(common, symbols) -> View:
    """Bits per symbol at a fixed width, with a Huffman code, and the entropy."""
    grid = [i / 100 for i in range(2, 100, 3)]
    here = spread(common, symbols)
    bits, huffman = entropy(here), average_bits(here, huffman_lengths(here))
    fixed = fixed_bits(symbols)
    curves = [spread(p, symbols) for p in grid]
    return View(
        title=f"{bits:.2f} bits per symbol are needed, a fixed width spends {fixed}",
        picture=line_chart(
            [
                Line("fixed width", [0, 1], [fixed, fixed], SERIES[5], dash=2),
                Line(
                    "Huffman, whole bits",
                    grid,
                    [average_bits(p, huffman_lengths(p)) for p in curves],
                    SERIES[1],
                    dash=1,
                ),
                Line("entropy", grid, [entropy(p) for p in curves], SERIES[0]),
            ],
            axis("probability of the most common symbol", low=0, high=1),
            axis("bits per symbol", low=0, high=fixed * 1.1),
            marks=[Mark("here", common, bits, LIMIT)],
        ),
        table=[
            ["code", "bits per symbol"],
            ["fixed width", fixed],
            ["Huffman (a whole number of bits for each symbol)", huffman],
            ["entropy (no lossless code can be shorter)", bits],
        ],
        source=COMPUTED,
        note=(
            "The others share the remaining probability evenly. When one symbol is very common, Huffman is"
            " stuck at 1 bit and entropy goes on falling."
        ),
        numbers={"entropy": bits, "huffman": huffman, "fixed": fixed},
    )


# ---------------------------------------------------------------- the wrong table


def _predict_wrong() -> Prediction:
    truth, believed = spread(0.9, 4), spread(0.25, 4)
    needed, spent = entropy(truth), cross_entropy(truth, believed)
    fact = f"{needed:.2f} bits are needed, {spent:.2f} are spent."
    return Prediction(
        "Four symbols; one has probability 0.9. The coder's table says all four are equally likely. It"
        " spends …",
        (
            Option("what the entropy says", f"The coder cannot know better than its table. {fact}"),
            Option("exactly what a fixed width of 2 bits spends", fact),
            Option(
                "more than a fixed width", f"That needs a table that believes in the wrong symbol. {fact}"
            ),
        ),
        answer=1 if abs(spent - fixed_bits(4)) < 1e-9 else (0 if spent < fixed_bits(4) else 2),
    )


@explorer(
    title="What a wrong table costs",
    controls=[
        Range("believed", "The table's probability of the common symbol", 0.02, 0.98, 49, default=0.5),
        Range("true", "Its true probability", 0.1, 0.95, 18, default=0.8),
        Choice("symbols", "Number of symbols", [2, 4, 16, 64], default=4),
    ],
    predict=_predict_wrong,
    expects={"believed": "changes:spent", "true": "changes:needed", "symbols": "rises:needed"},
)
def wrong_table(believed, true, symbols) -> View:
    """Bits spent when the coder believes one distribution and the data follow another, and a real run."""
    truth, table = spread(true, symbols), spread(believed, symbols)
    needed, spent = entropy(truth), cross_entropy(truth, table)
    text = random.Random(1).choices(range(symbols), truth, k=2000)
    real = (32 + 16 * len(rans_encode(text, slots_of(table))[1])) / len(text)
    grid = [i / 50 for i in range(1, 50)]
    fixed = fixed_bits(symbols)
    words = "more than a fixed width" if spent > fixed + 1e-9 else f"{spent - needed:.2f} more than needed"
    return View(
        title=f"This table spends {spent:.2f} bits per symbol, {words}",
        picture=line_chart(
            [
                Line("spent", grid, [cross_entropy(truth, spread(q, symbols)) for q in grid], SERIES[0]),
                Line("needed (entropy)", [0, 1], [needed, needed], SERIES[2], dash=1),
                Line("fixed width", [0, 1], [fixed, fixed], SERIES[5], dash=2),
            ],
            axis("probability in the table", low=0, high=1),
            axis("bits per symbol", low=0, high=max(1.6 * fixed, 3)),
            marks=[Mark("a real run of 2,000 symbols", believed, real, LIMIT)],
        ),
        table=[
            ["quantity", "bits per symbol"],
            ["needed: the entropy", needed],
            ["spent: the cross entropy", spent],
            ["kvlib's rANS coder on 2,000 drawn symbols", real],
            ["fixed width", fixed],
        ],
        source=SIMULATED,
        note=(
            "The table is right at the lowest point of the curve. A badly wrong one is worse than no entropy"
            " coding at all."
        ),
        numbers={"needed": needed, "spent": spent, "real": real},
    )


# ---------------------------------------------------------------- three questions


@exercise(title="Entropy of three symbols")
def ready_1(rng: random.Random) -> Problem:
    """The entropy of a drawn distribution."""
    common = rng.choice((0.6, 0.7, 0.8, 0.9))
    probabilities = [common, (1 - common) / 2, (1 - common) / 2]
    answer = entropy(probabilities)
    return Problem(
        f"Three symbols have probabilities {common:g}, {(1 - common) / 2:.2g} and {(1 - common) / 2:.2g}."
        " What is the entropy? (Two decimals.)",
        answer,
        "bits per symbol",
        f"−{common:g} log₂ {common:g} − 2 × {(1 - common) / 2:.2g} log₂ {(1 - common) / 2:.2g} ="
        f" {answer:.2f}.",
        tolerance=0.02,
        slips=(
            Slip(fixed_bits(3), "That is the fixed width for three symbols."),
            Slip(
                answer * 0.6931471805599453,
                "You used the natural logarithm. Bits need the logarithm to base 2.",
            ),
            Slip(
                average_bits(probabilities, huffman_lengths(probabilities)),
                "That is Huffman's code, which spends whole bits.",
            ),
        ),
    )


@exercise(title="The size of a file")
def ready_2(rng: random.Random) -> Problem:
    """Bytes of a coded file."""
    bits, numbers = rng.choice((2.5, 3.2, 4.4)), rng.choice((1_000_000, 2_000_000, 8_000_000))
    answer = bits * numbers / 8 / 1e6
    return Problem(
        f"An entropy coder needs {bits:g} bits per number. How many megabytes (10⁶ bytes) do {numbers:,}"
        " numbers take?",
        answer,
        "MB",
        f"{bits:g} × {numbers:,} ÷ 8 = {answer:g} × 10⁶ bytes.",
        tolerance=0.005,
        slips=(Slip(8 * answer, "Those are megabits."), Slip(numbers / 1e6, "That is 8 bits per number.")),
    )


@exercise(title="Random bytes")
def ready_3(rng: random.Random) -> Problem:
    """What cannot be saved."""
    symbols = rng.choice((16, 64, 256))
    answer = entropy([1 / symbols] * symbols)
    return Problem(
        f"A stream of numbers takes all {symbols} values equally often and independently. How many bits per"
        " number does the best lossless coder need?",
        answer,
        "bits per number",
        f"log₂ {symbols} = {answer:g}: nothing can be saved, whatever the coder. To save bits, make the"
        " numbers less evenly spread first; quantizing and predicting do that.",
        slips=(
            Slip(answer / 2, "No code halves every random stream: there are not enough short messages."),
            Slip(0.0, "Random numbers are the most expensive kind."),
        ),
    )
