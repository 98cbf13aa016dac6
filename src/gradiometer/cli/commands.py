"""The verbs of the command line: their arguments, options and help, in the order of --help.

Light to import: what each verb does is in the file of its name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from typer import Argument, Option

from gradiometer.cli import completing
from gradiometer.cli.app import DIAGNOSE, LOOK, MEASURE, Json, command
from gradiometer.cli.lists import ScriptLast, StepLists, WordLists

__all__ = [
    "AnalyzeRequest",
    "AuditRequest",
    "CheckRequest",
    "CompareRequest",
    "DemoRequest",
    "DoctorRequest",
    "EnvRequest",
    "ExpertsRequest",
    "ExportRequest",
    "FigureRequest",
    "ImportRequest",
    "McpRequest",
    "MetricsRequest",
    "PlotRequest",
    "PruneRequest",
    "ReplayRequest",
    "RunRequest",
    "ServeRequest",
    "ShowRequest",
    "VarianceRequest",
    "WiringRequest",
]

Script = Annotated[
    str, Argument(metavar="SCRIPT", help="The training script. Put our options before it.")
]
ScriptArguments = Annotated[
    list[str], Argument(metavar="[ARGS]...", help="Arguments of the script.")
]


def log_path(metavar: str, help: str, **more: Any) -> Any:
    """An argument behind which the shell offers runs and logs."""
    return Argument(metavar=metavar, help=help, autocompletion=completing.runs, **more)


def flag(name: str, help: str, metavar: str | None = None) -> Any:
    """An option spelled with underscores, as users of `variance` know it; hyphens work too."""
    return Option(f"--{name}", help=help, metavar=metavar)


# Measure


Since = Annotated[
    int | None, Option(metavar="STEP", help="Use only steps from STEP on; -500: the last 500.")
]
Names = Annotated[
    list[str],
    Option(
        "--name",
        metavar="MEANING=COLUMN",
        help="Assign a column, such as reward=mean_r; repeat for more.",
    ),
]


@command(MEASURE)
@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRequest:
    """Break a small training with one changed line, find the cause and fix it. Takes about a
    minute."""

    serve: Annotated[
        bool,
        Option("--serve/--no-serve", help="On a terminal, open the runs in a browser at the end."),
    ] = True
    updates: Annotated[int, Option(min=5, help="PPO updates per training.")] = 40
    out: Annotated[str, Option(metavar="DIR", help="Folder for scripts and runs.")] = "runs/demo"


@command(MEASURE, allow_interspersed_args=False)
@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """Run an unchanged training script and measure its gradients. Its output and exit code stay the
    same."""

    script: Script
    arguments: ScriptArguments = field(default_factory=list)
    module: Annotated[bool, Option("-m", help="SCRIPT is a module, as for `python -m`.")] = False
    folder: Annotated[
        str,
        Option("--run", "-o", metavar="DIR", help="Folder of the run; default runs/SCRIPT-TIME."),
    ] = ""
    every: Annotated[int, Option(min=1, help="Measure every N-th optimizer step.")] = 1
    budget: Annotated[
        str,
        Option(metavar="SHARE|none", help="Limit on the share of wall time, after 100 steps."),
    ] = "0.01"
    tier: Annotated[str, Option(metavar="light|standard|deep", help="How much to measure.")] = (
        "standard"
    )
    doctor: Annotated[
        bool, Option("--doctor/--no-doctor", help="Print findings to stderr as they appear.")
    ] = True
    stdout: Annotated[
        bool, Option("--stdout/--no-stdout", help="Record numbers that the script prints.")
    ] = True
    system: Annotated[bool, Option(help="Record processor and memory too.")] = False


@command(MEASURE)
@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzeRequest:
    """Analyse one batch of a checkpoint or lab: the gradient of each loss term by reward variance,
    and how much of it is signal."""

    target: Annotated[
        str,
        Argument(
            metavar="CHECKPOINT_OR_LAB",
            help="A folder global_step_<N>, or a lab such as sokoban.",
            autocompletion=completing.labs,
        ),
    ]
    overrides: Annotated[
        list[str], Argument(metavar="[KEY=VALUE]...", help="Settings to change.")
    ] = field(default_factory=list)
    config_name: Annotated[
        str | None,
        Option("--config-name", help="A named configuration of the lab, such as _2_sokoban."),
    ] = None
    json: Json = False


@command(MEASURE, cls=WordLists)
@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceRequest:
    """Measure the variance of a policy gradient over fresh samples, and test which estimator has
    the lower variance."""

    ckpt_path: Annotated[
        str,
        flag(
            "ckpt_path",
            "The policy: last.ckpt of the tsp lab, an rl4co checkpoint, or `random` for an"
            " untrained rl4co model.",
        ),
    ]
    problem: Annotated[
        str, flag("problem", "The problem: tsp; with rl4co also cvrp, op, pctsp, ...")
    ] = "tsp"
    num_loc: Annotated[int, flag("num_loc", "Cities per instance.")] = 20
    algorithm: Annotated[
        str, flag("algorithm", "The algorithm: pomo, leader_reward, maxk_pomo, rloo, grpo, ...")
    ] = "pomo"
    num_instances: Annotated[int, flag("num_instances", "Instances per gradient.")] = 128
    batch_size: Annotated[int, flag("batch_size", "Instances per forward pass.")] = 64
    num_replicates: Annotated[int, flag("num_replicates", "Number of gradient estimates.")] = 8
    seed: Annotated[
        int, flag("seed", "Seed of instances and samples; replicate r uses seed + r.")
    ] = 1234
    device: Annotated[str, flag("device", "Device of the tensors.")] = "cpu"
    save_path: Annotated[
        str, flag("save_path", "Also write the results: .json, .jsonl (appends) or .pkl.")
    ] = ""
    k: Annotated[
        int | None,
        flag("k", "max@K: the number K of rollouts; default from the checkpoint, or 8."),
    ] = None
    baseline: Annotated[
        str | None,
        flag(
            "baseline",
            "max@K: none, sample_loo(_scaled), subloo, hybrid(_source); default from the"
            " checkpoint, or none.",
        ),
    ] = None
    lam: Annotated[float, flag("lam", "hybrid: the share of subloo.")] = 0.5
    alpha: Annotated[float, flag("alpha", "leader_reward: the leader's bonus.")] = 1.0
    zscore: Annotated[bool, Option("--zscore", help="max@K: standardise the weights; biased.")] = (
        False
    )
    min_gap: Annotated[bool, Option("--min_gap", help="max@K: floor the gaps; biased.")] = False
    num_starts: Annotated[
        int | None, flag("num_starts", "Rollouts per instance; default from the policy.")
    ] = None
    reduction: Annotated[
        str, flag("reduction", "Reduction over rollouts for all estimators: mean, sum or source.")
    ] = "mean"
    compare: Annotated[
        list[str],
        flag("compare", "Estimators, or baselines of max@K, to compare.", metavar="A B ..."),
    ] = field(default_factory=list)
    curve: Annotated[
        str, flag("curve", "Sweep rollouts, or K, over --values.", metavar="rollouts|k")
    ] = ""
    values: Annotated[list[str], flag("values", "Values for --curve.", metavar="N ...")] = field(
        default_factory=list
    )
    engine: Annotated[
        str, flag("engine", "How to run the replicates.", metavar="serial|processes|ray")
    ] = "serial"
    workers: Annotated[int, flag("workers", "Number of processes, or CPUs of a local Ray.")] = 1
    threads: Annotated[
        int, flag("threads", "Threads per replicate; the number affects rounding.")
    ] = 1
    extended: Annotated[
        bool, Option("--extended/--no-extended", help="Add traces, SNR and intervals.")
    ] = True
    controls: Annotated[
        bool, Option("--controls/--no-controls", help="Add shuffled rewards and a random policy.")
    ] = True
    library: Annotated[
        str, flag("library", "Format of the checkpoint.", metavar="auto|gradiometer|rl4co")
    ] = "auto"
    trust_checkpoint: Annotated[
        bool,
        Option(
            "--trust-checkpoint",
            help="Open an rl4co checkpoint, which can execute arbitrary code.",
        ),
    ] = False
    any_algorithm: Annotated[
        bool,
        Option(
            "--any-algorithm", help="Allow a checkpoint that was trained with another algorithm."
        ),
    ] = False
    run: Annotated[
        str, flag("run", "Folder of the run; default runs/variance-TIME; none: no run.")
    ] = ""
    json: Annotated[bool, Option("--json", help="Print the result as one JSON object.")] = False


# Diagnose


@command(DIAGNOSE)
@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorRequest:
    """Find out why a policy does not learn: the cause, the evidence, the fix and a way to confirm
    it."""

    paths: Annotated[
        list[str],
        log_path(
            "RUN_OR_LOG...", "Run folders, or logs: SB3, TRL, verl, CleanRL, W&B, CSV, JSONL."
        ),
    ] = field(default_factory=list)
    since: Since = None
    name: Names = field(default_factory=list)
    format: Annotated[str, Option(metavar="text|markdown|html", help="Format of the report.")] = (
        "text"
    )
    output: Annotated[
        str, Option("--output", "-o", metavar="FILE", help="Write the report to a file.")
    ] = ""
    fail_on: Annotated[
        str,
        Option(
            metavar="warn|critical|state:STATE",
            help="Exit with code 1 at this severity or state; separate several with commas.",
        ),
    ] = "none"
    verbose: Annotated[
        bool, Option("--verbose", "-v", help="Show every finding in full and all skipped checks.")
    ] = False
    confirm: Annotated[
        bool,
        Option(
            "--confirm",
            help="Run experiments that test the first findings; needs a lab run or --probe.",
        ),
    ] = False
    probe: Annotated[
        str,
        Option(
            metavar="MODULE:FUNCTION",
            help="Your experiment for --confirm: takes a gm.Experiment, returns numbers.",
        ),
    ] = ""
    schema: Annotated[bool, Option("--schema", help="Print only the JSON schema of --json.")] = (
        False
    )
    json: Json = False


@command(DIAGNOSE, allow_interspersed_args=False, ignore_unknown_options=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """Run a script up to its first optimizer step and check how loss and optimizer are wired;
    gm.audit(...) checks more."""

    script: Script
    arguments: ScriptArguments = field(default_factory=list)
    steps: Annotated[int, Option(min=1, help="Stop after this many steps of every optimizer.")] = 1
    fail_on: Annotated[
        str,
        Option(metavar="warn|critical", help="Exit with code 1 if a check of this severity fails."),
    ] = "none"
    json: Json = False


@command(DIAGNOSE)
@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsRequest:
    """Test whether the experts learn different things: three questions, answers with intervals, and
    what to try next."""

    run: Annotated[str, log_path("RUN", "A run folder, its run.db, a dynamics.db, or a log.")]
    since: Since = None
    json: Json = False


@command(DIAGNOSE, cls=ScriptLast)
@dataclass(frozen=True, slots=True, kw_only=True)
class WiringRequest:
    """Show how the loss is built: its terms and coefficients, the blocks each term trains, and
    parts without a gradient. Takes a run, or a script to run for a few steps."""

    run: Annotated[
        str,
        log_path(
            "RUN|SCRIPT", "A run folder, its run.db, or a script (put our options before it)."
        ),
    ]
    arguments: ScriptArguments = field(default_factory=list)
    module: Annotated[bool, Option("-m", help="SCRIPT is a module, as for `python -m`.")] = False
    step: Annotated[
        int | None,
        Option(metavar="STEP", help="For a run: the step to show; default the newest."),
    ] = None
    steps: Annotated[
        int | None,
        Option(min=1, help="For a script: stop after this many measured steps; default 5."),
    ] = None
    out: Annotated[
        str, Option("--out", "-o", metavar="DIR", help="For a script: keep the run in DIR.")
    ] = ""
    svg: Annotated[
        str, Option(metavar="FILE", help="Write the diagram of the Wiring tab to a file.")
    ] = ""
    theme: Annotated[str, Option(metavar="light|dark", help="Theme of the SVG file.")] = "light"
    json: Json = False


@command(DIAGNOSE)
@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """Check how the advantages were computed: which formula explains the updates, the correct one
    or a common mistake."""

    run: Annotated[str, log_path("RUN", "A run folder, or its run.db.")]
    json: Json = False


# Look


@command(LOOK)
@dataclass(frozen=True, slots=True, kw_only=True)
class ShowRequest:
    """Print the last, mean, min and max value of every series of a run, by block."""

    run: Annotated[
        str,
        log_path(
            "RUN_OR_LOG",
            "A run folder, or a log: CSV, TensorBoard, trainer_state.json, W&B, JSONL.",
        ),
    ]
    layers: Annotated[
        bool, Option("--layers", help="Show every layer, not only the named blocks.")
    ] = False
    match: Annotated[str, Option(help="Show only series that match this regular expression.")] = ""
    json: Json = False


@command(LOOK)
@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsRequest:
    """Explain the metrics: meaning, healthy range, and what to do outside it."""

    name: Annotated[
        str,
        Argument(
            metavar="[NAME]",
            help="A metric, a series of a run, or the name another library uses.",
            autocompletion=completing.metrics,
        ),
    ] = ""
    json: Json = False


@command(LOOK)
@dataclass(frozen=True, slots=True, kw_only=True)
class McpRequest:
    """Let a coding assistant read the runs in a folder (a Model Context Protocol server on standard
    input and output)."""

    path: Annotated[
        str, Argument(metavar="[DIR]", help="Folder of runs and logs; default runs/, or this one.")
    ] = ""


@command(LOOK)
@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRequest:
    """Show runs live in a browser: verdict, gradients, terms, estimators, experts, comparisons and
    findings."""

    path: Annotated[
        str,
        log_path(
            "[DIR|RUN]",
            "A folder of runs, a run, or a log; default ./runs, or this folder.",
            show_default=False,
        ),
    ] = ""
    port: Annotated[
        int | None,
        Option(
            "--port", "-p", min=0, max=65535, help="Port; default the first free one from 8765 on."
        ),
    ] = None
    open_browser: Annotated[bool, Option("--open", help="Open the page in the browser.")] = False
    host: Annotated[
        str,
        Option(
            metavar="HOST",
            help="The address to listen on; any address but localhost needs --token.",
        ),
    ] = "127.0.0.1"
    token: Annotated[
        str,
        Option(
            metavar="TOKEN",
            envvar="GRADIOMETER_TOKEN",
            help="Require this token to view.",
            show_default=False,
        ),
    ] = ""
    write: Annotated[
        bool,
        Option("--write", help="Allow the page to name, tag, archive and delete runs (to a bin)."),
    ] = False


@command(LOOK)
@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """Compare several runs: final values, means over seeds, and the settings that differ."""

    runs: Annotated[
        list[str], log_path("RUN...", "Run folders, folders of runs, or logs; two or more.")
    ]
    match: Annotated[
        str,
        Option(metavar="REGEX", help="Compare all series that match this regular expression."),
    ] = ""
    metric: Annotated[
        list[str], Option(metavar="NAME", help="A series; repeat, or separate with commas.")
    ] = field(default_factory=list)
    group: Annotated[
        str,
        Option(
            metavar="none|seed|name|KEY",
            help="Show mean ± std over runs that share this; default seed where useful.",
        ),
    ] = ""
    json: Json = False


@command(LOOK, cls=StepLists)
@dataclass(frozen=True, slots=True, kw_only=True)
class PlotRequest:
    """Draw figures and write their numbers: gradient analyses, replicates and experts of a run, or
    the experts of several runs."""

    run: Annotated[
        list[str],
        log_path(
            "[RUN]...",
            "A run folder, or a log (dynamics.db, JSONL, W&B, CSV, TensorBoard, ...);"
            " several are compared.",
        ),
    ] = field(default_factory=list)
    wandb_path: Annotated[
        str,
        Option(
            metavar="PATH", help="A W&B run: ENTITY/PROJECT/RUN_ID, or an offline file or folder."
        ),
    ] = ""
    step: Annotated[
        list[str],
        Option(metavar="N...", help="Only these steps, e.g. --step 1 11 21; default all."),
    ] = field(default_factory=list)
    list_steps: Annotated[
        bool, Option("--list-steps", help="Only list the steps that can be drawn.")
    ] = False
    output_dir: Annotated[
        str,
        Option(
            metavar="DIR",
            help="Folder for the files; default NAME_ID in gradient_analysis_outputs"
            " (replicates: variance_outputs, experts: expert_outputs).",
        ),
    ] = ""
    format: Annotated[str, Option(metavar="png|pdf|svg", help="Format of the figures.")] = "png"
    json: Json = False


@command(LOOK, allow_extra_args=True, ignore_unknown_options=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRequest:
    """Compare analysis steps in one figure: --step0-dir DIR --step20-dir DIR ..., with folders
    written by `plot`."""

    context: typer.Context
    """Its `args` are the folders: typer has no options whose names hold a number."""
    out: Annotated[str, Option(metavar="FILE", help="The figure: .png, .pdf or .svg.")] = ""
    mode: Annotated[str, Option(metavar="ppo|grpo", help="The algorithm, for the title.")] = ""
    json: Json = False


@command(LOOK)
@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """Export a run to the format of another tool; dynamics-db contains only its experts."""

    run: Annotated[str, log_path("RUN", "A run folder, or a log with the same series.")]
    to: Annotated[
        str,
        Option(metavar="FORMAT", help="tensorboard, wandb, csv, parquet, jsonl, dynamics-db."),
    ]
    output: Annotated[
        str, Option("--output", "-o", metavar="PATH", help="The file or folder to write.")
    ]
    overwrite: Annotated[bool, Option("--overwrite", help="Replace an earlier export.")] = False
    json: Json = False


@command(LOOK)
@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """Convert another tool's log to a run, and list the names that the catalogue does not know."""

    log: Annotated[
        str,
        log_path(
            "LOG",
            "SB3's progress.csv or any CSV, TensorBoard event files, a trainer_state.json, a .jsonl"
            " log, an offline W&B file, a dynamics.db; or a folder with one of them.",
        ),
    ]
    output: Annotated[
        str, Option("--output", "-o", metavar="DIR", help="The folder of the new run.")
    ]
    name: Names = field(default_factory=list)
    json: Json = False


@command(LOOK)
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """Verify the structure and checksums of a run; exits with code 1 if it is damaged."""

    run: Annotated[str, log_path("RUN", "A run folder, or the run.db in it.")]
    json: Json = False


@command(LOOK)
@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRequest:
    """Delete old sketches and histograms from a run; curves and findings stay."""

    run: Annotated[str, log_path("RUN", "A run folder, or the run.db in it.")]
    keep: Annotated[int, Option(min=0, help="Steps to keep of each sketch and histogram.")] = 100
    json: Json = False


@command(LOOK)
@dataclass(frozen=True, slots=True, kw_only=True)
class EnvRequest:
    """Show versions, installed extras, and the pip command for missing extras."""

    json: Json = False
