"""Chapter 15's controls: a model, GPUs, places, links, a workload and how much damage is allowed."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from kvlib.explore import Choice, File, Toggle
from kvlib.explore.files import file_stamp
from kvlib.figures.inputs import GPU_NAMES, model_controls, model_or_file
from kvlib.figures.plan_data import LOADS, WORKLOADS, demand_or_file
from kvlib.planner import Plan, Setting, Store, plan
from kvlib.specs import gbps, get_gpu, get_link
from kvlib.tiers import host_link

GB, TB = 1e9, 1e12
OWN_BUS = "own"

CONTROLS = (
    Choice("workload", "Workload", tuple(WORKLOADS.items()), default="chat"),
    File("trace", "Your trace, in Mooncake's format", accept=".jsonl,.json,.gz", replaces="workload"),
    Choice("load", "Load (a trace's own rate is not used)", LOADS, default=2.0, unit="requests/s"),
    *model_controls("llama-3-8b"),
    Choice("gpu", "GPU", GPU_NAMES, default="h100-80gb"),
    Choice("num_gpus", "GPUs (tensor parallel)", [1, 2, 4, 8], default=1),
    Choice("host_gb", "CPU memory for KV", [0, 16, 64, 256, 1024], default=64, unit="GB"),
    Choice("bus", "Link to CPU memory", [
        (OWN_BUS, "what the GPU has"), ("pcie3-x16", "PCIe 3"), ("pcie4-x16", "PCIe 4"), ("pcie5-x16", "PCIe 5"),
        ("gh200-host", "GH200"),
    ], default=OWN_BUS),
    Toggle("copy_kernel", "The engine can copy pages with a GPU kernel", default=True),
    Choice("ssd_tb", "SSD for KV", [0, 0.1, 1, 10], default=1, unit="TB"),
    Choice("ssd", "SSD speed", [3.5, 7.0, 14.0, 28.0], default=7.0, unit="GB/s"),
    Choice("pool_tb", "Pool on the network", [0, 1, 10, 100], default=10, unit="TB"),
    Choice("network", "Network", [1, 10, 25, 100, 400], default=10, unit="Gb/s"),
    Choice("max_kl", "Damage allowed (KL)", [0.001, 0.003, 0.01, 0.05], default=0.003, unit="nats"),
)


def controls(first: str, workload: str = "chat") -> list:
    """All controls, with `first` in front, because the first one is always in sight."""
    made = (replace(control, default=workload) if control.name == "workload" else control for control in CONTROLS)
    return sorted(made, key=lambda control: control.name != first)


def setting_of(
    *, workload, trace, load, model, config, gpu, num_gpus, host_gb, bus, copy_kernel, ssd_tb, ssd, pool_tb, network,
    max_kl,
) -> Setting:
    """The controls' values as a `Setting`; a place without room is left out."""
    device = get_gpu(gpu)
    bus_link = host_link(device) if bus == OWN_BUS else get_link(bus)
    ssd_link = replace(get_link("nvme-7gb"), name="SSD", bytes_per_s=ssd * GB)
    pool_link = replace(get_link("net-10g"), name="network", bytes_per_s=gbps(network))
    places = (("host", host_gb * GB, bus_link), ("ssd", ssd_tb * TB, ssd_link), ("network", pool_tb * TB, pool_link))
    return Setting(
        model_or_file(model, config), device, demand_or_file(workload, load, trace), load, num_gpus,
        tuple(Store(*place) for place in places if place[1]), copy_kernel, max_kl,
    )


def plan_of(**knobs) -> Plan:
    """The plan for the controls' values, made once for explorers that stand on one page."""
    return _plan_of(tuple(knobs.items()), file_stamp(knobs["trace"]), file_stamp(knobs["config"]))


@lru_cache(maxsize=8)
def _plan_of(knobs: tuple, *stamps) -> Plan:
    return plan(setting_of(**dict(knobs)))
