"""What should I do on Monday? Every mechanism of the book, asked about one machine and one workload.

A *lever* is something one can switch on: a tier, larger copies, fewer bits. `plan` tries the levers together,
keeps those without which the reader would be worse off, and says what each is worth. Nothing is computed
here that another room computes already: sizes come from `specs`, times from `cost` and `tiers`, hits from
`prefix`.
"""

from kvlib.planner.choose import Plan, Step, plan
from kvlib.planner.demand import Cell, Demand, demand_of, returning
from kvlib.planner.flips import ASSUMPTIONS, Flip, flips
from kvlib.planner.formats import Format, kept_formats, sent_formats
from kvlib.planner.levers import LEVERS, Lever
from kvlib.planner.lines import Line, lines
from kvlib.planner.outcome import Outcome, outcome
from kvlib.planner.prices import LIST_PRICES, Price, calls_to_pay
from kvlib.planner.setting import Setting, Store
from kvlib.planner.sizes import enough_bytes

__all__ = [
    "ASSUMPTIONS", "LEVERS", "LIST_PRICES",
    "Cell", "Demand", "Flip", "Format", "Lever", "Line", "Outcome", "Plan", "Price", "Setting", "Step",
    "Store",
    "calls_to_pay", "demand_of", "enough_bytes", "flips", "kept_formats", "lines", "outcome", "plan",
    "returning", "sent_formats",
]
