"""The charts of one gradient analysis: norms, signal, cosines and counts by bucket, with the sound
quantities beside the plain ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from gradiometer.charts.analysis import ALL, LOSS, NORM, SAMPLES, TOTAL, AnalysisStep
from gradiometer.charts.model import (
    Axis,
    Bars,
    Chart,
    Dots,
    Empty,
    Level,
    Matrix,
    Number,
    Scale,
    TableOf,
    info_of,
)
from gradiometer.metrics import CATALOGUE
from gradiometer.store.strictjson import plain

__all__ = [
    "analysis_cosines",
    "bucket_name",
    "cosine_chart",
    "cosines_by_bucket",
    "square",
    "step_charts",
]

SIGNAL = "grad_norm/<bucket>/signal/<term>"
SIGNAL_LOW = "grad_norm/<bucket>/signal_low/<term>"
SIGNAL_HIGH = "grad_norm/<bucket>/signal_high/<term>"
NULL = "grad_norm/<bucket>/null/<term>"
NULL_SIGNAL = "grad_norm/<bucket>/null_signal/<term>"
NULL_LOW = "grad_norm/<bucket>/null_signal_low/<term>"
NULL_HIGH = "grad_norm/<bucket>/null_signal_high/<term>"
SNR = "grad_norm/<bucket>/snr/<term>"
P_VALUE = "grad_norm/<bucket>/p_value/<term>"
SHARE = "grad_norm/<bucket>/share/<term>"
COSINE = "grad_norm/<bucket>/cos/<term_a>~<term_b>"
COSINE_SIGNAL = "grad_norm/<bucket>/cos_signal/<term_a>~<term_b>"
BETWEEN = "grad_norm/between/<term>/<bucket_a>~<bucket_b>"
SPREAD_MEAN = "grad_norm/<bucket>/reward_std_mean"
SPREAD_MIN = "grad_norm/<bucket>/reward_std_min"
SPREAD_MAX = "grad_norm/<bucket>/reward_std_max"
GROUPS = "grad_norm/<bucket>/group_rv_count"
PERCENT = "grad_norm/<bucket>/sample_pct"
TOKENS = "grad_norm/<bucket>/token_count"
PER_COUNT = (
    ("grad_norm/<bucket>/per_sample/<term>", "Norm ÷ samples"),
    ("grad_norm/<bucket>/per_token/<term>", "Norm ÷ tokens"),
    ("grad_norm/<bucket>/per_sample_sum/<term>", "Norm of summed loss ÷ samples"),
    ("grad_norm/<bucket>/per_token_sum/<term>", "Norm of summed loss ÷ tokens"),
)
SIGNIFICANT = 0.05
NOISE = "grad_norm/<bucket>/noise/<term>"
AXES = {SNR: "SNR", SHARE: "⟨term, total⟩ / ‖total‖²"}
"""What stands at the axis instead of the unit 1."""
BUCKETS = Axis(title="bucket, reward std low → high")
KINDS = (
    ("norm", "norm as measured", NORM, "", ""),
    ("signal", "signal, noise taken off", SIGNAL, SIGNAL_LOW, SIGNAL_HIGH),
    ("noise", "noise", NOISE, "", ""),
    ("null", "norm, rewards shuffled", NULL, "", ""),
    ("null_signal", "signal, rewards shuffled", NULL_SIGNAL, NULL_LOW, NULL_HIGH),
)
"""What a term reads on a bucket: role, label, template and the ends of its interval."""
COUNTS = (
    ("samples", SAMPLES),
    ("of all", PERCENT),
    ("groups", GROUPS),
    ("tokens", TOKENS),
    ("reward std", SPREAD_MEAN),
    ("smallest", SPREAD_MIN),
    ("largest", SPREAD_MAX),
)
ROUNDING = 1e-12
ONLY_ROUNDING = Empty(
    title="Nothing but rounding",
    cause=f"Every value here is below {ROUNDING:g}: what is left where numbers cancel.",
    fix="The term has no gradient on these buckets; the numbers are in the JSON of this view.",
)
FEW = 4
"""Groups below which there are no intervals."""


def step_charts(step: AnalysisStep, section: str, unreadable: str = "") -> Iterator[Chart]:
    """Everything but the cosines, in reading order; what was not measured is left out."""
    yield from _norms(step, section)
    yield from _by_term(
        step, section, SNR, "snr", "Signal-to-noise of each term", levels=(AS_MUCH,), notes=True
    )
    yield from _by_term(step, section, SHARE, "share", "Share of the bucket's total gradient")
    for term in step.measured_terms:
        yield from _signal(step, term, section)
    yield from _counted(step, f"{section} · rewards and groups", unreadable)
    counted = f"{section} · per sample and token"
    for template, words in PER_COUNT:
        yield from _by_term(step, counted, template, template.split("/")[2], words)
    for name in step.losses:
        yield from _loss(step, name, f"{section} · losses")


AS_MUCH = Level(value=1.0, label="as much signal as noise")


def bucket_name(bucket: str) -> str:
    """As the axis writes it."""
    return bucket.replace("_", " ")


def _norms(step: AnalysisStep, section: str) -> Iterator[Chart]:
    drawn = [
        _bars(step, term, f"term:{term}", NORM, term=term) for term in (*step.measured_terms, TOTAL)
    ]
    absent = [
        f"{term}: {step.absence(term)} in this analysis"
        for term in step.terms
        if term not in step.measured_terms
    ]
    zeros = [
        f"{bars.label} is exactly 0 in {', '.join(_zeros(bars))}" for bars in drawn if _zeros(bars)
    ]
    yield from _chart(
        "norm",
        "Gradient norm of each term, noise included",
        section,
        [NORM],
        drawn,
        subtitle="; ".join([*absent, *zeros]),
        wide=True,
    )


def _zeros(bars: Bars) -> list[str]:
    """Buckets that a log axis cannot show."""
    return [name for name, value in zip(bars.categories, bars.values, strict=True) if value == 0]


def _signal(step: AnalysisStep, term: str, section: str) -> Iterator[Chart]:
    """One term: how much of its norm is signal, and what both read when the rewards say nothing."""
    drawn = [
        _bars(step, label, f"kind:{kind}", template, low, high, term=term)
        for kind, label, template, low, high in KINDS
    ]
    if all(value is None for bars in drawn[1:] for value in bars.values):
        return
    signal = drawn[1]
    bare = [
        name
        for name, value, low in zip(
            signal.categories, signal.values, signal.low or (), strict=False
        )
        if value is not None and low is None
    ]
    yield from _chart(
        f"signal-{term}",
        f"{term}: how much of the norm is signal",
        section,
        [template for _, _, template, _, _ in KINDS],
        drawn,
        subtitle=f"No interval, fewer than {FEW} groups: {', '.join(bare)}" if bare else "",
        scale="linear",
        wide=True,
    )


def _by_term(
    step: AnalysisStep,
    section: str,
    template: str,
    id: str,
    title: str,
    levels: Sequence[Level] = (),
    *,
    notes: bool = False,
) -> Iterator[Chart]:
    drawn = [
        _bars(step, term, f"term:{term}", template, term=term, tested=notes)
        for term in step.measured_terms
    ]
    zeros = [
        f"{bars.label} is exactly 0 in {', '.join(_zeros(bars))}" for bars in drawn if _zeros(bars)
    ]
    told = "; ".join(zeros) if CATALOGUE[template].scale == "log" else ""
    yield from _chart(
        id, title, section, [template, *([P_VALUE] if notes else [])], drawn, told, levels=levels
    )


def _loss(step: AnalysisStep, name: str, section: str) -> Iterator[Chart]:
    drawn = [_bars(step, name, f"term:{'task' if name == 'policy' else name}", LOSS, name=name)]
    yield from _chart(f"loss-{name}", f"Loss: {name}", section, [LOSS], drawn)


def _counted(step: AnalysisStep, section: str, unreadable: str) -> Iterator[Chart]:
    """How much rewards differ inside groups, the number of groups, and every group."""
    spread = [
        _bars(
            step, "mean, with smallest and largest group", "", SPREAD_MEAN, SPREAD_MIN, SPREAD_MAX
        )
    ]
    infos = [SPREAD_MEAN, SPREAD_MIN, SPREAD_MAX]
    yield from _chart("reward-std", "Reward standard deviation in a group", section, infos, spread)
    yield from _chart(
        "groups", "Groups in each bucket", section, [GROUPS], [_bars(step, "groups", "", GROUPS)]
    )
    if step.groups or unreadable:
        yield _scatter(step, section, unreadable)
    shown = [(words, template) for words, template in COUNTS if step.has(template)]
    if shown:
        cells = [
            [
                bucket_name(bucket),
                *(_cell(step.value(template, bucket=bucket)) for _, template in shown),
            ]
            for bucket in step.buckets
        ]
        table = TableOf(columns=["bucket", *(words for words, _ in shown)], cells=cells)
        infos = [template for _, template in shown]
        yield Chart(
            id="counts",
            kind="table",
            title="What is in each bucket",
            section=section,
            table=table,
            info=info_of(*infos),
        )


def _cell(value: float | None) -> Number:
    """A count is written without a point."""
    number: Number = int(value) if value is not None and float(value).is_integer() else plain(value)
    return number


def _scatter(step: AnalysisStep, section: str, unreadable: str) -> Chart:
    inside = [group for bucket in step.buckets for group in step.groups if group.bucket == bucket]
    marks = Dots(
        label="one group",
        x=[bucket_name(group.bucket) for group in inside],
        y=[plain(group.reward_std) for group in inside],
        notes=[f"group {group.group_id}" for group in inside],
    )
    problem = Empty(
        title="The group table cannot be read",
        cause=f"The table {unreadable} has not the columns bucket, group_id and reward_std.",
        fix="Log it with those columns, as the gradient analysis does.",
    )
    return Chart(
        id="group-scatter",
        kind="marks",
        title="Every group's reward standard deviation",
        section=section,
        x=BUCKETS,
        y=Axis(title=CATALOGUE[SPREAD_MEAN].unit),
        marks=[marks] if inside else [],
        info=info_of(SPREAD_MEAN),
        empty=problem if unreadable else None,
    )


def _bars(
    step: AnalysisStep,
    label: str,
    role: str,
    template: str,
    low: str = "",
    high: str = "",
    *,
    tested: bool = False,
    **parts: str,
) -> Bars:
    """A template over the buckets, with its interval; on hover how much it rests on."""

    def read(of: str) -> list[float | None]:
        return [step.value(of, bucket=bucket, **parts) for bucket in step.buckets]

    p_values = read(P_VALUE) if tested else [None] * len(step.buckets)
    notes = [_about(step, *each) for each in zip(step.buckets, p_values, strict=True)]
    return Bars(
        label=label,
        role=role,
        categories=[bucket_name(bucket) for bucket in step.buckets],
        values=plain(read(template)),
        low=plain(read(low)) if low and step.has(low) else None,
        high=plain(read(high)) if high and step.has(high) else None,
        notes=notes if any(notes) else None,
        significant=[p is not None and p < SIGNIFICANT for p in p_values] if tested else None,
    )


def _about(step: AnalysisStep, bucket: str, p_value: float | None) -> str:
    counted = [
        (step.value(template, bucket=bucket), word)
        for template, word in ((SAMPLES, "sample"), (GROUPS, "group"))
    ]
    told = [
        f"{count:g} {word}{'' if count == 1 else 's'}"
        for count, word in counted
        if count is not None
    ]
    return ", ".join([*told, *([f"sign-flip p = {p_value:.3g}"] if p_value is not None else [])])


def _chart(
    id: str,
    title: str,
    section: str,
    templates: Iterable[str],
    drawn: Iterable[Bars],
    subtitle: str = "",
    *,
    levels: Sequence[Level] = (),
    scale: Scale | None = None,
    wide: bool = False,
) -> Iterator[Chart]:
    """A bar chart of what was measured, or nothing; its axis is the first template's."""
    bars = [each for each in drawn if any(value is not None for value in each.values)]
    shown = list(templates)
    if bars:
        about = CATALOGUE[shown[0]]
        yield Chart(
            id=id,
            kind="bars",
            title=title,
            section=section,
            subtitle=subtitle,
            x=BUCKETS,
            y=Axis(title=AXES.get(shown[0], about.unit), scale=scale or about.scale),
            levels=levels,
            bars=bars,
            info=info_of(*shown),
            empty=ONLY_ROUNDING if _is_rounding(bars) else None,
            wide=wide,
        )


def _is_rounding(bars: Sequence[Bars]) -> bool:
    """Whether all that is there is what is left where numbers cancel."""
    values = [value for each in bars for value in each.values]
    sizes = [abs(value) for value in values if isinstance(value, int | float)]
    return 0.0 < max(sizes, default=0.0) < ROUNDING


Cosine = Callable[[str, str], float | None]


def analysis_cosines(step: AnalysisStep, bucket: str, term: str, section: str) -> Iterator[Chart]:
    """Cosines between terms on a bucket and on all; between buckets for one term."""
    where = f"on {bucket_name(bucket)}" if bucket != ALL else "on all samples"
    for template, id, title in (
        (COSINE, "cosines", f"Cosine between terms {where}"),
        (
            COSINE_SIGNAL,
            "cosines-signal",
            f"The same, free of shared noise {where} (blank: not to be estimated)",
        ),
    ):
        matrix = square(step.measured_terms, _of(step, template, bucket))
        if matrix is not None:
            yield cosine_chart(id, title, section, [template], matrix, _error(step))
    yield from cosines_by_bucket(step, COSINE, section)
    buckets = [each for each in step.buckets if each != ALL]
    between = square(
        buckets, lambda a, b: _either(step, BETWEEN, ("bucket_a", "bucket_b"), a, b, term=term)
    )
    if between is not None:
        shown = list(map(bucket_name, buckets))
        matrix = replace(between, rows=shown, columns=shown)
        yield cosine_chart("between", f"Cosine between buckets, {term}", section, [BETWEEN], matrix)


def cosines_by_bucket(step: AnalysisStep, template: str, section: str = "") -> Iterator[Chart]:
    """Every pair of terms in every bucket."""
    pairs = list(combinations(step.measured_terms, 2))
    values = [[_of(step, template, each)(*pair) for each in step.buckets] for pair in pairs]
    if any(value is not None for row in values for value in row):
        names = [f"{a} ~ {b}" for a, b in pairs]
        cells = _matrix(names, list(map(bucket_name, step.buckets)), values)
        title = "Cosine between terms, by bucket"
        yield cosine_chart("cosines-buckets", title, section, [template], cells)


def _error(step: AnalysisStep) -> str:
    error = step.circumstances.get("cosine_error")
    return f"From sketches: ±{error:.2g}." if isinstance(error, float) else ""


def _of(step: AnalysisStep, template: str, bucket: str) -> Cosine:
    return lambda a, b: _either(step, template, ("term_a", "term_b"), a, b, bucket=bucket)


def _either(
    step: AnalysisStep, template: str, places: tuple[str, str], a: str, b: str, **parts: str
) -> float | None:
    """A pair has one name, and nobody knows which of the two is first in it."""
    there = step.value(template, **dict(zip(places, (a, b), strict=True)), **parts)
    return (
        there
        if there is not None
        else step.value(template, **dict(zip(places, (b, a), strict=True)), **parts)
    )


def square(names: Sequence[str], cosine: Cosine) -> Matrix | None:
    """Symmetric, with the ones of the diagonal; None when no pair was measured."""
    values = [[1.0 if a == b else cosine(a, b) for b in names] for a in names]
    if all(
        value is None
        for row, line in enumerate(values)
        for column, value in enumerate(line)
        if row != column
    ):
        return None
    return _matrix(names, names, values)


def _matrix(
    rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float | None]]
) -> Matrix:
    cells: list[list[Number]] = plain(values)
    return Matrix(
        rows=rows,
        columns=columns,
        cells=cells,
        low=-1.0,
        high=1.0,
        colours="diverging",
        written=True,
    )


def cosine_chart(
    id: str, title: str, section: str, templates: Sequence[str], matrix: Matrix, subtitle: str = ""
) -> Chart:
    """A matrix of cosines."""
    return Chart(
        id=id,
        kind="matrix",
        title=title,
        section=section,
        subtitle=subtitle,
        matrix=matrix,
        info=info_of(*templates),
    )
