"""docs/sources.toml, the table of what the sources asked for: every test that it names exists, and
every command parses as it stands."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from functools import cache
from pathlib import Path

import pytest
from command_lines import parse

ROOT = Path(__file__).parents[2]
ROWS = tomllib.loads((ROOT / "docs" / "sources.toml").read_text(encoding="utf-8"))["row"]
COMMANDS = sorted({row["command"] for row in ROWS if "command" in row})


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_every_document_has_rows_and_every_row_a_test_that_exists() -> None:
    assert {row["document"][:3] for row in ROWS} == {"000", "001", "002", "003", "004"}
    for row in ROWS:
        path, _, name = row["test"].partition("::")
        assert name in names_in(path), row
        assert row["item"].strip()
    assert len({(row["document"], row["item"]) for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_parses(command: str) -> None:
    if command.startswith("python: "):
        ast.parse(command.removeprefix("python: "))
        return
    program, *words = shlex.split(command)
    if program == "bash":
        assert (ROOT / words[0]).is_file()
        return
    parse(command)


def test_a_row_that_lies_is_noticed() -> None:
    assert "test_that_nobody_wrote" not in names_in("tests/guards/test_sources.py")
    with pytest.raises(Exception, match=re.compile("no such option", re.IGNORECASE)):
        test_every_command_parses("gradiometer doctor RUN --no-such-option")
