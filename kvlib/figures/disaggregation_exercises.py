"""Chapter 10: the self-checked exercises."""

from __future__ import annotations

from kvlib.cluster import largest_chunk
from kvlib.cost import linear_flops, transfer_s
from kvlib.explore import Choice, Problem, Search, Slip, Verdict, exercise
from kvlib.figures.disaggregation_placement import best_by_cut, small_cluster
from kvlib.serving.clock import StepClock
from kvlib.specs import LinkSpec, get_gpu, get_link, get_model


@exercise(title="How long does the KV travel?")
def transfer_time(rng) -> Problem:
    tokens, gigabits = rng.choice((512, 1024, 2048)), rng.choice((10, 25, 100, 200))
    per_token = get_model("opt-13b").shape.kv_bytes_per_token()
    bytes_per_s = gigabits * 1e9 / 8
    answer_ms = 1e3 * transfer_s(tokens * per_token, LinkSpec("line rate", bytes_per_s))
    return Problem(
        f"OPT-13B keeps {per_token:,} bytes of KV per token. A prompt of {tokens:,} tokens has been "
        f"prefilled, and its KV goes to the decode instance over {gigabits} Gb/s at full line rate. How "
        "many milliseconds does that take?",
        answer_ms,
        "ms",
        f"{tokens:,} × {per_token:,} bytes = {tokens * per_token / 1e9:.3f} GB. {gigabits} Gb/s are "
        f"{bytes_per_s / 1e9:g} GB/s. That makes {answer_ms:.4g} ms.",
        tolerance=0.005,
        slips=(
            Slip(answer_ms / 8, "Gb/s are gigabits: eight of them make a gigabyte."),
            Slip(answer_ms / 2, "K and V both travel; the bytes per token hold both."),
            Slip(answer_ms / 1e3, "That is in seconds."),
            Slip(answer_ms * 1e9 / 2**30, "GB is 10^9 bytes here, not 2^30."),
        ),
    )


@exercise(title="How many prefill instances for one decode instance?")
def balanced_ratio(rng) -> Problem:
    prefill, decode = rng.choice((10_000, 20_000, 40_000)), rng.choice((2_000, 3_000, 5_000))
    tokens_in, tokens_out = rng.choice(((8_590, 182), (161, 338), (512, 64), (2_000, 500)))
    answer = (tokens_in / prefill) / (tokens_out / decode)
    return Problem(
        f"A prefill instance computes {prefill:,} prompt tokens per second, a decode instance generates "
        f"{decode:,} tokens per second. A request has {tokens_in:,} tokens in and {tokens_out} out. How "
        "many prefill instances does one decode instance need, so that both are equally busy?",
        answer,
        "prefill per decode instance",
        f"A request takes {tokens_in:,} ÷ {prefill:,} = {tokens_in / prefill:.4g} s of prefill and "
        f"{tokens_out} ÷ {decode:,} = "
        f"{tokens_out / decode:.4g} s of decode. Their ratio is {answer:.3g}"
        + (f", or 1 to {1 / answer:.3g}." if answer < 1 else "."),
        tolerance=0.02,
        slips=(
            Slip(1 / answer, "That is decode per prefill."),
            Slip(tokens_in / tokens_out, "A prompt token and an output token do not take the same time."),
            Slip(prefill / decode, "Count the tokens of a request as well."),
        ),
    )


@exercise(title="The largest chunk")
def chunk_under_slo(rng) -> Problem:
    slo_ms, users = rng.choice((30, 40, 50, 60, 80)), rng.choice((16, 32, 64))
    context = rng.choice((400, 500, 800))
    model, gpu = get_model("llama-3-8b"), get_gpu("a100-80gb")
    answer = largest_chunk(model, gpu, slo_ms / 1e3, users=users, context_tokens=context)
    clock, kv_tokens = StepClock(model, gpu), users * (context + 1)
    per_token_ms = 1e3 * linear_flops(model, 1) / gpu.flops_per_s
    kv_ms, fixed_ms = kv_tokens * clock.kv_ps / 1e9, clock.fixed_ps / 1e9
    left_ms = slo_ms - kv_ms - fixed_ms
    return Problem(
        f"Llama-3-8B on an A100 decodes for {users} users, reading their KV takes {kv_ms:.2f} ms a step, "
        f"and a step has {fixed_ms:g} ms of fixed cost. Limited by arithmetic, a step takes "
        f"{per_token_ms:.4f} ms for each of its tokens, of a prompt or of a user. How large may a chunk of "
        f"a prompt be, if no step may take longer than {slo_ms} ms?",
        answer,
        "tokens",
        f"{slo_ms} − {kv_ms:.2f} − {fixed_ms:g} = {left_ms:.2f} ms are left for arithmetic, enough for "
        f"about {left_ms / per_token_ms:.0f} tokens, {users} of which are the users'. The cost model, with "
        f"attention counted exactly, says {answer}.",
        tolerance=0.05,
        slips=(
            Slip(slo_ms / per_token_ms, "The step also reads KV, has a fixed cost, and serves the users."),
            Slip(left_ms / per_token_ms, "The users' own tokens take part of that time."),
        ),
    )


@exercise(title="Find a setting: place the pools")
def place_pools(rng) -> Search:
    shares_node, ttft_s = rng.choice((True, False)), rng.choice((0.2, 0.5, 1.0))
    by_cut = best_by_cut(ttft_s, 0.05, shares_node)
    best = max(by_cut.values(), key=lambda found: found.goodput_per_s)
    controls = tuple(
        Choice(name, label, sizes, default=1)
        for name, label, sizes in (
            ("prefill_tp", "Prefill: tensor parallel", [1, 2, 4, 8]),
            ("prefill_pp", "Prefill: pipeline stages", [1, 2, 4]),
            ("decode_tp", "Decode: tensor parallel", [1, 2, 4, 8]),
            ("decode_pp", "Decode: pipeline stages", [1, 2, 4]),
        )
    )

    def judge(prefill_tp, prefill_pp, decode_tp, decode_pp) -> Verdict:
        found = by_cut.get((prefill_tp, prefill_pp, decode_tp, decode_pp))
        goodput = found.goodput_per_s if found else 0.0
        said = f"At best {goodput:.1f} requests/s, {goodput / small_cluster().num_gpus:.2f} per GPU."
        right = goodput >= 0.99 * best.goodput_per_s
        return Verdict(
            right, said if right else f"{said} The best placement serves {best.goodput_per_s:.1f}.",
        )

    apart = "each pool has a node of its own, so KV crosses 25 Gb/s"
    where = "the two pools may share a node" if shares_node else apart
    return Search(
        "Two nodes of eight A100 serve LLaMA-2-70B, whose weights need two GPUs at least: 512 tokens in, "
        f"64 out, first token within {1e3 * ttft_s:.0f} ms on average, then at most 50 ms a token. Here "
        f"{where}. Choose how an instance of each pool is cut; the search fills the nodes. Find a cut "
        "within 1 % of the best.",
        controls,
        judge,
        {
            "prefill_tp": best.prefill.tp, "prefill_pp": best.prefill.pp, "decode_tp": best.decode.tp,
            "decode_pp": best.decode.pp,
        },
        f"The best: prefill TP {best.prefill.tp}, PP {best.prefill.pp}, decode TP {best.decode.tp}, PP "
        f"{best.decode.pp}, with {best.prefill_instances} and {best.decode_instances} instances, "
        f"{best.goodput_per_s:.1f} requests/s. A strict objective for the first token wants tensor "
        "parallelism, which makes a prefill faster; a loose one wants pipeline stages, which make room for "
        "more prefills without the losses of tensor parallelism.",
    )
