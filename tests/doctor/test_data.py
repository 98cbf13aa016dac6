"""Rules on the data: each fires on the smallest evidence, is silent just below it and on its
healthy look-alike."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradiometer.doctor.rule import Skipped, rules
from gradiometer.doctor.rundata import RunData
from gradiometer.records import Finding
from gradiometer.store.reader import Run

RULES = {rule.id: rule for rule in rules()}
Patient = Callable[..., Run]


def only(id: str, run: Run) -> Finding:
    found = RULES[id](RunData(run))
    assert not isinstance(found, Skipped), found.why
    assert [finding.id for finding in found] == [id]
    assert found[0].fix
    assert found[0].confirm
    return found[0]


def silent(id: str, run: Run) -> bool:
    return RULES[id](RunData(run)) == []


def skipped(id: str, run: Run) -> str:
    found = RULES[id](RunData(run))
    assert isinstance(found, Skipped), found
    return found.why


@pytest.fixture
def flat(patients: ModuleType) -> Any:
    return 1.0 + patients.ar1(100, 0.3, 0.02)


@pytest.fixture
def rising(patients: ModuleType) -> Any:
    return np.linspace(0.1, 1.0, 100) + patients.ar1(100, 0.3, 0.02)


# -- observation-scale


def test_large_observations_of_a_policy_that_does_not_learn_are_a_warning(
    patient: Patient, flat: Any
) -> None:
    found = only(
        "observation-scale", patient({"observation/max_abs": np.full(100, 11.0), "reward": flat})
    )
    assert found.severity == "warn"
    assert found.since_step == 0
    assert "11" in found.evidence[0].reading


def test_observations_within_ten_are_fine(patient: Patient, flat: Any) -> None:
    assert silent(
        "observation-scale", patient({"observation/max_abs": np.full(100, 9.5), "reward": flat})
    )


def test_pixels_that_are_learned_from_are_fine(patient: Patient, rising: Any) -> None:
    pixels = {"observation/max_abs": np.full(100, 255.0), "observation/std": np.full(100, 60.0)}
    assert silent("observation-scale", patient({**pixels, "reward": rising}))
    solved = patient({**pixels, "reward": np.full(100, 500.0)}, facts={"max_reward": 500})
    assert silent("observation-scale", solved)


def test_large_observations_without_a_reward_are_information(patient: Patient) -> None:
    assert (
        only("observation-scale", patient({"observation/max_abs": np.full(20, 1e3)})).severity
        == "info"
    )


def test_observations_that_grow_are_dated(patient: Patient, flat: Any) -> None:
    grown = np.concatenate([np.full(30, 2.0), np.full(70, 1e3)])
    assert (
        only(
            "observation-scale", patient({"observation/max_abs": grown, "reward": flat})
        ).since_step
        == 30
    )


def test_constant_observations_are_a_warning_at_once(patient: Patient) -> None:
    assert only("observation-scale", patient({"observation/std": np.zeros(9)})).severity == "warn"
    hardly = patient({"observation/std": np.full(9, 9e-4)})
    assert only("observation-scale", hardly).severity == "warn"
    assert silent("observation-scale", patient({"observation/std": np.full(9, 1.1e-3)}))


def test_a_bandit_that_learns_may_see_the_same_all_the_time(patient: Patient, rising: Any) -> None:
    constant = {"observation/std": np.zeros(100)}
    watched = only("observation-scale", patient({**constant, "reward": rising}))
    assert watched.severity == "info"  # one answer for all states may be all there is to learn
    assert watched.title.startswith("Watch: ")
    solved = patient({**constant, "reward": np.full(100, 5.0)}, facts={"max_reward": 5.0})
    assert only("observation-scale", solved).severity == "info"


def test_constant_observations_are_critical_where_more_could_be_had(
    patient: Patient, patients: ModuleType
) -> None:
    reward = np.minimum(np.linspace(0.0, 1.2, 100), 0.3) + patients.ar1(100, 0.0, 0.005)
    run = patient({"observation/std": np.zeros(100), "reward": reward}, facts={"max_reward": 1.0})
    assert only("observation-scale", run).severity == "critical"


def test_observations_need_nine_points(patient: Patient) -> None:
    assert "9 needed" in skipped("observation-scale", patient({"observation/std": np.zeros(8)}))
    assert "meter.log(observation" in skipped("observation-scale", patient({"reward": np.zeros(8)}))


# -- misaligned-data


def test_the_same_lag_most_of_the_time_is_a_misalignment(patient: Patient, flat: Any) -> None:
    lag = np.ones(100)
    lag[::6] = 0.0
    run = patient({"reward_lag": lag, "reward": flat, "terminal_correlation": np.full(100, 0.05)})
    found = only("misaligned-data", run)
    assert found.severity == "warn"
    assert "1 step apart" in found.title
    read = [each.series for each in found.evidence]
    assert read == ["reward_lag", "terminal_correlation", "reward"]


def test_a_lag_of_zero_and_lags_that_do_not_agree_are_fine(patient: Patient) -> None:
    rng = np.random.default_rng(0)
    mostly = np.zeros(60)
    mostly[::5] = 1.0
    assert silent("misaligned-data", patient({"reward_lag": mostly}))
    assert silent("misaligned-data", patient({"reward_lag": rng.integers(-3, 4, 60)}))
    often = np.where(np.arange(60) % 4 == 0, 0.0, 1.0)  # three of four agree
    assert silent("misaligned-data", patient({"reward_lag": often}))


def test_a_lag_that_does_no_harm_is_information(patient: Patient, rising: Any) -> None:
    assert (
        only(
            "misaligned-data", patient({"reward_lag": np.full(100, 2.0), "reward": rising})
        ).severity
        == "info"
    )


def test_a_lag_is_dated(patient: Patient) -> None:
    found = only(
        "misaligned-data", patient({"reward_lag": np.concatenate([np.zeros(20), -np.ones(40)])})
    )
    assert found.since_step == 20


def test_targets_that_ignore_the_end_are_a_suspicion(
    patient: Patient, patients: ModuleType
) -> None:
    found = only("misaligned-data", patient({"terminal_correlation": patients.ar1(100, 0.3, 0.05)}))
    assert (found.severity, found.basis) == ("info", "statistical")
    assert silent(
        "misaligned-data", patient({"terminal_correlation": 0.4 + patients.ar1(100, 0.3, 0.05)})
    )
    assert silent(
        "misaligned-data", patient({"terminal_correlation": 0.95 + patients.ar1(100, 0.3, 0.02)})
    )


def test_a_correlation_of_zero_beside_a_lag_of_zero_is_somebody_elses_matter(
    patient: Patient,
) -> None:
    """Then data is aligned and the targets are wrong: returns-wrong."""
    assert silent(
        "misaligned-data",
        patient({"reward_lag": np.zeros(50), "terminal_correlation": np.zeros(50)}),
    )


def test_misalignment_needs_nine_points(patient: Patient) -> None:
    assert "9 needed" in skipped("misaligned-data", patient({"reward_lag": np.ones(8)}))
    assert "reward_lag" in skipped("misaligned-data", patient({"reward": np.ones(8)}))


# -- both


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_healthy_data_raises_nothing(phi: float, patient: Patient, patients: ModuleType) -> None:
    for seed in range(4):
        run = patient(
            {
                "observation/std": 1.0 + patients.ar1(100, phi, 0.2, seed),
                "observation/max_abs": 4.0 + patients.ar1(100, phi, 1.0, seed + 1),
                "reward_lag": (np.random.default_rng(seed).random(100) < 0.1).astype(float),
                "terminal_correlation": 0.9 + patients.ar1(100, phi, 0.05, seed + 2),
                "reward": 1.0 + patients.ar1(100, phi, 0.1, seed + 3),
            }
        )
        assert silent("observation-scale", run)
        assert silent("misaligned-data", run)


NAMES = ("observation/std", "observation/max_abs", "reward_lag", "terminal_correlation", "reward")


@given(st.dictionaries(st.sampled_from(NAMES), st.lists(st.floats(width=32), max_size=20)))
@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_rule_falls_over_whatever_the_series_hold(
    patient: Patient, series: dict[str, list[float]]
) -> None:
    data = RunData(patient(series))
    for id in ("observation-scale", "misaligned-data"):
        assert isinstance(RULES[id](data), Skipped | list)


def test_observations_beyond_any_pixel_are_worth_a_line_though_they_are_learned_from(
    patient: Patient, rising: Any
) -> None:
    far = {"observation/max_abs": np.full(100, 3000.0), "reward": rising}
    assert only("observation-scale", patient(far)).severity == "info"
