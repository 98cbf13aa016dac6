"""Phrases that read as if translated stay out of what users read (CONTRIBUTING, "How we write")."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperGroup

from gradiometer.cli.main import verbs
from gradiometer.doctor.rule import rules

ROOT = Path(__file__).parents[2]
BANNED = (
    "a narrower --match",
    "also there, not read",
    "another number rounds differently",
    "anybody looked",
    "as it likes",
    "as the source reads it",
    "ask one at a time",
    "asked alike",
    "brings them",
    "by its words",
    "by their words",
    "by what they lack",
    "come to the meetings",
    "comes and goes",
    "cries wolf",
    "cry wolf",
    "for want of",
    "further ado",
    "further out it is a guess",
    "gave way to",
    "goes on to the bit",
    "going on to the bit",
    "had what they need",
    "hang together",
    "is a whole one",
    "is there already",
    "is whole",
    "lack what they need",
    "look, don't read",
    "made-up",
    "may look",
    "means are taken",
    "names of no library",
    "no weight feels it",
    "nobody told",
    "notices by itself",
    "nothing of that name",
    "of ours",
    "of yours",
    "one of them in full",
    "only afterwards",
    "our fault",
    "part the networks",
    "pull against",
    "ran off from",
    "routing still in it",
    "said plainly",
    "sample hotter",
    "seen by themselves",
    "sound companion",
    "stands by itself",
    "steps back",
    "tell us with",
    "tells nothing apart",
    "the loss betrays",
    "three pairs of eyes",
    "to be asked one thing",
    "trained for real",
    "unless told",
    "wanders",
    "weight ever feels",
    "what would tell",
    "who is not named",
    "wrote a config down",
)
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != "architecture.md"),
]
"""Not what only developers read."""
SOURCES = [
    file
    for folder in ("src/gradiometer", "labs/src/gradiometer_labs")
    for file in sorted((ROOT / folder).rglob("*"))
    if file.suffix in {".py", ".js", ".html"} or file.name == "metrics.toml"
]
"""Whatever may print: commands, the page, findings, warnings of the store, faults of the labs."""


def banned_in(text: str) -> list[str]:
    words = re.sub(r"\s+", " ", text.lower())
    return [phrase for phrase in BANNED if re.search(rf"\b{re.escape(phrase)}\b", words)]


def help_texts() -> Iterator[str]:
    importlib.import_module("gradiometer_labs.cli.commands")
    group = verbs()
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
