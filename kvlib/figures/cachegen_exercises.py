"""Chapter 14: the self-checked exercises."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvlib.cachegen.account import tie_gbps
from kvlib.cachegen.bandwidth import BYTES_PER_GBIT, Bandwidth, square_wave
from kvlib.cachegen.entropy_cost import lane_bits
from kvlib.cachegen.streaming import ADAPTIVE, ORACLE, TEXT, choose, finish, stream
from kvlib.cachegen.synthetic import expected_gains
from kvlib.explore import Choice, Problem, Range, Search, Slip, Verdict, exercise
from kvlib.explore.words import short
from kvlib.figures.cachegen_streaming import (
    HIGH_GBPS,
    LOW_GBPS,
    NUMBERS_PER_TOKEN,
    context_of,
    recompute_all_s,
)
from kvlib.primers.bits import entropy, fixed_bits, rans_encode, slots_of

FIFTH = 1920  # tokens of a chunk when the context of 9,600 is cut into five


@exercise(title="Entropy, and real bytes")
def entropy_and_bytes(rng) -> Problem:
    common = rng.choice((0.8, 0.85, 0.9, 0.95))
    rare = (1 - common) / 2
    probabilities = [common, rare, 1 - common - rare]
    bits = entropy(probabilities)
    length = 20000
    text = rng.choices(range(3), probabilities, k=length)
    _, words = rans_encode(text, slots_of(probabilities))
    real = (32 + 16 * len(words)) / length
    return Problem(
        f"After quantization a channel holds three symbols with probabilities {common:g}, {rare:.3g} and"
        f" {rare:.3g}. How many bits per symbol does an ideal entropy coder need? (Three digits.)",
        bits,
        "bits per symbol",
        f"−Σ p log₂ p = {bits:.3f}, against {fixed_bits(3)} bits for a fixed width. kvlib's rANS coder was"
        f" given {length:,} such symbols: it wrote {real:.3f} bits per symbol, its final state included.",
        tolerance=0.01,
        slips=(
            Slip(
                fixed_bits(3), "That is the fixed width. An entropy coder spends less on the common symbol."
            ),
            Slip(
                common + 2 * (1 - common),
                "That is the best code with whole bits per symbol (Huffman). rANS spends fractions of a bit.",
            ),
        ),
    )


@exercise(title="Where does sending tie with computing again?")
def tie_speed(rng) -> Problem:
    bits = rng.choice((8, 4, 2.5, 16))
    again = recompute_all_s()
    answer = tie_gbps(NUMBERS_PER_TOKEN, 9600, bits, again)
    return Problem(
        f"9,600 tokens of Mistral-7B have {NUMBERS_PER_TOKEN:,} KV numbers each. Computing the KV again takes"
        f" {again:.2f} s on an A40. At which link speed does sending it with {bits:g} bits per number take"
        " just as long?",
        answer,
        "Gb/s",
        f"9,600 × {NUMBERS_PER_TOKEN:,} × {bits:g} bits ÷ {again:.2f} s = {answer:.2f} × 10⁹ bits per second."
        " A faster link should send.",
        tolerance=0.01,
        slips=(
            Slip(answer / 8, "That is in GB/s. The question asks for gigabits."),
            Slip(answer / 2, "You counted K without V."),
            Slip(answer / 2**30 * 1e9, "You divided by 2³⁰. Links are sold in 10⁹ bits per second."),
        ),
    )


@exercise(title="What would the sender choose?")
def pick_level(rng) -> Problem:
    context = context_of(1500)
    left = rng.choice((3, 4, 5))
    gbps = rng.choice((1.0, 1.5, 2.0, 2.5, 3.0))
    remaining_s = rng.choice((0.4, 0.5, 0.6, 0.7))
    rest = context.chunks[1 : 1 + left]
    guess = Bandwidth((0,), (round(gbps * BYTES_PER_GBIT),))
    choice = choose(rest, context.losses, guess, 0, 0, round(remaining_s * 1e9))
    numbers = 1500 * NUMBERS_PER_TOKEN
    bits = {name: 8 * rest[0].num_bytes[name] / numbers for name in context.losses if name != TEXT}
    menu = ", ".join(f"{name} {value:.2f}" for name, value in bits.items())
    again = sum(chunk.gpu_ns[TEXT] for chunk in rest) / 1e9
    order = [TEXT, *bits]
    decode_s = rest[0].gpu_ns["coarse"] / 1e9
    takes_s = {TEXT: again, **{name: left * numbers * b / (gbps * 1e9) + decode_s for name, b in bits.items()}}
    return Problem(
        f"{left} chunks of 1,500 tokens of Mistral-7B are left ({NUMBERS_PER_TOKEN:,} numbers a token). The"
        f" last chunk went at {gbps:g} Gb/s and {remaining_s:g} s remain. Bits per number: {menu}. Text would"
        f" take {again:.2f} s to compute again. Decoding a chunk takes {1e3 * decode_s:.0f}"
        " ms, while the next one is on its way. Which choice for the next chunk? Answer with its number:"
        f" {', '.join(f'{i} = {name}' for i, name in enumerate(order))}.",
        order.index(choice),
        "",
        f"Text loses nothing but takes {again:.2f} s. Sending the rest at b bits takes {left} × {numbers:,} ×"
        f" b ÷ {gbps:g} Gb/s and one decode at the end. The finest that fits into {remaining_s:g} s, or the"
        f" fastest if none does, is {choice}.",
        slips=tuple(
            Slip(
                order.index(name),
                f"{name} would be in time, but it is not the finest that is."
                if seconds <= remaining_s
                else f"{name} would take {seconds:.2f} s, which is too long"
                + (f", and {choice} is faster." if takes_s[choice] > remaining_s else "."),
            )
            for name, seconds in takes_s.items()
            if name != choice
        ),
    )


@exercise(title="Find a setting: be the sender")
def be_the_sender(rng) -> Search:
    context, slo_s = context_of(FIFTH), rng.choice((1.15, 1.2, 1.25))
    high, low, lasts_s = rng.choice(((4.0, 0.8, 0.3), (4.0, 0.8, 0.5), (3.0, 0.6, 0.5), (3.0, 1.0, 0.3)))
    link = square_wave(high, low, lasts_s)
    foreseen = stream(context, link, ORACLE, slo_s)
    levels = [name for name in context.losses if name != TEXT]
    names = [f"chunk_{number}" for number, _ in enumerate(context.chunks, start=1)]

    def judge(**picked) -> Verdict:
        ready_s, loss = _sent_as([picked[name] for name in names], link)
        right = ready_s <= slo_s and loss <= foreseen.loss / 2
        wanted = "" if right else f" Wanted: {slo_s:g} s, and at most {short(foreseen.loss / 2)} nats."
        return Verdict(right, f"Ready after {ready_s:.2f} s, mean KL {short(loss)} nats.{wanted}")

    texts_first = [[TEXT] * n + [level] * (len(names) - n) for n in range(1, len(names)) for level in levels]
    in_time = [picks for picks in texts_first if _sent_as(picks, link)[0] <= slo_s]
    known = min(in_time, key=lambda picks: _sent_as(picks, link)[1])
    return Search(
        f"A context of Mistral-7B, {len(names)} chunks of {FIFTH:,} tokens, must be ready on an A40 within {slo_s:g} s. The network"
        f" does {high:g} and {low:g} Gb/s in turn, {lasts_s:g} s each, and now you know it beforehand. A sender who knows it, too, and"
        f" follows CacheGen's rule needs {foreseen.ready_s:.2f} s at a mean KL of {short(foreseen.loss)} nats. Be in time with at most"
        " half of its damage.",
        tuple(Choice(name, name.replace("_", " ").capitalize(), (TEXT, *levels), default="medium") for name in names),
        judge,
        dict(zip(names, known)),
        f"One of many: {', '.join(known)}. The GPU computes the first chunks from their text, which loses nothing, while the link"
        " sends the others, finer than it could send all of them. It is the split of chapter 8. CacheGen's rule asks for one choice"
        " for all that is left, so either the link or the GPU is idle.",
    )


def _sent_as(picks: Sequence[str], link: Bandwidth) -> tuple[float, float]:
    """Seconds until the last chunk is ready, and the mean loss."""
    context, link_ns, gpu_ns = context_of(FIFTH), 0, 0
    for chunk, choice in zip(context.chunks, picks):
        link_ns, gpu_ns = finish(chunk, choice, link, link_ns, gpu_ns)
    return gpu_ns / 1e9, math.fsum(context.losses[choice] for choice in picks) / len(picks)


@exercise(title="Does the difference pay?")
def gain_of_difference(rng) -> Problem:
    correlation, offset = rng.choice((0.2, 0.3, 0.4, 0.6)), rng.choice((0.0, 1.0, 2.0))
    answer = expected_gains(correlation, offset, "previous").raw
    return Problem(
        "In a made-up KV each channel has variance 1 around its own mean, and neighboring tokens have"
        f" correlation {correlation:g}. The channel means have variance {offset**2:g} among themselves. How"
        " large is the variance of all numbers, divided by the variance of the differences to the previous"
        " token?",
        answer,
        "",
        f"The numbers have variance 1 + {offset**2:g}; a difference has 2 (1 − {correlation:g}) ="
        f" {2 * (1 - correlation):g}, since the mean cancels. The ratio is {answer:.3g}.",
        tolerance=0.01,
        slips=(
            Slip(
                expected_gains(correlation, 0.0, "previous").raw,
                "You left out the channel means. They are part of the numbers, and the difference removes"
                " them.",
            ),
            Slip(1 / answer, "That is the other way round."),
        ),
    )


@exercise(title="The price of a lane")
def price_of_a_lane(rng) -> Problem:
    tokens, channels = rng.choice((1, 2, 5, 10)), rng.choice((128, 192, 512, 1024))
    answer = lane_bits(tokens, channels)
    return Problem(
        f"Each lane of the entropy coder takes {tokens} token{'s' if tokens > 1 else ''} of one layer's K or"
        f" V, {channels} numbers each, and leaves a state of 32 bits. How many bits per number is that?",
        answer,
        "bits per number",
        f"32 ÷ ({tokens} × {channels}) = {answer:.4g}.",
        tolerance=0.01,
        slips=(
            Slip(answer / 8, "That is in bytes."),
            Slip(32 / channels, "A lane takes more than one token."),
        ),
    )


@exercise(title="Find a setting: adapting loses, then wins")
def adapting_loses(rng) -> Search:
    slo_s = rng.choice((1.2, 1.3))
    known = next(
        {"half_period_s": period, "long_chunk": long_chunk, "short_chunk": 300}
        for period in (0.5, 0.4, 0.6, 0.3, 0.7)
        for long_chunk in (3000, 1500, 600)
        if _loses_then_wins(period, long_chunk, 300, slo_s)[0]
    )

    def judge(half_period_s, long_chunk, short_chunk) -> Verdict:
        right, said = _loses_then_wins(half_period_s, long_chunk, short_chunk, slo_s)
        return Verdict(right, said)

    return Search(
        f"The network does {HIGH_GBPS:g} and {LOW_GBPS:g} Gb/s in turn and the context must be ready within"
        f" {slo_s:g} s. Find how long each state lasts and two chunk lengths, so that with long chunks the"
        " adaptive sender is late although 'always medium' is in time, and with short chunks it is in time"
        " as well.",
        (
            Range("half_period_s", "Each state lasts", 0.1, 1.0, 10, default=0.2, unit="s"),
            Choice("long_chunk", "Long chunk", (600, 1500, 3000, 9600), default=9600, unit="tokens"),
            Choice("short_chunk", "Short chunk", (100, 200, 300, 600), default=600, unit="tokens"),
        ),
        judge,
        known,
        f"One of many: {known['half_period_s']:g} s, {known['long_chunk']:,} and {known['short_chunk']}"
        " tokens. The sender believes the last chunk; a long chunk straddles the change, and when it"
        " notices, the time is gone.",
    )


def _loses_then_wins(
    half_period_s: float, long_chunk: int, short_chunk: int, slo_s: float
) -> tuple[bool, str]:
    link = square_wave(HIGH_GBPS, LOW_GBPS, half_period_s)
    long = stream(context_of(long_chunk), link, ADAPTIVE, slo_s).ready_s
    fixed = stream(context_of(long_chunk), link, "medium", slo_s).ready_s
    short = stream(context_of(short_chunk), link, ADAPTIVE, slo_s).ready_s
    said = (
        f"Long chunks: adaptive {long:.2f} s, always medium {fixed:.2f} s. Short chunks: adaptive {short:.2f}"
        f" s. The limit is {slo_s:g} s."
    )
    return fixed <= slo_s < long and short <= slo_s, said
