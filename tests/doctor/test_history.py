"""Where the norm goes, what comes back in it, and whether the gradient has a direction:
information, never an alarm."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gradiometer.doctor.rule import Skipped, rules
from gradiometer.doctor.rundata import RunData
from gradiometer.records import Finding
from gradiometer.store.reader import Run

Patient = Callable[..., Run]
DRIFT, SWING, RANDOM = "gradient-drift", "gradient-oscillation", "direction-random"


def judge(id: str, run: Run) -> list[Finding] | Skipped:
    return next(rule for rule in rules() if rule.id == id)(RunData(run))


def one(id: str, run: Run) -> Finding:
    found = judge(id, run)
    assert isinstance(found, list)
    assert [finding.id for finding in found] == [id]
    assert found[0].severity == "info"
    return found[0]


def noise(n: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=n)


def norm(log: Any, seed: int = 0) -> Any:
    return 10.0 ** (np.asarray(log) + 0.1 * noise(len(log), seed))


def flat(n: int) -> Any:
    return 1.0 + 0.1 * noise(n, 7)


# Drift


def test_a_norm_that_falls_by_more_than_a_decade_drifts(patient: Patient) -> None:
    finding = one(DRIFT, patient({"grad_norm": norm(np.linspace(0.0, -1.3, 100))}))
    size = float(re.search(r"drifts down by a factor of (\S+) over", finding.title)[1])  # type: ignore[index]
    assert 10**1.2 < size < 10**1.4
    assert finding.basis == "statistical"
    assert finding.since_step == 0
    assert "drifts up" in one(DRIFT, patient({"grad_norm": norm(np.linspace(0.0, 1.3, 100))})).title


def test_a_norm_that_goes_through_the_whole_range_of_floats_drifts(patient: Patient) -> None:
    rising = 10.0 ** np.linspace(-305.0, 305.0, 100)
    assert "drifts up" in one(DRIFT, patient({"grad_norm": rising})).title


def test_half_a_decade_is_not_worth_a_word(patient: Patient) -> None:
    assert judge(DRIFT, patient({"grad_norm": norm(np.linspace(0.0, -0.5, 100))})) == []


def test_a_schedule_of_the_learning_rate_is_named_as_what_is_behind_it(patient: Patient) -> None:
    series = {
        "grad_norm": norm(np.linspace(0.0, -1.3, 100)),
        "learning_rate": np.linspace(1e-3, 1e-5, 100),
    }
    assert "learning rate" in one(DRIFT, patient(series)).cause
    steady = series | {"learning_rate": np.full(100, 1e-3), "reward": np.linspace(0.0, 5.0, 100)}
    assert "converges" in one(DRIFT, patient(steady)).cause


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_wandering_norms_do_not_drift(patient: Patient, patients: ModuleType, phi: float) -> None:
    blocks = ("all", "actor", "critic")
    for seed in range(6):
        series = {
            f"grad/{b}/norm/raw": 10.0 ** patients.ar1(120, phi, 0.3, 9 * seed + k)
            for k, b in enumerate(blocks)
        }
        assert judge(DRIFT, patient(series)) == []


# Oscillation


def swing(period: float, amplitude: float, n: int = 200) -> Any:
    return norm(amplitude * np.sin(2 * np.pi * np.arange(n) / period))


def test_a_swing_over_all_that_floats_hold_is_told_and_stops_nobody(patient: Patient) -> None:
    wide = np.where(np.arange(200) % 20 < 10, 1e300, 1e-300)
    found = one(SWING, patient({"grad/all/norm/raw": wide}))
    assert "1e+300" in found.title


def test_a_norm_that_comes_and_goes_by_a_factor_of_two_oscillates(patient: Patient) -> None:
    finding = one(SWING, patient({"grad_norm": swing(13.0, 0.3)}))
    assert "every 13" in finding.title
    assert judge(SWING, patient({"grad_norm": swing(13.0, 0.1)})) == []


def test_the_epochs_of_ppo_are_known_and_no_finding(patient: Patient) -> None:
    facts = {"update_epochs": 10, "num_minibatches": 4}
    assert judge(SWING, patient({"grad_norm": swing(40.0, 0.4)}, facts=facts)) == []
    assert one(SWING, patient({"grad_norm": swing(29.0, 0.4)}, facts=facts))


def test_gradients_that_point_against_the_ones_before_overshoot(patient: Patient) -> None:
    cosines = -0.4 + 0.1 * noise(40)
    cosines[:10] += 0.5
    finding = one(SWING, patient({"grad/all/cos_prev": cosines}))
    assert "against the one before" in finding.title
    assert finding.since_step == 10
    assert isinstance(
        judge(SWING, patient({"grad/all/cos_prev": -0.1 + 0.05 * noise(40)})), Skipped
    )


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_red_noise_does_not_oscillate(patient: Patient, patients: ModuleType, phi: float) -> None:
    for seed in range(6):
        assert judge(SWING, patient({"grad_norm": 10.0 ** patients.ar1(150, phi, 0.3, seed)})) == []


# Direction


def directions(mean: float, n: int = 200, **more: Any) -> dict[str, Any]:
    cosines = {
        f"grad/all/{name}": mean + 0.05 * noise(n, k)
        for k, name in enumerate(("cos_prev", "cos_ema"))
    }
    return cosines | {"grad/all/cos_noise": np.full(n, 0.02), "reward": flat(n)} | more


def test_cosines_of_noise_with_a_flat_reward_are_a_word_and_no_alarm(patient: Patient) -> None:
    finding = one(RANDOM, patient(directions(0.0)))
    assert finding.basis == "statistical"
    assert finding.since_step == 100
    assert len(finding.evidence) == 3


def test_a_cosine_above_noise_is_a_direction(patient: Patient) -> None:
    assert judge(RANDOM, patient(directions(0.1))) == []
    assert judge(RANDOM, patient(directions(-0.1))) == []


def test_one_cosine_that_sees_a_direction_is_enough(patient: Patient) -> None:
    assert (
        judge(RANDOM, patient(directions(0.0) | {"grad/all/cos_ema": 0.3 + 0.05 * noise(200)}))
        == []
    )


def test_a_cosine_near_zero_is_normal_while_the_policy_learns(patient: Patient) -> None:
    assert judge(RANDOM, patient(directions(0.0, reward=np.linspace(0.0, 5.0, 200)))) == []
    assert judge(RANDOM, patient(directions(0.0), facts={"max_reward": 1.0})) == []


def wide(mean: float, n: int) -> dict[str, Any]:
    """A small policy: one cosine of noise alone has a standard deviation of 0.45."""
    cosines = {
        f"grad/all/{name}": np.tanh(mean + 0.5 * noise(n, k))
        for k, name in enumerate(("cos_prev", "cos_ema"))
    }
    return cosines | {"grad/all/cos_noise": np.full(n, 0.85), "reward": flat(n)}


def test_a_wide_band_needs_more_cosines_and_hides_no_direction(patient: Patient) -> None:
    assert one(RANDOM, patient(wide(0.0, 300)))
    assert judge(RANDOM, patient(wide(0.3, 300))) == []
    short = judge(RANDOM, patient(wide(0.0, 60)))
    assert isinstance(short, Skipped)
    assert "146 needed" in short.why


# All of them


def test_too_little_is_skipped_with_how_much_is_needed(patient: Patient) -> None:
    run = patient(directions(0.0, n=6) | {"grad_norm": norm(np.zeros(6))})
    for id in (DRIFT, SWING, RANDOM):
        found = judge(id, run)
        assert isinstance(found, Skipped)
        assert "6 points" in found.why
    quiet = directions(0.0)
    del quiet["grad/all/cos_noise"]
    assert isinstance(judge(RANDOM, patient(quiet)), Skipped)


@pytest.mark.parametrize(
    "values", [[1.0], [np.nan] * 40, [0.0] * 40, [1.0] * 40, [np.inf] * 40, [-1.0, np.nan] * 20]
)
def test_no_series_makes_a_rule_fall_over(patient: Patient, values: list[float]) -> None:
    names = [f"grad/all/{name}" for name in ("norm/raw", "cos_prev", "cos_ema", "cos_noise")] + [
        "learning_rate"
    ]
    run = patient(
        {name: (range(-5, len(values) - 5), values) for name in names} | {"reward": flat(40)}
    )
    for id in (DRIFT, SWING, RANDOM):
        assert isinstance(judge(id, run), list | Skipped)
