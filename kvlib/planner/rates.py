"""What the levers do to bytes and links: how the cache is written down, and how fast it arrives."""

from kvlib.planner.formats import FULL, FULL_BITS, kept_formats, sent_formats, smallest
from kvlib.planner.setting import Setting, Store
from kvlib.specs.kv_dtypes import KvDtype
from kvlib.tiers import GpuCopies, effective_bandwidth, host_link


def kv_format(setting: Setting, levers: frozenset[str]) -> KvDtype:
    """How the cache lies in memory."""
    return smallest(kept_formats(), setting.max_kl).dtype if "quantized" in levers else FULL


def wire_share(setting: Setting, levers: frozenset[str], store: Store) -> float:
    """Bytes of KV in and from a store, as a share of the same KV in bf16."""
    kept = kv_format(setting, levers)
    share = setting.model.shape.kv_bytes_per_token(kept) / setting.model.shape.kv_bytes_per_token()
    if "coded" not in levers or store.kind == "host":
        return share
    return min(share, smallest(sent_formats(), setting.max_kl).bits / FULL_BITS)


def host_rate(setting: Setting, levers: frozenset[str], block_size: int) -> float:
    """What the link between host and GPUs delivers for pages of this size (chapter 9), over all GPUs."""
    store, model = setting.store("host"), setting.model
    link = store.link if store else host_link(setting.gpu)
    if "copies" in levers:
        return setting.num_gpus * GpuCopies().bytes_per_s(link)
    tensors = 1 if model.shape.groups[0].latent else 2
    page = model.shape.kv_bytes_per_token(kv_format(setting, levers)) / setting.num_gpus
    rate = effective_bandwidth(block_size, page, model.layers, link, "layer_first", link.overhead_s, tensors)
    return setting.num_gpus * min(rate, link.effective_bytes_per_s)


def store_rate(setting: Setting, levers: frozenset[str], store: Store, block_size: int) -> float:
    """What reaches the GPUs from a store, in bytes/s; outside the host a page lies together."""
    through_host = host_rate(setting, levers, block_size)
    if store.kind == "host":
        return through_host
    page = wire_share(setting, levers, store) * setting.model.shape.kv_bytes_per_token()
    link = store.link
    rate = effective_bandwidth(block_size, page, setting.model.layers, link, "page_first", link.overhead_s)
    return min(rate, link.effective_bytes_per_s, through_host)
