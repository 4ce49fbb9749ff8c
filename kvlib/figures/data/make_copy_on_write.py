"""Run beam search on SmolLM2 and write its family trees to ``copy_on_write.json`` beside this file.

    python -m kvlib.tensors.fetch                    # once: the weights, 93 MB
    OMP_NUM_THREADS=1 python kvlib/figures/data/make_copy_on_write.py     # about two minutes

The trees are all that the explorers need: which hypothesis continues which. The block manager replays them,
exactly, at any block size. The outputs of the sharing run and of a run that copies everything are compared
here.
"""

import hashlib
import json
import platform
from pathlib import Path

import numpy as np

from kvlib.tensors.backend import get_backend
from kvlib.tensors.decoding import Beam, generate
from kvlib.tensors.gguf import GgufFile
from kvlib.tensors.session import CopyingSession, PagedSession
from kvlib.tensors.smollm import decoder_from_gguf, find_weights
from kvlib.tensors.tokenizer import SmolTokenizer

TEXT = (
    "Once upon a time there was a small lighthouse at the end of a long road. The keeper of the lighthouse was an old sailor "
    "who had seen every sea in the world. Each evening he climbed the stairs, lit the lamp and wrote the names of passing "
    "ships in a large book. One night a great storm came up"
)
PROMPT_TOKENS = 64
STEPS = 32
WIDTHS = (2, 4, 6)
BLOCK_SIZE = 16


def main() -> None:
    weights = find_weights()
    file = GgufFile(weights)
    tokenizer = SmolTokenizer(file)
    model = decoder_from_gguf(get_backend("numpy", "float32"), file)
    prompt = tokenizer.encode(TEXT)[:PROMPT_TOKENS]
    if len(prompt) != PROMPT_TOKENS:
        raise SystemExit(f"TEXT has {len(prompt)} tokens, expected at least {PROMPT_TOKENS}")
    runs = []
    for width in WIDTHS:
        request = {"beam": Beam(prompt, STEPS, width)}
        sharing = PagedSession(model, num_blocks=64, block_size=BLOCK_SIZE, scatter_seed=0)
        shared, copied = (generate(session, request)["beam"] for session in (sharing, CopyingSession(model)))
        runs.append({
            "width": width,
            "parents": shared.parents,
            "best": tokenizer.decode(shared.hypotheses[0].tokens),
            "copied_blocks": sharing.copied_blocks,
            "same_outputs": [h.tokens for h in shared.hypotheses] == [h.tokens for h in copied.hypotheses],
        })
    made = {
        "provenance": {
            "command": "python kvlib/figures/data/make_copy_on_write.py",
            "model": weights.name,
            "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
            "versions": {"numpy": np.__version__, "python": platform.python_version()},
        },
        "prompt": tokenizer.decode(prompt),
        "prompt_tokens": PROMPT_TOKENS,
        "block_size": BLOCK_SIZE,
        "runs": runs,
    }
    Path(__file__).with_name("copy_on_write.json").write_text(json.dumps(made) + "\n")


if __name__ == "__main__":
    main()
