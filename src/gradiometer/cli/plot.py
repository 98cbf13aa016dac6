"""`gradiometer plot`: the figures of every gradient analysis in a run or a log, and of the replicates it holds."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gradiometer.cli.lists import whole_numbers
from gradiometer.cli.printing import console, print_json
from gradiometer.errors import GradiometerWarning, UnknownName, UsageError
from gradiometer.plots.analysis import AnalysisStep, read_analysis
from gradiometer.plots.export import make_folder, write_step
from gradiometer.plots.replicates import write_replicates
from gradiometer.plots.studies import Studies, read_studies
from gradiometer.plots.style import check_format
from gradiometer.store.importers import Log, identify, open_log, open_wandb
from gradiometer.store.reader import Run

__all__ = ["plot"]

OUTPUT = "gradient_analysis_outputs"
VARIANCE_OUTPUT = "variance_outputs"
SHOWN = 20


def plot(
    path: str, *, wandb_path: str, steps: list[str], list_steps: bool, output_dir: str, kind: str, as_json: bool
) -> None:
    """Write seven files for each analysis step and those of the replicates, or list what there is."""
    wanted, kind = whole_numbers(steps, option="--step"), check_format(kind)
    with warnings_in_a_line(), _open(path, wandb_path) as run:
        found, studies = read_analysis(run), read_studies(run)
        if not found and studies is None:
            raise UsageError(_no_analysis(run))
        if list_steps:
            _list(run, found, studies, as_json=as_json)
            return
        if wanted and not found:
            raise UsageError(f"{run.path} holds replicates and no analysis steps: leave --step out")
        chosen = _chosen(found, wanted, run)
        files = _draw_steps(run, chosen, output_dir, kind, quiet=as_json)
        if studies is not None and not wanted:  # whoever names steps wants their figures and no others
            files += _draw_replicates(run, studies, output_dir, kind, quiet=as_json)
        if as_json:
            steps_drawn = [step.step for step in chosen]
            print_json({"run": str(run.path), "steps": steps_drawn, "files": [str(file) for file in files]})


def _draw_steps(run: Run | Log, steps: list[AnalysisStep], output_dir: str, kind: str, *, quiet: bool) -> list[Path]:
    if not steps:
        return []
    folder = Path(output_dir) if output_dir else default_folder(run)
    make_folder(folder)
    files: list[Path] = []
    for step in _with_progress(steps):
        written = write_step(step, folder, kind=kind)
        files += written
        if not quiet:
            _say_written(step, written)
    return files


def _draw_replicates(run: Run | Log, studies: Studies, output_dir: str, kind: str, *, quiet: bool) -> list[Path]:
    folder = Path(output_dir) if output_dir else default_folder(run, root=VARIANCE_OUTPUT)
    make_folder(folder)
    files = write_replicates(studies, folder, kind=kind)
    if not quiet:
        console().print(f"replicates of {_named(studies)}: {len(files)} files")
        for file in files:
            print(f"  {file}")
    return files


def default_folder(run: Run | Log, *, root: str = OUTPUT) -> Path:
    """`gradient_analysis_outputs/<run name>_<run id>`, with what no folder may be called replaced."""
    name = re.sub(r"[^\w.+=@-]+", "-", run.name).strip("-.") or "run"
    return Path(root) / f"{name}_{identify(run)}"


def _open(path: str, wandb_path: str) -> Run | Log:
    if path and wandb_path:
        raise UsageError(f"give a run ({path}) or --wandb-path {wandb_path}, not both")
    if not path and not wandb_path:
        raise UsageError("give a run: a run folder, a .jsonl or .wandb file, or --wandb-path ENTITY/PROJECT/RUN_ID")
    return open_wandb(wandb_path) if wandb_path else open_log(path)


def _no_analysis(run: Run | Log) -> str:
    return (
        f"{run.path} holds no gradient analysis: train with trainer.gradient_analysis_every=50, "
        "or probe a checkpoint with `gradiometer analyze`"
    )


def _chosen(found: dict[int, AnalysisStep], wanted: list[int], run: Run | Log) -> list[AnalysisStep]:
    for step in wanted:
        if step not in found:
            there = ", ".join(map(str, list(found)[:SHOWN])) + (", ..." if len(found) > SHOWN else "")
            raise UnknownName("analysis step", str(step), (), hint=f"({run.name} has an analysis at {there})")
    return [found[step] for step in wanted or found]


def _list(run: Run | Log, found: dict[int, AnalysisStep], studies: Studies | None, *, as_json: bool) -> None:
    if as_json:
        replicates = {} if studies is None else {"replicates": [study.name for study in studies.studies]}
        print_json({"run": str(run.path), "steps": list(found), "files": [], **replicates})
        return
    out = console()
    if studies is not None:
        instead = "" if found else ", and no gradient analyses"
        out.print(f"{run.name}: replicates of {_named(studies)}{instead}")
    if found:
        out.print(f"{run.name}: {len(found)} gradient {'analysis' if len(found) == 1 else 'analyses'}")
    for step in found.values():
        out.print(f"step {step.step}: {len(step.buckets)} buckets, terms {', '.join(step.measured_terms)}")


def _named(studies: Studies) -> str:
    names = [study.name for study in studies.studies]
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def _with_progress(steps: list[AnalysisStep]) -> Iterable[AnalysisStep]:
    """A bar on a terminal; elsewhere the lines about each step are progress enough."""
    if len(steps) < 2 or not sys.stderr.isatty():
        return steps
    from rich.console import Console
    from rich.progress import track

    return track(steps, description="drawing", console=Console(stderr=True), transient=True)


def _say_written(step: AnalysisStep, files: list[Path]) -> None:
    out = console()
    out.print(f"step {step.step}: {len(step.buckets)} buckets, {len(files)} files")
    for file in files:
        print(f"  {file}")
    if not step.groups:
        print(f"note: step {step.step} has no group table; its CSV holds no rows", file=sys.stderr)
    sys.stdout.flush()


@contextmanager
def warnings_in_a_line() -> Iterator[None]:
    """What a reader skipped, said in a line on stderr instead of in Python's two."""

    def say(message: Warning | str, *_: object) -> None:
        print(f"warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always", GradiometerWarning)
        warnings.showwarning = say  # type: ignore[assignment]
        yield
