"""A drawing: shapes on a sheet, placed to the last pixel before anybody draws them.

The page makes elements of them, a file holds them as text; colours are inks by name, so that one
drawing serves a light and a dark ground.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gradiometer.errors import UnknownName

__all__ = ["INKS", "Drawing", "Element", "Sheet", "as_svg_file", "text_width", "typeset", "wrapped"]

Attributes = dict[str, float | str]
INKS: dict[str, dict[str, str]] = {
    "light": {
        "paper": "#FFFFFF",
        "card": "#F7F9FB",
        "text": "#1F2630",
        "muted": "#5C6675",
        "line": "#D5DBE2",
        "faint": "#C3CAD3",
        "critical": "#B3261E",
        "critical-soft": "#FDF0EE",
        "warn": "#8F5500",
        "fine": "#00704F",
        "0": "#0072B2",
        "1": "#DD8A00",
        "2": "#009E73",
        "3": "#D1491B",
        "4": "#B0568F",
        "5": "#3D9FD6",
        "6": "#94830B",
        "7": "#555C66",
    },
    "dark": {
        "paper": "#161B22",
        "card": "#1D242D",
        "text": "#E9EDF2",
        "muted": "#9BA6B5",
        "line": "#323B47",
        "faint": "#465060",
        "critical": "#FF7B6B",
        "critical-soft": "#2B1A1C",
        "warn": "#F2B134",
        "fine": "#3CCBA0",
        "0": "#4AA8EA",
        "1": "#F2B134",
        "2": "#2CC79A",
        "3": "#FF7F50",
        "4": "#E699C8",
        "5": "#9AD5F8",
        "6": "#E8DC4A",
        "7": "#BFC6D1",
    },
}
"""Those with a number are the places of the runs' palette (static/charts/palette.js)."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Noto Sans', sans-serif"
INKED = ("fill", "stroke")
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """An element of SVG. Of its attributes `fill` and `stroke` name inks."""

    tag: Literal["path", "rect", "text", "tspan", "circle"]
    at: Mapping[str, float | str] = field(default_factory=dict)
    text: str = ""
    title: str = ""
    """What to say on hover, and to those who cannot see it."""
    go: str = ""
    """The id of the chart that a click leads to."""
    inside: Sequence[Element] = ()
    """Of a text: pieces that follow it on its line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One arrangement of a drawing."""

    width: float
    height: float
    shapes: Sequence[Element]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A picture in two arrangements, and the colours of its inks."""

    title: str
    """The picture in a sentence."""
    wide: Sheet
    narrow: Sheet
    """For a phone."""
    inks: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: INKS)


def as_svg_file(drawing: Drawing, theme: str = "light", *, narrow: bool = False) -> str:
    """The drawing as a file that stands alone."""
    if theme not in drawing.inks:
        raise UnknownName("theme", theme, drawing.inks, hint=f"(there are {', '.join(INKS)})")
    sheet, inks = drawing.narrow if narrow else drawing.wide, drawing.inks[theme]
    ground = f'<rect width="100%" height="100%" fill="{inks["paper"]}"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {sheet.width:g} {sheet.height:g}"'
        f' width="{sheet.width:g}" height="{sheet.height:g}" font-family="{FONT}" role="img">'
        f"<title>{html.escape(drawing.title)}</title>{ground}"
        f"{''.join(_element(shape, inks) for shape in sheet.shapes)}</svg>\n"
    )


def _element(shape: Element, inks: Mapping[str, str]) -> str:
    given = {
        name: inks.get(str(value), value) if name in INKED else value
        for name, value in shape.at.items()
    }
    attributes = "".join(f' {name}="{html.escape(_said(value))}"' for name, value in given.items())
    title = f"<title>{html.escape(shape.title)}</title>" if shape.title else ""
    inside = "".join(_element(each, inks) for each in shape.inside)
    return f"<{shape.tag}{attributes}>{title}{html.escape(shape.text)}{inside}</{shape.tag}>"


def _said(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")


NARROW, WIDE = frozenset("iljtfrI.,:;'|!()[]/ -·"), frozenset("mwMW%@—×−")


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """How wide a text is in a usual sans serif, rather more than less."""
    letters = sum(
        0.37 if letter in NARROW else 0.9 if letter in WIDE else 0.7 if letter.isupper() else 0.62
        for letter in text
    )
    return letters * size * (1.1 if bold else 1.0)


def balanced(text: str, size: float, width: float, *, bold: bool = False) -> list[str]:
    """The text in as few lines as fit, and those about equally long."""
    lines = wrapped(text, size, width, bold=bold)
    share = text_width(text, size, bold=bold) / len(lines) * 1.12 if lines else width
    again = wrapped(text, size, min(width, share), bold=bold)
    return again if len(again) == len(lines) else lines


def wrapped(text: str, size: float, width: float, *, bold: bool = False) -> list[str]:
    """The text in lines that fit; a word that does not fit by itself is cut."""
    lines: list[str] = []
    for word in text.split():
        fitting = cut(word, size, width, bold=bold)
        joined = f"{lines[-1]} {fitting}" if lines else fitting
        if lines and text_width(joined, size, bold=bold) <= width:
            lines[-1] = joined
        else:
            lines.append(fitting)
    return lines


def cut(text: str, size: float, width: float, *, bold: bool = False) -> str:
    """As much of a name as fits, its beginning and its end."""
    if text_width(text, size, bold=bold) <= width:
        return text
    for kept in range(len(text) - 1, 1, -1):
        tail = kept // 3
        short = f"{text[: kept - tail]}…{text[len(text) - tail :] if tail else ''}"
        if text_width(short, size, bold=bold) <= width:
            return short
    return text[:1]


def typeset(value: float, digits: int = 3) -> str:
    """A number as a picture writes it: −0.0108, 1,204, 3 × 10⁻⁸."""
    text = f"{value:.{digits}g}"
    if "e" not in text:
        return text.replace("-", "−")
    mantissa, power = text.split("e")
    return f"{mantissa.replace('-', '−')} × 10{str(int(power)).translate(SUPERSCRIPTS)}"


def text_at(
    x: float,
    y: float,
    text: str,
    *,
    size: float = 13,
    ink: str = "text",
    weight: int = 400,
    anchor: str = "start",
    **more: str,
) -> Element:
    """A line of text; y is its baseline."""
    at: Attributes = {"x": x, "y": y, "font-size": size, "fill": ink}
    if weight != 400:
        at["font-weight"] = str(weight)
    if anchor != "start":
        at["text-anchor"] = anchor
    return Element(
        tag="text", at=at | {name.replace("_", "-"): more[name] for name in more}, text=text
    )


def lines_at(
    x: float, y: float, lines: Iterable[str], *, leading: float, **given: object
) -> list[Element]:
    """Lines below each other; y is the baseline of the first."""
    return [
        text_at(x, y + place * leading, line, **given)  # type: ignore[arg-type]
        for place, line in enumerate(lines)
    ]
