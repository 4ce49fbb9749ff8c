"""Chapter 15: four clients, and what the planner says to what you tell them."""

from __future__ import annotations

from kvlib.cost import prefill_s, transfer_s
from kvlib.explore import Choice, Problem, Search, Slip, Verdict, exercise
from kvlib.explore.words import counted
from kvlib.figures.plan_data import stored_demand
from kvlib.figures.plan_inputs import CONTROLS, GB, setting_of
from kvlib.planner import LIST_PRICES, Setting, Store, calls_to_pay, outcome, plan, returning
from kvlib.planner.rates import store_rate
from kvlib.specs import LinkSpec, get_gpu, get_link, get_model, kv_slots
from kvlib.specs.names import spoken

DEFAULTS = {control.name: control.default for control in CONTROLS}
LATE_SHARES = (0.0, 0.2, 0.4, 0.6, 0.7)
CHANGES = (
    ("nothing", "change nothing"), ("host", "64 GB of CPU memory as a second tier"), ("ssd", "1 TB of SSD as a tier"),
    ("network", "10 TB in a pool behind 10 Gb/s"), ("quantized", "keep the KV in INT8"),
)


@exercise(title="Client 1: a chat whose P99 rises")
def rising_p99(rng) -> Search:
    model, (gpu, load) = rng.choice(("llama-3-8b", "mistral-7b")), rng.choice((("l4", 1.0), ("rtx-4090", 2.0)))
    setting = setting_of(**{**DEFAULTS, "workload": "chat", "load": load, "model": model, "gpu": gpu})
    today = outcome(setting, frozenset({"prefix"}))

    def judge(change) -> Verdict:
        levers = {"prefix"} if change == "nothing" else {"prefix", change}
        if change in ("host", "ssd", "network"):
            levers |= {"copies", "overlap"}
        got = outcome(setting, frozenset(levers))
        running = f"more than {2 * got.held}" if got.running is None else got.running
        said = (
            f"Memory then holds {got.held} requests and the load keeps {running} running; prefill takes {got.busy:.0%} "
            "of the time."
        )
        return Verdict(got.serves, said if got.serves else f"{said} The queue keeps growing.")

    return Search(
        f"A client serves short chats with {spoken(model)} on one {spoken(gpu)}: {counted(round(load), 'request')} per second, "
        f"{setting.demand.input_tokens:,.0f} tokens in and {setting.demand.output_tokens:,.0f} out on average. The P99 of "
        f"the first token rises from hour to hour. Prefixes are cached in GPU memory already; {today.held} requests fit. "
        "Name one change after which memory holds what the load keeps running.",
        (Choice("change", "Change", CHANGES, default="nothing"),),
        judge,
        {"change": "quantized"},
        "A P99 that keeps rising says that more requests want memory than fit, so they queue or are preempted. What is being "
        "decoded has to lie in GPU memory. A tier helps only as far as it takes prefill off the GPU, so that decode gets more "
        "of the time; a slow one does not. Half the bits hold twice the requests.",
    )


@exercise(title="Client 2: long documents and an idle SSD")
def idle_ssd(rng) -> Problem:
    model = get_model(rng.choice(("llama-3-8b", "mistral-7b", "qwen2.5-14b")))
    gpu = get_gpu(rng.choice(("a100-80gb", "h100-80gb", "l40s")))
    document, question = rng.choice((10_000, 20_000, 30_000)), 100
    ssd = Store("ssd", 10e12, LinkSpec("SSD", rng.choice((3.5, 7.0, 14.0)) * GB, 80e-6, 0.8))
    asks = returning(document, question, output_tokens=200, contexts=500)
    setting = Setting(model, gpu, asks, load_per_s=0.1, stores=(ssd,))
    levers, block = frozenset({"prefix", "ssd", "copies", "overlap"}), 512
    without, with_ssd = outcome(setting, frozenset()), outcome(setting, levers, block)
    found = document // block * block
    rate, again = store_rate(setting, levers, ssd, block), prefill_s(model, gpu, asks.cells[0].input_tokens - found, found)
    answer = without.ttft_s / with_ssd.ttft_s
    load_s = transfer_s(model.shape.kv_bytes(found), LinkSpec("SSD", rate))
    return Problem(
        f"A client answers questions about documents of {document:,} tokens with {spoken(model.name)} on one "
        f"{spoken(gpu.name)}. KV takes {model.shape.kv_bytes_per_token():,} bytes per token. Reading a document and a "
        f"question of {question} tokens from nothing takes {1e3 * without.ttft_s:,.0f} ms; where the document is cached, "
        f"what is left to compute takes {1e3 * again:.1f} ms. An SSD that delivers {rate / GB:.2f} GB/s lies idle. Let it "
        "hold the KV of the documents, loaded layer by layer while the GPU computes. How many times sooner does the first "
        "token come? (A number below 1 says later.)",
        answer,
        "times",
        f"Loading takes {1e3 * load_s:,.0f} ms and computing {1e3 * again:.1f} ms. Overlapped, the longer of the two "
        f"decides: {1e3 * with_ssd.ttft_s:,.0f} ms against {1e3 * without.ttft_s:,.0f}, {answer:.2f} times sooner.",
        tolerance=0.06,
        slips=(
            Slip(1 / answer, "That is the other way round."),
            Slip(without.ttft_s / again, "You left out the time to load."),
            Slip(answer / 8, "Gigabytes, not gigabits."),
        ),
    )


@exercise(title="Client 3: an agent on one large repository")
def agent_day(rng) -> Problem:
    model, steps = get_model("llama-3-8b"), rng.choice((200, 300, 400, 500, 600))
    tokens = rng.choice((500_000, 1_000_000, 2_000_000))
    bus = get_link("pcie5-x16")
    kv_bytes = model.shape.kv_bytes(tokens)
    once_s = transfer_s(kv_bytes, bus)
    answer = steps * once_s / 60
    return Problem(
        f"A coding agent works on a repository of {tokens:,} tokens with Llama-3-8B ({model.shape.kv_bytes_per_token():,} "
        f"bytes of KV per token), {steps} steps a day. The KV lies in CPU memory behind PCIe 5, which delivers "
        f"{bus.effective_bytes_per_s / GB:.1f} GB/s. If every step loads all of it, how many minutes a day does the agent "
        "wait for loads?",
        answer,
        "minutes",
        f"{kv_bytes / GB:,.0f} GB ÷ {bus.effective_bytes_per_s / GB:.1f} GB/s = {once_s:.2f} s a step, {answer:.1f} minutes "
        "a day. So keep it in GPU memory between the steps, and load only what was displaced.",
        tolerance=0.02,
        slips=(
            Slip(answer * 60, "Those are seconds."),
            Slip(once_s / 60, "That is one step."),
            Slip(answer * 8, "Gigabytes, not gigabits."),
            Slip(answer * 0.8, "You used the rated speed of the link, 64 GB/s. It delivers 80 % of it."),
        ),
    )


@exercise(title="Client 3, again: how many GPUs?")
def agent_gpus(rng) -> Problem:
    model, gpu = get_model("llama-3-8b"), get_gpu(rng.choice(("h100-80gb", "a100-80gb", "h200")))
    tokens = rng.choice((700_000, 1_000_000, 1_500_000))
    slots = {n: kv_slots(model, gpu, num_gpus=n) for n in (1, 2, 4, 8)}
    answer = next(n for n, held in slots.items() if held >= tokens)
    kv_gb, weights_gb = model.shape.kv_bytes(tokens) / GB, model.weight_bytes / GB
    naive = -(-(kv_gb + weights_gb) // (gpu.memory_bytes / GB))
    return Problem(
        f"The same agent shall keep {tokens:,} tokens ({kv_gb:.0f} GB of KV) in GPU memory. Its model takes "
        f"{weights_gb:.1f} GB of weights and has 8 KV heads. How many {spoken(gpu.name)} ({gpu.memory_bytes / GB:.0f} GB "
        "each, 90 % usable) have to share it by tensor parallelism? They come in 1, 2, 4 or 8.",
        answer,
        "GPUs",
        " ".join(f"{n}: {held:,} tokens." for n, held in slots.items()) + f" The first that holds {tokens:,} is {answer}.",
        slips=(
            Slip(naive, "Count 90 % of each GPU, and take a number that deals out the heads evenly."),
            Slip(answer / 2, "The weights and the 10 % for activations take room too."),
            Slip(answer * 2, "Fewer will do."),
        ),
    )


@exercise(title="Client 4: a caller of a priced prompt cache")
def caller(rng) -> Problem:
    price, tokens = rng.choice(LIST_PRICES[:2]), rng.choice((5_000, 20_000, 60_000))
    late = rng.choice([share for share in LATE_SHARES if calls_to_pay(price, share)])
    later, answer = price.later_call(late), calls_to_pay(price, late)
    expired = f"{late:.0%} of the later ones come after the entry expired and write again" if late else "all others come in time"
    return Problem(
        f"A client calls a hosted model again and again with the same {tokens:,} tokens in front. Writing them into the "
        f"provider's cache costs {price.write:g} times the input price, reading them {price.read:g} times ({price.name}, "
        f"list price). The first call writes; {expired}. "
        "From which call on has caching cost less than not caching? (The first call is number 1.)",
        answer,
        "calls",
        f"A later call costs {later:.4g} on average, n calls {price.write:g} + (n − 1) × {later:.4g} against n. The smallest n "
        f"that is cheaper is {answer}, however long the prompt.",
        slips=(
            Slip(answer - 1, "Count the call that writes, too; or the two are not yet apart."),
            Slip(answer + 1, "It pays one call earlier."),
        ),
    )


@exercise(title="Find a setting: make the pool pay")
def make_the_pool_pay(rng) -> Search:
    model, gpu = rng.choice(("llama-3-8b", "mistral-7b")), rng.choice(("h100-80gb", "h200"))
    wanted = ("network", "pool_tb", "max_kl")
    offered = tuple(control for control in CONTROLS if control.name in wanted)
    bare = {**DEFAULTS, "workload": "documents", "model": model, "gpu": gpu, "host_gb": 0, "ssd_tb": 0, "load": 4.0}
    alone = plan(setting_of(**{**bare, "pool_tb": 0})).outcome.ttft_s
    known = {"network": 100, "pool_tb": 10, "max_kl": 0.003}
    target = 1.15 * plan(setting_of(**{**bare, **known})).outcome.ttft_s / alone
    mean = stored_demand("documents", bare["load"]).input_tokens

    def judge(**chosen) -> Verdict:
        made = plan(setting_of(**{**bare, **chosen}))
        ratio = made.outcome.ttft_s / alone
        said = f"The first token comes after {1e3 * made.outcome.ttft_s:.1f} ms, {ratio:.0%} of the time without a pool."
        return Verdict(ratio <= target, said if ratio <= target else f"{said} Wanted: {target:.0%} at most.")

    return Search(
        f"A client asks {bare['load']:g} questions per second about documents ({mean:,.0f} tokens on average) with "
        f"{spoken(model)} on one {spoken(gpu)}, without CPU memory or SSD to spare. Choose a network, a pool and the damage "
        f"that a bitstream may do, so that the first token comes within {target:.0%} of the time it takes without a pool.",
        offered,
        judge,
        known,
        "A fast network does it, or a bitstream on a slower one; a larger pool does nothing once it holds all that returns.",
    )
