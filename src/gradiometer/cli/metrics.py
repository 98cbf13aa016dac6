"""`gradiometer metrics`: the catalogue on the terminal."""

from __future__ import annotations

import dataclasses

from gradiometer.cli.commands import MetricsRequest
from gradiometer.cli.printing import console, print_json, table
from gradiometer.metrics import CATALOGUE, Alias, Metric, find

__all__ = ["metrics"]


ORIGINS = {
    "logged": "given to meter.log",
    "terms": "measured by meter.terms",
    "anatomy": "measured by gradiometer analyze and gm.anatomy",
    "replicates": "measured by gradiometer variance and gm.replicates",
}


def metrics(request: MetricsRequest) -> None:
    """One metric in full, or a line for each."""
    if request.name:
        metric, alias = find(request.name)
        if request.json:
            print_json(dataclasses.asdict(metric))
        else:
            _print_one(metric, alias, request.name)
    elif request.json:
        print_json({"metrics": [dataclasses.asdict(metric) for metric in CATALOGUE.values()]})
    else:
        rows = [
            (metric.name, metric.origin, _first_sentence(metric.meaning))
            for metric in CATALOGUE.values()
        ]
        console().print(table("name", "from", "meaning", rows=rows))
        console().print(
            "\n`gradiometer metrics NAME` shows the healthy range and what to do outside it"
        )


def _first_sentence(text: str) -> str:
    return text.split(". ")[0].split(": ")[0].rstrip(".")


def _print_one(metric: Metric, alias: Alias | None, asked: str) -> None:
    out = console()
    out.print(metric.name, style="bold")
    if alias is not None:
        sign = "with the opposite sign" if alias.sign < 0 else ""
        estimator = f"estimator {alias.estimator}" if alias.estimator else ""
        how = ", ".join(part for part in (sign, estimator) if part)
        out.print(f"{asked} is {alias.library}'s name for it{', ' + how if how else ''}")
    origin = ORIGINS.get(metric.origin, f"measured in tier {metric.origin}")
    out.print(f"{metric.meaning}\n")
    for label, text in (
        ("unit", metric.unit),
        ("from", origin),
        ("scale", metric.scale),
        ("healthy", metric.healthy),
        ("because", metric.source),
        ("to do", metric.remedy),
        ("also", ", ".join(f"{alias.name} ({alias.library})" for alias in metric.aliases)),
    ):
        if text:
            out.print(f"{label:>8}  {text}")
