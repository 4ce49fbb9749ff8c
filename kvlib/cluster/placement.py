"""How many GPUs for prefill, how many for decode, and cut how? DistServe's placement search in closed form.

An instance is cut by tensor parallelism (TP: every layer over several GPUs, faster steps) and pipeline
parallelism (PP: layers in stages, more steps at once but none faster). The search asks each kind of instance
for the highest rate it serves within its objective, and then fits instances into the cluster.

Simplifications, so that a search takes milliseconds: requests all have the mean length; a prefill queue is
M/D/1 and judged by its mean; a decode batch has the size that Little's law gives. DistServe simulates
instead.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kvlib.cost import decode_step_s, prefill_s, transfer_s
from kvlib.errors import ConfigError
from kvlib.specs import GpuSpec, LinkSpec, ModelSpec, get_gpu, get_link, get_model
from kvlib.specs.capacity import MEMORY_SHARE
from kvlib.specs.checks import real, share, whole


@dataclass(frozen=True)
class Workload:
    """Mean request and its objectives, in tokens and seconds."""

    num_input_tokens: int
    num_output_tokens: int
    ttft_slo_s: float
    tbt_slo_s: float

    def __post_init__(self):
        whole("num_input_tokens", self.num_input_tokens)
        whole("num_output_tokens", self.num_output_tokens, minimum=2)
        real("ttft_slo_s", self.ttft_slo_s, above=True)
        real("tbt_slo_s", self.tbt_slo_s, above=True)


@dataclass(frozen=True)
class Machine:
    """The cluster that is to be filled.

    Attributes
    ----------
    model : ModelSpec
    gpu : GpuSpec
    nodes, gpus_per_node : int
    inside, between : LinkSpec
        What KV crosses within a node and between nodes.
    tp_efficiency : float
        Share of a doubling of speed that is left when TP doubles. 0.85 is assumed; DistServe (section 3.1)
        calls twice this number K and finds it between 1 and 2.

    Examples
    --------
    >>> machine = example_machine()
    >>> machine.num_gpus, machine.kv_slots(tp=2, pp=1) > 2 * machine.kv_slots(tp=1, pp=1)
    (8, True)
    """

    model: ModelSpec
    gpu: GpuSpec
    nodes: int
    gpus_per_node: int
    inside: LinkSpec
    between: LinkSpec
    tp_efficiency: float = 0.85

    def __post_init__(self):
        whole("nodes", self.nodes)
        whole("gpus_per_node", self.gpus_per_node)
        share("tp_efficiency", self.tp_efficiency)

    @property
    def num_gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    def slowdown(self, tp: int) -> float:
        """How much longer a step takes than with perfect scaling."""
        return self.tp_efficiency ** -math.log2(tp)

    def kv_slots(self, tp: int, pp: int) -> int:
        """Token slots of one instance: memory of all its GPUs less one copy of the weights."""
        free_bytes = tp * pp * self.gpu.memory_bytes * MEMORY_SHARE - self.model.weight_bytes
        return max(0, math.floor(free_bytes / self.model.shape.kv_bytes_per_token()))

    def link(self, shares_node: bool) -> LinkSpec:
        return self.inside if shares_node else self.between


@dataclass(frozen=True)
class Shape:
    """How one instance is cut, and the rate it serves within its objective.

    Attributes
    ----------
    tp, pp : int
    requests_per_s : float
        0.0 if it cannot meet the objective at any rate, or cannot hold the weights.
    """

    tp: int
    pp: int
    requests_per_s: float

    @property
    def num_gpus(self) -> int:
        return self.tp * self.pp


@dataclass(frozen=True)
class Placement:
    """A filled cluster.

    Attributes
    ----------
    prefill, decode : Shape
    prefill_instances, decode_instances : int
    goodput_per_s : float
        The smaller of what the two pools serve.
    """

    prefill: Shape
    prefill_instances: int
    decode: Shape
    decode_instances: int
    goodput_per_s: float

    @property
    def num_gpus(self) -> int:
        return self.prefill_instances * self.prefill.num_gpus + self.decode_instances * self.decode.num_gpus

    @property
    def goodput_per_gpu(self) -> float:
        return self.goodput_per_s / self.num_gpus


def prefill_rate(
    machine: Machine, work: Workload, tp: int = 1, pp: int = 1, shares_node: bool = True
) -> float:
    """Requests/s of one prefill instance within the TTFT objective; the transfer counts into it.

    In an M/D/1 queue with rate R and service time D the mean time is D + R D^2 / (2 (1 - R D)). With PP a new
    prompt starts every D / pp. Solving for R gives the highest rate. Source: Zhong et al. 2024 (DistServe),
    section 3.1.

    Examples
    --------
    >>> machine, work = example_machine(), Workload(512, 64, ttft_slo_s=0.4, tbt_slo_s=0.04)
    >>> [round(prefill_rate(machine, work, tp, pp), 1) for tp, pp in ((1, 1), (2, 1), (1, 2))]
    [12.5, 22.0, 26.4]
    """
    if machine.kv_slots(tp, pp) < work.num_input_tokens:
        return 0.0
    alone_s = prefill_s(machine.model, machine.gpu, work.num_input_tokens, num_gpus=tp) * machine.slowdown(tp)
    every_s = alone_s / pp
    kv_s = transfer_s(machine.model.shape.kv_bytes(work.num_input_tokens), machine.link(shares_node))
    wait_s = work.ttft_slo_s - alone_s - kv_s
    if wait_s <= 0:
        return 0.0
    queue_rate = 2 * wait_s / (every_s * (every_s + 2 * wait_s))
    # The link must keep up as well.
    return min(queue_rate, 1 / kv_s)


def decode_rate(machine: Machine, work: Workload, tp: int = 1, pp: int = 1) -> float:
    """Requests/s of one decode instance within the objective on the time between tokens.

    The largest batch whose step meets it and whose KV fits; a request then leaves every
    ``step * outputs / batch`` (Little's law). With PP every stage has a batch of its own.

    Examples
    --------
    >>> machine, work = example_machine(), Workload(512, 64, ttft_slo_s=0.4, tbt_slo_s=0.04)
    >>> decode_rate(machine, work) > prefill_rate(machine, work)
    True
    """
    steps = work.num_output_tokens - 1  # the prefill gave the first token
    held_tokens = work.num_input_tokens + work.num_output_tokens
    low, high = 0, machine.kv_slots(tp, pp) // held_tokens // pp
    while low < high:
        middle = (low + high + 1) // 2
        fits = _step_s(machine, work, middle, tp) <= work.tbt_slo_s
        low, high = (middle, high) if fits else (low, middle - 1)
    return pp * low / (steps * _step_s(machine, work, low, tp)) if low else 0.0


def _step_s(machine: Machine, work: Workload, batch: int, tp: int) -> float:
    mean_context = work.num_input_tokens + work.num_output_tokens // 2
    return decode_step_s(machine.model, machine.gpu, [mean_context] * batch, num_gpus=tp) * machine.slowdown(
        tp,
    )


def placements(machine: Machine, work: Workload, shares_node: bool = True) -> Iterator[Placement]:
    """Every way to fill the cluster with one shape per pool that serves anything at all.

    TP stays within a node and in powers of two. With ``shares_node`` a prefill and a decode instance fit one
    node together, and KV stays inside it; without, pools have nodes of their own and KV crosses the network.

    Examples
    --------
    >>> work = Workload(512, 64, ttft_slo_s=0.4, tbt_slo_s=0.04)
    >>> all(choice.num_gpus <= 8 for choice in placements(example_machine(), work))
    True
    """
    sizes = [2**k for k in range(machine.gpus_per_node.bit_length()) if 2**k <= machine.gpus_per_node]
    cuts = [(tp, pp) for tp in sizes for pp in (1, 2, 4) if tp * pp <= machine.gpus_per_node]
    prefills = [Shape(tp, pp, prefill_rate(machine, work, tp, pp, shares_node)) for tp, pp in cuts]
    decodes = [Shape(tp, pp, decode_rate(machine, work, tp, pp)) for tp, pp in cuts]
    for prefill in prefills:
        for decode in decodes:
            if prefill.requests_per_s and decode.requests_per_s:
                yield from _fillings(machine, prefill, decode, shares_node)


def _fillings(machine: Machine, prefill: Shape, decode: Shape, shares_node: bool) -> Iterator[Placement]:
    if shares_node:
        # The same mix on every node, so that KV never leaves it.
        unit, copies = machine.gpus_per_node, machine.nodes
        mixes = [
            (n * copies, (unit - n * prefill.num_gpus) // decode.num_gpus * copies)
            for n in range(1, unit // prefill.num_gpus + 1)
        ]
    else:
        mixes = [
            (
                nodes * (machine.gpus_per_node // prefill.num_gpus),
                (machine.nodes - nodes) * (machine.gpus_per_node // decode.num_gpus),
            )
            for nodes in range(1, machine.nodes)
        ]
    for num_prefill, num_decode in mixes:
        if num_prefill and num_decode:
            goodput = min(num_prefill * prefill.requests_per_s, num_decode * decode.requests_per_s)
            yield Placement(prefill, num_prefill, decode, num_decode, goodput)


def best_placement(machine: Machine, work: Workload, shares_node: bool = True) -> Placement:
    """The placement with the highest goodput; of equals the one with fewer GPUs.

    Raises
    ------
    ConfigError
        If no placement meets both objectives.

    Examples
    --------
    >>> best = best_placement(example_machine(), Workload(512, 64, ttft_slo_s=0.4, tbt_slo_s=0.04))
    >>> best.num_gpus <= 8 and best.goodput_per_s > 0
    True
    """
    found = list(placements(machine, work, shares_node))
    if not found:
        raise ConfigError(
            f"workload: got TTFT {work.ttft_slo_s} s and TBT {work.tbt_slo_s} s, "
            "expected objectives that some placement meets"
        )
    return max(found, key=lambda p: (p.goodput_per_s, -p.num_gpus))


def example_machine() -> Machine:
    """One node of eight A100 with OPT-13B, the model of DistServe's first example; 25 Gb/s between nodes.

    Examples
    --------
    >>> example_machine().gpus_per_node
    8
    """
    return Machine(get_model("opt-13b"), get_gpu("a100-80gb"), 1, 8, get_link("nvlink3"), get_link("net-25g"))
