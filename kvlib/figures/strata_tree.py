"""Chapter 9: the HiRadixTree, step by step."""

from __future__ import annotations

from kvlib.explore import SIMULATED, Choice, Drawing, Stepper, View, explorer
from kvlib.explore.palette import EXTERNAL, RESERVED, USED
from kvlib.explore.words import counted
from kvlib.tiers import HiRadixTree
from kvlib.tiers.hiradix import WRITE_POLICIES

PAGE = 4
ROW = 34
TOKEN_WIDTH = 7
CAPACITIES = {"gpu_tokens": 24, "cpu_tokens": 40, "ssd_tokens": 96}
TIER_WORDS = {"gpu": "GPU", "cpu": "host", "ssd": "SSD"}
TIER_COLOURS = {"gpu": USED, "cpu": RESERVED, "ssd": EXTERNAL}
DOCUMENTS = {name: tuple(range(100 * i, 100 * i + 12)) for i, name in enumerate("ABC")}


def _question(document: str, number: int) -> tuple[int, ...]:
    """A prompt: one of the documents, then four tokens of its own."""
    return DOCUMENTS[document] + tuple(1000 + 10 * number + i for i in range(4))


A1, A2, B1, C1, A3 = (_question(document, number) for number, document in enumerate("AABCA"))

# What each step does, and the verb it calls.
STORY = (
    ("Nothing is cached.", None),
    (
        "A1, a question about document A, waits: a transient node says that its KV is coming.",
        ("queue", "A1", A1),
    ),
    ("A1 is computed.", ("begin", "A1", A1)),
    ("A1 has finished. Its KV is on the GPU.", ("finish", "A1")),
    ("A2 asks about A too. Only its own four tokens are transient.", ("begin", "A2", A2)),
    ("A2 has finished. Document A was hit once.", ("finish", "A2")),
    ("B1 brings another document.", ("begin", "B1", B1)),
    ("B1 has finished. The GPU gave up the tails that were used longest ago.", ("finish", "B1")),
    ("C1 brings a third one.", ("begin", "C1", C1)),
    (
        "C1 has finished. The host is full as well and passes on to the SSD what was used longest ago.",
        ("finish", "C1"),
    ),
    ("A3 waits. Meanwhile the end of document A is copied from the SSD back to the host.", ("prefetch", A3)),
    ("A3 begins: A is loaded over the link and locked on the GPU.", ("begin", "A3", A3)),
    ("A3 has finished.", ("finish", "A3")),
)


def tree_after(step: int, write_policy: str) -> HiRadixTree:
    """The tree after the first `step` steps of the story."""
    tree = HiRadixTree(**CAPACITIES, page_size=PAGE, write_policy=write_policy)
    for _, call in STORY[1 : step + 1]:
        verb, *arguments = call
        getattr(tree, verb)(*arguments)
    return tree


@explorer(
    title="A tree that knows where everything lies",
    controls=[
        Stepper("step", "Step", last=len(STORY) - 1, default=7),
        Choice(
            "write_policy",
            "When is KV copied to the host?",
            tuple((p, p.replace("_", " ")) for p in WRITE_POLICIES),
            default="write_through",
        ),
    ],
    expects={"step": "changes:stored", "write_policy": "changes:copied_to_host"},
)
def tree(step, write_policy) -> View:
    """GPU, host and SSD on one radix tree, with transient nodes."""
    made = tree_after(step, write_policy)
    copied = made.copied_tokens
    rows = list(_rows(made.nodes()))
    held = {tier: sum(n for _, n, tiers, _, _ in rows if tier in tiers) for tier in TIER_WORDS}
    return View(
        title=STORY[step][0],
        picture=_draw(rows, made.transients()),
        table=[
            ["place", "tokens held", "capacity", "copied into it"],
            ["GPU", held["gpu"], CAPACITIES["gpu_tokens"], copied["cpu_to_gpu"]],
            ["host", held["cpu"], CAPACITIES["cpu_tokens"], copied["gpu_to_cpu"] + copied["ssd_to_cpu"]],
            ["SSD", held["ssd"], CAPACITIES["ssd_tokens"], copied["cpu_to_ssd"]],
        ],
        source=SIMULATED,
        note=(
            "Pages of four tokens. Every tier gives up the tail of a path before its head, so one length per"
            " tier says where each page lies."
        ),
        numbers={
            "stored": sum(n for _, n, _, _, _ in rows),
            "copied_to_host": copied["gpu_to_cpu"],
            "held_gpu": held["gpu"],
        },
    )


def _rows(nodes, depth=0, before=()):
    """(depth, tokens, tiers, hits, name) of every node, top down."""
    for node in nodes:
        yield depth, len(node.tokens), node.tiers, node.hits, _name(node.tokens)
        yield from _rows(node.children, depth + 1, before + node.tokens)


def _name(tokens: tuple[int, ...]) -> str:
    owner = {1000: "A1", 1010: "A2", 1020: "B1", 1030: "C1", 1040: "A3"}
    last = tokens[-1] // 10 * 10
    document = "ABC"[tokens[0] // 100] if tokens[0] < 1000 else ""
    question = owner.get(last, "")
    return " + ".join(part for part in (document, question) if part)


def _draw(rows, transients) -> str:
    height = ROW * max(1, len(rows) + len(transients)) + 8
    drawing = Drawing(
        height,
        title="The tree",
        description=(
            f"{counted(len(rows), 'node')} and {counted(len(transients), 'transient one')}; see the table for tokens per tier."
        ),
    )
    if not rows and not transients:
        drawing.text(0, 20, "(empty)")
    y = 4
    for depth, tokens, tiers, hits, name in rows:
        places = " + ".join(TIER_WORDS[tier] for tier in tiers)
        words = f"{tokens} tokens · {places}" + (
            f" · hit {hits} times" if hits > 1 else " · hit once" if hits else ""
        )
        _row(drawing, 28 * depth, y, tokens, name, words, fill=TIER_COLOURS[tiers[0]])
        y += ROW
    for name, tokens, state in transients:
        _row(drawing, 0, y, len(tokens), name, f"transient: {state}", dashed=True)
        y += ROW
    return drawing.render()


def _row(drawing: Drawing, x: float, y: float, tokens: int, name: str, words: str, **look) -> None:
    width = TOKEN_WIDTH * tokens + 8
    drawing.box(x, y, width, ROW - 8, text=name, **look)
    drawing.text(x + width + 8, y + 18, words)
