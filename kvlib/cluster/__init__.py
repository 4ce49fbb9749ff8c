"""Many instances: who prefills what, what travels, and who decodes."""

from kvlib.cluster.admission import POLICIES as POLICIES_OF_ADMISSION
from kvlib.cluster.admission import Controller, Expected, slots_taken
from kvlib.cluster.conductor import POLICIES, Candidate, Conductor, wants_pull
from kvlib.cluster.decode_pool import DecodeCounts, DecodeInstance, DecodePool
from kvlib.cluster.decode_queue import decode_ends_ps
from kvlib.cluster.disaggregation import ClusterRun, Hardware, highest_rate, serve_coupled, serve_disaggregated
from kvlib.cluster.interference import MODES, Interference, largest_chunk, long_prompt
from kvlib.cluster.links import SharedLink
from kvlib.cluster.occupancy import Occupancy, chunked_beside_decodes, layer_wise, whole_prefill
from kvlib.cluster.overload import Pools, run_overload
from kvlib.cluster.overload_results import LoadSample, OverloadRun
from kvlib.cluster.overload_workload import Demand, draw_demands
from kvlib.cluster.parallel import sequence_parallel, tensor_parallel
from kvlib.cluster.pipeline import Pipeline, chunked_pipeline, chunks_for_share, run_pipeline
from kvlib.cluster.placement import (
    Machine, Placement, Shape, Workload, best_placement, decode_rate, example_machine, placements, prefill_rate,
)
from kvlib.cluster.pool import BlockPool
from kvlib.cluster.prefill_results import PrefillReplay
from kvlib.cluster.prefill_setup import PrefillSetup
from kvlib.cluster.prefill_times import PrefillTimes
from kvlib.cluster.replay import cluster_after, replay_pair, replay_prefill
from kvlib.cluster.request_steps import RequestSteps, request_steps
from kvlib.cluster.sweep import Spread, SweepPoint, sweep_prefill
from kvlib.cluster.tiered_pool import TieredHits, TieredPool, mean_fetch_s, replay_tiers

__all__ = [
    "BlockPool", "Candidate", "ClusterRun", "Conductor", "Controller", "DecodeCounts", "DecodeInstance",
    "DecodePool", "Demand", "Expected", "Hardware", "Interference", "LoadSample", "MODES", "Machine",
    "Occupancy", "OverloadRun", "POLICIES", "POLICIES_OF_ADMISSION", "Pipeline", "Placement", "Pools",
    "PrefillReplay", "PrefillSetup", "PrefillTimes", "RequestSteps", "Shape", "SharedLink", "Spread",
    "SweepPoint", "TieredHits", "TieredPool", "Workload", "best_placement", "chunked_beside_decodes",
    "chunked_pipeline", "chunks_for_share", "cluster_after", "decode_ends_ps", "decode_rate", "draw_demands",
    "example_machine", "highest_rate", "largest_chunk", "layer_wise", "long_prompt", "mean_fetch_s",
    "placements", "prefill_rate", "replay_pair", "replay_prefill", "replay_tiers", "request_steps",
    "run_overload", "run_pipeline", "sequence_parallel", "serve_coupled", "serve_disaggregated",
    "slots_taken", "sweep_prefill", "tensor_parallel", "wants_pull", "whole_prefill",
]
