"""`gradiometer figure`: several analysis steps side by side, from what `plot` exported."""

from __future__ import annotations

import json
import re
from pathlib import Path

from gradiometer.charts.analysis import AnalysisStep, from_flat
from gradiometer.cli.commands import FigureRequest
from gradiometer.cli.printing import print_json
from gradiometer.errors import UnknownName, UsageError
from gradiometer.plots.analysis import draw_comparison
from gradiometer.plots.files import METRICS_NAME, make_folder, write_whole
from gradiometer.plots.style import FORMATS, check_format, render, styled
from gradiometer.store.strictjson import from_json

__all__ = ["figure", "parse_folders"]

STEP_FOLDER = re.compile(r"--step(\d+)-dir(?:=(.*))?")
STEP_OF = re.compile(r"_step_(\d+)\.json$")
MODES = ("ppo", "grpo")


def figure(request: FigureRequest) -> None:
    """Draw the grid and write it whole."""
    out, mode = request.out, request.mode
    folders = parse_folders(request.context.args)
    if mode and mode.lower() not in MODES:
        raise UnknownName("mode", mode, MODES, hint=f"(there are {', '.join(MODES)})")
    if not out:
        raise UsageError("name the output file: --out FILE.png, .pdf or .svg")
    target = Path(out)
    if not target.suffix:
        raise UsageError(
            f"--out {out} has no suffix; use one of {', '.join(f'.{f}' for f in FORMATS)}"
        )
    kind = check_format(target.suffix)
    steps = [read_folder(folder, step=step) for step, folder in sorted(folders.items())]
    make_folder(target.parent)
    with styled():
        content = render(draw_comparison(steps, mode=mode), kind)
    write_whole(target, content)
    if request.json:
        print_json({"steps": sorted(folders), "files": [str(target)]})
    else:
        print(target)


def parse_folders(arguments: list[str]) -> dict[int, Path]:
    """`--step0-dir A --step20-dir=B` as step → folder; any steps, at least one."""
    folders: dict[int, Path] = {}
    words = iter(arguments)
    for word in words:
        found = STEP_FOLDER.fullmatch(word)
        if not found:
            raise UsageError(
                f"unknown argument {word}:"
                " folders are given as --step0-dir DIR --step20-dir DIR ..."
            )
        value = found[2] if found[2] is not None else next(words, "")
        if not value or value.startswith("--"):
            raise UsageError(f"{word} needs a folder")
        if int(found[1]) in folders:
            raise UsageError(f"--step{found[1]}-dir is given twice")
        folders[int(found[1])] = Path(value)
    if not folders:
        raise UsageError(
            "give at least one folder of exported metrics, as in --step0-dir DIR --step20-dir DIR"
        )
    return folders


def read_folder(folder: Path, *, step: int) -> AnalysisStep:
    """The analysis in a folder: `metrics.json`, or the file of that step and of no other."""
    file = _metrics_file(folder, step)
    try:
        flat = from_json(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as problem:
        raise UsageError(f"{file} is not JSON ({problem})") from problem
    if not isinstance(flat, dict):
        raise UsageError(f"{file} must hold one JSON object of metrics")
    analysis = from_flat(flat, step=step)
    if not analysis.buckets:
        raise UsageError(f"{file} holds no gradient analysis: no metric of a bucket in it")
    return analysis


def _metrics_file(folder: Path, step: int) -> Path:
    if not folder.is_dir():
        raise UsageError(
            f"--step{step}-dir {folder}: {'not a folder' if folder.exists() else 'no such folder'}"
        )
    exact = METRICS_NAME.format(step=step)
    for name in ("metrics.json", exact):
        if (folder / name).is_file():
            return folder / name
    others = sorted(folder.glob(METRICS_NAME.format(step="*")))
    steps = sorted(int(found[1]) for each in others if (found := STEP_OF.search(each.name)))
    if not steps:
        raise UsageError(
            f"{folder} has neither metrics.json nor {exact}: `gradiometer plot RUN` writes them"
        )
    have = f"step {steps[0]}" if len(steps) == 1 else f"steps {', '.join(map(str, steps))}"
    raise UsageError(
        f"--step{step}-dir {folder} has {have}, not step {step}: write"
        f" --step{steps[0]}-dir {folder}"
    )
