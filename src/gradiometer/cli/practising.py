"""The verbs of the labs: small trainings to try everything on."""

from __future__ import annotations

from typing import Annotated

import typer

from gradiometer.cli import completing
from gradiometer.cli.frame import LABS, Json, app
from gradiometer.cli.lists import PatientLists

__all__: list[str] = []


@app.command(rich_help_panel=LABS)
def labs(json: Json = False) -> None:
    """The small real trainings, and the faults they can be given."""
    from gradiometer.cli import labs as verb

    verb.labs(as_json=json)


@app.command(rich_help_panel=LABS)
def train(
    lab: Annotated[
        str,
        typer.Argument(metavar="LAB", help="Which lab; `gradiometer labs` lists them.", autocompletion=completing.labs),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="What to change.", autocompletion=completing.overrides),
    ] = None,
    config_name: Annotated[
        str | None, typer.Option("--config-name", metavar="NAME", help="A lab's named configuration.")
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="A case study: a YAML file, or one a lab comes with.")
    ] = None,
    variation: Annotated[
        str | None, typer.Option("--variation", metavar="NAME", help="Which variation of the case study.")
    ] = None,
) -> None:
    """Train a lab, watched by the meter, e.g. `gradiometer train cartpole seed=2 run=runs/seed-2`."""
    from gradiometer.cli import train as verb

    verb.train(lab, overrides or [], config_name=config_name, config=config, variation=variation)


@app.command(rich_help_panel=LABS)
def demo(
    serve: Annotated[
        bool,
        typer.Option(
            "--serve/--no-serve",
            help="On a terminal, end by showing both in the browser.",
        ),
    ] = True,
    total_steps: Annotated[int, typer.Option(min=1024, help="Environment steps of each training.")] = 60_000,
    out: Annotated[str, typer.Option(help="Where the two runs go.")] = "runs/demo",
) -> None:
    """Train CartPole with a dead entropy bonus beside a healthy one, and print what the gradients say."""
    from gradiometer.cli import demo as verb

    verb.demo(out, total_steps=total_steps, serve=serve)


@app.command(rich_help_panel=LABS, cls=PatientLists)
def clinic(
    labs: Annotated[list[str] | None, typer.Option(metavar="LAB...", help="Only these labs.")] = None,
    faults: Annotated[
        list[str] | None, typer.Option(metavar="FAULT...", help="Only these faults; none: controls.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each fault.")] = 3,
    controls: Annotated[int, typer.Option(min=0, help="Healthy trainings of each ward and kind.")] = 4,
    engine: Annotated[str, typer.Option(metavar="processes|ray|serial", help="Who does the work.")] = "processes",
    workers: Annotated[int, typer.Option(min=0, help="How many at once; 0: one a core.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few patients, in three minutes; fails if they are missed.")
    ] = False,
    out: Annotated[
        str, typer.Option(help="Where runs and results go; what is there already is not trained again.")
    ] = "runs/clinic",
    report: Annotated[str, typer.Option(metavar="FILE.md", help="Write the page with all figures.")] = "",
    json: Json = False,
) -> None:
    """Break real trainings on purpose, and count how often the doctor names the cause, and how often it cries wolf."""
    from gradiometer.cli import clinic as verb

    code = verb.clinic(
        labs=labs or [],
        faults=faults or [],
        seeds=seeds,
        controls=controls,
        engine=engine,
        workers=workers,
        quick=quick,
        out=out,
        report=report,
        as_json=json,
    )
    if code:
        raise typer.Exit(code)
