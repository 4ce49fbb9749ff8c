"""Where the KV of a prompt may lie, and the link that brings it back."""

from kvlib.errors import ConfigError
from kvlib.specs.checks import whole
from kvlib.specs.hardware import GpuSpec, LinkSpec, get_link

# The host bus of each GPU, from the same NVIDIA data sheets as its peaks ("PCIe Gen4", "PCIe Gen5").
_HOST_LINKS = {
    **dict.fromkeys(("a100-40gb", "a100-80gb", "a800-80gb", "a40", "l40s", "l4", "rtx-4090"), "pcie4-x16"),
    **dict.fromkeys(("h100-80gb", "h200", "h20", "b200"), "pcie5-x16"),
    "gh200": "gh200-host",
}

CPU_MEMORY = "CPU memory"
# Places outside the machine, and its disk: the same whatever the GPU.
_SHARED_LINKS = {
    "RDMA 400 Gb/s": "net-400g",
    "SSD 7 GB/s": "nvme-7gb",
    "network 10 Gb/s": "net-10g",
    "network 3 Gb/s": "net-3g",
}
PLACES = (CPU_MEMORY, *_SHARED_LINKS)


def host_link(gpu: GpuSpec) -> LinkSpec:
    """The bus between `gpu` and the memory of its own host.

    Raises
    ------
    ConfigError
        For a GPU whose bus is not known: pass a `LinkSpec` of your own to the cost functions instead.

    Examples
    --------
    >>> from kvlib.specs import get_gpu
    >>> host_link(get_gpu("h100-80gb")).name, host_link(get_gpu("a100-40gb")).name
    ('pcie5-x16', 'pcie4-x16')
    """
    if gpu.name not in _HOST_LINKS:
        raise ConfigError(f"gpu: the host link of {gpu.name!r} is not known, expected one of {', '.join(_HOST_LINKS)}")
    return get_link(_HOST_LINKS[gpu.name])


def link_to(place: str, gpu: GpuSpec) -> LinkSpec:
    """The link from one of `PLACES` to one GPU.

    Raises
    ------
    ConfigError
        For another place, and as `host_link`.

    Examples
    --------
    >>> from kvlib.specs import get_gpu
    >>> link_to("network 3 Gb/s", get_gpu("h100-80gb")).effective_bytes_per_s / 1e9
    0.3
    """
    if place == CPU_MEMORY:
        return host_link(gpu)
    if place not in _SHARED_LINKS:
        raise ConfigError(f"place: got {place!r}, expected one of {', '.join(PLACES)}")
    return get_link(_SHARED_LINKS[place])


def gpu_memory(gpu: GpuSpec, num_gpus: int = 1) -> LinkSpec:
    """GPU memory as a link: one read of the cache at peak rate, although a hit there moves nothing.

    Examples
    --------
    >>> from kvlib.specs import get_gpu
    >>> gpu_memory(get_gpu("h100-80gb")).bytes_per_s / 1e12
    3.35
    """
    return LinkSpec("GPU memory", whole("num_gpus", num_gpus) * gpu.bytes_per_s, source=gpu.source)


def machine_links(gpu: GpuSpec, num_gpus: int = 8) -> dict[str, LinkSpec]:
    """Links of one machine with `num_gpus` GPUs, summed over the machine, fastest first.

    Source: lecture 7, s9.3 and ex. 8, for the network (100 GB/s) and the SSD (6 GB/s). The lecture's table of
    tiers is lost; four such SSDs reproduce its "about 7 times" (oracle L7.ssd7x), and the CPU row is ours:
    each GPU's own host link, all in use at once.

    Examples
    --------
    >>> from kvlib.specs import get_gpu
    >>> for place, link in machine_links(get_gpu("a800-80gb")).items():
    ...     print(place, round(link.effective_bytes_per_s / 1e9, 1))
    GPU memory 16312.0
    CPU memory 204.8
    RDMA 100 GB/s 100.0
    four SSDs 24.0
    one SSD 6.0
    """
    host = host_link(gpu)
    return {
        "GPU memory": gpu_memory(gpu, num_gpus),
        CPU_MEMORY: LinkSpec(host.name, num_gpus * host.bytes_per_s, host.overhead_s, host.efficiency, host.source),
        "RDMA 100 GB/s": LinkSpec("rdma-lecture7", 100e9, source="lecture 7, ex. 8c: RDMA at 100 GB/s"),
        "four SSDs": get_link("nvme-4x6gb"),
        "one SSD": get_link("nvme-6gb"),
    }
