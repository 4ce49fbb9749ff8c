"""Chapter 13: the self-checked exercises."""

from __future__ import annotations

from kvlib.cost import break_even_bytes_per_s
from kvlib.explore import Choice, Problem, Search, Slip, Verdict, exercise
from kvlib.figures.smaller_kv_bits import GRID_BITS, PER_CHANNEL, PER_TOKEN, grid
from kvlib.figures.smaller_kv_data import find, measured
from kvlib.specs import get_gpu, get_model, kv_slots
from kvlib.specs.attention_kinds import with_attention
from kvlib.specs.names import spoken
from kvlib.tensors.smaller import PAGE_TOKENS, everything, grouped, sparse

CHAPTER_2 = "opt-13b", "a100-40gb"
SCALE_BITS = 16
KL_LIMITS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)


@exercise(title="The true size of a number")
def true_bits(rng) -> Problem:
    bits, group = rng.choice((2, 3, 4)), rng.choice((16, 32, 64, 128))
    answer = bits + 2 * SCALE_BITS / group
    return Problem(
        f"A cache stores {bits}-bit codes. Each group of {group} numbers also stores a 16-bit step and a "
        "16-bit smallest number. How many bits does one number take?",
        answer,
        "bits",
        f"{bits} + (16 + 16) ÷ {group} = {answer:g} bits.",
        slips=(
            Slip(bits, "That is the code alone. Step and smallest number are stored as well."),
            Slip(
                bits + SCALE_BITS / group,
                "A group stores two 16-bit numbers: the step and the smallest number.",
            ),
            Slip(answer / 8, "That is in bytes."),
        ),
    )


@exercise(title="Slots gained")
def slots_gained(rng) -> Problem:
    model, gpu = (pick(name) for pick, name in zip((get_model, get_gpu), CHAPTER_2))
    bits, group = rng.choice((2, 3, 4)), rng.choice((32, 64, 128))
    before, after = kv_slots(model, gpu), kv_slots(model, gpu, grouped(bits, group))
    true = bits + 2 * SCALE_BITS / group
    return Problem(
        f"{spoken(model.name)} on one {spoken(gpu.name)} has {before:,} slots with 16-bit KV. Now the cache "
        f"has {bits}-bit codes in groups of {group}, each with a 16-bit step and a 16-bit smallest number. "
        "How many slots fit into the same memory?",
        after,
        "slots",
        f"A number takes {true:g} bits instead of 16, so 16 ÷ {true:g} = {16 / true:.4g} times as many fit: "
        f"{after:,}.",
        tolerance=0.001,
        slips=(
            Slip(before * 16 / bits, "You left out the steps and smallest numbers."),
            Slip(after - before, "That is how many more. The question asks for all of them."),
            Slip(before * true / 16, "Smaller numbers make more slots, not fewer."),
        ),
    )


@exercise(title="Find a setting: pick the axes")
def pick_axes(rng) -> Search:
    bits = rng.choice((2, 4))
    best = min((row for row in measured()["axes"] if row["number_bits"] == bits), key=lambda row: row["kl"])
    errors = "; ".join(
        f"{tensor} {axis} {100 * find('errors', tensor=tensor, axis=axis, number_bits=bits)['error']:.0f} %"
        for tensor in ("K", "V") for axis in (PER_TOKEN, PER_CHANNEL)
    )

    def judge(key_axis, value_axis) -> Verdict:
        kl = find("axes", number_bits=bits, key_axis=key_axis, value_axis=value_axis)["kl"]
        said = f"Measured with keys {key_axis} and values {value_axis}: KL divergence {kl:.3g}."
        if kl == best["kl"]:
            return Verdict(True, said)
        return Verdict(False, f"{said} Another choice gives {best['kl']:.3g}.")

    return Search(
        f"At {bits} bits in groups of 32, the numbers come back with these errors, relative to their "
        f"spread: {errors}. A value's error matters per token, because attention adds up whole tokens. "
        "Choose the axes of keys and values so that the model's output changes least.",
        (
            Choice("key_axis", "Keys in groups", (PER_TOKEN, PER_CHANNEL), default=PER_TOKEN),
            Choice("value_axis", "Values in groups", (PER_TOKEN, PER_CHANNEL), default=PER_CHANNEL),
        ),
        judge,
        {"key_axis": best["key_axis"], "value_axis": best["value_axis"]},
        "Keys per channel, because a few channels are far from zero for all tokens. Values per token: a "
        "group that spans tokens lets one token spoil the others, and attention gives most of its weight "
        "to few tokens.",
    )


@exercise(title="Find a setting: the cheapest pair")
def cheapest_pair(rng) -> Search:
    limit = rng.choice(KL_LIMITS)
    allowed = [row for row in measured()["key_value_grid"] if row["kl"] <= limit]
    cheapest = min(allowed, key=lambda row: (row["bits"], row["kl"]))
    known = {"key_bits": cheapest["key_bits"], "value_bits": cheapest["value_bits"]}

    def judge(key_bits, value_bits) -> Verdict:
        row = grid(key_bits, value_bits)
        said = f"KL divergence {row['kl']:.3g} at {row['bits']:g} bits a number, scales included."
        if row["kl"] > limit:
            return Verdict(False, f"{said} That is above {limit:g}.")
        if row["bits"] > cheapest["bits"]:
            return Verdict(False, f"{said} That is allowed, but it can be had with fewer bits.")
        return Verdict(True, said)

    return Search(
        f"Find the pair of bit widths with the fewest bits whose KL divergence is at most {limit:g}. (The "
        "measurements on the small model judge it.)",
        (
            Choice("key_bits", "Bits of a key number", GRID_BITS, default=8),
            Choice("value_bits", "Bits of a value number", GRID_BITS, default=8),
        ),
        judge,
        known,
        f"Keys at {cheapest['key_bits']} bits and values at {cheapest['value_bits']}: {cheapest['bits']:g} "
        f"bits with scales, KL divergence {cheapest['kl']:.3g}. When the parts are unequal, the keys should "
        "have the larger one.",
    )


@exercise(title="Attention kinds and break-even")
def kind_ratio(rng) -> Problem:
    model, gpu = get_model(rng.choice(("llama-3-8b", "llama-3-70b", "opt-13b"))), get_gpu("h100-80gb")
    kind, context = rng.choice(("GQA", "MQA", "MLA")), 8000
    mha, other = (with_attention(model, name) for name in ("MHA", kind))
    before, after = (break_even_bytes_per_s(made, gpu, context) for made in (mha, other))
    bytes_before, bytes_after = mha.shape.kv_bytes_per_token(), other.shape.kv_bytes_per_token()
    return Problem(
        f"{spoken(model.name)} with MHA would cache {bytes_before:,} bytes per token, and fetching "
        f"{context:,} tokens on an {spoken(gpu.name)} pays above {before / 1e9:.3g} GB/s. With {kind} it "
        f"caches {bytes_after:,} bytes per token, at equal work. Above how many GB/s does fetching pay then?",
        after / 1e9,
        "GB/s",
        f"Break-even is bytes ÷ recompute time, and the time stays: {before / 1e9:.3g} × {bytes_after:,} ÷ "
        f"{bytes_before:,} = {after / 1e9:.3g} GB/s.",
        tolerance=0.01,
        slips=(
            Slip(before**2 / after / 1e9, "Fewer bytes need less bandwidth, not more."),
            Slip(8 * after / 1e9, "That is in gigabits."),
            Slip(before / after, "That is how many times smaller it is."),
        ),
    )


@exercise(title="What sparse attention reads")
def sparse_read(rng) -> Problem:
    model = get_model(rng.choice(("llama-3-8b", "qwen2.5-14b", "llama-3-70b")))
    tokens, percent = rng.choice((16000, 32000, 64000)), rng.choice((5, 10, 25))
    budget = tokens * percent // 100
    read = sparse(model.shape, tokens, budget).read_bytes
    alone = everything(model.shape, budget).read_bytes
    index = read - alone
    return Problem(
        f"{spoken(model.name)} caches {model.shape.kv_bytes_per_token():,} bytes per token and holds "
        f"{tokens:,} tokens in pages of {PAGE_TOKENS}. For each new token it reads the index (the smallest "
        "and the largest key of each page, as much as one token's key and value) and then pages with "
        f"{budget:,} tokens. How many megabytes (1e6 bytes) does it read?",
        read / 1e6,
        "MB",
        f"Index: {tokens:,} ÷ {PAGE_TOKENS} = {tokens // PAGE_TOKENS:,} tokens' worth, {index / 1e6:.4g} "
        f"MB. Pages: {alone / 1e6:.4g} MB. Together {read / 1e6:.4g} MB.",
        tolerance=0.001,
        slips=(
            Slip(alone / 1e6, "You left out the index. It is read in full every time."),
            Slip(
                (alone + 2 * index) / 1e6,
                "Two key vectors are as much as one key and one value, not as two of each.",
            ),
            Slip(
                (everything(model.shape, tokens).read_bytes + index) / 1e6,
                "That is what is stored. Only the chosen pages are read.",
            ),
        ),
    )
