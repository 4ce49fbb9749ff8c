"""Chapter 14's measurements on SmolLM2, as ``kvlib/figures/data/make_cachegen.py`` wrote them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from kvlib.cachegen.streaming import Encoding

PAPER_FAMILY = "CacheGen (paper's recipe)"
CENTRED_FAMILY = "centered, 4 sinks kept"
TENSORS = ("K before RoPE", "K", "V")
THIRDS = ("shallow", "middle", "deep")


@cache
def measured() -> dict:
    """``cachegen.json``: observations, sizes and qualities."""
    return _load("cachegen.json")


@cache
def lane_measurements() -> dict:
    """``cachegen_lanes.json``: speed and size of the entropy coder by its number of lanes."""
    return _load("cachegen_lanes.json")


def _load(name: str) -> dict:
    return json.loads(Path(__file__).with_name("data").joinpath(name).read_text(encoding="utf-8"))


def where_measured() -> str:
    """What every caption says about these numbers."""
    from_file = measured()["provenance"]
    return (
        f"measured on {from_file['model']}, {from_file['context_tokens']:,} tokens of context; "
        f"computed beforehand by {from_file['command'].split()[1]}"
    )


def gain(tensor: str, order: str, to: str, centred: bool, weights: str = "trained") -> list[float]:
    """Variance gains of shallow, middle and deep layers and of all of them."""
    rows = measured()["observation_1" if weights == "trained" else "random_weights"]
    wanted = {"tensor": tensor, "order": order, "to": to, "centred": centred}
    return next(row["gain"] for row in rows if all(row[key] == value for key, value in wanted.items()))


def families() -> dict[str, list[dict]]:
    """Rows of size and quality by family, most bits first."""
    found: dict[str, list[dict]] = {}
    for row in sorted(measured()["rates"] + measured()["stacking"], key=lambda row: -row["bits"]):
        found.setdefault(row["family"], []).append(row)
    return found


def encodings() -> list[Encoding]:
    """What a sender can choose from, finest first: 8-bit rows and the paper's recipe at its levels."""
    eight = next(row for row in families()["uniform"] if row["level"] == "8 bits")
    coded = [Encoding(row["level"], row["bits"], row["kl"]) for row in families()[PAPER_FAMILY]]
    return [Encoding("8-bit", eight["bits"], eight["kl"]), *coded]
