"""Chapter 15: what a priced prompt cache costs, and from which call on it pays."""

from __future__ import annotations

from kvlib.explore import Choice, Range, View, explorer, reported
from kvlib.explore.palette import LIMIT, SERIES
from kvlib.explore.words import counted, short
from kvlib.figures.charts import Line, Mark, axis, line_chart
from kvlib.planner import LIST_PRICES, calls_to_pay

BY_NAME = {price.name: price for price in LIST_PRICES}
MOST_CALLS = 20


@explorer(
    title="From which call on does a rented cache pay?",
    controls=[
        Range("late_percent", "Calls that come after the entry expired", 0, 100, 11, default=0, unit="%"),
        Choice("provider", "Price list", tuple(BY_NAME), default="Anthropic, 5 minutes"),
        Range("calls", "Calls with this prompt", 1, MOST_CALLS, MOST_CALLS, default=10),
    ],
    expects={"late_percent": "rises:cached", "provider": "changes:cached", "calls": "rises:cached"},
)
def api_price(late_percent, provider, calls) -> View:
    """Cost of the shared part of a prompt with and without the cache, in ordinary input tokens."""
    price, late = BY_NAME[provider], late_percent / 100
    counts = list(range(1, MOST_CALLS + 1))
    cached = [price.cost(n, late) for n in counts]
    here, pays = price.cost(calls, late), calls_to_pay(price, late)
    when = f"pays from call {pays} on" if pays else "never pays"
    seen = pays is not None and pays <= MOST_CALLS
    return View(
        title=f"{provider}: caching {when}; {counted(calls, 'call')} cost {short(here)} instead of {calls} prompts",
        picture=line_chart(
            [
                Line("not cached", counts, counts, SERIES[5], dash=1),
                Line("cached", counts, cached, SERIES[0], markers=True),
            ],
            axis("calls with the same beginning"),
            axis("cost (prompts at the ordinary price)", low=0, high=1.05 * max(MOST_CALLS, cached[-1])),
            marks=[Mark("your calls", calls, here, LIMIT)],
            walls=[(pays, "pays from here", LIMIT)] if seen else [],
        ),
        table=[["price list", "write", "read", "lives", "pays from call", "source"]]
        + [
            [p.name, p.write, p.read, p.lifetime, str(calls_to_pay(p, late) or "never"), p.source]
            for p in LIST_PRICES
        ],
        source=reported("the providers' price lists, named under the numbers"),
        note="Prices are multiples of the same provider's input price. Only the shared beginning is counted: what is new in "
        "each call, and the output, cost the same either way.",
        numbers={"cached": here, "pays": pays or 0},
    )
