"""What a random policy and a simple rule earn is part of the outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradiometer.doctor.diagnosis import diagnose
from gradiometer.records import Finding
from gradiometer.store.reader import Run

Patient = Callable[..., Run]
N = 150


def curve(start: float, end: float, sigma: float, n: int = N, *, rests: bool = False) -> Any:
    noise = np.random.default_rng(3).normal(0.0, sigma, n)
    way = np.minimum(np.linspace(0.0, 2.0, n), 1.0) if rests else np.linspace(0.0, 1.0, n)
    return start + (end - start) * way + noise


def serious(found: Any) -> list[Finding]:
    return [each for each in found.findings if each.severity != "info"]


SMALL_RISE = curve(0.547, 0.61, 0.02)
"""Document 004's repaired study: its rise is certain and worth nothing."""


def test_without_a_known_random_policy_a_small_certain_rise_is_healthy(patient: Patient) -> None:
    assert diagnose(patient({"reward": SMALL_RISE})).state == "healthy"


def test_a_reward_that_ends_at_the_level_of_a_random_policy_learned_nothing(
    patient: Patient,
) -> None:
    found = diagnose(patient({"reward": SMALL_RISE}, facts={"random_reward": 0.58}))
    assert found.state == "not-learning"
    assert "a random policy earns 0.58" in found.verdict
    assert "nothing was learned" in found.verdict
    assert "Nothing wrong" not in found.verdict


@pytest.mark.parametrize(
    ("rewards", "facts", "state"),
    [
        pytest.param(curve(-1250, -1180, 20), {"random_reward": -1200.0}, "not-learning", id="neg"),
        pytest.param(curve(-1250, -300, 60), {"random_reward": -1200.0}, "healthy", id="neg-up"),
        pytest.param(curve(950, 1080, 3), {"random_reward": 950.0}, "healthy", id="alive-bonus"),
        pytest.param(curve(0.0, 0.3, 0.05), {"random_reward": 0.0}, "healthy", id="random-is-zero"),
        pytest.param(curve(-2.0, 0.0, 0.1), {"random_reward": 0.0}, "not-learning", id="up-to-it"),
        pytest.param(
            curve(20, 30, 2), {"random_reward": 22.0, "baseline_reward": 195.0}, "not-learning",
            id="a-twentieth-of-the-way",
        ),
        pytest.param(
            curve(480, 500, 1), {"random_reward": 490.0, "max_reward": 500.0}, "healthy",
            id="at-the-maximum",
        ),
    ],
)  # fmt: skip
def test_the_level_is_judged_by_what_there_is_to_gain_and_by_the_scatter(
    patient: Patient, rewards: Any, facts: dict[str, float], state: str
) -> None:
    assert diagnose(patient({"reward": rewards}, facts=facts)).state == state


def test_a_run_that_has_just_begun_and_rises_is_too_early_and_not_accused(
    patient: Patient,
) -> None:
    begun = diagnose(patient({"reward": curve(18.0, 23.0, 0.5, 40)}, facts={"random_reward": 22.0}))
    assert begun.state == "too-early"
    assert not serious(begun)


def test_a_reward_that_rests_below_a_simple_rule_is_a_concern(patient: Patient) -> None:
    facts = {"random_reward": 1.05, "baseline_reward": 2.36}
    rests = diagnose(patient({"reward": curve(1.05, 1.4, 0.03, rests=True)}, facts=facts))
    assert rests.state == "concern"
    assert "the baseline 2.36" in rests.verdict
    rising = diagnose(patient({"reward": curve(1.05, 1.4, 0.03)}, facts=facts))
    assert rising.state == "healthy"


def test_a_success_rate_is_not_compared_with_a_reward(patient: Patient) -> None:
    rate = np.clip(curve(0.1, 0.5, 0.03), 0.0, 1.0)
    found = diagnose(patient({"success_rate": rate}, facts={"random_reward": 22.0}))
    assert found.state == "healthy"


def test_an_entropy_bonus_that_leads_comes_before_what_describes_layers(patient: Patient) -> None:
    series = {
        "reward": SMALL_RISE,
        "entropy": np.full(N, 3.89) + 0.001 * curve(0.0, 0.0, 1.0),
        "grad/policy/term/entropy/share": np.full(N, 0.7),
        "dormant_fraction": np.full(N, 0.7),
    }
    found = diagnose(patient(series, facts={"random_reward": 0.58}))
    ids = [each.id for each in found.findings]
    assert ids[0] == "entropy-never-falls"
    assert "dormant-units" in ids
    assert found.findings[0].severity == "warn"
