"""A stagnated REINFORCE run on graphs, from its log alone: three of its readings are
artefacts, and none is a cause.

Its numbers: a post-clip norm of 1.0000 at every step, explained variance of 5 to 7 % from a
baseline that already contains the reward, an entropy of 8.83 on rows of degree 8 that ends at
0.004, a policy head from 0.99 to 0.08 of the gradient while the trunk's part grows, and a reward
that never rises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradiometer.doctor.diagnosis import Diagnosis, diagnose
from gradiometer.records import Event, Finding
from gradiometer.store.reader import Run

EPOCHS, LOGGED, SAMPLES, MOMENTUM = 50, 150, 150, 0.95
FACTS: dict[str, Any] = {
    "learning_rate": 0.001,
    "epochs": EPOCHS,
    "entropy_coef": 0.01,
    "grad_clip": 1.0,
    "degree": 8,
    "temperature": {"initial": 0.9, "anneal_factor": 0.97, "min_temperature": 0.5},
    "baseline": {
        "type": "exponential_moving",
        "momentum": MOMENTUM,
        "var_momentum": 0.99,
        "warmup_steps": 100,
    },
}
Patient = Callable[..., Run]


def along(points: dict[int, float], sigma: float, seed: int, logged: int) -> Any:
    """A curve through these epochs, straight in its logarithm, with multiplicative noise."""
    curve = np.interp(np.linspace(1, EPOCHS, logged), list(points), np.log(list(points.values())))
    return np.exp(curve + np.random.default_rng(seed).normal(0.0, sigma, logged))


def rewards_and_variances(seed: int, logged: int = LOGGED) -> dict[str, Any]:
    """The mean reward of each batch, and how much of its variance a moving average explains that
    saw it, or did not yet."""
    rng = np.random.default_rng(seed)
    level = np.interp(
        np.linspace(1, EPOCHS, logged),
        [1, 5, 10, 16, EPOCHS],
        [0.4404, 0.4316, 0.4252, 0.4245, 0.4240],
    )
    baseline = float(level[0])
    found: dict[str, list[float]] = {
        "reward": [],
        "explained_variance": [],
        "explained_variance_before": [],
    }
    for mean in level:
        rewards = rng.normal(mean, 0.05, SAMPLES)
        before, after = np.empty(SAMPLES), np.empty(SAMPLES)
        for i, reward in enumerate(rewards):
            before[i] = baseline
            baseline = MOMENTUM * baseline + (1 - MOMENTUM) * reward
            after[i] = baseline
        found["reward"].append(rewards.mean())
        found["explained_variance"].append(1 - np.var(rewards - after) / np.var(rewards))
        found["explained_variance_before"].append(1 - np.var(rewards - before) / np.var(rewards))
    return {name: np.array(values) for name, values in found.items()}


def source(seed: int = 0, *, stage: str = "raw", logged: int = LOGGED) -> dict[str, Any]:
    """The log. Norms are post-clip whatever their name says; the parts' squares add up to that of
    the whole."""
    head = np.minimum(along({1: 0.9874, 10: 0.1587, 30: 0.0772}, 0.05, seed + 1, logged), 0.99)
    read = rewards_and_variances(seed, logged)
    del read["explained_variance_before"]
    return read | {
        "entropy": along({1: 8.8268, 10: 0.0211, 20: 0.0041}, 0.05, seed + 2, logged),
        "advantages/std": 0.535 + np.random.default_rng(seed + 3).normal(0.0, 0.01, logged),
        f"grad/all/norm/{stage}": np.round(np.full(logged, 0.99999), 4),
        f"grad/policy_head/norm/{stage}": head,
        f"grad/gnn_trunk/norm/{stage}": np.sqrt(1.0 - head**2),
    }


def every(diagnosis: Diagnosis) -> dict[str, Finding]:
    return {finding.id: finding for finding in (*diagnosis.findings, *diagnosis.folded)}


def serious(diagnosis: Diagnosis) -> list[str]:
    return [finding.id for finding in diagnosis.findings if finding.severity != "info"]


STAGES = pytest.mark.parametrize("stage", ["raw", "clipped"])


def test_the_fixture_reads_as_the_source_does() -> None:
    for seed in range(3):
        read = source(seed)
        assert 0.05 < np.median(read["explained_variance"]) < 0.09
        assert abs(read["entropy"][0] - 8.83) < 1.5
        assert read["entropy"][-1] < 0.005
        assert set(read["grad/all/norm/raw"]) == {1.0}
        assert read["grad/gnn_trunk/norm/raw"][-1] > read["grad/gnn_trunk/norm/raw"][0]


@STAGES
def test_the_baseline_leak_is_a_suspicion(patient: Patient, stage: str) -> None:
    found = every(diagnose(patient(source(stage=stage), facts=FACTS)))["baseline-leak"]
    assert found.severity == "info"
    assert any(
        "0.0744" in evidence.reading or "0.074" in evidence.reading for evidence in found.evidence
    )


def test_with_both_baselines_logged_the_leak_is_certain(patient: Patient) -> None:
    found = every(diagnose(patient(source() | rewards_and_variances(0), facts=FACTS)))[
        "baseline-leak"
    ]
    assert (found.severity, found.basis) == ("warn", "statistical")


@STAGES
def test_the_entropy_is_that_of_another_distribution_and_that_comes_first(
    patient: Patient, stage: str
) -> None:
    diagnosis = diagnose(patient(source(stage=stage), facts=FACTS))
    first = diagnosis.findings[0]
    assert first.id == "entropy-of-wrong-distribution"
    assert "2.08" in first.title  # ln 8
    assert first.title in diagnosis.verdict


@STAGES
def test_a_post_clip_norm_proves_nothing_and_the_report_says_so(
    patient: Patient, stage: str
) -> None:
    found = every(diagnose(patient(source(stage=stage), facts=FACTS)))["clip-always-active"]
    assert found.severity == "info"
    assert "proves nothing about raw gradients" in f"{found.title} {found.cause}"


@STAGES
@pytest.mark.parametrize("seed", range(5))
def test_no_artefact_is_taken_for_a_cause(patient: Patient, stage: str, seed: int) -> None:
    """What is left to act on is what was sampled; the collapse read off another distribution hangs
    on that."""
    diagnosis = diagnose(patient(source(seed, stage=stage), facts=FACTS))
    assert serious(diagnosis) == ["entropy-of-wrong-distribution"]
    folded = {finding.id for finding in diagnosis.folded}
    assert {"entropy-collapse", "reward-plateau"} <= folded
    artefacts = {
        "critic-explains-nothing",
        "over-clipping",
        "vanishing-gradient",
        "exploding-gradient",
        "noise-dominated",
    }
    assert artefacts.isdisjoint(every(diagnosis))


@pytest.mark.parametrize("seed", range(3))
def test_logged_once_an_epoch_it_is_the_same_case(patient: Patient, seed: int) -> None:
    """A head whose gradient starts high and decays within ten measurements has no spikes."""
    diagnosis = diagnose(patient(source(seed, logged=EPOCHS), facts=FACTS))
    assert serious(diagnosis) == ["entropy-of-wrong-distribution"]


def test_the_head_starves_because_the_entropy_collapsed(patient: Patient) -> None:
    diagnosis = diagnose(patient(source(), facts=FACTS))
    assert "head-collapse" in {finding.id for finding in diagnosis.folded}


def test_without_the_degree_the_collapse_is_the_first_cause(patient: Patient) -> None:
    facts = {name: value for name, value in FACTS.items() if name != "degree"}
    diagnosis = diagnose(patient(source(), facts=facts))
    assert serious(diagnosis) == ["entropy-collapse"]
    assert "reward-plateau" in diagnosis.findings[0].suppressed
    assert any(skipped.rule == "entropy-of-wrong-distribution" for skipped in diagnosis.skipped)


def test_with_the_loss_split_into_terms_the_detached_bonus_comes_first(patient: Patient) -> None:
    dead = Event(
        step=0,
        kind="dead-term",
        message="entropy has no path to any parameter",
        detail={"term": "entropy"},
    )
    loss = {"grad/all/term/entropy/loss": -0.01 * source()["entropy"]}
    diagnosis = diagnose(patient(source() | loss, facts=FACTS, events=[dead]))
    first = diagnosis.findings[0]
    assert (first.id, first.severity, first.basis) == ("dead-term", "critical", "proved")
    assert {"entropy-collapse", "head-collapse", "reward-plateau"} <= set(first.suppressed)
    assert serious(diagnosis) == [
        "dead-term",
        "entropy-of-wrong-distribution",
    ]  # two faults at once


def test_a_repaired_run_has_none_of_it(patient: Patient, patients: Any) -> None:
    """Entropy of one row that stays up, a reward that rises by more than half, raw norms, a
    baseline used before its update."""
    rng = np.random.default_rng(0)
    norms = np.exp(patients.ar1(LOGGED, 0.3, 0.2))
    repaired = {
        "reward": np.linspace(0.44, 0.72, LOGGED) + rng.normal(0.0, 0.005, LOGGED),
        "entropy": np.linspace(2.07, 1.2, LOGGED) + rng.normal(0.0, 0.02, LOGGED),
        "explained_variance": np.linspace(0.05, 0.4, LOGGED) + rng.normal(0.0, 0.02, LOGGED),
        "explained_variance_before": np.linspace(0.05, 0.4, LOGGED) + rng.normal(0.0, 0.02, LOGGED),
        "grad/all/norm/raw": norms,
        "grad/policy_head/norm/raw": 0.7 * norms,
        "grad/gnn_trunk/norm/raw": np.sqrt(1 - 0.49) * norms,
    }
    assert serious(diagnose(patient(repaired, facts=FACTS))) == []
