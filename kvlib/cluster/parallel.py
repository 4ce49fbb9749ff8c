"""The pipeline's rivals: one prompt over several nodes by tensor or by sequence parallelism.

Tensor parallelism makes every node work on every layer and adds up results twice per layer. Ring attention,
the sequence-parallel rival, gives each node a share of the tokens and passes KV round a ring in every layer.
"""

from dataclasses import dataclass

from kvlib.cluster.pipeline import activation_bytes
from kvlib.cost import attention_flops, linear_flops, prefill_s, transfer_s
from kvlib.specs.checks import whole
from kvlib.specs.hardware import GpuSpec, LinkSpec
from kvlib.specs.models import ModelSpec


@dataclass(frozen=True)
class Parallel:
    """One prefill spread over nodes: its time, and the bytes each node sends for it."""

    prefill_s: float
    sent_bytes_per_node: float


def tensor_parallel(
    model: ModelSpec, gpu: GpuSpec, link: LinkSpec, num_tokens: int, *, nodes: int, gpus_per_node: int = 8
) -> Parallel:
    """Prefill with every layer split over all nodes: two all-reduces per layer, each waited for.

    A ring all-reduce over X nodes takes 2 (X - 1) steps, each of one X-th of the activations.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_link, get_model
    >>> sizes = dict(model=get_model("llama-2-70b"), gpu=get_gpu("a800-80gb"), num_tokens=131_072, nodes=4)
    >>> fast, slow = (tensor_parallel(link=get_link(n), **sizes).prefill_s for n in ("net-800g", "net-100g"))
    >>> slow > 2 * fast
    True
    """
    compute_s = prefill_s(model, gpu, num_tokens, num_gpus=whole("nodes", nodes) * gpus_per_node)
    step_bytes = activation_bytes(model, num_tokens) / nodes
    steps = 2 * model.layers * 2 * (nodes - 1)
    return Parallel(compute_s + steps * transfer_s(step_bytes, link), steps * step_bytes)


def sequence_parallel(
    model: ModelSpec, gpu: GpuSpec, link: LinkSpec, num_tokens: int, *, nodes: int, gpus_per_node: int = 8
) -> Parallel:
    """Prefill with the tokens split over the nodes, and KV passed round a ring in every layer.

    Passing on runs beside attention, so the slower of the two counts. Work is assumed to be balanced, as
    striped or zigzag orders of tokens achieve.

    Examples
    --------
    >>> from kvlib.specs import get_gpu, get_link, get_model
    >>> sizes = dict(model=get_model("llama-2-70b"), gpu=get_gpu("a800-80gb"), num_tokens=131_072, nodes=4)
    >>> run = sequence_parallel(link=get_link("net-800g"), **sizes)
    >>> run.sent_bytes_per_node < tensor_parallel(link=get_link("net-800g"), **sizes).sent_bytes_per_node
    True
    """
    flops_per_s = whole("nodes", nodes) * whole("gpus_per_node", gpus_per_node) * gpu.flops_per_s
    attention_s = attention_flops(model, num_tokens) / flops_per_s
    linear_s = linear_flops(model, num_tokens) / flops_per_s
    # Grouped heads help here: what travels is KV, not activations.
    step_bytes = model.shape.kv_bytes(num_tokens) / model.layers / nodes
    steps = model.layers * (nodes - 1)
    passing_s = steps * transfer_s(step_bytes, link)
    return Parallel(linear_s + max(attention_s, passing_s) + gpu.fixed_s, steps * step_bytes)
