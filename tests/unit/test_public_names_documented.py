"""Every public name says what it is, and what does something shows how it is used."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import is_dataclass
from functools import cached_property

import pytest

import kvlib

# Explorers are described by their titles, and the two scripts of kvlib.tensors that need torch or a network run elsewhere.
LEFT_OUT = ("kvlib.figures", "kvlib.tensors.triton_decode")


def public_modules() -> list[str]:
    """Rooms that list their names, and the modules of rooms that do not."""
    names = []
    for found in pkgutil.walk_packages(kvlib.__path__, "kvlib."):
        if found.name.startswith(LEFT_OUT):
            continue
        room = ".".join(found.name.split(".")[:2])
        lists_names = hasattr(importlib.import_module(room), "__all__")
        if found.name == room if lists_names else not found.ispkg:
            names.append(found.name)
    return names


def public_names(module_name: str) -> dict[str, object]:
    """The names a module lists, or else the functions and classes it defines."""
    module = importlib.import_module(module_name)
    if hasattr(module, "__all__"):
        return {name: getattr(module, name) for name in module.__all__}
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module_name
        and (inspect.isfunction(value) or inspect.isclass(value))
    }


NAMES = [(module, name) for module in public_modules() for name in public_names(module)]


def own_doc(value) -> str:
    """The docstring that was written for it: neither inherited nor the signature that dataclasses fill in."""
    doc = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    return "" if doc is None or doc.startswith(f"{value.__name__}(") else doc


def members(cls) -> list:
    """Public methods and properties that the class itself defines."""
    public = (value for name, value in vars(cls).items() if not name.startswith("_"))
    return [v for v in public if inspect.isroutine(v) or isinstance(v, (property, cached_property))]


def is_record(value) -> bool:
    """What only holds values is shown where it is returned; so is what can only be raised or derived from."""
    if not inspect.isclass(value):
        return False
    holds_values = (is_dataclass(value) or issubclass(value, tuple)) and not any(inspect.isroutine(member) for member in members(value))
    return holds_values or issubclass(value, Exception) or inspect.isabstract(value)


def has_example(value) -> bool:
    shown = [value, *members(value)] if inspect.isclass(value) else [value]
    return any(">>>" in (item.__doc__ or "") for item in shown)


@pytest.mark.parametrize("module, name", NAMES)
def test_public_names_are_documented(module, name):
    value = public_names(module)[name]
    if inspect.isclass(value) or inspect.isfunction(value):
        assert own_doc(value), f"{name} needs a docstring"
        if hasattr(importlib.import_module(module), "__all__"):
            assert is_record(value) or has_example(value), f"the docstring of {name} needs an example"


def test_the_walk_finds_every_room():
    rooms = {module.split(".")[1] for module, _ in NAMES}
    assert {"specs", "blocks", "prefix", "workloads", "serving", "cluster", "tiers", "cachegen", "explore"} <= rooms
    assert {"tensors", "primers", "cost", "ledger", "errors"} <= rooms
