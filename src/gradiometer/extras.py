"""The packages that pyproject.toml names, as the installed metadata has them."""

from __future__ import annotations

import re
from functools import cache
from importlib import metadata

__all__ = ["MISSING", "extras", "version_of"]

MISSING = "missing"
COLLECTIONS = ("all", "bench", "dev")  # made of the others


@cache
def extras() -> dict[str, tuple[str, ...]]:
    """The packages of the core and of each extra; nothing where Gradiometer is not installed."""
    groups: dict[str, tuple[str, ...]] = {"core": ()}
    for line in _requires():
        requirement, _, marker = line.partition(";")
        name = re.split(r"[\s<>=!~\[]", requirement.strip(), maxsplit=1)[0]
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", marker)
        group = extra[1] if extra else "core"
        if name != "gradiometer" and group not in COLLECTIONS:
            groups[group] = (*groups.get(group, ()), name)
    return groups


@cache  # each run asks for all that is loaded, and the metadata of thirty packages is 40 ms
def version_of(package: str) -> str:
    """Which version is installed, or `missing`."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return MISSING


def _requires() -> list[str]:
    try:
        return metadata.requires("gradiometer") or []
    except metadata.PackageNotFoundError:
        return []
