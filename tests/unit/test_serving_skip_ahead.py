"""Skipping ahead changes nothing: the engine against a plain loop of one iteration at a time."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvlib.serving import KINDS, Engine, PagedMemory, Scheduler, SlotSplit, StepClock
from kvlib.serving.simulation import MEMORIES
from kvlib.specs import get_gpu, get_model
from kvlib.workloads import Request

MAX_LEN = 64
CLOCK = StepClock(get_model("opt-13b"), get_gpu("a100-40gb"))  # a decode step takes about 18 ms


def held_slots_of(memory, seq):
    if isinstance(memory, PagedMemory):
        return len(memory.manager.block_table(seq)) * memory.manager.block_size
    return memory.reservation.buddy.size_of(memory.reservation._starts[seq])


class Reference:
    """A plain serving loop: one iteration at a time, one sequence at a time, nothing skipped or summed up.

    It asks memory for one token at a time, tries to admit in every iteration, and counts all slots in every
    step.
    """

    def __init__(self, requests, memory, clock, max_len, max_num_seqs=None, max_num_batched_tokens=None):
        self.requests, self.memory, self.clock = requests, memory, clock
        self.max_len, self.max_num_seqs, self.budget = max_len, max_num_seqs, max_num_batched_tokens
        self.rows = []  # one per step
        self.first_token_ps, self.finish_ps, self.rejected = {}, {}, []
        self.recomputed_tokens = 0
        self.running, self.waiting = [], []
        self.tokens = {}  # in memory, by running request
        self.generated = dict.fromkeys(range(len(requests)), 0)
        self.gave_way = False  # somebody was preempted since the last completion

    def final_tokens(self, seq):
        request = self.requests[seq]
        return request.num_input_tokens + max(0, request.num_output_tokens - 1)

    def run(self):
        arrivals = [(round(request.arrival_s * 10**12), seq) for seq, request in enumerate(self.requests)]
        now = arrivals[0][0]
        while arrivals or self.waiting or self.running:
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
        too_long = request.num_input_tokens + request.num_output_tokens > self.max_len
        if too_long or not self.memory.fits_alone(request):
            self.rejected.append(seq)
        else:
            self.waiting.append(seq)

    def step(self, now):
        preempted = self.grow()
        decoding = list(self.running)
        admitted, is_short = self.admit()
        kv_tokens = sum(self.tokens[seq] for seq in decoding)
        end = now + self.clock.step_ps([(self.tokens[seq], 0) for seq in admitted], len(decoding), kv_tokens)
        row = dict(
            start=now,
            end=end,
            running=len(self.running),
            waiting=len(self.waiting),
            preempted=preempted,
            admitted=admitted,
            slots=self.split(is_short or self.gave_way),
        )
        row["finished"] = [seq for seq in list(self.running) if self.token(seq, end)]
        self.rows.append(row)
        return end

    def grow(self):
        """One more token for everyone, oldest first; whoever came last gives way."""
        preempted = []
        for seq in list(self.running):
            while seq in self.running:
                if self.memory.grow([seq], 1)[0]:
                    self.tokens[seq] += 1
                    break
                victim = self.running.pop()
                self.memory.release(victim)
                self.recomputed_tokens += self.tokens.pop(victim)
                self.waiting.insert(0, victim)
                preempted.append(victim)
                self.gave_way = True
        return preempted

    def admit(self):
        admitted, step_tokens = [], len(self.running)
        while self.waiting:
            seq = self.waiting[0]
            length = self.requests[seq].num_input_tokens + self.generated[seq]
            if self.max_num_seqs is not None and len(self.running) >= self.max_num_seqs:
                break
            if self.budget is not None and step_tokens + length > self.budget:
                break
            if not self.memory.admit(seq, self.requests[seq], length):
                return admitted, True
            self.running.append(self.waiting.pop(0))
            admitted.append(seq)
            self.tokens[seq] = length
            step_tokens += length
        return admitted, False

    def token(self, seq, end):
        """The token that this step generates for a request; whether it was the last."""
        wanted = self.requests[seq].num_output_tokens
        if wanted:
            self.generated[seq] += 1
            self.first_token_ps.setdefault(seq, end)
        if self.generated[seq] < wanted:
            return False
        self.finish_ps[seq] = end
        self.memory.release(seq)
        self.running.remove(seq)
        del self.tokens[seq]
        self.gave_way = False
        return True

    def split(self, is_short):
        used = sum(self.tokens[seq] for seq in self.running)
        held = [held_slots_of(self.memory, seq) for seq in self.running]
        internal = sum(max(0, slots - self.final_tokens(seq)) for slots, seq in zip(held, self.running))
        free = self.memory.num_slots - sum(held)
        return SlotSplit(used, sum(held) - used - internal, internal, free * is_short, free * (not is_short))


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


def compare(rows, memory, num_slots, block_size, max_num_seqs=None, max_num_batched_tokens=None):
    requests = build(rows)

    def new_memory():
        return MEMORIES[memory](num_slots, block_size, MAX_LEN)

    scheduler = Scheduler(new_memory(), max_num_seqs, max_num_batched_tokens)
    result = Engine(scheduler, CLOCK, MAX_LEN).run(requests)
    expected = Reference(requests, new_memory(), CLOCK, MAX_LEN, max_num_seqs, max_num_batched_tokens).run()

    assert result.num_steps == len(expected.rows)
    steps = iter(expected.rows)
    for stretch in result.timeline:
        single = [next(steps) for _ in range(stretch.num_steps)]
        first, last = single[0], single[-1]
        assert (stretch.start_s, stretch.end_s) == (first["start"] / 10**12, last["end"] / 10**12)
        assert stretch.preempted == tuple(first["preempted"]) and stretch.admitted == tuple(first["admitted"])
        assert stretch.finished == tuple(last["finished"])
        assert not any(row["preempted"] or row["admitted"] for row in single[1:])
        assert not any(row["finished"] for row in single[:-1])
        assert {row["running"] for row in single} == {stretch.num_running}
        assert stretch.num_waiting == first["waiting"]
        assert stretch.slots == last["slots"]

    in_order = range(len(requests))
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

    duration = expected.end_ps - round(requests[0].arrival_s * 10**12)
    busy = sum(row["end"] - row["start"] for row in expected.rows)
    for kind in KINDS:
        slot_time = sum((row["end"] - row["start"]) * getattr(row["slots"], kind) for row in expected.rows)
        if kind == "free":
            slot_time += num_slots * (duration - busy)  # between steps everything is free
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


@pytest.mark.parametrize("memory", ["max", "pow2", "oracle"])
@settings(derandomize=True, deadline=None, max_examples=40)
@given(rows=requests_strategy, num_slots=st.integers(40, 300))
def test_reservations(memory, rows, num_slots):
    compare(rows, memory, num_slots, 16)


@settings(derandomize=True, deadline=None, max_examples=80)
@given(
    requests_strategy,
    st.integers(40, 200),
    st.integers(1, 4),
    st.one_of(st.none(), st.integers(MAX_LEN, 2 * MAX_LEN)),
)
def test_limits_on_sequences_and_tokens(rows, num_slots, max_num_seqs, max_num_batched_tokens):
    compare(rows, "paged", num_slots, 4, max_num_seqs, max_num_batched_tokens)
