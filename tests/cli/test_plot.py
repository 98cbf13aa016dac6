"""`gradiometer plot` and `gradiometer figure` as a user types them: every call that draws or lists
is a real process."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType

import pytest
from forkserver import Done, python

from gradiometer.cli.lists import spelled_out, whole_numbers
from gradiometer.cli.main import run as command
from gradiometer.errors import UsageError
from gradiometer.records import Row, Table
from gradiometer.store.writer import Writer

pytestmark = pytest.mark.slow

PLAIN = {
    **os.environ,
    "NO_COLOR": "1",
    "TERM": "dumb",
    "COLUMNS": "200",
    "TERMINAL_WIDTH": "200",
    "OMP_NUM_THREADS": "1",
}
FIGURES = ("summary", "plots", "loss_plots", "reward_std", "normed_grads")


def gradiometer(*arguments: str) -> Done:
    return python("-m", "gradiometer", *arguments, env=PLAIN)


SKETCHED = """
from matplotlib.figure import Figure
from gradiometer.cli.main import main

draw = Figure.savefig
Figure.savefig = lambda self, file, **how: draw(Figure(figsize=(1, 1)), file, **how)
main()
"""


def sketched(*arguments: str) -> Done:
    """As above, but a file holds an empty figure in the place of the one that was made, since drawing
    takes most of the time: for tests of words and of names of files."""
    return python("-c", SKETCHED, *arguments, env=PLAIN)


def fails(says: str, *arguments: str) -> None:
    """One line on stderr, nothing on stdout, exit code 2; here, since nothing is left behind."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        code = command(list(arguments))
    assert code == 2
    assert re.search(says, err.getvalue()), err.getvalue()
    assert err.getvalue().count("\n") == 1
    assert out.getvalue() == ""


def names(step: int, kind: str = "png") -> set[str]:
    figures = {f"gradient_analysis_{figure}_step_{step}.{kind}" for figure in FIGURES}
    return figures | {
        f"gradient_analysis_metrics_step_{step}.json",
        f"gradient_analysis_bucket_rv_table_step_{step}.csv",
    }


def beside_the_figures(name: str) -> ModuleType:
    file = Path(__file__).parents[1] / "plots" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SYNTHETIC = beside_the_figures("synthetic")
BANDITS = beside_the_figures("bandits")
EXPERTS = beside_the_figures("expertrun")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = SYNTHETIC.write_run(
        tmp_path_factory.mktemp("runs") / "ppo", (1, 11, 21), whole=(1, 21)
    )
    return folder


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    done = sketched("plot", str(run), "--step", "1", "11", "--output-dir", str(folder), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == [1, 11]
    assert {Path(file).name for file in json.loads(done.stdout)["files"]} == names(1) | names(11)
    return folder


def test_every_file_of_the_chosen_steps_is_written(exported: Path) -> None:
    assert {file.name for file in exported.iterdir()} == names(1) | names(11)
    metrics = json.loads((exported / "gradient_analysis_metrics_step_11.json").read_text())
    assert metrics == pytest.approx(SYNTHETIC.metrics(11))
    with (exported / "gradient_analysis_bucket_rv_table_step_11.csv").open() as file:
        rows = list(csv.DictReader(file))
    tables = SYNTHETIC.group_tables(11)
    expected = [row for table in tables.values() for row in table["data"]]
    assert [
        [row["bucket"], int(row["group_id"]), float(row["reward_std"])] for row in rows
    ] == expected


def test_the_default_folder_is_named_after_the_run_and_its_id(run: Path, tmp_path: Path) -> None:
    done = sketched("plot", str(run), "--step", "21", "--format", "svg")
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "gradient_analysis_outputs").iterdir()
    assert re.fullmatch(r"ppo_[0-9a-f]{8}", folder.name)
    assert {file.name for file in folder.iterdir()} == names(21, "svg")
    for name in names(21, "svg"):
        assert str(Path("gradient_analysis_outputs") / folder.name / name) in done.stdout


def test_the_steps_with_an_analysis_are_listed(run: Path) -> None:
    shown = gradiometer("plot", str(run), "--list-steps").stdout
    assert "3 gradient analyses" in shown
    assert "step 11: 7 buckets, terms task, entropy, kl" in shown
    listed = json.loads(gradiometer("plot", str(run), "--list-steps", "--json").stdout)
    assert listed == {"run": str(run / "run.db"), "steps": [1, 11, 21], "files": []}


def test_a_jsonl_log_is_plotted_and_its_cut_off_line_said_in_one(tmp_path: Path) -> None:
    log = tmp_path / "my exp.jsonl"
    log.write_text(
        json.dumps({"step": 1, "data": SYNTHETIC.of_the_whole_batch(1)}) + '\n{"step": 2, "da'
    )
    done = sketched("plot", str(log))
    assert done.returncode == 0, done.stderr
    assert "warning:" in done.stderr
    assert "line 2: the last line is cut off" in done.stderr
    assert "no group table; its CSV holds no rows" in done.stderr
    assert "Traceback" not in done.stderr
    (folder,) = (tmp_path / "gradient_analysis_outputs").iterdir()
    assert folder.name.startswith("my-exp_")
    assert {file.name for file in folder.iterdir()} == names(1)


WANDB = """
import json, sys, wandb
run = wandb.init(project="p", name="exp 7", id="abc12345", mode="offline", settings=wandb.Settings(silent=True))
run.log({"loss": 1.0}, step=0)
run.log(json.load(sys.stdin), step=1)
run.finish()
"""


def test_an_offline_wandb_run_is_found_by_file_and_by_folder(tmp_path: Path) -> None:
    quiet = {**PLAIN, "WANDB_SILENT": "true", "HOME": str(tmp_path)}
    command = [sys.executable, "-c", WANDB]
    subprocess.run(
        command,
        input=json.dumps(SYNTHETIC.metrics(1)),
        text=True,
        check=True,
        capture_output=True,
        env=quiet,
    )
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    for typed in (
        ["--wandb-path", str(file)],
        ["--wandb-path", str(file.parent)],
        [str(file)],
        [str(file.parent)],
    ):
        done = gradiometer("plot", *typed, "--list-steps", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"run": str(file), "steps": [1], "files": []}


def test_wrong_input_is_one_line(run: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello\n")
    done = gradiometer("plot", "nope")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r".*no run at nope.*\n", done.stderr)
    fails("is not a run but a folder of runs: open one of ppo", "plot", str(run.parent))
    fails("notes.txt is not a run", "plot", "notes.txt")
    fails("give a run", "plot")
    fails("--step abc: expected a whole number", "plot", str(run), "--step", "abc")
    fails(
        r"unknown analysis step '7' \(ppo has an analysis at 1, 11, 21\)",
        "plot",
        str(run),
        "--step",
        "1",
        "7",
    )
    fails("cannot write into notes.txt", "plot", str(run), "--output-dir", "notes.txt")
    fails(r"unknown format 'bmp' \(there are png, pdf, svg\)", "plot", str(run), "--format", "bmp")
    fails("no W&B run at nope.wandb", "plot", "--wandb-path", "nope.wandb")
    fails("not both", "plot", str(run), "--wandb-path", "a/b/c")


def test_a_run_without_an_analysis_says_how_to_get_one(tmp_path: Path) -> None:
    with Writer(tmp_path / "plain") as writer:
        writer.put(Row(step=1, wall_time=0.0, values={"loss": 1.0}))
    fails(
        "no gradient analysis: train with trainer.gradient_analysis_every=50.*gradiometer analyze",
        "plot",
        "plain",
    )
    fails("no gradient analysis", "plot", "plain", "--list-steps")


@pytest.fixture(scope="module")
def replicates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = BANDITS.keep_comparison(
        tmp_path_factory.mktemp("runs") / "bandit", [BANDITS.study("pomo"), BANDITS.study("rloo")]
    )
    return folder


OF_A_COMPARISON = [
    "variance_summary.png",
    "variance_replicates.png",
    "variance_ratio.png",
    "variance_records.json",
]


def test_replicates_are_drawn_into_a_folder_of_their_own(replicates: Path, tmp_path: Path) -> None:
    done = gradiometer("plot", str(replicates))
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "variance_outputs").iterdir()
    assert re.fullmatch(r"bandit_[0-9a-f]{8}", folder.name)
    assert {file.name for file in folder.iterdir()} == set(OF_A_COMPARISON)
    assert done.stdout.startswith("replicates of pomo, rloo: 4 files\n")
    for name in OF_A_COMPARISON:
        assert str(Path("variance_outputs") / folder.name / name) in done.stdout
    assert not (tmp_path / "gradient_analysis_outputs").exists()
    records = json.loads((folder / "variance_records.json").read_text())
    assert [record["config"]["label"] for record in records] == ["pomo", "rloo"]


def test_the_files_of_replicates_are_printed_as_json_in_the_format_asked_for(
    replicates: Path,
) -> None:
    done = sketched("plot", str(replicates), "--json", "--output-dir", "here", "--format", "svg")
    names = [name.replace(".png", ".svg") for name in OF_A_COMPARISON]
    files = [str(Path("here") / name) for name in names]
    assert json.loads(done.stdout) == {
        "run": str(replicates / "run.db"),
        "steps": [],
        "files": files,
    }
    assert {file.name for file in Path("here").iterdir()} == set(names)


def test_a_list_of_steps_says_that_a_run_holds_replicates_instead(
    replicates: Path, tmp_path: Path
) -> None:
    done = gradiometer("plot", str(replicates), "--list-steps")
    assert done.returncode == 0
    assert done.stdout == "bandit: replicates of pomo, rloo, and no gradient analyses\n"
    listed = json.loads(gradiometer("plot", str(replicates), "--list-steps", "--json").stdout)
    assert listed == {
        "run": str(replicates / "run.db"),
        "steps": [],
        "files": [],
        "replicates": ["pomo", "rloo"],
    }
    fails(
        "holds replicates and no analysis steps: leave --step out",
        "plot",
        str(replicates),
        "--step",
        "0",
    )
    assert not list(tmp_path.iterdir()), "nothing was drawn"


def test_a_run_with_analyses_and_replicates_gets_the_figures_of_both(tmp_path: Path) -> None:
    record = BANDITS.study("pomo", extended=False).record
    with Writer(tmp_path / "both") as writer:
        writer.put(Row(step=1, wall_time=0.0, values=SYNTHETIC.of_the_whole_batch(1)))
        writer.put(Table(step=0, name="replicates", content=[record]))
    shown = gradiometer("plot", "both", "--list-steps").stdout
    assert shown.startswith("both: replicates of pomo\nboth: 1 gradient analysis\nstep 1: ")
    found = json.loads(sketched("plot", "both", "--json", "--output-dir", "out").stdout)
    drawn = names(1) | {"variance_summary.png", "variance_replicates.png", "variance_records.json"}
    assert (
        {Path(file).name for file in found["files"]}
        == drawn
        == {file.name for file in Path("out").iterdir()}
    )
    assert found["steps"] == [1]
    chosen = json.loads(sketched("plot", "both", "--json", "--step", "1").stdout)
    assert {Path(file).name for file in chosen["files"]} == names(1)


def test_a_table_of_replicates_that_is_none_is_one_line(tmp_path: Path) -> None:
    with Writer(tmp_path / "odd") as writer:
        writer.put(Table(step=0, name="replicates", content=[{"config": {}}]))
    fails("'replicates' of odd.* is not what `gradiometer variance` keeps", "plot", "odd")


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = EXPERTS.write_run(
        tmp_path_factory.mktemp("runs") / "moe", steps=range(0, 110, 10)
    )
    return folder


OF_EXPERTS = [
    "expert_dynamics.png",
    "expert_divergence.png",
    "expert_routers.png",
    "expert_layers.png",
    "expert_layers.csv",
    "expert_histograms.png",
    "expert_histograms.csv",
    "expert_series.csv",
    "expert_summary.json",
]


def test_experts_are_drawn_into_a_folder_of_their_own(experts: Path, tmp_path: Path) -> None:
    done = sketched("plot", str(experts))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (folder,) = (tmp_path / "expert_outputs").iterdir()
    assert re.fullmatch(r"moe_[0-9a-f]{8}", folder.name)
    assert {file.name for file in folder.iterdir()} == set(OF_EXPERTS)
    files = [f"  {Path('expert_outputs') / folder.name / name}" for name in OF_EXPERTS]
    assert done.stdout.splitlines() == ["experts 0, 1, 2: 9 files", *files]
    assert [path.name for path in tmp_path.iterdir()] == ["expert_outputs"]


def test_a_step_chooses_the_heat_map_and_the_histograms(experts: Path, tmp_path: Path) -> None:
    done = sketched(
        "plot",
        str(experts),
        "--step",
        "40",
        "50",
        "--json",
        "--output-dir",
        "out",
        "--format",
        "svg",
    )
    found = json.loads(done.stdout)
    assert found["run"] == str(experts / "run.db")
    assert found["steps"] == [40, 50]
    drawn = [
        "expert_layers_step_40.svg",
        "expert_layers_step_40.csv",
        "expert_layers_step_50.svg",
        "expert_layers_step_50.csv",
        "expert_histograms_step_50.svg",
        "expert_histograms_step_50.csv",
    ]
    assert found["files"] == [str(Path("out") / name) for name in drawn]
    assert {file.name for file in Path("out").iterdir()} == set(drawn)
    assert list(found["left_out"]) == ["expert_histograms_step_40"]
    fails(
        r"unknown step '7' \(moe has experts measured at 0, 10, 20",
        "plot",
        str(experts),
        "--step",
        "7",
    )


def test_a_list_of_steps_says_that_experts_are_there(experts: Path, replicates: Path) -> None:
    done = gradiometer("plot", str(experts), "--list-steps")
    said = "moe: experts 0, 1, 2 in 2 layers, measured at 11 steps from 0 to 100, histograms of 3\n"
    assert done.stdout == said
    listed = json.loads(gradiometer("plot", str(experts), "--list-steps", "--json").stdout)
    assert listed["steps"] == []
    assert listed["experts"]["experts"] == ["0", "1", "2"]
    assert listed["experts"]["steps"] == list(range(0, 110, 10))
    assert listed["experts"]["histogram_steps"] == [0, 50, 100]
    both = json.loads(
        gradiometer("plot", str(experts), str(replicates), "--list-steps", "--json").stdout
    )
    assert both["runs"][0] == listed
    assert both["runs"][1]["replicates"] == ["pomo", "rloo"]


def test_several_runs_are_one_figure_of_their_experts(
    experts: Path, replicates: Path, tmp_path: Path
) -> None:
    EXPERTS.write_run(tmp_path / "other", experts=2, layers=1, steps=range(0, 60, 10), genuine=0.4)
    done = gradiometer("plot", str(experts), "other")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("experts of 2 runs: 2 files\n")
    (folder,) = (tmp_path / "expert_outputs").iterdir()
    assert re.fullmatch(r"comparison_[0-9a-f]{8}", folder.name)
    assert {file.name for file in folder.iterdir()} == {
        "expert_comparison.png",
        "expert_comparison.csv",
    }
    found = json.loads(
        sketched("plot", str(experts), "other", "--json", "--output-dir", "out").stdout
    )
    assert found["runs"] == [str(experts / "run.db"), str(Path("other") / "run.db")]
    assert found["files"] == [
        str(Path("out") / f"expert_comparison.{kind}") for kind in ("png", "csv")
    ]
    fails(
        "--step belongs to one run, and 2 are given", "plot", str(experts), "other", "--step", "10"
    )
    fails("bandit.*holds no expert series", "plot", str(experts), str(replicates))
    fails(
        "--wandb-path a/b/c belongs to one run",
        "plot",
        str(experts),
        "other",
        "--wandb-path",
        "a/b/c",
    )


def test_what_a_log_has_no_numbers_for_is_left_out_and_said(tmp_path: Path) -> None:
    log = EXPERTS.source_log(tmp_path / "x", steps=range(0, 60, 10))
    names = log.names()
    series = {name: dict(zip(*map(list, log.series(name)), strict=True)) for name in names}
    rows = [
        {"step": step, "data": {n: series[n][step] for n in names}} for step in range(0, 60, 10)
    ]
    (tmp_path / "old.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = sketched("plot", "old.jsonl", "--output-dir", "out")
    assert done.returncode == 0, done.stderr
    assert {file.name for file in Path("out").iterdir()} == {*OF_EXPERTS[:2], *OF_EXPERTS[-2:]}
    for left in (
        "expert_layers: nothing was measured per layer",
        "expert_routers:",
        "expert_histograms: no histograms",
    ):
        assert f"note: no {left}" in done.stderr


@pytest.mark.parametrize(
    "typed",
    [
        ["RUN", "--step", "1", "11", "21"],
        ["--step", "1", "11", "21", "RUN"],
        ["--step", "1", "--step", "11", "RUN", "--step", "21"],
        ["--step", "1,11", "RUN", "--step=21"],
        ["--step=1", "11,21", "RUN"],
        ["RUN", "--step", "1,", "11", "21", "11"],
    ],
)
def test_steps_are_taken_however_a_list_is_written(typed: list[str]) -> None:
    words = spelled_out(typed, "--step")
    values = [words[place + 1] for place, word in enumerate(words) if word == "--step"]
    values += [word.partition("=")[2] for word in words if word.startswith("--step=")]
    assert sorted(whole_numbers(values, option="--step")) == [1, 11, 21]
    assert words.count("RUN") == 1
    assert words[words.index("RUN") - 1] != "--step"


def test_a_list_ends_where_an_option_or_a_name_begins() -> None:
    assert spelled_out(["--step", "1", "--output-dir", "7", "8"], "--step") == [
        "--step",
        "1",
        "--output-dir",
        "7",
        "8",
    ]
    assert spelled_out(["--step", "1", "run", "2"], "--step") == ["--step", "1", "run", "2"]
    assert spelled_out(["--step", "1", "--", "2"], "--step") == ["--step", "1", "--", "2"]
    with pytest.raises(UsageError, match="needs a number"):
        whole_numbers([","], option="--step")


def test_the_comparison_is_drawn_from_exported_folders(exported: Path, tmp_path: Path) -> None:
    (tmp_path / "forty").mkdir()
    (tmp_path / "forty" / "metrics.json").write_text(json.dumps(SYNTHETIC.metrics(40)))
    folders = ["--step1-dir", str(exported), f"--step11-dir={exported}", "--step40-dir", "forty"]
    done = gradiometer("figure", *folders, "--mode", "ppo", "--out", "out/ppo.png")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "out/ppo.png\n"
    assert (tmp_path / "out" / "ppo.png").read_bytes().startswith(b"\x89PNG")
    done = sketched("figure", "--out", "one.pdf", "--step40-dir", "forty", "--json")
    assert json.loads(done.stdout) == {"steps": [40], "files": ["one.pdf"]}
    assert (tmp_path / "one.pdf").read_bytes().startswith(b"%PDF")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["ppo.png"]


def test_wrong_folders_are_one_line(exported: Path, tmp_path: Path) -> None:
    for name, content in (
        ("broken", "{oops"),
        ("list", "[1]"),
        ("other", '{"loss": 1}'),
        ("empty", None),
    ):
        (tmp_path / name).mkdir()
        if content is not None:
            (tmp_path / name / "metrics.json").write_text(content)
    out = ("--out", "x.png")
    done = gradiometer("figure", *out)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r".*at least one folder.*\n", done.stderr)
    fails("name the output file", "figure", "--step0-dir", str(exported))
    fails(
        "not step 0: write --step",
        "figure",
        "--step0-dir",
        str(exported),
        *out,
    )
    fails("nor gradient_analysis_metrics_step_0.json", "figure", "--step0-dir", "empty", *out)
    fails("no such folder", "figure", "--step0-dir", "nope", *out)
    fails("not JSON", "figure", "--step0-dir", "broken", *out)
    fails("one JSON object", "figure", "--step0-dir", "list", *out)
    fails("no gradient analysis", "figure", "--step0-dir", "other", *out)
    fails("--step0-dir needs a folder", "figure", *out, "--step0-dir")
    fails("given twice", "figure", "--step0-dir", "a", "--step0-dir", "b", *out)
    fails("unknown argument --stepx-dir", "figure", "--stepx-dir", "a", *out)
    fails("unknown mode 'dqn'", "figure", "--step1-dir", str(exported), "--mode", "dqn", *out)
    fails("unknown format", "figure", "--step1-dir", str(exported), "--out", "x.bmp")
    fails("has no suffix", "figure", "--step1-dir", str(exported), "--out", "x")
    assert not (tmp_path / "x.png").exists()
