"""What README and docs show of the command line: each command parses as it stands, and what is
printed of logs that are in tests/fixtures is what the doctor prints today."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_lines import parse

import gradiometer as gm
from gradiometer.doctor.report import as_text

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if "reference" not in page.parts),
]
BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
FIXTURE = re.compile(r"\$ gradiometer doctor (tests/fixtures/\S+)\n(.*)", re.DOTALL)
REFUSED = {"gradiometer train cartpole sed=2"}
"""Shown with the error that they end in."""


def commands(page: Path) -> Iterator[str]:
    """Each `gradiometer ...` of a page's blocks: after `$ ` where the output follows."""
    for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        start = {"bash": "", "console": r"\$ ", "text": r"\$ "}.get(language)
        if start is None:
            continue
        joined = re.sub(r" *\\\n *", " ", text)
        for line in re.findall(rf"^ *{start}(?:\w+=\S+ )*(gradiometer .*)$", joined, re.MULTILINE):
            for part in re.split(r" && | \| | ;? ?done$|; done", line):
                if part.startswith("gradiometer "):
                    yield part.strip()


FOUND = sorted({(command, page.name) for page in PAGES for command in commands(page)})


def test_commands_are_found_on_the_pages() -> None:
    assert len(FOUND) > 100
    assert {"README.md", "recipes.md", "index.md", "labs.md"} <= {page for _, page in FOUND}


@pytest.mark.parametrize("command", sorted({command for command, _ in FOUND} - REFUSED))
def test_a_command_of_the_docs_parses(command: str) -> None:
    plain = re.sub(r"\$\{?seed\}?", "1", command)
    parse(" ".join(shlex.quote(word) for word in words(plain)))


def words(command: str) -> list[str]:
    """Without what a shell would put in the place of its variables and redirections."""
    split = shlex.split(command.replace("...", ""), comments=True)
    kept = [word for word in split if not word.startswith("$")]
    return kept[: kept.index(">")] if ">" in kept else kept


TRANSCRIPTS = [
    pytest.param(found[1], found[2], id=f"{page.name}:{found[1]}")
    for page in PAGES
    for _, block in BLOCK.findall(page.read_text(encoding="utf-8"))
    if (found := FIXTURE.match(block))
]


@pytest.mark.parametrize(("log", "shown"), TRANSCRIPTS)
def test_what_a_page_shows_of_a_log_is_what_the_doctor_prints(
    log: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines, in their order; `...` stands for any others. Counts of checks grow with the rules."""
    monkeypatch.chdir(ROOT)
    printed = iter(counted(as_text(gm.diagnose(log))).splitlines())
    for line in counted(shown).splitlines():
        if line != "...":
            assert line in printed, f"the doctor does not print: {line}"


def counted(text: str) -> str:
    return re.sub(r"\b\d+ (of \d+ )?(?=checks|skipped|need)", "# ", text)


def test_a_command_that_does_not_parse_is_noticed() -> None:
    with pytest.raises(Exception, match=re.compile("no such option", re.IGNORECASE)):
        parse("gradiometer doctor RUN --no-such-option")
