"""How often a finding was right in the clinic, on trainings that no threshold was chosen on: `precision.json`, which
`make clinic` writes."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from gradiometer.records import Finding

__all__ = ["track_record"]


@cache
def _held_out() -> dict[str, tuple[int, int]]:
    kept = json.loads(files(__package__).joinpath("precision.json").read_text(encoding="utf-8"))
    return {id: (right, shown) for id, (right, shown) in kept.items() if shown}


def track_record(finding: Finding) -> str:
    """In words; empty for what is proved, and for what the clinic never saw first."""
    if finding.basis == "proved" or finding.id not in _held_out():
        return ""
    right, shown = _held_out()[finding.id]
    return f"right in {right} of {shown} held-out trainings that showed this first"
