"""`gradiometer variance` as people type it, on a policy of the tsp lab trained for a few steps."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pytest

import gradiometer as gm
from gradiometer.cli.main import run
from gradiometer.metrics import resolve
from gradiometer_labs import find
from gradiometer_labs.config import configure


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tsp")
    lab = find("tsp")
    small = [
        "steps=2",
        "batch_size=4",
        "num_loc=6",
        "embed_dim=16",
        "num_layers=1",
        "num_heads=2",
        "val_size=0",
    ]
    lab.train(configure(lab.config(), [f"run={folder / 'run'}", *small]))
    return folder / "run" / "last.ckpt"


@pytest.fixture
def call(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    common = [
        "variance",
        "--ckpt_path",
        str(checkpoint),
        "--num_loc",
        "6",
        "--num_instances",
        "8",
        "--num-replicates",
        "2",
    ]
    return lambda *more: run([*common, *more])


@pytest.mark.slow
def test_the_sources_command_writes_the_sources_record(
    call, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [
        "--problem",
        "tsp",
        "--algorithm",
        "pomo",
        "--batch_size",
        "4",
        "--seed",
        "1234",
        "--device",
        "cpu",
    ]
    assert call(*flags, "--save_path", "out.json") == 0
    record = json.loads(Path("out.json").read_text())
    assert record["schema_version"] == 1
    assert record["config"]["num_loc"] == 6
    assert set(record["per_replicate"]) == {
        "grad_norm",
        "grad_proj",
        "ess_mean",
        "weights_abs_max_mean",
    }
    assert len(record["per_replicate"]["grad_norm"]) == 2
    assert {"random_policy", "shuffled_rewards"} == set(record["extended"]["controls"])
    assert "kept in out.json" in capsys.readouterr().out
    assert call(*flags, "--save_path", "again.json", "--run", "none") == 0
    first, again = (json.loads(Path(name).read_text()) for name in ("out.json", "again.json"))
    assert again["config"]["save_path"] == "again.json"
    for each in (first, again):
        del each["config"]["save_path"], each["config"]["run"]
    assert again == first, "one seed, one result"


def test_every_suffix_keeps_the_record_and_jsonl_appends(call) -> None:
    quick = ["--no-extended", "--run", "none"]
    assert call("--save_path", "a/b.jsonl", *quick) == 0
    assert call("--save_path", "a/b.jsonl", *quick) == 0
    lines = [json.loads(line) for line in Path("a/b.jsonl").read_text().splitlines()]
    assert lines[0] == lines[1]
    assert call("--save_path", "c.pkl", *quick) == 0
    assert pickle.loads(Path("c.pkl").read_bytes())["per_replicate"] == lines[0]["per_replicate"]
    assert "extended" not in lines[0]


def test_a_comparison_says_which_varies_less(call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--compare", "none", "subloo", "--k", "2", "--no-controls", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    labels = [row["label"] for row in found["comparison"]["rows"]]
    assert labels == ["none", "subloo"]
    assert found["comparison"]["rows"][1]["variance_ratio"][0] < 1
    assert "the variance of none at K=2" in found["comparison"]["sentences"][0]
    kept = gm.load(found["run"])
    assert "variance/maxk(k=2, baseline=subloo)/trace" in kept.names()
    assert [name for name in kept.names() if resolve(name) is None] == []
    assert kept.table("replicates").content[0]["schema_version"] == 1


@pytest.mark.slow
def test_lists_are_taken_as_people_write_them(call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--algorithm", "pomo,rloo", "--no-controls", "--json", "--run", "none") == 0
    assert [row["label"] for row in json.loads(capsys.readouterr().out)["comparison"]["rows"]] == [
        "pomo",
        "rloo",
    ]
    assert (
        call(
            "--compare",
            "pomo,rloo",
            "--compare",
            "dr_grpo",
            "--no-controls",
            "--json",
            "--run",
            "none",
        )
        == 0
    )
    rows = json.loads(capsys.readouterr().out)["comparison"]["rows"]
    assert [row["label"] for row in rows] == ["pomo", "rloo", "dr_grpo"]
    # rloo is pomo times n/(n-1), so on the same samples its variance is (6/5)² of it
    assert rows[1]["variance_ratio"][0] == pytest.approx(1.44, rel=1e-3)


def test_a_curve_answers_how_many_rollouts(call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--curve", "rollouts", "--values", "2", "4", "--no-controls", "--run", "sweep") == 0
    assert "rollouts" in capsys.readouterr().out
    kept = gm.load("sweep").names()
    assert {"variance/pomo(rollouts=2)/snr", "variance/pomo(rollouts=4)/snr"} <= set(kept)
    assert (
        call("--curve", "k", "--values", "2", "3", "--algorithm", "maxk_pomo", "--no-controls") == 0
    )
    assert re.search("Of the K measured|No K stands out|No K can be", capsys.readouterr().out)


def test_one_replicate_says_that_intervals_are_undefined(
    call, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("--num_replicates", "1", "--run", "none") == 0
    assert "undefined" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--algorithm", "maxk_pomo"], "--any-algorithm"),
        (["--algorithm", "maxk_pomo", "--any-algorithm", "--k", "7"], "K must be between 1 and"),
        (["--compare", "sample_loo", "--k", "6"], "sample_loo"),
        (["--algorithm", "pom"], "did you mean 'pomo'"),
        (["--problem", "tps"], "did you mean 'tsp'"),
        (["--save_path", "out.csv"], ".jsonl"),
        (["--save_path", "."], "write .json"),
        (["--num_starts", "1"], "2|two"),
        (["--engine", "threads"], "serial, processes, ray"),
        (["--curve", "rollouts"], "--values"),
        (["--curve", "n", "--values", "2"], "rollouts or k"),
        (["--curve", "k", "--values", "2", "--compare", "pomo"], "cannot be combined"),
        (["--compare", "pomo", "--no-extended"], "--no-extended"),
        (["--num_instances", "0"], "1 or more"),
        (["--reduction", "max"], "mean, sum, source"),
        (["--library", "torch"], "auto, gradiometer or rl4co"),
        (["--ckpt_path", "nowhere.ckpt"], "no checkpoint nowhere.ckpt"),
        (["--device", "cuda"], "device"),
        (["--seed", "-5"], "--seed"),
        (["--num_loc", "2"], "use 4 or more"),
        (["--curve", "rollouts", "--values", "0", "2"], "use 2 or more"),
        (["--alpha", "nan"], "--alpha"),
        (
            [
                "--algorithm",
                "maxk_pomo",
                "--any-algorithm",
                "--k",
                "3",
                "--baseline",
                "foo",
                "--engine",
                "processes",
            ],
            "baseline",
        ),
    ],
)
def test_wrong_input_is_one_line_and_leaves_no_file(
    call, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    assert call(*flags, *([] if "--save_path" in flags else ["--save_path", "left.json"])) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error:")
    assert any(each in error for each in said.split("|"))
    assert not list(Path().rglob("*.json"))
    assert not Path("runs").exists()


def test_a_file_that_is_no_checkpoint_is_refused(
    call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("text.ckpt").write_text("not a checkpoint")
    assert call("--ckpt_path", "text.ckpt") == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_taken_run_is_told_before_the_work_and_a_failed_append_leaves_whole_lines(
    call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("taken").mkdir()
    Path("taken/file").write_text("x")
    assert call("--run", "taken", "--save_path", "out.json") == 2
    assert "taken already exists" in capsys.readouterr().err
    assert "tasks" not in capsys.readouterr().err
    Path("log.jsonl").write_text('{"a": 1}')  # cut off by a crash, without its line's end
    assert call("--no-extended", "--run", "none", "--save_path", "log.jsonl") == 0
    assert json.loads(Path("log.jsonl").read_text().splitlines()[0]) == {"a": 1}
    assert len(Path("log.jsonl").read_text().splitlines()) == 2


def test_max_at_1_and_rloo_are_the_same_estimator_whatever_the_reduction(
    call, capsys: pytest.CaptureFixture[str]
) -> None:
    for reduction in ("mean", "source"):
        asked = [
            "--compare",
            "pomo",
            "sample_loo_scaled",
            "rloo",
            "--k",
            "1",
            "--no-controls",
            "--json",
            "--run",
            "none",
        ]
        assert call(*asked, "--reduction", reduction) == 0
        rows = json.loads(capsys.readouterr().out)["comparison"]["rows"]
        assert rows[1]["variance_ratio"][0] == pytest.approx(rows[2]["variance_ratio"][0], rel=1e-3)
        assert rows[2]["variance_ratio"][0] == pytest.approx(1.44, rel=1e-3)


@pytest.mark.slow
def test_the_record_holds_every_option_and_the_scale_of_its_gradient(
    call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from dataclasses import fields

    from gradiometer.cli.commands import VarianceRequest

    asked = ["--any-algorithm", "--algorithm", "maxk_pomo", "--k", "2", "--no-controls"]
    assert call(*asked, "--save_path", "kept/record.json", "--run", "none") == 0
    config = json.loads((tmp_path / "kept" / "record.json").read_text())["config"]
    assert {field.name for field in fields(VarianceRequest)} <= config.keys()
    assert config["save_path"] == "kept/record.json"
    assert config["gradient_scale"] == pytest.approx(1 / 6)
    out = capsys.readouterr().out
    assert "(1/6)" in out
    assert "1/6 of its objective's gradient" in " ".join(out.split())
