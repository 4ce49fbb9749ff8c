"""How a reader writes the names that kvlib uses as keys."""

_WORDS = {
    "opt": "OPT", "llama": "Llama", "qwen2.5": "Qwen2.5", "qwen3": "Qwen3", "mistral": "Mistral", "smollm2": "SmolLM2",
    "gemma": "Gemma", "deepseek": "DeepSeek", "gpt": "gpt", "oss": "oss", "your": "your", "model": "model", "rtx": "RTX ",
}


def spoken(name: str) -> str:
    """The name as its makers write it.

    Examples
    --------
    >>> spoken("opt-13b"), spoken("qwen2.5-14b"), spoken("a100-40gb"), spoken("your model")
    ('OPT-13B', 'Qwen2.5-14B', 'A100-40GB', 'your model')
    """
    parts = [_WORDS.get(part, part if " " in part else part.upper()) for part in name.split("-")]
    return "-".join(parts).replace(" -", " ")
