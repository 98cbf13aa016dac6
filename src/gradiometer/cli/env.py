"""`gradiometer env`: what is installed, and how to get what is not."""

from __future__ import annotations

import platform
from typing import Any

from gradiometer.cli.commands import EnvRequest
from gradiometer.cli.printing import console, print_json, table
from gradiometer.extras import MISSING, extras, version_of

__all__ = ["env"]


def env(request: EnvRequest) -> None:
    """Versions of the core and of each extra's packages."""
    found = environment()
    if request.json:
        print_json(found)
        return
    out = console()
    out.print(
        f"gradiometer {found['gradiometer']} on Python {found['python']}, {found['platform']}\n"
    )
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
        out.print("\nto install missing extras:")
    for line in found["install"].values():
        out.print(f"  {line}")


def environment() -> dict[str, Any]:
    """The same as data."""
    versions = {
        extra: {name: version_of(name) for name in names} for extra, names in extras().items()
    }
    absent = [extra for extra, packages in versions.items() if MISSING in packages.values()]
    return {
        "gradiometer": version_of("gradiometer"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "extras": versions,
        "install": {extra: f'pip install "gradiometer[{extra}]"' for extra in absent},
    }
