"""The public surface is what `__all__` says, and nothing hides."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import gradiometer

SOURCE = Path(gradiometer.__file__).parent
MODULES = [
    file for file in sorted(SOURCE.rglob("*.py")) if file.name not in ("__init__.py", "__main__.py", "version.py")
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


@pytest.mark.parametrize("file", MODULES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_each_module_names_what_it_offers(file: Path) -> None:
    module = importlib.import_module("gradiometer." + ".".join(file.relative_to(SOURCE).with_suffix("").parts))
    assert module.__doc__
    for name in module.__all__:
        assert hasattr(module, name)


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda file: str(file.relative_to(SOURCE)))
def test_no_module_is_past_400_lines_and_no_function_past_60(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count("\n") <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno <= 60, node.name
