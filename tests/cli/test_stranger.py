"""Somebody else's log, at the first try: the first line answers, the last ones say what it cannot
show and how to see that."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gradiometer.cli.main import run
from gradiometer.dashboard import server

FIXTURES = Path(__file__).parents[1] / "fixtures"

Says = Callable[..., str]


@pytest.fixture
def says(capsys: pytest.CaptureFixture[str]) -> Says:
    def call(*arguments: str | Path, code: int = 0) -> str:
        assert run([str(argument) for argument in arguments]) == code
        said = capsys.readouterr()
        return " ".join((said.err if code else said.out).split())

    return call


def csv(path: Path, names: str, rows: int, row: Callable[[int], str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{names}\n" + "".join(f"{row(number)}\n" for number in range(rows)))
    return path


@pytest.mark.parametrize(
    ("log", "rose", "callback"),
    [
        (
            "sb3_ppo",
            r"healthy: the reward rose from \S+ to \S+\.",
            "from gradiometer.integrations.sb3 import GradiometerCallback",
        ),
        (
            "cleanrl_ppo",
            r"concern: the reward rose from \S+ to \S+\. Watch: Value targets are too large",
            "with gm.watch(model, optimizer",
        ),
        ("trl_grpo", "cut off at the largest length", "callbacks=[GradiometerCallback("),
    ],
)
def test_a_real_log_is_answered_in_the_first_sentence_and_told_how_to_see_more(
    says: Says, log: str, rose: str, callback: str
) -> None:
    said = says("doctor", FIXTURES / log)
    first, folder, _ = said.partition(f" {FIXTURES / log} ")
    assert folder  # the folder, not the event file in it
    assert re.search(rose, first)
    assert callback in said
    assert "gradients and loss terms, which no log contains" in said


def test_a_reward_that_stands_is_not_called_fine(tmp_path: Path, says: Says) -> None:
    values = [10.0 + (number * 7) % 5 for number in range(12)]
    log = csv(tmp_path / "a.csv", "step,reward", 12, lambda number: f"{number},{values[number]}")
    assert "not-learning: the reward stood at 11.7" in says("doctor", log)


def test_without_a_reward_the_loss_is_told(tmp_path: Path, says: Says) -> None:
    log = csv(
        tmp_path / "a.csv",
        "step,loss,grad_norm",
        50,
        lambda number: f"{number},{4 - number / 20},1.{number}",
    )
    assert "healthy: the loss fell from" in says("doctor", log)


def test_one_point_is_too_early(tmp_path: Path, says: Says) -> None:
    log = csv(tmp_path / "a.csv", "step,reward", 1, lambda number: "1,0.5")
    assert "too-early: reward has 1 finite point" in says("doctor", log)


def test_names_that_nobody_knows_are_told_with_those_that_are_known(
    tmp_path: Path, says: Says
) -> None:
    log = csv(tmp_path / "a.csv", "step,H,mystery", 50, lambda number: f"{number},1,2")
    said = says("doctor", log)
    assert "unknown: no known metric measures how well the policy does" in said
    assert "It might be H, mystery: assign it with --name reward=COLUMN" in said
    assert "--name reward=COLUMN" in said


def test_a_learning_rate_of_zero_is_the_cause_whatever_the_reward_did(
    tmp_path: Path, says: Says
) -> None:
    names = "time/total_timesteps,rollout/ep_rew_mean,train/learning_rate,train/approx_kl"
    log = csv(
        tmp_path / "progress.csv",
        names,
        40,
        lambda number: f"{number},{20 + number / 10},0.0,1e-10",
    )
    assert "The policy hardly moves (train/learning_rate: median 0" in says("doctor", log)


def test_twenty_logs_are_told_apart_by_their_folders_the_worst_first(
    tmp_path: Path, says: Says
) -> None:
    for number in range(20):
        folder = tmp_path / "logs" / f"seed-{number}" / "PPO_1"
        folder.mkdir(parents=True)
        shutil.copy(FIXTURES / "sb3_ppo" / "events.out.tfevents.0", folder)
    bad = csv(
        tmp_path / "logs" / "z" / "progress.csv",
        "step,grad_norm",
        50,
        lambda number: f"{number},nan",
    )
    said = says("doctor", tmp_path / "logs")
    assert said.startswith("21 runs: 1 broken, 20 healthy")
    places = [
        said.index(each) for each in ("z broken:", "seed-0/PPO_1 healthy:", "seed-9/PPO_1 healthy:")
    ]
    assert places == sorted(places)
    assert "tfevents" not in said
    assert bad.parent.name in said


@pytest.mark.parametrize("verb", ["doctor", "show", "serve"])
def test_what_is_no_log_is_told_at_once(tmp_path: Path, says: Says, verb: str) -> None:
    (tmp_path / "last.ckpt").write_bytes(b"PK\x03\x04" + bytes(100))
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "log.csv.gz").write_bytes(b"\x1f\x8b" + bytes(100))
    assert "it is a checkpoint" in says(verb, tmp_path / "last.ckpt", code=2)
    assert f"`gradiometer run {tmp_path}/train.py` trains and measures" in says(
        verb, tmp_path / "train.py", code=2
    )
    assert "packed (gzip) and cannot be unpacked" in says(verb, tmp_path / "log.csv.gz", code=2)
    assert f"did you mean '{tmp_path}/train.py'" in says(verb, tmp_path / "trian.py", code=2)


def test_a_folder_without_a_log_is_served_and_said_to_be_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Path] = []
    monkeypatch.setattr(server, "serve", lambda root, **_: served.append(root))
    assert run(["serve", str(tmp_path)]) == 0
    assert "nothing to show yet: " in capsys.readouterr().err
    csv(tmp_path / "a" / "progress.csv", "step,reward", 9, lambda number: f"{number},1")
    assert run(["serve", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""
    assert served == [tmp_path, tmp_path]


def test_numbers_are_whole_on_a_narrow_screen_and_long_names_wrap(
    tmp_path: Path, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    name = "a_very_long_name_of_a_series_that_somebody_chose/and/more"
    log = csv(tmp_path / "a.csv", f"step,{name}", 9, lambda number: f"{number},{number + 0.12345}")
    said = says("show", log)
    assert "last mean min max points" in said
    assert "8.123 4.123 0.1235 8.123 9" in said
