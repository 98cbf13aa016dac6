"""docs/benchmarks.md, made from the rows; they are kept beside it as JSON, so that one part can be
measured again alone."""

from __future__ import annotations

import ast
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.rows import Row, three_digits

__all__ = ["Result", "about", "line", "load", "machine", "merged", "page", "save"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one part gave, when and on what; `error` if it failed on the way."""

    part: str
    rows: Sequence[Row]
    seconds: float
    error: str = ""
    machine: Mapping[str, str] = field(default_factory=dict)


def machine() -> dict[str, str]:
    """What the figures depend on, without the machine's name."""
    import torch

    with open("/proc/cpuinfo", encoding="utf-8") as told:
        models = [each.partition(":")[2].strip() for each in told if each.startswith("model name")]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": str(len(os.sched_getaffinity(0))),
        "processor": models[0] if models else platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "load before": f"{os.getloadavg()[0]:.1f}",
    }


def save(results: Sequence[Result], path: Path) -> None:
    """As JSON."""
    path.write_text(
        json.dumps([asdict(result) for result in results], indent=1, ensure_ascii=False) + "\n",
        "utf-8",
    )


def load(path: Path) -> list[Result]:
    """What `save` has written; nothing if it never has."""
    if not path.is_file():
        return []
    kept: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))
    return [Result(**{**each, "rows": [Row(**row) for row in each["rows"]]}) for each in kept]


def line(row: Row) -> str:
    """A row as it is told while the benchmark runs."""
    verdict = {None: "", True: "met", False: "MISSED"}[row.met]
    return (
        f"  {row.name:<72} {_value(row):>12}  {_spread(row):<20} {_target(row):>12} {verdict:<7}"
        f" {row.note}"
    )


def page(results: Sequence[Result], parts: Sequence[str] = ()) -> str:
    """The whole page; `parts` are all there are."""
    pieces = [*_head(results, parts), *_missed(results)]
    for result in results:
        pieces += [f"## {result.part.capitalize()}", _facts(result), about(result.part)]
        if result.error:
            pieces.append(f"**This part failed**: `{result.error}`")
        if result.rows:
            pieces.append("\n".join(_table(result.rows)))
    return "\n\n".join(pieces) + "\n"


def about(part: str) -> str:
    """The prose of a part, which is the docstring of its module."""
    source = (Path(__file__).parent / f"{part}.py").read_text("utf-8")
    return ast.get_docstring(ast.parse(source)) or ""


def _head(results: Sequence[Result], parts: Sequence[str]) -> Iterable[str]:
    minutes = sum(result.seconds for result in results) / 60
    yield "# Benchmarks"
    yield (
        "`make bench` measures all of this and writes this page; `python -m benchmarks PART`"
        f" measures one part. All parts together took {minutes:.1f} minutes."
    )
    if missing := [part for part in parts if part not in {result.part for result in results}]:
        yield f"**Not measured yet**: {', '.join(missing)}."
    yield (
        "Candidates take turns; memory is looked at in fresh processes. A ratio is taken inside"
        " each round; the figure is the median over rounds, and the spread runs from the 10th to"
        " the 90th percentile of the rounds. What is counted has no spread. Time inside hooks is"
        " that of all rounds together, for a round may have no measured step. No test asserts a"
        " time."
    )
    told = {tuple(sorted(_lasting(result.machine).items())) for result in results}
    yield "\n".join(
        f"- {', '.join(f'{name} {value}' for name, value in facts)}" for facts in sorted(told)
    )


def _lasting(facts: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in facts.items() if name not in ("date", "load before")}


def _facts(result: Result) -> str:
    when, load_before = (result.machine.get(name, "?") for name in ("date", "load before"))
    return (
        f"`python -m benchmarks {result.part}`, {when}, {result.seconds:.0f} s, load average before"
        f" {load_before}"
    )


def _missed(results: Sequence[Result]) -> Iterable[str]:
    rows = [(result.part, row) for result in results for row in result.rows]
    missed = [(part, row) for part, row in rows if row.met is False]
    judged = sum(row.met is not None for _, row in rows)
    yield "## Missed"
    told = [
        f"- {part}: {row.name}: **{_value(row)}**{_between(row)}, target {_target(row)}"
        for part, row in missed
    ]
    told += [f"- {result.part}: failed" for result in results if result.error]
    yield f"{judged - len(missed)} of {judged} targets are met." + (" Missed:" if told else "")
    if told:
        yield "\n".join(told)


def _table(rows: Iterable[Row]) -> Iterable[str]:
    yield "| | median | spread | rounds | target | verdict | beside it |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        verdict = {None: "", True: "met", False: "**missed**"}[row.met]
        cells = (
            row.name,
            _value(row),
            _spread(row),
            str(row.rounds or ""),
            _target(row),
            verdict,
            row.note,
        )
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _value(row: Row) -> str:
    limit = row.at_least if row.at_most is None else row.at_most
    at_it = (
        limit is not None and row.value != limit and three_digits(row.value) == three_digits(limit)
    )
    return f"{f'{row.value:.5g}' if at_it else three_digits(row.value)} {row.unit}"


def _between(row: Row) -> str:
    return f" ({_spread(row)})" if _spread(row) else ""


def _spread(row: Row) -> str:
    return f"{three_digits(row.low)} to {three_digits(row.high)}" if row.rounds > 1 else ""


def _target(row: Row) -> str:
    if row.at_most is not None:
        return f"≤ {row.at_most:,.6g} {row.unit}"
    return "" if row.at_least is None else f"≥ {row.at_least:,.6g} {row.unit}"


def merged(kept: Sequence[Result], new: Sequence[Result], order: Sequence[str]) -> list[Result]:
    """What was measured now in place of what was before, in the order of the parts; parts that are
    no more are dropped."""
    latest = {result.part: result for result in (*kept, *new)}
    return [latest[part] for part in order if part in latest]
