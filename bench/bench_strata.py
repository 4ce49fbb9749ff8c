"""How fast the Strata scheduler runs, and what scattered copies cost on this machine.

Run: .venv/bin/python bench/bench_strata.py
"""

import time

from kvlib.tiers import document_questions, known_documents, measure_copies, serve_prefills

NUM_REQUESTS = 10_000


def scheduler() -> None:
    """10,000 requests through the queue, the tree and the composer (target: under 2 s)."""
    for policy in ("fcfs", "balanced"):
        asks = document_questions(NUM_REQUESTS, rate=8.0, seed=1, fresh_share=0.1)
        known = known_documents(asks)
        start = time.process_time()
        run = serve_prefills(asks, known=known, policy=policy)
        took = time.process_time() - start
        print(f"{policy:9} {NUM_REQUESTS:,} requests, {len(run.batches):,} batches: {took:.2f} s of CPU time")


def copies() -> None:
    """One copy per scattered piece, and one gather, against one contiguous copy."""
    print("backend piece_bytes contiguous_GB/s one_by_one_share gathered_share")
    for backend in ("numpy", "torch"):
        for kib in (2, 16, 64, 256, 1024):
            m = measure_copies(kib * 1024, backend)
            print(f"{backend:7} {m.piece_bytes:11,} {m.contiguous / 1e9:15.2f} {m.one_by_one_share:16.3f} {m.gathered_share:14.3f}")


if __name__ == "__main__":
    scheduler()
    copies()
