"""The decoder families with ordinary attention: class defaults and patterns of layers, as data.

A published ``config.json`` may leave out whatever equals the default of its configuration class (gemma-3-4b
gives neither heads nor head size), so reading one takes knowing the class. The numbers are those of the
configuration classes in Hugging Face transformers 5.24.0; families whose code lives beside their weights
have no defaults here, and a field their file leaves out is an error. `hf_families_other` holds the rest.
"""

from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class Family:
    """How to read the configs of one ``model_type``.

    Attributes
    ----------
    reader : str
        Which function of ``hf_readers`` builds the shape.
    pattern : str
        Which function of ``hf_layers`` says what each layer is, when the file does not list it.
    state : str or None
        Which function of ``hf_states`` sizes the recurrent layers.
    defaults : Mapping
        Class defaults, by quantity of ``hf_fields.NAMES`` or by raw field name.
    names : Mapping
        Field names that differ from ``hf_fields.NAMES``.
    """

    reader: str = "plain"
    pattern: str = "full"
    state: str | None = None
    defaults: MappingProxyType = field(default_factory=lambda: MappingProxyType({}))
    names: MappingProxyType = field(default_factory=lambda: MappingProxyType({}))


def family(
    layers=None, hidden=None, heads=None, *, kv=None, head_dim=None,
    reader="plain", pattern="full", state=None, names=(), **raw,
) -> Family:
    """One family; `kv` None means as many KV heads as heads, `head_dim` None means hidden size / heads.

    ``mha=True`` among the raw defaults: the class has no field for KV heads, every head has its own.

    Examples
    --------
    >>> family(32, 4096, 32, kv=8).defaults["kv_heads"]
    8
    """
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv, "head_dim": head_dim}
    return Family(reader, pattern, state, MappingProxyType(sizes | raw), MappingProxyType(dict(names)))


def _full_every(interval: int, window: int, *sizes, pattern="full_every", **more) -> Family:
    """Every `interval`-th layer sees everything, the others a window."""
    return family(*sizes, pattern=pattern, full_every=interval, sliding_window=window, **more)


def _windowed_from(layer: int, window: int, *sizes, pattern="windowed_from", **more) -> Family:
    """Layers from number `layer` on have a window."""
    return family(*sizes, pattern=pattern, max_window_layers=layer, sliding_window=window, **more)


_GEMMA4 = {"reader": "gemma4", "pattern": "full_every_and_last", "global_head_dim": 512}

ATTENTION_FAMILIES = MappingProxyType({
    # Every layer attends to everything.
    "llama": family(32, 4096, 32),
    "apertus": family(32, 4096, 32),
    "apertus1p5_text": family(32, 4096, 32),
    "arcee": family(32, 2560, 32),
    "aria_text": family(32, 4096, 32),
    "biogpt": family(24, 1024, 16, mha=True),
    "bitnet": family(30, 2560, 20, kv=5),
    "bloom": family(2, 64, 8, mha=True),
    "chameleon": family(32, 4096, 32, kv=32),
    "codegen": family(28, 4096, 16, mha=True),
    "cohere": family(40, 8192, 64),
    "cohere_compass_text": family(40, 8192, 64),
    "cosmos3_edge_text": family(28, 2048, 16, kv=8, head_dim=128),
    "ctrl": family(48, 1280, 16, mha=True),
    "diffllama": family(16, 2048, 32),
    "emu3_text_model": family(32, 4096, 32, kv=8),
    "ernie4_5": family(18, 1024, 16, kv=2, head_dim=128),
    "ernie4_5_moe": family(28, 2560, 20, kv=4),
    "ernie4_5_vl_moe_text": family(28, 2560, 20, kv=4),
    "exaone": family(32, 4096, 32, kv=8),
    "flex_olmo": family(32, 4096, 32),
    "gemma": family(28, 3072, 16, kv=16, head_dim=256),
    "glm": family(40, 4096, 32, kv=2, head_dim=128),
    "glm4": family(40, 4096, 32, kv=2, head_dim=128),
    "glm4_moe": family(46, 4096, 96, kv=8),
    "glm4v_moe_text": family(46, 4096, 96, kv=8),
    "glm4v_text": family(40, 4096, 32, kv=2),
    "glm_image_text": family(40, 4096, 32, kv=2),
    "glm_ocr_text": family(16, 1024, 16, kv=8),
    "gpt2": family(12, 768, 12, mha=True),
    "gpt-sw3": family(12, 768, 12, mha=True),
    "gpt_neox": family(44, 6144, 64, mha=True),
    "gpt_neox_japanese": family(32, 2560, 32, mha=True),
    "gptj": family(28, 4096, 16, mha=True),
    "granite": family(32, 4096, 32),
    "granite4_vision_text": family(32, 4096, 32),
    "granite_docling_text": family(28, 1024, 16, kv=4),
    "granitemoe": family(32, 4096, 32),
    "granitemoeshared": family(32, 4096, 32),
    "helium": family(24, 2560, 20, kv=20, head_dim=128),
    "hunyuan_v1_dense": family(32, 4096, 32),
    "hunyuan_v1_moe": family(32, 4096, 32),
    "hunyuan_vl_text": family(32, 4096, 32),
    "hy_v3": family(80, 4096, 64, kv=8, head_dim=128),
    "hyperclovax": family(32, 4096, 32),
    "internlm3": family(48, 4096, 32, kv=2, head_dim=128),
    "iquestcoder": family(80, 5120, 40, kv=8, head_dim=128),
    "jais2": family(32, 3328, 26),
    "laguna": family(40, 2048, 48, kv=8, head_dim=128),
    "mellum": family(28, 2304, 32, kv=4, head_dim=128),
    "minimax_m2": family(62, 3072, 48, kv=8, head_dim=128),
    "molmo2_text": family(36, 4096, 32, kv=8, head_dim=128),
    "nanochat": family(12, 768, 6),
    "nemotron": family(32, 6144, 48),
    "olmo": family(32, 4096, 32),
    "olmo2": family(32, 4096, 32),
    "olmoe": family(16, 2048, 16),
    "openai-gpt": family(12, 768, 12, mha=True),
    "opt": family(12, 768, 12, mha=True),
    "persimmon": family(36, 4096, 64, mha=True),
    "phi": family(24, 2048, 32),
    "qwen3_vl_text": family(32, 4096, 32, kv=32, head_dim=128),
    "sarvam_moe": family(19, 4096, 64, kv=4, head_dim=64),
    "seed_oss": family(64, 4096, 80, kv=8, head_dim=128),
    "smollm3": family(36, 2048, 16, kv=4),
    "solar_open": family(48, 4096, 64, kv=8, head_dim=128),
    "stablelm": family(32, 2560, 32, kv=32),
    "xglm": family(24, 1024, 16, mha=True, names={"heads": ("attention_heads", "num_attention_heads")}),
    "jetmoe": family(12, 2048, 32, kv=16, head_dim=128),
    # Full attention, code beside the weights: no class defaults.
    "aquila": family(),
    "arctic": family(),
    "baichuan": family(),
    "bailing_moe": family(),
    "bailing_moe_v2": family(),
    "btlm": family(),
    "deepseek": family(),
    "grok-1": family(),
    "internlm": family(),
    "internlm2": family(),
    "jais": family(),
    "mimo": family(pattern="windowed_from", use_sliding_window=False),
    "minicpm": family(),
    "orion": family(),
    "phi-msft": family(),
    "qwen": family(),
    "telechat": family(),
    "xverse": family(),
    "hunyuan": family(),
    "step3_text": family(names={"kv_heads": ("num_attention_groups",)}),
    # Every layer has the window, if there is one.
    "mistral": family(32, 4096, 32, kv=8, pattern="all_windowed", sliding_window=4096),
    "mixtral": family(32, 4096, 32, kv=8, pattern="all_windowed"),
    "ministral": family(32, 4096, 32, kv=8, pattern="all_windowed", sliding_window=4096),
    "ministral3": family(34, 4096, 32, kv=8, head_dim=128, pattern="all_windowed"),
    "phi3": family(32, 3072, 32, pattern="all_windowed"),
    "phi4_multimodal": family(32, 3072, 32, kv=8, pattern="all_windowed"),
    "phimoe": family(32, 4096, 32, kv=8, pattern="all_windowed"),
    "starcoder2": family(30, 3072, 24, kv=2, pattern="all_windowed"),
    "qwen3_moe": family(24, 2048, 32, kv=4, pattern="all_windowed", sliding_window=4096,
                        use_sliding_window=False),
    "qwen3_omni_moe_text": family(28, 2048, 28, kv=4, pattern="all_windowed"),
    "qwen3_vl_moe_text": family(24, 2048, 16, kv=16, pattern="all_windowed"),
    "voxtral_realtime_text": family(32, 4096, 32, kv=8, pattern="all_windowed", sliding_window=4096),
    "moshi": family(32, 4096, 32, pattern="all_windowed", sliding_window=3000),
    # A window from some layer on, and only if use_sliding_window says so.
    "qwen2": _windowed_from(28, 4096, 32, 4096, 32, kv=32, use_sliding_window=False),
    "qwen3": _windowed_from(28, 4096, 32, 4096, 32, kv=32, head_dim=128, use_sliding_window=False),
    "qwen2_vl_text": _windowed_from(80, 4096, 80, 8192, 64, kv=8, use_sliding_window=False),
    "qwen2_5_vl_text": _windowed_from(80, 4096, 80, 8192, 64, kv=8, use_sliding_window=False),
    "qwen2_5_omni_text": _windowed_from(28, 32768, 28, 3584, 28, kv=4, use_sliding_window=False),
    "dots1": _windowed_from(62, 4096, 62, 4608, 32, kv=32),
    "qwen2_moe": _windowed_from(28, 4096, 24, 2048, 16, kv=16, use_sliding_window=False, pattern="odd_below"),
    # A window everywhere except in every n-th layer.
    "gemma2": _full_every(2, 4096, 26, 2304, 8, kv=4, head_dim=256),
    "vaultgemma": _full_every(2, 4096, 26, 2304, 8, kv=4, head_dim=256),
    "gpt_oss": _full_every(2, 128, 36, 2880, 64, kv=8, head_dim=64),
    "gemma3_text": _full_every(6, 4096, 26, 2304, 8, kv=4, head_dim=256),
    "gemma3n_text": _full_every(5, 512, 35, 2048, 8, kv=2, head_dim=256, num_kv_shared_layers=15),
    "gemma4_text": _full_every(6, 512, 30, 2304, 8, kv=4, head_dim=256, **_GEMMA4),
    "gemma4_unified_text": _full_every(6, 1024, 30, 2304, 8, kv=4, head_dim=256, **_GEMMA4),
    "cohere2": _full_every(4, 4096, 40, 8192, 64),
    "cohere2_moe": _full_every(4, 4096, 40, 8192, 64, head_dim=128),
    "exaone4": _full_every(4, 4096, 32, 4096, 32, kv=32),
    "exaone_moe": _full_every(4, 4096, 32, 4096, 32, kv=32),
    "olmo3": _full_every(4, 4096, 32, 4096, 32),
    "afmoe": _full_every(4, 1024, 32, 2048, 16, head_dim=128),
    # A window everywhere except in layers 0, n, 2n, ...
    "cwm": _full_every(4, 8192, 64, 6144, 48, kv=8, head_dim=128, pattern="full_first_of"),
    "granite_swa": _full_every(4, 128, 24, 2560, 20, kv=4, pattern="full_first_of"),
    "granitemoe_swa": _full_every(4, 128, 32, 4096, 32, pattern="full_first_of"),
})
