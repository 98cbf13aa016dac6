"""What the shell offers behind `gradiometer train LAB`: the faults of the lab."""

from __future__ import annotations

import typer

from gradiometer.cli.completing import names_that_begin

__all__ = ["overrides"]

FAULT = "fault"


def overrides(ctx: typer.Context, incomplete: str) -> list[str]:
    """The faults of the lab, as `fault=NAME`; bash takes that for three words, and wants the
    last."""
    from gradiometer_labs.faults import faults_of

    lab, before = ctx.params.get("lab"), ctx.params.get("overrides") or []
    names = [each.name for each in faults_of(str(lab))]
    if before[-2:] == [FAULT, "="] or (before[-1:] == [FAULT] and not incomplete):
        return names_that_begin(names, incomplete)
    return names_that_begin((f"{FAULT}={name}" for name in names), incomplete)
