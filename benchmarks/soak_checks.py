"""What is asked of a soak, and whether it holds: each check with what was found beside its
bound."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.soak_counting import (
    Comparison,
    Tally,
    count_events,
    count_jsonl,
    count_run,
    opened,
    seconds_by_life,
    slope_per_hour,
)

if TYPE_CHECKING:
    from benchmarks.soak import Diary

__all__ = ["GONE_SECONDS", "Check", "complaints", "flat", "verdict"]

MIB = 2**20
LOST_SECONDS = 1.0
GONE_SECONDS = 30.0
"""By then the live doctor of a killed training has ended: it is nice, and may be importing or in
the middle of a look."""
GROWTH_MIB_PER_HOUR = 60.0
NOISE_MIB = {"training": 16.0, "doctor": 16.0, "dashboard": 64.0}
"""What memory may grow by whatever the time. After each kill ten pages ask for whole views at once,
on as many threads, and the C library keeps memory for each of them; a training takes most of a
minute to reach its size, the doctor looks at more when there is more to look at."""
SINK_FILES = ("metrics.jsonl", "tensorboard")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that must hold: what was found, beside its bound; a check without a bound only
    states."""

    name: str
    found: str
    bound: str = ""
    holds: bool = True
    numbers: Mapping[str, float] = field(default_factory=dict)


def verdict(diary: Diary) -> list[Check]:
    """Everything that is asked of a soak, from what it left behind."""
    entries = diary.entries()
    long, short = Tally.of_entries(entries), Tally.of_entries(entries, short=True)
    run = diary.run
    sinks = {
        "jsonl": (long, count_jsonl(run / "metrics.jsonl"), [run / "metrics.jsonl"]),
        "tensorboard": (
            short,
            count_events(run / "tensorboard"),
            sorted((run / "tensorboard").iterdir()),
        ),
    }
    return [
        _kept("run.db", Comparison.of(long, count_run(run))),
        _steps(run, long.newest),
        *(_sent(diary, name, entries, *of_sink[:2]) for name, of_sink in sinks.items()),
        _dropped(run),
        *_killed(diary),
        *_processes(diary),
        *_pages(diary, long.newest),
        *(flat(name, diary.sizes[name]) for name in ("training", "doctor", "dashboard")),
        _size("run.db", sorted(run.glob("run.db*")), long),
        Check(name="SQLite's log at its largest", found=f"{diary.largest_log / MIB:.0f} MiB"),
        *(_size(name, files, expected) for name, (expected, _, files) in sinks.items()),
    ]


def _kept(name: str, comparison: Comparison) -> Check:
    wrong = comparison.missing + comparison.surplus + len(comparison.wrong_steps)
    found = (
        f"{comparison.missing:,} of {comparison.expected:,} missing, {comparison.surplus:,} too"
        " many"
    )
    numbers = {
        "points": comparison.expected,
        "missing": comparison.missing,
        "surplus": comparison.surplus,
    }
    return Check(
        name=f"points in {name}",
        found=found,
        bound="none, every value equal",
        holds=not wrong,
        numbers=numbers,
    )


def _steps(run: Path, newest: int) -> Check:
    with closing(opened(run)) as db:
        query = (
            "SELECT step, value FROM points JOIN series ON id = series_id WHERE name = 'tick' ORDER"
            " BY step"
        )
        ticks = db.execute(query).fetchall()
    length = newest + 1
    holds = ticks == [(step, float(step)) for step in range(length)]
    found = f"{len(ticks):,} of {length:,}"
    return Check(
        name="steps in run.db",
        found=found,
        bound="all",
        holds=holds,
        numbers={"steps": length, "kept": len(ticks)},
    )


def _sent(
    diary: Diary, name: str, entries: list[tuple[int, Any]], expected: Tally, found: Tally
) -> Check:
    comparison = Comparison.of(expected, found)
    worst = max(
        seconds_by_life(entries, comparison.wrong_steps, 1 / diary.plan.rate).values(), default=0.0
    )
    last = len(entries) - 1  # was not killed
    ended_well = last not in seconds_by_life(entries, comparison.wrong_steps, 0.0)
    count = (
        f"{comparison.missing:,} of {comparison.expected:,} missing, {comparison.surplus:,} too"
        " many"
    )
    return Check(
        name=f"points in {name}",
        found=f"{count}; {worst:.2f} s at worst",
        bound=f"<= {LOST_SECONDS:g} s a kill",
        holds=worst <= LOST_SECONDS and ended_well and not comparison.surplus,
        numbers={
            "points": comparison.expected,
            "missing": comparison.missing,
            "worst_seconds": worst,
        },
    )


def _dropped(run: Path) -> Check:
    with closing(opened(run)) as db:
        (number,) = db.execute(
            "SELECT count(*) FROM events WHERE kind IN ('dropped', 'sink-dropped')"
        ).fetchone()
    return Check(
        name="events of dropped records",
        found=str(number),
        bound="0",
        holds=not number,
        numbers={"events": number},
    )


def _killed(diary: Diary) -> list[Check]:
    kills, wanted = diary.kills, diary.plan.kills
    worst = max((kill.lost_seconds for kill in kills), default=0.0)
    gone = max((kill.doctor_gone for kill in kills if kill.doctor_gone is not None), default=0.0)
    trained = [kill for kill in kills if kill.training]
    watched = sum(kill.doctor_gone is not None for kill in trained)
    training = sum(kill.training for kill in kills)
    intact = sum(kill.intact for kill in kills)
    return [
        Check(
            name="kill -9",
            found=f"{len(kills)}, {training} of them into a training step, {len(kills) - training}"
            " into its start",
            bound=str(wanted),
            holds=len(kills) == wanted,
            numbers={"kills": len(kills), "training": training},
        ),
        Check(
            name="lost by a kill, at worst",
            found=f"{worst:.2f} s; all together {sum(kill.lost_points for kill in kills):,} points",
            bound=f"<= {LOST_SECONDS:g} s",
            holds=worst <= LOST_SECONDS,
            numbers={"worst_seconds": worst},
        ),
        Check(
            name="files intact after a kill",
            found=f"{intact}",
            bound=str(wanted),
            holds=intact == wanted,
        ),
        Check(
            name="live doctor gone after a kill",
            found=f"{gone:.1f} s at the latest, of {watched} that {len(trained)} trainings had; "
            f"{diary.doctor_deaths} ended beside a living training",
            bound=f"<= {GONE_SECONDS:g} s, of half of them; 0",
            holds=gone <= GONE_SECONDS and 2 * watched >= len(trained) and not diary.doctor_deaths,
            numbers={"worst_seconds": gone, "deaths": diary.doctor_deaths},
        ),
    ]


def _processes(diary: Diary) -> list[Check]:
    last = f"training-{len(diary.lives) - 1:03d}"
    right = {
        name: (-9,) if name.startswith("training") and name != last else (0, -15)
        for name in diary.endings
    }
    wrong: dict[str, object] = {
        name: code for name, code in diary.endings.items() if code not in right[name]
    }
    if not len(diary.entries()[-1][1]):
        wrong[last] = "no step after the last resume"
    lines = [
        f"{file.stem}: {line}"
        for file in sorted(diary.plan.out.glob("*.err"))
        for line in complaints(file.read_text())
    ]
    strange = sorted(
        {file.name for file in diary.run.iterdir()}
        - {"run.db", "run.db-wal", "run.db-shm", *SINK_FILES}
    )
    return [
        Check(
            name="processes that ended otherwise", found=str(wrong or 0), bound="0", holds=not wrong
        ),
        Check(
            name="complaints in any stderr",
            found=f"{len(lines)}" + (f", first: {lines[0][:150]}" if lines else ""),
            bound="0",
            holds=not lines,
            numbers={"lines": len(lines)},
        ),
        Check(
            name="files left behind", found=", ".join(strange) or "0", bound="0", holds=not strange
        ),
    ]


USUAL = ("gradiometer: ", "nothing to show yet")
"""How the live doctor's findings begin, and what a page says of a folder whose training has not
begun."""


def complaints(text: str) -> list[str]:
    """Lines of a stderr that are neither a finding nor what a page says of an empty folder."""
    return [line for line in text.splitlines() if line.strip() and not line.startswith(USUAL)]


def _pages(diary: Diary, newest: int) -> list[Check]:
    file = diary.plan.out / "clients.json"
    pages = json.loads(file.read_text()) if file.exists() else []
    troubles = [trouble for page in pages for trouble in page["troubles"]]
    troubles += [
        f"a page of {page['tab']} never had a view"
        for page in pages
        if not page["told"].get("whole")
    ]
    seconds = np.array([second for page in pages for second in page["seconds"]] or [np.nan])
    told = {name: sum(page["told"].get(name, 0) for page in pages) for name in ("whole", "bytes")}
    behind = [newest - (page["newest"] or 0) for page in pages if page["tab"] == "overview"]
    median, late, worst = np.percentile(seconds, (50, 95, 100))
    return [
        Check(
            name=f"errors that {len(pages)} pages met",
            found=f"{len(troubles)}" + (f", first: {troubles[0][:150]}" if troubles else ""),
            bound=f"0, {diary.plan.clients} pages",
            holds=not troubles and len(pages) == diary.plan.clients,
            numbers={"errors": len(troubles)},
        ),
        Check(
            name="steps the overview is behind at the end",
            found=", ".join(map(str, behind)) or "no page",
            bound="0",
            holds=not any(behind) and bool(behind),
        ),
        Check(
            name="answers to pages",
            found=f"{len(seconds):,}, {told['whole']:,} of them whole views,"
            f" {told['bytes'] / MIB:.0f} MiB; median {median * 1e3:.0f} ms, 95 %"
            f" {late * 1e3:.0f} ms, worst {worst * 1e3:.0f} ms",
            numbers={
                "answers": len(seconds),
                "median_seconds": median,
                "p95_seconds": late,
                "worst_seconds": worst,
            },
        ),
    ]


def flat(name: str, samples: Sequence[tuple[float, float]]) -> Check:
    times, sizes = ([pair[place] for pair in samples] for place in (0, 1))
    slope = slope_per_hour(times, sizes) / MIB
    bound = slope_bound(times, NOISE_MIB[name])
    ends = (
        f"{sizes[len(sizes) // 3] / MIB:.0f} to {sizes[-1] / MIB:.0f} MiB"
        if sizes
        else "never seen"
    )
    return Check(
        name=f"RSS of the {name}",
        found=f"{slope:+.1f} MiB/h over {_window(times) * 60:.1f} min ({ends})",
        bound=f"<= {bound:.0f} MiB/h",
        holds=bool(sizes) and slope <= bound,
        numbers={"mib_per_hour": slope, "bound": bound},
    )


def slope_bound(times: Sequence[float], noise: float) -> float:
    """MiB an hour that memory may grow: in half an hour a leak of a kilobyte a step shows, in two
    minutes only a large one."""
    return max(GROWTH_MIB_PER_HOUR, noise / max(_window(times), 1e-3))


def _window(times: Sequence[float]) -> float:
    return (times[-1] - times[len(times) // 3]) / 3600 if times else 0.0


def _size(name: str, files: Sequence[Path], tally: Tally) -> Check:
    size, points = sum(file.stat().st_size for file in files), int(tally.points.sum())
    each = size / max(points, 1) * 1e6 / MIB
    found = f"{each:.1f} MiB a million points ({size / MIB:.1f} MiB, {points:,})"
    return Check(
        name=f"size of {name}", found=found, numbers={"bytes": size, "mib_per_million": each}
    )
