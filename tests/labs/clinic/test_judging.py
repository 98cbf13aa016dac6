"""What another tool would see of a run, what public thresholds say, and what an earlier end would have shown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gradiometer.doctor.chart import Chart
from gradiometer.labs.clinic.admission import Admit, admitted
from gradiometer.labs.clinic.judging import Judge, scalar_log
from gradiometer.labs.clinic.patients import Patient
from gradiometer.labs.clinic.thresholds import public_findings
from gradiometer.labs.clinic.wards import WARDS
from gradiometer.store.logs import Log
from gradiometer.store.reader import load


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clinic")


@pytest.fixture(scope="module")
def patient(out: Path) -> Patient:
    """A broken cartpole, cut short, trained and ready to be judged."""
    with pytest.MonkeyPatch.context() as patched:
        short = WARDS["cartpole-ppo"]
        patched.setitem(WARDS, "cartpole-ppo", _shortened(short))
        made = Patient(ward="cartpole-ppo", fault="entropy_no_grad", seed=3)
        Admit(patient=made, out=str(out))()
        yield made


def _shortened(ward):  # type: ignore[no-untyped-def]
    import dataclasses

    return dataclasses.replace(ward, overrides=("total_steps=6000", "every=4"))


def test_what_was_trained_is_not_trained_again(out: Path, patient: Patient) -> None:
    folder = out / patient.name
    database = folder / "run" / "run.db"
    before = database.stat().st_mtime_ns
    Admit(patient=patient, out=str(out))()
    assert database.stat().st_mtime_ns == before
    other = Patient(ward=patient.ward, fault=patient.fault, seed=4)
    assert admitted(folder, other) is None, "other settings are another training"


def test_a_dead_term_is_named_from_the_store_at_once_and_not_from_scalars(out: Path, patient: Patient) -> None:
    judged = Judge(patient=patient, out=str(out))()
    assert judged.full[0].id == "dead-term"
    assert judged.early["5"][0] == "dead-term"
    assert "dead-term" not in [said.id for said in judged.scalars]
    assert judged.measured > 10


def test_the_scalar_log_has_what_others_log_and_nothing_of_ours(out: Path, patient: Patient) -> None:
    with load(out / patient.name / "run") as run:
        log = scalar_log(run)
        names = set(log.names())
        assert {"reward", "entropy", "explained_variance", "approx_kl", "grad_norm"} <= names
        assert not any(name.startswith("grad/") or name in ("score_z", "reward_gain") for name in names)
        for ours, theirs in zip(run.series("entropy"), log.series("entropy"), strict=True):
            assert ours.tolist() == theirs.tolist()


def log(**series: list[float]) -> Chart:
    rows = [
        (step, {name: values[step] for name, values in series.items()})
        for step in range(len(next(iter(series.values()))))
    ]
    return Chart(Log(Path("log"), name="log", run_id="log", rows=rows, facts={}))


def test_public_thresholds_are_applied_as_they_stand() -> None:
    rising = list(np.linspace(1, 10, 20))
    assert public_findings(log(reward=rising)) == []
    assert public_findings(log(reward=rising, approx_kl=[0.03] * 20)) == ["step-too-large"]
    assert public_findings(log(reward=rising, explained_variance=[0.05] * 20)) == ["critic-explains-nothing"]
    assert public_findings(log(reward=[5.0] * 20)) == ["reward-plateau"]
    assert public_findings(log(reward=rising, entropy=[float("nan")] * 20)) == ["nonfinite-gradient"]
