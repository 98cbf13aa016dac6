"""The ward of single-file programs: `labs/programs`, each in another style, with one line replaced.

Their faults stand in `bugs.toml` beside them. A patient is the unchanged program, or the one with
one wrong line, under `gradiometer run`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gradiometer.errors import UsageError
from gradiometer.integrations.script.running import Program, RunOptions
from gradiometer.integrations.script.watched import WatchedScript
from gradiometer_labs.wards.ward import BUDGET, Patient, Ranges, Ward, WardFault

__all__ = ["WARD"]

FOLDER = Path(__file__).parents[3] / "programs"
NUMBER = re.compile(r"(?:return|reward)\W+(-?\d+(?:\.\d+)?(?:e-?\d+)?)", re.IGNORECASE)
"""What each of them prints of its return."""
WARD = Ward(
    name="programs",
    summary="single-file programs in other people's styles",
    setups={
        ("ppo_gaussian", "reach"): Ranges(fixed={"iterations": 20}, drawn={"lr": (7e-4, 2e-3)}),
        ("dqn_agent", "CartPole"): Ranges(fixed={"total-timesteps": 5000}),
        ("episodes_gae", "CartPole"): Ranges(
            fixed={"rounds": 14},
            drawn={
                "steps": [500, 800],
                "actor-lr": (7e-3, 2e-2),
                "critic-lr": (2e-3, 5e-3),
                "gamma": [0.97, 0.98, 0.99],
            },
        ),
        ("sac_steps", "Pendulum"): Ranges(
            fixed={"total-steps": 1600, "random-steps": 400},
            drawn={"batch": [64, 128], "gamma": [0.96, 0.98]},
        ),
        ("td3_steps", "Pendulum"): Ranges(fixed={"total-timesteps": 1600}),
        ("grpo_tokens", "language"): Ranges(
            fixed={"steps": 60},
            drawn={"lr": (2e-3, 4e-3), "num-generations": [6, 8, 12], "beta": (0.005, 0.02)},
        ),
        ("bandit_helper", "bandit"): Ranges(fixed={"steps": 600}),
    },
)


def _register() -> None:
    """A fault of bugs.toml is called like its program, for one name stands in several."""
    bugs = tomllib.loads((FOLDER / "bugs.toml").read_text(encoding="utf-8"))
    for program, wrong_lines in bugs.items():
        for name, line in wrong_lines.items():
            WARD.faults[f"{program}.{name}"] = WardFault(
                name=f"{program}.{name}",
                algorithms=(program,),
                accept=tuple(line["accept"]),
                summary=f"`{line['old'].strip()}` is now `{line['new'].strip()}`.",
                breaks=lambda text, line=line: text.replace(line["old"], line["new"]),
            )


if FOLDER.is_dir():  # a checkout has them, an installed package does not
    _register()


@WARD.trains
def train(patient: Patient, run: Path) -> Sequence[float]:
    """Run the program in this process; its returns are those it prints."""
    if not FOLDER.is_dir():
        raise UsageError("the ward `programs` needs a checkout of Gradiometer: labs/programs")
    text = (FOLDER / f"{patient.algorithm}.py").read_text(encoding="utf-8")
    if patient.ward_fault is not None:
        text = patient.ward_fault.breaks(text)
    run.parent.mkdir(parents=True, exist_ok=True)
    script = run.parent / f"{patient.algorithm}.py"
    script.write_text(text, encoding="utf-8")
    arguments = tuple(
        word for name, value in patient.settings.items() for word in (f"--{name}", str(value))
    )
    options = RunOptions(folder=run.resolve(), budget=BUDGET, doctor=False)
    printed = io.StringIO()
    with _as_before(), contextlib.redirect_stdout(printed):
        watched = WatchedScript(options, listen=True)
        end = watched.run(Program(target=str(script), arguments=arguments), told=lambda _: None)
    if end.code and not (run / "run.db").exists():
        raise RuntimeError(f"{patient.name} ended with code {end.code}")
    return [float(found) for found in NUMBER.findall(printed.getvalue())]


@contextlib.contextmanager
def _as_before() -> Iterator[None]:
    """A program is `__main__` while it runs."""
    kept: tuple[Any, ...] = sys.modules["__main__"], sys.argv, list(sys.path), os.getcwd()
    try:
        yield
    finally:
        sys.modules["__main__"], sys.argv, sys.path[:] = kept[:3]
        os.chdir(kept[3])
