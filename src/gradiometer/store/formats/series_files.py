"""A file for each series: the metrics of an MLflow run folder, the scalars of TorchRL's CSV logger,
and charts downloaded from TensorBoard.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from gradiometer.errors import UsageError
from gradiometer.store.facts import redact
from gradiometer.store.formats import Reads, log_format
from gradiometer.store.logs import Gathered, Log, number_of, short_id, warn
from gradiometer.store.opening import LONGEST_LINE, is_inside, open_bytes, open_text
from gradiometer.store.provenance import log_of, name_of
from gradiometer.store.step_column import whole
from gradiometer.words import counted

__all__ = ["read_charts", "read_mlflow", "read_scalars"]

MLFLOW_LINE = re.compile(rb"\d{10,} [^ \r\n]+ -?\d+(?:\r?\n|$)")
CHART = re.compile(r"\s*wall[ _]time\s*,\s*step\s*,\s*value\s*", re.IGNORECASE)
TAGGED = re.compile(r"(?:run-)?(?P<run>.*?)[-_.]?tag-(?P<tag>.+)")
"""What TensorBoard calls a downloaded chart."""
SCALARS = "scalars"
MOST_FILES = 10_000


def _is_mlflow(path: Path, start: bytes) -> bool:
    return "metrics" in path.parts and MLFLOW_LINE.match(start) is not None


def _metrics_in(folder: Path, files: list[Path]) -> list[Path]:
    """The metrics of a run folder, or of the folder `metrics` itself."""
    of = folder if folder.name == "metrics" else folder / "metrics"
    found = [path for path in of.rglob("*") if path.is_file()][:MOST_FILES] if of.is_dir() else []
    return sorted(path for path in found if _is_mlflow(path, _start(path)))


@log_format(
    "mlflow",
    rank=35,
    title="an MLflow run folder",
    detect=_is_mlflow,
    find=_metrics_in,
    joined=True,
    reads=[
        Reads(
            tool="MLflow",
            file="a run's folder (`mlruns/<experiment>/<run>`), or a file of its `metrics`",
            steps="the third number of a line",
            taken="a series for each file; `params` as the settings",
        )
    ],
)
def read_mlflow(path: Path, *also: Path) -> Log:
    """The metrics of a run: a file each, a line `timestamp value step` each point."""
    files, gathered, broken = (path, *also), Gathered(), 0
    root = _above(path, "metrics")
    for file in files:
        name = file.relative_to(root).as_posix()
        for cells in (line.split() for line in _lines(file)):
            step, value = (
                (whole(cells[2]), number_of(cells[1])) if len(cells) == 3 else (None, None)
            )
            if step is None or value is None:
                broken += 1
                continue
            gathered.numbers(step, {name: value})
            when = number_of(cells[0])
            if when is not None:
                gathered.clock.add("wall_time", step, when / 1000)
    return _log(path, gathered, "mlflow", broken, root.parent.name, _params(root.parent))


def _params(run: Path) -> dict[str, Any]:
    folder = run / "params"
    files = sorted(folder.iterdir())[:MOST_FILES] if folder.is_dir() else []
    held: dict[str, Any] = redact(
        {path.name: _value(path) for path in files if path.is_file() and is_inside(path)}
    )
    return held


def _value(path: Path) -> str:
    with open_text(path, newline=None) as file:
        return file.read(1000)


def _scalars_in(folder: Path, files: list[Path]) -> list[Path]:
    of = folder if folder.name == SCALARS else folder / SCALARS
    found = of.rglob("*.csv") if of.is_dir() else iter(())
    return sorted(path for path in found if _begins_with_two_numbers(path))[:MOST_FILES]


def _begins_with_two_numbers(path: Path) -> bool:
    cells = _start(path).partition(b"\n")[0].decode(errors="replace").split(",")
    return len(cells) == 2 and whole(cells[0]) is not None and number_of(cells[1]) is not None


def _is_scalars(path: Path, start: bytes) -> bool:
    return SCALARS in path.parts and path.suffix == ".csv" and _begins_with_two_numbers(path)


@log_format(
    "torchrl-csv",
    rank=36,
    detect=_is_scalars,
    find=_scalars_in,
    joined=True,
    reads=[
        Reads(
            tool="TorchRL (CSVLogger)",
            file="the folder with `scalars/`",
            steps="the first number of a line",
            taken="a series for each file",
        )
    ],
)
def read_scalars(path: Path, *also: Path) -> Log:
    """The scalars of TorchRL's CSV logger: a file each, a line `step,value` each point."""
    gathered, broken = Gathered(), 0
    root = _above(path, SCALARS)
    for file in (path, *also):
        name = file.relative_to(root).with_suffix("").as_posix()
        for cells in csv.reader(_lines(file)):
            step, value = (
                (whole(cells[0]), number_of(cells[1])) if len(cells) == 2 else (None, None)
            )
            if step is None or value is None:
                broken += 1
            else:
                gathered.numbers(step, {name: value})
    return _log(path, gathered, "torchrl-csv", broken, root.parent.name)


def _is_chart(path: Path, start: bytes) -> bool:
    line = start.partition(b"\n")[0].decode("utf-8-sig", errors="replace")
    return CHART.fullmatch(line.strip()) is not None


def _charts_in(folder: Path, files: list[Path]) -> list[Path]:
    """The charts of the run that has the most."""
    runs: dict[str, list[Path]] = defaultdict(list)
    for path in files:
        if path.suffix == ".csv" and _is_chart(path, _start(path)):
            runs[_run_and_tag(path)[0]].append(path)
    return max(
        runs.values(), key=lambda paths: sum(path.stat().st_size for path in paths), default=[]
    )


@log_format(
    "tensorboard-csv",
    rank=57,
    detect=_is_chart,
    find=_charts_in,
    joined=True,
    reads=[
        Reads(
            tool="TensorBoard (chart downloaded as CSV)",
            file="`run-NAME-tag-TAG.csv`; all of a run's in a folder together",
            steps="`Step`",
            taken="the value, named by the file",
        )
    ],
)
def read_charts(path: Path, *also: Path) -> Log:
    """Charts downloaded from TensorBoard: a file for each tag, named by it."""
    gathered, broken = Gathered(), 0
    for file in (path, *also):
        name = _run_and_tag(file)[1]
        for cells in csv.reader(_lines(file)):
            numbers = [number_of(cell) for cell in cells]
            if len(numbers) == 3 and None not in numbers and whole(cells[1]) is not None:
                step = whole(cells[1]) or 0
                gathered.numbers(step, {name: numbers[2] or 0.0})
                gathered.clock.add("wall_time", step, numbers[0] or 0.0)
            elif cells and not CHART.fullmatch(",".join(cells).lstrip("\ufeff")):
                broken += 1
    run = _run_and_tag(path)[0]
    return _log(path, gathered, "tensorboard-csv", broken, run or name_of(path))


def _run_and_tag(path: Path) -> tuple[str, str]:
    found = TAGGED.fullmatch(path.stem)
    return ("", path.stem) if found is None else (found["run"], found["tag"])


def _log(
    path: Path,
    gathered: Gathered,
    kind: str,
    broken: int,
    name: str,
    config: dict[str, Any] | None = None,
) -> Log:
    if broken:
        warn(f"{path}: {counted(broken, 'line')} skipped: no step and value")
    if not gathered.steps:
        raise UsageError(f"{path} holds no step with a value: nothing was logged yet")
    first = gathered.parts[0].steps[0]
    return log_of(
        path, gathered, kind, short_id(name, first), name=name, step="step", config=config or None
    )


def _above(path: Path, name: str) -> Path:
    """The folder of that name a file lies in."""
    return next((above for above in path.parents if above.name == name), path.parent)


def _lines(path: Path) -> Iterator[str]:
    with open_text(path) as file:
        yield from iter(partial(file.readline, LONGEST_LINE), "")


def _start(path: Path) -> bytes:
    with open_bytes(path) as file:
        return file.read(1 << 12)
