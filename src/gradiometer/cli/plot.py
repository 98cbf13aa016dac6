"""`gradiometer plot`: figures of gradient analyses, replicates and experts."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradiometer.charts.analysis import AnalysisStep, read_analysis
from gradiometer.charts.studies import Studies, read_studies
from gradiometer.cli.commands import PlotRequest
from gradiometer.cli.lists import whole_numbers
from gradiometer.cli.printing import console, print_json, visible, warnings_in_a_line
from gradiometer.cli.progress import tracked
from gradiometer.doctor.experts.judge import read_experts
from gradiometer.doctor.experts.series import ExpertRun
from gradiometer.errors import UnknownName, UsageError
from gradiometer.plots.files import (
    left_out,
    make_folder,
    write_expert_runs,
    write_experts,
    write_replicates,
    write_step,
)
from gradiometer.plots.style import check_format
from gradiometer.store.importers import Log, identify, open_log, open_wandb
from gradiometer.store.logs import short_id
from gradiometer.store.reader import Run
from gradiometer.words import counted

__all__ = ["plot"]

OUTPUT = "gradient_analysis_outputs"
VARIANCE_OUTPUT = "variance_outputs"
EXPERT_OUTPUT = "expert_outputs"
SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawable:
    """What a run holds that can be drawn."""

    analyses: dict[int, AnalysisStep]
    studies: Studies | None
    experts: ExpertRun | None


def plot(request: PlotRequest) -> None:
    """Draw one run, compare the experts of several, or list what there is."""
    wanted = whole_numbers(request.step, option="--step")
    request = replace(request, format=check_format(request.format))
    paths, wandb_path = request.run, request.wandb_path
    with warnings_in_a_line():
        if request.list_steps:
            _list_all(request)
        elif len(paths) > 1:
            if wandb_path or wanted:
                what = f"--wandb-path {wandb_path}" if wandb_path else "--step"
                raise UsageError(
                    f"{what} belongs to one run, and {len(paths)} are given;"
                    " leave it out to compare them"
                )
            _compare(request)
        else:
            with _open(paths[0] if paths else "", wandb_path) as run:
                _draw(run, _read(run), wanted, request)


def _read(run: Run | Log) -> Drawable:
    found = Drawable(
        analyses=read_analysis(run), studies=read_studies(run), experts=read_experts(run)
    )
    if not found.analyses and found.studies is None and found.experts is None:
        raise UsageError(_no_analysis(run))
    return found


def _draw(run: Run | Log, found: Drawable, wanted: list[int], request: PlotRequest) -> None:
    if wanted and not found.analyses and found.experts is None:
        raise UsageError(f"{run.path} holds replicates and no analysis steps: leave --step out")
    measured = set() if found.experts is None else set(found.experts.steps.tolist())
    analysed = _chosen(found.analyses, wanted, run, also=measured)
    files = _draw_steps(run, analysed, request)
    # Whoever names steps wants their figures and no others.
    if found.studies is not None and not wanted:
        files += _draw_replicates(run, found.studies, request)
    of_experts = [step for step in wanted if step in measured]
    missing: dict[str, Any] = {}
    if found.experts is not None and (of_experts or not wanted):
        missing = {"left_out": left_out(found.experts, steps=of_experts)}
        files += _draw_experts(run, found.experts, of_experts, request)
    if request.json:
        drawn = list(dict.fromkeys([*(step.step for step in analysed), *of_experts]))
        names = [str(file) for file in files]
        print_json({"run": str(run.path), "steps": drawn, "files": names, **missing})


def _draw_steps(run: Run | Log, steps: list[AnalysisStep], request: PlotRequest) -> list[Path]:
    if not steps:
        return []
    folder = _folder(run, request, OUTPUT)
    files: list[Path] = []
    for step in tracked(steps, "drawing", from_on=2):
        written = write_step(step, folder, kind=request.format)
        files += written
        if not request.json:
            _say_written(step, written)
    return files


def _draw_replicates(run: Run | Log, studies: Studies, request: PlotRequest) -> list[Path]:
    folder = _folder(run, request, VARIANCE_OUTPUT)
    files = write_replicates(studies, folder, kind=request.format)
    if not request.json:
        _say_files(f"replicates of {_named(studies)}: {len(files)} files", files)
    return files


def _draw_experts(
    run: Run | Log, experts: ExpertRun, steps: list[int], request: PlotRequest
) -> list[Path]:
    folder = _folder(run, request, EXPERT_OUTPUT)
    files = write_experts(experts, folder, kind=request.format, steps=steps)
    if not request.json:
        _say_files(f"{_experts_named(experts)}: {len(files)} files", files)
        for name, why in left_out(experts, steps=steps).items():
            print(visible(f"note: no {name}: {why}"), file=sys.stderr)
    return files


def _folder(run: Run | Log, request: PlotRequest, root: str) -> Path:
    """Make the folder that is asked for, or `<root>/<run name>_<run id>` in safe letters."""
    name = re.sub(r"[^\w.+=@-]+", "-", run.name).strip("-.") or "run"
    asked = request.output_dir
    folder = Path(asked) if asked else Path(root) / f"{name}_{identify(run)}"
    make_folder(folder)
    return folder


def _say_files(words: str, files: list[Path]) -> None:
    console().print(words)
    for file in files:
        print(f"  {file}")
    sys.stdout.flush()


def _compare(request: PlotRequest) -> None:
    """One figure with a column for each run."""
    read: list[ExpertRun] = []
    ids, places = [], []
    for path in request.run:
        with _open(path, "") as run:
            experts = read_experts(run)
            if experts is None:
                raise UsageError(
                    f"{run.path} holds no expert series,"
                    " and several runs are compared by their experts"
                )
            read.append(experts)
            ids.append(identify(run))
            places.append(str(run.path))
    asked = request.output_dir
    folder = Path(asked) if asked else Path(EXPERT_OUTPUT) / f"comparison_{short_id(*ids)}"
    make_folder(folder)
    files = write_expert_runs(read, folder, kind=request.format)
    if request.json:
        print_json({"runs": places, "steps": [], "files": [str(file) for file in files]})
    else:
        _say_files(f"experts of {len(read)} runs: {len(files)} files", files)


def _open(path: str, wandb_path: str) -> Run | Log:
    if path and wandb_path:
        raise UsageError(f"give a run ({path}) or --wandb-path {wandb_path}, not both")
    if not path and not wandb_path:
        raise UsageError(
            "give a run: a run folder, a .jsonl or .wandb file, or --wandb-path"
            " ENTITY/PROJECT/RUN_ID"
        )
    return open_wandb(wandb_path) if wandb_path else open_log(path)


def _no_analysis(run: Run | Log) -> str:
    return (
        f"{run.path} holds no gradient analysis: train with trainer.gradient_analysis_every=50, "
        "or probe a checkpoint with `gradiometer analyze`; nor replicates, nor experts"
    )


def _chosen(
    found: dict[int, AnalysisStep], wanted: list[int], run: Run | Log, *, also: set[int]
) -> list[AnalysisStep]:
    """The analyses of the wanted steps; `also` are steps at which something else was measured."""
    for step in wanted:
        if step not in found and step not in also:
            raise UnknownName(
                "analysis step" if found else "step",
                str(step),
                (),
                hint=f"({_there(found, run, also)})",
            )
    return [found[step] for step in wanted if step in found] if wanted else list(found.values())


def _there(found: dict[int, AnalysisStep], run: Run | Log, also: set[int]) -> str:
    parts = []
    for what, steps in (("an analysis", list(found)), ("experts measured", sorted(also))):
        if steps:
            shown = ", ".join(map(str, steps[:SHOWN])) + (", ..." if len(steps) > SHOWN else "")
            parts.append(f"{what} at {shown}")
    return f"{run.name} has {' and '.join(parts)}"


def _list_all(request: PlotRequest) -> None:
    listed = []
    for path in request.run or [""]:
        with _open(path, request.wandb_path) as run:
            listed.append(_list(run, _read(run), quiet=request.json))
    if request.json:
        print_json(listed[0] if len(listed) == 1 else {"runs": listed})


def _list(run: Run | Log, found: Drawable, *, quiet: bool) -> dict[str, Any]:
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
        lines.append(
            f"{run.name}: {len(analyses)} gradient"
            f" {'analysis' if len(analyses) == 1 else 'analyses'}"
        )
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
    when = (
        f"measured at {len(steps)} steps from {steps[0]} to {steps[-1]}"
        if len(steps) > 1
        else f"at step {steps[0]}"
    )
    where = f"in {counted(layers, 'layer')}" if layers else "not by layer"
    return f"{_experts_named(experts)} {where}, {when}" + (
        f", histograms of {kept}" if kept else ""
    )


def _experts_named(experts: ExpertRun) -> str:
    names = experts.experts
    if len(names) > SHOWN:
        return f"{len(names)} experts"
    return f"expert{'s' * (len(names) != 1)} {', '.join(names)}"


def _named(studies: Studies) -> str:
    names = [study.name for study in studies.studies]
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def _say_written(step: AnalysisStep, files: list[Path]) -> None:
    _say_files(f"step {step.step}: {len(step.buckets)} buckets, {len(files)} files", files)
    if not step.groups:
        print(f"note: step {step.step} has no group table; its CSV holds no rows", file=sys.stderr)
