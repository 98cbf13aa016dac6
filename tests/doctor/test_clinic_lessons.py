"""What trained faults taught the rules: each lesson with its least evidence, and the twin it must
leave alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gradiometer.doctor.diagnosis import diagnose
from gradiometer.doctor.terms import role_of
from gradiometer.records import Finding
from gradiometer.store.reader import Run

Patient = Callable[..., Run]
N = 60
FLAT = 0.57 + 0.03 * np.sin(np.arange(N))


def first(run: Run, id: str) -> Finding | None:
    return next((each for each in diagnose(run).findings if each.id == id), None)


def still(kl: float, entropy_moves: float) -> dict[str, np.ndarray]:
    wave = np.sin(np.arange(N))
    return {
        "reward": FLAT,
        "approx_kl": kl * (1.0 + 0.5 * wave),
        "entropy": 3.765 + entropy_moves * np.arange(N),
        "grad/all/update_ratio": np.full(N, 2.4e-4),
    }


def test_a_policy_that_keeps_its_probabilities_is_frozen_though_its_weights_move(
    patient: Patient,
) -> None:
    found = first(patient(still(4e-8, 1e-7)), "policy-frozen")
    assert found is not None
    assert found.severity == "warn"
    assert {each.series for each in found.evidence} >= {"approx_kl", "grad/all/update_ratio"}


@pytest.mark.parametrize(("kl", "entropy_moves"), [(4e-5, 1e-7), (4e-8, -1e-3), (4e-8, 0.0)])
def test_a_kl_that_is_small_for_another_reason_freezes_nothing(
    patient: Patient, kl: float, entropy_moves: float
) -> None:
    """A larger one; an entropy on its way; an entropy that cannot move, as of a Gaussian of fixed
    width."""
    assert first(patient(still(kl, entropy_moves)), "policy-frozen") is None


@pytest.mark.parametrize(("times", "severity"), [(0.7, "warn"), (0.3, "info")])
def test_a_bonus_that_stands_up_to_the_policy_on_a_block_holds_the_entropy(
    patient: Patient, times: float, severity: str
) -> None:
    wave = 1.0 + 0.1 * np.sin(np.arange(N))
    series = {
        "reward": FLAT,
        "entropy": np.full(N, 3.765),
        "grad/policy_head/term/policy/norm": 0.01 * wave,
        "grad/policy_head/term/entropy/norm": 0.01 * times * wave,
    }
    found = first(patient(series), "entropy-never-falls")
    assert found is not None
    assert found.severity == severity


@pytest.mark.parametrize(("left", "told"), [(5e-4, True), (5e-2, False)])
def test_a_clip_that_leaves_next_to_nothing_is_blamed_for_small_updates(
    patient: Patient, left: float, told: bool
) -> None:
    series = {
        "reward": FLAT,
        "grad/all/clip/ratio": np.full(N, left),
        "grad/all/clip/active": np.ones(N),
        "grad/all/update_ratio": np.full(N, 3e-5),
    }
    assert (first(patient(series), "over-clipping") is not None) == told


@pytest.mark.parametrize(
    ("facts", "severity"), [({"config": {"start": "trained.pt"}}, "info"), ({}, "warn")]
)
def test_units_asleep_in_a_policy_that_came_trained_and_lost_nothing_are_information(
    patient: Patient, facts: dict[str, object], severity: str
) -> None:
    found = first(
        patient({"reward": FLAT, "dormant_fraction": np.full(N, 0.6)}, facts=facts), "dormant-units"
    )
    assert found is not None
    assert found.severity == severity


def test_a_clip_whose_last_half_is_nan_is_no_clip_that_is_always_active(patient: Patient) -> None:
    """Warnings are errors here: a mean of nothing is one."""
    ratio = np.where(np.arange(N) < N // 3, 0.5, np.nan)
    assert (
        first(patient({"reward": FLAT, "grad/all/clip/ratio": ratio}), "clip-always-active") is None
    )


@pytest.mark.parametrize(
    ("value", "told"), [(np.linspace(0.05, 0.2, N), False), (np.linspace(0.2, 0.05, N), True)]
)
def test_an_offset_that_a_slow_critic_still_works_off_is_not_the_scale_of_the_advantages(
    patient: Patient, value: np.ndarray, told: bool
) -> None:
    series = {
        "reward": FLAT,
        "returns/mean": FLAT,
        "value_mean": value,
        "value_loss": np.linspace(0.14, 0.07, N),
        "advantages/mean": np.full(N, 1.7),
        "advantages/std": np.full(N, 0.9),
    }
    assert (first(patient(series), "advantage-scale") is not None) == told


def test_a_learning_rate_of_zero_is_not_told_to_be_ten_times_as_high(patient: Patient) -> None:
    found = first(patient({"reward": FLAT, "learning_rate": np.zeros(N)}), "policy-frozen")
    assert found is not None
    assert found.fix[0].startswith("Set the learning rate above zero")


def test_a_loss_that_is_nan_is_not_called_fine(patient: Patient) -> None:
    loss = np.where(np.arange(N) < 15, 2.0, np.nan)
    run = patient({"loss": loss, "entropy": np.full(N, 1.0), "learning_rate": np.full(N, 1e-3)})
    found = diagnose(run)
    assert found.findings[0].id == "nonfinite-gradient"
    assert found == diagnose(run)  # its curves are arrays, which do not compare


def test_a_loss_with_a_hole_is_told_with_its_step(patient: Patient) -> None:
    loss = np.where(np.arange(N) == 15, np.nan, 2.0)
    said = diagnose(
        patient({"loss": loss, "entropy": np.full(N, 1.0), "learning_rate": np.full(N, 1e-3)})
    ).verdict
    assert "the loss is not finite at 1 of 60 steps, first at step 15" in said


@pytest.mark.parametrize(
    ("term", "role"),
    [
        ("policyLoss", "policy"),
        ("entropyLoss", "entropy"),
        ("KLDiv", "kl"),
        ("kldiv", "kl"),
        ("klpenalty", "kl"),
        ("pgloss", "policy"),
        ("value_loss", "value"),
        ("vfLoss", "value"),
        ("loss", None),
        ("quality", None),
    ],
)
def test_a_term_is_known_however_its_words_are_joined(term: str, role: str | None) -> None:
    assert role_of(term) == role
