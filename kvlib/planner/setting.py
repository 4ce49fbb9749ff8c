"""What the reader has: a model, GPUs, places to keep KV, and a demand."""

from dataclasses import dataclass

from kvlib.errors import ConfigError
from kvlib.planner.demand import Demand
from kvlib.specs import GpuSpec, LinkSpec, ModelSpec
from kvlib.specs.checks import one_of, real, whole
from kvlib.tiers import CPU_MEMORY

STORE_NAMES = {"host": CPU_MEMORY, "ssd": "SSD", "network": "network pool"}


def _check_kind(field: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise ConfigError(f"{field}: got {value!r}, expected a {kind.__name__}")


@dataclass(frozen=True)
class Store:
    """A place outside the GPU.

    Attributes
    ----------
    kind : str
        ``"host"``, ``"ssd"`` or ``"network"``.
    num_bytes : float
        Room for KV.
    link : LinkSpec
        What brings it to the machine; for the host, to one GPU.

    Raises
    ------
    ConfigError
        For another kind, or a size that is not positive: leave a store out instead of giving it no room.
    """

    kind: str
    num_bytes: float
    link: LinkSpec

    def __post_init__(self) -> None:
        one_of("kind", self.kind, STORE_NAMES)
        _check_kind("link", self.link, LinkSpec)
        real("num_bytes", self.num_bytes, above=True)

    @property
    def name(self) -> str:
        return STORE_NAMES[self.kind]


@dataclass(frozen=True)
class Setting:
    """Everything a plan depends on.

    Attributes
    ----------
    model : ModelSpec
    gpu : GpuSpec
    demand : Demand
    load_per_s : float
        Requests per second that this instance gets.
    num_gpus : int
        GPUs that share the model by tensor parallelism.
    stores : tuple of Store
        At most one of each kind.
    copy_kernel : bool
        The engine can move pages with a kernel of its own; else the CPU issues one copy after the other.
    max_kl : float
        The most damage that fewer bits may do, as KL divergence of the next-token distribution in nats.

    Raises
    ------
    ConfigError
        Naming the field.

    Examples
    --------
    >>> from kvlib.planner import returning
    >>> from kvlib.specs import get_gpu, get_link, get_model
    >>> host = Store("host", 512e9, get_link("pcie5-x16"))
    >>> asks = returning(prompt_tokens=1000, new_tokens=100, output_tokens=100)
    >>> setting = Setting(get_model("llama-3-8b"), get_gpu("h100-80gb"), asks, load_per_s=1.0, stores=(host,))
    >>> setting.store("host") is host, setting.store("network")
    (True, None)
    """

    model: ModelSpec
    gpu: GpuSpec
    demand: Demand
    load_per_s: float
    num_gpus: int = 1
    stores: tuple[Store, ...] = ()
    copy_kernel: bool = True
    max_kl: float = 0.003

    def __post_init__(self) -> None:
        for field, kind in (("model", ModelSpec), ("gpu", GpuSpec), ("demand", Demand), ("copy_kernel", bool)):
            _check_kind(field, getattr(self, field), kind)
        for place, store in enumerate(self.stores):
            _check_kind(f"stores[{place}]", store, Store)
        real("load_per_s", self.load_per_s, above=True)
        real("max_kl", self.max_kl)
        whole("num_gpus", self.num_gpus)
        kinds = [store.kind for store in self.stores]
        if len(set(kinds)) < len(kinds):
            raise ConfigError(f"stores: got {', '.join(kinds)}, expected at most one of each kind")

    def store(self, kind: str) -> Store | None:
        return next((store for store in self.stores if store.kind == kind), None)
