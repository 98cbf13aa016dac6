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
from gradiometer.errors import UsageError
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

MEASURE, LOOK, LABS = "Measure", "Look", "Labs"

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
RunPath = Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or the run.db in it.")]


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
    run: RunPath,
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
        str, typer.Argument(metavar="[RUN]", help="A run folder, a .jsonl log, or an offline W&B file or folder.")
    ] = "",
    wandb_path: Annotated[
        str, typer.Option(metavar="PATH", help="A W&B run: ENTITY/PROJECT/RUN_ID, or an offline file or folder.")
    ] = "",
    step: Annotated[
        list[str] | None, typer.Option(metavar="N...", help="Only these steps, e.g. --step 1 11 21; all unless told.")
    ] = None,
    list_steps: Annotated[bool, typer.Option("--list-steps", help="Only say which steps have an analysis.")] = False,
    output_dir: Annotated[
        str, typer.Option(metavar="DIR", help="Where the files go; gradient_analysis_outputs/NAME_ID unless told.")
    ] = "",
    format: Annotated[str, typer.Option(metavar="png|pdf|svg", help="What the figures are.")] = "png",
    json: Json = False,
) -> None:
    """The gradient analyses of a run: five figures, the metrics and the group table of each step."""
    from gradiometer.cli import plot as verb

    verb.plot(
        run,
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


@app.command(rich_help_panel=MEASURE, cls=WordLists)
def variance(
    ckpt_path: Annotated[str, typer.Option("--ckpt_path", "--ckpt-path", help="last.ckpt of the tsp lab, or rl4co's.")],
    problem: Annotated[str, typer.Option("--problem", help="What is solved.")] = "tsp",
    num_loc: Annotated[int, typer.Option("--num_loc", "--num-loc", help="Cities of an instance.")] = 20,
    algorithm: Annotated[
        str,
        typer.Option(
            "--algorithm", help="Whose gradient: pomo, leader_reward, maxk_pomo, rloo, grpo, dr_grpo, reinforce, ..."
        ),
    ] = "pomo",
    num_instances: Annotated[
        int, typer.Option("--num_instances", "--num-instances", help="Instances the gradient averages.")
    ] = 128,
    batch_size: Annotated[int, typer.Option("--batch_size", "--batch-size", help="Instances of one forward.")] = 64,
    num_replicates: Annotated[
        int, typer.Option("--num_replicates", "--num-replicates", help="How often it is taken.")
    ] = 8,
    seed: Annotated[int, typer.Option("--seed", help="Replicate r seeds everything with seed + r.")] = 1234,
    device: Annotated[str, typer.Option("--device", help="Where the tensors live.")] = "cpu",
    save_path: Annotated[
        str, typer.Option("--save_path", "--save-path", help="Write the record: .json, .jsonl (appends) or .pkl.")
    ] = "",
    k: Annotated[int, typer.Option("--k", help="max@K: of how many rollouts the best counts.")] = 8,
    baseline: Annotated[
        str,
        typer.Option("--baseline", help="max@K: none, sample_loo, sample_loo_scaled, subloo, hybrid or hybrid_source."),
    ] = "none",
    lam: Annotated[float, typer.Option("--lam", help="hybrid: the share of subloo.")] = 0.5,
    alpha: Annotated[float, typer.Option("--alpha", help="leader_reward: the leader's bonus.")] = 1.0,
    zscore: Annotated[bool, typer.Option("--zscore", help="max@K: standardise the weights; biased.")] = False,
    min_gap: Annotated[bool, typer.Option("--min_gap", "--min-gap", help="max@K: floor the gaps; biased.")] = False,
    num_starts: Annotated[
        int | None, typer.Option("--num_starts", "--num-starts", help="Rollouts of an instance.")
    ] = None,
    reduction: Annotated[str, typer.Option(help="Over rollouts, for all alike: mean, sum, or source.")] = "mean",
    compare: Annotated[
        list[str] | None, typer.Option(metavar="A B ...", help="Several estimators or max@K baselines, side by side.")
    ] = None,
    curve: Annotated[str, typer.Option(metavar="rollouts|k", help="Sweep rollouts or K over --values.")] = "",
    values: Annotated[list[str] | None, typer.Option(metavar="N ...", help="What --curve goes through.")] = None,
    engine: Annotated[str, typer.Option(metavar="serial|processes|ray", help="Where replicates run.")] = "serial",
    workers: Annotated[int, typer.Option(help="Processes, or CPUs of a local Ray.")] = 1,
    threads: Annotated[int, typer.Option(help="Threads of each replicate; more than one rounds differently.")] = 1,
    extended: Annotated[bool, typer.Option("--extended/--no-extended", help="Traces, SNR, intervals.")] = True,
    controls: Annotated[bool, typer.Option("--controls/--no-controls", help="Shuffled rewards, random policy.")] = True,
    library: Annotated[str, typer.Option(metavar="auto|gradiometer|rl4co", help="Who wrote the checkpoint.")] = "auto",
    any_algorithm: Annotated[
        bool, typer.Option("--any-algorithm", help="Also where the checkpoint was trained with another.")
    ] = False,
    run: Annotated[str, typer.Option(help="Folder of the run; runs/variance-TIME unless told, none for none.")] = "",
    json: Json = False,
) -> None:
    """How much a policy gradient varies over fresh samples; which estimator varies less, and is that significant?"""
    given = dict(locals())
    from gradiometer.cli import variance as verb
    from gradiometer.cli.lists import whole_numbers, words

    verb.variance(
        verb.Request(**{name: given[name] for name in verb.Request.__dataclass_fields__}),
        compare=words(compare or []),
        curve=curve,
        values=whole_numbers(values or [], option="--values"),
        save_path=save_path,
        run=run,
        as_json=json,
    )


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
