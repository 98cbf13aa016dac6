"""How terms agree: matrices of cosines, of an analysis and of what the meter last measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from gradiometer.dashboard.desk import Desk, info_of
from gradiometer.dashboard.shape import Chart, Matrix, Number
from gradiometer.dashboard.views.terms_reading import Split, newest_of
from gradiometer.dashboard.views.terms_step import bucket_name
from gradiometer.metrics import key
from gradiometer.plots.analysis import ALL, AnalysisStep
from gradiometer.plots.summary import BETWEEN, COSINE, COSINE_SIGNAL
from gradiometer.store.strictjson import plain

__all__ = ["analysis_cosines", "latest_cosines"]

Cosine = Callable[[str, str], float | None]
TERM_COSINE = "grad/<block>/term/<term_a>~<term_b>/cos"
SKETCHED = "grad/all/term/cos_error"


def analysis_cosines(step: AnalysisStep, bucket: str, term: str, section: str) -> Iterator[Chart]:
    """Between terms on one bucket, plain and free of shared noise; between terms on all; between buckets for one term."""
    where = f"on {bucket_name(bucket)}" if bucket != ALL else "on all samples"
    for template, id, title in (
        (COSINE, "cosines", f"Cosine between terms {where}"),
        (COSINE_SIGNAL, "cosines-signal", f"The same, free of shared noise {where}"),
    ):
        matrix = _square(step.measured_terms, _of(step, template, bucket))
        if matrix is not None:
            yield _chart(id, title, section, [template], matrix, _error(step))
    pairs = list(combinations(step.measured_terms, 2))
    by_bucket = [[_of(step, COSINE, each)(*pair) for each in step.buckets] for pair in pairs]
    if any(value is not None for row in by_bucket for value in row):
        names = [f"{a} ~ {b}" for a, b in pairs]
        cells = _matrix(names, list(map(bucket_name, step.buckets)), by_bucket)
        yield _chart("cosines-buckets", "Cosine between terms, by bucket", section, [COSINE], cells)
    buckets = [each for each in step.buckets if each != ALL]
    between = _square(buckets, lambda a, b: _either(step, BETWEEN, ("bucket_a", "bucket_b"), a, b, term=term))
    if between is not None:
        shown = list(map(bucket_name, buckets))
        matrix = replace(between, rows=shown, columns=shown)
        yield _chart("between", f"Cosine between buckets, {term}", section, [BETWEEN], matrix)


def latest_cosines(desk: Desk, split: Split, block: str, order: Sequence[str], section: str) -> Iterator[Chart]:
    """Of the run in focus, at the last step that measured them."""
    run = desk.focus
    every = {pair: key(TERM_COSINE, block=block, term_a=pair[0], term_b=pair[1]) for pair in split.pairs.get(block, ())}
    names = {pair: name for pair, name in sorted(every.items()) if name in run.names}
    step = newest_of(run, names.values(), desk.ask.last)
    if step is None:
        return
    found = {
        frozenset(pair): float(values[0])
        for pair, name in names.items()
        if len(values := run.log.part(name, step, step)[1])
    }
    terms = [term for term in order if any(term in pair for pair in names)]
    matrix = _square(terms, lambda a, b: found.get(frozenset((a, b))))
    if matrix is not None:
        whose = f" of {run.label}" if len(desk.runs) > 1 else ""
        title = f"Cosine between terms on {block}{whose}, step {step}"
        yield _chart("term-cosines", title, section, [TERM_COSINE], matrix, _sketch_error(desk, step))


def _sketch_error(desk: Desk, step: int) -> str:
    if SKETCHED not in desk.focus.names:
        return ""
    values = desk.focus.log.part(SKETCHED, step, step)[1]
    return f"From sketches: standard error {values[0]:.2g}." if len(values) else ""


def _error(step: AnalysisStep) -> str:
    error = step.circumstances.get("cosine_error")
    return f"From sketches: ±{error:.2g}." if isinstance(error, float) else ""


def _of(step: AnalysisStep, template: str, bucket: str) -> Cosine:
    return lambda a, b: _either(step, template, ("term_a", "term_b"), a, b, bucket=bucket)


def _either(step: AnalysisStep, template: str, places: tuple[str, str], a: str, b: str, **parts: str) -> float | None:
    """A pair has one name, and nobody knows which of the two is first in it."""
    there = step.value(template, **dict(zip(places, (a, b), strict=True)), **parts)
    return there if there is not None else step.value(template, **dict(zip(places, (b, a), strict=True)), **parts)


def _square(names: Sequence[str], cosine: Cosine) -> Matrix | None:
    """Symmetric, with the ones of the diagonal; None when no pair was measured."""
    values = [[1.0 if a == b else cosine(a, b) for b in names] for a in names]
    if all(value is None for row, line in enumerate(values) for column, value in enumerate(line) if row != column):
        return None
    return _matrix(names, names, values)


def _matrix(rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float | None]]) -> Matrix:
    cells: list[list[Number]] = plain(values)
    return Matrix(rows=rows, columns=columns, cells=cells, low=-1.0, high=1.0, colours="diverging", written=True)


def _chart(id: str, title: str, section: str, templates: Sequence[str], matrix: Matrix, subtitle: str = "") -> Chart:
    return Chart(
        id=id, kind="matrix", title=title, section=section, subtitle=subtitle, matrix=matrix, info=info_of(*templates)
    )
