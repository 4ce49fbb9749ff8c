"""SmolLM2's tokenizer, rebuilt from the vocabulary and the merges that its GGUF file carries."""

from kvlib.errors import ConfigError
from kvlib.tensors.gguf import GgufFile

CONTROL = 3  # ggml's mark of tokens such as <|im_start|>


class SmolTokenizer:
    """Byte-level pair encoding; every digit is a token of its own.

    Parameters
    ----------
    file : GgufFile

    Raises
    ------
    ConfigError
        If the file carries another kind of tokenizer, or the `tokenizers` package is missing.
    """

    def __init__(self, file: GgufFile):
        try:
            from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
        except ImportError:
            raise ConfigError("tokenizers: not installed; pip install 'kvlib[model]'") from None
        kind = file.metadata.get("tokenizer.ggml.pre")
        if kind != "smollm":
            raise ConfigError(f"{file.path.name}: has the tokenizer {kind!r}, expected 'smollm'")
        words = file.metadata["tokenizer.ggml.tokens"]
        merges = [tuple(merge.split(" ")) for merge in file.metadata["tokenizer.ggml.merges"]]
        self._tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
        ])
        self._tokenizer.decoder = decoders.ByteLevel()
        kinds = file.metadata["tokenizer.ggml.token_type"]
        self._tokenizer.add_special_tokens(
            [AddedToken(word, normalized=False) for word, kind in zip(words, kinds) if kind == CONTROL]
        )
        self.end_of_turn = file.metadata["tokenizer.ggml.eos_token_id"]

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; control words such as ``<|im_start|>`` become one token each."""
        return self._tokenizer.encode(text).ids

    def decode(self, tokens) -> str:
        """The text of token ids, control words left out."""
        return self._tokenizer.decode(list(tokens))

    def encode_chat(self, question: str) -> list[int]:
        """One turn of a chat, ready to be answered, in the model's own template."""
        return self.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")
