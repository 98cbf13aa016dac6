"""`gradiometer env`: what is installed, and how to get what is not."""

from __future__ import annotations

import platform
import re
from importlib import metadata
from typing import Any

from gradiometer.cli.printing import console, print_json, table

__all__ = ["env"]

MISSING = "missing"
COLLECTIONS = ("all", "bench", "dev")  # made of the others


def env(*, as_json: bool) -> None:
    """Versions of the core and of each extra's packages."""
    found = environment()
    if as_json:
        print_json(found)
        return
    out = console()
    out.print(f"gradiometer {found['gradiometer']} on Python {found['python']}, {found['platform']}\n")
    rows = [
        (
            "ready" if extra not in found["install"] else MISSING,
            extra,
            ", ".join(f"{n} {v}" for n, v in packages.items()),
        )
        for extra, packages in found["extras"].items()
    ]
    out.print(table("", "extra", "packages", rows=rows))
    if found["install"]:
        out.print("\nto add what is missing:")
    for line in found["install"].values():
        out.print(f"  {line}")


def environment() -> dict[str, Any]:
    """The same as data."""
    extras = _extras()
    versions = {extra: {name: _version(name) for name in names} for extra, names in extras.items()}
    absent = [extra for extra, packages in versions.items() if MISSING in packages.values()]
    return {
        "gradiometer": _version("gradiometer"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "extras": versions,
        "install": {extra: f'pip install "gradiometer[{extra}]"' for extra in absent},
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return MISSING


def _extras() -> dict[str, list[str]]:
    """What pyproject.toml says, as installed: the packages of the core and of each extra that names some."""
    groups: dict[str, list[str]] = {"core": []}
    for line in metadata.requires("gradiometer") or []:
        requirement, _, marker = line.partition(";")
        name = re.split(r"[\s<>=!~\[]", requirement.strip(), maxsplit=1)[0]
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", marker)
        if name != "gradiometer" and (extra is None or extra.group(1) not in COLLECTIONS):
            groups.setdefault(extra.group(1) if extra else "core", []).append(name)
    return groups
