"""What many explorers ask for: a model (a preset or the reader's own file), a GPU, a KV dtype."""

from __future__ import annotations

from kvlib.explore import Choice, File
from kvlib.specs import GPUS, MODELS, get_model
from kvlib.specs.models import ModelSpec
from kvlib.specs.names import spoken

DTYPES = ("bf16", "fp8", "int8", "int4")
AS_BUILT = "as built"
MODEL_NAMES = [(name, spoken(name)) for name in MODELS]
GPU_NAMES = [(name, spoken(name)) for name in GPUS]


def model_controls(default: str) -> list:
    """A list of presets, and a file control for the reader's own model."""
    return [
        Choice("model", "Model", MODEL_NAMES, default=default),
        File("config", "Your model's config.json", accept=".json", replaces="model"),
    ]


def model_or_file(name: str, config: str) -> ModelSpec:
    """The model of the file the reader dropped, else the preset."""
    return ModelSpec.from_hf_config(config, name="your model") if config else get_model(name)


def assumed_note(spec: ModelSpec) -> str:
    """A sentence for a note: what the reader's file leaves out and its family fills in; empty if nothing.

    Examples
    --------
    >>> assumed_note(ModelSpec.from_hf_config({"model_type": "gpt2", "n_embd": 1024, "n_head": 16}))
    ' Not in your file, so the default of its family is taken: num_hidden_layers.'
    """
    assumed = spec.shape.assumed_fields
    return f" Not in your file, so the default of its family is taken: {', '.join(assumed)}." if assumed else ""
