"""Skipping ahead changes nothing: the engine against a plain loop of one iteration at a time."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvlib.serving import KINDS, Engine, Knobs, SlotSplit, StepClock
from kvlib.serving.memory import BlockMemory
from kvlib.serving.shared_prefix import PREFIX
from kvlib.serving.simulation import make_scheduler
from kvlib.specs import get_gpu, get_model
from kvlib.workloads import Request
from kvlib.workloads.block_numbering import BlockNumbering

MAX_LEN = 64


class Reference:
    """A plain serving loop: one iteration at a time, one sequence at a time, nothing skipped or summed up.

    It asks memory for one token at a time, tries to admit in every iteration (but see ``is_closed``), and
    counts all slots in every step.
    """

    def __init__(self, requests, memory, clock, knobs, is_static):
        self.requests, self.memory, self.clock, self.knobs = requests, memory, clock, knobs
        self.is_static = is_static
        self.rows = []  # one per step
        self.first_token_ps, self.finish_ps, self.rejected = {}, {}, []
        self.recomputed_tokens = self.swapped_tokens = 0
        self.running, self.waiting = [], []
        self.done = []  # of a static batch that is not over
        self.tokens = {}  # in memory, by running request: the prompt once, each answer by itself
        self.target = {}  # tokens to prefill, by request that was ever admitted
        self.dropped = {}  # tokens lost in the last preemption
        self.hits = {}  # by request that was ever admitted: tokens found at its first admission
        self.swapped = {}  # tokens on the host, and the slots they took
        self.generated = dict.fromkeys(range(len(requests)), 0)
        self.gave_way = False  # somebody was preempted since the last completion
        self.is_closed = False  # with prefix caching: nobody is tried again before a completion
        self.deadlocked = False

    def final_length(self, seq):
        """Tokens of each sequence at its end."""
        request = self.requests[seq]
        return request.num_input_tokens + max(0, request.num_output_tokens - 1)

    def size(self, seq):
        return self.requests[seq].num_sequences

    def length(self, seq):
        """Tokens of each sequence of a request that decodes."""
        prompt = self.requests[seq].num_input_tokens
        return prompt + (self.tokens[seq] - prompt) // self.size(seq)

    def position(self, seq, token):
        """Where a token of the prefill stands in its sequence: one answer follows the other."""
        prompt = self.requests[seq].num_input_tokens
        if token < prompt or self.size(seq) == 1:
            return token
        return prompt + (token - prompt) % ((self.target[seq] - prompt) // self.size(seq))

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
        too_many = self.size(seq) > min(
            self.knobs.max_num_seqs or 10**9, self.knobs.max_num_batched_tokens or 10**9
        )
        final_tokens = request.num_input_tokens + self.size(seq) * max(0, request.num_output_tokens - 1)
        too_many |= not self.knobs.chunked_prefill and final_tokens > (self.knobs.max_num_batched_tokens or 10**9)
        if too_long or too_many or not self.memory.fits_alone(request):
            self.rejected.append(seq)
        else:
            self.waiting.append(seq)

    def step(self, now):
        preempted, swapped_out, decoding, copying = self.grow()
        chunks, admitted, resumed, is_short = self.admit()
        if not (decoding or chunks or resumed):
            self.deadlocked = True
            return now
        for seq, slots in resumed:
            copying += self.clock.swap_ps(slots)
        decoding += [seq for seq, _ in resumed]
        lengths = [self.length(seq) for seq in decoding for _ in range(self.size(seq))]
        prefills = [
            (1, self.position(seq, self.tokens[seq] + token)) for seq, new in chunks for token in range(new)
        ]
        end = now + copying + self.clock.step_ps(prefills, len(lengths), sum(lengths))
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
                self.gave_way = self.is_closed = False
            self.done = []
        self.rows.append(row)
        return end

    def is_prefilling(self, seq):
        return self.tokens[seq] < self.target[seq]

    def grow(self):
        """One more token for everyone who decodes, oldest first; the last to come gives way, if anybody does."""
        preempted, swapped_out, grown, copying = [], [], [], 0
        self.memory.select([seq for seq in self.running if not self.is_prefilling(seq)])
        for seq in list(self.running):
            while seq in self.running and not self.is_prefilling(seq):
                if self.memory.grow([seq], 1).steps:
                    self.tokens[seq] += self.size(seq)
                    grown.append(seq)
                    break
                if not self.knobs.preemption:
                    break
                victim = self.running.pop()
                had = self.tokens.pop(victim)
                slots = self.memory.swap_out(victim) if had >= self.target[victim] else 0
                if slots:
                    self.swapped[victim] = had, slots
                    self.swapped_tokens += had
                    swapped_out.append(victim)
                    copying += self.clock.swap_ps(slots)
                else:
                    self.memory.preempt(victim, had)
                    self.dropped[victim] = had
                self.waiting.insert(0, victim)
                preempted.append(victim)
                self.gave_way = True
        return preempted, swapped_out, grown, copying

    def admit(self):
        """Chunks for those in the middle of a prompt, then whoever may start; tried anew in every step."""
        knobs, chunks, admitted, resumed = self.knobs, [], [], []
        room = knobs.max_num_batched_tokens or 10**9
        for seq in self.running:
            if self.is_prefilling(seq):
                new = min(self.target[seq] - self.tokens[seq], max(room, 0))
                if new:
                    chunks.append((seq, new))
                room -= new
            else:
                room -= self.size(seq)
        if self.is_static and (self.running or self.done):
            return chunks, admitted, resumed, False
        if self.is_closed:
            return chunks, admitted, resumed, True
        while self.waiting:
            seq = self.waiting[0]
            num_sequences = sum(self.size(one) for one in [seq, *self.running])
            if num_sequences > min(knobs.max_num_seqs or 10**9, knobs.max_num_batched_tokens or 10**9):
                break
            if seq in self.swapped:
                if room < self.size(seq):
                    break
                if not self.memory.swap_in(seq):
                    return chunks, admitted, resumed, True
                had, slots = self.swapped.pop(seq)
                self.tokens[seq] = had + self.size(seq)
                resumed.append((seq, slots))
                room -= self.size(seq)
            else:
                length = self.requests[seq].num_input_tokens + self.size(seq) * self.generated[seq]
                cached = self.memory.cached_tokens(seq, self.requests[seq], length)
                missing = length - cached
                if room < (1 if knobs.chunked_prefill else missing):
                    break
                if not self.memory.admit(seq, self.requests[seq], length):
                    self.is_closed = bool(knobs.prefix_caching)
                    return chunks, admitted, resumed, not self.is_static
                self.recomputed_tokens += max(0, self.dropped.pop(seq, cached) - cached)
                self.hits.setdefault(seq, cached)
                self.target[seq], self.tokens[seq] = length, cached
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
        """Every slot of the memory looked at by itself."""
        if isinstance(self.memory, BlockMemory):
            used, internal, held = self.slots_in_blocks()
        else:
            held_slots = [self.reserved_slots(seq) for seq in self.running]
            used, held = sum(self.tokens[seq] for seq in self.running), sum(held_slots)
            final = [self.final_length(seq) for seq in self.running]
            internal = sum(max(0, slots - tokens) for slots, tokens in zip(held_slots, final))
            done = sum(self.reserved_slots(seq) for seq in self.done)
            internal, held = internal + done, held + done
        free = self.memory.num_slots - held
        reserved = held - used - internal
        return SlotSplit(used, reserved, internal, free * is_short, free * (not is_short))

    def reserved_slots(self, seq):
        return self.memory.reservation.buddy.size_of(self.memory.reservation._starts[seq])

    def slots_in_blocks(self):
        """Slots that hold a token, that never will, and all that are held; of the pinned prefix, too."""
        manager, block_size = self.memory.manager, self.memory.manager.block_size
        filled, needed = {}, {}  # slots of each block that hold a token now, and that ever will
        for seq in self.running:
            members = self.memory.groups.members(seq) if hasattr(self.memory, "groups") else [seq]
            for number, member in enumerate(members):
                there = self.positions(seq, number)
                for index, block in enumerate(manager.block_table(member)):
                    start, stop = index * block_size, (index + 1) * block_size
                    now = sum(1 for position in there if start <= position < stop)
                    filled[block] = max(filled.get(block, 0), now)
                    final = min(block_size, max(self.final_length(seq), self.length(seq)) - start)
                    needed[block] = max(needed.get(block, 0), final)
        pinned = self.memory.pinned_tokens
        shared = set(manager.block_table(PREFIX)) if pinned else set()
        used = pinned + sum(count for block, count in filled.items() if block not in shared)
        internal = sum(block_size - count for block, count in needed.items() if block not in shared)
        return used, internal, pinned + block_size * len(needed.keys() - shared)

    def positions(self, seq, number):
        """The tokens in memory of one sequence of a request.

        While an answer is computed once more, the blocks that will be copied count as copied.
        """
        prompt, block_size = self.requests[seq].num_input_tokens, self.memory.manager.block_size
        size, tokens = self.size(seq), self.tokens[seq]
        if size == 1:
            return range(tokens)
        answer = (self.target[seq] - prompt) // size if self.is_prefilling(seq) else (tokens - prompt) // size
        there = set(range(min(tokens, prompt)))
        if answer and number < size - 1:
            there |= set(range(prompt - prompt % block_size, prompt))
        done = min(answer, max(0, tokens - prompt - number * answer))
        return there | set(range(prompt, prompt + done))


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
    compare_requests(build(rows), memory, num_slots, block_size, **knobs)


def compare_requests(requests, memory, num_slots, block_size, **knobs):
    knobs = Knobs(max_len=MAX_LEN, **knobs)
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
    assert result.hit_tokens == sum(expected.hits.values())
    assert result.prompt_tokens == sum(requests[seq].num_input_tokens for seq in expected.hits)

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


def group(requests, sizes):
    """The same requests, answered by several sequences: negative sizes are beam searches."""
    pairs = zip(requests, sizes * len(requests))
    return [replace(one, num_sequences=abs(size), beam_search=size < 0) for one, size in pairs]


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    requests_strategy,
    st.lists(st.sampled_from([1, 1, 2, 3, 4, -2, -4]), min_size=1, max_size=4),
    st.integers(1, 8),
    st.integers(0, 200),
    st.sampled_from([0, 24, 400]),
    st.sampled_from([(False, None), (False, MAX_LEN), (True, 9)]),
)
@example([(0, 10, 20)] * 3, [3], 4, 60, 0, (False, None))  # dropped, and three answers computed again
@example([(0, 10, 20)] * 3, [3], 4, 60, 400, (False, None))  # swapped with the blocks they share
@example([(0, 10, 20)] * 3, [-3], 4, 60, 400, (True, 9))
@example([(0, 9, 20)] * 3, [3], 4, 60, 0, (True, 9))  # the answers come back in chunks
def test_groups_of_sequences(rows, sizes, block_size, more_slots, cpu_slots, prefill):
    chunked_prefill, max_num_batched_tokens = prefill
    compare_requests(
        group(build(rows), sizes),
        "paged",
        block_size + more_slots,
        block_size,
        cpu_slots=cpu_slots,
        chunked_prefill=chunked_prefill,
        max_num_batched_tokens=max_num_batched_tokens,
    )


@settings(derandomize=True, deadline=None, max_examples=60)
@given(requests_strategy, st.lists(st.sampled_from([1, 2, 3, -2]), min_size=1, max_size=4), st.integers(0, 120))
def test_groups_behind_a_shared_prefix_and_seats(rows, sizes, more_slots):
    requests = group(build(rows), sizes)
    compare_requests(requests, "paged", 24 + more_slots, 4, shared_prefix_tokens=9, max_num_seqs=4)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    requests_strategy,
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(0, 120),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([(False, None), (False, MAX_LEN), (True, 9)]),
    st.booleans(),
)
@example([(0, 30, 20)] * 4, [0], 4, 80, 0.0, (True, 9), True)  # a prompt is found while it is computed
@example([(0, 4, 34)] * 3, [0, 1, 2], 4, 40, 0.0, (False, None), True)  # its own blocks are found again
def test_prefix_caching(rows, speakers, block_size, more_slots, watermark, prefill, preemption):
    """Requests of one speaker begin alike; each goes on from the answer before it."""
    numbering, requests, history = BlockNumbering(4), [], {}
    for number, one in enumerate(build(rows)):
        speaker = speakers[number % len(speakers)]
        prompt = [("prompt of", speaker), ("message", number)][number % 3 == 2]
        segments = [*history.get(speaker, []), (prompt, one.num_input_tokens)]
        answered = [*segments, (("answer", number), one.num_output_tokens)]
        num_input_tokens = sum(num_tokens for _, num_tokens in segments)
        if num_input_tokens + one.num_output_tokens < MAX_LEN:
            history[speaker] = answered
        ids = {"block_ids": numbering.block_ids(segments)}
        if number % 4:
            ids["answered_block_ids"] = numbering.block_ids(answered)
        if number % 5 == 4:
            ids = {}
        requests.append(replace(one, num_input_tokens=num_input_tokens, **ids))
    chunked_prefill, max_num_batched_tokens = prefill
    compare_requests(
        requests,
        "paged",
        block_size + more_slots,
        block_size,
        prefix_caching=4,
        watermark=watermark,
        preemption=preemption,
        chunked_prefill=chunked_prefill,
        max_num_batched_tokens=max_num_batched_tokens,
    )
