"""The verbs that measure and diagnose."""

from __future__ import annotations

from typing import Annotated

import typer

from gradiometer.cli import completing
from gradiometer.cli.frame import DIAGNOSE, MEASURE, Json, app
from gradiometer.cli.lists import WordLists
from gradiometer.cli.requests import Request, command_of

__all__: list[str] = []


@app.command(rich_help_panel=MEASURE, context_settings={"allow_interspersed_args": False})
def run(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A training script; options of ours come before it.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="Its own arguments.")] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as for `python -m`.")] = False,
    folder: Annotated[
        str, typer.Option("--run", "-o", metavar="DIR", help="Where the run goes; else runs/SCRIPT-TIME.")
    ] = "",
    every: Annotated[int, typer.Option(min=1, help="Measure every N-th optimizer step.")] = 1,
    budget: Annotated[str, typer.Option(metavar="SHARE|none", help="The share of wall time it may take.")] = "0.01",
    tier: Annotated[str, typer.Option(metavar="light|standard|deep", help="How much is measured.")] = "standard",
    doctor: Annotated[bool, typer.Option("--doctor/--no-doctor", help="Say findings on stderr as they come.")] = True,
    stdout: Annotated[
        bool, typer.Option("--stdout/--no-stdout", help="Pick up numbers that the script prints.")
    ] = True,
) -> None:
    """Any training script, unchanged: its gradients are measured, its scalars kept, its output and exit code its own."""
    from gradiometer.cli import run as verb

    code = verb.run(
        script,
        arguments or [],
        is_module=module,
        folder=folder,
        every=every,
        budget=budget,
        tier=tier,
        doctor=doctor,
        stdout=stdout,
    )
    if code:
        raise typer.Exit(code)


@app.command(rich_help_panel=MEASURE)
def analyze(
    target: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT_OR_LAB",
            help="A folder global_step_<N>, or a lab such as sokoban.",
            autocompletion=completing.labs,
        ),
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


@app.command(rich_help_panel=DIAGNOSE)
def doctor(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_OR_LOG...",
            help="Run folders, or logs of SB3, TRL, verl, CleanRL, W&B, CSV, JSONL.",
            autocompletion=completing.runs,
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
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run folder, its run.db, a dynamics.db, or a log.", autocompletion=completing.runs
        ),
    ],
    since: Annotated[int | None, typer.Option(metavar="STEP", help="Only what was measured from this step on.")] = None,
    json: Json = False,
) -> None:
    """Do the experts learn different things? Three questions answered, with intervals, and what to try next."""
    from gradiometer.cli import experts as verb

    verb.experts(run, since=since, as_json=json)
