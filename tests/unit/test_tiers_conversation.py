"""TTFT of a chat of 20 turns, by where its history is kept."""

import pytest

from kvlib.cost import recompute_s
from kvlib.errors import ConfigError
from kvlib.specs import get_gpu, get_link, get_model
from kvlib.tiers import PLACES, conversation, link_to

LLAMA, H100 = get_model("llama-3-8b"), get_gpu("h100-80gb")


def test_lecture_9_twentieth_turn():
    """L9.chat20: 11,400 tokens of history; 282 ms without a cache, 29.2 ms and 4.98 s of loading on top of the hit."""
    def last(link_name):
        return conversation(LLAMA, H100, get_link(link_name))[-1]

    assert last("net-3g").history_tokens == 19 * 600
    assert 1e3 * recompute_s(LLAMA, H100, 11_400) == pytest.approx(282, rel=0.01)
    dram, net = last("pcie5-x16"), last("net-3g")
    # 35.9 - 6.7 ms and 4.99 s - 6.7 ms
    assert 1e3 * (dram.loaded_s - dram.gpu_hit_s) == pytest.approx(29.2, rel=0.01)
    assert net.loaded_s - net.gpu_hit_s == pytest.approx(4.983, rel=0.01)


@pytest.mark.parametrize("place", PLACES)
def test_ttft_of_a_chat_is_ordered_every_turn(place):
    turns = conversation(LLAMA, H100, link_to(place, H100))
    assert turns[0].no_cache_s == turns[0].gpu_hit_s == turns[0].loaded_s == pytest.approx(turns[0].overlapped_s)
    for turn in turns[1:]:
        assert turn.gpu_hit_s < turn.overlapped_s < turn.loaded_s
        assert turn.gpu_hit_s < turn.no_cache_s


@pytest.mark.parametrize("refused, words", [
    (lambda: conversation(LLAMA, H100, get_link("net-3g"), turns=0), "turns"),
    (lambda: conversation(LLAMA, H100, get_link("net-3g"), question_tokens=1.5), "question_tokens"),
    (lambda: conversation(LLAMA, H100, get_link("net-3g"), answer_tokens=0), "answer_tokens"),
])
def test_refusals_name_the_field(refused, words):
    with pytest.raises(ConfigError, match=words):
        refused()
