"""The documentation site builds without a warning, has every page, and fetches nothing from
elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def leaves(nav: Any) -> Iterator[str]:
    """The pages of a navigation, whatever it is nested in."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from leaves(part)


CHAPTERS = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
NAV = list(leaves(CHAPTERS))
CAPABILITIES = [
    page
    for chapter in CHAPTERS
    for page in leaves([*chapter.values()])
    if {"Guide", "Integrations"} & {*chapter}
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it, elsewhere."""
    built = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--quiet",
        "--strict",
        "--site-dir",
        str(built),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(DOCS)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    return built


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(NAV) == PAGES


def test_the_page_of_a_capability_shows_a_picture_or_what_was_printed() -> None:
    shown = re.compile(r"^!\[|^```text$", re.MULTILINE)
    bare = [page for page in CAPABILITIES if not shown.search((DOCS / page).read_text("utf-8"))]
    assert bare == []


def test_every_page_and_no_script_is_on_the_site(site: Path) -> None:
    for page in NAV:
        assert (site / page).with_suffix(".html").is_file(), page
    assert not list(site.rglob("*.py*"))
    assert (site / "search" / "search_index.json").stat().st_size > 100_000


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    fetched = re.compile(
        r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=\"?((?:https?:)?//[^\"\s>]+)"
    )
    for page in site.rglob("*.html"):
        assert fetched.findall(page.read_text(encoding="utf-8")) == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(
            r"@import|url\([\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")
        ), sheet


def test_every_page_shows_what_it_is_written_to_show(site: Path) -> None:
    """A link out of the docs is the file's name, `<` is no tag, and a list after a sentence is a
    list."""
    assert "<code>examples/02_dead_term.py</code>" in (site / "guide" / "meter.html").read_text(
        encoding="utf-8"
    )
    assert "&lt;g_c, g&gt;" in (site / "reference" / "metrics-terms.html").read_text(
        encoding="utf-8"
    )
    assert "<li><code>failed</code>" in (site / "reference" / "api.html").read_text(
        encoding="utf-8"
    )
