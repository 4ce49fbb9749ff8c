"""Chapter 14: three observations about real KV, checked."""

from __future__ import annotations

from kvlib.cachegen.synthetic import (
    break_even_correlation,
    expected_gains,
    measured_gains,
    synthetic_channels,
)
from kvlib.explore import SIMULATED, Choice, Option, Prediction, Range, Toggle, View, explorer
from kvlib.explore.palette import LIMIT, SERIES
from kvlib.figures.cachegen_data import TENSORS, THIRDS, gain, measured, where_measured
from kvlib.figures.charts import Line, Mark, axis, line_chart, stacked_bars

TENSOR_WORDS = {"K before RoPE": "K before rotation", "K": "K as cached", "V": "V"}
TO = [("previous", "the previous token"), ("anchor", "the group's anchor")]


def grouped_bars(categories, parts, value_axis) -> dict:
    """Bars beside each other instead of on top of each other."""
    figure = stacked_bars(categories, parts, value_axis)
    figure["layout"]["barmode"] = "group"
    return figure


def _predict_shuffle() -> Prediction:
    true, shuffled = (gain("K before RoPE", order, "previous", False)[3] for order in ("true", "shuffled"))
    fact = f"It goes from {true:.1f} to {shuffled:.1f}."
    share = shuffled / true
    return Prediction(
        f"In the keys of a trained model, differences between neighboring tokens have {true:.1f} times less"
        " variance than the keys themselves. Now put the tokens in random order. That gain …",
        (
            Option(
                "vanishes, since neighbors are no longer alike",
                f"That is what locality alone would do. {fact} Most of the gain needs no neighbors.",
            ),
            Option(
                "falls below 1",
                "Differences of independent numbers do have twice the variance, but keys have more in common"
                f" than that. {fact}",
            ),
            Option(
                "mostly stays",
                f"{fact} What all tokens share is each channel's own mean, and any difference removes that.",
            ),
        ),
        answer=2 if share > 0.6 else (0 if shuffled >= 1 else 1),
    )


@explorer(
    title="Are neighboring tokens alike?",
    controls=[
        Choice(
            "order",
            "Token order",
            [("true", "as written"), ("shuffled", "shuffled beside it")],
            default="true",
        ),
        Toggle("centred", "Take away each channel's mean first", default=False),
        Choice("to", "Difference to", TO, default="previous"),
        Choice(
            "weights",
            "Model",
            [("trained", "trained (SmolLM2)"), ("random", "untrained weights")],
            default="trained",
        ),
    ],
    predict=_predict_shuffle,
    expects={"order": "falls:gain", "centred": "falls:gain", "to": "falls:gain", "weights": "falls:gain"},
)
def shuffle(order, centred, to, weights) -> View:
    """Variance of the numbers over variance of their differences, for the true order and the control."""
    orders = ("true",) if order == "true" else ("true", "shuffled")
    gains = {each: [gain(tensor, each, to, centred, weights)[3] for tensor in TENSORS] for each in orders}
    words = {"true": "as written", "shuffled": "tokens shuffled"}
    names = [TENSOR_WORDS[tensor] for tensor in TENSORS]
    figure = grouped_bars(
        names,
        [(words[each], gains[each], SERIES[i]) for i, each in enumerate(orders)],
        axis("ratio of variances", low=0, high=4),
    )
    figure["layout"]["shapes"] = [{
        "type": "line",
        "x0": 1,
        "x1": 1,
        "y0": 0,
        "y1": 1,
        "yref": "paper",
        "line": {"color": LIMIT, "width": 2, "dash": "dash"},
    }]
    shown = gains[order][0]
    side = "smaller" if shown > 1 else "larger"
    return View(
        title=(
            f"{'Shuffled' if order == 'shuffled' else 'In order'}, key differences have {_times(shown)}"
            f" {side} variance than the keys"
        ),
        picture=figure,
        table=[["tensor", *(words[each] for each in orders)]]
        + [[name, *(gains[each][i] for each in orders)] for i, name in enumerate(names)],
        source=where_measured(),
        note=(
            "Right of the dashed line differences are smaller than the numbers. Independent tokens give 0.5"
            " once each channel's mean is gone."
        ),
        numbers={"gain": shown, "gain_v": gains[order][2]},
    )


def _times(ratio: float) -> str:
    return f"{max(ratio, 1 / ratio):.2g} times"


@explorer(
    title="When is a difference smaller?",
    controls=[
        Range("correlation", "Correlation of neighboring tokens (ρ)", 0.0, 0.98, 50, default=0.4),
        Range("offset", "Spread of channel means", 0.0, 3.0, 13, default=0.0, unit="standard deviations"),
        Choice("to", "Difference to", TO, default="previous"),
    ],
    expects={"correlation": "rises:expected", "offset": "rises:expected", "to": "falls:expected"},
)
def differences(correlation, offset, to) -> View:
    """Synthetic KV: the gain against the correlation, drawn from the formula and from one draw of numbers."""
    grid = [i / 50 for i in range(50)]
    drawn = measured_gains(synthetic_channels(correlation, offset, channels=8, tokens=120, seed=1), to)
    here = expected_gains(correlation, offset, to)
    figure = line_chart(
        [
            Line(
                "with the channel means", grid, [expected_gains(r, offset, to).raw for r in grid], SERIES[0]
            ),
            Line(
                "means taken away",
                grid,
                [expected_gains(r, offset, to).centred for r in grid],
                SERIES[1],
                dash=1,
            ),
            Line("no gain", [0, 1], [1, 1], LIMIT, dash=2),
        ],
        axis("correlation of neighboring tokens", low=0, high=1),
        axis("variance ÷ variance of differences", log=True, low=0.4, high=300),
        marks=[
            Mark("960 drawn numbers", correlation, drawn.raw, SERIES[0]),
            Mark("the same, centered", correlation, drawn.centred, SERIES[1]),
        ],
    )
    verdict = "smaller" if here.raw > 1 else ("just as large" if here.raw == 1 else "larger")
    return View(
        title=f"At ρ = {correlation:g} differences are {verdict}: variance ratio {here.raw:.2f}",
        picture=figure,
        table=[
            ["quantity", "formula", "drawn"],
            ["ratio with channel means", here.raw, drawn.raw],
            ["ratio, means taken away", here.centred, drawn.centred],
            ["correlation where it starts to pay, no offset", break_even_correlation(to), "–"],
        ],
        source=SIMULATED,
        note=(
            "Two numbers of correlation r differ with variance 2 (1 − r). An offset is removed by any"
            " difference, or by subtracting the mean, which costs nothing."
        ),
        numbers={"expected": here.raw, "centred": here.centred, "drawn": drawn.raw},
    )


@explorer(
    title="Which layers are sensitive?",
    controls=[
        Toggle("protect", "Keep the first 4 tokens exact", default=False),
        Choice(
            "width",
            "Size of the error",
            [(1.0, "bins of 1 standard deviation"), (2.0, "bins of 2 standard deviations")],
            default=1.0,
        ),
    ],
    predict=lambda: _predict_sensitive(),
    expects={"protect": "falls:deep", "width": "rises:deep"},
)
def sensitivity(protect, width) -> View:
    """The same relative error on one third of the layers at a time."""
    kl = sensitive_kl(protect, width)
    figure = stacked_bars(list(THIRDS), [("KL", kl, SERIES[0])], axis("KL divergence (nats)", low=0))
    figure["layout"]["showlegend"] = False
    worst = THIRDS[kl.index(max(kl))]
    return View(
        title=f"An error hurts most in the {worst} third"
        + (", once the first 4 tokens are exact" if protect else ""),
        picture=figure,
        table=[["layers with the error", "KL (nats)"]] + [[third, value] for third, value in zip(THIRDS, kl)],
        source=where_measured(),
        note=(
            "The first token is an attention sink: nearly every later token attends to it, so an error there"
            " is felt everywhere."
        ),
        numbers=dict(zip(THIRDS, kl)),
    )


def sensitive_kl(protect: bool, width: float) -> list[float]:
    """KL for an error in the shallow, the middle and the deep third."""
    exact = 4 if protect else 0
    rows = [
        row for row in measured()["observation_2"] if row["width"] == width and row["exact_tokens"] == exact
    ]
    return [next(row["kl"] for row in rows if row["third"] == third) for third in THIRDS]


def _predict_sensitive() -> Prediction:
    kl = sensitive_kl(False, 1.0)
    fact = "KL " + ", ".join(f"{third} {value:.2g}" for third, value in zip(THIRDS, kl)) + "."
    protected = sensitive_kl(True, 1.0)
    cause = f"keep the first four tokens exact and it becomes {', '.join(f'{v:.2g}' for v in protected)}."
    return Prediction(
        "CacheGen's authors report that errors in shallow layers hurt most. On our model, the same relative"
        " error in one third of the layers at a time hurts most in …",
        (
            Option(
                "the shallow third",
                "That is the paper's finding, and what one would expect of errors that travel through all"
                f" layers. Here: {fact} But {cause}",
            ),
            Option("the middle third", f"{fact} The cause is the first token: {cause}"),
            Option("the deep third", f"{fact} What decides is where the first token matters most: {cause}"),
        ),
        answer=kl.index(max(kl)),
    )


@explorer(
    title="What is a distribution worth?",
    controls=[
        Choice("tensor", "Numbers", [(t, TENSOR_WORDS[t]) for t in TENSORS], default="K before RoPE"),
        Choice(
            "fitted",
            "Distributions fitted to",
            [("held_out", "other texts"), ("own", "the text itself")],
            default="held_out",
        ),
    ],
    expects={"tensor": "changes:layer_channel", "fitted": "falls:layer_channel"},
)
def tables(tensor, fitted) -> View:
    """Bits per number of 8-bit rows, by how the distributions are shared."""
    words = {
        "global": "one for everything",
        "layer": "per layer",
        "token": "per token position",
        "channel": "per channel",
        "layer_channel": "per layer and channel",
    }
    rows = {row["grouping"]: row[fitted] for row in measured()["observation_3"] if row["tensor"] == tensor}
    known = {grouping: bits for grouping, bits in rows.items() if bits is not None}
    figure = stacked_bars(
        [words[g] for g in known],
        [("bits", list(known.values()), SERIES[0])],
        axis("bits per number", low=0, high=8),
    )
    figure["layout"]["showlegend"] = False
    saved = known["global"] - known["layer_channel"]
    return View(
        title=f"One distribution per layer and channel saves {saved:.2f} of {known['global']:.2f} bits",
        picture=figure,
        table=[["distributions", "bits per number"]] + [[words[g], bits] for g, bits in known.items()],
        source=where_measured(),
        note=(
            "Position tables cannot be learned on other texts. Fitted to the text itself, small groups look"
            " better than they are."
            if fitted == "held_out"
            else (
                "Fitted to the text itself, the tables would have to be sent as well, and small groups look"
                " better than they are."
            )
        ),
        numbers={"global": known["global"], "layer_channel": known["layer_channel"]},
    )
