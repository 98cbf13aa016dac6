"""What people do at the edges: habits of other tools, a closed meter, a folder without rights."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import gradiometer as gm
from gradiometer.errors import GradiometerWarning, UsageError


def steps_of(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).square().mean().backward()
        optimizer.step()


@pytest.fixture
def model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


@pytest.fixture
def optimizer(model: nn.Linear) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


@pytest.mark.parametrize("wrong", [0.5, [1.0, 2.0], "reward", torch.ones(3)])
def test_what_has_no_name_is_refused_once_and_measuring_goes_on(
    wrong: object, model: nn.Linear, optimizer: torch.optim.Optimizer, tmp_path: Path
) -> None:
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        with pytest.warns(GradiometerWarning, match=r"meter.log takes names with numbers") as said:
            meter.log(wrong, reward=1.0)  # type: ignore[arg-type]
            meter.log(wrong, reward=1.0)  # type: ignore[arg-type]
        assert len(said) == 1
        assert said[0].filename == __file__
        steps_of(model, optimizer, 3)
    run = gm.load(tmp_path / "run")
    assert run.series("grad/all/norm/raw")[0].tolist() == [0, 1, 2]
    assert run.series("reward")[1].tolist() == [1.0]
    assert not run.events("fault")


def test_numbers_too_large_and_numbers_as_names_end_nothing(
    model: nn.Linear, optimizer: torch.optim.Optimizer, tmp_path: Path
) -> None:
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        with pytest.warns(GradiometerWarning, match="'huge' is 1000"):
            meter.log({"huge": 10**400, 7: 1.5})  # type: ignore[dict-item]
        steps_of(model, optimizer, 1)
    run = gm.load(tmp_path / "run")
    assert run.series("7")[1].tolist() == [1.5]
    assert len(run.series("grad/all/norm/raw")[0]) == 1


def test_a_step_names_the_optimizer_step_of_what_is_logged(
    model: nn.Linear, optimizer: torch.optim.Optimizer, tmp_path: Path
) -> None:
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        meter.at(env_steps=100)
        for number in range(4):
            steps_of(model, optimizer, 1)
            meter.at(env_steps=100 * (number + 2))
            meter.log({"reward": float(number)}, step=number)
        meter.log({"late": 1.0, "tensor": torch.tensor(2.0)}, step=1)
    run = gm.load(tmp_path / "run")
    assert run.series("reward")[0].tolist() == [0, 1, 2, 3]
    assert [run.series(name)[0].tolist() for name in ("late", "tensor")] == [[1], [1]]
    assert "step" not in run.names()


@pytest.mark.parametrize("step", [50_000, -1, "last"])
def test_a_step_of_another_axis_is_said_once_and_the_value_stays_with_the_gradients(
    step: int, model: nn.Linear, optimizer: torch.optim.Optimizer, tmp_path: Path
) -> None:
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        steps_of(model, optimizer, 3)
        with pytest.warns(GradiometerWarning, match=r"meter\.at\(env_steps=") as said:
            meter.log({"reward": 1.0}, step=step)
            meter.log({"loss": 1.0}, step=step)
        assert [each.filename for each in said] == [__file__]
    run = gm.load(tmp_path / "run")
    assert run.series("reward")[0].tolist() == run.series("loss")[0].tolist() == [2]


def test_logging_after_the_end_says_so_once(
    model: nn.Linear, optimizer: torch.optim.Optimizer, tmp_path: Path
) -> None:
    with gm.watch(model, optimizer, run=tmp_path / "run") as meter:
        steps_of(model, optimizer, 1)
    with pytest.warns(GradiometerWarning, match=r"after meter.close\(\)") as said:
        meter.log(reward=1.0)
        meter.record({"probe": 1.0})
    assert [each.filename for each in said] == [__file__]


def test_a_model_watched_twice_is_said(
    model: nn.Linear, optimizer: torch.optim.Optimizer, tmp_path: Path
) -> None:
    first = gm.watch(model, optimizer, run=tmp_path / "first")
    with pytest.warns(GradiometerWarning, match=r"watched already, by a meter that keeps .*first"):
        second = gm.watch(model, optimizer, run=None)
    first.close()
    second.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gm.watch(model, optimizer, run=None).close()


def test_a_folder_that_cannot_be_written_is_refused_before_the_training(
    model: nn.Linear, optimizer: torch.optim.Optimizer, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UsageError, match=r"the run cannot be kept in .*run=None"):
        gm.watch(model, optimizer, run=tmp_path / "file" / "run")
    gm.watch(model, optimizer, run=None).close()  # nothing is left open


def test_diagnose_takes_a_path_and_counts_from_the_end(
    model: nn.Linear, optimizer: torch.optim.Optimizer, tmp_path: Path
) -> None:
    with gm.watch(model, optimizer, budget=None, run=tmp_path / "run") as meter:
        for number in range(40):
            steps_of(model, optimizer, 1)
            meter.log(reward=float(number))
    found = gm.diagnose(tmp_path / "run")
    assert isinstance(found, gm.Diagnosis)
    with gm.load(tmp_path / "run") as run:
        assert found == gm.diagnose(run)
        last = gm.diagnose(run, since=-5)
        assert last == gm.diagnose(run, since=35) != found


def test_a_run_that_closes_says_what_was_measured_and_what_is_next(
    model: nn.Linear,
    optimizer: torch.optim.Optimizer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with gm.watch(model, optimizer, every=2, budget=None, run=tmp_path / "run") as meter:
        steps_of(model, optimizer, 5)
    meter.close()
    out, err = capsys.readouterr()
    doctor = f"next: gradiometer doctor {tmp_path / 'run'}"
    assert (out, err) == ("", f"gradiometer: measured 3 of 5 steps (every=2). {doctor}\n")
    kept = gm.load(tmp_path / "run").facts["measured"]
    assert (kept["measured"], kept["steps"], kept["beyond_budget"]) == (3, 5, 0.0)
    assert 0 < kept["share"] < 1


@pytest.mark.parametrize("options", [{"run": None}, {"run": "run", "quiet": True}])
def test_quiet_is_quiet_and_what_keeps_nothing_says_nothing(
    options: dict[str, object],
    model: nn.Linear,
    optimizer: torch.optim.Optimizer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with gm.watch(model, optimizer, **options):  # type: ignore[arg-type]
        steps_of(model, optimizer, 2)
    gm.watch(model, optimizer, run="without-a-step").close()
    assert capsys.readouterr() == ("", "")
