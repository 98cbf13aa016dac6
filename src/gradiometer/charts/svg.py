"""A chart of lines as one `<svg>` element, for a page without scripts; colours are its classes'.

Of each line its mean and what lies between its extremes, NaN and Inf as dots on the axis; spans and
levels; and a numbered lane for each onset, whose first step is marked through the curve above it.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradiometer.charts.model import Chart, Line, Number, Onset, Span
from gradiometer.words import fmt

__all__ = ["as_svg"]

LEFT, RIGHT, TOP, BOTTOM = 64, 12, 10, 26
HEADING = 14
"""Above the curve, where a span has words."""
LANE = 22
LETTER = 6.2
"""How wide a letter of 11 pixels is, about."""
MOST_TICKS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plane:
    """Where steps and values lie, in pixels."""

    first: int
    last: int
    low: float
    high: float
    logarithmic: bool
    top: float
    base: float
    """Of the curve; lanes lie below."""
    width: int

    def x(self, step: float) -> float:
        share = (step - self.first) / max(self.last - self.first, 1)
        return LEFT + (self.width - LEFT - RIGHT) * min(max(share, 0.0), 1.0)

    def y(self, value: float) -> float:
        low, high, at = (self._scaled(each) for each in (self.low, self.high, value))
        share = 0.5 if high == low else (at - low) / (high - low)
        return self.base - 6 - (self.base - self.top - 6) * share

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.logarithmic else value


def as_svg(chart: Chart, *, width: int = 640, height: int = 150) -> str:
    """The drawing; a sentence where no value is finite."""
    plane = _plane(chart, width, height)
    if plane is None:
        return '<p class="small">every value is NaN or infinite</p>'
    whole = height + len(chart.onsets) * LANE
    parts = [
        *_frame(plane, whole),
        *(part for at, each in enumerate(chart.onsets) for part in _lane(each, at, plane)),
        *(part for each in chart.spans for part in _span(each, plane)),
        *(part for line in chart.lines for part in _line(line, plane)),
    ]
    words = _text(": ".join(filter(None, (chart.title, chart.subtitle))))
    return (
        f'<svg viewBox="0 0 {width} {whole}" style="max-width:{width}px" role="img"'
        f' aria-label="{words}">{"".join(parts)}</svg>'
    )


def _plane(chart: Chart, width: int, height: int) -> _Plane | None:
    values = [value for line in chart.lines for value in _heights(line)]
    steps = [step for line in chart.lines for step in line.points.steps]
    if not values:
        return None
    heading = HEADING if any(span.label for span in chart.spans) else 0
    return _Plane(
        first=min(steps),
        last=max(steps),
        low=min(values),
        high=max(values),
        logarithmic=chart.y.scale == "log" and min(values) > 0.0,
        top=TOP + heading,
        base=height - BOTTOM,
        width=width,
    )


def _heights(line: Line) -> list[float]:
    points = line.points
    listed = (points.values, points.low or (), points.high or ())
    return [value for values in listed for value in map(_finite, values) if value is not None]


def _finite(value: Number) -> float | None:
    there = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if there and value is not None else None


def _frame(plane: _Plane, whole: int) -> Iterator[str]:
    right, base = plane.width - RIGHT, plane.base
    yield f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{base:.1f}" y2="{base:.1f}"/>'
    yield _words(LEFT - 6, plane.y(plane.high) + 4, fmt(plane.high), "end")
    if plane.high > plane.low:
        yield _words(LEFT - 6, plane.y(plane.low) + 4, fmt(plane.low), "end")
    ticks = _ticks(plane.first, plane.last)
    for tick in ticks:
        at = plane.x(tick)
        yield f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{plane.top}" y2="{whole - 20}"/>'
        said = f"step {tick:,}" if tick == ticks[-1] else f"{tick:,}"
        late = at > right - LETTER * len(said) / 2
        yield _words(right if late else at, whole - 7, said, "end" if late else "middle")


def _ticks(first: int, last: int) -> list[int]:
    """Round numbers of steps, a few of them; both ends where nothing round lies between."""
    size = 10 ** math.floor(math.log10(max(last - first, 1)))
    strides = [max(1, round(size * share)) for share in (0.1, 0.2, 0.5, 1, 2)]
    stride = next((each for each in strides if (last - first) / each <= MOST_TICKS), strides[-1])
    found = list(range(-(-first // stride) * stride, last + 1, stride))
    return found if len(found) > 1 else sorted({first, last})


def _line(line: Line, plane: _Plane) -> Iterator[str]:
    points = line.points
    if points.low is not None and points.high is not None:
        yield _band(points.steps, points.low, points.high, plane)
    for path in _paths(points.steps, points.values, plane):
        yield f'<polyline class="curve" points="{" ".join(path)}"/>'
    for step in points.nans:
        yield f'<circle class="nan" cx="{plane.x(step):.1f}" cy="{plane.base:.1f}" r="3"/>'


def _paths(steps: Sequence[int], values: Sequence[Number], plane: _Plane) -> list[list[str]]:
    """Points that are joined: a value that is not finite breaks the line."""
    paths: list[list[str]] = [[]]
    for step, value in zip(steps, map(_finite, values), strict=True):
        if value is None:
            paths.append([])
        else:
            paths[-1].append(f"{plane.x(step):.1f},{plane.y(value):.1f}")
    return [path for path in paths if path]


def _band(
    steps: Sequence[int], low: Sequence[Number], high: Sequence[Number], plane: _Plane
) -> str:
    ends = [
        (step, bottom, top)
        for step, bottom, top in zip(steps, map(_finite, low), map(_finite, high), strict=True)
        if bottom is not None and top is not None
    ]
    above = [f"{plane.x(step):.1f},{plane.y(top):.1f}" for step, _, top in ends]
    below = [f"{plane.x(step):.1f},{plane.y(bottom):.1f}" for step, bottom, _ in reversed(ends)]
    return f'<polygon class="band" points="{" ".join(above + below)}"/>'


def _span(span: Span, plane: _Plane) -> Iterator[str]:
    """A line at its first step, and its words above."""
    if not plane.first <= span.first <= plane.last:
        return
    at = plane.x(span.first)
    yield (
        f'<line class="since {span.severity}" x1="{at:.1f}" x2="{at:.1f}" y1="{plane.top - 2}"'
        f' y2="{plane.base:.1f}"/>'
    )
    if span.label:
        late = at + LETTER * len(span.label) > plane.width - RIGHT
        yield _words(at, plane.top - 5, span.label, "end" if late else "start", span.severity)


def _lane(onset: Onset, at: int, plane: _Plane) -> Iterator[str]:
    """A bar from where it began to the end, its words where there is room for them."""
    begin, top, right = plane.x(onset.step), plane.base + 4 + at * LANE, plane.width - RIGHT
    step = f"step {onset.step:,}"
    short, long = f"{at + 1}  {onset.label} · {step}", f"{at + 1}  {step} · {onset.note}"
    said = long if onset.note and begin + LETTER * len(long) + 14 <= right else short
    before = begin + LETTER * len(said) + 6 > right
    yield (
        f'<g class="lane {onset.severity}"><title>{_text(onset.note)}</title>'
        f'<line class="onset" x1="{begin:.1f}" x2="{begin:.1f}" y1="{plane.top}"'
        f' y2="{plane.base:.1f}"/>'
        f'<rect x="{begin:.1f}" y="{top:.1f}" width="{max(right - begin, 2):.1f}" height="18"/>'
        f'<rect class="edge" x="{begin:.1f}" y="{top:.1f}" width="3" height="18"/>'
    )
    yield _words(begin + (-6 if before else 8), top + 13, said, "end" if before else "start")
    yield "</g>"


def _words(x: float, y: float, text: str, anchor: str, severity: str = "") -> str:
    named = f' class="{severity}"' if severity else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_text(text)}</text>'


def _text(value: object) -> str:
    return html.escape(str(value))
