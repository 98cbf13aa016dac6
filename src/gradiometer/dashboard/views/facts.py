"""What was run, with which settings and versions, on what, from which commit: side by side for the runs that are shown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gradiometer.dashboard.desk import Open
from gradiometer.dashboard.shape import Fact

__all__ = ["facts_of", "leaves", "shortened"]

GROUPS = ("Run", "Config", "Versions", "Hardware", "Git")
UNDER = {"config": "Config", "versions": "Versions", "hardware": "Hardware", "git": "Git"}
"""Facts that hold a group each; their names need no prefix."""
ALONE = {"python": "Versions", "schema_version": "Versions", "platform": "Hardware"}
FIRST = ("started", "script", "argv", "cwd", "seed")
LONGEST = 160


def facts_of(runs: Sequence[Open]) -> list[Fact]:
    """Each fact once, with its value in every run that has it; it differs where a run has another, or none."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for run in runs:
        for group, name, value in _told(run.log.facts):
            found.setdefault((group, name), {})[run.id] = value
    ordered = sorted(found.items(), key=lambda item: (GROUPS.index(item[0][0]), _place(*item[0])))
    return [
        Fact(
            group=group, name=name, values={id: shortened(value) for id, value in values.items()},
            differs=len(set(values.values())) > 1 or len(values) < len(runs),
        )
        for (group, name), values in ordered
    ]  # fmt: skip


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Settings by dotted path, as text."""
    if isinstance(value, Mapping) and value:
        for key, inside in value.items():
            yield from leaves(inside, f"{path}.{key}" if path else str(key))
    else:
        yield path, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def shortened(text: str, longest: int = LONGEST) -> str:
    """A long text without its middle."""
    if len(text) <= longest:
        return text
    half = (longest - 3) // 2
    return f"{text[:half]} … {text[-half:]}"


def _told(facts: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for key, value in facts.items():
        if key == "argv" and isinstance(value, Sequence) and not isinstance(value, str):
            yield "Run", key, " ".join(map(str, value))
            continue
        group = UNDER.get(key) if isinstance(value, Mapping) else None
        for name, text in leaves(value, "" if group else key):
            yield group or ALONE.get(key, "Run"), name or key, text


def _place(group: str, name: str) -> int:
    """A few of the run come first; the others stay in the order they were told."""
    return FIRST.index(name) if group == "Run" and name in FIRST else len(FIRST)
