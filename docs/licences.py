"""Write docs/licences.md: what is shipped, and what is depended on, with versions and licences.

Read off the installed packages; versions are those of constraints.txt.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "licences.md"
LONGEST = 60


def pinned() -> dict[str, str]:
    """The version of each package, by its name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if "==" in line)
    return {name.strip().lower(): version.strip() for name, version in pairs}


def licence_of(name: str) -> str:
    """What a package says of itself, in a line."""
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return "not installed where this page was made"
    said = about.get("License-Expression")
    classes = [c for c in about.get_all("Classifier") or () if c.startswith("License :: ")]
    known = [c.rpartition(" :: ")[2] for c in classes if c != "License :: OSI Approved"]
    text = (about.get("License") or "").strip().partition("\n")[0]
    return str(said or ", ".join(known) or text or "see its files")[:LONGEST]


def asked_for() -> tuple[set[str], dict[str, list[str]]]:
    """The packages of the core, and of each other one the extras that ask for it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core = {bare(each) for each in project["dependencies"]}
    extras: dict[str, list[str]] = {}
    for extra, needed in project["optional-dependencies"].items():
        for each in needed:
            if not each.startswith("gradiometer"):
                extras.setdefault(bare(each), []).append(extra)
    return core, extras


def bare(requirement: str) -> str:
    """The name in a requirement."""
    return re.split(r"[<>=!~;\[ ]", requirement, maxsplit=1)[0].lower()


def rows(names: Iterator[str] | list[str], versions: dict[str, str]) -> list[str]:
    """A line of the table each."""
    return [f"| {name} | {versions.get(name, '')} | {licence_of(name)} |" for name in names]


def page() -> str:
    """The page."""
    versions = pinned()
    core, extras = asked_for()
    head = ["| package | version | licence |", "|---|---|---|"]
    of_extras = [
        f"| {name} | {versions.get(name, '')} | {licence_of(name)} | {', '.join(extras[name])} |"
        for name in sorted(extras)
    ]
    others = [name for name in sorted(versions) if name not in core and name not in extras]
    return "\n".join(
        [
            "# Licences and versions",
            "",
            "Written by `docs/licences.py` from the packages that are installed; the versions are"
            " those of `constraints.txt`, which are tested together.",
            "",
            "The wheels hold Gradiometer alone (Apache-2.0): no code, font or script of others. The"
            " page of the dashboard is sent Plotly's script from the installed package `plotly`.",
            "",
            "## The core",
            "",
            *head,
            *rows(sorted(core), versions),
            "",
            "## Extras",
            "",
            "| package | version | licence | extra |",
            "|---|---|---|---|",
            *of_extras,
            "",
            "## What these need, for development and tests",
            "",
            *head,
            *rows(others, versions),
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
