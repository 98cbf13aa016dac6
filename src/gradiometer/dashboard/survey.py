"""A process of its own that reads runs for the table of runs, one question a line.

Diagnosing thousands of runs takes minutes: in the server's process every page would wait for it,
and a file that is never read to its end would keep a thread for ever. This process is ended and
replaced when a file takes too long (`SurveyProcess.ask`).

Asked is {"what": "card" | "state", "path", "root"}; the answer is the content of a `CardSurvey` or
`StateSurvey`, or {"problem": why}.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import gradiometer
from gradiometer.doctor.diagnosis import diagnose
from gradiometer.doctor.rule import rules
from gradiometer.errors import GradiometerWarning, UsageError
from gradiometer.metrics import resolve
from gradiometer.store.comparison import config_of
from gradiometer.store.database import impatient
from gradiometer.store.importers import Log, open_log
from gradiometer.store.opening import within
from gradiometer.store.reader import Run
from gradiometer.store.thinning import Floats

__all__ = ["SurveyProcess", "SurveyTooLong", "answer_to", "main"]

STATEMENT_SECONDS = 10.0
MOST_POINTS = 20_000
SPARK = 32
"""Points of a sparkline."""
HIGHEST = 99
"""They are whole numbers from 0 to this: a line of 20 pixels shows no more."""
MOST_SETTINGS, LONGEST_SETTING = 400, 80
NICE = 5
START_SECONDS = 120.0
"""For the imports of a process, on a machine that trains; no file is to blame for them."""
READY = b"ready\n"
PROGRAM = "from gradiometer.dashboard.survey import main; main()"


class SurveyTooLong(Exception):
    """A file that took longer than it may."""


class SurveyProcess:
    """The parent's side: one process, started when it is first asked and again after it ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, question: Mapping[str, str], seconds: float) -> dict[str, Any]:
        """The answer; `SurveyTooLong` after so many seconds, and then the process is replaced."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], seconds)
            line = process.stdout.readline() if ready else b""
        except OSError:
            ready, line = [process.stdout], b""
        if not ready:
            self.close()
            raise SurveyTooLong(f"it was not read within {seconds:.0f} seconds")
        if not line:
            self.close()
            raise SurveyTooLong("reading it ended the process that read it")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self) -> None:
        """End it from another thread: who waits for an answer gets none."""
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """End it, whatever it is doing."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    if stream is not None:
                        stream.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            ours = str(Path(gradiometer.__file__).resolve().parents[1])
            paths = [ours, *filter(None, [os.environ.get("PYTHONPATH")])]
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
            # -P: no module of the folder we were started in.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
            assert self._process.stdout is not None
            begun, _, _ = select.select([self._process.stdout], [], [], START_SECONDS)
            if not begun or self._process.stdout.readline() != READY:
                self.close()
                raise SurveyTooLong("no process could be started to read it")
        return self._process


def main() -> None:
    """Answer until nobody asks any more."""
    with contextlib.suppress(OSError):
        os.nice(NICE)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    rules()
    out.write(READY)
    out.flush()
    for line in sys.stdin.buffer:
        out.write(json.dumps(answer_to(json.loads(line)), allow_nan=False).encode() + b"\n")
        out.flush()


def answer_to(question: Mapping[str, str]) -> dict[str, Any]:
    """What one run says; `problem` when it cannot be read."""
    path = question["path"]
    try:
        with (
            warnings.catch_warnings(),
            within(Path(question["root"])),
            impatient(STATEMENT_SECONDS),
        ):
            warnings.simplefilter("ignore", GradiometerWarning)
            with open_log(path) as run, run.still():
                return _card(run) if question["what"] == "card" else _state(run)
    except (UsageError, OSError) as problem:
        return {"problem": str(problem)}
    except Exception as problem:  # whatever is wrong with one run, the others are read
        return {"problem": f"it cannot be read ({type(problem).__name__}: {problem})"}


def _card(run: Run | Log) -> dict[str, Any]:
    facts = run.facts
    kind = str(facts.get("imported", {}).get("format", "log")) if isinstance(run, Log) else "run"
    config = list(config_of(facts).items())[:MOST_SETTINGS]
    return {
        "kind": kind,
        "newest_step": run.newest_step,
        "started": str(facts.get("started", "")),
        "seconds": _seconds(run),
        "ended": _ended(run),
        "settings": {name: text[:LONGEST_SETTING] for name, text in config},
    }


def _seconds(run: Run | Log) -> float | None:
    """From the first step to the last, on the clock."""
    ends = [step for step in (run.first_step, run.newest_step) if step is not None]
    if len(ends) < 2:
        return None
    first, last = run.where("wall_time", np.array(ends, dtype=np.int64)).tolist()
    return round(last - first, 3) if math.isfinite(last - first) and last >= first else None


def _ended(run: Run | Log) -> str:
    """The exception that ended it, if one did; a training that was resumed forgets it."""
    told = ""
    for event in run.events():
        if event.kind in ("exception", "resumed"):
            told = event.message if event.kind == "exception" else ""
    return told[:300]


def _state(run: Run | Log) -> dict[str, Any]:
    found = diagnose(run, max_points=MOST_POINTS)
    outcome = found.outcome
    severity = found.worst or ("fine" if found.looked else "unknown")
    told: dict[str, Any] = {"state": found.state, "severity": severity, "verdict": found.verdict}
    told |= {"findings": [finding.id for finding in found.findings]}
    if outcome is None:
        return told | {"outcome": None}
    known = resolve(outcome.series)
    lower = known is not None and known[0].name.endswith("loss")
    curve = found.curves.get(outcome.series)
    return told | {
        "outcome": {
            "series": outcome.series,
            "lower": lower,
            "best": _finite(outcome.best),
            "best_step": outcome.best_step,
            "last": _finite(outcome.end),
            "spark": [] if curve is None else spark(curve.mean),
        }
    }


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def spark(values: Floats) -> list[int | None]:
    """A curve in few whole numbers; null where it is not finite."""
    places = np.linspace(0, len(values) - 1, min(SPARK, len(values))).round().astype(np.int64)
    few = values[places]
    finite = np.isfinite(few)
    if not finite.any():
        return [None] * len(few)
    low, high = few[finite].min(), few[finite].max()
    scaled = (few - low) / (high - low) if high > low else np.where(finite, 0.5, few)
    pairs = zip(scaled.tolist(), finite.tolist(), strict=True)
    return [round(each * HIGHEST) if fine else None for each, fine in pairs]
