"""The families that cache something else: latents, recurrent states, encoder outputs; and the wrappers.

Class defaults as in ``hf_families``: Hugging Face transformers 5.24.0 unless a line says otherwise.
"""

from types import MappingProxyType

from kvlib.specs.hf_families import ATTENTION_FAMILIES, family


def _mla(layers, hidden, heads, *, rank=512, rope=64, pattern="full", state=None, names=(), **more):
    return family(
        layers, hidden, heads, reader="mla", pattern=pattern, state=state, names=names,
        kv_lora_rank=rank, qk_rope_head_dim=rope, **more,
    )


def _t5(layers, hidden, heads):
    names = {
        "layers": ("num_decoder_layers",), "hidden": ("d_model",), "heads": ("num_heads",),
        "head_dim": ("d_kv",),
    }
    return family(None, hidden, heads, head_dim=64, reader="encoder_decoder", mha=True, num_layers=layers,
                  names=names)


def _bart(layers, hidden, heads, reader="encoder_decoder", **more):
    names = {
        "layers": ("decoder_layers",), "heads": ("decoder_attention_heads",), "hidden": ("d_model",),
        "kv_heads": ("decoder_key_value_heads",), "head_dim": ("decoder_head_dim",),
    }
    return family(layers, hidden, heads, reader=reader, mha=True, names=names, **more)


def _gated_delta(*sizes, key=128, value=128, key_heads=16, value_heads=32, **more):
    return family(
        *sizes, **more, pattern="full_every_else_state", state="gated_delta",
        full_every=4, linear_conv_kernel_dim=4, linear_key_head_dim=key, linear_value_head_dim=value,
        linear_num_key_heads=key_heads, linear_num_value_heads=value_heads,
    )


def _ssm2(*sizes, ssm_heads, ssm_groups, ssm_state, ssm_head_dim=None, **more):
    return family(
        *sizes, state="mamba2", ssm_heads=ssm_heads, ssm_head_dim=ssm_head_dim, ssm_groups=ssm_groups,
        ssm_state=ssm_state, ssm_conv=4, ssm_expand=2, **more,
    )


def _ssm1(*sizes, pattern="all_state", **more):
    return family(*sizes, pattern=pattern, state="mamba1", ssm_state=16, ssm_conv=4, ssm_expand=2, **more)


OTHER_FAMILIES = MappingProxyType({
    # Multi-head latent attention, some with a sparse-attention indexer.
    "axk1": _mla(61, 7168, 64),
    "deepseek_v2": _mla(32, 4096, 32),
    "deepseek_v3": _mla(61, 7168, 128),
    "deepseek_v32": _mla(61, 7168, 128, index_head_dim=128),
    "glm4_moe_lite": _mla(47, 2048, 20),
    "glm_moe_dsa": _mla(78, 6144, 64, index_head_dim=128),
    "longcat_flash": _mla(28, 6144, 64, pattern="two_per_layer"),
    "minicpm3": _mla(62, 2560, 40, rank=256, rope=32),
    "mistral4": _mla(36, 4096, 32, rank=256),
    "sarvam_mla": _mla(32, 4096, 64),
    "youtu": _mla(32, 2048, 16),
    "kimi_linear": _mla(27, 2304, 32, pattern="kimi_linear", state="kimi_delta",
                        linear_head_dim=128, linear_num_heads=32, linear_conv_kernel_dim=4),
    # The file lies or is silent about KV heads; the architecture flags tell.
    "falcon": family(32, 4544, 71, reader="falcon", multi_query=True),
    "gpt_bigcode": family(12, 768, 12, reader="multi_query", multi_query=True),
    # No class of transformers': these three numbers are those of the code beside the weights of ChatGLM2-6B.
    "chatglm": family(28, 4096, 32, reader="chatglm", names={"head_dim": ("kv_channels",)}),
    # Attention settings in an object of their own, or a list with one entry per layer.
    "dbrx": family(24, 2048, 16, reader="attn_config"),
    "mpt": family(24, 2048, 16, reader="attn_config"),
    "deci": family(reader="block_configs"),
    "nemotron-nas": family(reader="block_configs"),
    "openelm": family(reader="heads_per_layer", names={"layers": ("num_transformer_layers",)}),
    # Two kinds of attention layer with head geometries of their own.
    "mimo_v2_flash": family(48, 4096, 64, kv=4, head_dim=192, v_head_dim=128, sliding_window=129,
                            reader="mimo_v2", pattern="mimo_v2"),
    "llama4_text": family(48, 5120, 40, kv=8, head_dim=128, pattern="chunked", attention_chunk_size=8192,
                          no_rope_layer_interval=4),
    "gpt_neo": family(24, 2048, 16, pattern="gpt_neo", mha=True, window_size=256,
                      names={"window": ("window_size",)}),
    # Recurrent layers, alone or between attention layers.
    "mamba": _ssm1(32, 768),
    "falcon_mamba": _ssm1(32, 768),
    "mamba2": _ssm2(64, 4096, ssm_heads=128, ssm_head_dim=64, ssm_groups=8, ssm_state=128,
                    pattern="all_state", names={"ssm_heads": ("num_heads",), "ssm_head_dim": ("head_dim",)}),
    "jamba": _ssm1(32, 4096, 32, kv=8, pattern="attn_layer_period", attn_layer_period=8, attn_layer_offset=4),
    "bamba": _ssm2(32, 4096, 32, kv=8, ssm_heads=128, ssm_groups=1, ssm_state=256,
                   pattern="attn_layer_indices"),
    "falcon_h1": _ssm2(32, 4096, 32, kv=8, ssm_heads=128, ssm_groups=1, ssm_state=256, pattern="all_both",
                       mamba_d_ssm=1024),
    "granitemoehybrid": _ssm2(32, 4096, 32, ssm_heads=128, ssm_groups=1, ssm_state=256, pattern="all_state"),
    "nemotron_h": _ssm2(None, 4096, 32, kv=8, head_dim=128, ssm_heads=128, ssm_head_dim=64, ssm_groups=8,
                        ssm_state=128, pattern="listed_only"),
    "zamba": _ssm1(76, 3712, 16, kv=16, attn_layer_period=6, attn_layer_offset=4,
                    reader="zamba", pattern="zamba", names={"head_dim": ("attention_head_dim",)}),
    "zamba2": _ssm2(54, 2560, 32, ssm_heads=8, ssm_groups=1, ssm_state=64,
                     reader="zamba", pattern="hybrid_layer_ids", names={"head_dim": ("attention_head_dim",)}),
    "qwen3_next": _gated_delta(48, 2048, 16, kv=2, head_dim=256),
    "qwen3_5_text": _gated_delta(32, 4096, 16, kv=4, head_dim=256),
    "qwen3_5_moe_text": _gated_delta(40, 2048, 16, kv=2, head_dim=256),
    "olmo_hybrid": _gated_delta(32, 3840, 30, key=96, value=192, key_heads=30, value_heads=30),
    "minimax": family(32, 4096, 32, kv=8, pattern="full_every_else_state", state="lightning", full_every=2),
    "minimax_text_01": family(pattern="listed_only", state="lightning"),
    "minimax_m1": family(pattern="listed_only", state="lightning"),
    "recurrent_gemma": family(26, 2560, 10, pattern="block_types", state="rg_lru", attention_window_size=2048,
                              conv1d_width=4, names={"window": ("attention_window_size",)}),
    "lfm2": family(32, 2560, 32, kv=8, pattern="full_attn_idxs", state="short_conv", conv_L_cache=3),
    "lfm2_moe": family(32, 2048, 32, kv=8, pattern="listed_only", state="short_conv", conv_L_cache=3),
    # An encoder beside the decoder.
    "mllama_text_model": family(40, 4096, 32, kv=8, reader="mllama",
                                cross_attention_layers=(3, 8, 13, 18, 23, 28, 33, 38)),
    "t5": _t5(6, 512, 8), "mt5": _t5(8, 512, 6), "umt5": _t5(8, 512, 6), "longt5": _t5(6, 512, 8),
    "switch_transformers": _t5(12, 768, 12),
    "bart": _bart(12, 1024, 16), "mbart": _bart(12, 1024, 16), "pegasus": _bart(12, 1024, 16),
    "pegasus_x": _bart(16, 1024, 16), "marian": _bart(12, 1024, 16), "blenderbot": _bart(24, 2560, 32),
    "blenderbot-small": _bart(8, 512, 16), "m2m_100": _bart(12, 1024, 16), "nllb-moe": _bart(12, 1024, 16),
    "plbart": _bart(6, 768, 12), "mvp": _bart(12, 1024, 16), "led": _bart(12, 1024, 16),
    "bigbird_pegasus": _bart(16, 1024, 16), "speech_to_text": _bart(6, 256, 4),
    "whisper": _bart(4, 384, 6, reader="whisper", max_source_positions=1500),
})

FAMILIES = MappingProxyType({**ATTENTION_FAMILIES, **OTHER_FAMILIES})

# Other names that published files use for a family above.
ALIASES = MappingProxyType({
    "RefinedWeb": "falcon", "RefinedWebModel": "falcon", "Yi": "llama", "code_llama": "llama",
    "kimi_k2": "deepseek_v3", "bigcode": "gpt_bigcode", "phi3_v": "phi3", "phi4mm": "phi4_multimodal",
    "llava_llama": "llama", "llava_mistral": "mistral", "llava_qwen": "qwen2",
    "MiniMaxText01": "minimax_text_01", "byt5": "t5", "nllb": "m2m_100", "stablelm_epoch": "stablelm",
})

# A model around a language model: the family of its text part, None where the file must say.
WRAPPERS = MappingProxyType({
    "apertus1p5": "apertus1p5_text", "aria": "aria_text", "audioflamingo3": "qwen2",
    "aya_vision": "cohere2", "blip-2": "opt", "cohere2_vision": "cohere2",
    "cohere_compass": "cohere_compass_text", "cosmos3_edge": "cosmos3_edge_text",
    "cosmos3_omni": "qwen3_vl_text", "deepseek_vl": "llama", "deepseek_vl_hybrid": "llama",
    "deepseek_vl_v2": "deepseek_v2", "emu3": "emu3_text_model", "ernie4_5_vl_moe": "ernie4_5_vl_moe_text",
    "exaone4_5": "exaone4", "fast_vlm": "qwen2", "fun_asr_nano": "qwen3", "fuyu": "persimmon",
    "gemma3": "gemma3_text", "gemma3n": "gemma3n_text", "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text", "glm46v": "glm4v_text", "glm4v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text", "glm_image": "glm_image_text", "glm_ocr": "glm_ocr_text",
    "glmasr": "llama", "glmga": "glm4v_text", "got_ocr2": "qwen2",
    "granite4_vision": "granite4_vision_text", "granite_docling": "granite_docling_text",
    "granite_speech": "granite", "granite_speech_plus": "granite", "h2ovl_chat": None,
    "hunyuan_vl": "hunyuan_vl_text", "hyperclovax_vision_v2": "hyperclovax", "idefics2": "mistral",
    "idefics3": "llama", "instructblip": "opt", "instructblipvideo": "opt", "internvl": "qwen2",
    "internvl_chat": None, "janus": "llama", "kimi_k25": "deepseek_v3", "kimi_vl": "deepseek_v3",
    "lfm2_vl": "lfm2", "lighton_ocr": "qwen3", "llama4": "llama4_text", "llava": "llama",
    "llava_next": "llama", "llava_next_video": "llama", "llava_onevision": "qwen2", "mistral3": "mistral",
    "mllama": "mllama_text_model", "molmo2": "molmo2_text", "multi_modality": "llama",
    "musicflamingo": "qwen2", "nemo_speechlm": "nemotron_h", "nemotron_h_omni": "nemotron_h",
    "NVLM_D": None, "omniasr": "llama", "ovis": None, "ovis2": "qwen2", "paligemma": "gemma",
    "perception_lm": "llama", "qianfan_ocr": "qwen3", "qwen2_5_omni": "qwen2_5_omni_thinker",
    "qwen2_5_omni_thinker": "qwen2_5_omni_text", "qwen2_5_vl": "qwen2_5_vl_text", "qwen2_audio": "qwen2",
    "qwen2_vl": "qwen2_vl_text", "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_asr": "qwen3", "qwen3_omni_moe": "qwen3_omni_moe_thinker",
    "qwen3_omni_moe_thinker": "qwen3_omni_moe_text", "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text", "shieldgemma2": "gemma3_text", "smolvlm": "llama",
    "step3_vl": "step3_text", "vibevoice": "qwen2", "vibevoice_asr": "qwen2", "video_llama_3": "qwen2",
    "video_llava": "llama", "vipllava": "llama", "voxtral": "llama",
    "voxtral_realtime": "voxtral_realtime_text",
})

# They read the whole text at once and generate nothing, so there is no KV cache to size.
ENCODER_ONLY = frozenset({
    "albert", "bert", "bert-generation", "big_bird", "camembert", "clip", "convbert", "data2vec-text",
    "deberta", "deberta-v2", "distilbert", "electra", "ernie", "esm", "eurobert", "flaubert", "funnel",
    "longformer", "luke", "megatron-bert", "mobilebert", "modernbert", "mpnet", "nomic_bert",
    "nystromformer", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "siglip",
    "squeezebert", "vit", "wav2vec2", "xlm-roberta", "xlm-roberta-xl", "xmod",
})
