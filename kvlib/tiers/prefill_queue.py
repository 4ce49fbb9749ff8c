"""A prefill server with a tiered cache: who is in the next batch, what it loads, how long all wait.

The scheduler plans one batch ahead, as asynchronous schedulers do: when a batch ends, the next one has been
chosen before its KV stood in the cache. That is the window in which a request asks for KV that is being
computed (a *delay hit*). Source: Strata (arXiv 2508.18572), section 5; lecture 9, s4.2 and s4.3. Times are
whole nanoseconds.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from kvlib.errors import ConfigError
from kvlib.specs.checks import one_of
from kvlib.tiers.batching import Work, compose, looked_at
from kvlib.tiers.documents import Ask
from kvlib.tiers.hiradix import HiRadixTree, Located
from kvlib.tiers.prefill_run import BatchRecord, QueueRun, Setup

# A request waits for another's KV only if that saves more tokens than this (Strata, section 5).
DEFERRAL_TOKENS = 100
# Ageing bound: so often may a request be put off for a delay hit before it computes for itself.
MAX_DEFERRALS = 4


def serve_prefills(
    asks: Sequence[Ask], setup: Setup | None = None, *, known: Sequence[Ask] = (), **changes
) -> QueueRun:
    """Serve the prefills of `asks` and report who waited for what.

    Parameters
    ----------
    asks : sequence of Ask
        In order of arrival.
    setup : Setup, optional
    known : sequence of Ask
        Prompts whose KV is in the cache already when the first request arrives.
    **changes
        Fields of `Setup` to change.

    Raises
    ------
    ConfigError
        For requests out of order, an unknown field, or a GPU cache that cannot hold two batches of the
        longest prompt.

    Examples
    --------
    Lecture 9, exercise 6: three requests for one new document of 30,000 tokens within 10 ms.

    >>> asks = [Ask(ms * 10**6, stream=1, shared_tokens=30_000, own_tokens=64) for ms in (0, 5, 10)]
    >>> [serve_prefills(asks, batch_size=2, defer=defer).computed_tokens for defer in (False, True)]
    [90192, 30288]
    """
    return _Server(asks, known, replace(setup or Setup(), **_checked(changes))).run()


def _checked(changes: dict) -> dict:
    for name in changes:
        one_of("setting", name, Setup.__dataclass_fields__)
    return changes


class _Server:
    """The loop behind :func:`serve_prefills`."""

    def __init__(self, asks: Sequence[Ask], known: Sequence[Ask], setup: Setup):
        if any(later.arrival_ns < earlier.arrival_ns for earlier, later in zip(asks, asks[1:])):
            raise ConfigError("asks: got arrivals out of order, expected them sorted")
        longest = max((ask.num_tokens for ask in (*asks, *known)), default=0)
        if setup.gpu_tokens < 2 * setup.batch_size * longest:
            raise ConfigError(
                f"gpu_tokens: got {setup.gpu_tokens}, expected at least {2 * setup.batch_size * longest} "
                f"(two batches of {setup.batch_size} prompts of {longest} tokens)"
            )
        self.asks, self.setup, self.machine = asks, setup, setup.machine
        # The tree counts in pages: a page of tokens is one symbol, so that long documents stay short paths.
        page = self.page_tokens = setup.match_tokens
        capacities = (tokens // page for tokens in (setup.gpu_tokens, setup.cpu_tokens, setup.ssd_tokens))
        self.tree = HiRadixTree(*capacities, write_policy=setup.write_policy)
        self.paths = [ask.pages(page, number) for number, ask in enumerate(asks)]
        for number, ask in enumerate(known):
            name = -1 - number
            self.tree.begin(name, ask.pages(page, name))
            self.tree.finish(name)
        self.decode_step_ns = setup.machine.decode_step_ns(setup.decode_sequences, setup.decode_context)
        self.waiting: dict[int, None] = {}              # in order of arrival
        self.arrived = 0
        self.deferrals = [0] * len(asks)
        self.prefetches = _Prefetches(page * setup.machine.ssd_ns_per_token)

    def run(self) -> QueueRun:
        now, running = 0, ()
        records: list[BatchRecord] = []
        ttft = [0] * len(self.asks)
        computed = loaded = 0
        while self.arrived < len(self.asks) or self.waiting:
            self._admit(now)
            if not self.waiting:                        # idle until the next arrival; the cache catches up
                running = self._finish(running)
                now = self.asks[self.arrived].arrival_ns
                continue
            members = self._plan(now)
            if not members:                             # everybody waits for what has just been computed
                running = self._finish(running)
                members = self._plan(now)
            places = [self.tree.begin(number, self.paths[number]) for number in members]
            running = self._finish(running)
            record = self._run_batch(now, members, places)
            records.append(record)
            now, running = record.end_ns, members
            for number, place in zip(members, places):
                computed += self._new_tokens(number, place)
                loaded += (place.cpu + place.ssd) * self.page_tokens
                ttft[number] = now - self.asks[number].arrival_ns
                del self.waiting[number]
        self._finish(running)
        prompt_tokens = sum(ask.num_tokens for ask in self.asks)
        return QueueRun(tuple(records), tuple(ttft), tuple(self.deferrals), computed, loaded, prompt_tokens)

    def _admit(self, now: int) -> None:
        while self.arrived < len(self.asks) and self.asks[self.arrived].arrival_ns <= now:
            number = self.arrived
            self.waiting[number] = None
            self.arrived += 1
            if self.setup.prefetch and self.setup.ssd_tokens:
                place = self.tree.locate(self.paths[number], number)
                self.prefetches.start(number, self.asks[number].arrival_ns, place.gpu + place.cpu, place.ssd)

    def _plan(self, now: int) -> tuple[int, ...]:
        """Choose the next batch's members from what the tree knows now, putting delay hits off."""
        works = []
        for number in islice(self.waiting, looked_at(self.setup.batch_size)):
            if number in self.prefetches:
                self.tree.prefetch(self.paths[number][: self.prefetches.reached(number, now)])
            place = self.tree.queue(number, self.paths[number])
            if self._is_delay_hit(number, place):
                self.deferrals[number] += 1
            else:
                works.append(self._work(number, place))
            if self.setup.policy == "fcfs" and len(works) == self.setup.batch_size:
                break                                   # it looks no further
        batch = compose(works, self.setup.batch_size, self.setup.policy, self.setup.limit, self.setup.bundle)
        return tuple(work.name for work in batch.works)

    def _is_delay_hit(self, number: int, place: Located) -> bool:
        saved_tokens = place.transient * self.page_tokens
        return self.setup.defer and saved_tokens > DEFERRAL_TOKENS and self.deferrals[number] < MAX_DEFERRALS

    def _work(self, number: int, place: Located) -> Work:
        load_ns = self._load_ns(place)
        # A page's identity stands for all before it, so the last cached page names the context.
        context = self.paths[number][place.cached - 1] if load_ns else None
        return Work(number, load_ns, self._compute_ns(number, place), context)

    def _load_ns(self, place: Located) -> int:
        return self.machine.load_ns(place.cpu * self.page_tokens, place.ssd * self.page_tokens)

    def _compute_ns(self, number: int, place: Located) -> int:
        new = self._new_tokens(number, place)
        return self.machine.compute_ns(new, self.asks[number].num_tokens - new)

    def _new_tokens(self, number: int, place: Located) -> int:
        """Tokens to compute: at least one, whose logits give the first output token."""
        return max(1, self.asks[number].num_tokens - place.cached * self.page_tokens)

    def _run_batch(self, now: int, members: tuple[int, ...], places: Sequence[Located]) -> BatchRecord:
        """The batch as it runs. What an earlier member has loaded is on the GPU for the later ones."""
        load_ns = sum(self._load_ns(place) for place in places)
        alone_ns = sum(self._compute_ns(number, place) for number, place in zip(members, places))
        compute_ns = self.machine.slowed_ns(load_ns, alone_ns)
        duration_ns = max(load_ns, compute_ns) if self.setup.overlap else load_ns + compute_ns
        steps = (duration_ns - compute_ns) // self.decode_step_ns if self.setup.fill else 0
        return BatchRecord(now, now + duration_ns, load_ns, compute_ns, steps, members)

    def _finish(self, members: Sequence[int]) -> tuple:
        """Put what a batch computed into the cache; nothing is running afterwards."""
        for number in members:
            self.tree.finish(number)
        return ()


class _Prefetches:
    """Copies from the SSD to the host, one after the other in order of arrival."""

    def __init__(self, page_ns: int):
        self._page_ns = page_ns
        self._free_ns = 0
        self._jobs: dict[int, tuple[int, int, int]] = {}

    def start(self, number: int, now: int, first_page: int, pages: int) -> None:
        if not pages:
            return
        begin = max(now, self._free_ns)
        self._free_ns = begin + pages * self._page_ns
        self._jobs[number] = (begin, first_page, pages)

    def __contains__(self, number: int) -> bool:
        return number in self._jobs

    def reached(self, number: int, now: int) -> int:
        """How many leading pages of a request's path are on the host, as far as its own job goes."""
        begin, first_page, pages = self._jobs[number]
        return first_page + min(pages, max(0, now - begin) // self._page_ns)
