"""What a file leaves out is what its configuration class says: every family against transformers 5.24.0."""

from dataclasses import replace

import pytest

from kvlib.errors import ConfigError
from kvlib.specs import KvShape
from kvlib.specs.hf_families_other import FAMILIES


def _reads_when_empty(family):
    try:
        return bool(KvShape.from_hf_config({"model_type": family}))
    except ConfigError:
        return False  # a field has no default, or the defaults do not fit each other (GLM-4 MoE's head size)


@pytest.fixture(scope="module")
def classes():
    return pytest.importorskip("transformers.models.auto.configuration_auto").CONFIG_MAPPING


# ChatGLM's class lies beside its weights and not in transformers.
@pytest.mark.parametrize("family", sorted(set(filter(_reads_when_empty, FAMILIES)) - {"chatglm"}))
def test_an_empty_config_reads_like_the_complete_one_of_its_class(family, classes):
    empty = KvShape.from_hf_config({"model_type": family})
    complete = KvShape.from_hf_config(classes[family]().to_dict() | {"model_type": family})
    assert empty == replace(complete, dtype=None)
    assert empty.assumed_fields
    assert set(complete.assumed_fields) <= {"global_head_dim"}  # Gemma 4's class keeps it in its layers' configs
