"""Skipping ahead changes nothing: the engine against a plain loop of one iteration at a time."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvlib.serving import KINDS, Engine, Knobs, PagedMemory, SlotSplit, StepClock
from kvlib.serving.simulation import make_scheduler
from kvlib.specs import get_gpu, get_model
from kvlib.workloads import Request

MAX_LEN = 64


def held_slots_of(memory, seq):
    if isinstance(memory, PagedMemory):
        own = [block for block in memory.manager.block_table(seq) if memory.manager.refcount(block) == 1]
        return len(own) * memory.manager.block_size
    return memory.reservation.buddy.size_of(memory.reservation._starts[seq])


class Reference:
    """A plain serving loop: one iteration at a time, one sequence at a time, nothing skipped or summed up.

    It asks memory for one token at a time, tries to admit in every iteration, and counts all slots in every
    step.
    """

    def __init__(self, requests, memory, clock, knobs, is_static):
        self.requests, self.memory, self.clock, self.knobs = requests, memory, clock, knobs
        self.is_static = is_static
        self.rows = []  # one per step
        self.first_token_ps, self.finish_ps, self.rejected = {}, {}, []
        self.recomputed_tokens = self.swapped_tokens = 0
        self.running, self.waiting = [], []
        self.done = []  # of a static batch that is not over
        self.tokens = {}  # in memory, by running request
        self.shared = [memory.cached_tokens(request) for request in requests]
        self.target = {}  # tokens to prefill, by request that was ever admitted
        self.swapped = {}  # tokens on the host
        self.generated = dict.fromkeys(range(len(requests)), 0)
        self.gave_way = False  # somebody was preempted since the last completion
        self.deadlocked = False

    def final_tokens(self, seq):
        request = self.requests[seq]
        return request.num_input_tokens + max(0, request.num_output_tokens - 1)

    def run(self):
        arrivals = [(round(request.arrival_s * 10**12), seq) for seq, request in enumerate(self.requests)]
        now = arrivals[0][0]
        while not self.deadlocked and (arrivals or self.waiting or self.running):
            while arrivals and arrivals[0][0] <= now:
                self.arrive(arrivals.pop(0)[1])
            if self.running or self.waiting:
                now = self.step(now)
            elif arrivals:
                now = arrivals[0][0]
        self.end_ps = now
        return self

    def arrive(self, seq):
        request = self.requests[seq]
        too_long = request.num_input_tokens + request.num_output_tokens > self.knobs.max_len
        if too_long or not self.memory.fits_alone(request):
            self.rejected.append(seq)
        else:
            self.waiting.append(seq)

    def step(self, now):
        preempted, swapped_out, decoding, copying = self.grow()
        chunks, admitted, resumed, is_short = self.admit()
        if not (decoding or chunks or resumed):
            self.deadlocked = True
            return now
        for seq in resumed:
            copying += self.clock.swap_ps(self.tokens[seq] - 1)
        decoding += resumed
        kv_tokens = sum(self.tokens[seq] for seq in decoding)
        prefills = [(new, self.tokens[seq]) for seq, new in chunks]
        end = now + copying + self.clock.step_ps(prefills, len(decoding), kv_tokens)
        for seq, new in chunks:
            self.tokens[seq] += new
        moving = decoding + [seq for seq, _ in chunks]
        row = dict(
            start=now,
            end=end,
            running=len(self.running),
            waiting=len(self.waiting),
            preempted=preempted,
            swapped_out=swapped_out,
            admitted=admitted,
            prefilled=chunks,
            stalled=[seq for seq in self.running if seq not in moving],
            slots=self.split(is_short or (self.gave_way and not self.is_static)),
        )
        row["finished"] = [seq for seq in moving if self.token(seq, end)]
        row["finished"].sort()
        for seq in row["finished"]:
            self.running.remove(seq)
            self.done.append(seq)
        if not (self.is_static and self.running):
            for seq in self.done:
                self.finish_ps[seq] = end
                self.memory.release(seq)
                del self.tokens[seq]
                self.gave_way = False
            self.done = []
        self.rows.append(row)
        return end

    def is_prefilling(self, seq):
        return self.tokens[seq] < self.target[seq]

    def grow(self):
        """One more token for everyone who decodes, oldest first; the last to come gives way, if anybody does."""
        preempted, swapped_out, grown, copying = [], [], [], 0
        for seq in list(self.running):
            while seq in self.running and not self.is_prefilling(seq):
                if self.memory.grow([seq], 1)[0]:
                    self.tokens[seq] += 1
                    grown.append(seq)
                    break
                if not self.knobs.preemption:
                    break
                victim = self.running.pop()
                had = self.tokens.pop(victim)
                if had >= self.target[victim] and self.memory.swap_out(victim):
                    self.swapped[victim] = had
                    self.swapped_tokens += had
                    swapped_out.append(victim)
                    copying += self.clock.swap_ps(had)
                else:
                    self.memory.release(victim)
                    self.recomputed_tokens += had - self.shared[victim]
                self.waiting.insert(0, victim)
                preempted.append(victim)
                self.gave_way = True
        return preempted, swapped_out, grown, copying

    def admit(self):
        """Chunks for those in the middle of a prompt, then whoever may start; tried anew in every step."""
        knobs, chunks, admitted, resumed = self.knobs, [], [], []
        room = knobs.max_num_batched_tokens or 10**9
        for seq in self.running:
            new = min(self.target[seq] - self.tokens[seq], max(room, 0)) if self.is_prefilling(seq) else 1
            if new and self.is_prefilling(seq):
                chunks.append((seq, new))
            room -= new
        if self.is_static and (self.running or self.done):
            return chunks, admitted, resumed, False
        while self.waiting:
            seq = self.waiting[0]
            length = self.requests[seq].num_input_tokens + self.generated[seq]
            if knobs.max_num_seqs is not None and len(self.running) >= knobs.max_num_seqs:
                break
            missing = length - self.shared[seq]
            if room < (1 if seq in self.swapped or knobs.chunked_prefill else missing):
                break
            if seq in self.swapped:
                if not self.memory.swap_in(seq):
                    return chunks, admitted, resumed, True
                self.tokens[seq] = self.swapped.pop(seq) + 1
                resumed.append(seq)
                room -= 1
            else:
                if not self.memory.admit(seq, self.requests[seq], length):
                    return chunks, admitted, resumed, not self.is_static
                self.target[seq], self.tokens[seq] = length, self.shared[seq]
                chunks.append((seq, min(missing, room)))
                room -= min(missing, room)
            self.running.append(self.waiting.pop(0))
            admitted.append(seq)
        return chunks, admitted, resumed, False

    def token(self, seq, end):
        """The token that this step makes for a request, if its prompt is done; whether it was the last."""
        if self.is_prefilling(seq):
            return False
        wanted = self.requests[seq].num_output_tokens
        if wanted:
            self.generated[seq] += 1
            self.first_token_ps.setdefault(seq, end)
        return self.generated[seq] >= wanted

    def split(self, is_short):
        used = sum(self.tokens[seq] - self.shared[seq] for seq in self.running)
        held = [held_slots_of(self.memory, seq) for seq in self.running]
        final = [self.final_tokens(seq) - self.shared[seq] for seq in self.running]
        internal = sum(max(0, slots - tokens) for slots, tokens in zip(held, final))
        done = sum(held_slots_of(self.memory, seq) for seq in self.done)
        pinned = self.memory.pinned_tokens
        free = self.memory.num_slots - pinned - sum(held) - done
        reserved = sum(held) - used - internal
        return SlotSplit(pinned + used, reserved, internal + done, free * is_short, free * (not is_short))


requests_strategy = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1, 17_000, 18_000, 90_000, 700_000]),  # microseconds after the one before
        st.integers(1, 30),
        st.sampled_from([0, 1, 2, 7, 20, 34]),
    ),
    min_size=1,
    max_size=12,
)


def build(rows):
    arrival_us, requests = 0, []
    for gap_us, num_input_tokens, num_output_tokens in rows:
        arrival_us += gap_us
        requests.append(Request(arrival_us / 1e6, num_input_tokens, num_output_tokens))
    return requests


def compare(rows, memory, num_slots, block_size, **knobs):
    requests, knobs = build(rows), Knobs(max_len=MAX_LEN, **knobs)
    clock = StepClock(get_model("opt-13b"), get_gpu("a100-40gb"), block_size=block_size)
    scheduler = make_scheduler(memory, num_slots, block_size, knobs)
    result = Engine(scheduler, clock, MAX_LEN).run(requests)
    fresh = make_scheduler(memory, num_slots, block_size, knobs).memory
    expected = Reference(requests, fresh, clock, knobs, memory == "static").run()

    assert result.deadlocked == expected.deadlocked
    assert result.num_steps == len(expected.rows)
    steps = iter(expected.rows)
    for stretch in result.timeline:
        single = [next(steps) for _ in range(stretch.num_steps)]
        first, last = single[0], single[-1]
        assert (stretch.start_s, stretch.end_s) == (first["start"] / 10**12, last["end"] / 10**12)
        assert stretch.preempted == tuple(first["preempted"]) and stretch.admitted == tuple(first["admitted"])
        assert stretch.swapped_out == tuple(first["swapped_out"])
        assert stretch.prefilled == tuple(first["prefilled"])
        assert stretch.stalled == tuple(first["stalled"])
        assert stretch.finished == tuple(last["finished"])
        assert not any(
            row[what] for row in single[1:] for what in ("preempted", "admitted", "prefilled", "stalled")
        )
        assert not any(row["finished"] for row in single[:-1])
        assert {row["running"] for row in single} == {stretch.num_running}
        assert stretch.num_waiting == first["waiting"]
        assert stretch.slots == last["slots"]

    in_order = range(result.submitted)  # all of them, unless a deadlock came first
    assert [outcome.index for outcome in result.per_request] == list(in_order)
    for outcome in result.per_request:
        seq = outcome.index
        assert bool(outcome.rejection) == (seq in expected.rejected)
        for seconds, times_ps in (
            (outcome.first_token_s, expected.first_token_ps),
            (outcome.finish_s, expected.finish_ps),
        ):
            assert seconds == (times_ps[seq] / 10**12 if seq in times_ps else None)
        assert outcome.num_preemptions == sum(row["preempted"].count(seq) for row in expected.rows)
    assert result.recomputed_tokens == expected.recomputed_tokens
    assert result.swapped_tokens == expected.swapped_tokens

    duration = expected.end_ps - round(requests[0].arrival_s * 10**12)
    busy = sum(row["end"] - row["start"] for row in expected.rows)
    for kind in KINDS:
        slot_time = sum((row["end"] - row["start"]) * getattr(row["slots"], kind) for row in expected.rows)
        # Between steps everything is free but a pinned prefix.
        pinned = fresh.pinned_tokens
        slot_time += {"free": num_slots - pinned, "used": pinned}.get(kind, 0) * (duration - busy)
        assert result.utilisation_by_kind[kind] == (
            slot_time / (duration * num_slots) if duration else 0.0
        ), kind
    running_time = sum((row["end"] - row["start"]) * row["running"] for row in expected.rows)
    assert result.mean_running == (running_time / duration if duration else 0.0)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(requests_strategy, st.integers(1, 16), st.integers(0, 100))
@example([(0, 4, 34), (0, 4, 34), (0, 4, 34)], 4, 40)  # preempted, resumed, preempted again
@example([(0, 30, 0), (0, 1, 1)], 1, 14)  # no output: ends with its prefill
def test_paged(rows, block_size, more_slots):
    compare(rows, "paged", block_size + more_slots, block_size)


@pytest.mark.parametrize("memory", ["max", "pow2", "oracle", "static"])
@settings(derandomize=True, deadline=None, max_examples=40)
@given(rows=requests_strategy, num_slots=st.integers(64, 300))
def test_reservations(memory, rows, num_slots):
    compare(rows, memory, num_slots, 16)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    requests_strategy,
    st.sampled_from(["paged", "static"]),
    st.integers(64, 200),
    st.integers(1, 4),
    st.one_of(st.none(), st.integers(MAX_LEN, 2 * MAX_LEN)),
)
def test_limits_on_sequences_and_tokens(rows, memory, num_slots, max_num_seqs, max_num_batched_tokens):
    compare(
        rows,
        memory,
        num_slots,
        4,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    requests_strategy,
    st.integers(1, 8),
    st.integers(0, 60),
    st.sampled_from([0.0, 0.05, 0.3]),
    st.integers(0, 80),
)
@example([(0, 4, 34), (0, 4, 34), (0, 4, 34)], 4, 40, 0.0, 80)  # swapped out, in, and out again
@example([(0, 4, 34)] * 4, 4, 40, 0.0, 12)  # the host has room for one of them
def test_watermark_and_swapping(rows, block_size, more_slots, watermark, cpu_slots):
    compare(rows, "paged", block_size + more_slots, block_size, watermark=watermark, cpu_slots=cpu_slots)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(requests_strategy, st.integers(0, 60), st.integers(1, 40), st.sampled_from([0, 60]))
@example([(0, 30, 20)] * 4, 40, 3, 0)  # decodes alone fill the step
@example([(0, 4, 34), (0, 30, 2)], 40, 3, 60)  # the victim is in the middle of its prompt
def test_chunked_prefill(rows, more_slots, max_num_batched_tokens, cpu_slots):
    compare(
        rows,
        "paged",
        4 + more_slots,
        4,
        chunked_prefill=True,
        max_num_batched_tokens=max_num_batched_tokens,
        cpu_slots=cpu_slots,
    )


@settings(derandomize=True, deadline=None, max_examples=100)
@given(requests_strategy, st.integers(1, 8), st.integers(0, 100), st.sampled_from([None, 5, 40]))
@example([(0, 8, 2)] * 2, 4, 16, None)  # one takes the last block and ends in it, the other stalls
def test_without_preemption(rows, block_size, more_slots, chunk):
    compare(
        rows,
        "paged",
        block_size + more_slots,
        block_size,
        preemption=False,
        chunked_prefill=chunk is not None,
        max_num_batched_tokens=chunk,
    )


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    requests_strategy,
    st.integers(1, 20),
    st.integers(0, 80),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([(False, None), (False, MAX_LEN), (True, 9)]),
)
@example([(0, 30, 34)] * 3, 9, 20, 0.0, (False, None))  # 2 whole blocks of 4 are shared
@example([(0, 30, 20)] * 4, 20, 80, 0.0, (False, MAX_LEN))  # 10 tokens each, so all four fit in a step
def test_a_shared_prefix(rows, shared_prefix_tokens, more_slots, watermark, prefill):
    chunked_prefill, max_num_batched_tokens = prefill
    compare(
        rows,
        "paged",
        24 + more_slots,
        4,
        shared_prefix_tokens=shared_prefix_tokens,
        watermark=watermark,
        chunked_prefill=chunked_prefill,
        max_num_batched_tokens=max_num_batched_tokens,
    )
