"""What one machine needs to load cached tokens and to prefill new ones, in whole nanoseconds."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

from kvlib.cost import decode_step_s, prefill_s
from kvlib.specs import get_gpu, get_link, get_model
from kvlib.specs.checks import one_of, whole
from kvlib.tiers.gpu_copies import GpuCopies
from kvlib.tiers.transfer import LAYOUTS, effective_bandwidth

NS_PER_S = 10**9
IO_KINDS = ("cpu", "gpu")


@dataclass(frozen=True)
class Machine:
    """A model on a GPU whose cached KV lies in host memory behind a link.

    Attributes
    ----------
    model, gpu, link : str
        Names of ``kvlib.specs``.
    io : str
        ``"cpu"``: one copy after the other, issued by the CPU; ``"gpu"``: GPU-assisted copies.
    page_tokens : int
    layout : str
        How the host keeps its pages. CPU copies then need ``tensors * layers`` copies a page, or one.
    kernel : GpuCopies
        Used when `io` is ``"gpu"``.
    ssd : str
        The link below the host.

    Examples
    --------
    Loading a token of Qwen2.5-14B (196,608 bytes) on PCIe 5.0, in microseconds.

    >>> [round(Machine(io=io).load_ns(1) / 1000, 1) for io in ("cpu", "gpu")]
    [13.9, 3.9]
    """

    model: str = "qwen2.5-14b"
    gpu: str = "h200"
    link: str = "pcie5-x16"
    io: str = "gpu"
    page_tokens: int = 32
    layout: str = "layer_first"
    kernel: GpuCopies = GpuCopies()
    ssd: str = "nvme-7gb"

    def __post_init__(self) -> None:
        get_model(self.model), get_gpu(self.gpu), get_link(self.link), get_link(self.ssd)
        one_of("io", self.io, IO_KINDS)
        one_of("layout", self.layout, LAYOUTS)
        whole("page_tokens", self.page_tokens)

    @cached_property
    def host_bytes_per_s(self) -> float:
        """What the link delivers between host and GPU."""
        if self.io == "gpu":
            return self.kernel.bytes_per_s(self.link)
        model = get_model(self.model)
        tensors = 1 if model.shape.groups[0].latent else 2
        kv_bytes = model.shape.kv_bytes_per_token()
        overhead_s = get_link(self.link).overhead_s
        return effective_bandwidth(
            self.page_tokens, kv_bytes, model.layers, self.link, self.layout, overhead_s, tensors
        )

    @cached_property
    def load_ns_per_token(self) -> int:
        return round(NS_PER_S * get_model(self.model).shape.kv_bytes_per_token() / self.host_bytes_per_s)

    @cached_property
    def ssd_ns_per_token(self) -> int:
        kv_bytes = get_model(self.model).shape.kv_bytes_per_token()
        return round(NS_PER_S * kv_bytes / get_link(self.ssd).effective_bytes_per_s)

    def load_ns(self, host_tokens: int, ssd_tokens: int = 0) -> int:
        """Bringing tokens to the GPU; what lies on the SSD crosses both links at the slower one's rate."""
        whole("host_tokens", host_tokens, minimum=0)
        whole("ssd_tokens", ssd_tokens, minimum=0)
        from_ssd_ns = max(self.load_ns_per_token, self.ssd_ns_per_token)
        return host_tokens * self.load_ns_per_token + ssd_tokens * from_ssd_ns

    def compute_ns(self, new_tokens: int, cached_tokens: int = 0) -> int:
        """Prefilling `new_tokens` behind `cached_tokens`.

        Examples
        --------
        >>> Machine(gpu="h100-80gb").compute_ns(8000) // 10**6          # ms; oracle L9.recomp188 says 351
        350
        """
        return _prefill_ns(self.model, self.gpu, new_tokens, cached_tokens)

    def slowed_ns(self, load_ns: int, compute_ns: int) -> int:
        """`compute_ns` with the copy kernel beside it for as long as loading lasts."""
        if self.io == "cpu":
            return compute_ns
        return compute_ns + round(min(load_ns, compute_ns) * (self.kernel.prefill_factor - 1))

    def stall_share(self, new_tokens: int, cached_tokens: int, overlap: bool = True) -> float:
        """Share of one prefill that the GPU spends waiting for the link.

        Examples
        --------
        >>> [round(Machine(io=io).stall_share(256, 25_600), 2) for io in ("cpu", "gpu")]
        [0.95, 0.8]
        """
        load_ns = self.load_ns(cached_tokens)
        compute_ns = self.slowed_ns(load_ns, self.compute_ns(new_tokens, cached_tokens))
        waits_ns = max(0, load_ns - compute_ns) if overlap else load_ns
        return waits_ns / (compute_ns + waits_ns)

    def hidden_tokens(self, new_tokens: int, most: int = 2**20) -> int:
        """How many cached tokens load without a wait while `new_tokens` compute; `most` at most.

        Examples
        --------
        >>> Machine().hidden_tokens(256)
        2909
        """
        low, high = 0, whole("most", most)
        while low < high:
            middle = (low + high + 1) // 2
            if self.stall_share(new_tokens, middle) == 0:
                low = middle
            else:
                high = middle - 1
        return low

    def decode_step_ns(self, sequences: int, context_tokens: int) -> int:
        """A decode step that runs while KV is loaded."""
        factor = self.kernel.decode_factor if self.io == "gpu" else 1.0
        contexts = [context_tokens] * whole("sequences", sequences)
        step_s = decode_step_s(get_model(self.model), get_gpu(self.gpu), contexts)
        return round(NS_PER_S * step_s * factor)


@lru_cache(maxsize=8192)        # a run asks for the same prefills again and again
def _prefill_ns(model: str, gpu: str, new_tokens: int, cached_tokens: int) -> int:
    return round(NS_PER_S * prefill_s(get_model(model), get_gpu(gpu), new_tokens, cached_tokens))
