"""The files of an analysis step, under the names of source 003: five figures, the flat metrics and the group table."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gradiometer.errors import UsageError
from gradiometer.plots.analysis import GROUP_COLUMNS, AnalysisStep
from gradiometer.plots.figures import draw_losses, draw_normed, draw_norms, draw_reward_std
from gradiometer.plots.style import render, styled
from gradiometer.plots.summary import draw_summary
from gradiometer.store.strictjson import to_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FIGURES", "METRICS_NAME", "make_folder", "write_step", "write_whole"]

FIGURES: dict[str, Callable[[AnalysisStep], Figure]] = {
    "gradient_analysis_summary_step_{step}": draw_summary,
    "gradient_analysis_plots_step_{step}": draw_norms,
    "gradient_analysis_loss_plots_step_{step}": draw_losses,
    "gradient_analysis_reward_std_step_{step}": draw_reward_std,
    "gradient_analysis_normed_grads_step_{step}": draw_normed,
}
METRICS_NAME = "gradient_analysis_metrics_step_{step}.json"
TABLE_NAME = "gradient_analysis_bucket_rv_table_step_{step}.csv"


def write_step(step: AnalysisStep, folder: Path, *, kind: str = "png") -> list[Path]:
    """Write the seven files of a step; each appears whole or not at all."""
    return [write_whole(folder / name, content) for name, content in _files(step, kind)]


def _files(step: AnalysisStep, kind: str) -> Iterator[tuple[str, bytes]]:
    for name, draw in FIGURES.items():
        with styled():
            content = render(draw(step), kind)
        yield f"{name.format(step=step.step)}.{kind}", content
    yield METRICS_NAME.format(step=step.step), (to_json(dict(sorted(step.metrics.items())), indent=2) + "\n").encode()
    yield TABLE_NAME.format(step=step.step), _table(step)


def _table(step: AnalysisStep) -> bytes:
    text = io.StringIO(newline="")
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(GROUP_COLUMNS)
    lines.writerows((group.bucket, group.group_id, repr(group.reward_std)) for group in step.groups)
    return text.getvalue().encode()


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
