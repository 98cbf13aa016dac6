"""`gradiometer analyze` on a real, tiny training of three steps with a checkpoint after each."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import gradiometer as gm
from gradiometer.cli.main import run

TINY = (
    "model.hidden_size=32",
    "model.num_layers=1",
    "model.num_heads=2",
    "model.intermediate_size=32",
    "env.max_turns=2",
    "env.max_actions_per_turn=2",
    "warm_start.steps=10",
    "warm_start.batch_size=8",
    "warm_start.num_levels=32",
    "es_manager.train.env_groups=4",
    "es_manager.train.group_size=4",
    "es_manager.val.env_groups=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.rollout.rollout_filter_value=1",
    "trainer.gradient_analysis_mode=false",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("analyze") / "run"
    assert (
        run(
            [
                "train",
                "sokoban",
                *TINY,
                f"run={folder}",
                "trainer.total_training_steps=3",
                "trainer.save_freq=1",
            ]
        )
        == 0
    )
    return folder


def probed(capsys: pytest.CaptureFixture[str], target: Path, *overrides: str) -> dict[str, object]:
    capsys.readouterr()
    code = run(["analyze", str(target), "run=null", *overrides, "--json"])
    told = capsys.readouterr()
    assert code == 0, told.err
    found: dict[str, object] = json.loads(told.out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    code = run(["analyze", *arguments])
    told = capsys.readouterr().err
    assert code == 2, told
    assert "Traceback" not in told
    (line,) = [line for line in told.splitlines() if line.startswith("error: ")]
    return line


def test_an_analysis_into_a_run_that_has_steps_is_refused_and_cuts_nothing(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (trained / "run.db").read_bytes()
    said = refused(capsys, str(trained / "checkpoints" / "global_step_1"), f"run={trained}")
    assert "already holds" in said
    assert (trained / "run.db").read_bytes() == before
    with gm.load(trained) as kept:
        assert kept.series("reward")[0].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "override",
    [
        "trainer.gradient_analysis_mode=false",
        "trainer.gradient_analysis_every=5",
        "trainer.exit_after_gradient_analysis=false",
    ],
)
def test_no_override_takes_the_analysis_away(
    trained: Path, capsys: pytest.CaptureFixture[str], override: str
) -> None:
    assert probed(capsys, trained / "checkpoints" / "global_step_1", override)["step"] == 2


def test_the_null_can_be_switched_off(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained / "checkpoints" / "global_step_1"
    for switch, there in (("true", True), ("false", False)):
        metrics = probed(capsys, folder, f"trainer.gradient_analysis_null={switch}")["metrics"]
        assert isinstance(metrics, dict)
        assert ("grad_norm/all/null/task" in metrics) is there


def test_a_folder_inside_a_checkpoint_stands_for_it(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = trained / "checkpoints" / "global_step_2"
    whole = probed(capsys, folder)
    assert probed(capsys, folder / "actor") == whole
    monkeypatch.chdir(folder / "actor")
    assert probed(capsys, Path(".")) == whole


def test_a_folder_that_is_no_checkpoint_names_one_that_is(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "did you mean" in refused(capsys, str(trained))


def test_of_several_checkpoints_the_newest_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (9, 100, 20):
        (tmp_path / f"global_step_{step}").mkdir()
    assert "global_step_100, the newest" in refused(capsys, str(tmp_path))


@pytest.mark.parametrize("content", ["{", "[" * 100_000, "[]"])
def test_a_damaged_config_is_one_error(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    folder = shutil.copytree(trained / "checkpoints" / "global_step_1", tmp_path / "global_step_1")
    (folder / "config.json").write_text(content)
    assert "config.json" in refused(capsys, str(folder), "run=null")
