"""Reuse prefixes on SmolLM2, rightly and wrongly, and write ``prefix_caching.json`` beside this file.

    python -m kvlib.tensors.fetch                    # once: the weights, 93 MB
    OMP_NUM_THREADS=1 python kvlib/figures/data/make_prefix_caching.py     # about a minute

Two experiments. *Few-shot*: eight requests behind the same examples, with a block cache and from scratch.
*False hit*: a prompt whose middle block is taken from another prompt with the same tokens there, as an
unchained hash would do.
"""

import hashlib
import json
import platform
import random
from pathlib import Path

import numpy as np

from kvlib.prefix import BlockCache
from kvlib.tensors.backend import get_backend
from kvlib.tensors.cache import ContiguousCache
from kvlib.tensors.gguf import GgufFile
from kvlib.tensors.reuse import TableCache, prefill, store_for
from kvlib.tensors.smollm import decoder_from_gguf, find_weights
from kvlib.tensors.tokenizer import SmolTokenizer

SEED = 0
BLOCK_SIZE = 16
# The settings of vLLM's shared-prefix experiment (Kwon et al. 2023, figure 16).
SHOTS = {"1-shot": 80, "5-shot": 341}
NUM_REQUESTS = 8
SUFFIX_TOKENS = (10, 30)
MOST_LIKELY = 5
NEW_TOKENS = 24
PAIRS = (
    ("Good morning.", "Guten Morgen."),
    ("Where is the station?", "Wo ist der Bahnhof?"),
    ("The weather is beautiful today.", "Das Wetter ist heute schön."),
    ("I would like a cup of coffee.", "Ich hätte gern einen Kaffee."),
    ("The book lies on the table.", "Das Buch liegt auf dem Tisch."),
    ("We are going home now.", "Wir gehen jetzt nach Hause."),
    ("She has two brothers.", "Sie hat zwei Brüder."),
    ("The train leaves at eight.", "Der Zug fährt um acht."),
)
QUESTIONS = (
    "Good evening, how are you?",
    "The dog sleeps under the tree.",
    "My sister reads a long letter.",
    "Where can I buy fresh bread?",
    "He works in a small town near the sea.",
    "The children play in the garden.",
    "It will rain tomorrow.",
    "I do not know the way.",
)
STORIES = {
    "France and Japan": (
        (
            "Marie was born in France. She grew up in France, went to school in France and still lives in"
            " France with her two children."
        ),
        (
            "Yuki was born in Japan. She grew up in Japan, went to school in Japan and still lives in Japan"
            " with her two children."
        ),
        (
            " She likes to travel, to read and to cook, but what she likes best of all is a long walk through"
            " the capital of her country."
        ),
        " The capital of her country is",
    ),
    "a dog and a bird": (
        (
            "The animal in this story is a dog. The dog is called Max. Everybody in the village knows the dog"
            " and likes the dog."
        ),
        (
            "The animal in this story is a bird. The bird is called Max. Everybody in the village knows the"
            " bird and likes it."
        ),
        (
            " Max is two years old. He is brown and white and always hungry. He belongs to the baker, and"
            " every morning the people hear him."
        ),
        " He is a small",
    ),
    "red and blue": (
        (
            "The door of the first house in our street is red. The roof is red, the fence is red and even the"
            " letter box is red."
        ),
        (
            "The door of the first house in our street is blue. The roof is blue, the fence is blue and even"
            " the letter box is blue."
        ),
        (
            " An old painter lives there. He bought one very large pot of paint many years ago and has never"
            " used another one since then."
        ),
        " His favorite color is",
    ),
}


def few_shot(model, tokenizer, shots: int, rng: random.Random) -> dict:
    """Eight requests behind `shots` tokens of examples, with a block cache and from scratch."""
    examples = "".join(f"English: {english}\nGerman: {german}\n\n" for english, german in PAIRS * 4)
    prefix = tokenizer.encode("Translate from English to German.\n\n" + examples)[:shots]
    cache, store = BlockCache(256, BLOCK_SIZE), store_for(model, 256, BLOCK_SIZE)
    requests = []
    for number, question in enumerate(QUESTIONS):
        suffix = (tokenizer.encode(f"English: {question}\nGerman:") * 5)[
            : rng.randrange(SUFFIX_TOKENS[0], SUFFIX_TOKENS[1] + 1)
        ]
        prompt = prefix + suffix
        reused, hit_tokens = prefill(model, cache, store, number, prompt)
        scratch = model.forward([prompt], ContiguousCache(model.xp))[0]
        requests.append(
            {
                "tokens": len(prompt),
                "hit_tokens": hit_tokens,
                "max_difference": float(np.abs(reused - scratch).max()),
                "same_next_token": int(reused.argmax()) == int(scratch.argmax()),
            }
        )
        cache.free(number)
    return {"shots_tokens": shots, "requests": requests}


def false_hit(model, tokenizer, story: tuple[str, str, str, str]) -> dict:
    """The second beginning, then a middle that another prompt had too: computed, and reused in both ways."""
    begins = [_whole_blocks(tokenizer.encode(text)) for text in story[:2]]
    middle, end = _whole_blocks(tokenizer.encode(story[2])), tokenizer.encode(story[3])
    prompt = begins[1] + middle + end
    store = store_for(model, 64, BLOCK_SIZE)
    num_begin, num_middle = len(begins[1]) // BLOCK_SIZE, len(middle) // BLOCK_SIZE
    other = list(range(len(begins[0]) // BLOCK_SIZE + num_middle))
    begin = list(range(len(other), len(other) + num_begin))
    rest = list(range(begin[-1] + 1, 64))
    model.forward([begins[0] + middle], TableCache(store, other, 0))
    model.forward([begins[1]], TableCache(store, begin, 0))
    # Unchained first: its new tokens go to blocks that the chained run then overwrites.
    wrong = _answer(
        model, tokenizer, TableCache(store, begin + other[-num_middle:] + rest, len(begins[1] + middle)), end
    )
    right = _answer(model, tokenizer, TableCache(store, begin + rest, len(begins[1])), middle + end)
    scratch = _answer(model, tokenizer, ContiguousCache(model.xp), prompt)
    return {
        "other_begin": tokenizer.decode(begins[0]),
        "begin": tokenizer.decode(begins[1]),
        "middle": tokenizer.decode(middle),
        "end": story[3],
        "scratch": _said(scratch, scratch, tokenizer),
        "chained": _said(right, scratch, tokenizer),
        "unchained": _said(wrong, scratch, tokenizer),
    }


def _answer(model, tokenizer, cache, tokens: list[int]):
    """The logits after `tokens`, and the most likely continuation."""
    first = logits = model.forward([tokens], cache)[0]
    words = []
    for _ in range(NEW_TOKENS):
        words.append(int(logits.argmax()))
        logits = model.forward([words[-1:]], cache)[0]
    return first, tokenizer.decode(words)


def _whole_blocks(tokens: list[int]) -> list[int]:
    return tokens[: len(tokens) // BLOCK_SIZE * BLOCK_SIZE]


def _said(answer, scratch, tokenizer) -> dict:
    logits, text = answer
    weights = np.exp(logits.astype("float64") - float(logits.max()))
    shares = weights / weights.sum()
    best = np.argsort(-shares)[:MOST_LIKELY]
    return {
        "words": [tokenizer.decode([int(i)]) for i in best],
        "shares": [round(float(shares[i]), 4) for i in best],
        "max_difference": float(np.abs(logits - scratch[0]).max()),
        "text": text,
    }


def main() -> None:
    weights = find_weights()
    file = GgufFile(weights)
    tokenizer = SmolTokenizer(file)
    model = decoder_from_gguf(get_backend("numpy", "float32"), file)
    rng = random.Random(SEED)
    made = {
        "provenance": {
            "command": "OMP_NUM_THREADS=1 python kvlib/figures/data/make_prefix_caching.py",
            "seed": SEED,
            "model": weights.name,
            "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
            "versions": {"numpy": np.__version__, "python": platform.python_version()},
        },
        "block_size": BLOCK_SIZE,
        "few_shot": {name: few_shot(model, tokenizer, tokens, rng) for name, tokens in SHOTS.items()},
        "false_hit": {name: false_hit(model, tokenizer, story) for name, story in STORIES.items()},
    }
    Path(__file__).with_name("prefix_caching.json").write_text(json.dumps(made, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
