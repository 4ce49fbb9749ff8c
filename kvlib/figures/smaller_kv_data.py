"""Chapter 13's measurements on SmolLM2, as ``kvlib/figures/data/make_smaller_kv.py`` wrote them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

POLICIES = ("window", "sinks + window", "H2O", "SnapKV", "random")
BUDGETS = (96, 192, 384, 768, 1152)
KIVI = "quantized, KIVI axes"
FULL_BITS = 16
# What a measurement can be judged by: the key in the file and how the axis is called.
MEASURES = {
    "perplexity": ("perplexity_change", "perplexity ÷ untouched perplexity"),
    "KL divergence": ("kl", "KL divergence (nats)"),
    "top token": ("top1", "predictions with another top token (%)"),
}


@cache
def measured() -> dict:
    """The whole file."""
    file = Path(__file__).with_name("data") / "smaller_kv.json"
    return json.loads(file.read_text(encoding="utf-8"))


def context_tokens() -> int:
    return measured()["provenance"]["context_tokens"]


def where_measured() -> str:
    """What every caption says about these numbers."""
    made = measured()["provenance"]
    return (
        f"measured on {made['model']}: {made['context_tokens']:,} tokens of context, "
        f"{made['continuation_tokens']} scored after it, mean of {len(made['texts'])} texts; computed "
        "beforehand by make_smaller_kv.py"
    )


def find(*part: str, **wanted) -> dict:
    """The one row with these labels in a part of the file, named by its keys.

    Examples
    --------
    >>> find("key_value_grid", key_bits=4, value_bits=2)["bits"]      # scales included
    4.0
    """
    rows = measured()
    for key in part:
        rows = rows[key]
    (found,) = (row for row in rows if all(row[key] == value for key, value in wanted.items()))
    return found


def shown(row: dict, measure: str) -> float:
    """A row's measurement as it is drawn (see `MEASURES`)."""
    value = row[MEASURES[measure][0]]
    return {"perplexity": 1 + value, "KL divergence": value, "top token": 100 * (1 - value)}[measure]


def methods() -> dict[str, list[tuple[float, dict]]]:
    """Rows by method as (share of the bf16 bytes, row), fewest bytes first."""
    by_method = {
        policy: [
            (budget / context_tokens(), find("dropping", policy=policy, budget=budget)) for budget in BUDGETS
        ]
        for policy in POLICIES
    }
    equal_bits = [row for row in measured()["key_value_grid"] if row["key_bits"] == row["value_bits"]]
    by_method[KIVI] = sorted((row["bits"] / FULL_BITS, row) for row in equal_bits)
    return by_method


def change(row: dict) -> str:
    """Spell a change of perplexity.

    >>> change({"perplexity_change": 1.02}), change({"perplexity_change": -0.0012})
    ('+102 %', '-0.1 %')
    """
    percent = 100 * row["perplexity_change"]
    return f"{percent:+.0f} %" if abs(percent) >= 10 else f"{percent:+.1f} %"
