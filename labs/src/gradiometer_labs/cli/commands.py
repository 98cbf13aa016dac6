"""The verbs of the labs: their arguments, options and help, in the order of --help."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from typer import Argument, Option

from gradiometer.cli import completing
from gradiometer.cli.app import Json, command
from gradiometer.cli.lists import WordLists
from gradiometer_labs.cli.completing import overrides as complete_overrides

__all__ = ["ClinicRequest", "LabsRequest", "TrainRequest"]

LABS = "Labs"
"""The panel of these commands in --help."""


class ClinicLists(WordLists):
    """A command whose list options take all the words behind them."""

    LISTS = ("--labs", "--wards", "--faults", "--only")


@command(LABS)
@dataclass(frozen=True, slots=True, kw_only=True)
class LabsRequest:
    """List the labs (small real trainings) and the faults that can be injected."""

    json: Json = False


@command(LABS)
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """Train a lab and measure its gradients, e.g. `gradiometer train cartpole seed=2
    run=runs/seed-2`."""

    lab: Annotated[
        str,
        Argument(
            metavar="LAB",
            help="The lab; `gradiometer labs` lists them.",
            autocompletion=completing.labs,
        ),
    ]
    overrides: Annotated[
        list[str],
        Argument(
            metavar="[KEY=VALUE]...", help="Settings to change.", autocompletion=complete_overrides
        ),
    ] = field(default_factory=list)
    config_name: Annotated[
        str | None, Option("--config-name", metavar="NAME", help="A named configuration.")
    ] = None
    config: Annotated[
        str | None,
        Option("--config", metavar="FILE", help="A case study: a YAML file, or one from the lab."),
    ] = None
    variation: Annotated[
        str | None,
        Option("--variation", metavar="NAME", help="The variation of the case study."),
    ] = None


@command(LABS, cls=ClinicLists)
@dataclass(frozen=True, slots=True, kw_only=True)
class ClinicRequest:
    """Inject faults into real trainings, and count how often the doctor finds the cause and how
    often it raises a false alarm."""

    labs: Annotated[list[str], Option(metavar="LAB...", help="Only these labs.")] = field(
        default_factory=list
    )
    wards: Annotated[
        list[str],
        Option(
            metavar="WARD...",
            help="Other people's trainers instead of the labs: sb3, torchrl, trl, programs; all:"
            " every one.",
        ),
    ] = field(default_factory=list)
    limit: Annotated[
        int, Option(min=0, help="--wards: at most this many patients per ward; 0: all.")
    ] = 0
    stored: Annotated[
        bool, Option("--stored", help="--wards: train nothing; score the patients in --out.")
    ] = False
    judge: Annotated[
        str,
        Option(
            metavar="COMMAND",
            help="--wards: score another tool too: a command that reads the scalar log {log} and"
            " prints findings, the first on top.",
        ),
    ] = ""
    faults: Annotated[
        list[str], Option(metavar="FAULT...", help="Only these faults; none: only controls.")
    ] = field(default_factory=list)
    seeds: Annotated[int, Option(min=1, help="Trainings per fault.")] = 3
    controls: Annotated[int, Option(min=0, help="Healthy trainings per setup and kind.")] = 4
    engine: Annotated[
        str, Option(metavar="processes|ray|serial", help="How to run the trainings.")
    ] = "processes"
    workers: Annotated[int, Option(min=0, help="Parallel trainings; 0: one per core.")] = 0
    quick: Annotated[
        bool, Option("--quick", help="Run a few faults in three minutes; fail if one is missed.")
    ] = False
    out: Annotated[
        str, Option(help="Folder for runs and results; existing runs are not trained again.")
    ] = "runs/clinic"
    report: Annotated[str, Option(metavar="FILE.md", help="Write a page with all results.")] = ""
    sweep: Annotated[
        bool,
        Option(
            "--sweep",
            help="Train nothing: compute recall and false alarms for other thresholds, on existing"
            " runs and synthetic logs.",
        ),
    ] = False
    only: Annotated[
        list[str],
        Option(metavar="NAME...", help="--sweep: only these checks, or thresholds (group/name)."),
    ] = field(default_factory=list)
    wild: Annotated[
        str,
        Option(
            metavar="FOLDER", help="--sweep: also use labelled logs: labels.jsonl and its files."
        ),
    ] = ""
    json: Json = False
