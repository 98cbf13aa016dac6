"""The verbs that read: show, serve, plot, export and their like."""

from __future__ import annotations

from typing import Annotated

import typer

from gradiometer.cli import completing
from gradiometer.cli.frame import LOOK, Json, LogPath, RunPath, app
from gradiometer.cli.lists import StepLists

__all__: list[str] = []


@app.command(rich_help_panel=LOOK)
def show(
    run: LogPath,
    layers: Annotated[bool, typer.Option("--layers", help="Also every layer, not only the named blocks.")] = False,
    match: Annotated[str, typer.Option(help="Only series whose name matches this regular expression.")] = "",
    json: Json = False,
) -> None:
    """What a run measured: last, mean, min and max of every series, block by block."""
    from gradiometer.cli import show as verb

    verb.show(run, layers=layers, match=match, as_json=json)


@app.command(rich_help_panel=LOOK)
def metrics(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            help="A metric, a series of a run, or another library's name.",
            autocompletion=completing.metrics,
        ),
    ] = "",
    json: Json = False,
) -> None:
    """The catalogue: what each metric means, when it is healthy, and what to do when it is not."""
    from gradiometer.cli import metrics as verb

    verb.metrics(name, as_json=json)


@app.command(rich_help_panel=LOOK)
def serve(
    path: Annotated[
        str,
        typer.Argument(
            metavar="[DIR|RUN]",
            help="A folder of runs, a run, or a log; unless told ./runs, or this folder.",
            show_default=False,
            autocompletion=completing.runs,
        ),
    ] = "",
    port: Annotated[
        int | None,
        typer.Option("--port", "-p", min=0, max=65535, help="Where to listen; the first free from 8765 on."),
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="The address to listen on; any but this machine's own needs --token.")
    ] = "127.0.0.1",
    token: Annotated[
        str,
        typer.Option(metavar="TOKEN", envvar="GRADIOMETER_TOKEN", help="Only who has it may look.", show_default=False),
    ] = "",
) -> None:
    """Runs in a browser, live: verdict, gradients, terms, estimators, experts, comparisons and findings."""
    from gradiometer.cli import serve as verb

    verb.serve(path, host=host, port=port, token=token, open_browser=open_browser)


@app.command(rich_help_panel=LOOK)
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Run folders, folders of runs, or logs; two or more.",
            autocompletion=completing.runs,
        ),
    ],
    match: Annotated[
        str, typer.Option(metavar="REGEX", help="Every series whose name this regular expression finds.")
    ] = "",
    metric: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A series; again, or with commas, for more.")
    ] = None,
    group: Annotated[
        str,
        typer.Option(metavar="none|seed|name|KEY", help="Mean ± std over runs alike in this; seed where that helps."),
    ] = "",
    json: Json = False,
) -> None:
    """Several runs beside each other: where each ended up, means over seeds, and the settings that differ."""
    from gradiometer.cli import compare as verb

    verb.compare(runs, match=match, metrics=metric or [], group=group, as_json=json)


@app.command(rich_help_panel=LOOK, cls=StepLists)
def plot(
    run: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="A run folder, or a log (dynamics.db, JSONL, W&B, CSV, TensorBoard, ...); several are compared.",
            autocompletion=completing.runs,
        ),
    ] = None,
    wandb_path: Annotated[
        str, typer.Option(metavar="PATH", help="A W&B run: ENTITY/PROJECT/RUN_ID, or an offline file or folder.")
    ] = "",
    step: Annotated[
        list[str] | None, typer.Option(metavar="N...", help="Only these steps, e.g. --step 1 11 21; all unless told.")
    ] = None,
    list_steps: Annotated[
        bool,
        typer.Option("--list-steps", help="Only say what there is to draw."),
    ] = False,
    output_dir: Annotated[
        str,
        typer.Option(
            metavar="DIR",
            help="Where the files go; unless told, a folder NAME_ID in gradient_analysis_outputs (replicates: "
            "variance_outputs, experts: expert_outputs).",
        ),
    ] = "",
    format: Annotated[str, typer.Option(metavar="png|pdf|svg", help="What the figures are.")] = "png",
    json: Json = False,
) -> None:
    """Figures and their numbers: gradient analyses, replicates and experts of a run; of several runs, their experts."""
    from gradiometer.cli import plot as verb

    verb.plot(
        run or [],
        wandb_path=wandb_path,
        steps=step or [],
        list_steps=list_steps,
        output_dir=output_dir,
        kind=format,
        as_json=json,
    )


@app.command(rich_help_panel=LOOK, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def figure(
    ctx: typer.Context,
    out: Annotated[str, typer.Option(metavar="FILE", help="The figure: .png, .pdf or .svg.")] = "",
    mode: Annotated[str, typer.Option(metavar="ppo|grpo", help="The algorithm, for the title.")] = "",
    json: Json = False,
) -> None:
    """Compare analysis steps side by side: --step0-dir DIR --step20-dir DIR ..., any steps, folders `plot` wrote."""
    from gradiometer.cli import figure as verb

    verb.figure(ctx.args, out=out, mode=mode, as_json=json)


@app.command(rich_help_panel=LOOK)
def export(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run folder, or a log with the same series.", autocompletion=completing.runs
        ),
    ],
    to: Annotated[str, typer.Option(metavar="FORMAT", help="tensorboard, wandb, csv, parquet, jsonl, dynamics-db.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="PATH", help="The file, or the folder.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what was exported there before.")] = False,
    json: Json = False,
) -> None:
    """A run in the files of other tools; dynamics-db holds its experts only."""
    from gradiometer.cli import export as verb

    verb.export(run, to=to, output=output, overwrite=overwrite, as_json=json)


@app.command("import", rich_help_panel=LOOK)
def import_(
    log: Annotated[
        str,
        typer.Argument(
            metavar="LOG",
            help="SB3's progress.csv or any CSV, TensorBoard event files, a trainer_state.json, a .jsonl log, an offline W&B "
            "file, a dynamics.db; or a folder with one of them.",
            autocompletion=completing.runs,
        ),
    ],
    output: Annotated[str, typer.Option("--output", "-o", metavar="DIR", help="The folder of the new run.")],
    json: Json = False,
) -> None:
    """Make a run of another tool's log, and say which of its names the catalogue does not know."""
    from gradiometer.cli import import_ as verb

    verb.import_(log, output=output, as_json=json)


@app.command(rich_help_panel=LOOK)
def prune(
    run: RunPath,
    keep: Annotated[int, typer.Option(min=0, help="How many steps of each sketch and histogram stay.")] = 100,
    json: Json = False,
) -> None:
    """Remove old sketches and histograms from a run; curves and findings stay."""
    from gradiometer.cli import prune as verb

    verb.prune(run, keep=keep, as_json=json)


@app.command(rich_help_panel=LOOK)
def env(json: Json = False) -> None:
    """Versions, which extras are here, and the pip line for those that are not."""
    from gradiometer.cli import env as verb

    verb.env(as_json=json)
