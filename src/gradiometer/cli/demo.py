"""`gradiometer demo`: a training that stops learning after one changed line, and why."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from rich.text import Text

from gradiometer.cli.commands import DemoRequest
from gradiometer.cli.printing import console, table
from gradiometer.cli.progress import progress_bar
from gradiometer.dashboard import server
from gradiometer.demo import BROADCAST, NO_GRAD, WrongLine, script
from gradiometer.doctor.diagnosis import diagnose
from gradiometer.doctor.report import as_text
from gradiometer.errors import GradiometerError, MissingExtra, UsageError
from gradiometer.store.reader import load
from gradiometer.words import number

__all__ = ["Stage", "demo"]

RUN_FILES = ("run.db", "run.db-wal", "run.db-shm", "run.lock")
PRINTED = re.compile(r"update (?P<update>\d+) return (?P<reward>\S+) ")
AT_BOTH_ENDS = 5
"""Updates whose mean return is shown."""
WIDEST = 100


def demo(request: DemoRequest) -> None:
    """Train, break, diagnose, repair; then a fault that no curve shows."""
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra("torch", "torch", "gradiometer demo")
    folder = Path(request.out)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {folder} is a file: name a folder, which is made if it is missing")
    stage = Stage(folder, request.updates)
    stage.clear()
    out = console()
    out.print("1. A PPO script in plain PyTorch learns. Then one line of it is changed:\n")
    out.print(_diff(BROADCAST))
    stage.train("healthy")
    stage.train("broken", wrong=BROADCAST)
    out.print(stage.returns("healthy", "broken"))
    out.print(f"\n2. gradiometer doctor {stage.folder('broken')}\n", soft_wrap=True)
    out.print(stage.diagnosis("broken"), soft_wrap=True)
    out.print("\n3. The line is fixed. Another seed, so that this is a new run\n")
    stage.train("fixed", seed=3)
    out.print(stage.returns("healthy", "broken", "fixed"))
    out.print()
    out.print(stage.diagnosis("fixed"), soft_wrap=True)
    out.print("\n4. A second fault. It does not change the return, so no curve shows it\n")
    out.print(_diff(NO_GRAD))
    stage.train("dead_entropy", wrong=NO_GRAD)
    out.print(stage.returns("healthy", "dead_entropy"))
    out.print()
    out.print(stage.diagnosis("dead_entropy"), soft_wrap=True)
    out.print(f"\nShow the graph of the loss: gradiometer wiring {stage.folder('broken')}")
    _show_in_browser(Path(request.out), wanted=request.serve)


def _show_in_browser(folder: Path, *, wanted: bool) -> None:
    """Without the packages for it the demo is complete all the same."""
    if not (wanted and sys.stdout.isatty()):
        print(f"In a browser: gradiometer serve {folder}")
        return
    try:
        server.serve(folder, path="/wiring?run=broken", open_browser=True)
    except MissingExtra as missing:
        print(missing)


class Stage:
    """The folder of a demo: its scripts, and a run of each."""

    def __init__(self, out: Path, updates: int) -> None:
        self._out, self._updates = out, updates

    def folder(self, name: str) -> Path:
        """Where a run is."""
        return self._out / name

    def clear(self) -> None:
        """Only runs of an earlier demo are replaced; anything else there is the user's."""
        for name in ("healthy", "broken", "fixed", "dead_entropy"):
            folder = self.folder(name)
            if not folder.exists():
                continue
            if any(entry.name not in (*RUN_FILES, "train.py") for entry in folder.iterdir()):
                raise UsageError(
                    f"{folder} holds more than a run of an earlier demo; choose another place with"
                    " --out"
                )
            shutil.rmtree(folder)

    def train(self, name: str, *, wrong: WrongLine | None = None, seed: int = 1) -> None:
        """Write the script beside its run, and run it, watched."""
        folder = self.folder(name)
        folder.mkdir(parents=True)
        file = folder / "train.py"
        text = script()
        file.write_text(wrong.put_into(text) if wrong else text, encoding="utf-8")
        options = ["--run", str(folder), "--no-doctor"]
        arguments = ["--updates", str(self._updates), "--seed", str(seed)]
        command = [sys.executable, "-m", "gradiometer", "run", *options, str(file), *arguments]
        with progress_bar(name) as show, _started(command) as training:
            last = ""
            for line in training.stdout or ():
                last = line
                if printed := PRINTED.match(line):
                    done = int(printed["update"]) + 1
                    show(done, self._updates, unit="updates", value=printed["reward"])
        if training.returncode:
            raise GradiometerError(f"{file} ended with {training.returncode}: {last.strip()}")

    def returns(self, *names: str) -> object:
        """Of each run, at its beginning and at its end."""
        rows = []
        for name in names:
            with load(self.folder(name)) as run:
                values = run.series("return")[1]
            at_ends = values[:1], values[-AT_BOTH_ENDS:]
            rows.append((name, *(number(float(np.mean(part))) for part in at_ends)))
        columns = "mean return", "first update", f"last {AT_BOTH_ENDS} updates"
        return table(*columns, rows=rows, right=columns[1:])

    def diagnosis(self, name: str) -> str:
        """The verdict, and in full what leads."""
        with load(self.folder(name)) as run:
            found = diagnose(run)
        first = tuple(each for each in found.findings[:1] if each.severity != "info")
        text = as_text(
            dataclasses.replace(found, findings=first), width=min(console().width, WIDEST)
        )
        return text.rpartition("\n\n")[0] if first else text.partition("\n\n")[0]


def _started(command: list[str]) -> subprocess.Popen[str]:
    """On one thread: its matrices are far too small for more."""
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def _diff(line: WrongLine) -> Text:
    removed = [Text(f"  - {each.strip()}\n", style="red") for each in line.right.splitlines()]
    added = [
        Text(f"  + {each[line.indent :]}\n", style="green") for each in line.wrong.splitlines()
    ]
    return Text.assemble(*removed, *added)
