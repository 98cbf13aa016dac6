"""A diagnosis as one self-contained page of HTML: the curves the evidence points at, and nothing to download."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence

from gradiometer import metrics
from gradiometer.doctor.diagnosis import Diagnosis
from gradiometer.doctor.precision import track_record
from gradiometer.doctor.report.plain import shared_causes
from gradiometer.records import Evidence, Finding
from gradiometer.store.thinning import Thinned
from gradiometer.version import __version__

__all__ = ["as_page"]

WIDTH, HEIGHT, LEFT, BOTTOM = 640, 150, 64, 22

STYLE = """
:root { color-scheme: light dark; --ink: #222; --soft: #666; --paper: #fff; --card: #f6f6f4; --line: #0072b2; --mark: #d55e00;
  --critical: #b3261e; --warn: #9a6200; --info: #3a6ea5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --soft: #a0a0a0; --paper: #161616; --card: #222; --line: #56b4e9;
  --mark: #e69f00; --critical: #ff8a80; --warn: #ffca6b; --info: #90c0ff; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.1rem; color: var(--soft); font-weight: 400; overflow-wrap: anywhere; }
.verdict { font-size: 1.35rem; font-weight: 600; margin: .2rem 0 1.2rem; }
section { background: var(--card); border-left: 4px solid var(--soft); padding: .8rem 1.1rem;
  margin: 1rem 0; border-radius: 4px; }
section.critical { border-color: var(--critical); } section.warn { border-color: var(--warn); }
section.info { border-color: var(--info); }
.tag { font-weight: 700; } .critical .tag { color: var(--critical); } .warn .tag { color: var(--warn); }
.info .tag { color: var(--info); }
.small { color: var(--soft); font-size: .85rem; } code { font-size: .9em; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: .2rem 0 .6rem; } dt { font-weight: 600; margin-top: .6rem; } dd { margin: 0; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; }
svg { width: 100%; max-width: 640px; height: auto; display: block; } svg text { fill: var(--soft); font-size: 11px; }
.curve { fill: none; stroke: var(--line); stroke-width: 1.5; } .since { stroke: var(--mark); stroke-dasharray: 4 3; }
.nan { fill: var(--mark); } .axis { stroke: var(--soft); stroke-width: .6; } details { margin: 1rem 0; }
"""


def as_page(diagnoses: Sequence[Diagnosis]) -> str:
    """One page for one run or several."""
    title = str(diagnoses[0].run) if len(diagnoses) == 1 else f"{len(diagnoses)} runs"
    parts = [*(_several(diagnoses) if len(diagnoses) > 1 else ()), *(part for d in diagnoses for part in _run(d))]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}: diagnosis</title><style>{STYLE}</style></head>\n<body>\n{body}\n"
        f'<p class="small">Gradiometer {__version__}</p>\n</body></html>\n'
    )


def _several(diagnoses: Sequence[Diagnosis]) -> Iterator[str]:
    shared = shared_causes(diagnoses)
    rows = "".join(f"<tr><td>{count} of {len(diagnoses)}</td><td>{_text(id)}</td></tr>" for id, count in shared.items())
    yield f"<h1>{len(diagnoses)} runs</h1>"
    yield f"<p>Causes they share:</p><table>{rows}</table>" if rows else "<p>No cause was found in any of them.</p>"


def _run(diagnosis: Diagnosis) -> Iterator[str]:
    yield f'<h1>{_text(diagnosis.run)}</h1><p class="verdict">{_text(diagnosis.verdict)}</p>'
    yield from (_finding(finding, diagnosis) for finding in diagnosis.findings)
    if diagnosis.folded:
        items = "".join(f"<li><b>{_text(f.id)}</b> {_text(f.title)}</li>" for f in diagnosis.folded)
        yield f"<details><summary>Consequences: {len(diagnosis.folded)}</summary><ul>{items}</ul></details>"
    if diagnosis.skipped:
        items = "".join(f"<li><b>{_text(s.rule)}</b> {_text(s.why)}</li>" for s in diagnosis.skipped)
        yield f"<details><summary>Rules that lack what they need: {len(diagnosis.skipped)}</summary><ul>{items}</ul></details>"
    if diagnosis.unknown_keys:
        names = ", ".join(f"<code>{_text(name)}</code>" for name in diagnosis.unknown_keys)
        yield f"<details><summary>Not in the catalogue: {len(diagnosis.unknown_keys)}</summary><p>{names}</p></details>"


def _finding(finding: Finding, diagnosis: Diagnosis) -> str:
    where = "" if finding.block is None else f" · block {finding.block}"
    since = "" if finding.since_step is None else f" · since step {finding.since_step}"
    parts = [
        f'<span class="tag">{finding.severity.upper()}</span> '
        f'<span class="small">{_text(finding.id)} · {finding.basis}{_text(since + where)}</span>',
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
    drawn = "" if curve is None or len(curve.steps) < 2 else _svg(curve, evidence.series, finding.since_step)
    return f"<p><code>{_text(evidence.series)}</code> {_text(evidence.reading)}</p>{drawn}"


def _svg(curve: Thinned, name: str, since: int | None) -> str:
    """The curve, on a log axis where the catalogue says so; NaN as marks at the bottom, the first bad step as a line."""
    known, points = metrics.resolve(name), list(_points(curve))
    finite = [v for _, v in points if math.isfinite(v)]
    positive = [v for v in finite if v > 0]
    if not finite:
        return '<p class="small">every value is NaN or infinite</p>'
    logarithmic = known is not None and known[0].scale == "log" and len(positive) == len(finite)
    scaled = [math.log10(v) if logarithmic else v for v in finite]
    low, high = min(scaled), max(scaled)
    span, first, last = (high - low) or 1.0, points[0][0], points[-1][0]

    def x(step: int) -> float:
        return LEFT + (WIDTH - LEFT - 8) * (step - first) / max(last - first, 1)

    def y(value: float) -> float:
        return 8 + (HEIGHT - BOTTOM - 16) * (1 - ((math.log10(value) if logarithmic else value) - low) / span)

    paths: list[list[str]] = [[]]
    bad: list[str] = []
    for step, value in points:
        if math.isfinite(value):
            paths[-1].append(f"{x(step):.1f},{y(value):.1f}")
        else:
            paths.append([])
            bad.append(f'<circle class="nan" cx="{x(step):.1f}" cy="{HEIGHT - BOTTOM}" r="3"/>')
    lines = "".join(f'<polyline class="curve" points="{" ".join(path)}"/>' for path in paths if path)
    mark = ""
    if since is not None and first <= since <= last:
        mark = f'<line class="since" x1="{x(since):.1f}" x2="{x(since):.1f}" y1="4" y2="{HEIGHT - BOTTOM}"/>'
    base = HEIGHT - BOTTOM
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{_text(name)}">'
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH - 8}" y1="{base}" y2="{base}"/>{mark}{lines}{"".join(bad)}'
        f'<text x="{LEFT - 6}" y="14" text-anchor="end">{max(finite):.3g}</text>'
        f'<text x="{LEFT - 6}" y="{base - 4}" text-anchor="end">{min(finite):.3g}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">{first}</text>'
        f'<text x="{WIDTH - 8}" y="{HEIGHT - 6}" text-anchor="end">step {last}</text></svg>'
    )


def _points(curve: Thinned) -> Iterator[tuple[int, float]]:
    """What is drawn of a curve: each value, or of a bucket its smallest, its largest and that it holds a NaN."""
    for k, step in enumerate(curve.steps.tolist()):
        if curve.whole:
            yield step, float(curve.mean[k])
            continue
        if math.isfinite(curve.mean[k]):
            yield step, float(curve.low[k])
            yield step, float(curve.high[k])
        if curve.broken[k]:
            yield step, math.nan


def _text(value: object) -> str:
    return html.escape(str(value))
