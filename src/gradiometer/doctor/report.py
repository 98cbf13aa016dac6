"""A diagnosis as lines for a screen, as Markdown for an issue, or as the plain values of `--json`.

With each finding comes how often it was right in the clinic, on trainings that no threshold was
chosen on (`precision.json`, which `make clinic` writes); with a log of another tool, what it cannot
show and the lines that would.
"""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from gradiometer import metrics
from gradiometer.doctor.diagnosis import Diagnosis
from gradiometer.doctor.rule import Skipped
from gradiometer.doctor.schema import VERSION
from gradiometer.doctor.several import RunsDiagnosis
from gradiometer.doctor.timeline import moments
from gradiometer.records import Evidence, Finding
from gradiometer.words import counted, some

__all__ = [
    "as_markdown",
    "as_text",
    "checks_run",
    "contrast_words",
    "counted_states",
    "labelled",
    "lacking",
    "measure_it",
    "named_lines",
    "plain",
    "plain_of_several",
    "several_as_markdown",
    "several_as_text",
    "track_record",
]

IN_FULL, IN_SHORT = 1, 2
"""Findings told whole, and those told with evidence and fix; the others have a line each."""
LEAST_SIGNS = 2
"""With a beginning, from which there is an order to tell."""
LABELS = 10
MOST_SCALARS = 5
MOST_EVIDENCE = 4


def as_text(diagnosis: Diagnosis, *, width: int = 100, verbose: bool = False) -> str:
    """The report for a terminal; `verbose` tells every finding whole and what was not checked."""
    return "\n".join(_lines(diagnosis, width, verbose=verbose))


def _lines(diagnosis: Diagnosis, width: int, *, verbose: bool) -> Iterator[str]:
    yield from _wrapped(diagnosis.verdict, width)
    yield f"  {diagnosis.run}"
    told = len(diagnosis.findings) if verbose else IN_SHORT
    for place, finding in enumerate(diagnosis.findings[:told]):
        yield ""
        yield from (_finding if verbose or place < IN_FULL else _in_short)(finding, width)
    if diagnosis.findings[told:]:
        yield ""
        yield "also:"
        for finding in diagnosis.findings[told:]:
            yield from _wrapped(f"{headline(finding)}: {finding.title}", width, "  ")
    yield from _in_order(diagnosis, width)
    yield ""
    yield from _not_said(diagnosis, width, verbose=verbose)


def _in_order(diagnosis: Diagnosis, width: int) -> Iterator[str]:
    """When each sign began, and the best of the outcome, where there is an order to see."""
    happened = moments(diagnosis)
    if sum(each.severity is not None for each in happened) < LEAST_SIGNS:
        return
    yield ""
    yield "what happened, in order:"
    steps = [f"step {each.step}" for each in happened]
    room = max(map(len, steps))
    for step, each in zip(steps, happened, strict=True):
        words = each.words if each.severity is None else f"{each.id}: {each.words}"
        line = f"  {step:<{room}}  {words}"
        yield _cut(line, width)


def _cut(line: str, width: int) -> str:
    """A line that fits, with dots where it was longer."""
    return line if len(line) <= width else f"{line[: width - 4].rstrip()} ..."


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
        yield from labelled(
            "fix" if number == 1 else "", f"{number}. {fix}" if len(finding.fix) > 1 else fix, width
        )
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
    yield from _wrapped(checks_run(diagnosis), width)
    a_log = diagnosis.log_of is not None and not verbose
    skipped = diagnosis.skipped if verbose else () if a_log else _most_telling(diagnosis.skipped)
    if a_log:
        yield from _in_no_log(diagnosis, width)
    for each in skipped:
        yield from _wrapped(f"{each.rule}: {each.why}", width, "  ")
    if len(skipped) < len(diagnosis.skipped):
        yield "  --verbose lists them all."
    for line in named_lines(diagnosis):
        yield from _wrapped(line, width)
    if diagnosis.unknown_keys:
        keys = diagnosis.unknown_keys
        words = some(keys, len(keys) if verbose else 6)
        yield from _wrapped(f"not in the catalogue, ignored: {words}", width)


def checks_run(diagnosis: Diagnosis) -> str:
    """How many checks had their data, of how many there are."""
    found = {finding.id for finding in (*diagnosis.findings, *diagnosis.folded)}
    ran, skipped = len(diagnosis.looked) + len(found), len(diagnosis.skipped)
    missing = f"; {skipped} skipped: missing data" if skipped else ""
    return f"{ran} of {counted(ran + skipped, 'check')} could run{missing}."


def named_lines(diagnosis: Diagnosis) -> list[str]:
    """What was read as what, where names leave a doubt, and how to say otherwise."""
    lines = []
    outcomes = [each for each in diagnosis.named if each.meaning in metrics.OUTCOMES]
    for each in outcomes:
        how = {"guessed": " (a guess from its name)", "told": ", as you specified"}.get(
            each.how, ""
        )
        others = f", not {_columns(each.instead_of)}" if each.instead_of else ""
        change = "" if each.how == "told" else f"; --name {each.meaning}=COLUMN changes it"
        lines.append(f"read `{each.column}` as {each.meaning}{how}{others}{change}")
    rest = [each for each in diagnosis.named if each not in outcomes]
    for how, words in (("told", "as you specified"), ("guessed", "by a guess from their names")):
        said = [f"`{each.column}` as {each.meaning}" for each in rest if each.how == how]
        if said:
            lines.append(f"read {words}: {some(said, 6)}")
    return lines


def _columns(names: Sequence[str]) -> str:
    return some([f"`{name}`" for name in names], 3)


def _in_no_log(diagnosis: Diagnosis, width: int) -> Iterator[str]:
    """What rules ask for that the log does not hold, and how to have it."""
    lack = lacking(diagnosis)
    if diagnosis.unknown_keys and not diagnosis.looked and not diagnosis.findings:
        yield from _wrapped(
            "Assign the columns: --name reward=COLUMN, and so on for entropy, approx_kl, ..."
            " (`gradiometer metrics` lists the meanings); the names of 30 tools are known.",
            width,
            "  ",
        )
    elif lack.scalars:
        names = ", ".join(lack.scalars[:MOST_SCALARS]) + (
            ", ..." if len(lack.scalars) > MOST_SCALARS else ""
        )
        yield from _wrapped(
            f"{lack.logged} need scalars that are not logged here: {names}", width, "  "
        )
    if lack.measured:
        words = (
            f"{lack.measured} need gradients and loss terms, which no log contains. Measure them:"
        )
        yield from _wrapped(words, width, "  ")
        yield from (f"      {line}" for line in measure_it(diagnosis.log_of).splitlines() if line)
        yield from _wrapped("or run your script unchanged: gradiometer run train.py", width, "    ")


def _most_telling(skipped: Sequence[Skipped]) -> list[Skipped]:
    """One rule for each of the two metrics that would enable most."""
    by_metric: dict[str, list[Skipped]] = {}
    for each in skipped:
        if each.metric:
            by_metric.setdefault(each.metric, []).append(each)
    groups = sorted(by_metric.values(), key=len, reverse=True)
    return [group[0] for group in groups[:2]]


def several_as_text(found: RunsDiagnosis, *, width: int = 100) -> str:
    """Several runs: what they share, which differ and in what, then a line each, worst first."""
    lines = [counted_states(found)]
    if found.in_most:
        lines += ["", "in most runs:"]
        for each in found.in_most:
            start = f"  {each.count} of {len(found.runs)}  "
            lines += _beside(start, f"{each.id}: {each.title}", width)
    lines += _contrast_lines(found, width)
    lines.append("")
    name = min(40, max(map(len, found.names), default=0))
    for diagnosis, label in zip(found.runs, found.names, strict=True):
        lines += _beside(f"{label[-name:]:<{name}}  ", diagnosis.verdict, width)
    return "\n".join([*lines, "", "gradiometer doctor PATH prints the full report of one run."])


def counted_states(found: RunsDiagnosis) -> str:
    """How many runs there are, and what became of them."""
    counts = ", ".join(f"{count} {state}" for state, count in found.states.items())
    return f"{len(found.runs)} runs: {counts}"


def contrast_words(found: RunsDiagnosis) -> list[tuple[str, str]]:
    """Which runs differ from most, and in what, as labels and words; nothing where none does."""
    contrast = found.contrast
    if contrast is None:
        return []
    verb = "differ" if len(contrast.runs) > 1 else "differs"
    told = [(verb, f"{some(contrast.runs, 6)}: {contrast.why}")]
    for kind, listed in (("setting", contrast.settings), ("series", contrast.series)):
        told += [(kind, f"{each.name}: {each.here}; the others {each.others}") for each in listed]
    if contrast.only_own:
        told.append(
            ("setting", "only the seed or the name: chance, or something outside the config")
        )
    return told


def _contrast_lines(found: RunsDiagnosis, width: int) -> list[str]:
    words = contrast_words(found)
    return ["", *(line for label, said in words for line in labelled(label, said, width))]


def _beside(start: str, words: str, width: int) -> list[str]:
    return textwrap.wrap(
        words, width, initial_indent=start, subsequent_indent=" " * len(start)
    ) or [start]


def labelled(label: str, words: str, width: int) -> list[str]:
    """Words beside their label, wrapped under themselves."""
    return _beside(f"  {label:<{LABELS}}", words, width)


def _wrapped(words: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        words, width, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False
    )


def as_markdown(diagnosis: Diagnosis) -> str:
    """The whole diagnosis."""
    return "\n".join(_markdown(diagnosis)) + "\n"


def several_as_markdown(found: RunsDiagnosis) -> str:
    """Several runs: what they share, which differ, a table, then each run."""
    lines = [f"# {counted_states(found)}", ""]
    if found.shared:
        lines += ["| finding | runs |", "|---|---|"]
        lines += [f"| {each.id} | {each.count} |" for each in found.shared]
        lines.append("")
    lines += [f"- {label}: {words}" for label, words in contrast_words(found)]
    lines += ["", "| run | state | verdict |", "|---|---|---|"]
    lines += [
        f"| {_cell(name)} | {each.state} | {_cell(each.verdict)} |"
        for each, name in zip(found.runs, found.names, strict=True)
    ]
    return "\n".join(lines) + "\n\n" + "\n".join(map(as_markdown, found.runs))


def _markdown(diagnosis: Diagnosis) -> Iterator[str]:
    yield f"# {diagnosis.run}"
    yield ""
    yield f"**{diagnosis.verdict}**"
    for finding in diagnosis.findings:
        yield ""
        yield from _markdown_of(finding)
    happened = moments(diagnosis)
    if sum(each.severity is not None for each in happened) >= LEAST_SIGNS:
        yield ""
        yield "## What happened, in order"
        yield ""
        yield "| step | what |"
        yield "|---|---|"
        for each in happened:
            words = each.words if each.severity is None else f"`{each.id}`: {each.words}"
            yield f"| {each.step} | {_cell(words)} |"
    if diagnosis.folded:
        yield ""
        yield "## Consequences"
        yield from (f"- {headline(finding)}: {finding.title}" for finding in diagnosis.folded)
    if diagnosis.skipped:
        yield ""
        yield "## Skipped: missing data"
        yield from (f"- {skipped.rule}: {skipped.why}" for skipped in diagnosis.skipped)
    if lines := named_lines(diagnosis):
        yield ""
        yield from (f"- {line}" for line in lines)
    if diagnosis.unknown_keys:
        yield ""
        yield f"Not in the catalogue: {', '.join(f'`{name}`' for name in diagnosis.unknown_keys)}"


def _markdown_of(finding: Finding) -> Iterator[str]:
    yield f"## {headline(finding)}"
    yield ""
    yield finding.title
    if finding.evidence:
        yield ""
        yield "| series | reading | steps |"
        yield "|---|---|---|"
        for evidence in finding.evidence:
            steps = [
                str(step) for step in (evidence.first_step, evidence.last_step) if step is not None
            ]
            yield (
                f"| `{_cell(evidence.series)}` | {_cell(evidence.reading)} | {' to '.join(steps)} |"
            )
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


def plain(diagnosis: Diagnosis) -> dict[str, Any]:
    """A stable shape for scripts, which `doctor --schema` describes."""
    return {
        "schema": VERSION,
        "run": str(diagnosis.run),
        "state": diagnosis.state,
        "verdict": diagnosis.verdict,
        "outcome": None if diagnosis.outcome is None else dataclasses.asdict(diagnosis.outcome),
        "findings": [_plain_finding(finding) for finding in diagnosis.findings],
        "folded": [_plain_finding(finding) for finding in diagnosis.folded],
        "skipped": [dataclasses.asdict(skipped) for skipped in diagnosis.skipped],
        "names": [dataclasses.asdict(each) for each in diagnosis.named],
        "unknown_keys": list(diagnosis.unknown_keys),
        "looked": list(diagnosis.looked),
    }


def plain_of_several(found: RunsDiagnosis) -> dict[str, Any]:
    """Several runs: the longest as above, then each of them and what there is to say of all."""
    return {
        **plain(found.longest),
        "runs": [plain(diagnosis) for diagnosis in found.runs],
        "states": dict(found.states),
        "shared": {each.id: each.count for each in found.shared},
        "contrast": None if found.contrast is None else dataclasses.asdict(found.contrast),
    }


def _plain_finding(finding: Finding) -> dict[str, Any]:
    return {**dataclasses.asdict(finding), "clinic": track_record(finding)}


MEASURED = (*metrics.TIERS, "terms")
"""Where the meter's own metrics come from, in the catalogue."""
WATCH = """import gradiometer as gm

with gm.watch(model, optimizer, run="runs/mine"{more}) as meter:
    ...  # your training loop, as it is"""
CALLBACKS = {
    "SB3": ("sb3", 'model.learn(total_steps, callback=GradiometerCallback(run="runs/mine"))'),
    "TRL": ("trl", 'trainer = GRPOTrainer(..., callbacks=[GradiometerCallback(run="runs/mine")])'),
    "transformers": (
        "transformers",
        'trainer = Trainer(..., callbacks=[GradiometerCallback(run="runs/mine")])',
    ),
    "Lightning": (
        "lightning",
        'trainer = Trainer(..., callbacks=[GradiometerCallback(run="runs/mine")])',
    ),
}
"""By library: the module of the integration, and where its callback goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacking:
    """Rules that could not look, by what would let them."""

    measured: int
    """Gradients and terms of the loss."""
    logged: int
    """Scalars that whoever trains could log."""
    scalars: tuple[str, ...]
    """Which, the one that most rules ask for first."""


def lacking(diagnosis: Diagnosis) -> Lacking:
    """Of the rules that were skipped; those of experts and probes are not for every training."""
    origins = [
        (metrics.CATALOGUE[each.metric].origin, each) for each in diagnosis.skipped if each.metric
    ]
    logged = [each for origin, each in origins if origin == "logged"]
    missing = Counter(each.metric for each in logged if each.why.startswith(f"no {each.metric}"))
    return Lacking(
        measured=sum(origin in MEASURED for origin, _ in origins),
        logged=len(logged),
        scalars=tuple(name for name, _ in missing.most_common()),
    )


def measure_it(library: str | None = "", *, more: str = "") -> str:
    """The lines that measure a training with this library, or a plain loop with more of `watch`."""
    if library not in CALLBACKS:
        return WATCH.format(more=f", {more}" if more else "")
    module, line = CALLBACKS[library]
    return f"from gradiometer.integrations.{module} import GradiometerCallback\n\n{line}"


@cache
def _held_out() -> dict[str, tuple[int, int]]:
    kept = json.loads(files(__package__).joinpath("precision.json").read_text(encoding="utf-8"))
    return {id: (right, shown) for id, (right, shown) in kept.items() if shown}


def track_record(finding: Finding) -> str:
    """In words; empty for what is proved, and for what the clinic never saw first."""
    if finding.basis == "proved" or finding.id not in _held_out():
        return ""
    right, shown = _held_out()[finding.id]
    return f"right in {right} of {shown} held-out trainings that showed this first"
