"""Laws L2 and L3 of the block manager under random verbs, and that every sequence reads back its own tokens.

The machine plays the engine: it keeps real contents for every block, runs the copies that the manager asks
for, and writes tokens where the block tables say. If a block were reused too early, shared too long, copied
from the wrong place or swapped to the wrong slot, some sequence would read a token that is not its own.
"""

import pickle

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvlib.blocks import BlockManager
from kvlib.errors import OutOfBlocks

NUM_BLOCKS, BLOCK_SIZE, NUM_HOST_BLOCKS = 9, 3, 7
lengths = st.integers(1, 8)
choices = st.integers(0, 10**6)


class ManagerMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.manager = BlockManager(NUM_BLOCKS, BLOCK_SIZE, NUM_HOST_BLOCKS)
        self.gpu = [[None] * BLOCK_SIZE for _ in range(NUM_BLOCKS)]
        self.host = [[None] * BLOCK_SIZE for _ in range(NUM_HOST_BLOCKS)]
        self.on_gpu, self.on_host = {}, {}  # seq -> its tokens
        self.unwritten = {}  # seq -> positions that still have to be written
        self.next_seq = self.next_token = 0

    def new_tokens(self, count):
        self.next_token += count
        return list(range(self.next_token - count, self.next_token))

    def pick(self, sequences, choice):
        return sorted(sequences)[choice % len(sequences)]

    def attempt(self, verb, *arguments):
        """Call a verb; True if it went through. A refusal must have changed nothing and taken nothing."""
        before = pickle.dumps(self.manager)
        try:
            verb(*arguments)
        except OutOfBlocks:
            assert pickle.dumps(self.manager) == before
            return False
        return True

    @rule(length=lengths)
    def allocate(self, length):
        seq, self.next_seq = self.next_seq, self.next_seq + 1
        fits = -(-length // BLOCK_SIZE) <= self.manager.num_free
        assert self.attempt(self.manager.allocate, seq, length) == fits
        if fits:
            self.on_gpu[seq] = self.new_tokens(length)
            self.unwritten[seq] = list(range(length))

    @precondition(lambda self: self.on_gpu)
    @rule(choice=choices, count=lengths)
    def append(self, choice, count):
        seq = self.pick(self.on_gpu, choice)
        needed, free = self.manager.blocks_to_append(seq, count), self.manager.num_free
        assert self.attempt(self.manager.append, seq, count) == (needed <= free)
        if needed <= free:
            start = len(self.on_gpu[seq])
            self.on_gpu[seq] += self.new_tokens(count)
            self.unwritten[seq] += range(start, start + count)

    @precondition(lambda self: self.on_gpu)
    @rule(count=lengths, data=st.data())
    def append_each(self, count, data):
        seqs = data.draw(st.lists(st.sampled_from(sorted(self.on_gpu)), unique=True, max_size=4))
        needed, free = self.manager.blocks_to_append_each(seqs, count), self.manager.num_free
        assert self.attempt(self.manager.append_each, seqs, count) == (needed <= free)
        if needed <= free:
            assert self.manager.num_free == free - needed
            for seq in seqs:
                start = len(self.on_gpu[seq])
                self.on_gpu[seq] += self.new_tokens(count)
                self.unwritten[seq] += range(start, start + count)

    @precondition(lambda self: any(not self.unwritten[seq] for seq in self.on_gpu))
    @rule(choice=choices)
    def fork(self, choice):
        parent = self.pick([seq for seq in self.on_gpu if not self.unwritten[seq]], choice)
        child, self.next_seq = self.next_seq, self.next_seq + 1
        free = self.manager.num_free
        self.manager.fork(parent, child)
        assert self.manager.num_free == free
        self.on_gpu[child], self.unwritten[child] = list(self.on_gpu[parent]), []

    @precondition(lambda self: self.on_gpu or self.on_host)
    @rule(choice=choices)
    def free(self, choice):
        seq = self.pick([*self.on_gpu, *self.on_host], choice)
        self.manager.free(seq)
        (self.on_gpu if seq in self.on_gpu else self.on_host).pop(seq)
        del self.unwritten[seq]

    @precondition(lambda self: self.on_gpu)
    @rule(data=st.data())
    def swap_out(self, data):
        seqs = data.draw(st.lists(st.sampled_from(sorted(self.on_gpu)), unique=True, min_size=1, max_size=3))
        blocks = {block for seq in seqs for block in self.manager.block_table(seq)}
        free, pairs = self.manager.num_free_host, []
        fits = self.attempt(lambda: pairs.extend(self.manager.swap_out(*seqs)))
        assert fits == (len(blocks) <= free)  # what they share is copied once
        if fits:
            assert self.manager.num_free_host == free - len(blocks)
            for gpu_block, host_block in pairs:
                self.host[host_block] = list(self.gpu[gpu_block])
            for seq in seqs:
                self.on_host[seq] = self.on_gpu.pop(seq)

    @precondition(lambda self: self.on_host)
    @rule(data=st.data())
    def swap_in(self, data):
        seqs = data.draw(st.lists(st.sampled_from(sorted(self.on_host)), unique=True, min_size=1, max_size=3))
        blocks = {block for seq in seqs for block in self.manager.host_block_table(seq)}
        free, pairs = self.manager.num_free, []
        fits = self.attempt(lambda: pairs.extend(self.manager.swap_in(*seqs)))
        assert fits == (len(blocks) <= free)
        if fits:
            assert self.manager.num_free == free - len(blocks)
            for host_block, gpu_block in pairs:
                self.gpu[gpu_block] = list(self.host[host_block])
            for seq in seqs:
                self.on_gpu[seq] = self.on_host.pop(seq)

    @rule()
    def run_a_step(self):
        """The pending copies, all at once as one batch, then the writes; then everyone reads their tokens."""
        copies = self.manager.take_copies()
        contents = [list(self.gpu[source]) for source, _ in copies]
        for (_, destination), content in zip(copies, contents):
            self.gpu[destination] = content
        for seq, tokens in self.on_gpu.items():
            table = self.manager.block_table(seq)
            for position in self.unwritten[seq]:
                self.gpu[table[position // BLOCK_SIZE]][position % BLOCK_SIZE] = tokens[position]
            self.unwritten[seq] = []
        for seq, tokens in self.on_gpu.items():
            table = self.manager.block_table(seq)
            read = [self.gpu[table[at // BLOCK_SIZE]][at % BLOCK_SIZE] for at in range(len(tokens))]
            assert read == tokens, f"sequence {seq} reads {read}"

    @invariant()
    def L2_and_L3_hold(self):
        self.manager.check_integrity()
        tables = [self.manager.block_table(seq) for seq in self.on_gpu]
        held = {block for table in tables for block in table}
        kept_for_copies = NUM_BLOCKS - self.manager.num_free - len(held)
        assert 0 <= kept_for_copies <= len(tables)  # L2: free + held = total, sources of pending copies apart
        for block in held:
            assert self.manager.refcount(block) == sum(table.count(block) for table in tables)  # L2
        for seq, tokens in self.on_gpu.items():
            assert self.manager.num_tokens(seq) == len(tokens)
            assert len(self.manager.block_table(seq)) == -(-len(tokens) // BLOCK_SIZE)  # L3

    def teardown(self):
        for seq in [*self.on_gpu, *self.on_host]:
            self.manager.free(seq)
        assert (self.manager.num_free, self.manager.num_free_host) == (NUM_BLOCKS, NUM_HOST_BLOCKS)


ManagerMachine.TestCase.settings = settings(
    derandomize=True, deadline=None, max_examples=60, stateful_step_count=40
)
TestManagerLaws = ManagerMachine.TestCase
