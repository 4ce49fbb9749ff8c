"""Chapter 6: the self-checked exercises."""

from __future__ import annotations

import math
from functools import lru_cache

from kvlib.explore import Choice, Problem, Range, Search, Slip, Verdict, exercise
from kvlib.serving import RequestOutcome, simulate
from kvlib.workloads import Request, sharegpt_like


@exercise(title="Little's law")
def little(rng) -> Problem:
    running = rng.choice((7.0, 13.62, 30.42, 24.5))  # the first three: Kwon et al. 2023, figure 13a
    rate, output = rng.choice((1.6, 2.0, 2.4)), rng.choice((256, 338, 400))
    answer = 1e3 * running / rate / output
    return Problem(
        f"On average {running:g} requests run at once, and {rate:g} requests a second arrive and are served. Each answer has {output} "
        "tokens. How many milliseconds does a request spend in the batch for each of its output tokens?",
        answer,
        "ms",
        f"Little's law: time in the batch = running ÷ rate = {running:g} ÷ {rate:g} = {running / rate:.2f} s. Divided by {output} tokens: "
        f"{answer:.1f} ms.",
        tolerance=0.01,
        slips=(
            Slip(1e3 * running * rate / output, "Divide by the rate: the more arrive, the shorter each stays for the same batch."),
            Slip(answer / 1e3, "That is in seconds."),
            Slip(1e3 * running / rate, "That is the time of a whole request. Divide by its tokens."),
            Slip(1e3 / rate / output, "You left out how many run at once."),
        ),
    )


TTFT_SLO_S, TBT_SLO_S, WINDOW_S = 1.0, 0.050, 5.0


@exercise(title="Why attainment is joint")
def goodput(rng) -> Problem:
    fast_start, slow_start = (0.2, 0.4, 0.7), (1.4, 2.5)
    fast_flow, slow_flow = (0.020, 0.035, 0.045), (0.060, 0.090)
    # Both kinds of miss occur, and one request misses both, so that the two shares cannot be multiplied.
    kinds = [(True, False)] * rng.choice((1, 2)) + [(False, True)] * rng.choice((2, 3)) + [(False, False)]
    kinds += [(True, True)] * (10 - len(kinds))
    rng.shuffle(kinds)
    outcomes = []
    for starts, flows in kinds:
        ttft_s, tbt_s = rng.choice(fast_start if starts else slow_start), rng.choice(fast_flow if flows else slow_flow)
        outcomes.append(RequestOutcome(len(outcomes), 0.0, 100, 101, ttft_s, ttft_s + 100 * tbt_s))
    good = sum(one.meets(TTFT_SLO_S, TBT_SLO_S) for one in outcomes)
    starts, flows = sum(s for s, _ in kinds), sum(f for _, f in kinds)
    listed = "; ".join(f"{one.ttft_s:.1f} s, {1e3 * one.tbt_s:.0f} ms" for one in outcomes)
    answer = good / WINDOW_S
    return Problem(
        f"Ten requests were completed in {WINDOW_S:g} s. Their TTFT and TBT: {listed}. The objectives are TTFT at most {TTFT_SLO_S:g} s "
        f"and TBT at most {1e3 * TBT_SLO_S:.0f} ms. What is the goodput?",
        answer,
        "requests/s",
        f"{starts} meet the TTFT objective and {flows} the TBT objective, but only {good} meet both: {good} ÷ {WINDOW_S:g} s = "
        f"{answer:g} requests/s. The throughput is {10 / WINDOW_S:g}.",
        slips=(
            Slip(10 / WINDOW_S, "That is the throughput. Count only the requests that meet both objectives."),
            Slip(starts / WINDOW_S, "These meet the TTFT objective only. Attainment is joint: one request must meet both."),
            Slip(flows / WINDOW_S, "These meet the TBT objective only. Attainment is joint: one request must meet both."),
            Slip(starts * flows / 10 / WINDOW_S, "The two shares may not be multiplied: misses need not be independent."),
            Slip(good / 10, "That is the share that meets both. Goodput is per second."),
        ),
    )


LIMIT_MS = 50
SEARCH_REQUESTS = 100


@lru_cache(maxsize=512)
def latency_ms(rate: float, memory: str, num_slots: int) -> float:
    """Mean latency per token of 100 ShareGPT-like requests."""
    requests = sharegpt_like(SEARCH_REQUESTS, rate=rate, seed=0)
    return 1e3 * simulate(requests, memory=memory, num_slots=num_slots, record=False).normalized_latency_s


@exercise(title="Find a setting: the highest rate within 50 ms")
def within_limit(rng) -> Search:
    memory, slots = rng.choice(("paged", "oracle", "max")), rng.choice((8_000, 10_000, 12_596))
    control = Range("rate", "Arrival rate", 0.1, 6.4, 61, default=0.1, unit="requests/s", log=True)
    spoken = {"paged": "paged memory", "oracle": "the Oracle's reservation", "max": "reserving 2,048 slots each"}[memory]

    def best() -> float:
        """The reader's own method: bisection over the positions of the slider."""
        low, high = 0, len(control.positions)
        while high - low > 1:
            middle = (low + high) // 2
            if latency_ms(control.positions[middle], memory, slots) <= LIMIT_MS:
                low = middle
            else:
                high = middle
        return control.positions[low]

    largest = best()

    def judge(rate: float) -> Verdict:
        mine = latency_ms(rate, memory, slots)
        said = f"At {rate:g} requests/s the mean is {mine:.1f} ms per token."
        if mine > LIMIT_MS:
            return Verdict(False, f"{said} Too slow: go down.")
        if rate < 0.95 * largest - 1e-9:
            return Verdict(False, f"{said} There is more to be had: go up.")
        return Verdict(True, f"{said} That is the highest rate, within 5 %.")

    return Search(
        f"OPT-13B with {slots:,} KV slots and {spoken}, {SEARCH_REQUESTS} ShareGPT-like requests. Find the highest rate at which the mean "
        f"latency stays within {LIMIT_MS} ms per output token. Within 5 % of it counts. (Halve the range each time: six tries are enough.)",
        (control,),
        judge,
        {"rate": largest},
        f"{largest:g} requests/s. Bisection needs log2 of {len(control.positions)} positions, about "
        f"{math.ceil(math.log2(len(control.positions)))} tries, where trying them in order needs up to {len(control.positions)}.",
    )


@lru_cache(maxsize=256)
def saturated_rate(memory: str, prompt: int, output: int, num_slots: int) -> float:
    """Requests per second when 40 equal ones arrive at once."""
    requests = [Request(0.0, prompt, output)] * 40
    return simulate(requests, memory=memory, num_slots=num_slots, record=False).requests_per_s


NOTHING = 1.02


@exercise(title="Find a setting: when paging buys nothing")
def buys_nothing(rng) -> Search:
    slots = rng.choice((12_596, 16_000, 20_480))
    prompts, outputs = (64, 256, 1000, 1500, 1900), (2, 16, 64, 148, 500)
    controls = (
        Choice("prompt", "Prompt", list(prompts), default=64, unit="tokens"),
        Choice("output", "Answer", list(outputs), default=500, unit="tokens"),
    )

    def gain(prompt: int, output: int) -> float:
        return saturated_rate("paged", prompt, output, slots) / saturated_rate("max", prompt, output, slots)

    def judge(prompt: int, output: int) -> Verdict:
        if prompt + output > 2048:
            return Verdict(False, f"{prompt + output:,} tokens are more than OPT's 2,048: every request is rejected.")
        mine = gain(prompt, output)
        said = f"Paging serves {mine:.3f} times the requests of Max."
        if mine > NOTHING:
            return Verdict(False, f"{said} Its memory still counts.")
        return Verdict(True, f"{said} There the allocator does not matter.")

    return Search(
        f"40 equal requests arrive at once at OPT-13B with {slots:,} KV slots. Max reserves 2,048 slots for each. Find a prompt and an "
        "answer with which paging serves at most 2 % more requests per second than Max.",
        controls,
        judge,
        {"prompt": 1900, "output": 2},
        f"With a prompt of 1,900 and an answer of 2 tokens the factor is {gain(1900, 2):.3f}: the time goes into prefills, which a "
        "larger batch does not shorten, and a reservation of 2,048 slots is nearly full. Long answers need many requests at once.",
    )
