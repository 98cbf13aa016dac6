"""Another tool on the same patients: a command reads the scalar log of each and prints what it
finds.

The command stands for one log, with `{log}` where its path goes: a CSV file with a row a step,
`step` first, and beside it `config.json` with the settings. It prints ids of our findings
(docs/reference/findings.md), the first on top: one a line, or JSON (a list of ids, or a document
with `findings`, each with an `id`). Nothing printed means nothing found.
"""

from __future__ import annotations

import csv
import json
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gradiometer.errors import UsageError
from gradiometer.store.logs import Log
from gradiometer.store.reader import Run, load
from gradiometer_labs.clinic.judging import scalar_log
from gradiometer_labs.clinic.patients import unpacked
from gradiometer_labs.wards.ward import Patient

__all__ = ["OutsiderTask", "check_command", "said_by", "write_log"]

LOG = "{log}"
SECONDS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsiderTask:
    """A task for an engine: what the command says of one patient."""

    training: Patient
    out: str
    command: str

    def __call__(self, subject: Any = None) -> list[str]:
        """Its findings, the first on top."""
        with (
            unpacked(Path(self.out) / self.training.name) as place,
            load(place) as run,
            TemporaryDirectory(prefix="gradiometer-judge-") as scratch,
        ):
            assert isinstance(run, Run)
            log = Path(scratch) / "log.csv"
            write_log(scalar_log(run), log)
            return said_by(self.command, log)


def check_command(command: str) -> None:
    """Say what is wrong with it before anything is trained."""
    if LOG not in command:
        raise UsageError(f"--judge {command!r} names no {LOG}: that is where the log's path goes")
    _words(command, Path("log.csv"))


def _words(command: str, log: Path) -> list[str]:
    try:
        return [word.replace(LOG, str(log)) for word in shlex.split(command)]
    except ValueError as problem:
        raise UsageError(f"--judge {command!r} is no command: {problem}") from problem


def write_log(log: Log, path: Path) -> None:
    """A CSV file with a row a step, and the settings beside it."""
    series = {name: dict(zip(*log.series(name), strict=True)) for name in log.names()}
    steps = sorted({step for values in series.values() for step in values})
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", *series])
        for step in steps:
            writer.writerow([step, *(values.get(step, "") for values in series.values())])
    settings = json.dumps(log.facts.get("config") or {}, default=str)
    path.with_name("config.json").write_text(settings, encoding="utf-8")


def said_by(command: str, log: Path) -> list[str]:
    """What the command prints of that log, as ids."""
    try:
        done = subprocess.run(
            _words(command, log), capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except OSError as problem:
        raise UsageError(f"--judge: the command cannot be run: {problem}") from problem
    except subprocess.TimeoutExpired:
        return []
    text = done.stdout.strip()
    if not text and done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise UsageError(f"--judge: the command failed with code {done.returncode}: {last[0]}")
    try:
        answer = json.loads(text)
    except ValueError:
        return text.split()
    findings = answer.get("findings", []) if isinstance(answer, dict) else answer
    return [each["id"] if isinstance(each, dict) else str(each) for each in findings]
