"""Where KV may lie, and how long it takes from there."""

from dataclasses import replace

import pytest

from kvlib.cost import recompute_s, transfer_s
from kvlib.errors import ConfigError
from kvlib.specs import get_gpu, get_model
from kvlib.specs.hardware import GPUS
from kvlib.tiers import PLACES, gpu_memory, host_link, link_to, machine_links

LLAMA, H100 = get_model("llama-3-8b"), get_gpu("h100-80gb")
BIG, A800 = get_model("llama-2-70b"), get_gpu("a800-80gb")


def test_lecture_9_loads_of_8000_tokens():
    """L9.load.cpu, L9.load.3gb: recompute 188 ms is 9x, 7x, 1.0x and 1/18 of the loads."""
    recompute = recompute_s(LLAMA, H100, 8000)

    def times_faster(place):
        return recompute / transfer_s(8000 * 131072, link_to(place, H100))

    assert times_faster("CPU memory") == pytest.approx(9, rel=0.03)
    assert times_faster("RDMA 400 Gb/s") == pytest.approx(7, rel=0.03)
    assert times_faster("SSD 7 GB/s") == pytest.approx(1.0, rel=0.03)
    assert 1 / times_faster("network 3 Gb/s") == pytest.approx(18, rel=0.04)


def test_lecture_7_reads_per_token():
    """L7.read.rdma 3.3 us, L7.read.ssd 54.6 us; L7.ssd7x: 7 times for the 70B, below 1 for OPT-13B."""
    links = machine_links(A800)
    per_token = {place: 327680 / link.effective_bytes_per_s for place, link in links.items()}
    assert 1e6 * per_token["RDMA 100 GB/s"] == pytest.approx(3.3, rel=0.01)
    assert 1e6 * per_token["one SSD"] == pytest.approx(54.6, rel=0.001)

    def ratio(model):
        load = transfer_s(model.shape.kv_bytes(8704), links["four SSDs"])
        return recompute_s(model, A800, 8704, 8) / load

    assert ratio(BIG) == pytest.approx(7, abs=0.5)
    assert ratio(get_model("opt-13b")) < 1


def test_machine_links_come_fastest_first():
    rates = [link.effective_bytes_per_s for link in machine_links(A800).values()]
    assert rates == sorted(rates, reverse=True)
    assert gpu_memory(A800, 8).bytes_per_s == 8 * A800.bytes_per_s


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_every_gpu_has_a_host_link_and_every_place_a_link(gpu):
    assert host_link(gpu) == link_to("CPU memory", gpu)
    for place in PLACES:
        assert link_to(place, gpu).effective_bytes_per_s < gpu.bytes_per_s


def test_a_gpu_without_a_known_bus_is_refused():
    with pytest.raises(ConfigError, match="host link of 'mine'"):
        host_link(replace(H100, name="mine"))


@pytest.mark.parametrize("refused, words", [
    (lambda: link_to("tape", H100), "place"),
    (lambda: gpu_memory(H100, 0), "num_gpus"),
    (lambda: machine_links(H100, True), "num_gpus"),
])
def test_refusals_name_the_field(refused, words):
    with pytest.raises(ConfigError, match=words):
        refused()
