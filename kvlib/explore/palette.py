"""One palette for the whole book: a color always means the same thing.

Each color keeps a contrast of at least 3:1 against the light page (white) and the dark page
(#121212), which WCAG 2.2 asks of graphics, and no picture relies on color alone: bars carry
labels or patterns and lines carry dashes. ``tests/unit/test_explore_palette.py`` checks both the
contrast and that neighbors stay apart under simulated color-blindness.
"""

# What memory holds.
USED = "#2a7fc4"
RESERVED = "#a86bc9"
INTERNAL = "#c8693c"
EXTERNAL = "#b0589a"
FREE = "#7d8a97"

# What time is spent on.
PREFILL = "#2a7fc4"
DECODE = "#2f9171"
TRANSFER = "#c07820"
IDLE = "#7d8a97"

# Memory policies, in the order in which the book meets them.
POLICY = {
    "max": "#c8693c",
    "pow2": "#a4790f",
    "oracle": "#a86bc9",
    "paged": "#2a7fc4",
    "static": "#7d8a97",
}

# Attention kinds.
ATTENTION = {
    "MHA": "#c8693c",
    "GQA": "#2a7fc4",
    "MQA": "#2f9171",
    "MLA": "#a86bc9",
}

# The line that says "stop here": a wall, a limit, a service-level objective.
LIMIT = "#d1495b"

# For series that have no meaning of their own, in this order.
SERIES = ("#2a7fc4", "#c8693c", "#2f9171", "#a86bc9", "#a4790f", "#7d8a97")
