"""The command `gradiometer`: the verbs, and what becomes of errors.

Exit codes: 0 fine, 1 findings at or above --fail-on, 2 wrong usage or bad input, 3 a fault of ours, 130 interrupted.
Each verb's file is imported when the verb runs, so `--help` stays quick and reading never imports torch.
"""

from __future__ import annotations

import sys
import traceback
from typing import Annotated, NoReturn

import typer

from gradiometer.cli.lists import StepLists, WordLists
from gradiometer.cli.requests import Request, command_of
from gradiometer.errors import UsageError, WorkersLost
from gradiometer.version import __version__

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="An instrument for the gradients of reinforcement-learning training in PyTorch.",
)

MEASURE, DIAGNOSE, LOOK, LABS = "Measure", "Diagnose", "Look", "Labs"

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
RunPath = Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or the run.db in it.")]
LogPath = Annotated[
    str,
    typer.Argument(
        metavar="RUN_OR_LOG", help="A run folder, or a log: CSV, TensorBoard, trainer_state.json, W&B, JSONL."
    ),
]


def main() -> NoReturn:
    """Run the command line and leave with the right exit code."""
    sys.exit(run())


def run(arguments: list[str] | None = None) -> int:
    """The exit code of the command line; a user's mistake is one line on stderr, never a traceback."""
    try:
        app(args=arguments, prog_name="gradiometer")
    except SystemExit as leaving:  # typer's own way out: help, usage errors, 130 when interrupted
        return leaving.code if isinstance(leaving.code, int) else 0
    except UsageError as problem:
        return _say(f"error: {problem}", 2)
    except WorkersLost as problem:
        return _say(f"error: {problem}", 2)
    except OSError as problem:  # no permission, no space: the machine's trouble, not ours
        return _say(f"error: {problem}", 2)
    except Exception:
        traceback.print_exc()
        return _say("This is a fault of Gradiometer. Please report it with what `gradiometer env` prints.", 3)
    return 0


def _say(message: str, code: int) -> int:
    print(message, file=sys.stderr)
    return code


def _version(wanted: bool) -> None:
    if wanted:
        print(f"gradiometer {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The options of the command itself."""


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
        str, typer.Argument(metavar="[NAME]", help="A metric, a series of a run, or another library's name.")
    ] = "",
    json: Json = False,
) -> None:
    """The catalogue: what each metric means, when it is healthy, and what to do when it is not."""
    from gradiometer.cli import metrics as verb

    verb.metrics(name, as_json=json)


@app.command(rich_help_panel=LOOK, cls=StepLists)
def plot(
    run: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="A run folder, or a log (dynamics.db, JSONL, W&B, CSV, TensorBoard, ...); several are compared.",
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


@app.command(rich_help_panel=DIAGNOSE)
def doctor(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_OR_LOG...", help="Run folders, or logs of SB3, TRL, verl, CleanRL, W&B, CSV, JSONL."
        ),
    ],
    since: Annotated[int | None, typer.Option(metavar="STEP", help="Only what happened from this step on.")] = None,
    format: Annotated[str, typer.Option(metavar="text|markdown|html", help="How to say it.")] = "text",
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Write it to a file.")] = "",
    fail_on: Annotated[
        str, typer.Option(metavar="warn|critical", help="Exit with 1 if there is a finding at or above this.")
    ] = "none",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Every finding whole, and every rule left out.")
    ] = False,
    confirm: Annotated[
        bool,
        typer.Option("--confirm", help="Run the experiments that would prove the first findings: a lab, or --probe."),
    ] = False,
    probe: Annotated[
        str,
        typer.Option(metavar="MODULE:FUNCTION", help="Your own experiment: takes a gm.Experiment, returns numbers."),
    ] = "",
    json: Json = False,
) -> None:
    """Why does this policy not learn? The cause first, its evidence, what to change and how to make sure."""
    from gradiometer.cli import doctor as verb

    code = verb.doctor(
        paths,
        since=since,
        form=format,
        output=output,
        fail_on=fail_on,
        verbose=verbose,
        confirm=confirm,
        probe=probe,
        as_json=json,
    )
    if code:
        raise typer.Exit(code)


@app.command(
    rich_help_panel=DIAGNOSE, context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True}
)
def audit(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A training script; options of ours come before it.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="Its own arguments.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Stop when every optimizer has stepped this often.")] = 1,
    fail_on: Annotated[
        str, typer.Option(metavar="warn|critical", help="Exit with 1 if a check at or above this fails.")
    ] = "none",
    json: Json = False,
) -> None:
    """Run a training to its first optimizer step, stop it, and say what is wired wrong; gm.audit(...) checks more."""
    from gradiometer.cli import audit as verb

    code = verb.audit(script, arguments or [], steps=steps, fail_on=fail_on, as_json=json)
    if code:
        raise typer.Exit(code)


@app.command(rich_help_panel=DIAGNOSE)
def experts(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, its run.db, a dynamics.db, or a log.")],
    since: Annotated[int | None, typer.Option(metavar="STEP", help="Only what was measured from this step on.")] = None,
    json: Json = False,
) -> None:
    """Do the experts learn different things? Three questions answered, with intervals, and what to try next."""
    from gradiometer.cli import experts as verb

    verb.experts(run, since=since, as_json=json)


@app.command(rich_help_panel=LOOK)
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or a log with the same series.")],
    to: Annotated[str, typer.Option(metavar="dynamics-db", help="What to write.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="The file.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there.")] = False,
    json: Json = False,
) -> None:
    """The experts of a run as a dynamics.db: a row a step, a column for each expert and tier."""
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


@app.command(rich_help_panel=MEASURE)
def analyze(
    target: Annotated[
        str, typer.Argument(metavar="CHECKPOINT_OR_LAB", help="A folder global_step_<N>, or a lab such as sokoban.")
    ],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="What to change.")] = None,
    config_name: Annotated[
        str | None, typer.Option("--config-name", help="A configuration of the lab by name, such as _2_sokoban.")
    ] = None,
    json: Json = False,
) -> None:
    """Probe once and exit: what each loss term does, on which groups, and how much of it is signal."""
    from gradiometer.cli import analyze as verb

    verb.analyze(target, overrides or [], config_name=config_name, as_json=json)


app.command("variance", rich_help_panel=MEASURE, cls=WordLists)(command_of(Request, "variance"))


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
            help="Show the runs in a browser; no dashboard yet.",
        ),
    ] = True,
    total_steps: Annotated[int, typer.Option(min=1024, help="Environment steps of each training.")] = 60_000,
    out: Annotated[str, typer.Option(help="Where the two runs go.")] = "runs/demo",
) -> None:
    """Train CartPole with a dead entropy bonus beside a healthy one, and print what the gradients say."""
    from gradiometer.cli import demo as verb

    verb.demo(out, total_steps=total_steps, serve=serve)
