"""The page of the wards, and its short form on a terminal: what the figures mean for a reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["ward_lines", "ward_markdown"]

Document = Mapping[str, Any]
TRAINERS = {
    "sb3": "Stable-Baselines3",
    "torchrl": "torchrl",
    "trl": "TRL",
    "skrl": "skrl",
    "programs": "single-file programs",
}
VIEWS = {
    "full": "the doctor, on the complete run",
    "scalars": "the doctor, on the scalar log alone",
    "public": "published thresholds, on the scalar log",
    "judged": "the command of `--judge`, on the scalar log",
}
MISSES = 10


def ward_markdown(found: Document, *, command: str, picture: str, told: str) -> str:
    """The page, from the document `ward_summary` makes."""
    parts = [
        "<!-- Made by `gradiometer clinic --wards all`; `make clinic` makes it again. -->",
        "",
        "# Clinic results",
        "",
        *_lead(found),
        "",
        *_wards(found),
        "",
        f"![What was broken, and what the doctor said first.]({picture})",
        "",
        *_alarms(found["healthy"]),
        "",
        *_soon(found["detection"]),
        "",
        *_precision(found["precision"]),
        "",
        *_misses(found["by_fault"]),
        "",
        *_faults(found["by_fault"]),
        "",
        "## How it was measured",
        "",
        (
            f"`{command}`: {found['patients']} trainings, {found['cpu_seconds'] / 3600:.2f} CPU"
            f" hours. {told} [The clinic](guide/clinic.md) says what is counted;"
            " [the labs](clinic-labs.md) are counted apart."
        ),
        "",
    ]
    return "\n".join(parts)


def ward_lines(found: Document) -> Iterator[str]:
    """The short form."""
    for line in _lead(found):
        yield line.replace("**", "")
    yield ""
    for ward, one in found["wards"].items():
        top1, top3 = (_rate(one["accuracy"]["full"][top]) for top in ("top1", "top3"))
        healthy = one["healthy"]
        yield (
            f"{ward:<9} {one['faulty']} with a fault ({one['costly']} lose return), first right"
            f" {top1}, among three {top3}; {healthy['with_warning']} of {healthy['runs']} healthy"
            f" with a warning; {one['cpu_seconds']:.0f} CPU s"
        )


def _rate(rate: Document | None) -> str:
    return "-" if rate is None else f"{rate['share']:.0%} ({rate['low']:.0%} to {rate['high']:.0%})"


def _lead(found: Document) -> Iterator[str]:
    """Three sentences: how often it is right, in whose trainers, and how often it is wrong."""
    full, scalars = (found["accuracy"][view] for view in ("full", "scalars"))
    names = ", ".join(TRAINERS[name] for name in found["left_out"])
    if not found["left_out"]:
        yield "Rules were tuned on all of these trainers: their rows below say more than they would"
        yield "elsewhere."
        return
    if full["top1"] is None:
        yield "No training with a fault that lowers the return was diagnosed."
        return
    yield (
        f"If one line of your training is wrong and costs return, the doctor's **first finding is"
        f" right in {_rate(full['top1'])}** of the faults, and one of its first three in"
        f" {_rate(full['top3'])}. This is the mean over trainers that no rule was tuned on"
        f" ({names}); intervals are 95 %. Counted: {found['faulty']} trainings with"
        f" {found['faults']} faults, and {found['healthy']['runs']} healthy ones."
    )
    yield ""
    yield (
        f"From a scalar log alone the first finding is right in {_rate(scalars['top1'])}. Published"
        f" thresholds on the same logs: {_rate(found['accuracy']['public']['top1'])}."
    )
    healthy = found["healthy"]
    yield ""
    if healthy["runs"]:
        yield (
            f"Of {healthy['runs']} healthy trainings {healthy['with_warning']} got a warning, and"
            f" {healthy['with_critical']} a critical finding; the true rate of warnings is below"
            f" {healthy['upper_bound']:.0%} with 95 % confidence."
        )


def _wards(found: Document) -> Iterator[str]:
    yield "## In whose trainers"
    yield ""
    yield (
        "A fault counts once per trainer, however many algorithms, tasks and settings it was"
        " trained with. Faults that cost less than a tenth of what healthy trainings gain are not"
        " in the rates."
    )
    yield ""
    yield (
        "| trainer | faults | trainings with a fault (that cost return) | first right"
        " | among three | scalar log, first | healthy with a warning | wiring, 5 measured steps |"
    )
    yield "|---|---:|---:|---|---|---|---:|---|"
    for ward, one in found["wards"].items():
        rates = one["accuracy"]
        healthy = one["healthy"]
        yield (
            f"| {TRAINERS[ward]} | {one['faults']} | {one['faulty']} ({one['costly']}) |"
            f" {_rate(rates['full']['top1'])} | {_rate(rates['full']['top3'])} |"
            f" {_rate(rates['scalars']['top1'])} |"
            f" {healthy['with_warning']} of {healthy['runs']} |"
            f" {_rate(one['detection']['wiring']['5'])} |"
        )
    yield ""
    yield "| mean over the trainers | first right | among three |"
    yield "|---|---|---|"
    for view, rates in found["accuracy"].items():
        yield f"| {VIEWS[view]} | {_rate(rates['top1'])} | {_rate(rates['top3'])} |"


def _alarms(found: Document) -> Iterator[str]:
    yield "## False alarms"
    yield ""
    if not found["runs"]:
        yield "No healthy training was diagnosed."
        return
    yield (
        f"{found['with_warning']} of {found['runs']} healthy trainings got a warning,"
        f" {found['with_critical']} a critical finding."
    )
    for each in found["warned"]:
        yield f"- `{each['run']}`: {', '.join(each['said'])}"


def _soon(found: Document) -> Iterator[str]:
    yield "## How soon"
    yield ""
    yield (
        "Of the faults that the complete run names, the share that is among the first three"
        " findings when the run ends earlier:"
    )
    yield ""
    yield "| | 5 measured steps | 10 % of the run | 25 % | 50 % |"
    yield "|---|---|---|---|---|"
    for name in ("wiring", "dynamic"):
        cells = (_rate(found[name].get(when)) for when in ("5", "0.1", "0.25", "0.5"))
        yield f"| {name} | {' | '.join(cells)} |"


def _precision(found: Document) -> Iterator[str]:
    yield "## When it says so, is it so?"
    yield ""
    yield "Of the trainings where this finding came first: how many had what it names."
    yield ""
    yield "| finding | right |"
    yield "|---|---:|"
    for id, counts in found.items():
        yield f"| `{id}` | {counts['right']} of {counts['shown']} |"


def _misses(rows: Sequence[Document]) -> Iterator[str]:
    """Faults that cost return and are never among the first three."""
    missed = [row for row in rows if not row["harmless"] and not any(row["top3"])]
    yield "## What it misses"
    yield ""
    yield (
        f"{len(missed)} of {sum(not row['harmless'] for row in rows)} faults that cost return are"
        " among the first three findings in no training"
        + (f"; {MISSES} of them:" if len(missed) > MISSES else ":")
    )
    yield ""
    # Of each kind one before any twice: the kinds are the findings that would have named it.
    kinds: dict[str, int] = {}
    ranked = []
    for row in missed:
        kind = row["expected"][0][0]
        kinds[kind] = kinds.get(kind, 0) + 1
        ranked.append((kinds[kind], row))
    for _, row in sorted(ranked, key=lambda pair: pair[0])[:MISSES]:
        said = "; ".join(dict.fromkeys(", ".join(ids) or "nothing" for ids in row["said"]))
        yield (
            f"- `{row['ward']}/{row['fault']}`: {row['summary']} It said: {said}. Expected:"
            f" {' or '.join(row['expected'][0])}."
        )


def _faults(rows: Sequence[Document]) -> Iterator[str]:
    yield "## Every fault"
    yield ""
    yield "Trainings in which it was named first and among three; *0* costs nothing here."
    yield ""
    yield "| setup | fault | | expected | first | among three | scalars | said |"
    yield "|---|---|---|---|---:|---:|---:|---|"
    for row in rows:
        said = "; ".join(dict.fromkeys(", ".join(ids) or "nothing" for ids in row["said"]))
        counts = " | ".join(
            f"{sum(row[name])}/{len(row[name])}" for name in ("top1", "top3", "scalars_top1")
        )
        yield (
            f"| {row['ward']} | {row['fault']} | {'0' * row['harmless']} |"
            f" {' or '.join(row['expected'][0])} | {counts} | {said} |"
        )
