"""The public surface is what `__all__` says, and nothing hides."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import gradiometer

SOURCE = Path(gradiometer.__file__).parent
MODULES = [
    file
    for file in sorted(SOURCE.rglob("*.py"))
    if file.name not in ("__init__.py", "__main__.py", "version.py")
]


def test_every_public_name_loads_and_has_a_docstring() -> None:
    for name in gradiometer.__all__:
        thing = getattr(gradiometer, name)
        assert name == "__version__" or thing.__doc__
    assert sorted(gradiometer.__all__) == dir(gradiometer)


def test_all_equals_what_can_be_loaded() -> None:
    assert set(gradiometer.__all__) - {"__version__"} == set(gradiometer._HOME)
    with pytest.raises(AttributeError, match="no attribute 'wach'"):
        gradiometer.wach  # noqa: B018


def test_each_module_names_what_it_offers() -> None:
    lacking = []
    for file in MODULES:
        name = "gradiometer." + ".".join(file.relative_to(SOURCE).with_suffix("").parts)
        module = importlib.import_module(name)
        lacking += [] if module.__doc__ else [f"{name} has no docstring"]
        offered = getattr(module, "__all__", ["__all__"])
        lacking += [f"{name} has no {each}" for each in offered if not hasattr(module, each)]
    assert lacking == []


def body_lines(function: ast.FunctionDef) -> int:
    """The lines of what it does, without signature and docstring."""
    first = function.body[1 if ast.get_docstring(function) and len(function.body) > 1 else 0]
    return (function.end_lineno or 0) - first.lineno + 1


def test_no_function_does_more_than_60_lines() -> None:
    long = [
        f"{file.relative_to(SOURCE)}:{node.lineno} {node.name}"
        for file in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and body_lines(node) > 60
    ]
    assert long == []
