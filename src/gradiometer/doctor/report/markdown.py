"""A diagnosis as Markdown, for an issue or a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradiometer.doctor.diagnosis import Diagnosis
from gradiometer.doctor.precision import track_record
from gradiometer.doctor.report.plain import shared_causes
from gradiometer.doctor.report.text import headline
from gradiometer.records import Finding

__all__ = ["as_markdown", "several_as_markdown"]


def as_markdown(diagnosis: Diagnosis) -> str:
    """The whole diagnosis."""
    return "\n".join(_lines(diagnosis)) + "\n"


def several_as_markdown(diagnoses: Sequence[Diagnosis]) -> str:
    """Several runs: shared causes, a table, then each run."""
    lines = [f"# {len(diagnoses)} runs", ""]
    shared = shared_causes(diagnoses)
    if shared:
        lines += ["| cause | runs |", "|---|---|", *(f"| {id} | {count} |" for id, count in shared.items()), ""]
    lines += ["| run | worst | verdict |", "|---|---|---|"]
    lines += [f"| {_cell(d.run)} | {d.worst or 'none'} | {_cell(d.verdict)} |" for d in diagnoses]
    return "\n".join(lines) + "\n\n" + "\n".join(as_markdown(diagnosis) for diagnosis in diagnoses)


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    yield f"# {diagnosis.run}"
    yield ""
    yield f"**{diagnosis.verdict}**"
    for finding in diagnosis.findings:
        yield ""
        yield from _finding(finding)
    if diagnosis.folded:
        yield ""
        yield "## Consequences"
        yield from (f"- {headline(finding)}: {finding.title}" for finding in diagnosis.folded)
    if diagnosis.skipped:
        yield ""
        yield "## Not checked"
        yield from (f"- {skipped.rule}: {skipped.why}" for skipped in diagnosis.skipped)
    if diagnosis.unknown_keys:
        yield ""
        yield f"Not in the catalogue: {', '.join(f'`{name}`' for name in diagnosis.unknown_keys)}"


def _finding(finding: Finding) -> Iterator[str]:
    yield f"## {headline(finding)}"
    yield ""
    yield finding.title
    if finding.evidence:
        yield ""
        yield "| series | reading | steps |"
        yield "|---|---|---|"
        for evidence in finding.evidence:
            steps = [str(step) for step in (evidence.first_step, evidence.last_step) if step is not None]
            yield f"| `{_cell(evidence.series)}` | {_cell(evidence.reading)} | {' to '.join(steps)} |"
    if finding.cause:
        yield ""
        yield f"**Cause.** {finding.cause}"
    if finding.fix:
        yield ""
        yield "**Fix.**"
        yield from (f"{number}. {fix}" for number, fix in enumerate(finding.fix, 1))
    if finding.confirm:
        yield ""
        yield f"**Confirm.** {finding.confirm}"
    if finding.suppressed:
        yield ""
        yield f"**Explains.** {', '.join(finding.suppressed)}"
    if known := track_record(finding):
        yield ""
        yield f"**Clinic.** {known}"
    if finding.references:
        yield ""
        yield f"**See.** {'; '.join(finding.references)}"


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
