"""The files of an analysis step (under RAGEN's names), of a replicate study and of a run's experts:
figures, the numbers behind them, and why a figure is not there."""

from __future__ import annotations

import csv
import io
import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gradiometer.charts.analysis import GROUP_COLUMNS, AnalysisStep
from gradiometer.charts.experts import (
    BIN_EDGES,
    FIRST,
    LAST,
    layer_cells,
    verdict,
)
from gradiometer.charts.studies import Studies
from gradiometer.doctor.experts.series import (
    DIVERGENCE,
    LOAD,
    LOG_RATIO,
    LOG_RATIO_ROUTED,
    NORM,
    OF_ROUTERS,
    OVER_LAYERS,
    RECENT,
    TIERS,
    ExpertRun,
    Field,
    norm_of,
    rms_of,
    series_name,
)
from gradiometer.errors import UsageError
from gradiometer.plots.analysis import (
    draw_losses,
    draw_normed,
    draw_norms,
    draw_reward_std,
    draw_summary,
)
from gradiometer.plots.experts import (
    draw_divergence,
    draw_dynamics,
    draw_expert_runs,
    draw_routers,
)
from gradiometer.plots.maps import chosen_steps, draw_histograms, draw_layers
from gradiometer.plots.studies import draw_curve, draw_ratio, draw_replicates, draw_variance
from gradiometer.plots.style import render, styled
from gradiometer.store.strictjson import to_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "FIGURES",
    "METRICS_NAME",
    "RECORDS_NAME",
    "SERIES_NAME",
    "SUMMARY_NAME",
    "left_out",
    "make_folder",
    "write_expert_runs",
    "write_experts",
    "write_replicates",
    "write_step",
    "write_whole",
]

FIGURES: dict[str, Callable[[AnalysisStep], Figure]] = {
    "gradient_analysis_summary_step_{step}": draw_summary,
    "gradient_analysis_plots_step_{step}": draw_norms,
    "gradient_analysis_loss_plots_step_{step}": draw_losses,
    "gradient_analysis_reward_std_step_{step}": draw_reward_std,
    "gradient_analysis_normed_grads_step_{step}": draw_normed,
}
METRICS_NAME = "gradient_analysis_metrics_step_{step}.json"
RECORDS_NAME = "variance_records.json"
TABLE_NAME = "gradient_analysis_bucket_rv_table_step_{step}.csv"


def write_step(step: AnalysisStep, folder: Path, *, kind: str = "png") -> list[Path]:
    """Write the seven files of a step; each appears whole or not at all."""
    return [write_whole(folder / name, content) for name, content in _files(step, kind)]


def _files(step: AnalysisStep, kind: str) -> Iterator[tuple[str, bytes]]:
    for name, draw in FIGURES.items():
        yield f"{name.format(step=step.step)}.{kind}", _drawn(draw, step, kind=kind)
    yield (
        METRICS_NAME.format(step=step.step),
        (to_json(dict(sorted(step.metrics.items())), indent=2) + "\n").encode(),
    )
    yield TABLE_NAME.format(step=step.step), _table(step)


def _table(step: AnalysisStep) -> bytes:
    lines = ((group.bucket, group.group_id, repr(group.reward_std)) for group in step.groups)
    return _csv(GROUP_COLUMNS, lines)


def write_replicates(found: Studies, folder: Path, *, kind: str = "png") -> list[Path]:
    """The figures the run has something for, and the records, each whole or not at all."""
    return [write_whole(folder / name, content) for name, content in _study_files(found, kind)]


def _study_files(found: Studies, kind: str) -> Iterator[tuple[str, bytes]]:
    figures: dict[str, Callable[[Studies], Figure]] = {
        "variance_summary": draw_variance,
        "variance_replicates": draw_replicates,
    }
    if found.comparison is not None:
        figures["variance_ratio"] = draw_ratio
    if found.curve is not None:
        figures["variance_curve"] = draw_curve
    for name, draw in figures.items():
        yield f"{name}.{kind}", _drawn(draw, found, kind=kind)
    yield RECORDS_NAME, (to_json(found.records, indent=2) + "\n").encode()


SERIES_NAME, SUMMARY_NAME = "expert_series.csv", "expert_summary.json"
LAYERS_STEM, HISTOGRAMS_STEM, COMPARISON_STEM = (
    "expert_layers",
    "expert_histograms",
    "expert_comparison",
)
EXPERT_FIGURES: dict[str, Callable[[ExpertRun], Figure]] = {
    "expert_dynamics": draw_dynamics,
    "expert_divergence": draw_divergence,
    "expert_routers": draw_routers,
}


def write_experts(
    found: ExpertRun, folder: Path, *, kind: str = "png", steps: Sequence[int] = ()
) -> list[Path]:
    """Every figure the run has something for, or with `steps` the heat map and histograms of those;
    with their numbers.

    Each file appears whole or not at all.
    """
    files = _of_steps(found, kind, steps) if steps else _of_run(found, kind)
    return [write_whole(folder / name, content) for name, content in files]


def write_expert_runs(runs: Sequence[ExpertRun], folder: Path, *, kind: str = "png") -> list[Path]:
    """One figure of all runs, and the numbers of each."""
    named = distinct(runs)
    drawn = [*map(norm_of, TIERS), *map(rms_of, TIERS), DIVERGENCE, LOG_RATIO, LOG_RATIO_ROUTED]
    lines = [(found.run, *line) for found in named for line in _long(found, drawn)]
    files = [
        (f"{COMPARISON_STEM}.{kind}", _drawn(draw_expert_runs, named, kind=kind)),
        (f"{COMPARISON_STEM}.csv", _csv(("run", "step", "series", "value"), lines)),
    ]
    return [write_whole(folder / name, content) for name, content in files]


def distinct(runs: Sequence[ExpertRun]) -> list[ExpertRun]:
    """The runs under names that differ: a second `exp` is `exp (2)`."""
    seen: dict[str, int] = {}
    named = []
    for found in runs:
        seen[found.run] = seen.get(found.run, 0) + 1
        again = seen[found.run]
        named.append(found if again == 1 else found.called(f"{found.run} ({again})"))
    return named


def left_out(found: ExpertRun, *, steps: Sequence[int] = ()) -> dict[str, str]:
    """The figures that cannot be drawn, each with what is missing."""
    reasons = {}
    if not steps and not any(found.has(name) for name in (norm_of("top"), rms_of("top"), NORM)):
        reasons["expert_dynamics"] = "no norms over all layers"
    if not steps and not found.has(DIVERGENCE) and not found.has(LOG_RATIO):
        reasons["expert_divergence"] = "no expert to compare with expert 0"
    if not found.layers:
        reasons[LAYERS_STEM] = "nothing was measured per layer"
    if not steps and not any(map(found.has, (LOAD, *OF_ROUTERS))):
        reasons["expert_routers"] = "nothing of a router was measured"
    if not found.histogram_steps:
        reasons[HISTOGRAMS_STEM] = "no histograms: they are kept with tier='deep'"
    for step in steps:
        if found.histogram_steps and step not in found.histogram_steps:
            near = sorted(found.histogram_steps, key=lambda kept: abs(kept - step))[:3]
            kept = ", ".join(map(str, near))
            reasons[f"{HISTOGRAMS_STEM}_step_{step}"] = (
                f"no histograms of step {step}; nearest that are kept: {kept}"
            )
    return reasons


def _of_run(found: ExpertRun, kind: str) -> Iterator[tuple[str, bytes]]:
    missing = left_out(found)
    for name, draw in EXPERT_FIGURES.items():
        if name not in missing:
            yield f"{name}.{kind}", _drawn(draw, found, kind=kind)
    yield from _of_a_step(found, kind, None, missing)
    yield SERIES_NAME, _wide(found)
    yield SUMMARY_NAME, (to_json(_summary(found, missing), indent=2) + "\n").encode()


def _of_steps(found: ExpertRun, kind: str, steps: Sequence[int]) -> Iterator[tuple[str, bytes]]:
    missing = left_out(found, steps=steps)
    for step in steps:
        yield from _of_a_step(found, kind, step, missing)


def _of_a_step(
    found: ExpertRun, kind: str, step: int | None, missing: dict[str, str]
) -> Iterator[tuple[str, bytes]]:
    """Heat map and histograms with their tables; without a step those at the end and over time."""
    ending = "" if step is None else f"_step_{step}"
    if LAYERS_STEM not in missing:
        yield f"{LAYERS_STEM}{ending}.{kind}", _drawn(draw_layers, found, step, kind=kind)
        yield (
            f"{LAYERS_STEM}{ending}.csv",
            _csv(("tier", "layer", "expert", "rms"), _cells(found, step)),
        )
    if HISTOGRAMS_STEM not in missing and f"{HISTOGRAMS_STEM}{ending}" not in missing:
        yield (f"{HISTOGRAMS_STEM}{ending}.{kind}", _drawn(draw_histograms, found, step, kind=kind))
        steps = chosen_steps(found.histogram_steps) if step is None else (step,)
        yield (
            f"{HISTOGRAMS_STEM}{ending}.csv",
            _csv(("step", "expert", "bin", "count"), _bins(found, steps)),
        )


def _drawn(draw: Callable[..., Figure], *of: Any, kind: str) -> bytes:
    with styled():
        return render(draw(*of), kind)


def _csv(columns: Sequence[str], lines: Any) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(lines)
    return text.getvalue().encode()


def _number(value: float, there: bool) -> str:
    """Nothing where nothing was recorded, NaN where a NaN was."""
    return ("NaN" if math.isnan(value) else repr(float(value))) if there else ""


def _quantities(found: ExpertRun) -> dict[str, Field]:
    return found.fields((*OVER_LAYERS, LOAD, *OF_ROUTERS))


def _wide(found: ExpertRun) -> bytes:
    """A row for each step, a column for each series over all layers and of each router."""
    fields = _quantities(found)
    steps = np.unique(np.concatenate([field.steps for field in fields.values()] or [found.steps]))
    columns: dict[str, list[str]] = {}
    for template, field in fields.items():
        places = np.searchsorted(steps, field.steps)
        for row, values, there in zip(field.rows, field.values, field.there, strict=True):
            column = [""] * len(steps)
            for place, value, known in zip(places, values, there, strict=True):
                column[place] = _number(value, known)
            columns[series_name(template, row)] = column
    return _csv(("step", *columns), zip(steps.tolist(), *columns.values(), strict=True))


def _long(found: ExpertRun, templates: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    for template in templates:
        field = found.field(template)
        for row, values, there in zip(field.rows, field.values, field.there, strict=True):
            name = series_name(template, row)
            for step, value, known in zip(field.steps.tolist(), values, there, strict=True):
                if known:
                    yield step, name, _number(value, known)


def _cells(found: ExpertRun, step: int | None) -> Iterator[tuple[str, str, str, str]]:
    for tier in TIERS:
        values, there = layer_cells(found, found.field(rms_of(tier, layered=True)), step)
        for down, layer in enumerate(found.layers):
            for along, expert in enumerate(found.experts):
                yield tier, layer, expert, _number(values[down, along], there[down, along])


def _bins(found: ExpertRun, steps: Sequence[int]) -> Iterator[tuple[int, str, str, int]]:
    edges = [f"10^{edge:g}" for edge in BIN_EDGES[1:-1]]
    middle = [f"[{low}, {high})" for low, high in itertools.pairwise(edges)]
    bins = ["zero", f"(0, {edges[0]})", *middle, f"[{edges[-1]}, inf)", "NaN", "Inf"]
    assert len(bins) == LAST - FIRST + 4
    for histogram in found.histograms:
        if histogram.step in steps:
            for name, count in zip(bins, histogram.counts.tolist(), strict=True):
                yield histogram.step, histogram.expert, name, count


def _summary(found: ExpertRun, missing: dict[str, str]) -> dict[str, Any]:
    """What the figures say in words and single numbers."""
    steps = found.steps.tolist()
    recent = {}
    for template, field in _quantities(found).items():
        for row, value, there in zip(field.rows, *field.at(None), strict=True):
            if there:
                recent[series_name(template, row)] = float(value)
    return {
        "run": found.run,
        "experts": list(found.experts),
        "layers": list(found.layers),
        "routers": list(found.routers),
        "measured_steps": {"count": len(steps), "first": steps[0], "last": steps[-1]},
        "histogram_steps": list(found.histogram_steps),
        "median_of_the_last": min(len(steps), RECENT),
        "at_the_end": recent,
        "routing": verdict(found, found.answers),
        "left_out": missing,
    }


def make_folder(folder: Path) -> None:
    """The folder for output, or an error that says why it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".gradiometer-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as problem:
        raise UsageError(
            f"cannot write into {folder}: {problem.strerror or problem}; choose another folder"
        ) from problem


def write_whole(path: Path, content: bytes) -> Path:
    """Write under another name and rename, so nobody ever sees half a file."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    except OSError as problem:
        draft.unlink(missing_ok=True)
        raise UsageError(f"cannot write {path}: {problem.strerror or problem}") from problem
    return path
