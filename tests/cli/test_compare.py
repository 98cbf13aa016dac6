"""`gradiometer compare` as a user types it: every call is a real process."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forkserver import Done, python

from gradiometer.cli.compare import _names
from gradiometer.doctor.diagnosis import diagnose
from gradiometer.records import Row
from gradiometer.store.importers import open_log
from gradiometer.store.writer import Writer

FIXTURES = Path(__file__).parents[1] / "fixtures"
PLAIN = {
    **os.environ,
    "NO_COLOR": "1",
    "TERM": "dumb",
    "COLUMNS": "120",
    "TERMINAL_WIDTH": "120",
    "OMP_NUM_THREADS": "1",
}


def compare(*arguments: str) -> Done:
    return python("-m", "gradiometer", "compare", *arguments, env=PLAIN)


def told(*arguments: str) -> str:
    done = compare(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def as_json(*arguments: str) -> Any:
    return json.loads(told(*arguments, "--json"))


def fails(says: str, *arguments: str) -> None:
    """One line on stderr, nothing on stdout, exit code 2."""
    done = compare(*arguments)
    assert done.returncode == 2
    assert re.search(says, done.stderr), done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def write(folder: Path, seed: int, config: Mapping[str, Any]) -> None:
    values = np.random.default_rng(seed).normal(size=(50, 3)).tolist()
    facts = {"config": dict(config), "git": {"commit": "abc"}, "measured": {"seconds": 0.1 * seed}}
    with Writer(folder, facts=facts) as writer:
        for step, (reward, entropy, other) in enumerate(values):
            writer.put(
                Row(
                    step=step,
                    wall_time=0.0,
                    values={"reward": reward, "entropy": entropy, "mine/other": other},
                )
            )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for lr in (0.1, 0.2):
        for seed in range(3):
            write(
                root / f"lr{lr}-{seed}",
                int(10 * lr) + 10 * seed,
                {"seed": seed, "optim": {"lr": lr}, "gamma": 1.0},
            )
    return root


def test_a_folder_of_runs_is_compared_with_means_over_seeds_and_settings_that_differ(
    runs: Path,
) -> None:
    text = told(str(runs))
    assert text.startswith("6 runs, grouped by seed: mean ± standard deviation over n runs\n")
    assert re.search(r"^reward +last +mean of last 10 % +best +at step$", text, re.MULTILINE)
    assert re.search(
        r"^lr0\.1 \(n = 3\) +-?[\d.]+ ± [\d.]+ +-?[\d.]+ ± [\d.]+ +[\d.]+ ± [\d.]+ *$",
        text,
        re.MULTILINE,
    )
    assert re.search(r"^optim\.lr +0\.1 \(3 runs\), 0\.2 \(3 runs\)", text, re.MULTILINE)
    assert "gamma" not in text
    assert text.endswith("2 settings differ, 2 are equal\n")
    assert max(map(len, text.splitlines())) <= 120


def test_the_numbers_are_those_of_the_runs(runs: Path) -> None:
    content = as_json(str(runs), "--metric", "reward")
    assert list(content["metrics"]) == ["reward"]
    assert content["grouped_by"] == "seed"
    assert content["groups"] == {
        f"lr{lr}": [f"lr{lr}-{seed}" for seed in range(3)] for lr in (0.1, 0.2)
    }
    lasts, tails, bests = [], [], []
    for name in content["groups"]["lr0.1"]:
        with open_log(runs / name) as run:
            _, values = run.series("reward")
        lasts, tails, bests = (
            [*lasts, values[-1]],
            [*tails, values[-5:].mean()],
            [*bests, values.max()],
        )
        assert content["metrics"]["reward"]["runs"][name] == {
            "series": "reward",
            "last": values[-1],
            "last_step": 49,
            "mean_of_last_tenth": pytest.approx(values[-5:].mean()),
            "min": values.min(),
            "max": values.max(),
            "best": values.max(),
            "best_step": int(values.argmax()),
        }
    group = content["metrics"]["reward"]["groups"]["lr0.1"]
    assert group["n"] == 3
    for key, numbers in (("last", lasts), ("mean_of_last_tenth", tails), ("best", bests)):
        assert group[key] == {
            "mean": pytest.approx(np.mean(numbers)),
            "std": pytest.approx(np.std(numbers, ddof=1)),
        }
    assert content["differs"][1] == {
        "group": "config",
        "name": "optim.lr",
        "values": {f"lr{lr}-{seed}": str(lr) for lr in (0.1, 0.2) for seed in range(3)},
    }
    assert content["equal"] == {"config": 1, "git": 1}


def test_what_became_of_each_run_is_what_the_doctor_says(runs: Path) -> None:
    """Fifty rewards of pure noise about zero."""
    judged = {name: diagnose(runs / name) for name in ("lr0.1-0", "lr0.2-1")}
    text = told(*(str(runs / name) for name in judged))
    content = as_json(*(str(runs / name) for name in judged))["runs"]
    for name, found in judged.items():
        assert re.search(rf"^{found.state} .*{re.escape(name)}", text, re.MULTILINE), text
        assert content[name]["state"] == found.state
        assert content[name]["verdict"] == found.verdict


def test_metrics_are_chosen_by_name_and_by_pattern(runs: Path) -> None:
    assert list(as_json(str(runs))["metrics"]) == ["reward", "entropy"]
    assert list(as_json(str(runs), "--match", "^mine/")["metrics"]) == ["mine/other"]
    assert list(as_json(str(runs), "--metric", "entropy,mine/other")["metrics"]) == [
        "entropy",
        "mine/other",
    ]
    assert list(as_json(str(runs), "--metric", "entropy", "--metric", "reward")["metrics"]) == [
        "entropy",
        "reward",
    ]


def test_runs_are_grouped_as_asked(runs: Path) -> None:
    assert as_json(str(runs), "--group", "none")["groups"] == {}
    by_seed = as_json(str(runs), "--group", "config.seed")["groups"]
    assert by_seed["seed = 1"] == ["lr0.1-1", "lr0.2-1"]
    assert "±" not in told(str(runs), "--group", "none")


def test_two_runs_stand_side_by_side_in_their_settings(runs: Path) -> None:
    text = told(str(runs / "lr0.1-0"), str(runs / "lr0.2-0" / "run.db"))
    assert re.search(r"^setting +lr0\.1-0 +lr0\.2-0 *$", text, re.MULTILINE)
    assert re.search(r"^optim\.lr +0\.1 +0\.2 *$", text, re.MULTILINE)
    assert text.endswith("1 setting differs, 3 are equal\n")


def test_a_log_of_another_library_stands_beside_ours_under_our_names(
    runs: Path, tmp_path: Path
) -> None:
    shutil.copy(FIXTURES / "sb3_ppo" / "progress.csv", tmp_path / "progress.csv")
    content = as_json(str(runs / "lr0.1-0"), str(tmp_path / "progress.csv"), "--metric", "entropy")
    name = next(name for name in content["runs"] if name.endswith("progress.csv"))
    theirs = content["metrics"]["entropy"]["runs"][name]
    with open_log(tmp_path / "progress.csv") as log:
        assert theirs["last"] == -log.series("train/entropy_loss")[1][-1]
    assert theirs["series"] == "train/entropy_loss"
    assert content["without_config"] == [name]
    text = told(str(runs / "lr0.1-0"), str(tmp_path / "progress.csv"))
    assert f"{name} (train/entropy_loss)" in text
    assert f"{name} without a config" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("{runs}/lr0.1-0",),
            "give two runs to compare, or a folder of runs: here is only .*lr0.1-0",
        ),
        (("{runs}/lr0.1-0", "{runs}/lr0.1-0/run.db"), "give two runs to compare"),
        (("{runs}", "{runs}/nope"), "no run at .*nope"),
        (("{runs}", "--match", "("), r"match '\(' is not a regular expression"),
        (("{runs}", "--match", "zzz"), "no series of these runs matches 'zzz'; there are 3"),
        (("{runs}", "--metric", "rewrd"), "unknown metric 'rewrd'; did you mean 'reward'"),
        (
            ("{runs}", "--group", "optim.l"),
            r"unknown grouping 'optim\.l'; did you mean 'optim\.lr'",
        ),
    ],
)
def test_wrong_input_is_one_line_that_says_what_to_do(
    runs: Path, arguments: tuple[str, ...], says: str
) -> None:
    fails(says, *(word.replace("{runs}", str(runs)) for word in arguments))


def test_runs_are_named_by_what_sets_their_paths_apart() -> None:
    assert _names([Path("/x/runs/a/1"), Path("/x/runs/a/2")]) == ["1", "2"]
    assert _names([Path("/x/runs/a/1"), Path("/x/runs/b/1")]) == ["a/1", "b/1"]
    assert _names([Path("/tmp/x/y/runs/a"), Path("/home/u/v/w/b")]) == ["a", "b"]
    assert _names([Path("/tmp/x/y/runs/a"), Path("/home/u/v/w/a")]) == ["runs/a", "w/a"]
