"""What another tool would see of a run, what public thresholds say, and what an earlier end would
have shown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gradiometer.doctor.rundata import RunData
from gradiometer.store.logs import Log
from gradiometer.store.reader import load
from gradiometer_labs.clinic.grid import SETUPS, ClinicTraining
from gradiometer_labs.clinic.judging import JudgeTask, scalar_log
from gradiometer_labs.clinic.thresholds import public_findings
from gradiometer_labs.clinic.training import TrainTask, kept_record


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clinic")


@pytest.fixture(scope="module")
def training(out: Path) -> ClinicTraining:
    """A broken cartpole, cut short, trained and ready to be judged."""
    with pytest.MonkeyPatch.context() as patched:
        short = SETUPS["cartpole-ppo"]
        patched.setitem(SETUPS, "cartpole-ppo", _shortened(short))
        made = ClinicTraining(setup="cartpole-ppo", fault="entropy_no_grad", seed=3)
        TrainTask(training=made, out=str(out))()
        yield made


def _shortened(setup):  # type: ignore[no-untyped-def]
    import dataclasses

    return dataclasses.replace(setup, overrides=("total_steps=6000", "every=4"))


@pytest.mark.slow
def test_what_was_trained_is_not_trained_again(out: Path, training: ClinicTraining) -> None:
    folder = out / training.name
    database = folder / "run" / "run.db"
    before = database.stat().st_mtime_ns
    TrainTask(training=training, out=str(out))()
    assert database.stat().st_mtime_ns == before
    other = ClinicTraining(setup=training.setup, fault=training.fault, seed=4)
    assert kept_record(folder, other) is None, "other settings are another training"


def test_a_dead_term_is_named_from_the_store_at_once_and_not_from_scalars(
    out: Path, training: ClinicTraining
) -> None:
    judged = JudgeTask(training=training, out=str(out))()
    assert judged.full[0].id == "dead-term"
    assert judged.early["5"][0] == "dead-term"
    assert "dead-term" not in [said.id for said in judged.scalars]
    assert judged.measured > 10


def test_the_scalar_log_has_what_others_log_and_nothing_of_ours(
    out: Path, training: ClinicTraining
) -> None:
    with load(out / training.name / "run") as run:
        log = scalar_log(run)
        names = set(log.names())
        assert {"reward", "entropy", "explained_variance", "approx_kl", "grad_norm"} <= names
        assert not any(
            name.startswith("grad/") or name in ("score_z", "reward_gain") for name in names
        )
        for ours, theirs in zip(run.series("entropy"), log.series("entropy"), strict=True):
            assert ours.tolist() == theirs.tolist()


def log(**series: list[float]) -> RunData:
    rows = [
        (step, {name: values[step] for name, values in series.items()})
        for step in range(len(next(iter(series.values()))))
    ]
    return RunData(Log(Path("log"), name="log", run_id="log", rows=rows, facts={}))


def test_public_thresholds_are_applied_as_they_stand() -> None:
    rising = list(np.linspace(1, 10, 20))
    assert public_findings(log(reward=rising)) == []
    assert public_findings(log(reward=rising, approx_kl=[0.03] * 20)) == ["step-too-large"]
    assert public_findings(log(reward=rising, explained_variance=[0.05] * 20)) == [
        "critic-explains-nothing"
    ]
    assert public_findings(log(reward=[5.0] * 20)) == ["reward-plateau"]
    assert public_findings(log(reward=rising, entropy=[float("nan")] * 20)) == [
        "nonfinite-gradient"
    ]
