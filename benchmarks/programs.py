"""Does the doctor name one wrong line in a program it was not built around?

`python -m benchmarks.programs` runs every program of labs/programs, unchanged and with each of its
bugs (labs/programs/bugs.toml), under `gradiometer run`, and asks `gradiometer doctor` what is
wrong. It prints how often the first finding names the bug, how often one of the first three does,
how many bugs went without a warning, and how many healthy programs got one. `--only PROGRAM[/BUG]`
chooses, `--seed` and `--jobs` set what they say, and `--keep FOLDER` keeps the runs: what was
trained before is judged anew. All of them take about an hour of one core.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Answer", "Patient", "changed", "main", "patients"]

PROGRAMS = Path(__file__).parents[1] / "labs" / "programs"
MOST_SECONDS = 600
HEALTHY = "healthy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """A program, as it is or with one line changed."""

    program: str
    bug: str
    accept: frozenset[str] = frozenset()
    old: str = ""
    new: str = ""

    @property
    def name(self) -> str:
        """As `--only` has it."""
        return f"{self.program}/{self.bug}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the doctor said of a patient: its state, and findings with a warning or worse."""

    patient: Patient
    state: str
    loud: tuple[str, ...]
    findings: tuple[str, ...]

    def among(self, first: int) -> bool:
        """Whether one of the first findings names the bug."""
        return bool(self.patient.accept & set(self.findings[:first]))

    @property
    def silent(self) -> bool:
        """No warning, and no state that says something is wrong."""
        return not self.loud and self.state not in ("broken", "not-learning")


def patients() -> Iterator[Patient]:
    """Each program, healthy first."""
    bugs = tomllib.loads((PROGRAMS / "bugs.toml").read_text(encoding="utf-8"))
    for program in sorted(bugs):
        yield Patient(program=program, bug=HEALTHY)
        for name, bug in bugs[program].items():
            yield Patient(
                program=program,
                bug=name,
                accept=frozenset(bug["accept"]),
                old=bug["old"],
                new=bug["new"],
            )


def changed(patient: Patient) -> str:
    """The program's text with the bug in it."""
    text = (PROGRAMS / f"{patient.program}.py").read_text(encoding="utf-8")
    if patient.bug == HEALTHY:
        return text
    assert text.count(patient.old) == 1, f"{patient.name}: the line is not there once"
    return text.replace(patient.old, patient.new)


def examine(patient: Patient, folder: Path, seed: int) -> Answer:
    """Train it, unless it was, and ask the doctor."""
    home = folder / f"{patient.program}-{patient.bug}-{seed}"
    run = home / "run"
    if not (home / "trained").exists():
        home.mkdir(parents=True, exist_ok=True)
        script = home / f"{patient.program}.py"
        script.write_text(changed(patient), encoding="utf-8")
        _gradiometer(home, "run", "--run", str(run), str(script), "--seed", str(seed))
        (home / "trained").touch()
    said = _gradiometer(home, "doctor", str(run), "--json")
    try:
        found = json.loads(said)
    except json.JSONDecodeError:
        found = {}
    findings = found.get("findings", [])
    return Answer(
        patient=patient,
        state=found.get("state", "no answer"),
        loud=tuple(each["id"] for each in findings if each["severity"] != "info"),
        findings=tuple(each["id"] for each in findings),
    )


def _gradiometer(home: Path, *words: str) -> str:
    """What a command of ours printed; what went wrong is kept beside the run."""
    with (home / f"{words[0]}.err").open("w", encoding="utf-8") as errors:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "gradiometer", *words],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                timeout=MOST_SECONDS,
                cwd=home,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                check=False,
            )
        except subprocess.TimeoutExpired:
            return ""
    return done.stdout


def line(answer: Answer) -> str:
    """A row of the table."""
    patient = answer.patient
    if patient.bug == HEALTHY:
        mark = "ALARM" if answer.loud else "ok"
    else:
        mark = "first" if answer.among(1) else "three" if answer.among(3) else "-"
        mark = "silent" if mark == "-" and answer.silent else mark
    said = ", ".join(answer.findings[:3]) or "nothing"
    return f"{patient.name:46} {mark:7} {answer.state:13} {said}"


def summary(answers: Sequence[Answer]) -> str:
    """The four figures."""
    broken = [each for each in answers if each.patient.bug != HEALTHY]
    healthy = [each for each in answers if each.patient.bug == HEALTHY]
    return (
        f"of {len(broken)} bugs: named first {sum(each.among(1) for each in broken)}, among three "
        f"{sum(each.among(3) for each in broken)}, silent {sum(each.silent for each in broken)}; "
        f"of {len(healthy)} healthy programs with a warning "
        f"{sum(bool(each.loud) for each in healthy)}"
    )


def main(words: Sequence[str] | None = None) -> None:
    """Examine all, or those that are named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs", description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], metavar="PROGRAM[/BUG]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args(words)
    chosen = [
        each for each in patients() if not asked.only or {each.program, each.name} & set(asked.only)
    ]
    if not chosen:
        parser.error(f"no program or bug is called {' or '.join(asked.only)}")
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(asked.jobs) as pool:
        folder = asked.keep.resolve() if asked.keep else Path(scratch)
        answers = []
        for answer in pool.map(lambda each: examine(each, folder, asked.seed), chosen):
            answers.append(answer)
            print(line(answer), flush=True)
    print(summary(answers))


if __name__ == "__main__":
    main()
