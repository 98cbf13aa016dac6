"""Phrases that read as if translated stay out of what users read (CONTRIBUTING, "How we write")."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from gradiometer.cli.app import app
from gradiometer.doctor.rule import rules

ROOT = Path(__file__).parents[2]
BANNED = (
    "a narrower --match",
    "another number rounds differently",
    "as it likes",
    "as the source reads it",
    "ask one at a time",
    "brings them",
    "by its words",
    "by their words",
    "by what they lack",
    "cries wolf",
    "for want of",
    "had what they need",
    "is a whole one",
    "lack what they need",
    "look, don't read",
    "made-up",
    "means are taken",
    "may look",
    "no weight feels it",
    "nobody told",
    "notices by itself",
    "of ours",
    "of yours",
    "one of them in full",
    "our fault",
    "pull against",
    "said plainly",
    "seen by themselves",
    "sound companion",
    "stands by itself",
    "steps back",
    "tell us with",
    "tells nothing apart",
    "unless told",
    "wanders",
    "what would tell",
    "who is not named",
    "wrote a config down",
)
PAGES = [
    ROOT / "README.md",
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if "reference" not in page.parts and page.name != "architecture.md"
    ),
]
"""Not the generated reference, whose words come from the code, nor what only developers read."""
SOURCES = [
    file
    for room in ("cli", "dashboard", "doctor", "integrations")
    for file in sorted((ROOT / "src" / "gradiometer" / room).rglob("*"))
    if file.suffix in {".py", ".js", ".html"}
]
"""What prints: commands, the page, verdicts and findings, notices of callbacks."""


def banned_in(text: str) -> list[str]:
    words = re.sub(r"\s+", " ", text.lower())
    return [phrase for phrase in BANNED if re.search(rf"\b{re.escape(phrase)}\b", words)]


def help_texts() -> Iterator[str]:
    importlib.import_module("gradiometer.cli.commands")
    importlib.import_module("gradiometer_labs.cli.commands")
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    for command in group.commands.values():
        yield command.help or ""
        yield from (getattr(option, "help", None) or "" for option in command.params)


def spoken(file: Path) -> str:
    """The strings of a source file, without its docstrings and comments."""
    text = file.read_text(encoding="utf-8")
    text = re.sub(r'"""(?:.|\n)*?"""|/\*(?:.|\n)*?\*/', "", text)
    return "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_plain_english(page: Path) -> None:
    assert banned_in(page.read_text(encoding="utf-8")) == []


def test_help_is_plain_english() -> None:
    texts = list(help_texts())
    assert len(texts) > 100
    assert [(text, found) for text in texts if (found := banned_in(text))] == []


def test_findings_are_plain_english() -> None:
    texts = [repr(rule.words) for rule in rules()]
    assert len(texts) > 50
    assert [(text, found) for text in texts if (found := banned_in(text))] == []


def test_what_is_printed_is_plain_english() -> None:
    told = {str(file.relative_to(ROOT)): banned_in(spoken(file)) for file in SOURCES}
    assert len(told) > 100
    assert {name: found for name, found in told.items() if found} == {}


def test_a_banned_phrase_is_found_across_lines_and_cases() -> None:
    assert banned_in("Cadence: 10 Unless\n  told.") == ["unless told"]
