"""`gradiometer labs`: what can be trained, and what can be broken in it."""

from __future__ import annotations

from typing import Any

from gradiometer.cli.printing import console, print_json, table
from gradiometer_labs import LABS, Lab
from gradiometer_labs.cli.commands import LabsRequest
from gradiometer_labs.faults import Fault, all_faults, faults_of

__all__ = ["labs"]


def labs(request: LabsRequest) -> None:
    """Each lab with its faults."""
    if request.json:
        print_json({"labs": [_plain(lab) for lab in LABS.values()]})
        return
    out = console()
    out.print(
        table(
            "lab",
            "length",
            "what it trains",
            rows=[(x.name, f"{x.length_key}=", x.summary) for x in LABS.values()],
        )
    )
    out.print()
    faults = [(each.lab, _with_doses(each), each.summary) for each in all_faults()]
    out.print(table("lab", "fault=", "what it breaks", rows=faults))
    out.print(
        "\nfault=NAME:mild or :severe changes the dose where it is marked; fault=ONE+OTHER breaks"
        " two lines.",
        soft_wrap=True,
    )


def _with_doses(fault: Fault) -> str:
    return f"{fault.name} (:dose)" if fault.doses else fault.name


def _plain(lab: Lab) -> dict[str, Any]:
    faults = [
        {
            "name": each.name,
            "summary": each.summary,
            "needs": list(each.needs),
            "doses": dict(each.doses),
            "expected": list(each.expected),
        }
        for each in faults_of(lab.name)
    ]
    return {"name": lab.name, "summary": lab.summary, "length": lab.length_key, "faults": faults}
