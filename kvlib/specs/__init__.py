"""Facts with sources: how big a model's KV cache is, and what GPUs and links can do."""

from kvlib.specs.capacity import kv_budget_bytes, kv_slots, requests_held
from kvlib.specs.engine_log import EngineLog, parse_engine_log
from kvlib.specs.hardware import GPUS, LINKS, GpuSpec, LinkSpec, gbps, get_gpu, get_link
from kvlib.specs.kv_dtypes import KV_DTYPES, KvDtype
from kvlib.specs.models import MODELS, ModelSpec, get_model
from kvlib.specs.shape import KvShape, LayerGroup, StateTensor

__all__ = [
    "GPUS", "KV_DTYPES", "LINKS", "MODELS",
    "EngineLog", "GpuSpec", "KvDtype", "KvShape", "LayerGroup", "LinkSpec", "ModelSpec", "StateTensor",
    "gbps", "get_gpu", "get_link", "get_model", "kv_budget_bytes", "kv_slots", "parse_engine_log",
    "requests_held",
]
