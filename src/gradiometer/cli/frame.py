"""The command line's frame: the application, its panels and the arguments that many verbs share."""

from __future__ import annotations

from typing import Annotated

import typer

from gradiometer.cli import completing

__all__ = ["DIAGNOSE", "LABS", "LOOK", "MEASURE", "Json", "LogPath", "RunPath", "app"]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="An instrument for the gradients of reinforcement-learning training in PyTorch.",
)

MEASURE, DIAGNOSE, LOOK, LABS = "Measure", "Diagnose", "Look", "Labs"

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
RunPath = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A run folder, or the run.db in it.", autocompletion=completing.runs),
]
LogPath = Annotated[
    str,
    typer.Argument(
        metavar="RUN_OR_LOG",
        help="A run folder, or a log: CSV, TensorBoard, trainer_state.json, W&B, JSONL.",
        autocompletion=completing.runs,
    ),
]
