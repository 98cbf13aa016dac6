"""Several runs at once: what became of them, what they share, and what sets some of them apart.

Seeds of one training, or the runs of a sweep. Where some learned and others did not, the fewer ones
are contrasted with the rest: settings whose values have nothing in common, and series that end
apart. Where all went the same way, a run whose outcome ends far from all others is.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradiometer import metrics
from gradiometer.doctor.diagnosis import Diagnosis, diagnose
from gradiometer.doctor.state import State
from gradiometer.errors import UsageError
from gradiometer.store.comparison import OWN, differences, quantities, read
from gradiometer.store.importers import logs_in, open_log
from gradiometer.store.logs import Log, warn
from gradiometer.store.reader import Run
from gradiometer.words import number, some

__all__ = [
    "Apart",
    "Contrast",
    "JudgedRun",
    "RunsDiagnosis",
    "SharedFinding",
    "diagnose_runs",
    "judged_run",
    "runs_diagnosis",
]

LEARNED: tuple[State, ...] = ("healthy", "concern")
FAILED: tuple[State, ...] = ("broken", "not-learning")
WORST_FIRST: tuple[State, ...] = (
    "broken",
    "not-learning",
    "concern",
    "unknown",
    "too-early",
    "not-a-run",
    "healthy",
)
SEVERITIES = ("critical", "warn", "info", None)
MOST_READ = 20
"""Runs whose series are compared: each is read once more for it."""
MOST_APART = 5
"""Settings, and series, that are told."""
GAP = 1.0
"""Between two groups of ends, in sizes of the wider group: nearer ones are chance."""
LEAST_GAP = 0.1
"""The same, of the size of the numbers: runs that agree to the last digit are apart at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRun:
    """A diagnosis, and what else is needed to compare it with others."""

    diagnosis: Diagnosis
    facts: Mapping[str, Any]
    rows: int
    """How many steps it has."""
    ends: Mapping[str, float] = field(default_factory=dict)
    """The mean of the last tenth of each series, by its name in the catalogue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFinding:
    """A finding of several runs."""

    id: str
    count: int
    title: str
    """As the worst of the runs has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """A setting or a series in which some runs have nothing in common with the others."""

    name: str
    here: str
    others: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """The runs that differ from most, and in what."""

    runs: tuple[str, ...]
    why: str
    """What became of them, and of the others."""
    settings: tuple[Apart, ...]
    only_own: bool
    """Whether settings are known, and only those differ that repetitions differ in: the seed."""
    series: tuple[Apart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsDiagnosis:
    """What the doctor says about several runs."""

    runs: tuple[Diagnosis, ...]
    """The worst first."""
    names: tuple[str, ...]
    """What sets the path of each apart from the others'."""
    states: Mapping[State, int]
    shared: tuple[SharedFinding, ...]
    """Findings worth acting on, by how many runs have them."""
    contrast: Contrast | None
    longest: Diagnosis

    @property
    def in_most(self) -> tuple[SharedFinding, ...]:
        """Those that more than half of the runs have."""
        return tuple(each for each in self.shared if 2 * each.count > len(self.runs))


def diagnose_runs(
    runs: Iterable[Run | Log | str | os.PathLike[str]],
    *,
    since: int | None = None,
    names: Mapping[str, str] | None = None,
) -> RunsDiagnosis:
    """What several runs share, and what sets some apart: seeds of one training, or a sweep.

    Runs or logs, open or by their paths; a folder stands for the runs in it. What cannot be read is
    left out with a warning. `since` and `names` are those of `diagnose`.
    """
    wanted = [one for given in runs for one in _each(given)]
    judged, problems = [], []
    for one in wanted:
        try:
            judged.append(_judged(one, since, names, compared=1 < len(wanted) <= MOST_READ))
        except UsageError as problem:
            problems.append(problem)
    if not judged:
        raise problems[0] if problems else UsageError("give at least one run")
    for each in problems:
        warn(f"not judged: {each}")
    return runs_diagnosis(judged)


def _each(given: Run | Log | str | os.PathLike[str]) -> Sequence[Run | Log | Path]:
    return [given] if isinstance(given, Run | Log) else logs_in(given)


def _judged(
    run: Run | Log | Path, since: int | None, names: Mapping[str, str] | None, *, compared: bool
) -> JudgedRun:
    if isinstance(run, Run | Log):
        return judged_run(run, since=since, names=names, compared=compared)
    with open_log(run) as opened:
        return judged_run(opened, since=since, names=names, compared=compared)


def judged_run(
    run: Run | Log,
    *,
    since: int | None = None,
    names: Mapping[str, str] | None = None,
    compared: bool = True,
) -> JudgedRun:
    """A run diagnosed; `compared`: with where its series end."""
    return JudgedRun(
        diagnosis=diagnose(run, since=since, names=names),
        facts=run.facts,
        rows=len(run.steps()["step"]),
        ends=_ends(run) if compared else {},
    )


def _ends(run: Run | Log) -> dict[str, float]:
    """Of what any training has: layers, experts and the meter's own numbers are left out."""
    ends = {}
    for name, source in quantities(run.names(), run.facts).items():
        known = metrics.resolve(name)
        whole = known is not None and (known[0].origin == "logged" or name.startswith("grad/all/"))
        reading = read(run, source) if whole else None
        if reading is not None and math.isfinite(reading.tail):
            ends[name] = reading.tail
    return ends


def runs_diagnosis(judged: Sequence[JudgedRun]) -> RunsDiagnosis:
    """Several diagnoses as one."""
    ordered = sorted(judged, key=_badness)
    names = _apart([each.diagnosis.run for each in ordered])
    states = Counter(each.diagnosis.state for each in ordered)
    return RunsDiagnosis(
        runs=tuple(each.diagnosis for each in ordered),
        names=tuple(names),
        states={state: states[state] for state in WORST_FIRST if state in states},
        shared=_shared([each.diagnosis for each in ordered]),
        contrast=_contrast(dict(zip(names, ordered, strict=True))),
        longest=max(judged, key=lambda each: each.rows).diagnosis,
    )


def _badness(judged: JudgedRun) -> tuple[int, int]:
    state, worst = judged.diagnosis.state, judged.diagnosis.worst
    return WORST_FIRST.index(state), SEVERITIES.index(worst)


def _apart(paths: Sequence[Path]) -> list[str]:
    """Each path without the folders that all share; a path that comes twice is numbered."""
    shared = os.path.commonpath([os.path.abspath(path.parent) for path in paths])
    named = [os.path.relpath(os.path.abspath(path), shared) for path in paths]
    seen: Counter[str] = Counter()
    told = []
    for name in named:
        seen[name] += 1
        told.append(f"{name} ({seen[name]})" if seen[name] > 1 else name)
    return told


def _shared(diagnoses: Sequence[Diagnosis]) -> tuple[SharedFinding, ...]:
    """Each finding that is worth acting on, the most common first."""
    counts: Counter[str] = Counter()
    titles: dict[str, str] = {}
    for diagnosis in diagnoses:
        serious = {f.id: f.title for f in reversed(diagnosis.findings) if f.severity != "info"}
        counts.update(serious.keys())
        titles = {**serious, **titles}
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return tuple(SharedFinding(id=id, count=count, title=titles[id]) for id, count in ordered)


def _contrast(runs: Mapping[str, JudgedRun]) -> Contrast | None:
    """The fewer ones against the rest; None where all went the same way."""
    if len(runs) < 2:
        return None
    learned = [name for name, each in runs.items() if each.diagnosis.state in LEARNED]
    failed = [name for name, each in runs.items() if each.diagnosis.state in FAILED]
    if learned and failed:
        here, others = (learned, failed) if len(learned) < len(failed) else (failed, learned)
        why = f"{_states(runs, here)}; the others are {_states(runs, others)}"
        return _set_apart(runs, here, others, why)
    return _far_off(runs)


def _states(runs: Mapping[str, JudgedRun], names: Sequence[str]) -> str:
    found = dict.fromkeys(runs[name].diagnosis.state for name in names)
    return " or ".join(found)


def _far_off(runs: Mapping[str, JudgedRun]) -> Contrast | None:
    """A single run whose outcome ends far from where all others end."""
    known = {name: each.diagnosis.outcome for name, each in runs.items()}
    ends = {name: each.end for name, each in known.items() if each is not None}
    if len(ends) < 3 or len({each.series for each in known.values() if each is not None}) > 1:
        return None
    for name, end in ends.items():
        others = [other for other in ends if other != name]
        gap = _gap([end], [ends[other] for other in others])
        if gap >= 2.0 * GAP:
            why = f"ends at {number(end)}; the others at {_range([ends[o] for o in others])}"
            return _set_apart(runs, [name], others, why)
    return None


def _set_apart(
    runs: Mapping[str, JudgedRun], here: Sequence[str], others: Sequence[str], why: str
) -> Contrast:
    settings, known = _settings(runs, here, others)
    told = [each for each in settings if not OWN.fullmatch(each.name.rpartition(".")[2])]
    return Contrast(
        runs=tuple(here),
        why=why,
        settings=tuple(told[:MOST_APART]),
        only_own=known and not told,
        series=tuple(_series(runs, here, others)[:MOST_APART]),
    )


def _settings(
    runs: Mapping[str, JudgedRun], here: Sequence[str], others: Sequence[str]
) -> tuple[list[Apart], bool]:
    """Settings with no value in common, where one side agrees on its; and whether any are known."""
    facts = {name: runs[name].facts for name in (*here, *others)}
    if not all(known.get("config") for known in facts.values()):
        return [], False
    found = []
    for row in differences(facts).differs:
        mine, theirs = (
            [row.values.get(name, "not set") for name in side] for side in (here, others)
        )
        # of one run each value is its own: only a side of several can agree on one
        agrees = len(facts) == 2 or any(len(set(v)) == 1 < len(v) for v in (mine, theirs))
        if row.group == "config" and agrees and not set(mine) & set(theirs):
            found.append(Apart(name=row.name, here=_listed(mine), others=_listed(theirs)))
    return found, True


def _listed(values: Sequence[str]) -> str:
    return some(dict.fromkeys(values), 3)


def _series(
    runs: Mapping[str, JudgedRun], here: Sequence[str], others: Sequence[str]
) -> list[Apart]:
    """Series that end apart, the widest gap first."""
    found = []
    for name in runs[here[0]].ends:
        mine = [runs[each].ends[name] for each in here if name in runs[each].ends]
        theirs = [runs[each].ends[name] for each in others if name in runs[each].ends]
        if len(mine) == len(here) and len(theirs) == len(others):
            gap = _gap(mine, theirs)
            found += [(gap, Apart(name=name, here=_range(mine), others=_range(theirs)))]
    ordered = sorted(found, key=lambda pair: -pair[0])
    return [apart for gap, apart in ordered if gap >= GAP]


def _gap(mine: Sequence[float], theirs: Sequence[float]) -> float:
    """How far two groups of numbers lie apart, in sizes of the wider one; below 0 they overlap."""
    between = max(min(mine) - max(theirs), min(theirs) - max(mine))
    width = max(max(mine) - min(mine), max(theirs) - min(theirs))
    size = max(map(abs, (*mine, *theirs)))
    return between / max(width, LEAST_GAP * size, 1e-12)


def _range(values: Sequence[float]) -> str:
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"
