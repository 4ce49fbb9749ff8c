"""The Strata scheduler, and copies of scattered pieces: ``python bench/bench_strata.py``."""

from collections.abc import Iterator

from speeds import Speed, best_cpu_s, report

from kvlib.tiers import document_questions, known_documents, measure_copies, serve_prefills

NUM_REQUESTS = 10_000
PIECE_BYTES = 64 * 1024


def scheduler() -> Iterator[Speed]:
    """10,000 requests through the queue, the tree and the composer."""
    asks = document_questions(NUM_REQUESTS, rate=8.0, seed=1, fresh_share=0.1)
    known = known_documents(asks)
    for policy in ("fcfs", "balanced"):
        took_s = best_cpu_s(lambda: serve_prefills(asks, known=known, policy=policy))
        yield Speed(f"strata.{policy}", f"{NUM_REQUESTS:,} requests through Strata's scheduler, {policy}", took_s, "s", 2)


def copies() -> Iterator[Speed]:
    """Scattered pieces one by one, and in one gather, as shares of one contiguous copy."""
    for backend in ("numpy", "torch"):
        measured = measure_copies(PIECE_BYTES, backend)
        for name, share in (("one_by_one", measured.one_by_one_share), ("gathered", measured.gathered_share)):
            what = f"64 KiB pieces, {name.replace('_', ' ')}, {backend}: share of a contiguous copy"
            yield Speed(f"strata.{name}_{backend}", what, 100 * share, "%", None, True)


def measure() -> Iterator[Speed]:
    yield from scheduler()
    yield from copies()


if __name__ == "__main__":
    report(measure())
