"""GPUs and links: peaks, sizes, efficiencies and fixed terms, each with where it comes from.

GB is 1e9 bytes and Gb/s is 1e9 bits per second throughout; peaks are *dense* 16-bit tensor-core rates (data
sheets often print the figure with structured sparsity, which is twice as large).
"""

from dataclasses import dataclass
from types import MappingProxyType

from kvlib.specs.checks import find, real, share


def gbps(gigabits_per_s: float) -> float:
    """Convert a network rate in gigabits per second to bytes per second.

    Examples
    --------
    >>> gbps(400) == 50e9
    True
    """
    return real("bytes_per_s", real("gigabits_per_s", gigabits_per_s, above=True) * 1e9 / 8, above=True)


@dataclass(frozen=True)
class GpuSpec:
    """One GPU.

    Attributes
    ----------
    name : str
    memory_bytes : float
    bytes_per_s : float
        Peak bandwidth of the GPU's own memory.
    peak_flops_per_s : float
        Dense bf16 / fp16 tensor-core peak.
    efficiency : float
        Share of that peak the linear layers and attention of a long prefill reach.
    fixed_s : float
        Time of one forward pass that depends on nothing (kernel launches, sampling).
    source : str
        Where the data-sheet numbers come from.
    efficiency_source : str
        Where `efficiency` and `fixed_s` come from.
    """

    name: str
    memory_bytes: float
    bytes_per_s: float
    peak_flops_per_s: float
    efficiency: float
    fixed_s: float
    source: str
    efficiency_source: str

    def __post_init__(self) -> None:
        for field in ("memory_bytes", "bytes_per_s", "peak_flops_per_s"):
            real(field, getattr(self, field), above=True)
        share("efficiency", self.efficiency)
        real("fixed_s", self.fixed_s)

    @property
    def flops_per_s(self) -> float:
        """The rate a forward pass reaches: efficiency times peak."""
        return self.efficiency * self.peak_flops_per_s


@dataclass(frozen=True)
class LinkSpec:
    """A way for KV to reach a GPU: a bus, a network, a disk.

    Attributes
    ----------
    name : str
    bytes_per_s : float
        Peak rate in one direction.
    overhead_s : float
        Time each separate copy costs before its first byte moves.
    efficiency : float
        Share of the peak that one large copy reaches.
    source : str

    Examples
    --------
    >>> LinkSpec("my network", bytes_per_s=gbps(25)).effective_bytes_per_s
    3125000000.0
    """

    name: str
    bytes_per_s: float
    overhead_s: float = 0.0
    efficiency: float = 1.0
    source: str = "given by the caller"

    def __post_init__(self) -> None:
        real("bytes_per_s", self.bytes_per_s, above=True)
        real("overhead_s", self.overhead_s)
        share("efficiency", self.efficiency)

    @property
    def effective_bytes_per_s(self) -> float:
        """The rate one large copy reaches: efficiency times peak."""
        return self.efficiency * self.bytes_per_s


_A100_FIT = (
    "60% of peak: lecture 7 ex. 8 (Mooncake's A800 nodes); 1.00 ms: our fit to lecture 7's 143.77 ms "
    "(oracle L7.recompute.143.77)"
)
_H100_FIT = (
    "727.5 TFLOP/s and no fixed term: our fit; one constant gives lecture 9's 188, 282 and 351 ms "
    "(oracle L9.recomp188)"
)
_A40_FIT = "71.1% of peak: our fit to lecture 9's 1.51 s for 9,600 tokens of Mistral-7B (oracle L9.a40.151)"
_ASSUMED = "assumed: the A100's values; no measurement behind it"
_HOPPER = "assumed: the H100's values, same architecture; no measurement behind it"
_H100_EFFICIENCY = 727.5 / 989

GPUS = MappingProxyType({
    gpu.name: gpu
    for gpu in (
        GpuSpec("a100-40gb", 40e9, 1.555e12, 312e12, 0.60, 1.00e-3,
                "NVIDIA A100 architecture white paper (SXM4: 40 GB, 1,555 GB/s, 312 TFLOP/s dense); 40 GB "
                "read as 40e9 bytes", _A100_FIT),
        GpuSpec("a100-80gb", 80e9, 2.039e12, 312e12, 0.60, 1.00e-3,
                "NVIDIA A100 data sheet (SXM: 80 GB, 2,039 GB/s, 312 TFLOP/s dense)", _A100_FIT),
        GpuSpec("a800-80gb", 80e9, 2.039e12, 312e12, 0.60, 1.00e-3,
                "the A100-80GB's figures; an A800 has NVLink cut to 400 GB/s (Reuters, Nov. 2022)",
                _A100_FIT),
        GpuSpec("a40", 48e9, 696e9, 149.7e12, 0.711, 0.0,
                "NVIDIA A40 data sheet (48 GB, 696 GB/s, 149.7 TFLOP/s dense)", _A40_FIT),
        GpuSpec("h100-80gb", 80e9, 3.35e12, 989e12, _H100_EFFICIENCY, 0.0,
                "NVIDIA H100 data sheet (SXM5: 80 GB, 3.35 TB/s, 1,979 TFLOP/s with sparsity)", _H100_FIT),
        GpuSpec("h200", 141e9, 4.8e12, 989e12, _H100_EFFICIENCY, 0.0,
                "NVIDIA H200 data sheet (SXM: 141 GB, 4.8 TB/s, 1,979 TFLOP/s with sparsity)", _HOPPER),
        GpuSpec("h20", 96e9, 4.0e12, 148e12, _H100_EFFICIENCY, 0.0,
                "no public data sheet; resellers print 96 GB, 4.0 TB/s, 148 TFLOP/s dense", _HOPPER),
        GpuSpec("gh200", 96e9, 4.0e12, 989e12, _H100_EFFICIENCY, 0.0,
                "NVIDIA GH200 data sheet (96 GB, 4 TB/s, 1,979 TFLOP/s with sparsity)", _HOPPER),
        GpuSpec("b200", 180e9, 8.0e12, 2250e12, 0.60, 1.00e-3,
                "NVIDIA DGX B200 data sheet, an eighth of 1,440 GB and 64 TB/s; its 72 PFLOP/s of FP8 with "
                "sparsity are four times the dense 16-bit rate", _ASSUMED),
        GpuSpec("l40s", 48e9, 864e9, 362e12, 0.60, 1.00e-3,
                "NVIDIA L40S data sheet (48 GB, 864 GB/s, 362 TFLOP/s dense, 733 with sparsity)", _ASSUMED),
        GpuSpec("l4", 24e9, 300e9, 121e12, 0.60, 1.00e-3,
                "NVIDIA L4 data sheet (24 GB, 300 GB/s, 242 TFLOP/s with sparsity)", _ASSUMED),
        GpuSpec("rtx-4090", 24e9, 1.008e12, 165.2e12, 0.60, 1.00e-3,
                "NVIDIA Ada architecture white paper (1,008 GB/s; dense, with fp32 accumulation)", _ASSUMED),
    )
})

_COPY = "; 3.6 us per copy: our fit to Strata's 22% at page 32 (oracle L9.pcie22)"
_DERATED = "; 80% delivered: lecture 9, s1.2 (oracle L9.bw.derate)"
_NVLINK = "NVIDIA data sheet, half of the two-way total; per-copy cost as on PCIe, assumed"
_RDMA = "line rate; 5 us per message, assumed (one RDMA round trip); 80% delivered: lecture 9, s1.2"
_SSD = "; 80 us per read, assumed (typical NVMe flash read)"

LINKS = MappingProxyType({
    link.name: link
    for link in (
        LinkSpec("pcie3-x16", 16e9, 3.6e-6, 0.8, "PCI Express 3.0: 8 GT/s on 16 lanes" + _COPY + _DERATED),
        LinkSpec("pcie4-x16", 32e9, 3.6e-6, 0.8, "PCI Express 4.0: 16 GT/s on 16 lanes" + _COPY + _DERATED),
        LinkSpec("pcie5-x16", 64e9, 3.6e-6, 0.8, "PCI Express 5.0: 32 GT/s on 16 lanes" + _COPY + _DERATED),
        LinkSpec("pcie-lecture7", 25e9, 10e-6, 1.0,
                 "lecture 7, s6.2: 25 GB/s and 10 us per copy, assumed there (oracle L7.swap.table)"),
        LinkSpec("nvlink3", 300e9, 3.6e-6, 0.8, _NVLINK + " (A100, 600 GB/s)"),
        LinkSpec("nvlink4", 450e9, 3.6e-6, 0.8, _NVLINK + " (H100, 900 GB/s)"),
        LinkSpec("nvlink5", 900e9, 3.6e-6, 0.8, _NVLINK + " (B200, 1,800 GB/s)"),
        LinkSpec("nvlink-c2c", 450e9, 3.6e-6, 0.8, _NVLINK + " (GH200, 900 GB/s between CPU and GPU)"),
        LinkSpec("gh200-host", 384e9, 3.6e-6, 0.8,
                 "384 GB/s from host memory: lecture 9, s4.1, for Strata's 5% (oracle L9.gh200)"
                 + _COPY + _DERATED),
        LinkSpec("net-3g", gbps(3), 5e-6, 0.8, "3 Gb/s " + _RDMA + " (0.375 GB/s peak, 0.30 delivered)"),
        LinkSpec("net-10g", gbps(10), 5e-6, 0.8, "10 Gb/s " + _RDMA),
        LinkSpec("net-25g", gbps(25), 5e-6, 0.8, "25 Gb/s " + _RDMA),
        LinkSpec("net-100g", gbps(100), 5e-6, 0.8, "100 Gb/s " + _RDMA),
        LinkSpec("net-200g", gbps(200), 5e-6, 0.8, "200 Gb/s " + _RDMA),
        LinkSpec("net-400g", gbps(400), 5e-6, 0.8, "400 Gb/s " + _RDMA),
        LinkSpec("net-800g", gbps(800), 5e-6, 0.8, "800 Gb/s (Mooncake's nodes, its section 8) " + _RDMA),
        LinkSpec("nvme-7gb", 7e9, 80e-6, 0.8, "lecture 9, s1.2: SSD of 7 GB/s" + _DERATED + _SSD),
        LinkSpec("nvme-6gb", 6e9, 80e-6, 1.0, "lecture 7, ex. 8: 6 GB/s delivered" + _SSD),
        LinkSpec("nvme-4x6gb", 24e9, 80e-6, 1.0,
                 "four SSDs of 6 GB/s: our reading of lecture 7's SSD tier (oracle L7.ssd7x)" + _SSD),
    )
})


def get_gpu(name: str) -> GpuSpec:
    """The GPU of that name; `GPUS` lists them.

    Raises
    ------
    ConfigError
        Naming the known GPUs.

    Examples
    --------
    >>> get_gpu("a100-40gb").flops_per_s / 1e12
    187.2
    """
    return find("gpu", name, GPUS)


def get_link(name: str) -> LinkSpec:
    """The link of that name; `LINKS` lists them.

    Raises
    ------
    ConfigError
        Naming the known links.

    Examples
    --------
    >>> get_link("pcie5-x16").effective_bytes_per_s / 1e9
    51.2
    """
    return find("link", name, LINKS)
