"""Chapter 11, continued: one request in four steps, one long prompt over several nodes, and what KV occupies."""

from __future__ import annotations

from kvlib.cluster import (
    chunked_beside_decodes, chunked_pipeline, layer_wise, request_steps, sequence_parallel, tensor_parallel, whole_prefill,
)
from kvlib.cluster.pipeline import activation_bytes
from kvlib.explore import COMPUTED, SIMULATED, Choice, Option, Prediction, Stepper, Toggle, View, explorer
from kvlib.explore.palette import LIMIT, PREFILL, SERIES
from kvlib.explore.words import counted, short
from kvlib.figures.charts import Line, Mark, axis, line_chart, stacked_bars
from kvlib.figures.mooncake import LINK_GBPS, network, seconds_words
from kvlib.figures.mooncake_drawings import draw_pipeline, draw_steps
from kvlib.specs import get_gpu, get_model

MODEL, GPU, NUM_GPUS = "llama-2-70b", "a800-80gb", 8
GB = 1e9
PROMPTS = (2048, 8192, 32_768, 131_072, 524_288)
STEP_WORDS = (
    "Conductor has chosen a prefill and a decode instance",
    "KV of the cached prefix comes in, layer by layer",
    "only the new tokens are computed",
    "finished layers leave for the decode instance meanwhile",
    "everything has arrived, decoding begins",
)


@explorer(
    title="One request in four steps",
    controls=[
        Stepper("step", "Step", last=4, default=4),
        Toggle("stream", "Stream layer by layer", default=True),
        Choice("cached_percent", "Cached share of 8,192 tokens", [0, 25, 50, 75, 90], default=50, unit="%"),
        Choice("link", "Network", LINK_GBPS, default=100, unit="Gb/s"),
    ],
    expects={
        "step": "rises:steps_done", "stream": "falls:first_gap_ms", "cached_percent": "changes:ttft_ms",
        "link": "falls:first_gap_ms",
    },
)
def four_steps(step, stream, cached_percent, link) -> View:
    """Load, prefill, send, decode: lanes on one clock, drawn as far as the stepper has gone."""
    cached = 8192 * cached_percent // 100
    steps = request_steps(get_model(MODEL), get_gpu(GPU), network(link), 8192 - cached, cached, stream=stream)
    end_s = steps.decodes[-1].end_s
    alone_ms = 1e3 * (steps.sends[-1].end_s - steps.ttft_s)
    return View(
        title=f"Step {step} of 4: {STEP_WORDS[step]}",
        picture=draw_steps(steps, step, end_s),
        table=[
            ["moment", "ms after placement"],
            ["1 last layer's cached KV is in", 1e3 * steps.layers.loads[-1].end_s if cached else 0.0],
            ["2 first token", 1e3 * steps.ttft_s],
            ["3 all KV has arrived", 1e3 * steps.sends[-1].end_s],
            ["4 second token", 1e3 * steps.decodes[0].end_s],
            ["sending left after the first token", alone_ms],
        ],
        source=SIMULATED,
        note="LLaMA-2-70B on a node of eight A800, both instances idle. Boxes are groups of ten layers in lanes 1 to 3, "
        "single steps in lane 4. An outlined box is still to come.",
        numbers={"steps_done": step, "ttft_ms": 1e3 * steps.ttft_s, "first_gap_ms": 1e3 * steps.first_gap_s},
    )


def _predict_chunks() -> Prediction:
    few, many = (_pipeline(131_072, nodes=4, chunk=chunk, link=800).speedup for chunk in (131_072, 8192))
    fact = f"With one chunk the four nodes are {few:.2f} times as fast as one, with sixteen {many:.2f} times."
    answer = 0 if many > 3.9 else (1 if many > 2 else 2)
    return Prediction(
        "A prompt of 131,072 tokens, four nodes, each with a quarter of the layers. Cut into 16 chunks that "
        "follow one "
        "another through the nodes, the prefill becomes …",
        (
            Option(
                "four times as fast: all four nodes work",
                f"Not at the start, when three of them wait for a first chunk, nor at the end. {fact}",
            ),
            Option("a bit more than three times as fast", f"The first and last chunks leave empty corners. {fact}"),
            Option(
                "no faster: every token still passes every layer",
                f"It does, but different chunks pass different layers at the same time. {fact}",
            ),
        ),
        answer=answer,
    )


def _pipeline(prompt: int, nodes: int, chunk: int, link: float):
    return chunked_pipeline(
        get_model(MODEL), get_gpu(GPU), network(link), prompt, nodes=nodes, chunk_tokens=chunk, gpus_per_node=NUM_GPUS
    )


@explorer(
    title="A prompt in chunks over several nodes",
    controls=[
        Choice("chunks", "Chunks", [1, 2, 4, 8, 16, 32], default=4),
        Choice("nodes", "Nodes", [1, 2, 4, 8], default=4),
        Choice("prompt", "Prompt", [8192, 32_768, 131_072, 524_288], default=131_072, unit="tokens"),
        Choice("link", "Network", LINK_GBPS, default=800, unit="Gb/s"),
    ],
    predict=_predict_chunks,
    expects={"chunks": "rises:speedup", "nodes": "rises:speedup", "prompt": "rises:prefill_s", "link": "falls:prefill_s"},
)
def pipeline(chunks, nodes, prompt, link) -> View:
    """The Gantt chart of a chunked pipeline."""
    made = _pipeline(prompt, nodes, prompt // chunks, link)
    crossing = activation_bytes(get_model(MODEL), prompt // chunks)
    share = made.speedup / nodes
    return View(
        title=f"{counted(chunks, 'chunk')} over {counted(nodes, 'node')}: {made.speedup:.2f} times "
        f"as fast as one node, {share:.0%} of ideal",
        picture=draw_pipeline(made, nodes),
        table=[
            ["quantity", "value"],
            ["prefill (s)", made.prefill_s],
            ["the same chunks on one node (s)", made.serial_s],
            ["share of the ideal speed-up (%)", 100 * share],
            ["tokens per chunk", prompt // chunks],
            ["crosses a boundary per chunk (GB)", crossing / GB],
        ],
        source=SIMULATED,
        note="LLaMA-2-70B, each node eight A800. Later chunks are wider: they attend to all tokens before them.",
        numbers={"speedup": made.speedup, "prefill_s": made.prefill_s},
    )


@explorer(
    title="Three ways to use several nodes",
    controls=[
        Choice("link", "Network of each node", LINK_GBPS, default=800, unit="Gb/s"),
        Choice("nodes", "Nodes", [2, 4, 8], default=4),
        Choice("chunk", "Chunk", [512, 1024, 2048, 4096], default=2048, unit="tokens"),
        Choice("prompt", "Where you stand", PROMPTS, default=131_072, unit="tokens"),
    ],
    expects={
        "link": "falls:tensor_s", "nodes": "changes:tensor_s", "chunk": "changes:chunked_s", "prompt": "rises:chunked_s",
    },
)
def three_ways(link, nodes, chunk, prompt) -> View:
    """Prefill time against prompt length for chunked pipeline, tensor and sequence parallelism."""
    model, gpu, wire = get_model(MODEL), get_gpu(GPU), network(link)
    chunked = [_pipeline(n, nodes, min(chunk, n), link).prefill_s for n in PROMPTS]
    tensor = [tensor_parallel(model, gpu, wire, n, nodes=nodes) for n in PROMPTS]
    ring = [sequence_parallel(model, gpu, wire, n, nodes=nodes) for n in PROMPTS]
    here = PROMPTS.index(prompt)
    ways = {
        "chunked pipeline": (chunked[here], activation_bytes(model, prompt)),
        "tensor parallel": (tensor[here].prefill_s, tensor[here].sent_bytes_per_node),
        "sequence parallel": (ring[here].prefill_s, ring[here].sent_bytes_per_node),
    }
    fastest = min(ways, key=lambda way: ways[way][0])
    values = [*chunked, *(p.prefill_s for p in (*tensor, *ring))]
    figure = line_chart(
        [
            Line("chunked pipeline", PROMPTS, chunked, PREFILL, markers=True),
            Line("tensor parallel", PROMPTS, [p.prefill_s for p in tensor], SERIES[1], dash=1),
            Line("sequence parallel (ring)", PROMPTS, [p.prefill_s for p in ring], SERIES[3], dash=2),
        ],
        axis("prompt (tokens)", log=True, low=PROMPTS[0] / 1.3, high=PROMPTS[-1] * 1.3),
        axis("prefill (s)", log=True, low=min(values) / 2, high=max(values) * 2),
        marks=[Mark("you", prompt, chunked[here], LIMIT)],
    )
    return View(
        title=f"{prompt:,} tokens over {nodes} nodes: {fastest} is fastest ({seconds_words(ways[fastest][0])}), "
        f"and the pipeline sends {ways['sequence parallel'][1] / ways['chunked pipeline'][1]:.2g} times less than the ring",
        picture=figure,
        table=[
            ["way", "prefill (s)", "sent by each node (GB)"],
            *([way, time_s, sent / GB] for way, (time_s, sent) in ways.items()),
        ],
        source=COMPUTED,
        note="An otherwise idle network, and a ring whose work is balanced perfectly: its best case. What it sends competes with "
        "the KV that prefill instances send to decode instances.",
        numbers={
            "chunked_s": chunked[here], "tensor_s": tensor[here].prefill_s, "sequence_s": ring[here].prefill_s,
            "tensor_sent_gb": tensor[here].sent_bytes_per_node / GB,
        },
    )


@explorer(
    title="KV in GPU memory, times how long it stays",
    controls=[
        Choice("chunk", "Chunk beside decodes", [128, 256, 512, 1024, 2048, 4096, 8192], default=512, unit="tokens"),
        Choice("prompt", "Prompt", [8192, 16_384, 32_768, 65_536], default=16_384, unit="tokens"),
        Choice("decodes", "Decodes beside it", [0, 8, 32, 64, 128], default=32),
        Choice("link", "Network", LINK_GBPS, default=800, unit="Gb/s"),
    ],
    expects={
        "chunk": "falls:chunked_s", "prompt": "rises:chunked_gb_s", "decodes": "rises:chunked_s", "link": "falls:layer_wise_gb_s",
    },
)
def occupancy(chunk, prompt, decodes, link) -> View:
    """Byte-seconds of GPU memory for one prefill, three ways."""
    model, gpu, wire = get_model(MODEL), get_gpu(GPU), network(link)
    ways = {
        "chunks beside decodes": chunked_beside_decodes(model, gpu, prompt, chunk, decodes, 4000, num_gpus=NUM_GPUS),
        "alone, sent afterwards": whole_prefill(model, gpu, wire, prompt, NUM_GPUS),
        "alone, layer by layer": layer_wise(model, gpu, wire, prompt, NUM_GPUS),
    }
    gb_s = {way: o.byte_s / GB for way, o in ways.items()}
    figure = stacked_bars(
        list(gb_s), [("occupancy", list(gb_s.values()), PREFILL)],
        axis("occupancy (GB × s)", log=True, low=min(gb_s.values()) / 2, high=max(gb_s.values()) * 3),
    )
    figure["layout"]["showlegend"] = False
    chunked, streamed = ways["chunks beside decodes"], ways["alone, layer by layer"]
    occupied = chunked.byte_s / streamed.byte_s
    return View(
        title=f"Chunks of {chunk:,}: {chunked.prefill_s / streamed.prefill_s:.2f} times the prefill time and "
        f"{short(occupied, 4 if occupied >= 10 else 2)} times the GPU memory × time of layer-wise prefill",
        picture=figure,
        table=[
            ["way", "prefill (s)", "occupancy (GB × s)"],
            *([way, o.prefill_s, o.byte_s / GB] for way, o in ways.items()),
        ],
        source=COMPUTED,
        note="LLaMA-2-70B on eight A800; the decodes beside the chunks hold 4,000 tokens each. Chunking is cheap in time here, "
        "but its KV waits in GPU memory to the end. In the layer-wise case each layer leaves while the next "
        "computes.",
        numbers={
            "chunked_s": chunked.prefill_s, "chunked_gb_s": chunked.byte_s / GB, "layer_wise_gb_s": streamed.byte_s / GB,
        },
    )
