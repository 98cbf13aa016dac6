"""The page to read first: how strong each term is on each bucket, how sure that is, and how the terms agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations
from typing import TYPE_CHECKING, Any

from gradiometer.plots.analysis import NORM, SAMPLES, AnalysisStep
from gradiometer.plots.figures import (
    GROUPS,
    SIGNAL,
    SIGNAL_HIGH,
    SIGNAL_LOW,
    SPREAD_MEAN,
    WIDTH,
    header,
    plain_norms,
    read,
    term_legend,
)
from gradiometer.plots.panels import (
    MANY,
    Reading,
    bucket_axis,
    cells,
    compact,
    draw_readings,
    nothing,
    thinned,
)
from gradiometer.plots.scales import set_scale
from gradiometer.plots.style import INK, colour, marker, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_summary"]

SNR = "grad_norm/<bucket>/snr/<term>"
P_VALUE = "grad_norm/<bucket>/p_value/<term>"
SHARE = "grad_norm/<bucket>/share/<term>"
COSINE = "grad_norm/<bucket>/cos/<term_a>~<term_b>"
COSINE_SIGNAL = "grad_norm/<bucket>/cos_signal/<term_a>~<term_b>"
BETWEEN = "grad_norm/between/<term>/<bucket_a>~<bucket_b>"
PERCENT = "grad_norm/<bucket>/sample_pct"
TOKENS = "grad_norm/<bucket>/token_count"
SIGNIFICANT = 0.05
READABLE = 9
"""More columns than this, and numbers in cells cannot be read at column width."""


def draw_summary(step: AnalysisStep) -> Figure:
    """Signal with intervals, SNR, shares, cosines between terms and between buckets, and the counts."""
    sure, related = step.has(SNR) or step.has(SHARE), step.has(COSINE) or step.has(BETWEEN)
    rows: list[tuple[list[str], float]] = [(["signal", "signal"], 2.45)]
    rows += [(["snr", "share"], 1.95)] if sure else []
    rows += [(["cosines", "between"], 2.2)] if related else []
    rows += [(["counts", "counts"], 1.25)]
    heights = [height for _, height in rows]
    figure = sheet(WIDTH, sum(heights) + 0.25)
    layout: list[Any] = [names for names, _ in rows]
    for name, ax in figure.subplot_mosaic(layout, height_ratios=heights).items():
        PANELS[name](ax, step)
    missing = [words for words, there in (("SNR and shares", sure), ("cosines", related)) if not there]
    header(figure, step, "Gradient analysis", note=f"not in this log: {', '.join(missing)}" if missing else "")
    term_legend(figure, step)
    return figure


def _by_term(
    ax: Axes, step: AnalysisStep, readings: Callable[[str], dict[str, Reading]], look: Callable[[str], dict[str, Any]]
) -> list[float]:
    """Terms side by side in each bucket; a term that was measured nowhere takes no hatching but is named in the legend."""
    drawn: list[float] = []
    width = 0.75 / max(len(step.terms), 1)
    for number, term in enumerate(step.terms):
        found = readings(term)
        if any(reading.value is not None for reading in found.values()):
            shift = (number - (len(step.terms) - 1) / 2) * width
            drawn += draw_readings(ax, found, step, shift=shift, width=width, **look(term))
    return drawn


def _look(step: AnalysisStep, **more: Any) -> Callable[[str], dict[str, Any]]:
    return lambda term: {"color": colour(term, step.terms), "marker": marker(term, step.terms), **more}


def _signal_panel(ax: Axes, step: AnalysisStep) -> None:
    sound = step.has(SIGNAL)
    bucket_axis(ax, step)
    drawn = []
    if sound:
        plain = _look(step, markerfacecolor="white", alpha=0.55, markersize=3.6)
        drawn += _by_term(ax, step, lambda term: _only_measured(read(step, NORM, term=term)), plain)
        drawn += _by_term(
            ax, step, lambda term: read(step, SIGNAL, (SIGNAL_LOW, SIGNAL_HIGH), term=term), _look(step, sure=True)
        )
    else:
        drawn += _by_term(ax, step, lambda term: read(step, NORM, term=term), _look(step, markerfacecolor="white"))
    if not drawn:
        nothing(ax, "no gradient norms in this analysis")
        return
    scale = set_scale(ax, drawn, judged=[norm for term in step.terms for norm in plain_norms(step, term)])
    ax.set_ylabel("gradient norm (loss/weight)" + ("\nshaded: linear" if scale == "function" else ""))
    what = (
        "Noise-corrected norm, 95 % interval (open: plain norm)" if sound else "Norm as measured: noise not taken off"
    )
    ax.set_title(what)


def _only_measured(readings: dict[str, Reading]) -> dict[str, Reading]:
    return {bucket: reading for bucket, reading in readings.items() if reading.value is not None}


def _snr_panel(ax: Axes, step: AnalysisStep) -> None:
    ax.set_title("Signal-to-noise (filled: p < 0.05, sign flips)")
    if not step.has(SNR):
        nothing(ax, "not in this log")
        return
    bucket_axis(ax, step, counts=False)
    drawn = []
    for significant in (True, False):
        look = _look(step) if significant else _look(step, markerfacecolor="white")
        drawn += _by_term(ax, step, lambda term, s=significant: _snr(step, term, significant=s), look)  # type: ignore[misc]
    set_scale(ax, [*drawn, 1.0], judged=[max(value, 0.5) for value in drawn])
    ax.axhline(1.0, color=INK, linewidth=0.6, linestyle=(0, (4, 2)), zorder=1)
    ax.set_ylabel("SNR (1)")


def _snr(step: AnalysisStep, term: str, *, significant: bool) -> dict[str, Reading]:
    found = read(step, SNR, term=term)
    p_values = {bucket: step.value(P_VALUE, bucket=bucket, term=term) for bucket in found}
    sure = {bucket for bucket, p in p_values.items() if p is not None and p < SIGNIFICANT}
    return {bucket: reading for bucket, reading in found.items() if (bucket in sure) == significant}


def _share_panel(ax: Axes, step: AnalysisStep) -> None:
    ax.set_title("Share of the total gradient")
    if not step.has(SHARE):
        nothing(ax, "not in this log")
        return
    bucket_axis(ax, step, counts=False)
    drawn = _by_term(ax, step, lambda term: read(step, SHARE, term=term), _look(step))
    ax.axhline(0.0, color=INK, linewidth=0.6, zorder=1)
    ax.set_ylim(min([0.0, *drawn]) - 0.08, max([1.0, *drawn]) + 0.08)
    ax.set_ylabel("⟨term, total⟩ / ‖total‖² (1)")


def _cosine_panel(ax: Axes, step: AnalysisStep) -> None:
    sound = step.has(COSINE_SIGNAL)
    ax.set_title("Cosine of terms" + (" (in brackets: noise-corrected)" if sound else ""))
    pairs = [
        pair for pair in combinations(step.terms, 2) if any(_cosine(step, b, *pair) is not None for b in step.buckets)
    ]
    if not pairs:
        nothing(ax, "not in this log" if not step.has(COSINE) else "fewer than two terms")
        return
    values = [[_cosine(step, bucket, *pair) for bucket in step.buckets] for pair in pairs]
    texts = [[_cosine_text(step, bucket, *pair) for bucket in step.buckets] for pair in pairs]
    cells(ax, [f"{a}\n~ {b}" for a, b in pairs], _names(step.buckets), _thin(texts), values=values)
    ax.set_xlabel("bucket")


def _cosine(step: AnalysisStep, bucket: str, a: str, b: str, template: str = COSINE) -> float | None:
    there = step.value(template, bucket=bucket, term_a=a, term_b=b)
    return there if there is not None else step.value(template, bucket=bucket, term_a=b, term_b=a)


def _cosine_text(step: AnalysisStep, bucket: str, a: str, b: str) -> str | None:
    plain, sound = _cosine(step, bucket, a, b), _cosine(step, bucket, a, b, COSINE_SIGNAL)
    if plain is None or not step.has(COSINE_SIGNAL):
        return _signed(plain)
    return f"{_signed(plain)}\n({'–' if sound is None else _signed(sound)})"


def _between_panel(ax: Axes, step: AnalysisStep) -> None:
    term = step.terms[0] if step.terms else ""
    ax.set_title(f"Cosine of buckets, {term} (purple −, orange +)")
    buckets = tuple(bucket for bucket in step.buckets if bucket != "all")
    values = [[_between(step, term, a, b) for b in buckets] for a in buckets]
    if all(value is None for line in values for value in line):
        nothing(ax, "not in this log")
        return
    # The diagonal is 1 by definition and the upper half repeats the lower: neither says anything.
    texts: list[list[str | None]] = [
        [_signed(value) if along < down else "" for along, value in enumerate(line)] for down, line in enumerate(values)
    ]
    lower = [[value if along < down else None for along, value in enumerate(line)] for down, line in enumerate(values)]
    cells(
        ax,
        _names(buckets)[1:],
        _names(buckets)[:-1],
        [line[:-1] for line in _thin(texts)[1:]],
        values=[line[:-1] for line in lower[1:]],
    )
    ax.set_xlabel("bucket")
    ax.set_ylabel("bucket")


def _between(step: AnalysisStep, term: str, a: str, b: str) -> float | None:
    there = step.value(BETWEEN, term=term, bucket_a=a, bucket_b=b)
    return there if there is not None else step.value(BETWEEN, term=term, bucket_a=b, bucket_b=a)


def _thin(texts: list[list[str | None]]) -> list[list[str | None]]:
    """Without numbers where they could not be read; colours and hatches stay."""
    if len(texts[0]) <= READABLE:
        return texts
    return [[None if text is None else "" for text in line] for line in texts]


def _count_panel(ax: Axes, step: AnalysisStep) -> None:
    ax.set_title("Counts and reward spread" + ("" if len(step.buckets) <= MANY else ", some of the buckets"))
    rows: list[tuple[str, str, Callable[[float | None], str]]] = [
        ("samples", SAMPLES, compact),
        ("of all", PERCENT, lambda value: f"{value:.0%}" if value is not None else "?"),
        ("groups", GROUPS, compact),
        ("tokens", TOKENS, compact),
        ("reward std", SPREAD_MEAN, lambda value: f"{value:.2g}" if value is not None else "?"),
    ]
    shown = thinned(step.buckets)
    texts = [[_text(step.value(template, bucket=bucket), say) for bucket in shown] for _, template, say in rows]
    cells(ax, [name for name, _, _ in rows], _names(shown), texts)
    ax.tick_params(axis="x", labeltop=True, labelbottom=False)


def _text(value: float | None, say: Callable[[float | None], str]) -> str | None:
    return None if value is None else say(value)


def _signed(value: float | None) -> str | None:
    return (
        None if value is None else f"{value:+.2f}".replace("-", "−").replace("+0.00", "0.00").replace("−0.00", "0.00")
    )


def _names(buckets: Iterable[str]) -> list[str]:
    return [bucket.removeprefix("bucket_") for bucket in buckets]


PANELS: dict[str, Callable[[Axes, AnalysisStep], None]] = {
    "signal": _signal_panel,
    "snr": _snr_panel,
    "share": _share_panel,
    "cosines": _cosine_panel,
    "between": _between_panel,
    "counts": _count_panel,
}
