"""`gradiometer demo`: the same training twice, once with a dead entropy bonus, and what the
gradients say."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import gradiometer_labs as labs
from gradiometer.cli.printing import console, table
from gradiometer.dashboard import server
from gradiometer.doctor.diagnosis import diagnose
from gradiometer.doctor.report import as_text
from gradiometer.errors import MissingExtra, UsageError
from gradiometer.store.reader import Run, load
from gradiometer.words import number
from gradiometer_labs.cli.commands import DemoRequest
from gradiometer_labs.cli.train import training_bar

__all__ = ["demo"]

FAULT = "entropy_no_grad"
TERMS = ("policy", "value", "entropy")


def demo(request: DemoRequest) -> None:
    """Train both, then read the two runs back and compare them."""
    from gradiometer_labs.config import configure

    lab, out = labs.find("cartpole"), Path(request.out)
    folders = {"healthy": out / "healthy", "broken": out / "broken"}
    for folder in folders.values():
        _clear(folder)
    faults = {"healthy": "none", "broken": FAULT}
    for name, folder in folders.items():
        steps = f"total_steps={request.total_steps}"
        config = configure(lab.config(), [f"run={folder}", steps, f"fault={faults[name]}"])
        with training_bar(f"cartpole, {name}") as progress:
            lab.train(config, progress)
    _report({name: _read(folder) for name, folder in folders.items()}, folders)
    if request.serve and sys.stdout.isatty():
        _serve(out)
    else:
        print(f"In a browser: gradiometer serve {request.out}")


def _serve(folder: Path) -> None:
    """The two runs in a browser; without the packages for it the demo is complete all the same."""
    try:
        server.serve(folder, path="/overview?run=broken&run=healthy", open_browser=True)
    except MissingExtra as missing:
        print(missing)


def _clear(folder: Path) -> None:
    """Only a run of an earlier demo is replaced; anything else there is the user's."""
    if not folder.exists():
        return
    if any(
        entry.name not in ("run.db", "run.db-wal", "run.db-shm", "run.lock")
        for entry in folder.iterdir()
    ):
        raise UsageError(
            f"{folder} holds more than a run of an earlier demo; choose another place with --out"
        )
    shutil.rmtree(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """What the table needs of a run."""

    reward: float
    entropy: tuple[float, float]
    losses: dict[str, float]
    norms: dict[str, float | None]
    """Mean gradient norm of each term on the actor; None when the run never saw one."""
    dead: list[str]


def _read(folder: Path) -> DemoRun:
    with load(folder) as run:
        _, reward = run.series("reward")
        _, entropy = run.series("entropy")
        return DemoRun(
            reward=float(np.mean(reward[-10:])),
            entropy=(float(entropy[0]), float(entropy[-1])),
            losses={term: _mean(run, f"grad/all/term/{term}/loss") or 0.0 for term in TERMS},
            norms={
                term: _mean(run, f"grad/actor/term/{term}/norm")
                for term in TERMS
                if term != "value"
            },
            dead=[f"step {event.step}: {event.message}" for event in run.events("dead-term")],
        )


def _mean(run: Run, name: str) -> float | None:
    return float(np.mean(run.series(name)[1])) if name in run.names() else None


def _report(runs: dict[str, DemoRun], folders: dict[str, Path]) -> None:
    healthy, broken = runs["healthy"], runs["broken"]
    rows = [("mean return at the end", number(healthy.reward), number(broken.reward))]
    rows.append(
        ("entropy at the end (nats)", number(healthy.entropy[1]), number(broken.entropy[1]))
    )
    rows.append(
        (
            "entropy term in the loss",
            number(healthy.losses["entropy"]),
            number(broken.losses["entropy"]),
        )
    )
    rows += [
        (
            f"gradient of the {term} term on the actor",
            _norm(healthy.norms[term]),
            _norm(broken.norms[term]),
        )
        for term in healthy.norms
    ]
    out = console()
    out.print()
    out.print(
        table(
            "seed 1, one changed line", "healthy", "broken", rows=rows, right=("healthy", "broken")
        )
    )
    if broken.dead:
        out.print(
            "\nReturn and loss alone do not show it: both runs learn, and both losses carry the"
            " bonus."
        )
    out.print("\nWhat the doctor says\n")
    for folder in folders.values():
        out.print(_diagnosis(folder, width=min(out.width, 100)), soft_wrap=True)
        out.print()
    out.print(f"Look closer: gradiometer show {folders['broken']}", soft_wrap=True)


def _diagnosis(folder: Path, *, width: int) -> str:
    """The verdict, and in full what is worth acting on."""
    with load(folder) as run:
        found = diagnose(run)
    serious = tuple(finding for finding in found.findings if finding.severity != "info")
    text = as_text(dataclasses.replace(found, findings=serious), width=width)
    return text.partition("\n\n")[0] if not serious else text.rpartition("\n\n")[0]


def _norm(value: float | None) -> str:
    return "no path" if value is None else number(value)
