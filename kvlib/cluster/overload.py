"""Two pools under more load than they can serve: who is refused, when, and what that wasted.

Prefill instances serve one first-come-first-served queue. The decode pool holds ``decode_slots`` requests: as
many as its limit on the time between tokens allows. A request can be refused twice: on arrival, which costs
nothing, or after its prefill, if then no slot is free, which wastes the prefill.
"""

import heapq
import random
from collections.abc import Iterable
from dataclasses import dataclass

from kvlib.cluster.admission import Controller, Expected
from kvlib.cluster.overload_results import LoadSample, OverloadRun
from kvlib.cluster.overload_workload import Demand
from kvlib.errors import ConfigError
from kvlib.specs.checks import real, whole
from kvlib.workloads.arrivals import US_PER_S

SAMPLE_EVERY_US = US_PER_S


@dataclass(frozen=True)
class Pools:
    """The cluster.

    Attributes
    ----------
    prefill_instances, decode_slots : int
    ttft_slo_s : float
        A request whose first token would come later is refused on arrival, under every rule.
    """

    prefill_instances: int = 6
    decode_slots: int = 12
    ttft_slo_s: float = 12.0

    def __post_init__(self):
        whole("prefill_instances", self.prefill_instances)
        whole("decode_slots", self.decode_slots)
        real("ttft_slo_s", self.ttft_slo_s, above=True)


def run_overload(
    demands: Iterable[Demand], pools: Pools = Pools(), *, seed: int = 0, **controller
) -> OverloadRun:
    """Serve ``demands`` under one admission rule, and look at the cluster up to the last arrival.

    The run ends there because a queue that is served after the last arrival would count as throughput, and
    rules that queue more would look better than they are.

    Parameters
    ----------
    demands : iterable of Demand
        In order of arrival.
    pools : Pools
    seed : int
        For prediction errors and for damped admission. Each request draws its numbers whatever the rule is,
        so rules are compared on the same luck.
    **controller
        Fields of :class:`Controller`: ``policy="early", gain=1.0`` and so on.

    Raises
    ------
    ConfigError
        For a setting out of range, or an arrival before the one above it.

    Source: Qin et al. 2025 (Mooncake), section 7; lecture 7, s9.6; lecture 9, s2.5.

    Examples
    --------
    >>> from kvlib.cluster.overload_workload import draw_demands
    >>> demands = draw_demands(400, rate_per_s=1.2)
    >>> baseline, early = (run_overload(demands, policy=policy) for policy in ("baseline", "early"))
    >>> early.wasted_prefill_s < baseline.wasted_prefill_s, early.completed <= baseline.completed
    (True, True)
    """
    return _Cluster(pools, Controller(**_known(controller)), seed).run(demands)


def _known(controller: dict) -> dict:
    for name in controller:
        if name not in Controller.__dataclass_fields__:
            known = ", ".join(Controller.__dataclass_fields__)
            raise ConfigError(f"{name}={controller[name]!r}: no such setting, expected one of {known}")
    return controller


class _Cluster:
    """The state of one run. Prefill is first come, first served, so its end is known on admission."""

    def __init__(self, pools: Pools, controller: Controller, seed: int):
        self.pools = pools
        self.controller = controller
        self._rng = random.Random(whole("seed", seed, minimum=0))
        self._slo_us = round(pools.ttft_slo_s * US_PER_S)
        self._free_us = [0] * pools.prefill_instances  # a heap: when each instance has nothing left to do
        self._prefilling: list[tuple] = []  # a heap of (prefill end, number, demand, what the rule believes)
        self._decoding: list[tuple] = []  # a heap of (decode end, number, what the rule believes)
        self._samples: list[LoadSample] = []
        self._next_sample_us = 0
        self._counts = dict.fromkeys(
            ("submitted", "rejected_for_ttft", "rejected_for_decode", "rejected_after_prefill", "completed"),
            0,
        )
        self._prefill_us = self._wasted_us = self._occupied_us = 0
        self._now_us = 0

    def run(self, demands: Iterable[Demand]) -> OverloadRun:
        for demand in demands:
            if demand.arrival_us < self._now_us:
                raise ConfigError(
                    f"arrival_us: got {demand.arrival_us!r} after {self._now_us}, expected order"
                )
            self._run_until(demand.arrival_us)
            self._arrive(demand)
        return OverloadRun(
            **self._counts,
            prefilling=len(self._prefilling),
            decoding=len(self._decoding),
            prefill_us=self._prefill_us,
            wasted_prefill_us=self._wasted_us,
            occupied_us=self._occupied_us,
            duration_us=self._now_us,
            samples=tuple(self._samples),
        )

    def _arrive(self, demand: Demand) -> None:
        number = self._counts["submitted"]
        self._counts["submitted"] += 1
        luck, chance = self._rng.random(), self._rng.random()
        end_us = max(self._now_us, self._free_us[0]) + demand.prefill_us
        if end_us - self._now_us > self._slo_us:
            self._counts["rejected_for_ttft"] += 1
            return
        if demand.decode_us and chance >= self._admit_probability(end_us):
            self._counts["rejected_for_decode"] += 1
            return
        heapq.heapreplace(self._free_us, end_us)
        believed_us = self.controller.believed_decode_us(demand.decode_us, luck)
        heapq.heappush(self._prefilling, (end_us, number, demand, Expected(end_us, believed_us)))

    def _admit_probability(self, prefill_end_us: int) -> float:
        decoding, prefilling = ([one[-1] for one in heap] for heap in (self._decoding, self._prefilling))
        load = 1 + self.controller.expected_load(prefill_end_us, decoding, prefilling)
        return self.controller.admit_probability(load, self.pools.decode_slots)

    def _next_event_us(self) -> int:
        return min(heap[0][0] for heap in (self._prefilling, self._decoding) if heap)

    def _run_until(self, time_us: int) -> None:
        """Let prefills and decodes end up to ``time_us``; at the same instant decodes leave first."""
        while (self._prefilling or self._decoding) and self._next_event_us() <= time_us:
            self._pass(self._next_event_us())
            if self._decoding and self._decoding[0][0] == self._now_us:
                heapq.heappop(self._decoding)
                self._counts["completed"] += 1
            else:
                self._end_prefill()
        self._pass(time_us)

    def _pass(self, time_us: int) -> None:
        while self._next_sample_us < time_us:
            self._samples.append(
                LoadSample(
                    self._next_sample_us / US_PER_S, len(self._prefilling) / self.pools.prefill_instances,
                    len(self._decoding) / self.pools.decode_slots,
                )
            )
            self._next_sample_us += SAMPLE_EVERY_US
        self._occupied_us += (time_us - self._now_us) * len(self._decoding)
        self._now_us = time_us

    def _end_prefill(self) -> None:
        _, number, demand, believed = heapq.heappop(self._prefilling)
        self._prefill_us += demand.prefill_us
        if not demand.decode_us:
            self._counts["completed"] += 1
            return
        if len(self._decoding) == self.pools.decode_slots:
            self._counts["rejected_after_prefill"] += 1
            self._wasted_us += demand.prefill_us
            return
        heapq.heappush(self._decoding, (self._now_us + demand.decode_us, number, believed))
