"""Chapter 7: a radix tree grows, splits, is locked and loses its least recently used leaf."""

from __future__ import annotations

from kvlib.explore import SIMULATED, Choice, Drawing, Stepper, View, explorer
from kvlib.explore.palette import RESERVED, USED
from kvlib.explore.svg import WIDTH
from kvlib.explore.words import counted
from kvlib.prefix import RadixCache

CAPACITY = 32
ROW = 34
INDENT = 22
LETTER_WIDTH = 7.2
SMALL = 12

GUIDE = "you are a kind travel guide"
BREAD = f"{GUIDE} where is bread in Paris"
CHEESE = f"{GUIDE} where is cheese in Paris"
CODE = "you are a terse programmer write a loop"
MORE_CODE = f"{CODE} thanks now sort the list it returns"
POEM = "write a poem about the sea at night in winter"

# What each step says, the verb it calls, and the prompt it is about.
STORY = (
    ("The tree is empty.", None, ""),
    ("A first prompt is stored as one edge.", "insert", BREAD),
    ("A second one shares eight words. The edge is split where they part.", "insert", CHEESE),
    ("Another system prompt shares three words with the first.", "insert", CODE),
    ("A request runs on the bread prompt: its whole path is locked.", "lock", BREAD),
    ("The programmer goes on. What was there is found, only the rest is new.", "insert", MORE_CODE),
    (
        "No room is left for a poem. The least recently used leaf that no lock protects gives up its end.",
        "insert",
        POEM,
    ),
    ("The running request ends. Its path can be evicted again.", "unlock", BREAD),
    ("The cheese prompt returns: what was evicted is computed again.", "insert", CHEESE),
)
VOCABULARY = sorted({word for _, _, words in STORY for word in words.split()})


def tokens_of(words: str) -> tuple[int, ...]:
    """The words of the story as token ids."""
    return tuple(VOCABULARY.index(word) for word in words.split())


def tree_after(step: int, page_size: int) -> tuple[RadixCache, int, int]:
    """The cache after `step` steps, the words that the last prompt found, and all words evicted so far."""
    made, found, evicted = RadixCache(CAPACITY, page_size), 0, 0
    for _, verb, words in STORY[1 : step + 1]:
        tokens = tokens_of(words)
        before = made.num_stored
        if verb == "insert":
            new = made.insert(tokens)
            found = len(tokens) // page_size * page_size - new
            evicted += before + new - made.num_stored
        else:
            getattr(made, verb)(tokens)
    return made, found, evicted


@explorer(
    title="A radix tree of prompts",
    controls=[
        Stepper("step", "Step", last=len(STORY) - 1, default=2),
        Choice("page_size", "Shared in units of", [(1, "single words"), (2, "two words")], default=1),
    ],
    expects={"step": "changes:stored", "page_size": "falls:stored"},
)
def tree(step, page_size) -> View:
    """Paths from the left edge spell the stored prompts."""
    made, found, evicted = tree_after(step, page_size)
    says, _, words = STORY[step]
    rows = list(_rows(made.tree().children))
    return View(
        title=says,
        picture=_draw(rows, tokens_of(words)),
        table=[
            ["quantity", "words"],
            ["stored", made.num_stored],
            ["room", CAPACITY],
            ["protected by a lock", made.num_protected],
            ["found by the last prompt that came in", found],
            ["evicted so far", evicted],
        ],
        source=SIMULATED,
        note=(
            "Words stand in for tokens. Larger units share less: a prompt that parts from another inside a"
            " unit finds nothing of it."
        ),
        numbers={"stored": made.num_stored, "found": found, "evicted": evicted},
    )


def _rows(nodes, depth=0, before=()):
    """(depth, tokens before, node) of every node, top down."""
    for node in nodes:
        yield depth, before, node
        yield from _rows(node.children, depth + 1, before + node.tokens)


def _draw(rows, current: tuple[int, ...]) -> str:
    described = "; ".join(
        f"depth {depth}: {_spell(node.tokens)}, {counted(node.num_locks, 'lock')}" for depth, _, node in rows
    )
    drawing = Drawing(
        ROW * max(1, len(rows)) + 42, title="The radix tree", description=described or "It is empty."
    )
    last_y = {-1: 0}
    for index, (depth, before, node) in enumerate(rows):
        x, y = INDENT * depth, ROW * index + 2
        if depth:
            drawing.line(x - INDENT / 2, last_y[depth - 1], x - INDENT / 2, y + 14)
            drawing.line(x - INDENT / 2, y + 14, x, y + 14)
        last_y[depth] = y + ROW - 8
        path = before + node.tokens
        fill = RESERVED if node.num_locks else (USED if path == current[: len(path)] else "none")
        label = _spell(node.tokens)
        width = min(WIDTH - x, LETTER_WIDTH * len(label) + 16)
        drawing.box(
            x,
            y,
            width,
            ROW - 8,
            fill=fill,
            dashed=bool(node.num_locks),
            text=label,
            title=f"{len(node.tokens)} words",
        )
        _beside(drawing, x + width + 8, y + 18, f"{len(node.tokens)}{' · locked' if node.num_locks else ''}")
    if not rows:
        drawing.text(0, 20, "(empty)")
    below = ROW * max(1, len(rows)) + 18
    drawing.text(0, below, "filled: on the path of this step", size=SMALL)
    drawing.text(0, below + 16, "dashed: locked · numbers count words", size=SMALL)
    return drawing.render()


def _beside(drawing: Drawing, x: float, y: float, words: str) -> None:
    if x + LETTER_WIDTH * len(words) <= WIDTH:
        drawing.text(x, y, words)


def _spell(tokens) -> str:
    return " ".join(VOCABULARY[token] for token in tokens)
