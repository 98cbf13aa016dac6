"""Exploration: fires on the smallest evidence, silent just below it, silent on what only looks like
it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gradiometer.doctor.outcome import outcome_of
from gradiometer.doctor.rule import Skipped, rules
from gradiometer.doctor.rundata import RunData
from gradiometer.store.reader import Run

Patient = Callable[..., Run]
FLAT = 1.0 + 0.05 * np.random.default_rng(0).normal(size=60)
RISING = np.linspace(0.0, 10.0, 60)


def judge(id: str, run: Run) -> Any:
    """The one finding, None, or Skipped, through the registry."""
    found = next(each for each in rules() if each.id == id)(RunData(run))
    return found if isinstance(found, Skipped) else (found[0] if found else None)


def falling(to: float, *, at: int = 10, n: int = 60) -> np.ndarray:
    return np.concatenate([np.linspace(2.0, to * 2.0, at), np.full(n - at, to * 2.0)])


# what became of the reward
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "state"),
    [
        (FLAT, "flat"),
        (RISING, "gained"),
        (RISING[::-1], "fell"),
        (np.concatenate([np.linspace(0, 10, 6), np.full(194, 10.0)]), "gained"),
        (np.concatenate([np.zeros(100), (np.arange(100) % 5 < 2)]), "gained"),
        (np.full(40, 3.0), "flat"),
    ],
)
def test_the_end_of_the_reward_is_compared_with_its_start(
    patient: Patient, values: np.ndarray, state: str
) -> None:
    progress = outcome_of(RunData(patient({"reward": values})))
    assert progress is not None
    assert progress.course == state


def test_a_reward_at_the_known_maximum_is_at_its_best_even_below_zero(patient: Patient) -> None:
    at_best = outcome_of(
        RunData(patient({"reward": np.full(20, -10.2)}, facts={"max_reward": -10.0}))
    )
    below = outcome_of(
        RunData(patient({"reward": np.full(20, -12.0)}, facts={"max_reward": -10.0}))
    )
    assert (at_best and at_best.course) == "best"
    assert (below and below.course) == "flat"


def test_a_reward_that_rose_early_stands_and_one_that_still_rises_does_not(
    patient: Patient,
) -> None:
    early = outcome_of(
        RunData(patient({"reward": np.concatenate([np.linspace(0, 10, 15), np.full(45, 10.0)])}))
    )
    still = outcome_of(RunData(patient({"reward": RISING})))
    assert early is not None
    assert early.standing
    assert still is not None
    assert not still.standing


# entropy-collapse
# ----------------------------------------------------------------------------------------------------------


def test_entropy_below_a_tenth_with_a_flat_reward_is_a_collapse(patient: Patient) -> None:
    finding = judge("entropy-collapse", patient({"entropy": falling(0.09), "reward": FLAT}))
    assert finding.severity == "warn"
    assert 5 <= finding.since_step <= 10
    assert "9 %" in finding.title


def test_entropy_just_above_a_tenth_is_not(patient: Patient) -> None:
    assert judge("entropy-collapse", patient({"entropy": falling(0.11), "reward": FLAT})) is None


@pytest.mark.parametrize(
    "reward", [RISING, np.concatenate([np.linspace(0, 10, 30), np.full(30, 10.0)])]
)
def test_entropy_that_falls_late_while_the_reward_rises_is_something_to_watch(
    patient: Patient, reward: np.ndarray
) -> None:
    """A strong sign is never silence; nobody knows yet whether it is the end of learning."""
    found = judge("entropy-collapse", patient({"entropy": falling(0.05, at=30), "reward": reward}))
    assert found.severity == "info"
    assert found.title.startswith("Watch: ")


def test_entropy_at_zero_is_success_at_the_known_maximum(patient: Patient) -> None:
    reward = np.concatenate([np.linspace(0, 1, 10), np.full(50, 0.99)])
    logged = {"entropy": falling(0.01), "reward": reward}
    assert judge("entropy-collapse", patient(logged, facts={"max_reward": 1.0})) is None
    assert judge("entropy-collapse", patient(logged)) is None  # a score near 1
    early = {"entropy": falling(0.05), "reward": 7.0 * reward}
    assert (
        judge("entropy-collapse", patient(early)).severity == "info"
    )  # nobody knows the maximum, and it was early
    spent = {**logged, "reward": 7.0 * reward}
    assert judge("entropy-collapse", patient(spent)).severity == "warn"  # nothing left to try
    assert judge("entropy-collapse", patient(logged, facts={"max_reward": 5.0})).severity == "warn"


def test_the_source_s_run_of_21_epochs_is_a_collapse(patient: Patient) -> None:
    entropy = np.concatenate([np.geomspace(8.8268, 0.0211, 10), np.geomspace(0.019, 0.0041, 11)])
    reward = np.linspace(1.0643, 1.0545, 21) + 0.002 * np.random.default_rng(1).normal(size=21)
    finding = judge("entropy-collapse", patient({"entropy": entropy, "reward": reward}))
    assert finding.severity == "warn"
    assert finding.since_step <= 6


def test_the_fix_names_the_key_of_the_trainer_the_log_came_from(patient: Patient) -> None:
    logged = {"train/entropy_loss": -falling(0.02), "rollout/ep_rew_mean": FLAT}
    assert "ent_coef" in judge("entropy-collapse", patient(logged)).fix[0]
    verl = {"actor/entropy": falling(0.02), "critic/score/mean": FLAT}
    fix = judge("entropy-collapse", patient(verl)).fix
    assert "entropy_coeff" in fix[0]
    assert "clip_ratio_high" in fix[1]


def test_a_negative_entropy_is_that_of_a_density_and_has_no_share(patient: Patient) -> None:
    skipped = judge(
        "entropy-collapse", patient({"entropy": np.linspace(2, -3, 60), "reward": FLAT})
    )
    assert isinstance(skipped, Skipped)
    assert "density" in skipped.why


def test_a_collapse_without_a_reward_is_something_to_watch(patient: Patient) -> None:
    """The sign is there whether or not anybody logged what it cost."""
    found = judge("entropy-collapse", patient({"entropy": falling(0.02)}))
    assert found.severity == "info"
    assert found.title.startswith("Watch: ")


def test_a_policy_that_is_deterministic_from_the_first_measurement_on(patient: Patient) -> None:
    never = {"entropy": np.full(40, 1e-9), "reward": FLAT[:40]}
    found = judge("entropy-collapse", patient(never))
    assert (found.severity, found.since_step) == ("warn", 0)
    assert "deterministic" in found.title
    assert judge("entropy-collapse", patient({**never, "entropy": np.full(40, 0.01)})) is None


def test_a_standard_deviation_of_actions_that_grows_without_gain(patient: Patient) -> None:
    grown = {"action_noise": np.geomspace(1.0, 4.0, 60), "reward": FLAT}
    found = judge("action-noise-grows", patient(grown))
    assert found.severity == "warn"
    assert "from 1.06 to 3.52" in found.title
    logged = {"Policy/mean_noise_std": grown["action_noise"], "Train/mean_reward": FLAT}
    assert "entropy_coef" in judge("action-noise-grows", patient(logged)).fix[0]
    rising = judge("action-noise-grows", patient({**grown, "reward": RISING}))
    assert (rising.severity, rising.title[:6]) == ("info", "Watch:")
    steady = {**grown, "action_noise": np.geomspace(1.0, 1.8, 60)}
    assert judge("action-noise-grows", patient(steady)) is None


# entropy-never-falls
# -------------------------------------------------------------------------------------------------------


def test_entropy_that_stays_uniform_with_a_flat_reward_is_a_random_policy(patient: Patient) -> None:
    finding = judge(
        "entropy-never-falls", patient({"entropy": np.full(60, np.log(4) * 0.999), "reward": FLAT})
    )
    assert finding.severity == "warn"
    assert "4 actions" in finding.evidence[0].reading
    assert finding.since_step == 0


def test_a_pretrained_policy_that_holds_its_entropy_is_only_information(patient: Patient) -> None:
    logged = {"entropy": np.full(60, 0.31), "reward": FLAT}
    assert judge("entropy-never-falls", patient(logged)).severity == "info"
    assert judge("entropy-never-falls", patient(logged, facts={"num_actions": 50_000})) is None


def test_an_entropy_bonus_that_leads_the_actor_makes_it_a_warning(patient: Patient) -> None:
    logged = {
        "entropy": np.full(60, 0.31),
        "reward": FLAT,
        "grad/actor/term/entropy/share": np.full(60, 0.8),
    }
    finding = judge("entropy-never-falls", patient(logged))
    assert finding.severity == "warn"
    assert "80 %" in finding.evidence[-1].reading


def test_entropy_that_falls_a_little_or_earns_reward_is_well(patient: Patient) -> None:
    slow = np.log(4) * np.linspace(1.0, 0.9, 60)
    assert judge("entropy-never-falls", patient({"entropy": slow, "reward": FLAT})) is None
    held = np.full(60, np.log(4))
    assert judge("entropy-never-falls", patient({"entropy": held, "reward": RISING})) is None


def test_nineteen_measurements_are_too_few_to_call_a_policy_idle(patient: Patient) -> None:
    logged = {"entropy": np.full(19, np.log(4)), "reward": FLAT[:19]}
    assert isinstance(judge("entropy-never-falls", patient(logged)), Skipped)


# action-collapse
# -----------------------------------------------------------------------------------------------------------


def test_one_action_above_four_fifths_with_a_flat_reward_is_a_collapse(patient: Patient) -> None:
    share = np.concatenate([np.full(20, 0.5), np.full(40, 0.81)])
    finding = judge("action-collapse", patient({"action_share": share, "reward": FLAT}))
    assert finding.severity == "warn"
    assert finding.since_step == 20


def test_one_action_just_below_or_one_that_is_the_answer_is_not(patient: Patient) -> None:
    assert (
        judge("action-collapse", patient({"action_share": np.full(60, 0.79), "reward": FLAT}))
        is None
    )
    rising = {"action_share": np.full(60, 0.95), "reward": RISING}
    assert judge("action-collapse", patient(rising)).title.startswith("Watch: ")
    solved = {"action_share": np.full(60, 0.95), "reward": np.full(60, 1.0)}
    assert judge("action-collapse", patient(solved, facts={"max_reward": 1.0})) is None


# exploration-schedule
# ------------------------------------------------------------------------------------------------------

FAST = np.concatenate([[1.0], np.full(199, 0.05)])


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (np.zeros(200), "off from the start"),
        (np.full(200, 1.0), "never falls"),
        (np.linspace(0.05, 1.0, 200), "grows"),
        (FAST, "in the first"),
    ],
)
def test_a_broken_schedule_with_a_flat_reward_is_told(
    patient: Patient, rate: np.ndarray, words: str
) -> None:
    flat = 1.0 + 0.05 * np.random.default_rng(3).normal(size=200)
    finding = judge(
        "exploration-schedule",
        patient({"rollout/exploration_rate": rate, "rollout/ep_rew_mean": flat}),
    )
    assert finding.severity == "warn"
    assert words in finding.title
    assert "exploration_fraction" in finding.fix[1]


@pytest.mark.parametrize(
    "rate",
    [
        np.full(200, 0.05),
        np.linspace(1.0, 0.9, 200),
        np.concatenate([np.linspace(1.0, 0.05, 20), np.full(180, 0.05)]),
        np.concatenate([np.linspace(1.0, 0.05, 7), np.full(193, 0.05)]),
    ],
)
def test_a_small_constant_a_slow_and_a_usual_schedule_are_well(
    patient: Patient, rate: np.ndarray
) -> None:
    flat = 1.0 + 0.05 * np.random.default_rng(3).normal(size=200)
    assert (
        judge("exploration-schedule", patient({"exploration_rate": rate, "reward": flat})) is None
    )


@pytest.mark.parametrize(("random", "told"), [(0.0, True), (0.01, False)])
def test_stretches_without_a_random_action_show_that_none_is_taken(
    patient: Patient, random: float, told: bool
) -> None:
    """Counted among the actions of a program that logs no ε."""
    counted = np.zeros(12)
    counted[5] = random
    run = patient({"credit/exploration_rate": counted, "reward": FLAT})
    found = judge("exploration-schedule", run)
    assert ("No action was random" in found.title) if told else found is None


def test_any_schedule_is_well_while_the_reward_rises(patient: Patient) -> None:
    assert (
        judge(
            "exploration-schedule",
            patient({"exploration_rate": FAST, "reward": np.linspace(0, 9, 200)}),
        )
        is None
    )


def test_a_rate_in_percent_is_not_judged(patient: Patient) -> None:
    assert isinstance(
        judge("exploration-schedule", patient({"exploration_rate": np.full(30, 50.0)})), Skipped
    )


# all of them
# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_healthy_wandering_raises_no_alarm(
    tmp_path: Path, patients: ModuleType, phi: float
) -> None:
    for seed in range(8):
        n = 60
        rising = np.linspace(0, 10, n) + patients.ar1(n, phi, 1.0, seed)
        held = np.clip(1.2 + 0.1 * patients.ar1(n, phi, 1.0, seed + 100), 0.01, None)
        logged = {"reward": rising, "entropy": held, "action_share": np.clip(held - 0.2, 0, 1)}
        data = RunData(patients.patient(tmp_path, logged))
        for each in rules():
            if each.family == "exploration":
                found = each(data)
                assert isinstance(found, Skipped) or not [f for f in found if f.severity != "info"]


@pytest.mark.parametrize(
    "values", [[], [1.0], [np.nan] * 40, [0.0] * 40, [np.inf, -np.inf] * 20, [1e100, -1e100] * 20]
)
def test_no_series_makes_a_rule_raise(patient: Patient, values: list[float]) -> None:
    names = ("entropy", "reward", "action_share", "exploration_rate")
    for logged in (dict.fromkeys(names, values), {**dict.fromkeys(names, values), "reward": FLAT}):
        data = RunData(patient({**logged, "learning_rate": [1.0]}))
        for each in rules():
            if each.family == "exploration":
                each(data)


@pytest.mark.parametrize(("weight", "told"), [(2.0, True), (0.01, False)])
def test_a_bonus_that_keeps_a_learning_policy_at_random_is_a_note(
    patient: Patient, weight: float, told: bool
) -> None:
    """Its weight by the settings, or by dL/dH where they do not tell."""
    series = {"entropy": np.full(60, 1.37), "reward": RISING}
    by_fact = judge("entropy-never-falls", patient(series, facts={"ent_coef": weight}))
    assert (by_fact is not None) == told
    by_slope = judge(
        "entropy-never-falls", patient({**series, "credit/entropy_slope": np.full(60, -weight)})
    )
    assert (by_slope is not None) == told
    if told:
        assert (by_fact.severity, by_slope.severity) == ("info", "info")
        assert "weight of 2" in by_fact.title
