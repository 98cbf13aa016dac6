"""The clinic's page: every figure beside its target, met or missed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["markdown"]

PARTS = {"all": "all", "tuned": "rules were tuned on", "held_out": "held out"}
VIEWS = {"full": "our store", "scalars": "scalar log alone", "public": "public thresholds"}
TARGETS = {("full", "top1"): 0.9, ("full", "top3"): 0.97, ("scalars", "top1"): 0.7}
MOST_WARNED = 2
FEWEST_HEALTHY = 124


def markdown(found: Mapping[str, Any], *, command: str, picture: str, told: str) -> str:
    """The page, from the document `summary` makes. `told` says when and where it was measured."""
    parts = [
        "<!-- Made by `gradiometer clinic`; `make clinic` makes it again. -->",
        "",
        "# Clinic results on our own labs",
        "",
        (
            f"`{command}`: {found['patients']} real trainings, {found['faults']} faults injected as"
            f" changed lines, {found['cpu_seconds'] / 3600:.2f} CPU hours. {told}"
        ),
        "",
        *_targets(found),
        "",
        *_accuracy(found),
        "",
        f"![What was expected, and what was said first.]({picture})",
        "",
        *_healthy(found["healthy"]),
        "",
        *_detection(found["detection"]),
        "",
        *_precision(found["precision"]),
        "",
        *_confusable(found["confusable"]),
        "",
        *_faults(found["by_fault"]),
        "",
    ]
    return "\n".join(parts)


def _rate(rate: Mapping[str, Any] | None) -> str:
    return "-" if rate is None else f"{rate['share']:.0%} ({rate['low']:.0%} to {rate['high']:.0%})"


def _targets(found: Mapping[str, Any]) -> Iterator[str]:
    """Each target, what was reached, and whether that is enough."""
    yield "| target | reached | |"
    yield "|---|---|---|"
    for (view, top), target in TARGETS.items():
        rate = found["accuracy"]["all"][view][top]
        yield _line(
            f"{_top(top)} from {VIEWS[view]} ≥ {target:.0%}",
            _rate(rate),
            rate is not None and rate["share"] >= target,
        )
    healthy = found["healthy"]
    yield _line(
        "no critical on a healthy run", f"{healthy['with_critical']}", healthy["with_critical"] == 0
    )
    enough = healthy["with_warning"] <= MOST_WARNED and healthy["runs"] >= FEWEST_HEALTHY
    reached = f"{healthy['with_warning']} of {healthy['runs']}"
    yield _line(
        f"at most {MOST_WARNED} of ≥ {FEWEST_HEALTHY} healthy runs with a warning", reached, enough
    )
    wiring, dynamic = found["detection"]["wiring"]["5"], found["detection"]["dynamic"]["0.5"]
    yield _line(
        "wiring faults within 5 measured steps",
        _rate(wiring),
        wiring is not None and wiring["share"] == 1,
    )
    yield _line(
        "dynamic ones before half of the run",
        _rate(dynamic),
        dynamic is not None and dynamic["share"] == 1,
    )


def _line(target: str, reached: str, met: bool) -> str:
    return f"| {target} | {reached} | {'met' if met else '**missed**'} |"


def _top(name: str) -> str:
    return f"top {name.removeprefix('top')}"


def _accuracy(found: Mapping[str, Any]) -> Iterator[str]:
    yield "## How often the cause is named"
    yield ""
    yield (
        "One fault in its usual dose, which lowers the return. The first finding names it (top 1),"
        " or one of the first three (top 3). A fault is the unit, its labs and seeds drawn"
        " together; intervals are 95 %."
    )
    yield ""
    yield (
        "| trainings | faults | "
        + " | ".join(f"{VIEWS[view]}, {_top(top)}" for view in VIEWS for top in ("top1", "top3"))
        + " |"
    )
    yield "|---|---:|" + "---|" * 6
    rows = {PARTS[part]: rates for part, rates in found["accuracy"].items()}
    rows |= {f"dose: {dose}": rates for dose, rates in found["doses"].items()}
    rows |= {
        "two faults at once": found["doubles"],
        "faults that cost nothing": found["harmless"]["accuracy"],
    }
    for name, rates in rows.items():
        counted = rates["full"]["top1"]
        cells = " | ".join(_rate(rates[view][top]) for view in VIEWS for top in ("top1", "top3"))
        yield f"| {name} | {0 if counted is None else counted['clusters']} | {cells} |"
    yield ""
    yield (
        "With two faults the first finding must name either, the first three both. Public"
        " thresholds are those of other tools, as they stand, on the scalar log."
    )
    if found["harmless"]["faults"]:
        yield (
            "Faults that cost nothing here:"
            f" {', '.join(f'`{name}`' for name in found['harmless']['faults'])}."
        )


def _healthy(found: Mapping[str, Any]) -> Iterator[str]:
    yield "## Healthy trainings"
    yield ""
    yield (
        f"{found['runs']} runs, fast, slow, noisy and converged: {found['with_warning']} with a"
        f" warning, {found['with_critical']} with a critical finding. The true rate is below"
        f" {_percent(found['upper_bound'])} with 95 % confidence. {found['alarms_per_1000_steps']}"
        f" false alarms per 1,000 measured steps (of {found['measured_steps']}),"
        f" {found['alarms_per_run']} per run."
    )
    for each in found["warned"]:
        yield f"- `{each['run']}`: {', '.join(each['said'])}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _detection(found: Mapping[str, Any]) -> Iterator[str]:
    yield "## How soon"
    yield ""
    yield (
        "Of the faults that the whole run names, the share that it names among its first three"
        " findings when it ends earlier:"
    )
    yield ""
    yield "| | 5 measured steps | 10 % of the run | 25 % | 50 % |"
    yield "|---|---|---|---|---|"
    for name in ("wiring", "dynamic"):
        yield (
            f"| {name} | "
            + " | ".join(_rate(found[name].get(when)) for when in ("5", "0.1", "0.25", "0.5"))
            + " |"
        )


def _precision(found: Mapping[str, Any]) -> Iterator[str]:
    yield "## When it says so, is it so?"
    yield ""
    yield (
        "Of all trainings where this finding came first, not as information: how many had what it"
        " names."
    )
    yield ""
    yield "| finding | right | held out |"
    yield "|---|---:|---:|"
    for id, counts in found.items():
        right, shown = counts["held_out"]
        yield (
            f"| `{id}` | {counts['right']} of {counts['shown']} |"
            f" {f'{right} of {shown}' if shown else '-'} |"
        )


def _confusable(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "## Pairs that are easily confused"
    yield ""
    yield "| pair | the first called the second | the second called the first |"
    yield "|---|---:|---:|"
    for each in found:
        one, other = each["one_as_other"], each["other_as_one"]
        yield f"| {' and '.join(each['pair'])} | {one[0]} of {one[1]} | {other[0]} of {other[1]} |"


def _faults(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "## Every fault"
    yield ""
    yield "Seeds named at first / among three; *h* is held out, *0* costs nothing here."
    yield ""
    yield "| ward | fault | | expected | top 1 | top 3 | scalars | said |"
    yield "|---|---|---|---|---:|---:|---:|---|"
    for row in found:
        marks = " ".join([*["h"] * row["held_out"], *["0"] * row["harmless"]])
        expected = " + ".join(" or ".join(ids) for ids in row["expected"])
        said = "; ".join(dict.fromkeys(", ".join(ids) or "nothing" for ids in row["said"]))
        counts = " | ".join(
            f"{sum(row[name])}/{len(row[name])}" for name in ("top1", "top3", "scalars_top1")
        )
        yield (
            f"| {row['ward']} | {row['fault']} ({row['catalogue']}) | {marks} | {expected} |"
            f" {counts} | {said} |"
        )
