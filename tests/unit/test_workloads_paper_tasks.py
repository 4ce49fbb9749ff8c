"""Translation with a shared prefix, and the chatbot with its history cut."""

import pytest

from kvlib.errors import ConfigError
from kvlib.workloads import chatbot_like, mean_lengths, translation_like


@pytest.mark.parametrize("shots, prefix, shared_blocks", [(1, 80, 5), (5, 341, 21)])
def test_prompts_share_the_examples_and_nothing_else(shots, prefix, shared_blocks):
    """Oracle L7.prefix.1shot (80 tokens are 5 blocks) and exercise 7 (341 are 21 blocks and 5 tokens)."""
    requests = translation_like(200, rate=5.0, seed=1, shots=shots)
    shared = set.intersection(*(set(request.block_ids) for request in requests))
    assert shared == set(range(shared_blocks))
    own = [block for request in requests for block in request.block_ids[shared_blocks:]]
    assert len(own) == len(set(own))
    assert all(request.num_input_tokens > prefix for request in requests)
    mean_input, mean_output = mean_lengths(requests)
    assert 25 < mean_input - prefix < 35 and 25 < mean_output < 35


def test_the_sentences_depend_on_neither_rate_nor_shots():
    one, five = (translation_like(50, rate=rate, seed=3, shots=shots) for rate, shots in ((1.0, 1), (9.0, 5)))
    assert [r.num_input_tokens - 80 for r in one] == [r.num_input_tokens - 341 for r in five]


@pytest.mark.parametrize("shots", [0, 2, True, "1", None])
def test_other_numbers_of_examples_are_refused(shots):
    with pytest.raises(ConfigError, match="shots: got .*expected one of 1, 5"):
        translation_like(1, rate=1.0, seed=0, shots=shots)


def test_most_histories_are_cut():
    requests = chatbot_like(2000, rate=1.0, seed=0)
    assert max(request.num_input_tokens for request in requests) == 1024
    # The assumed share is 0.7; 0.03 is three standard deviations of 2,000 draws.
    assert abs(sum(request.num_input_tokens == 1024 for request in requests) / 2000 - 0.7) < 0.03
