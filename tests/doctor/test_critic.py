"""Critics and baselines: fires on the smallest evidence, silent just below it, silent on what only
looks like it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gradiometer.doctor.rule import Skipped, rules
from gradiometer.doctor.rules.critic import leaked
from gradiometer.doctor.rundata import RunData
from gradiometer.store.reader import Run

Patient = Callable[..., Run]
RNG = np.random.default_rng(0)
FLAT = 1.0 + 0.05 * RNG.normal(size=60)
RISING = np.linspace(0.0, 10.0, 60)
NOISE = 0.01 * RNG.normal(size=60)
STEADY_LOSS = 2.0 + 0.02 * RNG.normal(size=60)


def judge(id: str, run: Run) -> Any:
    """The one finding, None, or Skipped, through the registry."""
    found = next(each for each in rules() if each.id == id)(RunData(run))
    return found if isinstance(found, Skipped) else (found[0] if found else None)


# critic-explains-nothing
# ---------------------------------------------------------------------------------------------------


def test_a_critic_below_a_tenth_after_the_warm_up_is_told_with_its_interval(
    patient: Patient,
) -> None:
    logged = {"explained_variance": 0.08 + NOISE, "value_loss": STEADY_LOSS, "reward": FLAT}
    finding = judge("critic-explains-nothing", patient(logged))
    assert (finding.severity, finding.basis) == ("warn", "statistical")
    assert "8 %" in finding.title
    assert "[" in finding.evidence[0].reading


def test_a_critic_just_above_a_tenth_is_not(patient: Patient) -> None:
    logged = {"explained_variance": 0.12 + NOISE, "value_loss": STEADY_LOSS, "reward": FLAT}
    assert judge("critic-explains-nothing", patient(logged)) is None


def test_a_poor_start_is_the_warm_up_and_no_finding(patient: Patient) -> None:
    explained = np.concatenate([np.full(12, -0.9), np.full(48, 0.6)]) + NOISE
    assert (
        judge("critic-explains-nothing", patient({"explained_variance": explained, "reward": FLAT}))
        is None
    )


def test_since_is_where_the_critic_stopped_explaining(patient: Patient) -> None:
    explained = np.concatenate(
        [np.full(20, 0.6), np.full(100, 0.0)]
    ) + 0.01 * np.random.default_rng(1).normal(size=120)
    flat = 1.0 + 0.05 * np.random.default_rng(2).normal(size=120)
    finding = judge(
        "critic-explains-nothing",
        patient({"explained_variance": explained[20:], "reward": flat[20:]}),
    )
    assert finding.since_step == 20  # the warm-up does not count


def test_a_critic_of_a_policy_that_learns_all_the_same_is_information_or_nothing(
    patient: Patient,
) -> None:
    low = {"explained_variance": 0.02 + NOISE, "reward": RISING}
    assert (
        judge("critic-explains-nothing", patient({**low, "value_loss": np.geomspace(1, 1e-3, 60)}))
        is None
    )
    assert (
        judge("critic-explains-nothing", patient({**low, "value_loss": STEADY_LOSS})).severity
        == "info"
    )
    at_best = {**low, "reward": np.full(60, 10.0) + NOISE, "value_loss": STEADY_LOSS}
    assert judge("critic-explains-nothing", patient(at_best, facts={"max_reward": 10})) is None


def test_a_reward_that_doubled_and_stands_is_no_warning_about_its_critic(
    patient: Patient,
) -> None:
    doubled = np.minimum(np.linspace(1.0, 3.0, 60), 2.0) + 0.02 * NOISE
    low = {"explained_variance": 0.02 + NOISE, "value_loss": STEADY_LOSS}
    found = judge("critic-explains-nothing", patient({**low, "reward": doubled}))
    assert found is None or found.severity == "info"
    hardly = np.minimum(np.linspace(1.0, 1.3, 60), 1.15) + 0.02 * NOISE
    assert judge("critic-explains-nothing", patient({**low, "reward": hardly})).severity == "warn"


def test_returns_that_do_not_vary_have_no_explained_variance(patient: Patient) -> None:
    logged = {"explained_variance": NOISE, "value_loss": STEADY_LOSS, "reward": FLAT}
    constant = {**logged, "returns/std": np.full(60, 1e-9), "returns/mean": np.full(60, 5.0)}
    assert isinstance(judge("critic-explains-nothing", patient(constant)), Skipped)
    assert isinstance(
        judge("critic-explains-nothing", patient({**logged, "reward": np.zeros(60)})), Skipped
    )


def test_without_a_reward_the_value_loss_is_the_second_signal(patient: Patient) -> None:
    low = {"train/explained_variance": NOISE}
    assert judge("critic-explains-nothing", patient(low)) is None
    assert (
        judge(
            "critic-explains-nothing",
            patient({**low, "train/value_loss": np.geomspace(1, 1e-3, 60)}),
        )
        is None
    )
    finding = judge("critic-explains-nothing", patient({**low, "train/value_loss": STEADY_LOSS}))
    assert finding.severity == "warn"
    assert "n_epochs" in finding.fix[0]


def test_a_moving_average_explains_nothing_by_design(patient: Patient) -> None:
    logged = {"explained_variance": -0.02 + NOISE, "reward": FLAT}
    assert (
        judge("critic-explains-nothing", patient(logged, facts={"baseline": {"momentum": 0.95}}))
        is None
    )


# baseline-leak
# -------------------------------------------------------------------------------------------------------------


def test_the_formula_has_the_golden_value() -> None:
    assert leaked(0.95) == pytest.approx(0.0744, abs=5e-5)


@pytest.mark.parametrize("contains_itself", [True, False])
def test_the_suspicion_is_right_about_a_simulated_baseline(
    patient: Patient, contains_itself: bool
) -> None:
    rng, beta, mean = np.random.default_rng(4), 0.95, 0.0
    explained = []
    for _ in range(40):
        rewards, errors = rng.normal(size=2000), np.empty(2000)
        for i, reward in enumerate(rewards):
            before, mean = mean, beta * mean + (1 - beta) * reward
            errors[i] = reward - (mean if contains_itself else before)
        explained.append(1 - errors.var() / rewards.var())
    run = patient(
        {"explained_variance": explained, "reward": FLAT[:40]},
        facts={"baseline": {"momentum": beta}},
    )
    finding = judge("baseline-leak", run)
    if contains_itself:
        assert (finding.severity, finding.basis) == ("info", "heuristic")
        assert "0.0744" in finding.evidence[1].reading
        assert "-0.0256" in finding.evidence[1].reading
    else:
        assert finding is None


@pytest.mark.parametrize("explained", [0.05, 0.07])
def test_the_source_s_five_to_seven_percent_are_a_suspicion(
    patient: Patient, explained: float
) -> None:
    facts = {"baseline": {"type": "exponential_moving", "momentum": 0.95}}
    run = patient(
        {"explained_variance": np.full(21, explained), "reward": np.linspace(1.0643, 1.0545, 21)},
        facts=facts,
    )
    assert judge("baseline-leak", run).severity == "info"
    assert judge("critic-explains-nothing", run) is None


@pytest.mark.parametrize(("explained", "reward"), [(0.03, FLAT), (0.12, FLAT), (0.0744, RISING)])
def test_another_explained_variance_or_a_rising_reward_raises_no_suspicion(
    patient: Patient, explained: float, reward: np.ndarray
) -> None:
    run = patient(
        {"explained_variance": np.full(60, explained), "reward": reward},
        facts={"baseline_momentum": 0.95},
    )
    assert judge("baseline-leak", run) is None


def test_both_baselines_logged_make_it_a_test(patient: Patient) -> None:
    leaks = {
        "explained_variance": 0.06 + NOISE,
        "explained_variance_before": 0.06 - 0.03 + NOISE[::-1],
    }
    finding = judge("baseline-leak", patient(leaks))
    assert (finding.severity, finding.basis) == ("warn", "statistical")
    small = {**leaks, "explained_variance_before": 0.06 - 0.015 + NOISE[::-1]}
    assert judge("baseline-leak", patient(small)) is None
    same = {"explained_variance": 0.9 + NOISE, "explained_variance_before": 0.9 + NOISE}
    assert judge("baseline-leak", patient(same)) is None


def test_without_the_momentum_the_rule_says_what_to_log(patient: Patient) -> None:
    skipped = judge(
        "baseline-leak", patient({"explained_variance": np.full(60, 0.0744), "reward": FLAT})
    )
    assert isinstance(skipped, Skipped)
    assert skipped.metric == "explained_variance_before"
    momentum_of_sgd = patient(
        {"explained_variance": np.full(60, 0.0744), "reward": FLAT}, facts={"momentum": 0.95}
    )
    assert isinstance(judge("baseline-leak", momentum_of_sgd), Skipped)


# critic-diverges
# -----------------------------------------------------------------------------------------------------------


def test_values_beyond_ten_times_what_was_ever_earned_diverge(patient: Patient) -> None:
    best = float(FLAT.max())
    values = np.concatenate([np.linspace(0, 10.2 * best, 20), np.full(40, 10.2 * best)])
    finding = judge(
        "critic-diverges", patient({"losses/q_values": values, "charts/episodic_return": FLAT})
    )
    assert finding.severity == "warn"
    assert 17 <= finding.since_step <= 20
    assert "--target-network-frequency" in finding.fix[-1]
    below = values * 9.8 / 10.2
    assert judge("critic-diverges", patient({"q_value": below, "reward": FLAT})) is None


def test_large_values_are_well_while_the_reward_rises_or_the_horizon_is_long(
    patient: Patient,
) -> None:
    values = np.linspace(0, 500, 60)
    found = judge("critic-diverges", patient({"q_value": values, "reward": RISING}))
    assert (found.severity, found.title[:6]) == ("info", "Watch:")  # seen, and not accused
    short_episodes = {
        "q_value": np.linspace(0, 90, 60),
        "reward": FLAT,
        "episode_length": np.full(60, 10.0),
    }
    assert judge("critic-diverges", patient(short_episodes, facts={"gamma": 0.99})) is None
    assert judge("critic-diverges", patient(short_episodes)).severity == "warn"


def test_a_value_loss_that_grows_a_hundredfold_diverges(patient: Patient) -> None:
    def grown(decades: float) -> dict[str, np.ndarray]:
        return {"value_loss": 10 ** (np.linspace(0, decades, 60) + NOISE), "reward": FLAT}

    finding = judge("critic-diverges", patient(grown(3.0)))
    assert (finding.severity, finding.basis) == ("warn", "statistical")
    assert 36 <= finding.since_step <= 52
    assert judge("critic-diverges", patient(grown(1.9))) is None
    rising = judge("critic-diverges", patient({**grown(3.0), "reward": RISING}))
    assert (rising.severity, rising.title[:6]) == ("info", "Watch:")
    assert (
        judge("critic-diverges", patient({**grown(3.0), "returns/std": np.full(60, 100.0)})) is None
    )


def test_the_loss_of_a_q_learner_diverges_under_its_own_name(patient: Patient) -> None:
    loss = 10 ** (np.linspace(0, 3.0, 60) + NOISE)
    dqn = {"train/loss": loss, "rollout/exploration_rate": np.linspace(1, 0.05, 60)}
    found = judge("critic-diverges", patient({**dqn, "rollout/ep_rew_mean": FLAT}))
    assert found.severity == "warn"
    assert "target_update_interval" in found.fix[-1]
    assert judge("critic-diverges", patient({"td_error": loss, "reward": FLAT})).severity == "warn"


def test_values_above_zero_where_no_reward_is_are_beyond_reach(patient: Patient) -> None:
    costs = -200.0 + 5.0 * np.random.default_rng(1).normal(size=60)
    wrong = {"q_value": np.linspace(-50, 300, 60), "reward": costs}
    found = judge("critic-diverges", patient(wrong))
    assert found.severity == "warn"
    assert "no reward is above zero" in found.title
    assert judge("critic-diverges", patient({**wrong, "q_value": -wrong["q_value"]})) is None
    assert judge("critic-diverges", patient({**wrong, "reward": costs + 400.0})) is None


def test_a_value_loss_that_is_no_number_any_more_is_proof(patient: Patient) -> None:
    loss = np.concatenate([np.full(20, 1.0), np.full(3, np.nan)])
    finding = judge("critic-diverges", patient({"value_loss": loss}))
    assert (finding.severity, finding.basis, finding.since_step) == ("critical", "proved", 20)
    assert (
        judge(
            "critic-diverges", patient({"value_loss": np.append(loss[:-3], [np.nan, np.nan, 1.0])})
        )
        is None
    )


# returns-wrong
# -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("terminal", "fires"), [(0.28, True), (0.32, False), (0.95, False)])
def test_targets_of_last_states_must_follow_their_rewards(
    patient: Patient, terminal: float, fires: bool
) -> None:
    finding = judge("returns-wrong", patient({"terminal_correlation": terminal + NOISE}))
    assert (finding is not None) == fires
    if fires:
        assert "(1 − terminated)" in finding.fix[0]
        assert finding.severity == "warn"


@pytest.mark.parametrize(("before", "fires"), [(0.4, True), (0.5, False), (0.9, False)])
def test_rewards_must_be_carried_back(patient: Patient, before: float, fires: bool) -> None:
    logged = {"terminal_correlation": 0.95 + NOISE, "penultimate_correlation": before + NOISE}
    finding = judge("returns-wrong", patient(logged))
    assert (finding is not None) == fires
    if fires:
        assert "carried back" in finding.title


def test_a_critic_worse_than_a_constant_is_information_and_says_what_is_not_known(
    patient: Patient,
) -> None:
    logged = {"explained_variance": -0.5 + NOISE, "value_loss": STEADY_LOSS, "reward": FLAT}
    finding = judge("returns-wrong", patient(logged, facts={"gamma": 1.0}))
    assert finding.severity == "info"
    assert "terminal_correlation" in finding.cause
    assert "γ is 1" in finding.cause
    for change in (
        {"explained_variance": 0.01 + NOISE},
        {"reward": RISING},
        {"value_loss": np.geomspace(9, 0.1, 60)},
    ):
        assert isinstance(judge("returns-wrong", patient({**logged, **change})), Skipped)


# target-network
# ------------------------------------------------------------------------------------------------------------


def test_a_target_that_equals_the_online_network_is_told(patient: Patient) -> None:
    finding = judge("target-network", patient({"target_distance": np.zeros(12), "reward": FLAT}))
    assert finding.severity == "warn"
    assert finding.since_step == 0
    assert (
        judge(
            "target-network", patient({"target_distance": np.zeros(12), "reward": RISING})
        ).severity
        == "info"
    )
    one_apart = np.zeros(12)
    one_apart[5] = 1e-3
    assert judge("target-network", patient({"target_distance": one_apart, "reward": FLAT})) is None


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_a_target_that_is_never_updated_is_told(patient: Patient, power: float) -> None:
    distance = 0.01 * np.arange(60.0) ** power * (1 + NOISE)
    finding = judge("target-network", patient({"target_distance": distance, "reward": FLAT}))
    assert (finding.severity, finding.basis) == ("warn", "statistical")


@pytest.mark.parametrize(
    "distance",
    [
        0.01 * (np.arange(60.0) % 10),
        0.05 * (1 - np.exp(-np.arange(60.0) / 5)) * (1 + NOISE),
        0.01 * np.minimum(np.arange(60.0), 20) * (1 + NOISE),
        np.concatenate([np.linspace(0, 1, 50), np.linspace(0, 0.2, 10)]),
    ],
)
def test_a_target_that_is_copied_or_averaged_is_well(
    patient: Patient, distance: np.ndarray
) -> None:
    assert judge("target-network", patient({"target_distance": distance, "reward": FLAT})) is None


# all of them
# ---------------------------------------------------------------------------------------------------------------

NAMES = (
    "explained_variance",
    "explained_variance_before",
    "value_loss",
    "value_mean",
    "q_value",
    "returns/std",
    "returns/mean",
    "terminal_correlation",
    "penultimate_correlation",
    "target_distance",
    "reward",
    "episode_length",
)


def serious(data: RunData) -> list[str]:
    found = []
    for each in rules():
        if each.family == "critic":
            result = each(data)
            found += (
                []
                if isinstance(result, Skipped)
                else [f.id for f in result if f.severity != "info"]
            )
    return found


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_healthy_wandering_raises_no_alarm(
    tmp_path: Path, patients: ModuleType, phi: float
) -> None:
    for seed in range(8):
        n = 60
        noise = [patients.ar1(n, phi, 1.0, 10 * seed + k) for k in range(6)]
        logged = {
            "reward": 5 + noise[0],  # flat: the second signal is there, the first must not be
            "explained_variance": np.clip(0.5 + 0.2 * noise[1], -1, 1),
            "explained_variance_before": np.clip(0.5 + 0.2 * noise[2], -1, 1),
            "value_loss": np.exp(0.5 * noise[3]),
            "terminal_correlation": np.clip(0.9 + 0.1 * noise[4], -1, 1),
            "target_distance": 0.05 * np.exp(0.3 * noise[5]),
        }
        assert serious(RunData(patients.patient(tmp_path, logged))) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "values", [[], [1.0], [np.nan] * 40, [0.0] * 40, [np.inf, -np.inf] * 20, [1e100, -1e100] * 20]
)
def test_no_series_makes_a_rule_raise(patient: Patient, values: list[float]) -> None:
    for facts in ({}, {"baseline_momentum": 0.95, "gamma": 1.0, "max_reward": float("nan")}):
        data = RunData(
            patient({**dict.fromkeys(NAMES, values), "learning_rate": [1.0]}, facts=facts)
        )
        serious(data)
        for left_out in NAMES:
            few = {name: values for name in NAMES if name != left_out}
            serious(RunData(patient({**few, "learning_rate": [1.0]})))


def test_a_loss_past_all_returns_is_told_though_the_values_are_known(patient: Patient) -> None:
    steps = np.linspace(0.0, 1.0, 60)
    logged = {"q_value": np.exp(1 + 3 * steps), "reward": 20.0 + FLAT}
    diverged = {**logged, "value_loss": np.exp(-3 + 14 * steps)}
    assert "value loss" in judge("critic-diverges", patient(diverged)).title
    grown = {**logged, "value_loss": np.exp(-3 + 6 * steps)}
    assert judge("critic-diverges", patient(grown)) is None


def test_returns_that_stand_make_no_loss_grow(patient: Patient) -> None:
    rng, steps = np.random.default_rng(3), np.linspace(0.0, 1.0, 200)
    early = np.minimum(1.0, 8.0 * steps) + 0.03 * rng.normal(size=200)
    late = steps + 0.03 * rng.normal(size=200)
    loss = np.exp(6.0 * steps)
    told = judge("critic-diverges", patient({"reward": early, "value_loss": loss}))
    assert told.severity == "warn"
    watched = judge("critic-diverges", patient({"reward": late, "value_loss": loss}))
    assert watched.title.startswith("Watch: ")  # it grows with them
