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

    LISTS = ("--labs", "--faults", "--only")


@command(LABS)
@dataclass(frozen=True, slots=True, kw_only=True)
class LabsRequest:
    """The small real trainings, and the faults they can be given."""

    json: Json = False


@command(LABS)
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """Train a lab, watched by the meter, e.g. `gradiometer train cartpole seed=2
    run=runs/seed-2`."""

    lab: Annotated[
        str,
        Argument(
            metavar="LAB",
            help="Which lab; `gradiometer labs` lists them.",
            autocompletion=completing.labs,
        ),
    ]
    overrides: Annotated[
        list[str],
        Argument(
            metavar="[KEY=VALUE]...", help="What to change.", autocompletion=complete_overrides
        ),
    ] = field(default_factory=list)
    config_name: Annotated[
        str | None, Option("--config-name", metavar="NAME", help="A lab's named configuration.")
    ] = None
    config: Annotated[
        str | None,
        Option(
            "--config", metavar="FILE", help="A case study: a YAML file, or one a lab comes with."
        ),
    ] = None
    variation: Annotated[
        str | None,
        Option("--variation", metavar="NAME", help="Which variation of the case study."),
    ] = None


@command(LABS, cls=ClinicLists)
@dataclass(frozen=True, slots=True, kw_only=True)
class ClinicRequest:
    """Break real trainings on purpose, and count how often the doctor names the cause, and how
    often it cries wolf."""

    labs: Annotated[list[str], Option(metavar="LAB...", help="Only these labs.")] = field(
        default_factory=list
    )
    faults: Annotated[
        list[str], Option(metavar="FAULT...", help="Only these faults; none: controls.")
    ] = field(default_factory=list)
    seeds: Annotated[int, Option(min=1, help="Trainings of each fault.")] = 3
    controls: Annotated[int, Option(min=0, help="Healthy trainings of each ward and kind.")] = 4
    engine: Annotated[str, Option(metavar="processes|ray|serial", help="Who does the work.")] = (
        "processes"
    )
    workers: Annotated[int, Option(min=0, help="How many at once; 0: one a core.")] = 0
    quick: Annotated[
        bool, Option("--quick", help="A few patients, in three minutes; fails if they are missed.")
    ] = False
    out: Annotated[
        str, Option(help="Where runs and results go; what is there already is not trained again.")
    ] = "runs/clinic"
    report: Annotated[str, Option(metavar="FILE.md", help="Write the page with all figures.")] = ""
    sweep: Annotated[
        bool,
        Option(
            "--sweep",
            help="Train nothing: recall against false alarms for other thresholds, on kept runs and"
            " made-up logs.",
        ),
    ] = False
    only: Annotated[
        list[str],
        Option(metavar="NAME...", help="--sweep: only these rules, or thresholds (group/name)."),
    ] = field(default_factory=list)
    wild: Annotated[
        str,
        Option(
            metavar="FOLDER", help="--sweep: also logs with labels: labels.jsonl and their files."
        ),
    ] = ""
    json: Json = False
