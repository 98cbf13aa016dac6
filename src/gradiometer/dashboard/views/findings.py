"""The tab Findings: everything the doctor found in the runs, each with the curves it rests on, and
what it could not check."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np

from gradiometer.charts.model import (
    Axis,
    Chart,
    Level,
    Number,
    Span,
    TableOf,
    axis_of,
    info_of,
)
from gradiometer.charts.timeline import series_of, timeline
from gradiometer.dashboard.diagnoses import READING
from gradiometer.dashboard.request import OpenRun, ViewRequest
from gradiometer.dashboard.shape import Control, FindingCard, Option, Verdict, View
from gradiometer.dashboard.views.series import called, is_turned, said
from gradiometer.doctor.diagnosis import Diagnosis
from gradiometer.doctor.report import checks_run
from gradiometer.doctor.rule import Skipped
from gradiometer.errors import UnknownName
from gradiometer.metrics import resolve
from gradiometer.records import Evidence, Finding
from gradiometer.words import counted

__all__ = ["card_of", "findings", "verdict_of"]

SEVERITIES = ("info", "warn", "critical")
CHOICES = {
    "all": "all",
    "info": "info and above",
    "warn": "warn and above",
    "critical": "critical only",
}
REPOSITORIES = {
    "Lightning": "Lightning-AI/pytorch-lightning",
    "Megatron-LM": "NVIDIA/Megatron-LM",
    "NeMo-RL": "NVIDIA-NeMo/RL",
    "OneTrainer": "Nerogar/OneTrainer",
    "TRL": "huggingface/trl",
    "minimind": "jingyaogong/minimind",
    "ms-swift": "modelscope/ms-swift",
    "transformers": "huggingface/transformers",
    "verl": "volcengine/verl",
}
"""Where the issues and pull requests lie that findings refer to."""
ISSUES = re.compile(r"^(\S+) (?:issues?|pull requests?) (\d+(?: and \d+)*)")
ARXIV = re.compile(r"\barXiv[: ]?(\d{4}\.\d{4,5})\b", re.IGNORECASE)
MOST_CHARTS, MOST_OF_ONE = 40, 4
"""Charts of the view, and of one finding: after that a finding has words only."""
MOST_TIMELINES = 4
MOST_SAID, MOST_WHYS = 6, 3
SAID_LIVE = "reported during the training; the complete run does not show it"

LEVELS = {
    "explained_variance": (Level(value=0.0, label="as good as a constant"),),
    "grad/<block>/clip/ratio": (Level(value=1.0, label="not clipped"),),
    "grad/<block>/update_ratio": (
        Level(value=1e-2, label="usually too fast above"),
        Level(value=1e-4, label="usually slow below"),
    ),
    "grad/<block>/zero_fraction": (Level(value=0.7, label="dying ReLUs above"),),
    "zero_variance_groups": (Level(value=1.0, label="no group carries signal"),),
}
"""Values that the catalogue's healthy ranges name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A finding of a run."""

    place: int
    run: OpenRun
    label: str
    finding: Finding
    folded: tuple[Finding, ...]
    live: bool
    """Said by the live doctor, and not by the diagnosis of the run as it is."""


def findings(request: ViewRequest) -> View:
    """The findings of every run, the focus first; then what would let the other rules look."""
    at_least = request.query.option("severity", "all")
    if at_least not in CHOICES:
        raise UnknownName("severity", at_least, CHOICES, hint=f"(there are {', '.join(CHOICES)})")
    diagnoses = [request.latest_diagnosis(run).diagnosis for run in request.runs]
    cases = [
        case
        for place, (run, diagnosis) in enumerate(zip(request.runs, diagnoses, strict=True))
        for case in _cases(place, run, called(request, run), diagnosis)
    ]
    shown = [case for case in cases if _reaches(case.finding, at_least)]
    timelines = _timelines(request, diagnoses)
    cards, charts = _drawn(request, shown)
    return View(
        view="findings",
        title="Findings",
        runs=[run.id for run in request.runs],
        header=_header(request, diagnoses, cases, shown, cards),
        verdicts=[verdict_of(request, run) for run in request.runs],
        findings=cards,
        controls=[_control(at_least)],
        charts=[*timelines, *charts, *_skipped_table(request, diagnoses)],
    )


def _timelines(request: ViewRequest, diagnoses: Sequence[Diagnosis]) -> list[Chart]:
    """What happened in each run, in order; of many runs in the first of them."""
    made: list[Chart] = []
    for place, (run, diagnosis) in enumerate(zip(request.runs, diagnoses, strict=True)):
        series = series_of(diagnosis)
        if series is None or series not in run.names or len(made) == MOST_TIMELINES:
            continue
        several = len(request.runs) > 1
        chart = timeline(diagnosis, request.line(run, series), id=f"timeline-{place}")
        title = f"{chart.title}: {called(request, run)}" if several else chart.title
        made.append(replace(chart, title=title))
    return made


def _cases(place: int, run: OpenRun, label: str, diagnosis: Diagnosis) -> Iterator[_Case]:
    """What the diagnosis says, then what only the live doctor said, as it was said last."""
    told = {(finding.id, finding.block) for finding in (*diagnosis.findings, *diagnosis.folded)}
    only_live = {(finding.id, finding.block): finding for finding in run.log.findings()}
    said = [finding for key, finding in only_live.items() if key not in told]
    for live, listed in ((False, diagnosis.findings), (True, said)):
        for finding in listed:
            yield _Case(
                place=place,
                run=run,
                label=label,
                finding=finding,
                folded=diagnosis.folded,
                live=live,
            )


def _reaches(finding: Finding, at_least: str) -> bool:
    return at_least == "all" or SEVERITIES.index(finding.severity) >= SEVERITIES.index(at_least)


def _drawn(request: ViewRequest, cases: Sequence[_Case]) -> tuple[list[FindingCard], list[Chart]]:
    """A card for each, with its charts as long as there is room."""
    cards: list[FindingCard] = []
    charts: list[Chart] = []
    for case in cases:
        room = min(MOST_OF_ONE, MOST_CHARTS - len(charts))
        own = _charts(request, case, room, {chart.id for chart in charts})
        card = card_of(
            case.finding, case.run.id, folded=case.folded, charts=[chart.id for chart in own]
        )
        cards.append(replace(card, basis=f"{card.basis}, {SAID_LIVE}") if case.live else card)
        charts += own
    return cards, charts


def _charts(request: ViewRequest, case: _Case, room: int, taken: set[str]) -> list[Chart]:
    """The series its evidence names, with the steps it points at."""
    finding = case.finding
    named: dict[str, list[Evidence]] = {}
    for evidence in finding.evidence:
        if evidence.series in case.run.names:
            named.setdefault(evidence.series, []).append(evidence)
    stem = f"finding-{case.place}-{_plain(finding.id)}-{_plain(finding.block or 'all')}"
    charts: list[Chart] = []
    number = 0
    for series, readings in list(named.items())[: max(0, room)]:
        while f"{stem}-{number}" in taken:
            number += 1
        id = f"{stem}-{number}"
        taken.add(id)
        charts.append(
            Chart(
                id=id,
                kind="lines",
                title=said(series),
                section=f"{case.label}: {finding.title}"
                if len(request.runs) > 1
                else finding.title,
                subtitle="; ".join(dict.fromkeys(each.reading for each in readings)),
                x=Axis(title="step"),
                y=axis_of(series),
                lines=[
                    request.line(
                        case.run,
                        series,
                        series if len(request.runs) == 1 else case.label,
                        turned=is_turned(series),
                    )
                ],
                levels=_levels(case.run, series),
                spans=_spans(finding, readings),
                info=info_of(series),
            )
        )
    return charts


def _spans(finding: Finding, evidence: Sequence[Evidence]) -> list[Span]:
    """The steps each piece of evidence was read at; and since when, where that is another step."""
    spans = []
    for each in evidence:
        ends = [step for step in (each.first_step, each.last_step) if step is not None]
        if ends:
            said = f"step {ends[0]}" if ends[0] == ends[-1] else f"steps {ends[0]} to {ends[-1]}"
            spans.append(Span(first=ends[0], last=ends[-1], label=said, severity=finding.severity))
    since = finding.since_step
    if since is not None and since not in {span.first for span in spans}:
        spans.append(
            Span(first=since, last=None, label=f"since step {since}", severity=finding.severity)
        )
    return list(dict.fromkeys(spans))


def _levels(run: OpenRun, series: str) -> list[Level]:
    """What values are compared with: the clip's threshold, 0, the ends of a usual range."""
    known = resolve(series)
    if known is None or known[1] is not None:
        return []
    template = known[0].name
    if template in ("grad/<block>/norm/raw", "grad/<block>/norm/clipped"):
        threshold = series.rpartition("/norm/")[0] + "/clip/threshold"
        newest = run.log.newest_step
        if threshold not in run.names or newest is None:
            return []
        value = float(run.log.latest(threshold, np.array([newest], dtype=np.int64))[0])
        return [Level(value=value, label="clip threshold")] if 0 < value < np.inf else []
    if "cos" in template.rpartition("/")[2]:
        return [Level(value=0.0, label="at right angles")]
    return list(LEVELS.get(template, ()))


def _header(
    request: ViewRequest,
    diagnoses: Sequence[Diagnosis],
    cases: Sequence[_Case],
    shown: Sequence[_Case],
    cards: Sequence[FindingCard],
) -> list[str]:
    reading = sum(diagnosis.verdict == READING for diagnosis in diagnoses)
    pairs = list(zip(request.runs, diagnoses, strict=True))
    told = [pairs[0], *sorted(pairs[1:], key=lambda pair: not _serious(pair[1]))[: MOST_SAID - 1]]
    whose = [f"{called(request, run)}: " if len(pairs) > 1 else "" for run, _ in told]
    lines = [
        f"{name}{_found_said(diagnosis)}" for name, (_, diagnosis) in zip(whose, told, strict=True)
    ]
    rest = [diagnosis for run, diagnosis in pairs if run.id not in {each.id for each, _ in told}]
    if rest:
        fine = sum(diagnosis.state == "healthy" for diagnosis in rest)
        lines.append(f"{len(rest)} more runs: {fine} healthy.")
    if reading and len(pairs) > 1:
        lines.append(
            f"The doctor is still reading {reading} of {len(pairs)} runs; its findings appear"
            " automatically."
        )
    live = sum(case.live for case in shown)
    if live:
        lines.append(f"{counted(live, 'finding')} {SAID_LIVE}; marked below.")
    if len(shown) < len(cases):
        hidden = len(cases) - len(shown)
        lines.append(f"{counted(hidden, 'finding')} of lower severity not shown.")
    bare = sum(not card.charts and _drawable(case) for card, case in zip(cards, shown, strict=True))
    if bare:
        lines.append(f"{bare} findings have no charts here: put their run in focus to see them.")
    return lines


def _serious(diagnosis: Diagnosis) -> int:
    return sum(finding.severity != "info" for finding in diagnosis.findings)


def _found_said(diagnosis: Diagnosis) -> str:
    """How many findings, or that nothing is wrong; then how many checks could run."""
    if diagnosis.verdict == READING:
        return READING
    serious = _serious(diagnosis)
    notes = len(diagnosis.findings) - serious
    looked = checks_run(diagnosis)
    if not serious:
        return (
            f"{diagnosis.verdict} " + (f"For information only: {notes}. " if notes else "") + looked
        )
    return (
        f"{counted(serious, 'finding')} to act"
        f" on{f', {notes} for information' if notes else ''}. {looked}"
    )


def _drawable(case: _Case) -> bool:
    return any(evidence.series in case.run.names for evidence in case.finding.evidence)


def _control(at_least: str) -> Control:
    options = [Option(value=value, label=label) for value, label in CHOICES.items()]
    return Control(
        kind="choice", name="severity", label="Severity", value=at_least, options=options
    )


def _skipped_table(request: ViewRequest, diagnoses: Sequence[Diagnosis]) -> list[Chart]:
    """The rules that could not look, by the metric they lack, the most useful first."""
    by_metric: dict[str, list[tuple[int, Skipped]]] = {}
    for place, diagnosis in enumerate(diagnoses):
        for each in diagnosis.skipped:
            by_metric.setdefault(each.metric or each.why, []).append((place, each))
    many = len(request.runs) > 1
    ordered = sorted(
        by_metric.values(),
        key=lambda found: (-len({each.rule for _, each in found}), found[0][1].metric),
    )
    cells: list[list[Number]] = []
    for found in ordered:
        rules = sorted({each.rule for _, each in found})
        runs = [f"{len({place for place, _ in found})} of {len(request.runs)}"] if many else []
        whys = [why for why, _ in Counter(each.why for _, each in found).most_common()]
        how = "; ".join(whys[:MOST_WHYS]) + ("; ..." if len(whys) > MOST_WHYS else "")
        cells.append([found[0][1].metric or "-", ", ".join(rules), *runs, how])
    if not cells:
        return []
    columns = [
        "metric",
        "checks it enables",
        *(["runs concerned"] if many else []),
        "how to get it",
    ]
    num = len({each.rule for found in ordered for _, each in found})
    return [
        Chart(
            id="skipped",
            kind="table",
            title=f"{counted(num, 'check')} skipped: missing data",
            section="What could not be checked",
            subtitle="grouped by missing metric, the most useful metric first",
            wide=True,
            table=TableOf(columns=columns, cells=cells),
        )
    ]


def _plain(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text)


def verdict_of(request: ViewRequest, run: OpenRun) -> Verdict:
    """The doctor's sentence on a run, with the finding to act on first."""
    latest = request.latest_diagnosis(run)
    diagnosis = latest.diagnosis
    counted: Counter[str] = Counter(finding.severity for finding in diagnosis.findings)
    first = diagnosis.findings[0] if diagnosis.findings else None
    return Verdict(
        run=run.id,
        state=diagnosis.state,
        text=diagnosis.verdict,
        severity=_severity(diagnosis),
        finding=None if first is None else card_of(first, run.id, folded=diagnosis.folded),
        counts={severity: counted[severity] for severity in reversed(SEVERITIES)},
        step=latest.step,
    )


def card_of(
    finding: Finding, run_id: str, folded: Iterable[Finding] = (), charts: Sequence[str] = ()
) -> FindingCard:
    """A finding as the page shows it, with those of `folded` that it explains."""
    told = {each.id: each for each in folded}
    return FindingCard(
        run=run_id,
        id=finding.id,
        title=finding.title,
        severity=finding.severity,
        basis=finding.basis,
        since_step=finding.since_step,
        block=finding.block,
        evidence=[asdict(evidence) for evidence in finding.evidence],
        cause=finding.cause,
        fix=list(finding.fix),
        confirm=finding.confirm,
        references=[_linked(each) for each in finding.references],
        folded=[f"{id}: {told[id].title}" if id in told else id for id in finding.suppressed],
        charts=list(charts),
    )


def _severity(diagnosis: Diagnosis) -> Literal["fine", "warn", "critical", "unknown"]:
    """The colour of the state, and of the worst finding where that is worse."""
    worst = diagnosis.worst
    if diagnosis.state == "broken" or worst == "critical":
        return "critical"
    if diagnosis.state in ("not-learning", "concern") or worst == "warn":
        return "warn"
    return "fine" if diagnosis.state == "healthy" else "unknown"


def _linked(reference: str) -> str:
    """With addresses in place of the numbers of papers, issues and pull requests."""

    def addresses(found: re.Match[str]) -> str:
        where = REPOSITORIES.get(found[1])
        if where is None:
            return found[0]
        numbers = found[2].split(" and ")
        return " and ".join(f"https://github.com/{where}/issues/{number}" for number in numbers)

    return ISSUES.sub(addresses, ARXIV.sub(r"https://arxiv.org/abs/\1", reference))
