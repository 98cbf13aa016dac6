"""A diagnosis as lines of text that fit a screen: the verdict, the causes in full, the rest in a line each."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from gradiometer.doctor.diagnosis import Diagnosis
from gradiometer.doctor.precision import track_record
from gradiometer.doctor.report.further import lacking, measure_it
from gradiometer.doctor.report.plain import shared_causes
from gradiometer.doctor.rule import Skipped
from gradiometer.records import Evidence, Finding

__all__ = ["as_text", "headline", "labelled", "several_as_text"]

IN_FULL, IN_SHORT = 1, 2
"""Findings that are told whole, and those up to which evidence and fix are; the others have a line each, so that a report
fits one screen."""
LABELS = 10
MOST_SCALARS = 5
MOST_EVIDENCE = 4
SEVERITIES = ("critical", "warn", "info", None)


def as_text(diagnosis: Diagnosis, *, width: int = 100, verbose: bool = False) -> str:
    """The report for a terminal; `verbose` tells every finding whole and lists what could not be checked."""
    return "\n".join(_lines(diagnosis, width, verbose=verbose))


def _lines(diagnosis: Diagnosis, width: int, *, verbose: bool) -> Iterator[str]:
    yield from _wrapped(f"{diagnosis.run}: {diagnosis.verdict}", width)
    told = len(diagnosis.findings) if verbose else IN_SHORT
    for place, finding in enumerate(diagnosis.findings[:told]):
        yield ""
        yield from (_finding if verbose or place < IN_FULL else _in_short)(finding, width)
    if diagnosis.findings[told:]:
        yield ""
        yield "also:"
        for finding in diagnosis.findings[told:]:
            yield from _wrapped(f"{headline(finding)}: {finding.title}", width, "  ")
    yield ""
    yield from _not_said(diagnosis, width, verbose=verbose)


def headline(finding: Finding) -> str:
    """Severity, id, basis, since when and where, in a line."""
    parts = [f"{finding.severity.upper()} {finding.id}", finding.basis]
    if finding.since_step is not None:
        parts.append(f"since step {finding.since_step}")
    if finding.block is not None:
        parts.append(f"block {finding.block}")
    return " · ".join(parts)


def _finding(finding: Finding, width: int) -> Iterator[str]:
    yield headline(finding)
    yield from _wrapped(finding.title, width, "  ")
    for number, evidence in enumerate(finding.evidence[:MOST_EVIDENCE]):
        yield from labelled("evidence" if number == 0 else "", _evidence(evidence), width)
    if finding.cause:
        yield from labelled("cause", finding.cause, width)
    for number, fix in enumerate(finding.fix, 1):
        yield from labelled("fix" if number == 1 else "", f"{number}. {fix}" if len(finding.fix) > 1 else fix, width)
    if finding.confirm:
        yield from labelled("confirm", finding.confirm, width)
    if finding.suppressed:
        yield from labelled("explains", ", ".join(finding.suppressed), width)
    if known := track_record(finding):
        yield from labelled("clinic", known, width)
    if finding.references:
        yield from labelled("see", "; ".join(finding.references), width)


def _in_short(finding: Finding, width: int) -> Iterator[str]:
    """The evidence that comes first, and what to change."""
    yield headline(finding)
    yield from _wrapped(finding.title, width, "  ")
    for evidence in finding.evidence[:1]:
        yield from labelled("evidence", _evidence(evidence), width)
    for fix in finding.fix[:1]:
        yield from labelled("fix", fix, width)
    if finding.suppressed:
        yield from labelled("explains", ", ".join(finding.suppressed), width)


def _evidence(evidence: Evidence) -> str:
    steps = ""
    if evidence.first_step is not None and evidence.last_step is not None:
        steps = f" (steps {evidence.first_step} to {evidence.last_step})"
    elif evidence.first_step is not None:
        steps = f" (step {evidence.first_step})"
    return f"{evidence.series}: {evidence.reading}{steps}"


def _not_said(diagnosis: Diagnosis, width: int, *, verbose: bool) -> Iterator[str]:
    looked = len(diagnosis.looked) + len({finding.id for finding in (*diagnosis.findings, *diagnosis.folded)})
    yield from _wrapped(
        f"{looked} rule{'s' * (looked != 1)} could look; {len(diagnosis.skipped)} lack what they need.", width
    )
    a_log = diagnosis.log_of is not None and not verbose
    skipped = diagnosis.skipped if verbose else () if a_log else _most_telling(diagnosis.skipped)
    if a_log:
        yield from _in_no_log(diagnosis, width)
    for each in skipped:
        yield from _wrapped(f"{each.rule}: {each.why}", width, "  ")
    if len(skipped) < len(diagnosis.skipped):
        yield "  --verbose lists them all."
    if diagnosis.unknown_keys:
        shown = diagnosis.unknown_keys if verbose else diagnosis.unknown_keys[:6]
        more = len(diagnosis.unknown_keys) - len(shown)
        words = ", ".join(shown) + (f" and {more} more" if more else "")
        yield from _wrapped(f"not in the catalogue, and not read: {words}", width)


def _in_no_log(diagnosis: Diagnosis, width: int) -> Iterator[str]:
    """What rules ask for that the log does not hold, and how to have it."""
    lack = lacking(diagnosis)
    if diagnosis.unknown_keys and not diagnosis.looked and not diagnosis.findings:
        yield from _wrapped(
            "Known names are reward, loss, entropy, approx_kl, grad_norm, learning_rate and those of SB3, TRL, "
            "CleanRL and verl: `gradiometer metrics` lists them. Log under one of them.",
            width,
            "  ",
        )
    elif lack.scalars:
        names = ", ".join(lack.scalars[:MOST_SCALARS]) + (", ..." if len(lack.scalars) > MOST_SCALARS else "")
        yield from _wrapped(f"{lack.logged} ask for scalars that are not logged here: {names}", width, "  ")
    if lack.measured:
        words = f"{lack.measured} ask for gradients and loss terms, which only the training can show. Measure them:"
        yield from _wrapped(words, width, "  ")
        yield from (f"      {line}" for line in measure_it(diagnosis.log_of).splitlines() if line)
        yield from _wrapped("or leave the script as it is: gradiometer run train.py", width, "    ")


def _most_telling(skipped: Sequence[Skipped]) -> list[Skipped]:
    """One rule for each of the two metrics that would enable most."""
    by_metric: dict[str, list[Skipped]] = {}
    for each in skipped:
        if each.metric:
            by_metric.setdefault(each.metric, []).append(each)
    groups = sorted(by_metric.values(), key=len, reverse=True)
    return [group[0] for group in groups[:2]]


def several_as_text(diagnoses: Sequence[Diagnosis], *, width: int = 100) -> str:
    """Several runs: causes they share first, then a line for each, the worst first."""
    shared = shared_causes(diagnoses)
    ill = sum(diagnosis.worst in ("warn", "critical") for diagnosis in diagnoses)
    lines = [f"{len(diagnoses)} runs: {f'something is wrong in {ill}' if ill else 'nothing wrong was found'}"]
    if shared:
        lines += ["", "shared causes:"]
        lines += [f"  {count} of {len(diagnoses)}  {id}" for id, count in shared.items()]
    lines.append("")
    labels = dict(zip((diagnosis.run for diagnosis in diagnoses), _apart([d.run for d in diagnoses]), strict=True))
    name = min(40, max(map(len, labels.values()), default=0))
    for diagnosis in sorted(diagnoses, key=lambda each: SEVERITIES.index(each.worst)):
        worst = (diagnosis.worst or "none").upper()
        indent = " " * (name + 12)
        start = f"{labels[diagnosis.run][-name:]:<{name}}  {worst:<10}"
        lines += textwrap.wrap(diagnosis.verdict, width, initial_indent=start, subsequent_indent=indent)
    return "\n".join([*lines, "", "gradiometer doctor PATH tells one of them in full."])


def _apart(paths: Sequence[Path]) -> list[str]:
    """Each path without the folders that all share."""
    shared = os.path.commonpath([os.path.abspath(path.parent) for path in paths])
    return [os.path.relpath(os.path.abspath(path), shared) for path in paths]


def labelled(label: str, words: str, width: int) -> list[str]:
    """Words beside their label, wrapped under themselves."""
    start = f"  {label:<{LABELS}}"
    return textwrap.wrap(words, width, initial_indent=start, subsequent_indent=" " * len(start)) or [start]


def _wrapped(words: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(words, width, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)
