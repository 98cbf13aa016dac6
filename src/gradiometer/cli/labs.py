"""`gradiometer labs`: what can be trained, and what can be broken in it."""

from __future__ import annotations

from typing import Any

from gradiometer.cli.printing import console, print_json, table
from gradiometer.labs import LABS, Lab
from gradiometer.labs.faults import FAULTS, faults_of

__all__ = ["labs"]


def labs(*, as_json: bool) -> None:
    """Each lab with its faults."""
    if as_json:
        print_json({"labs": [_plain(lab) for lab in LABS.values()]})
        return
    out = console()
    out.print(
        table("lab", "length", "what it trains", rows=[(x.name, f"{x.length_key}=", x.summary) for x in LABS.values()])
    )
    out.print()
    faults = [(each.name, ", ".join(each.labs), each.summary) for each in FAULTS.values()]
    out.print(table("fault=", "lab", "what it breaks", rows=faults))


def _plain(lab: Lab) -> dict[str, Any]:
    faults = [{"name": each.name, "summary": each.summary, "needs": list(each.needs)} for each in faults_of(lab.name)]
    return {"name": lab.name, "summary": lab.summary, "length": lab.length_key, "faults": faults}
