"""The state of a run: what its outcome did, and what that is called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gradiometer.doctor.diagnosis import diagnose
from gradiometer.doctor.outcome import outcome_of
from gradiometer.doctor.report import as_text, plain
from gradiometer.doctor.rundata import RunData
from gradiometer.doctor.state import STATES
from gradiometer.store.logs import Log
from gradiometer.store.reader import Run

Patient = Callable[..., Run]
N = 200


def noise(n: int = N, sigma: float = 0.05, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(0.0, sigma, n)


def rise(n: int = N, start: float = 0.2, end: float = 0.8) -> Any:
    return np.linspace(start, end, n)


def averaged(course: Any, episodes: int = 30, seed: int = 0, share: float = 0.1) -> Any:
    """Means over the last `episodes`, one new one a row: smooth, and worth few values."""
    before = np.concatenate([np.full(episodes - 1, course[0]), course])
    wide = before + np.random.default_rng(seed).normal(0.0, share * abs(course).max(), len(before))
    return np.convolve(wide, np.full(episodes, 1.0 / episodes), "valid")


SHORT = 36
RISE_THEN_FALL = np.concatenate([np.linspace(0.1, 0.9, 100), np.linspace(0.9, 0.45, 100)])
PEAK = np.concatenate([np.linspace(0.1, 0.9, 80), np.linspace(0.9, 0.6, 120)])
CASES = {
    "a rise": ({"reward": 5.0 * (rise() + noise())}, "healthy"),
    "a start at the maximum": ({"reward": np.minimum(0.98 + noise(sigma=0.01), 1.0)}, "healthy"),
    "a rise of which half is lost": ({"reward": 5.0 * (RISE_THEN_FALL + noise())}, "concern"),
    "a short smooth fall": ({"reward": averaged(rise(SHORT, -60.0, -900.0))}, "broken"),
    "a short average that wanders": (
        {"reward": averaged(np.full(SHORT, 60.0), share=0.5)},
        "too-early",
    ),
    "a schedule that is over": (
        {
            "reward": 3.0 + noise(SHORT, sigma=1.0),
            "learning_rate": np.linspace(1e-6, 0.0, SHORT),
        },
        "not-learning",
    ),
    "noise": ({"reward": 3.0 + noise(sigma=0.3)}, "not-learning"),
    "a rise of one hundredth": ({"reward": -49.8 + 0.5 * rise() + noise(sigma=0.02)}, "broken"),
    "a collapse": ({"reward": np.where(np.arange(N) < 120, 3.0, -4.0) + noise()}, "broken"),
    "back at its start": (
        {"reward": 30.0 + 450.0 * (np.minimum(rise(), 1.0) * (np.arange(N) < 160)) + noise()},
        "broken",
    ),
    "a held-out score that hardly varies": (
        {"val/success_rate": 0.704 + noise(sigma=0.006), "reward": 0.7 + noise(sigma=0.03)},
        "not-learning",
    ),
    "a constant": ({"reward": np.full(N, -21.0)}, "broken"),
    "no group with a spread": (
        {"reward": 0.5 + noise(), "zero_variance_groups": np.ones(N)},
        "broken",
    ),
    "learned, and no group has a spread any more": (
        {
            "reward": 0.2 + 0.6 * np.minimum(2.0 * np.linspace(0.0, 1.0, N), 1.0) + noise(),
            "zero_variance_groups": np.where(np.arange(N) < N // 2, 0.2, 1.0),
        },
        "concern",
    ),
    "hardly learned, and no group has a spread any more": (
        {
            "reward": 0.01 + 0.1 * np.minimum(2.0 * np.linspace(0.0, 1.0, N), 1.0),
            "zero_variance_groups": np.where(np.arange(N) < N // 2, 0.2, 1.0),
            "success_rate": 0.01 + 0.1 * np.minimum(2.0 * np.linspace(0.0, 1.0, N), 1.0),
        },
        "broken",
    ),
    "a loss that is no number": (
        {"reward": rise(), "loss": np.where(np.arange(N) < 150, 1.0, np.nan)},
        "broken",
    ),
    "a TD loss that explodes": (
        {"reward": 20.0 - 10.0 * rise() + noise(), "value_loss": np.geomspace(1.0, 1e8, N)},
        "broken",
    ),
    "a third lost, and the policy far from its reference": (
        {"reward": 5.0 * PEAK + noise(), "kl_ref": np.geomspace(0.003, 30.0, N)},
        "broken",
    ),
    "a small fall in few points": (
        {"reward": 5.0 - 0.9 * rise(30) + noise(30, seed=1)},
        "not-learning",
    ),
    "five points": ({"reward": rise(5)}, "too-early"),
    "nine rows that go nowhere": ({"reward": 3.0 + noise(9, 0.3)}, "too-early"),
    "nine rows of a small rise": ({"reward": rise(9, 2.0, 2.3) + noise(9)}, "too-early"),
    "nine rows, all of the last above all of the first": ({"reward": rise(9)}, "concern"),
    "single successes, more and more often": (
        {"success_rate": 1.0 * (np.random.default_rng(4).random(460) < rise(460, 0.01, 0.4))},
        "healthy",
    ),
    "a supervised training that prints its entropy": (
        {"loss": 2.0 - rise() + noise(), "entropy": 2.0 - rise(), "token_accuracy": rise()},
        "healthy",
    ),
    "the loss of a DQN says nothing of its policy": (
        {"loss": 2.0 - rise() + noise(), "exploration_rate": 1.0 - rise()},
        "unknown",
    ),
    "passes over the data are no success": (
        {
            "success_rate": np.repeat(np.arange(1.0, 5.0), N // 4),
            "reward": 5.0 * (rise() + noise()),
        },
        "healthy",
    ),
    "fifty points of large noise": ({"reward": 0.1 + noise(50, 0.3)}, "too-early"),
    "a warm-up": (
        {"reward": 3.0 + noise(), "learning_rate": np.linspace(0.0, 1e-6, N)},
        "too-early",
    ),
    "held-out scores alone": ({"val/reward": 5.0 * (rise(17) + noise(17))}, "healthy"),
    "a loss that falls": ({"loss": 2.0 - rise() + noise()}, "healthy"),
    "nothing to judge by": ({"entropy": np.full(N, 1.0)}, "unknown"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_state_of_a_run(patient: Patient, case: str) -> None:
    series, state = CASES[case]
    found = diagnose(patient(series))
    assert found.state == state, found.verdict
    assert found.verdict.startswith(f"{state}: ")
    assert plain(found)["state"] == state
    assert as_text(found, width=400).splitlines()[0].startswith(f"{state}: ")
    assert state in STATES


def test_the_best_step_and_what_is_left_of_it_are_said(patient: Patient) -> None:
    run = patient({"reward": 5.0 * (RISE_THEN_FALL + noise())})
    found = outcome_of(RunData(run))
    assert found is not None
    assert found.course == "gained"
    assert 85 <= found.top_step <= 115
    assert found.top == pytest.approx(4.3, abs=0.3)
    assert 0.4 <= found.lost <= 0.65
    assert "best 4." in diagnose(run).verdict


def test_what_was_gained_up_to_the_middle_was_not_gained_at_once(patient: Patient) -> None:
    found = diagnose(patient({"reward": 5.0 * PEAK + noise(), "clip_fraction": np.full(N, 0.6)}))
    assert found.state == "concern", found.verdict
    assert "all of it in the first" not in found.verdict
    assert "of the gain is lost" in found.verdict


def test_a_success_by_luck_is_no_level_to_fall_from(patient: Patient) -> None:
    once = np.zeros(120)
    once[8] = 1.0
    found = diagnose(patient({"success_rate": once}))
    assert found.state == diagnose(patient({"success_rate": 0.0 * once})).state == "broken"
    assert "fell" not in found.verdict
    assert "reward-declining" not in {each.id for each in found.findings}


def test_nothing_wrong_is_never_said_of_a_run_that_did_not_learn(patient: Patient) -> None:
    said = diagnose(patient({"reward": 3.0 + noise(sigma=0.3)})).verdict
    assert "from step 0 to 199" in said
    assert "Nothing wrong" not in said


def test_held_out_scores_come_before_the_training_reward(patient: Patient) -> None:
    evaluated = (range(0, N, 10), 5.0 * (0.9 - rise(20) + noise(20)))
    found = outcome_of(RunData(patient({"reward": 5.0 * rise(), "val/reward": evaluated})))
    assert found is not None
    assert found.noun == "held-out score"
    assert found.course == "fell"


def test_few_held_out_scores_that_decide_nothing_leave_it_to_the_reward(patient: Patient) -> None:
    evaluated = (range(0, N, 25), noise(8, 1.0))
    found = outcome_of(
        RunData(patient({"reward": 5.0 * (rise() + noise()), "val/reward": evaluated}))
    )
    assert found is not None
    assert found.noun == "reward"
    assert found.course == "gained"


def test_an_early_rise_that_stands_is_neither_constant_nor_flat(
    patient: Patient, patients: ModuleType
) -> None:
    """Ten spreads in the first fifth of 25 points, and then hardly a change: to the eye it rose."""
    learned = 20.0 + 10.0 * (1.0 - np.exp(-np.linspace(0.0, 5.0, 25)))
    for seed in range(5):
        found = diagnose(patient({"reward": learned + patients.ar1(25, 0.9, 1.0, seed)}), only=())
        assert found.state in ("healthy", "concern", "too-early"), found.verdict


def test_noise_about_zero_that_remembers_may_not_be_rising(
    patient: Patient, patients: ModuleType
) -> None:
    """Of a reward about zero every change is large for its size; its noise is what it is."""
    runs = [patient({"reward": patients.ar1(200, 0.9, 1.0, seed)}) for seed in range(8)]
    states = [diagnose(run, only=()).state for run in runs]
    assert not {"healthy", "concern"} & set(states)


def test_a_change_that_cannot_be_large_is_flat_however_likely(patient: Patient) -> None:
    """From 22.9 to 25.3 of 500, in 40 noisy points: whether that is chance does not matter."""
    rewards = 23.0 + 2.5 * rise(40, 0.0, 1.0) + noise(40, 1.4, 5)
    found = diagnose(patient({"reward": rewards}, facts={"config": {"max_reward": 500.0}}), only=())
    assert found.state == "not-learning", found.verdict


@pytest.mark.parametrize("name", ["val/reward", "eval/mean_reward", "test/score"])
def test_a_held_out_score_that_never_changes_leaves_it_to_the_reward(
    patient: Patient, name: str
) -> None:
    run = patient({"reward": 5.0 * (rise() + noise()), name: np.full(N, 3.0)})
    found = diagnose(run)
    assert found.state == "healthy", found.verdict
    assert "the reward rose" in found.verdict


def test_an_outcome_is_computed_once(patient: Patient) -> None:
    run = RunData(patient({"reward": rise()}))
    assert outcome_of(run) is outcome_of(run)


def test_what_might_be_the_outcome_is_asked_for(patient: Patient) -> None:
    said = diagnose(patient({"zz/quux": rise(), "entropy": np.full(N, 1.0)})).verdict
    assert "zz/quux" in said
    assert "--name reward=COLUMN" in said


@pytest.mark.parametrize(("start", "end"), [(-7.5, 7.8), (60.0, 240.0), (-7000.0, -1050.0)])
def test_a_smooth_rise_in_a_few_dozen_rows_is_not_too_early(
    patient: Patient, start: float, end: float
) -> None:
    """As SB3 logs 100,000 steps: fast, then slower; its differences remember like a walk's."""
    bend = 1.0 - np.exp(-np.linspace(0.0, 4.0, SHORT))
    wander = np.cumsum(noise(SHORT, 0.01 * (end - start), seed=1))
    run = patient({"reward": start + (end - start) * bend / bend[-1] + wander})
    assert diagnose(run).state in ("healthy", "concern")


def test_a_few_dozen_rows_in_which_nothing_rises_are_not_too_early(patient: Patient) -> None:
    """Up to noise of half of what there is to gain; and 15 rows are few whatever they show."""
    flat = diagnose(patient({"reward": 0.85 + noise(26, 0.03)}))
    assert flat.state == "not-learning"
    assert "so few points would hide a small rise" in flat.verdict
    assert diagnose(patient({"reward": 0.85 + noise(15, 0.03)})).state == "too-early"
    assert diagnose(patient({"reward": 0.85 + noise(26, 1.2)})).state == "too-early"
    hint = 0.85 + 0.06 * rise(26) + noise(26, 0.03)
    assert diagnose(patient({"reward": hint})).state != "not-learning"


def test_a_small_part_gained_at_once_and_nothing_since_is_no_training_that_learns(
    patient: Patient,
) -> None:
    quick = np.minimum(np.linspace(0.0, 20.0, N), 1.0)
    small = diagnose(patient({"reward": -26.6 + 3.0 * quick + noise(sigma=0.4)}))
    assert small.state == "not-learning"
    assert "all of it in the first 15%" in small.verdict
    most = diagnose(patient({"reward": 500.0 + 1200.0 * quick + noise(sigma=60.0)}))
    assert most.state == "healthy"


def test_a_mean_over_100_episodes_of_many_more_remembers_no_other_row() -> None:
    """25 rows of 2,048 steps with episodes of 15: each row has seen its own 136 episodes."""

    def state(length: float) -> str:
        bend = 1.0 - np.exp(-np.linspace(0.0, 5.0, 25))
        reward = -20.0 + 8.0 * bend + noise(25, 0.1, seed=3)
        reward[20] -= 5.0  # one update too large
        rows = [
            (2048 * (n + 1), {"rollout/ep_rew_mean": value, "rollout/ep_len_mean": length})
            for n, value in enumerate(reward.tolist())
        ]
        facts = {"imported": {"library": "SB3", "x_axis": "environment steps"}}
        return diagnose(Log(Path("x"), name="x", run_id="x", rows=rows, facts=facts)).state

    assert state(15.0) in ("healthy", "concern")
    assert state(1000.0) == "too-early"


def test_a_rise_with_a_strong_sign_to_watch_is_a_concern_and_not_clean(patient: Patient) -> None:
    entropy = 0.6 * np.exp(-np.linspace(0.0, 4.5, N)) + 0.01
    logged = {"val/success_rate": rise() + noise(sigma=0.01), "entropy": entropy}
    found = diagnose(patient({**logged, "ppo/clip_fraction": np.linspace(0.15, 0.6, N)}))
    assert found.state == "concern", found.verdict
    assert "Watch: " in found.verdict
    assert "still rises: 0.2" in found.verdict
    assert "stands at" not in found.verdict


def test_a_verdict_without_a_warning_tells_the_first_note(patient: Patient) -> None:
    flat_since = np.minimum(rise(end=2.6), 0.6)
    found = diagnose(patient({"reward": 5.0 * (flat_since + noise(sigma=0.02))}))
    assert found.state == "healthy", found.verdict
    assert "Note: The reward is flat" in found.verdict
    assert "Nothing wrong" not in found.verdict


def test_a_healthy_verdict_does_not_dwell_on_how_gradients_shrank(patient: Patient) -> None:
    shrinking = 10.0 ** np.linspace(1.0, -2.0, N)
    run = patient({"reward": rise() + noise(sigma=0.01), "grad/all/norm/raw": shrinking})
    found = diagnose(run)
    assert "gradient-drift" in [each.id for each in found.findings]
    assert found.state == "healthy"
    assert "gradient" not in found.verdict
