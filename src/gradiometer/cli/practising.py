"""The verbs of the labs: small trainings to try everything on."""

from __future__ import annotations

from typing import Annotated

import typer

from gradiometer.cli.frame import LABS, Json, app

__all__: list[str] = []


@app.command(rich_help_panel=LABS)
def labs(json: Json = False) -> None:
    """The small real trainings, and the faults they can be given."""
    from gradiometer.cli import labs as verb

    verb.labs(as_json=json)


@app.command(rich_help_panel=LABS)
def train(
    lab: Annotated[str, typer.Argument(metavar="LAB", help="Which lab; `gradiometer labs` lists them.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="What to change.")] = None,
    config_name: Annotated[
        str | None, typer.Option("--config-name", metavar="NAME", help="A lab's named configuration.")
    ] = None,
) -> None:
    """Train a lab, watched by the meter, e.g. `gradiometer train cartpole seed=2 run=runs/seed-2`."""
    from gradiometer.cli import train as verb

    verb.train(lab, overrides or [], config_name=config_name)


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
