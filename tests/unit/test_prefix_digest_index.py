"""The digest index against a plain list of (block, digest) pairs in the order they were added."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvlib.prefix.digest_index import DigestIndex

BLOCKS = st.integers(0, 5)
DIGESTS = st.sampled_from([b"a", b"b", b"c"])


class AgainstList(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.index = DigestIndex(num_blocks=6)
        self.pairs = []

    @rule(block=BLOCKS, digest=DIGESTS)
    def add(self, block, digest):
        if all(known != block for known, _ in self.pairs):
            self.index.add(block, digest)
            self.pairs.append((block, digest))

    @rule(block=BLOCKS)
    def remove(self, block):
        digest = dict(self.pairs).get(block)
        self.pairs = [pair for pair in self.pairs if pair[0] != block]
        is_last = digest is not None and all(other != digest for _, other in self.pairs)
        assert self.index.remove(block) == (digest if is_last else None)

    @invariant()
    def both_agree(self):
        self.index.check_integrity()
        for digest in (b"a", b"b", b"c"):
            holders = [block for block, other in self.pairs if other == digest]
            assert self.index.find(digest) == (holders[0] if holders else None)
        assert [self.index.digest_of(block) for block in range(6)] == [
            dict(self.pairs).get(b) for b in range(6)
        ]


TestAgainstList = AgainstList.TestCase
TestAgainstList.settings = settings(derandomize=True, deadline=None, max_examples=60, stateful_step_count=30)


def test_the_oldest_of_three_holders_answers_first():
    index = DigestIndex(num_blocks=6)
    for block in (4, 1, 3):
        index.add(block, b"a")
    found = []
    while (block := index.find(b"a")) is not None:
        found.append(block)
        index.remove(block)
    assert found == [4, 1, 3]
