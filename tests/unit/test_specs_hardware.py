"""GPUs and links: units, sources, and the rates the lectures use."""

import pytest

from kvlib.errors import ConfigError
from kvlib.specs import GPUS, LINKS, GpuSpec, LinkSpec, gbps, get_gpu, get_link


def test_gigabits_are_not_gigabytes():  # case F02
    assert gbps(400) == 50e9 and gbps(3) == 0.375e9
    for value in (0, -1, float("nan"), float("inf"), "400", True):
        with pytest.raises(ConfigError, match="gigabits_per_s"):
            gbps(value)


def test_everything_is_named_by_its_key_and_sourced():
    for key, gpu in GPUS.items():
        assert gpu.name == key and gpu.source and gpu.efficiency_source
        assert 0 < gpu.efficiency <= 1 and gpu.fixed_s < 0.01
    for key, link in LINKS.items():
        assert link.name == key and link.source and 0 < link.efficiency <= 1


def test_peaks_are_dense():
    # twice these are the data sheets' figures "with sparsity"
    assert [get_gpu(name).peak_flops_per_s / 1e12 for name in ("a100-40gb", "h100-80gb", "h20")] == [
        312,
        989,
        148,
    ]


def test_figures_that_follow_from_a_printed_one():
    b200 = get_gpu("b200")  # DGX B200 data sheet: eight GPUs; sparse FP8 is four times dense 16-bit
    assert 8 * b200.memory_bytes == 1440e9 and 8 * b200.bytes_per_s == 64e12
    assert 8 * 4 * b200.peak_flops_per_s == 72e15
    for name, transfers_per_s in (("pcie3-x16", 8e9), ("pcie4-x16", 16e9), ("pcie5-x16", 32e9)):
        assert get_link(name).bytes_per_s == transfers_per_s * 16 / 8  # 16 lanes, a bit per transfer and lane
    both_ways = {"nvlink3": 600e9, "nvlink4": 900e9, "nvlink5": 1800e9, "nvlink-c2c": 900e9}
    assert {name: 2 * get_link(name).bytes_per_s for name in both_ways} == both_ways


def test_the_h100_rate_is_the_one_that_fits_the_lecture():  # L9.recomp188
    assert get_gpu("h100-80gb").flops_per_s == pytest.approx(727.5e12, rel=1e-12)
    assert get_gpu("a100-40gb").flops_per_s == pytest.approx(0.6 * 312e12, rel=1e-12)


def test_delivered_rates():  # L9.bw.derate, L7.swap.ex6
    delivered = {name: get_link(name).effective_bytes_per_s / 1e9 for name in LINKS}
    assert delivered["pcie5-x16"] == pytest.approx(51.2) and delivered["nvme-7gb"] == pytest.approx(5.6)
    assert delivered["net-400g"] == pytest.approx(40) and delivered["net-3g"] == pytest.approx(0.30)
    assert delivered["pcie-lecture7"] == 25 and get_link("pcie-lecture7").overhead_s == 10e-6


def test_names_are_found_in_any_case_and_unknown_ones_listed():
    assert get_gpu("A100-40GB") is GPUS["a100-40gb"] and get_link("PCIe5-x16") is LINKS["pcie5-x16"]
    with pytest.raises(ConfigError, match="gpu: got 'tpu', expected one of a100-40gb"):
        get_gpu("tpu")
    with pytest.raises(ConfigError, match="link: got None"):
        get_link(None)


@pytest.mark.parametrize(
    "change",
    [
        {"memory_bytes": 0},
        {"bytes_per_s": -1},
        {"peak_flops_per_s": float("nan")},
        {"efficiency": 0},
        {"fixed_s": -1e-9},
        {"efficiency": "0.6"},
        {"efficiency": 1.01},
    ],
)
def test_an_impossible_gpu_is_refused(change):
    good = dict(
        name="g",
        memory_bytes=1.0,
        bytes_per_s=1.0,
        peak_flops_per_s=1.0,
        efficiency=1.0,
        fixed_s=0.0,
        source="s",
        efficiency_source="s",
    )
    GpuSpec(**good)
    with pytest.raises(ConfigError, match=next(iter(change))):
        GpuSpec(**good | change)


@pytest.mark.parametrize(
    "change", [{"bytes_per_s": 0}, {"overhead_s": -1}, {"efficiency": float("inf")}, {"bytes_per_s": True}]
)
def test_an_impossible_link_is_refused(change):
    with pytest.raises(ConfigError, match=next(iter(change))):
        LinkSpec(**{"name": "l", "bytes_per_s": 1.0} | change)
