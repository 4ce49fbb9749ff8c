"""Chapter 7: a waiting queue served in order of arrival, or by the longest cached prefix with a bound."""

from __future__ import annotations

from kvlib.explore import SIMULATED, Choice, Drawing, Option, Prediction, View, explorer
from kvlib.explore.palette import LIMIT, USED
from kvlib.explore.svg import WIDTH
from kvlib.prefix.scheduling import Prompt, Served, serve

BLOCK_SIZE = 4
DOCUMENT_BLOCKS = 6
QUESTION_TOKENS = 4
QUESTIONS_EACH = 4
# New questions about the first document keep coming, one after each request that was served.
LATE_QUESTIONS = 8
STRANGER = "✕"
STRANGERS_PLACE = 2
BOUNDS = {
    "0": "0: in order of arrival",
    "2": "2 times",
    "5": "5 times",
    "10": "10 times",
    "none": "without limit",
}
PER_ROW = 7
BOX_HEIGHT = 44
NAME_HEIGHT = 22


def queue_of(num_documents: int) -> list[Prompt]:
    """Questions about documents take turns; one request has nothing in common with any."""
    asked = [number % num_documents for number in range(num_documents * QUESTIONS_EACH)]
    queue = [_question(document, number, 0) for number, document in enumerate(asked)]
    stranger = tuple(range(90_000, 90_000 + DOCUMENT_BLOCKS * BLOCK_SIZE))
    queue.insert(STRANGERS_PLACE, Prompt(STRANGER, stranger))
    late = [_question(0, len(asked) + number, 1 + number) for number in range(LATE_QUESTIONS)]
    return queue + late


def _question(document: int, number: int, arrives_after: int) -> Prompt:
    start = 1_000 * document
    own = tuple(range(50_000 + 10 * number, 50_000 + 10 * number + QUESTION_TOKENS))
    return Prompt(
        f"{'ABCDEF'[document]}{number}",
        tuple(range(start, start + DOCUMENT_BLOCKS * BLOCK_SIZE)) + own,
        arrives_after,
    )


def served_queue(bound: str, documents: int, room: int) -> list[Served]:
    """The queue, served with a cache of `room` blocks; `bound` is a key of `BOUNDS`."""
    return serve(queue_of(documents), room, BLOCK_SIZE, None if bound == "none" else int(bound))


def _hit_share(served: list[Served]) -> float:
    hits = sum(one.hit_tokens for one in served)
    return hits / sum(one.hit_tokens + one.computed_tokens for one in served)


def _place(served: list[Served]) -> int:
    """When the request without a prefix is served, counted from 1."""
    return 1 + next(index for index, one in enumerate(served) if one.name == STRANGER)


def _predict() -> Prediction:
    served = served_queue("none", 4, 12)
    place, arrived = _place(served), STRANGERS_PLACE + 1
    ahead = " and ".join(sorted({one.name[0] for one in served[: place - 1]}))
    reply = (
        f"It is served as number {place} of {len(served)}: every question about {ahead} goes first, those"
        " that came later too."
    )
    return Prediction(
        f"{sum(prompt.arrives_after == 0 for prompt in queue_of(4))} requests wait. Number {arrived} has"
        " nothing in common with the others. More questions about document A keep coming. The server always"
        " takes the longest cached prefix. Number 3 is served …",
        (
            Option(f"as number {arrived}", f"That would be order of arrival. {reply}"),
            Option(f"as number {place}", reply),
            Option("last of all", f"Once nobody has a cached prefix, the oldest goes first. {reply}"),
        ),
        answer={arrived: 0, len(served): 2}.get(place, 1),
    )


@explorer(
    title="In which order should a queue be served?",
    controls=[
        Choice("bound", "A request may be overtaken", tuple(BOUNDS.items()), default="5"),
        Choice("room", "Room in the cache", [7, 12, 18, 24, 30], default=12, unit="blocks"),
        Choice("documents", "Documents", [2, 3, 4, 6], default=4),
    ],
    predict=_predict,
    expects={"bound": "changes:strangers_place", "room": "rises:hit_share", "documents": "changes:hit_share"},
)
def order(bound, room, documents) -> View:
    """Order of service, hits, and how long the request without a prefix waits."""
    served = served_queue(bound, documents, room)
    share, in_order = _hit_share(served), _hit_share(served_queue("0", documents, room))
    place = _place(served)
    most = max(one.overtaken for one in served)
    return View(
        title=(
            f"{share:.0%} of the tokens are reused, and {STRANGER} is served as number {place} of"
            f" {len(served)}"
        ),
        picture=_draw(served),
        table=[
            ["quantity", "value"],
            ["reused tokens", f"{share:.1%}"],
            ["in order of arrival", f"{in_order:.1%}"],
            ["tokens computed", sum(one.computed_tokens for one in served)],
            [f"place of {STRANGER}, which arrived third", place],
            ["most often overtaken", most],
        ],
        source=SIMULATED,
        note=(
            f"Each document has {DOCUMENT_BLOCKS} blocks of {BLOCK_SIZE} tokens and each question one."
            f" {LATE_QUESTIONS} more questions about A arrive one by one. “Without limit” is shown to make"
            " starvation visible, not to be used."
        ),
        numbers={"hit_share": share, "strangers_place": place, "most_overtaken": most},
    )


def _draw(served: list[Served]) -> str:
    rows = -(-len(served) // PER_ROW)
    order_words = ", ".join(one.name for one in served)
    drawing = Drawing(
        24 + BOX_HEIGHT * rows, title="Order of service", description=f"Served in this order: {order_words}."
    )
    drawing.text(0, 14, "In order of service; filled: reused", bold=True)
    width = WIDTH / PER_ROW
    for index, one in enumerate(served):
        x, y = index % PER_ROW * width, 22 + BOX_HEIGHT * (index // PER_ROW)
        share = one.hit_tokens / (one.hit_tokens + one.computed_tokens)
        stranger = one.name == STRANGER
        if share:
            drawing.box(x, y + NAME_HEIGHT, (width - 4) * share, BOX_HEIGHT - 8 - NAME_HEIGHT, fill=USED)
        drawing.box(x, y, width - 4, BOX_HEIGHT - 8, fill=LIMIT if stranger else "none", hatched=stranger)
        drawing.text(
            x + (width - 4) / 2,
            y + 16,
            one.name,
            anchor="middle",
            color="#000" if stranger else "currentColor",
            bold=stranger,
        )
    return drawing.render()
