"""What the shell offers when TAB is pressed, as bash asks for it: `=` parts words there, and is a
word of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gradiometer.cli.main import run
from gradiometer.records import Row
from gradiometer.store.writer import Writer
from gradiometer_labs import LABS
from gradiometer_labs.faults import faults_of

Offers = Callable[..., list[str]]


@pytest.fixture
def offers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Offers:
    def ask(*words: str) -> list[str]:
        monkeypatch.setenv("_GRADIOMETER_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", "\n".join(("gradiometer", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        assert run([]) == 0
        return capsys.readouterr().out.split()

    return ask


def test_verbs_and_their_options_are_offered(offers: Offers) -> None:
    assert {"doctor", "serve", "train", "compare"} <= set(offers(""))
    assert offers("do") == ["doctor"]
    assert offers("doctor", "--fo") == ["--format"]
    assert "loss" in offers("metrics", "lo")


def test_train_is_offered_the_labs_and_then_the_faults_of_the_lab(offers: Offers) -> None:
    assert offers("train", "") == sorted(LABS)
    faults = sorted(each.name for each in faults_of("pendulum"))
    assert offers("train", "pendulum", "fa") == [f"fault={name}" for name in faults]
    assert offers("train", "pendulum", "fault", "=") == faults
    assert offers("train", "cartpole", "seed=2", "fault", "=", "lr") == ["lr_high", "lr_low"]
    assert offers("train", "nowhere", "fa") == []


def test_a_path_is_offered_the_runs_and_logs_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offers: Offers
) -> None:
    with Writer(tmp_path / "runs" / "ppo-7") as writer:
        writer.put(Row(step=0, wall_time=0.0, values={"reward": 1.0}))
    (tmp_path / "sb3").mkdir()
    (tmp_path / "sb3" / "progress.csv").write_text(
        "time/total_timesteps,rollout/ep_rew_mean\n1,2\n"
    )
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    assert offers("doctor", "") == ["runs/ppo-7", "sb3"]
    assert offers("serve", "ru") == ["runs/ppo-7"]
    assert offers("show", "./runs/") == ["./runs/ppo-7"]
    assert offers("compare", "sb3", f"{tmp_path}/ru") == [f"{tmp_path}/runs/ppo-7"]
    assert offers("doctor", "da") == []


def test_the_script_for_a_shell_is_printed() -> None:
    call = [sys.executable, "-m", "gradiometer", "--show-completion"]
    environment = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "PATH": ""}
    done = subprocess.run(
        [*call, "bash"], capture_output=True, text=True, env=environment, check=False
    )
    assert "_GRADIOMETER_COMPLETE=complete_bash" in done.stdout
