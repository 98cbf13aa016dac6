"""A diagnosis as one page of HTML: what happened in order, then the curves the evidence points at;
nothing to download."""

from __future__ import annotations

import html
from collections.abc import Iterator

from gradiometer.charts.model import Chart, Line, Span, axis_of
from gradiometer.charts.svg import as_svg
from gradiometer.charts.timeline import line_of, series_of, timeline
from gradiometer.doctor.diagnosis import Diagnosis
from gradiometer.doctor.report import (
    checks_run,
    contrast_words,
    counted_states,
    named_lines,
    track_record,
)
from gradiometer.doctor.several import RunsDiagnosis
from gradiometer.records import Evidence, Finding
from gradiometer.version import __version__

__all__ = ["as_page"]

WIDTH, HEIGHT = 920, 230
"""Of the outcome's curve, in pixels."""

STYLE = """
:root { color-scheme: light dark; --ink: #222; --soft: #666; --paper: #fff; --card: #f6f6f4; --line: #0072b2; --mark: #d55e00;
  --critical: #b3261e; --warn: #9a6200; --info: #3a6ea5; --fine: #00805e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --soft: #a0a0a0; --paper: #161616; --card: #222; --line: #56b4e9;
  --mark: #e69f00; --critical: #ff8a80; --warn: #ffca6b; --info: #90c0ff; --fine: #3ccba0; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.1rem; color: var(--soft); font-weight: 400; overflow-wrap: anywhere; }
.verdict { font-size: 1.2rem; font-weight: 600; margin: 1.2rem 0 .2rem; } h1 { margin: 0 0 1rem; }
.state { border: 1.5px solid; border-radius: 4px; padding: 0 .4rem; margin-right: .2rem; color: var(--soft); }
.state.healthy { color: var(--fine); } .state.concern, .state.not-learning { color: var(--warn); } .state.broken { color: var(--critical); }
section { background: var(--card); border-left: 4px solid var(--soft); padding: .8rem 1.1rem;
  margin: 1rem 0; border-radius: 4px; }
section.critical { border-color: var(--critical); } section.warn { border-color: var(--warn); }
section.info { border-color: var(--info); }
.tag { font-weight: 700; } .critical .tag { color: var(--critical); } .warn .tag { color: var(--warn); }
.info .tag { color: var(--info); }
.small { color: var(--soft); font-size: .85rem; } code { font-size: .9em; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: .2rem 0 .6rem; } dt { font-weight: 600; margin-top: .6rem; } dd { margin: 0; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; }
th { white-space: nowrap; font-weight: 600; color: var(--soft); }
figure { background: var(--card); margin: 1rem 0; padding: .8rem 1.1rem; border-radius: 4px; } figcaption { margin-bottom: .4rem; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--soft); font-size: 11px; }
.curve { fill: none; stroke: var(--line); stroke-width: 1.6; stroke-linejoin: round; } .band { fill: var(--line); opacity: .18; }
.since { stroke: var(--mark); stroke-dasharray: 4 3; } .since.fine { stroke: var(--fine); stroke-dasharray: none; stroke-width: 1.4; }
svg text.fine { fill: var(--fine); font-weight: 600; } .nan { fill: var(--mark); } .axis { stroke: var(--soft); stroke-width: .6; }
.grid { stroke: var(--soft); opacity: .18; stroke-width: .8; }
.lane rect { fill: currentColor; opacity: .14; } .lane rect.edge { opacity: 1; } .lane text { fill: currentColor; font-weight: 600; }
.lane .onset { stroke: currentColor; stroke-dasharray: 2 3; opacity: .8; }
.lane.critical { color: var(--critical); } .lane.warn { color: var(--warn); } .lane.info { color: var(--info); }
details { margin: 1rem 0; }
"""


def as_page(found: Diagnosis | RunsDiagnosis) -> str:
    """One page for one run or several."""
    if isinstance(found, RunsDiagnosis):
        title = f"{len(found.runs)} runs"
        parts = [*_several(found), *(part for each in found.runs for part in _run(each))]
    else:
        title, parts = str(found.run), list(_run(found))
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}: diagnosis</title><style>{STYLE}</style></head>\n<body>\n{body}\n"
        f'<p class="small">Gradiometer {__version__}</p>\n</body></html>\n'
    )


def _several(found: RunsDiagnosis) -> Iterator[str]:
    yield f'<p class="verdict">{_text(counted_states(found))}</p>'
    shared = [
        _row(f"{each.count} of {len(found.runs)}", f"<b>{_text(each.id)}</b> {_text(each.title)}")
        for each in found.shared
    ]
    apart = [_row(label, _text(words)) for label, words in contrast_words(found)]
    yield f"<table>{''.join([*shared, *apart])}</table>"
    if not shared:
        yield "<p>No cause was found in any of them.</p>"


def _row(label: str, words: str) -> str:
    return f'<tr><th scope="row">{_text(label)}</th><td>{words}</td></tr>'


def _run(diagnosis: Diagnosis) -> Iterator[str]:
    state, _, words = diagnosis.verdict.partition(": ")
    told = f'<span class="state {diagnosis.state}">{_text(state)}</span> {_text(words)}'
    yield f'<p class="verdict">{told if words else _text(state)}</p><h1>{_text(diagnosis.run)}</h1>'
    yield from _timeline(diagnosis)
    yield from (_finding(finding, diagnosis) for finding in diagnosis.findings)
    if diagnosis.folded:
        items = "".join(f"<li><b>{_text(f.id)}</b> {_text(f.title)}</li>" for f in diagnosis.folded)
        yield (
            "<details><summary>Consequences:"
            f" {len(diagnosis.folded)}</summary><ul>{items}</ul></details>"
        )
    if diagnosis.skipped:
        items = "".join(
            f"<li><b>{_text(s.rule)}</b> {_text(s.why)}</li>" for s in diagnosis.skipped
        )
        yield (
            f"<details><summary>{_text(checks_run(diagnosis))}</summary><ul>{items}</ul></details>"
        )
    yield from (f'<p class="small">{_text(line)}</p>' for line in named_lines(diagnosis))
    if diagnosis.unknown_keys:
        names = ", ".join(f"<code>{_text(name)}</code>" for name in diagnosis.unknown_keys)
        yield (
            "<details><summary>Not in the catalogue:"
            f" {len(diagnosis.unknown_keys)}</summary><p>{names}</p></details>"
        )


def _finding(finding: Finding, diagnosis: Diagnosis) -> str:
    where = "" if finding.block is None else f" · block {finding.block}"
    since = "" if finding.since_step is None else f" · since step {finding.since_step}"
    parts = [
        (
            f'<span class="tag">{finding.severity.upper()}</span> <span'
            f' class="small">{_text(finding.id)} · {finding.basis}{_text(since + where)}</span>'
        ),
        f"<h2>{_text(finding.title)}</h2>",
        *(_evidence(evidence, finding, diagnosis) for evidence in finding.evidence),
        "<dl>",
        _entry("Cause", finding.cause),
        _entry("Fix", "".join(f"<div>{_text(fix)}</div>" for fix in finding.fix), raw=True),
        _entry("Confirm", finding.confirm),
        _entry("Explains", ", ".join(finding.suppressed)),
        _entry("Clinic", track_record(finding)),
        _entry("See", "; ".join(finding.references)),
        "</dl>",
    ]
    return f'<section class="{finding.severity}">{"".join(parts)}</section>'


def _entry(name: str, words: str, *, raw: bool = False) -> str:
    return f"<dt>{name}</dt><dd>{words if raw else _text(words)}</dd>" if words else ""


def _evidence(evidence: Evidence, finding: Finding, diagnosis: Diagnosis) -> str:
    curve = diagnosis.curves.get(evidence.series)
    drawn = ""
    if curve is not None and len(curve.steps) > 1:
        drawn = as_svg(_curve(line_of(curve, evidence.series), finding))
    return f"<p><code>{_text(evidence.series)}</code> {_text(evidence.reading)}</p>{drawn}"


def _curve(line: Line, finding: Finding) -> Chart:
    """A series of the evidence, and since when."""
    since = finding.since_step
    marks = [] if since is None else [Span(first=since, last=since, label="", severity="warn")]
    return Chart(
        id=line.name,
        kind="lines",
        title=line.name,
        y=axis_of(line.name),
        lines=[line],
        spans=marks,
    )


def _timeline(diagnosis: Diagnosis) -> Iterator[str]:
    series = series_of(diagnosis)
    if series is None or len(diagnosis.curves[series].steps) < 2:
        return
    chart = timeline(diagnosis, line_of(diagnosis.curves[series], series))
    yield (
        f'<figure><figcaption><b>{_text(chart.title)}</b> <span class="small">'
        f"{_text(chart.subtitle)}</span></figcaption>"
        f"{as_svg(chart, width=WIDTH, height=HEIGHT)}</figure>"
    )


def _text(value: object) -> str:
    return html.escape(str(value))
