"""`gradiometer plot`: the figures of a run's gradient analyses, replicates and experts, or of several runs' experts."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradiometer.cli.lists import whole_numbers
from gradiometer.cli.printing import console, print_json, warnings_in_a_line
from gradiometer.errors import UnknownName, UsageError
from gradiometer.plots.analysis import AnalysisStep, read_analysis
from gradiometer.plots.expertdata import ExpertRun, read_experts
from gradiometer.plots.expertfiles import left_out, write_expert_runs, write_experts
from gradiometer.plots.export import make_folder, write_step
from gradiometer.plots.replicates import write_replicates
from gradiometer.plots.studies import Studies, read_studies
from gradiometer.plots.style import check_format
from gradiometer.store.importers import Log, identify, open_log, open_wandb
from gradiometer.store.logs import short_id
from gradiometer.store.reader import Run

__all__ = ["plot"]

OUTPUT = "gradient_analysis_outputs"
VARIANCE_OUTPUT = "variance_outputs"
EXPERT_OUTPUT = "expert_outputs"
SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a run holds that can be drawn."""

    analyses: dict[int, AnalysisStep]
    studies: Studies | None
    experts: ExpertRun | None


def plot(
    paths: list[str], *, wandb_path: str, steps: list[str], list_steps: bool, output_dir: str, kind: str, as_json: bool
) -> None:
    """The files of one run (analyses, replicates, experts), one comparison of several, or a list of what there is."""
    wanted, kind = whole_numbers(steps, option="--step"), check_format(kind)
    with warnings_in_a_line():
        if len(paths) > 1 and not list_steps:
            if wandb_path or wanted:
                what = f"--wandb-path {wandb_path}" if wandb_path else "--step"
                raise UsageError(f"{what} belongs to one run, and {len(paths)} are given; leave it out to compare them")
            _compare(paths, output_dir, kind, as_json=as_json)
            return
        if list_steps:
            _list_all(paths, wandb_path, as_json=as_json)
            return
        with _open(paths[0] if paths else "", wandb_path) as run:
            _draw(run, _read(run), wanted, output_dir, kind, as_json=as_json)


def _read(run: Run | Log) -> Found:
    found = Found(analyses=read_analysis(run), studies=read_studies(run), experts=read_experts(run))
    if not found.analyses and found.studies is None and found.experts is None:
        raise UsageError(_no_analysis(run))
    return found


def _draw(run: Run | Log, found: Found, wanted: list[int], output_dir: str, kind: str, *, as_json: bool) -> None:
    if wanted and not found.analyses and found.experts is None:
        raise UsageError(f"{run.path} holds replicates and no analysis steps: leave --step out")
    measured = set() if found.experts is None else set(found.experts.steps.tolist())
    analysed = _chosen(found.analyses, wanted, run, also=measured)
    files = _draw_steps(run, analysed, output_dir, kind, quiet=as_json)
    if found.studies is not None and not wanted:  # whoever names steps wants their figures and no others
        files += _draw_replicates(run, found.studies, output_dir, kind, quiet=as_json)
    of_experts = [step for step in wanted if step in measured]
    missing: dict[str, Any] = {}
    if found.experts is not None and (of_experts or not wanted):
        missing = {"left_out": left_out(found.experts, steps=of_experts)}
        files += _draw_experts(run, found.experts, of_experts, output_dir, kind, quiet=as_json)
    if as_json:
        drawn = list(dict.fromkeys([*(step.step for step in analysed), *of_experts]))
        print_json({"run": str(run.path), "steps": drawn, "files": [str(file) for file in files], **missing})


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


def _draw_experts(
    run: Run | Log, experts: ExpertRun, steps: list[int], output_dir: str, kind: str, *, quiet: bool
) -> list[Path]:
    folder = Path(output_dir) if output_dir else default_folder(run, root=EXPERT_OUTPUT)
    make_folder(folder)
    files = write_experts(experts, folder, kind=kind, steps=steps)
    if not quiet:
        _say_experts(f"{_experts_named(experts)}: {len(files)} files", files)
        for name, why in left_out(experts, steps=steps).items():
            print(f"note: no {name}: {why}", file=sys.stderr)
    return files


def _say_experts(words: str, files: list[Path]) -> None:
    console().print(words)
    for file in files:
        print(f"  {file}")
    sys.stdout.flush()


def _compare(paths: list[str], output_dir: str, kind: str, *, as_json: bool) -> None:
    """One figure with a column for each run."""
    read: list[ExpertRun] = []
    ids, places = [], []
    for path in paths:
        with _open(path, "") as run:
            experts = read_experts(run)
            if experts is None:
                raise UsageError(f"{run.path} holds no expert series, and several runs are compared by their experts")
            read.append(experts)
            ids.append(identify(run))
            places.append(str(run.path))
    folder = Path(output_dir) if output_dir else Path(EXPERT_OUTPUT) / f"comparison_{short_id(*ids)}"
    make_folder(folder)
    files = write_expert_runs(read, folder, kind=kind)
    if as_json:
        print_json({"runs": places, "steps": [], "files": [str(file) for file in files]})
    else:
        _say_experts(f"experts of {len(paths)} runs: {len(files)} files", files)


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
        "or probe a checkpoint with `gradiometer analyze`; nor replicates, nor experts"
    )


def _chosen(found: dict[int, AnalysisStep], wanted: list[int], run: Run | Log, *, also: set[int]) -> list[AnalysisStep]:
    """The analyses of the wanted steps; `also` are steps at which something else was measured."""
    for step in wanted:
        if step not in found and step not in also:
            raise UnknownName("analysis step" if found else "step", str(step), (), hint=f"({_there(found, run, also)})")
    return [found[step] for step in wanted if step in found] if wanted else list(found.values())


def _there(found: dict[int, AnalysisStep], run: Run | Log, also: set[int]) -> str:
    parts = []
    for what, steps in (("an analysis", list(found)), ("experts measured", sorted(also))):
        if steps:
            shown = ", ".join(map(str, steps[:SHOWN])) + (", ..." if len(steps) > SHOWN else "")
            parts.append(f"{what} at {shown}")
    return f"{run.name} has {' and '.join(parts)}"


def _list_all(paths: list[str], wandb_path: str, *, as_json: bool) -> None:
    listed = []
    for path in paths or [""]:
        with _open(path, wandb_path) as run:
            listed.append(_list(run, _read(run), quiet=as_json))
    if as_json:
        print_json(listed[0] if len(listed) == 1 else {"runs": listed})


def _list(run: Run | Log, found: Found, *, quiet: bool) -> dict[str, Any]:
    """What there is to draw: said on a terminal, and given as an object."""
    listed: dict[str, Any] = {"run": str(run.path), "steps": list(found.analyses), "files": []}
    lines = []
    if found.studies is not None:
        listed["replicates"] = [study.name for study in found.studies.studies]
        instead = "" if found.analyses or found.experts else ", and no gradient analyses"
        lines.append(f"{run.name}: replicates of {_named(found.studies)}{instead}")
    if found.experts is not None:
        listed["experts"] = _expert_facts(found.experts)
        lines.append(f"{run.name}: {_experts_said(found.experts)}")
    if found.analyses:
        analyses = list(found.analyses.values())
        lines.append(f"{run.name}: {len(analyses)} gradient {'analysis' if len(analyses) == 1 else 'analyses'}")
        lines += [
            f"step {step.step}: {len(step.buckets)} buckets, terms {', '.join(step.measured_terms)}"
            for step in analyses
        ]
    if not quiet:
        out = console()
        for line in lines:
            out.print(line)
    return listed


def _expert_facts(experts: ExpertRun) -> dict[str, Any]:
    return {
        "experts": list(experts.experts),
        "layers": list(experts.layers),
        "routers": list(experts.routers),
        "steps": experts.steps.tolist(),
        "histogram_steps": list(experts.histogram_steps),
    }


def _experts_said(experts: ExpertRun) -> str:
    steps, layers, kept = experts.steps.tolist(), len(experts.layers), len(experts.histogram_steps)
    when = f"measured at {len(steps)} steps from {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"at step {steps[0]}"
    where = f"in {layers} layer{'s' * (layers != 1)}" if layers else "not by layer"
    return f"{_experts_named(experts)} {where}, {when}" + (f", histograms of {kept}" if kept else "")


def _experts_named(experts: ExpertRun) -> str:
    names = experts.experts
    if len(names) > SHOWN:
        return f"{len(names)} experts"
    return f"expert{'s' * (len(names) != 1)} {', '.join(names)}"


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
