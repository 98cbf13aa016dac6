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
    str, Argument(metavar="SCRIPT", help="A training script; options of ours come before it.")
]
ScriptArguments = Annotated[list[str], Argument(metavar="[ARGS]...", help="Its own arguments.")]


def log_path(metavar: str, help: str, **more: Any) -> Any:
    """An argument behind which the shell offers runs and logs."""
    return Argument(metavar=metavar, help=help, autocompletion=completing.runs, **more)


def flag(name: str, help: str, metavar: str | None = None) -> Any:
    """An option spelled with underscores, as users of `variance` know it; hyphens work too."""
    return Option(f"--{name}", help=help, metavar=metavar)


# Measure


Since = Annotated[
    int | None, Option(metavar="STEP", help="Only from this step on; -500: the last 500.")
]
Names = Annotated[
    list[str],
    Option(
        "--name",
        metavar="MEANING=COLUMN",
        help="What a column is, such as reward=mean_r; again for more.",
    ),
]


@command(MEASURE)
@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRequest:
    """A training that stops learning after one changed line: see it found and repaired. Half a
    minute."""

    serve: Annotated[
        bool,
        Option("--serve/--no-serve", help="On a terminal, end by showing the runs in a browser."),
    ] = True
    updates: Annotated[int, Option(min=5, help="PPO updates of each training.")] = 20
    out: Annotated[str, Option(metavar="DIR", help="Where scripts and runs go.")] = "runs/demo"


@command(MEASURE, allow_interspersed_args=False)
@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """Any training script, unchanged: its gradients are measured, its scalars kept, its output and
    exit code its own."""

    script: Script
    arguments: ScriptArguments = field(default_factory=list)
    module: Annotated[bool, Option("-m", help="SCRIPT is a module, as for `python -m`.")] = False
    folder: Annotated[
        str,
        Option("--run", "-o", metavar="DIR", help="Where the run goes; else runs/SCRIPT-TIME."),
    ] = ""
    every: Annotated[int, Option(min=1, help="Measure every N-th optimizer step.")] = 1
    budget: Annotated[
        str,
        Option(metavar="SHARE|none", help="The share of wall time it may take, after 100 steps."),
    ] = "0.01"
    tier: Annotated[str, Option(metavar="light|standard|deep", help="How much is measured.")] = (
        "standard"
    )
    doctor: Annotated[
        bool, Option("--doctor/--no-doctor", help="Say findings on stderr as they come.")
    ] = True
    stdout: Annotated[
        bool, Option("--stdout/--no-stdout", help="Pick up numbers that the script prints.")
    ] = True


@command(MEASURE)
@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzeRequest:
    """Probe once and exit: what each loss term does, on which groups, and how much of it is
    signal."""

    target: Annotated[
        str,
        Argument(
            metavar="CHECKPOINT_OR_LAB",
            help="A folder global_step_<N>, or a lab such as sokoban.",
            autocompletion=completing.labs,
        ),
    ]
    overrides: Annotated[list[str], Argument(metavar="[KEY=VALUE]...", help="What to change.")] = (
        field(default_factory=list)
    )
    config_name: Annotated[
        str | None,
        Option("--config-name", help="A configuration of the lab by name, such as _2_sokoban."),
    ] = None
    json: Json = False


@command(MEASURE, cls=WordLists)
@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceRequest:
    """How much a policy gradient varies over fresh samples; which estimator varies less, and is
    that significant?"""

    ckpt_path: Annotated[
        str,
        flag(
            "ckpt_path",
            "The policy: last.ckpt of the tsp lab, a checkpoint of rl4co, or `random` for rl4co's"
            " own model untrained.",
        ),
    ]
    problem: Annotated[
        str, flag("problem", "What is solved: tsp; of rl4co also cvrp, op, pctsp, ...")
    ] = "tsp"
    num_loc: Annotated[int, flag("num_loc", "Cities of an instance.")] = 20
    algorithm: Annotated[
        str, flag("algorithm", "Whose gradient: pomo, leader_reward, maxk_pomo, rloo, grpo, ...")
    ] = "pomo"
    num_instances: Annotated[
        int, flag("num_instances", "Instances that the gradient averages.")
    ] = 128
    batch_size: Annotated[int, flag("batch_size", "Instances of one forward.")] = 64
    num_replicates: Annotated[int, flag("num_replicates", "How often the gradient is taken.")] = 8
    seed: Annotated[
        int, flag("seed", "Of instances and samples; the source's replicate r takes seed + r.")
    ] = 1234
    device: Annotated[str, flag("device", "Where the tensors live.")] = "cpu"
    save_path: Annotated[
        str, flag("save_path", "Also write the record: .json, .jsonl (appends) or .pkl.")
    ] = ""
    k: Annotated[
        int | None,
        flag("k", "max@K: of how many rollouts the best counts; the checkpoint's, or 8."),
    ] = None
    baseline: Annotated[
        str | None,
        flag(
            "baseline",
            "max@K: none, sample_loo(_scaled), subloo, hybrid(_source); the checkpoint's, or none.",
        ),
    ] = None
    lam: Annotated[float, flag("lam", "hybrid: the share of subloo.")] = 0.5
    alpha: Annotated[float, flag("alpha", "leader_reward: the leader's bonus.")] = 1.0
    zscore: Annotated[bool, Option("--zscore", help="max@K: standardise the weights; biased.")] = (
        False
    )
    min_gap: Annotated[bool, Option("--min_gap", help="max@K: floor the gaps; biased.")] = False
    num_starts: Annotated[
        int | None, flag("num_starts", "Rollouts of an instance; the policy's own number else.")
    ] = None
    reduction: Annotated[
        str, flag("reduction", "Over rollouts, for all estimators alike: mean or sum; or source.")
    ] = "mean"
    compare: Annotated[
        list[str],
        flag("compare", "Estimators, or baselines of max@K, side by side.", metavar="A B ..."),
    ] = field(default_factory=list)
    curve: Annotated[
        str, flag("curve", "Sweep the rollouts, or K, over --values.", metavar="rollouts|k")
    ] = ""
    values: Annotated[list[str], flag("values", "What --curve goes through.", metavar="N ...")] = (
        field(default_factory=list)
    )
    engine: Annotated[
        str, flag("engine", "Where replicates run.", metavar="serial|processes|ray")
    ] = "serial"
    workers: Annotated[int, flag("workers", "Processes, or CPUs of a local Ray.")] = 1
    threads: Annotated[
        int, flag("threads", "Threads of each replicate; another number rounds differently.")
    ] = 1
    extended: Annotated[
        bool, Option("--extended/--no-extended", help="Traces, SNR and intervals.")
    ] = True
    controls: Annotated[
        bool, Option("--controls/--no-controls", help="Shuffled rewards and a random policy.")
    ] = True
    library: Annotated[
        str, flag("library", "Who wrote the checkpoint.", metavar="auto|gradiometer|rl4co")
    ] = "auto"
    trust_checkpoint: Annotated[
        bool,
        Option(
            "--trust-checkpoint",
            help="Open a checkpoint of rl4co, which runs whatever is in it.",
        ),
    ] = False
    any_algorithm: Annotated[
        bool,
        Option(
            "--any-algorithm", help="Also where the checkpoint was trained with another algorithm."
        ),
    ] = False
    run: Annotated[
        str, flag("run", "Folder of the run; runs/variance-TIME unless told, none for none.")
    ] = ""
    json: Annotated[bool, Option("--json", help="Print one JSON object and nothing else.")] = False


# Diagnose


@command(DIAGNOSE)
@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorRequest:
    """Why does this policy not learn? The cause first, its evidence, what to change and how to make
    sure."""

    paths: Annotated[
        list[str],
        log_path(
            "RUN_OR_LOG...", "Run folders, or logs of SB3, TRL, verl, CleanRL, W&B, CSV, JSONL."
        ),
    ] = field(default_factory=list)
    since: Since = None
    name: Names = field(default_factory=list)
    format: Annotated[str, Option(metavar="text|markdown|html", help="How to say it.")] = "text"
    output: Annotated[str, Option("--output", "-o", metavar="FILE", help="Write it to a file.")] = (
        ""
    )
    fail_on: Annotated[
        str,
        Option(
            metavar="warn|critical|state:STATE",
            help="Exit with 1 at a finding this bad, or at a state; several with commas.",
        ),
    ] = "none"
    verbose: Annotated[
        bool, Option("--verbose", "-v", help="Every finding whole, and every rule left out.")
    ] = False
    confirm: Annotated[
        bool,
        Option(
            "--confirm",
            help="Run the experiments that would prove the first findings: a lab, or --probe.",
        ),
    ] = False
    probe: Annotated[
        str,
        Option(
            metavar="MODULE:FUNCTION",
            help="Your own experiment: takes a gm.Experiment, returns numbers.",
        ),
    ] = ""
    schema: Annotated[
        bool, Option("--schema", help="Print the JSON schema of --json, and nothing else.")
    ] = False
    json: Json = False


@command(DIAGNOSE, allow_interspersed_args=False, ignore_unknown_options=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """Run a training to its first optimizer step, stop it, and say what is wired wrong;
    gm.audit(...) checks more."""

    script: Script
    arguments: ScriptArguments = field(default_factory=list)
    steps: Annotated[
        int, Option(min=1, help="Stop when every optimizer has stepped this often.")
    ] = 1
    fail_on: Annotated[
        str,
        Option(metavar="warn|critical", help="Exit with 1 if a check at or above this fails."),
    ] = "none"
    json: Json = False


@command(DIAGNOSE)
@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsRequest:
    """Do the experts learn different things? Three questions answered, with intervals, and what to
    try next."""

    run: Annotated[str, log_path("RUN", "A run folder, its run.db, a dynamics.db, or a log.")]
    since: Since = None
    json: Json = False


@command(DIAGNOSE, cls=ScriptLast)
@dataclass(frozen=True, slots=True, kw_only=True)
class WiringRequest:
    """What the loss is made of, as its graph says: terms, coefficients, the blocks each trains, and
    parts without a gradient; of a run, or of a script that is run for a few steps."""

    run: Annotated[
        str,
        log_path(
            "RUN|SCRIPT", "A run folder, its run.db, or a training script (options before it)."
        ),
    ]
    arguments: ScriptArguments = field(default_factory=list)
    module: Annotated[bool, Option("-m", help="SCRIPT is a module, as for `python -m`.")] = False
    step: Annotated[
        int | None,
        Option(metavar="STEP", help="Of a run: as it was at this step; else the newest."),
    ] = None
    steps: Annotated[
        int | None,
        Option(min=1, help="Of a script: stop it after this many measured steps; else 5."),
    ] = None
    out: Annotated[
        str, Option("--out", "-o", metavar="DIR", help="Of a script: keep the run there.")
    ] = ""
    svg: Annotated[
        str, Option(metavar="FILE", help="Write the diagram of the page's Wiring tab to a file.")
    ] = ""
    theme: Annotated[str, Option(metavar="light|dark", help="Of that file.")] = "light"
    json: Json = False


@command(DIAGNOSE)
@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """Are the advantages computed right? Which recipe explains what the update did, of the right
    ones and of those people write by mistake."""

    run: Annotated[str, log_path("RUN", "A run folder, or its run.db.")]
    json: Json = False


# Look


@command(LOOK)
@dataclass(frozen=True, slots=True, kw_only=True)
class ShowRequest:
    """What a run measured: last, mean, min and max of every series, block by block."""

    run: Annotated[
        str,
        log_path(
            "RUN_OR_LOG",
            "A run folder, or a log: CSV, TensorBoard, trainer_state.json, W&B, JSONL.",
        ),
    ]
    layers: Annotated[
        bool, Option("--layers", help="Also every layer, not only the named blocks.")
    ] = False
    match: Annotated[
        str, Option(help="Only series whose name matches this regular expression.")
    ] = ""
    json: Json = False


@command(LOOK)
@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsRequest:
    """The catalogue: what each metric means, when it is healthy, and what to do when it is not."""

    name: Annotated[
        str,
        Argument(
            metavar="[NAME]",
            help="A metric, a series of a run, or another library's name.",
            autocompletion=completing.metrics,
        ),
    ] = ""
    json: Json = False


@command(LOOK)
@dataclass(frozen=True, slots=True, kw_only=True)
class McpRequest:
    """Let a coding assistant read the runs of a folder: a server of the Model Context Protocol on
    standard input and output."""

    path: Annotated[
        str, Argument(metavar="[DIR]", help="Runs and logs below it; else runs/, or here.")
    ] = ""


@command(LOOK)
@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRequest:
    """Runs in a browser, live: verdict, gradients, terms, estimators, experts, comparisons and
    findings."""

    path: Annotated[
        str,
        log_path(
            "[DIR|RUN]",
            "A folder of runs, a run, or a log; unless told ./runs, or this folder.",
            show_default=False,
        ),
    ] = ""
    port: Annotated[
        int | None,
        Option(
            "--port", "-p", min=0, max=65535, help="Where to listen; the first free from 8765 on."
        ),
    ] = None
    open_browser: Annotated[bool, Option("--open", help="Open it in the browser.")] = False
    host: Annotated[
        str,
        Option(
            metavar="HOST",
            help="The address to listen on; any but this machine's own needs --token.",
        ),
    ] = "127.0.0.1"
    token: Annotated[
        str,
        Option(
            metavar="TOKEN",
            envvar="GRADIOMETER_TOKEN",
            help="Only who has it may look.",
            show_default=False,
        ),
    ] = ""
    write: Annotated[
        bool,
        Option("--write", help="Let the page name, tag, archive and delete runs (to a bin)."),
    ] = False


@command(LOOK)
@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """Several runs beside each other: where each ended up, means over seeds, and the settings that
    differ."""

    runs: Annotated[
        list[str], log_path("RUN...", "Run folders, folders of runs, or logs; two or more.")
    ]
    match: Annotated[
        str,
        Option(metavar="REGEX", help="Every series whose name this regular expression finds."),
    ] = ""
    metric: Annotated[
        list[str], Option(metavar="NAME", help="A series; again, or with commas, for more.")
    ] = field(default_factory=list)
    group: Annotated[
        str,
        Option(
            metavar="none|seed|name|KEY",
            help="Mean ± std over runs alike in this; seed where that helps.",
        ),
    ] = ""
    json: Json = False


@command(LOOK, cls=StepLists)
@dataclass(frozen=True, slots=True, kw_only=True)
class PlotRequest:
    """Figures and their numbers: gradient analyses, replicates and experts of a run; of several
    runs, their experts."""

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
        Option(metavar="N...", help="Only these steps, e.g. --step 1 11 21; all unless told."),
    ] = field(default_factory=list)
    list_steps: Annotated[bool, Option("--list-steps", help="Only say what there is to draw.")] = (
        False
    )
    output_dir: Annotated[
        str,
        Option(
            metavar="DIR",
            help="Where the files go; unless told, a folder NAME_ID in gradient_analysis_outputs"
            " (replicates: variance_outputs, experts: expert_outputs).",
        ),
    ] = ""
    format: Annotated[str, Option(metavar="png|pdf|svg", help="What the figures are.")] = "png"
    json: Json = False


@command(LOOK, allow_extra_args=True, ignore_unknown_options=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRequest:
    """Compare analysis steps side by side: --step0-dir DIR --step20-dir DIR ..., any steps, folders
    `plot` wrote."""

    context: typer.Context
    """Its `args` are the folders: typer has no options whose names hold a number."""
    out: Annotated[str, Option(metavar="FILE", help="The figure: .png, .pdf or .svg.")] = ""
    mode: Annotated[str, Option(metavar="ppo|grpo", help="The algorithm, for the title.")] = ""
    json: Json = False


@command(LOOK)
@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """A run in the files of other tools; dynamics-db holds its experts only."""

    run: Annotated[str, log_path("RUN", "A run folder, or a log with the same series.")]
    to: Annotated[
        str,
        Option(metavar="FORMAT", help="tensorboard, wandb, csv, parquet, jsonl, dynamics-db."),
    ]
    output: Annotated[
        str, Option("--output", "-o", metavar="PATH", help="The file, or the folder.")
    ]
    overwrite: Annotated[
        bool, Option("--overwrite", help="Replace what was exported there before.")
    ] = False
    json: Json = False


@command(LOOK)
@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """Make a run of another tool's log, and say which of its names the catalogue does not know."""

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
    """Is a run still what was written? Its structure and every checksum; exits with 1 if not."""

    run: Annotated[str, log_path("RUN", "A run folder, or the run.db in it.")]
    json: Json = False


@command(LOOK)
@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRequest:
    """Remove old sketches and histograms from a run; curves and findings stay."""

    run: Annotated[str, log_path("RUN", "A run folder, or the run.db in it.")]
    keep: Annotated[
        int, Option(min=0, help="How many steps of each sketch and histogram stay.")
    ] = 100
    json: Json = False


@command(LOOK)
@dataclass(frozen=True, slots=True, kw_only=True)
class EnvRequest:
    """Versions, which extras are here, and the pip line for those that are not."""

    json: Json = False
