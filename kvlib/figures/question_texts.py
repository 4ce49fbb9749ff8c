"""What stands beside the numbers of the question index: the question, the engine options and the line to check in a log."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Texts:
    """Words in Markdown: a question, what turns it in vLLM and in SGLang, and where the engine shows the answer."""

    question: str
    vllm: str
    sglang: str
    log: str


TEXTS = {
    "fit": Texts(
        "How many requests fit?",
        "`--gpu-memory-utilization` (0.92 unless set) decides the room, `--max-model-len` the longest request, `--max-num-seqs` a cap.",
        "`--mem-fraction-static`, `--context-length`, `--max-running-requests`.",
        "vLLM prints `GPU KV cache size: … tokens` and `Maximum concurrency for … tokens per request: …x` when it starts, SGLang "
        "`KV Cache is allocated. #tokens: …`. Paste vLLM's lines into the log explorer of chapter 1.",
    ),
    "tensor_parallel": Texts(
        "Does tensor parallelism shrink the cache?",
        "`--tensor-parallel-size`.",
        "`--tp-size`.",
        "Compare `GPU KV cache size` before and after: past the model's number of KV heads the weights still shrink, the KV per "
        "token on each GPU does not.",
    ),
    "block_size": Texts(
        "Which block size?",
        "`--block-size` (16 unless set, or what the attention backend asks for).",
        "`--page-size`.",
        "No log line shows the waste. It is below one block per running request: `Running: … reqs` times half a block, against "
        "`GPU KV cache size`.",
    ),
    "p99": Texts(
        "Why did P99 jump?",
        "Raise `--gpu-memory-utilization` or `--tensor-parallel-size`, or lower `--max-num-seqs`.",
        "Raise `--mem-fraction-static`, or raise `--schedule-conservativeness`.",
        "vLLM: `GPU KV cache usage` near 100 % together with `Preemptions: …` in the periodic line, and the counter "
        "`vllm:num_preemptions_total`. SGLang: `KV cache pool is full. Retract requests.`",
    ),
    "chunk": Texts(
        "How large may a prefill chunk be?",
        "`--max-num-batched-tokens` bounds the tokens of one step, so also the chunk.",
        "`--chunked-prefill-size`.",
        "The histogram `vllm:inter_token_latency_seconds`, or SGLang's `sglang:inter_token_latency_seconds`: look at P99 while a "
        "long prompt is read.",
    ),
    "eviction": Texts(
        "LRU or LFU?",
        "None: free blocks are reused least recently used first.",
        "`--radix-eviction-policy`: `lru`, `lfu` and others.",
        "vLLM: `Prefix cache hit rate: … %` in the periodic line. SGLang: `#cached-token` against `#new-token` in each "
        "`Prefill batch` line.",
    ),
    "cache_size": Texts(
        "Is a larger prefix cache worth it?",
        "`--enable-prefix-caching` is on unless turned off; beyond the GPU, `--kv-offloading-size` in GiB.",
        "The radix cache is on unless `--disable-radix-cache`; beyond the GPU, `--enable-hierarchical-cache`.",
        "`Prefix cache hit rate` for the GPU and `External prefix cache hit rate` for what lies beyond it (vLLM); "
        "`sglang:cached_tokens_total` by its label `cache_source` (SGLang).",
    ),
    "offload": Texts(
        "Is host offload worth it?",
        "`--kv-offloading-size` with `--kv-offloading-backend native` or `lmcache`.",
        "`--enable-hierarchical-cache` with `--hicache-ratio` or `--hicache-size`.",
        "vLLM: `External prefix cache hit rate` above zero, and `vllm:kv_offload_load_bytes_total` by "
        "`vllm:kv_offload_load_time_total` for the bandwidth you really get. SGLang: `#cached-token` of a prompt that had left the GPU.",
    ),
    "network": Texts(
        "Is my network fast enough?",
        "`--kv-transfer-config` names the connector (`NixlConnector`, `LMCacheConnectorV1`, …).",
        "`--hicache-storage-backend` (for example `mooncake`), `--disaggregation-transfer-backend`.",
        "Divide bytes by seconds of one transfer in the connector's statistics and compare with the number above; a link's rated "
        "speed is in bits.",
    ),
    "page_size": Texts(
        "Why is loading from the host so slow?",
        "`--kv-transfer-config` with `OffloadingConnector` takes its own `block_size`, larger than the GPU's.",
        "`--page-size`, `--hicache-mem-layout page_first`, `--hicache-io-backend kernel`.",
        "The bandwidth of loads, `vllm:kv_offload_load_bytes_total` by `vllm:kv_offload_load_time_total`, against the link's peak.",
    ),
    "nodes": Texts(
        "How many prefill and how many decode nodes?",
        "`--kv-transfer-config` with `kv_role`; the ratio is the number of instances you start.",
        "`--disaggregation-mode prefill` and `decode`; the ratio is again the number of instances.",
        "The pool that limits has `Waiting: … reqs` above zero (SGLang: `#queue-req`) while the other has none.",
    ),
    "router": Texts(
        "Send a request to the cache, or to the idle machine?",
        "The engine does not route; a router in front of it does, from KV events or from its own record of prefixes.",
        "The model gateway's `--policy cache_aware`, with `--cache-threshold` and `--balance-abs-threshold`.",
        "`Prefix cache hit rate` and `Waiting: … reqs` of all instances side by side: a high rate on one with a long queue means the "
        "router follows the cache too far.",
    ),
    "bits": Texts(
        "FP8 or INT4: eight bits or four?",
        "`--kv-cache-dtype fp8`; 4 bits as `int4_per_token_head` or `nvfp4`, where the attention backend has them.",
        "`--kv-cache-dtype fp8_e4m3`, `fp8_e5m2` or `fp4_e2m1`.",
        "`GPU KV cache size` grows by the ratio of the bytes. Quality is in no log: score your own prompts with both. FP8 keeps more of small numbers than INT8 with one scale; the explorer has integers.",
    ),
    "wire": Texts(
        "Should KV be compressed on the wire?",
        "Through a connector that encodes, such as LMCache with `remote_serde: cachegen`.",
        "Through LMCache (`--enable-lmcache`), in the same way.",
        "Bytes stored or sent per token, against the model's own bytes per token; and the time from arrival to first token with "
        "the codec off.",
    ),
}
