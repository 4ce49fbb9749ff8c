"""What one can switch on, in the order in which the book meets it."""

from dataclasses import dataclass

from kvlib.planner.setting import Setting


@dataclass(frozen=True)
class Lever:
    """One thing to do.

    Attributes
    ----------
    key : str
    name : str
        A word or two, as a waterfall calls it.
    chapter : int
        Where it is explained.
    """

    key: str
    name: str
    chapter: int


LEVERS = (
    Lever("prefix", "prefix cache", 7),
    Lever("host", "CPU memory", 8),
    Lever("copies", "GPU copies", 9),
    Lever("overlap", "layer overlap", 8),
    Lever("ssd", "SSD", 11),
    Lever("network", "network pool", 11),
    Lever("coded", "bitstream", 14),
    Lever("quantized", "fewer bits", 13),
)
BLOCKS = Lever("blocks", "larger blocks", 9)


def available(setting: Setting) -> list[Lever]:
    """The levers that this machine has at all.

    Examples
    --------
    >>> from kvlib.planner.demand import returning
    >>> from kvlib.specs import get_gpu, get_model
    >>> bare = Setting(get_model("llama-3-8b"), get_gpu("h100-80gb"), returning(1000, 100, 100), 1.0)
    >>> [lever.key for lever in available(bare)]
    ['prefix', 'quantized']
    """
    stores = {store.kind for store in setting.stores}
    has = {
        "prefix": True, "host": "host" in stores, "copies": bool(stores) and setting.copy_kernel,
        "overlap": bool(stores), "ssd": "ssd" in stores, "network": "network" in stores,
        "coded": bool(stores - {"host"}), "quantized": True,
    }
    return [lever for lever in LEVERS if has[lever.key]]
