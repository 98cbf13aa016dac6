"""Rules on the outcome: each fires on the smallest evidence, is silent just below it and on its
healthy look-alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradiometer.doctor.diagnosis import diagnose
from gradiometer.doctor.outcome import (
    at_maximum,
    detectable_rise,
    length_is_return,
    outcome_of,
    slope,
)
from gradiometer.doctor.rule import Skipped, rules
from gradiometer.doctor.rundata import RunData
from gradiometer.records import Finding, Table
from gradiometer.store.logs import Log
from gradiometer.store.reader import Run

RULES = {rule.id: rule for rule in rules()}
MINE = (
    "reward-plateau",
    "reward-declining",
    "update-opposes-reward",
    "reward-hacking",
    "length-exploit",
    "truncation",
    "reward-term-dominates",
)
Patient = Callable[..., Run]


def log(series: Mapping[str, Any], **facts: Any) -> Log:
    """A log in memory: hundreds of them are cheap."""
    rows: dict[int, dict[str, float]] = {}
    for name, held in series.items():
        steps, values = held if isinstance(held, tuple) else (range(len(held)), held)
        for step, value in zip(steps, values, strict=True):
            rows.setdefault(int(step), {})[name] = float(value)
    return Log(
        Path("log"), name="log", run_id="log", rows=sorted(rows.items()), facts={"config": facts}
    )


def verdict(id: str, run: Run | Log) -> list[Finding] | Skipped:
    return RULES[id](RunData(run))


def only(id: str, run: Run | Log) -> Finding:
    found = verdict(id, run)
    assert not isinstance(found, Skipped), found.why
    assert [finding.id for finding in found] == [id]
    assert found[0].evidence
    assert found[0].fix
    assert found[0].confirm
    return found[0]


def silent(id: str, run: Run | Log) -> bool:
    return verdict(id, run) == []


def skipped(id: str, run: Run | Log) -> str:
    found = verdict(id, run)
    assert isinstance(found, Skipped), found
    return found.why


def learned(n: int, *, low: float = 0.0, high: float = 1.0, by: float = 0.1) -> Any:
    """A learning curve that is nearly done after that share of the run."""
    return low + (high - low) * (1.0 - np.exp(-np.linspace(0.0, 1.0, n) / by * 3.0))


# -- reward-plateau


def test_a_reward_that_never_rose_is_a_plateau_and_says_what_it_would_have_seen(
    patient: Patient, patients: ModuleType
) -> None:
    found = only("reward-plateau", patient({"reward": 1.0 + patients.ar1(200, 0.3, 0.05)}))
    assert found.severity == "warn"
    assert found.basis == "statistical"
    assert found.since_step == 100
    assert "never rose" in found.title
    assert "four of five" in found.evidence[0].reading


def test_a_reward_that_still_rises_is_no_plateau(patients: ModuleType) -> None:
    rising = np.linspace(1.0, 1.5, 200) + patients.ar1(200, 0.3, 0.05)
    assert silent("reward-plateau", log({"reward": rising}))


def test_a_plateau_after_learning_is_information_while_the_maximum_is_unknown(
    patients: ModuleType,
) -> None:
    reward = learned(200, low=-8.0, high=-5.7) + patients.ar1(200, 0.3, 0.05)
    assert only("reward-plateau", log({"reward": reward})).severity == "info"


def test_a_plateau_short_of_the_known_maximum_is_a_warning_and_at_it_is_success(
    patients: ModuleType,
) -> None:
    noise = patients.ar1(200, 0.3, 5.0)
    half_way = learned(200, low=20.0, high=250.0) + noise
    assert only("reward-plateau", log({"reward": half_way}, max_reward=500)).severity == "warn"
    assert silent(
        "reward-plateau",
        log({"reward": learned(200, low=20.0, high=495.0) + noise}, max_reward=500),
    )


def test_the_known_maximum_may_be_negative_or_zero(patients: ModuleType) -> None:
    noise = patients.ar1(200, 0.3, 0.2)
    costs = learned(200, low=-200.0, high=-1.0) + noise
    assert silent("reward-plateau", log({"reward": costs}, max_reward=0.0))
    assert silent("reward-plateau", log({"reward": -110.0 + noise}, max_reward=-110.0))


@pytest.mark.parametrize("name", ["success_rate", "val/success_rate", "val/reward", "reward"])
def test_a_rate_near_one_is_the_maximum_nobody_has_to_write_down(
    name: str, patients: ModuleType
) -> None:
    rate = np.clip(0.985 + patients.ar1(200, 0.3, 0.01), 0.0, 1.0)
    series = {"reward": 2.0 + patients.ar1(200, 0.3, 0.02, seed=1), name: rate}
    assert silent("reward-plateau", log(series))


def test_what_is_known_by_heart_is_no_maximum_of_a_held_out_score(patients: ModuleType) -> None:
    score = 4.0 + patients.ar1(200, 0.3, 0.02, seed=1)
    rate = np.clip(0.985 + patients.ar1(200, 0.3, 0.01), 0.0, 1.0)
    for name, solved in (("val/reward", False), ("reward", True)):
        run = RunData(log({name: score, "success_rate": rate}))
        series = run.get(name)
        assert series is not None
        assert at_maximum(run, series) == solved


def test_cartpole_knows_its_maximum_from_the_longest_episode(patients: ModuleType) -> None:
    solved = np.clip(learned(200, low=20.0, high=500.0) + patients.ar1(200, 0.3, 3.0), 1.0, 500.0)
    series = {"reward": solved, "episode_length": solved}
    assert silent("reward-plateau", log(series, max_episode_steps=500))
    assert only("reward-plateau", log(series)).severity == "info"


@pytest.mark.parametrize("name", ["val/reward", "success_rate", "best_reward"])
def test_a_flat_reward_beside_a_rising_score_is_a_curriculum(
    name: str, patients: ModuleType
) -> None:
    rising = np.linspace(0.2, 0.6, 200) + patients.ar1(200, 0.3, 0.02)
    assert silent(
        "reward-plateau", log({"reward": 1.0 + patients.ar1(200, 0.3, 0.05, seed=1), name: rising})
    )


def test_a_reward_too_noisy_to_tell_is_skipped_with_the_number(patients: ModuleType) -> None:
    assert "would be seen" in skipped(
        "reward-plateau", log({"reward": 1.0 + patients.ar1(120, 0.0, 1.0)})
    )


def test_a_short_or_wandering_reward_is_skipped(patients: ModuleType) -> None:
    assert "8 independent blocks" in skipped("reward-plateau", log({"reward": np.full(29, 0.5)}))
    assert only("reward-plateau", log({"reward": np.full(32, 0.5)})).severity == "warn"
    assert "8 independent blocks" in skipped(
        "reward-plateau", log({"reward": 1.0 + patients.ar1(100, 0.97, 0.1)})
    )
    assert "log it" in skipped("reward-plateau", log({"entropy": np.ones(50)}))


@pytest.mark.slow
def test_the_power_that_is_stated_is_the_power_it_has(patients: ModuleType) -> None:
    """A rise as large as the stated one is seen in four of five runs, with memory in the noise or
    without."""
    for phi in (0.0, 0.5):
        seen = 0
        for seed in range(60):
            noise = log({"reward": patients.ar1(400, phi, 1.0, seed)})
            flat = RunData(noise).get("reward")
            assert flat is not None
            found = slope(flat)
            assert found is not None
            if found.p_value is None:
                continue
            rise = np.linspace(0.0, detectable_rise(flat, found), 400)
            again = RunData(log({"reward": rise + patients.ar1(400, phi, 1.0, seed + 1000)})).get(
                "reward"
            )
            assert again is not None
            with_rise = slope(again)
            seen += with_rise is not None and with_rise.significant
        assert 36 <= seen <= 58, phi


def test_a_fast_learner_has_risen_although_no_trend_shows(patients: ModuleType) -> None:
    for seed in range(20):
        reward = learned(400, by=0.02) + patients.ar1(400, 0.5, 0.05, seed)
        found = outcome_of(RunData(log({"reward": reward})))
        assert found is not None
        assert found.course == "gained"


# -- reward-declining


def test_a_reward_that_fell_from_its_earlier_level_is_declining_since_the_fall(
    patients: ModuleType,
) -> None:
    reward = np.concatenate([learned(150, by=0.3), np.full(150, 0.6)]) + patients.ar1(
        300, 0.3, 0.03
    )
    found = only("reward-declining", log({"reward": reward}))
    assert found.severity == "warn"
    assert found.since_step is not None
    assert 145 <= found.since_step <= 155
    assert "at its best" in found.evidence[0].reading


def test_a_fall_below_a_tenth_is_none(patients: ModuleType) -> None:
    noise = patients.ar1(300, 0.3, 0.01)
    assert silent("reward-declining", log({"reward": 1.0 - np.linspace(0.0, 0.08, 300) + noise}))
    assert only("reward-declining", log({"reward": 1.0 - np.linspace(0.0, 0.2, 300) + noise}))


def test_a_quarter_of_the_gain_lost_counts_where_the_reward_has_a_large_offset(
    patients: ModuleType,
) -> None:
    reward = (
        1000.0
        + np.concatenate([learned(150, high=20.0, by=0.3), np.full(150, 12.0)])
        + patients.ar1(300, 0.3, 0.5)
    )
    assert only("reward-declining", log({"reward": reward}))


def test_a_dip_that_recovers_is_no_decline(patients: ModuleType) -> None:
    reward = 1.0 + patients.ar1(300, 0.3, 0.03)
    reward[210:250] -= 0.4
    assert silent("reward-declining", log({"reward": reward}))
    reward[200:] = (
        1.0 - 0.4 * (np.arange(100) % 3 == 0) + patients.ar1(100, 0.0, 0.03)
    )  # one in three, to the end
    assert silent("reward-declining", log({"reward": reward}))


def test_a_harder_curriculum_is_no_decline(patients: ModuleType) -> None:
    harder = np.linspace(1.0, 0.6, 300) + patients.ar1(300, 0.3, 0.03)
    held_out = (range(0, 300, 6), np.linspace(0.2, 0.6, 50) + patients.ar1(50, 0.0, 0.02))
    assert silent("reward-declining", log({"reward": harder, "val/reward": held_out}))


def test_too_few_measurements_are_no_decline() -> None:
    assert "8 needed" in skipped("reward-declining", log({"reward": np.linspace(1.0, 0.0, 7)}))
    assert "log it" in skipped("reward-declining", log({"entropy": np.ones(50)}))


# -- update-opposes-reward


def opposed(n: int, mean: float, seed: int = 0) -> Any:
    return mean + np.random.default_rng(seed).normal(0.0, 1.0, n)


def test_steps_that_raise_the_held_out_loss_oppose_the_reward() -> None:
    found = only("update-opposes-reward", log({"step/predicted": opposed(60, 1.5)}))
    assert found.severity == "warn"
    assert "95 % interval" in found.evidence[0].reading
    both = log({"step/predicted": opposed(60, 1.5), "step/realised": opposed(60, 1.4, seed=1)})
    assert only("update-opposes-reward", both).severity == "critical"
    assert len(only("update-opposes-reward", both).evidence) == 2


def test_a_reward_that_does_not_rise_makes_the_wrong_sign_certain(patients: ModuleType) -> None:
    falling = np.linspace(1.0, 0.3, 200) + patients.ar1(200, 0.3, 0.03)
    run = log({"step/predicted": (range(0, 200, 4), opposed(50, 1.5)), "reward": falling})
    assert only("update-opposes-reward", run).severity == "critical"


def test_a_reward_that_rises_all_the_same_speaks_against_the_probe(patients: ModuleType) -> None:
    rising = np.linspace(0.3, 1.0, 200) + patients.ar1(200, 0.3, 0.03)
    run = log({"step/predicted": (range(0, 200, 4), opposed(50, 1.5)), "reward": rising})
    assert only("update-opposes-reward", run).severity == "info"


def test_healthy_steps_and_steps_about_an_optimum_oppose_nothing() -> None:
    assert silent("update-opposes-reward", log({"step/predicted": opposed(60, -0.5)}))
    assert silent("update-opposes-reward", log({"step/realised": opposed(60, 0.0)}))
    assert silent(
        "update-opposes-reward", log({"step/predicted": opposed(4000, 0.1)})
    )  # sure, and nothing beside its size
    overshoot = {"step/predicted": opposed(60, 1.5), "step/realised": opposed(60, -1.5, seed=1)}
    assert silent("update-opposes-reward", log(overshoot))


def test_nine_probed_steps_are_too_few() -> None:
    assert "10 probed steps" in skipped(
        "update-opposes-reward", log({"step/predicted": np.ones(9)})
    )
    assert only("update-opposes-reward", log({"step/predicted": np.ones(10)})).since_step == 0


def test_without_a_probe_a_fall_from_the_start_under_healthy_norms_is_a_suspicion(
    patients: ModuleType,
) -> None:
    falling = np.linspace(1.0, 0.3, 200) + patients.ar1(200, 0.3, 0.03)
    norms = np.exp(patients.ar1(200, 0.5, 0.3))
    found = only("update-opposes-reward", log({"reward": falling, "grad/all/norm/raw": norms}))
    assert (found.severity, found.basis, found.since_step) == ("warn", "heuristic", 0)
    fading = {"reward": falling, "grad/all/norm/raw": norms * np.geomspace(1.0, 0.01, 200)}
    assert only("update-opposes-reward", log(fading)).severity == "warn"  # a policy that is sure
    exploding = np.exp(np.linspace(0.0, 8.0, 200))
    assert "step/predicted" in skipped(
        "update-opposes-reward", log({"reward": falling, "grad/all/norm/raw": exploding})
    )
    assert "step/predicted" in skipped("update-opposes-reward", log({"reward": falling}))
    assert "step/predicted" in skipped(
        "update-opposes-reward", log({"reward": falling[::-1], "grad/all/norm/raw": norms})
    )


@pytest.mark.parametrize("state", ["ok", "unmeasurable: no critic"])
def test_a_sign_that_the_graph_shows_to_be_right_is_no_suspicion(
    patient: Patient, state: str
) -> None:
    table = Table(step=0, name="proofs", content={"update-opposes-reward": state})
    falling = {"reward": np.linspace(1.0, 0.3, 200), "grad/all/norm/raw": np.ones(200)}
    found = {each.id for each in diagnose(patient(falling, tables=[table])).findings}
    assert ("update-opposes-reward" in found) == (state != "ok")


# -- reward-hacking


def hacked(
    patients: ModuleType, *, gain: float, loss: float, n: int = 200, sigma: float = 0.02
) -> Log:
    proxy = np.linspace(1.0, 1.0 + gain, n) + patients.ar1(n, 0.3, sigma)
    evaluations = n // 5
    held_out = np.linspace(1.0, 1.0 - loss, evaluations) + patients.ar1(
        evaluations, 0.0, sigma, seed=1
    )
    return log({"reward": proxy, "val/reward": (range(0, n, 5), held_out)})


def test_a_reward_that_rises_while_the_held_out_score_falls_is_hacked(patients: ModuleType) -> None:
    found = only("reward-hacking", hacked(patients, gain=0.4, loss=0.12, sigma=0.01))
    assert found.basis == "statistical"
    assert "gap" in found.evidence[1].reading
    assert only("reward-hacking", hacked(patients, gain=0.4, loss=0.3)).severity == "critical"


def test_a_held_out_score_that_merely_stands_or_rises_less_is_not_hacking(
    patients: ModuleType,
) -> None:
    assert silent("reward-hacking", hacked(patients, gain=0.4, loss=0.0))
    assert silent("reward-hacking", hacked(patients, gain=0.4, loss=-0.1))
    assert silent("reward-hacking", hacked(patients, gain=0.4, loss=0.05))
    assert silent("reward-hacking", hacked(patients, gain=0.0, loss=0.3))


def test_overoptimisation_after_honest_learning_is_seen_in_the_last_half(
    patients: ModuleType,
) -> None:
    proxy = np.linspace(0.0, 1.0, 400) + patients.ar1(400, 0.3, 0.02)
    gold = np.concatenate([np.linspace(0.3, 0.8, 40), np.linspace(0.8, 0.5, 40)]) + patients.ar1(
        80, 0.0, 0.02
    )
    found = only("reward-hacking", log({"reward": proxy, "val/reward": (range(0, 400, 5), gold)}))
    assert found.since_step == 200
    assert found.severity == "warn"  # still better than it was


def test_hacking_needs_enough_evaluations(patients: ModuleType) -> None:
    proxy = np.linspace(1.0, 2.0, 100)
    run = log({"reward": proxy, "val/reward": (range(0, 100, 10), np.linspace(1.0, 0.5, 10))})
    assert "16 evaluations" in skipped("reward-hacking", run)
    assert "val/reward" in skipped("reward-hacking", log({"reward": proxy}))
    without = log({"reward": proxy, "val/reward": np.full(100, np.nan)})
    assert "val/reward" in skipped("reward-hacking", without)


def test_evaluations_too_few_for_a_trend_show_a_score_that_lost_its_gain(
    patients: ModuleType,
) -> None:
    rng, t = np.random.default_rng(1), np.linspace(0.0, 1.0, 240)
    proxy = 0.3 + 0.6 * (1.0 - np.exp(-t / 0.4)) + patients.ar1(240, 0.2, 0.02)
    gold = 0.45 + 0.12 * np.minimum(1.0, 5.0 * t) - 0.4 * np.clip(t - 0.25, 0.0, 1.0)
    held = (range(0, 240, 8), gold[::8] + rng.normal(0.0, 0.01, 30))
    found = only("reward-hacking", log({"reward": proxy, "val/reward": held}))
    assert "while the reward rose by" in found.title
    assert found.severity == "critical"  # below where it began
    kept = (range(0, 240, 8), np.maximum(gold, 0.55)[::8] + rng.normal(0.0, 0.01, 30))
    assert silent("reward-hacking", log({"reward": proxy, "val/reward": kept}))


# -- length-exploit


def lengths(patients: ModuleType, *, growth: float, carried: float, held: bool = True) -> Log:
    n = 120
    length = np.linspace(100.0, 100.0 * (1.0 + growth), n) + patients.ar1(n, 0.3, 1.0)
    reward = 1.0 + 0.004 * (length - 100.0) + patients.ar1(n, 0.3, 0.01, seed=1)
    gain = 0.004 * 100.0 * growth * carried
    score = np.linspace(1.0, 1.0 + gain, 24) + patients.ar1(24, 0.0, 0.001, seed=2)
    series: dict[str, Any] = {"reward": reward, "episode_length": length}
    return log(series | ({"val/reward": (range(0, n, 5), score)} if held else {}))


def test_length_that_grows_with_the_reward_and_not_with_the_held_out_score_is_exploited(
    patients: ModuleType,
) -> None:
    found = only("length-exploit", lengths(patients, growth=1.0, carried=0.1))
    assert found.severity == "warn"
    assert found.since_step is not None
    assert 40 <= found.since_step <= 80


def test_length_growth_just_below_half_or_with_a_held_out_gain_is_fine(
    patients: ModuleType,
) -> None:
    assert silent("length-exploit", lengths(patients, growth=0.45, carried=0.0))
    assert only("length-exploit", lengths(patients, growth=0.75, carried=0.0))
    assert silent("length-exploit", lengths(patients, growth=1.0, carried=0.35))
    assert silent("length-exploit", lengths(patients, growth=1.0, carried=1.0))


def test_where_the_return_is_the_length_nothing_is_exploited(patients: ModuleType) -> None:
    length = learned(120, low=20.0, high=500.0, by=0.5) + patients.ar1(120, 0.3, 2.0)
    run = log(
        {
            "reward": length,
            "episode_length": length,
            "val/reward": (range(0, 120, 5), np.full(24, 20.0)),
        }
    )
    assert length_is_return(RunData(run))
    assert silent("length-exploit", run)


def test_length_exploit_needs_a_held_out_score(patients: ModuleType) -> None:
    assert "val/reward" in skipped(
        "length-exploit", lengths(patients, growth=1.0, carried=0.1, held=False)
    )


def test_answers_of_twice_the_length_that_gain_nothing_need_no_held_out_score(
    patients: ModuleType,
) -> None:
    n = 120
    grown = np.linspace(200.0, 600.0, n) + patients.ar1(n, 0.3, 5.0)
    flat = 0.4 + patients.ar1(n, 0.0, 0.02, seed=3)
    found = only("length-exploit", log({"completions/mean_length": grown, "reward": flat}))
    assert found.severity == "warn"
    assert "dr_grpo" in found.fix[1]
    rising = {"completions/mean_length": grown, "reward": flat + np.linspace(0, 0.5, n)}
    assert silent("length-exploit", log(rising))
    assert silent(
        "length-exploit", log({"completions/mean_length": 0.3 * grown[::-1], "reward": flat})
    )


# -- truncation


@pytest.mark.parametrize(
    ("share", "severity"), [(0.14, None), (0.16, "info"), (0.35, "warn"), (0.99, "warn")]
)
def test_truncation_is_judged_by_three_levels(
    share: float, severity: str | None, patients: ModuleType
) -> None:
    run = log({"truncated_fraction": share + patients.ar1(30, 0.0, 0.002)})
    if severity is None:
        assert silent("truncation", run)
    else:
        assert only("truncation", run).severity == severity


def test_truncation_of_many_while_the_reward_rises_is_something_to_watch(
    patients: ModuleType,
) -> None:
    """The sign is the same; what it costs is a matter of the outcome."""
    rising = np.linspace(0.2, 0.8, 120) + patients.ar1(120, 0.3, 0.02)
    falls = np.linspace(0.25, 0.17, 120) + patients.ar1(120, 0.0, 0.005)
    assert silent("truncation", log({"reward": rising, "completions/clipped_ratio": falls}))
    often = np.linspace(0.6, 0.4, 120) + patients.ar1(120, 0.0, 0.005)
    found = only("truncation", log({"reward": rising, "completions/clipped_ratio": often}))
    assert (found.severity, found.title[:6]) == ("info", "Watch:")
    assert any("mask_truncated_completions" in line for line in found.fix)
    flat = 0.3 + patients.ar1(120, 0.0, 0.02)
    assert only("truncation", log({"reward": flat, "completions/clipped_ratio": often}))
    every = log({"reward": flat, "completions/clipped_ratio": np.full(120, 1.0)})
    assert only("truncation", every).severity == "critical"
    control = log({"reward": flat, "truncated_fraction": np.full(120, 1.0)})
    assert silent("truncation", control)  # a task of fixed length


def test_a_language_model_that_never_ends_an_answer(patients: ModuleType) -> None:
    flat = 0.3 + patients.ar1(60, 0.0, 0.02)
    scores = {"objective/scores": flat, "objective/kl": np.linspace(0, 3, 60)}
    none = log({**scores, "val/num_eos_tokens": np.zeros(60)})
    found = only("never-ends", none)
    assert found.severity == "critical"
    assert "missing_eos_penalty" in found.fix[0]
    assert silent("never-ends", log({**scores, "val/num_eos_tokens": np.full(60, 0.9)}))
    same = log({"reward": flat, "completion_length": np.full(60, 256.0)})
    assert "256 tokens" in only("never-ends", same).title
    ends = log({"reward": flat, "completion_length": 250 + patients.ar1(60, 0.0, 4.0)})
    assert silent("never-ends", ends)
    choice = log({"reward": flat, "completion_length": np.ones(60)})
    assert silent("never-ends", choice)


def test_answers_that_are_mostly_cut_off_and_earn_nothing_are_critical(
    patients: ModuleType,
) -> None:
    cut = 0.8 + patients.ar1(60, 0.0, 0.03)
    facts = {"config": {"trainer": "GRPOTrainer"}}
    names = ("completions/clipped_ratio", "reward")
    idle = log(dict(zip(names, (cut, np.zeros(60)), strict=True)), facts=facts)
    assert only("truncation", idle).severity == "critical"
    paid = 0.2 + patients.ar1(60, 0.0, 0.01)
    earning = log(dict(zip(names, (cut, paid), strict=True)), facts=facts)
    assert only("truncation", earning).severity == "warn"


def test_episodes_that_end_at_once_or_ever_sooner(patients: ModuleType) -> None:
    flat = 1.0 + patients.ar1(60, 0.0, 0.05)
    names = ("rollout/ep_rew_mean", "rollout/ep_len_mean")
    one = log(dict(zip(names, (flat, np.full(60, 1.0)), strict=True)))
    found = only("episodes-end-at-once", one)
    assert found.severity == "critical"
    assert "reset()" in found.fix[0]
    bandit = log({"env/return": flat, "env/episode_length": np.full(60, 1.0)})
    assert only("episodes-end-at-once", bandit).severity == "info"  # seen: by design, perhaps
    learned = {"env/return": np.linspace(0.2, 0.9, 60), "env/episode_length": np.full(60, 1.0)}
    assert silent("episodes-end-at-once", log(learned))
    fell = log(dict(zip(names, (flat, np.r_[np.full(12, 9.0), np.ones(48)]), strict=True)))
    assert only("episodes-end-at-once", fell).severity == "critical"
    few = log(dict(zip(names, (flat, np.full(60, 2.5)), strict=True)))
    assert only("episodes-end-at-once", few).severity == "warn"
    shrunk = log(dict(zip(names, (flat, np.maximum(8.0, np.geomspace(400, 2, 60))), strict=True)))
    assert "shrank" in only("episodes-end-at-once", shrunk).title
    rising = log(
        dict(
            zip(
                names,
                (np.linspace(0, 9, 60), np.maximum(8.0, np.geomspace(400, 2, 60))),
                strict=True,
            )
        )
    )
    assert silent("episodes-end-at-once", rising)  # a task that is finished ever sooner
    usual = log(dict(zip(names, (flat, np.full(60, 40.0)), strict=True)))
    assert silent("episodes-end-at-once", usual)


def test_a_plateau_that_half_of_a_noisy_run_cannot_tell_is_told_by_all_of_it() -> None:
    reward = 0.3 + np.random.default_rng(5).normal(0.0, 0.06, 240)
    found = only("reward-plateau", log({"reward": reward}))
    assert found.severity == "warn"
    assert "it never rose" in found.title


# -- parts of the reward


def test_a_reward_function_that_never_pays_is_dead(patients: ModuleType) -> None:
    flat = 0.3 + patients.ar1(60, 0.0, 0.02)
    dead = {"rewards/format/mean": flat, "rewards/correct/mean": np.zeros(60), "reward": flat}
    found = only("reward-term-dead", log(dead))
    assert found.severity == "warn"
    assert "'correct'" in found.title
    assert "reward_funcs" in found.fix[0] or "reward function" in found.fix[0]
    rising = only("reward-term-dead", log({**dead, "reward": flat + np.linspace(0, 1, 60)}))
    assert (rising.severity, rising.title[:6]) == ("info", "Watch:")
    rare = np.where(np.arange(60) % 20 == 3, 0.05, 0.0)
    assert silent("reward-term-dead", log({**dead, "rewards/correct/mean": rare}))
    assert silent("reward-term-dead", log({**dead, "rewards/correct/mean": np.ones(60)}))


def test_a_dead_function_of_form_is_no_warning_while_the_task_is_learned(
    patients: ModuleType,
) -> None:
    learned = np.minimum(np.linspace(0.0, 2.0, 60), 1.0) + patients.ar1(60, 0.0, 0.05)
    parts = {"rewards/correct/mean": learned, "rewards/strict_format/mean": np.zeros(60)}
    assert only("reward-term-dead", log({**parts, "reward": learned})).severity == "info"
    flat = 0.3 + patients.ar1(60, 0.0, 0.02)
    stuck = {**parts, "rewards/correct/mean": flat, "reward": flat}
    assert only("reward-term-dead", log(stuck)).severity == "warn"


def test_a_reward_that_is_the_same_throughout_leaves_nothing_to_learn_from(
    patients: ModuleType,
) -> None:
    same = -0.1 + patients.ar1(60, 0.0, 0.0005)
    length = 200.0 + patients.ar1(60, 0.0, 5.0, seed=4)
    scored = {"objective/scores": same, "completions/mean_length": length}
    found = only("reward-term-dead", log(scored))
    assert found.severity == "critical"
    sought = log({"rollout/ep_rew_mean": np.full(60, -200.0), "time/fps": np.full(60, 100.0)})
    assert only("reward-term-dead", sought).severity == "warn"


def test_a_rise_by_one_part_while_another_is_never_earned_is_hacking(patients: ModuleType) -> None:
    n = 60
    easy, hard = np.linspace(0.2, 0.7, n), 0.002 + 0.001 * np.abs(patients.ar1(n, 0.0, 1.0))
    both = {"reward/mean": easy, "reward/compiles": easy, "reward/passes": hard}
    found = only("reward-hacking", log(both))
    assert (found.severity, found.basis) == ("critical", "statistical")
    assert "'compiles' alone" in found.title
    fair = log({**both, "reward/passes": np.linspace(0.0, 0.4, n)})
    assert isinstance(verdict("reward-hacking", fair), Skipped)  # it asks for a held-out score


def test_a_time_limit_that_good_policies_reach_is_no_truncation(patients: ModuleType) -> None:
    solved = np.clip(learned(120, low=20.0, high=500.0, by=0.5), 1.0, 500.0)
    cut = np.clip((solved - 150.0) / 400.0, 0.0, 1.0)
    hopper = {"reward": 3.0 * solved + patients.ar1(120, 0.3, 20.0), "truncated_fraction": cut}
    assert silent("truncation", log(hopper))
    assert silent(
        "truncation", log({"reward": solved, "episode_length": solved, "truncated_fraction": cut})
    )


def test_a_task_of_fixed_length_is_no_truncation() -> None:
    assert silent(
        "truncation", log({"truncated_fraction": np.ones(50), "reward": np.full(50, -200.0)})
    )


def test_truncation_needs_nine_points_and_names_its_start(patients: ModuleType) -> None:
    assert "9 needed" in skipped("truncation", log({"truncated_fraction": np.full(8, 0.5)}))
    grows = np.concatenate([np.full(40, 0.01), np.full(60, 0.4)])
    assert only("truncation", log({"truncated_fraction": grows})).since_step == 40


# -- reward-term-dominates


def parts(patients: ModuleType, *, scale: float, rising: bool = False, **more: Any) -> Log:
    """A format reward that is learned, and a correctness reward of this scale that is not, unless
    rising."""
    n = 120
    right = (np.linspace(0.1, 0.6, n) if rising else np.full(n, 0.1)) + patients.ar1(n, 0.3, 0.01)
    series = {
        "rewards/format/mean": learned(n, low=0.2, high=0.7, by=0.5),
        "rewards/format/std": np.full(n, 0.45),
        "rewards/correct/mean": scale * right,
        "rewards/correct/std": scale * np.full(n, 0.3),
        "reward": learned(n, low=0.2, high=0.7, by=0.5) + patients.ar1(n, 0.3, 0.02),
    }
    return log(series | more)


def test_a_loud_format_reward_beside_a_flat_held_out_score_dominates(patients: ModuleType) -> None:
    flat = {"val/success_rate": 0.1 + patients.ar1(120, 0.0, 0.005)}
    found = only("reward-term-dominates", parts(patients, scale=0.05, **flat))
    assert found.severity == "critical"  # the reward rises and nothing of the task is earned
    assert "'format'" in found.title
    assert "'correct'" in found.title
    assert "format alone" in found.title
    some = only("reward-term-dominates", parts(patients, scale=1.0, **flat))
    assert some.severity == "warn"


def test_a_rise_of_the_format_alone_needs_no_held_out_score(patients: ModuleType) -> None:
    """That was information while the share of the variance was all that was looked at; the rise
    says more: it is that of the format, and the other part did not move."""
    assert only("reward-term-dominates", parts(patients, scale=0.8)).severity == "warn"


def test_where_nothing_rises_domination_without_a_held_out_score_is_information(
    patients: ModuleType,
) -> None:
    flat = {"reward": 0.3 + patients.ar1(120, 0.3, 0.02)}
    assert only("reward-term-dominates", parts(patients, scale=0.05, **flat)).severity == "info"
    assert silent("reward-term-dominates", parts(patients, scale=0.8, **flat))


def test_a_small_reward_that_is_learned_or_solved_is_no_victim(patients: ModuleType) -> None:
    assert silent("reward-term-dominates", parts(patients, scale=0.05, rising=True))
    solved = {"rewards/correct/mean": np.full(120, 1.0), "rewards/correct/std": np.full(120, 0.02)}
    assert silent("reward-term-dominates", parts(patients, scale=1.0, **solved))


def test_a_held_out_score_that_rises_acquits(patients: ModuleType) -> None:
    rising = {"val/success_rate": np.linspace(0.1, 0.6, 120) + patients.ar1(120, 0.0, 0.01)}
    assert silent("reward-term-dominates", parts(patients, scale=0.05, **rising))


def test_shares_of_the_gradient_come_before_shares_of_the_variance(patients: ModuleType) -> None:
    even = {f"grad/all/reward/{name}/share": np.full(120, 0.5) for name in ("format", "correct")}
    assert silent("reward-term-dominates", parts(patients, scale=0.05, **even))
    shares = {"format": 0.95, "correct": 0.05}
    skewed = {
        f"grad/all/reward/{name}/share": np.full(120, share) for name, share in shares.items()
    }
    assert (
        "policy gradient"
        in only("reward-term-dominates", parts(patients, scale=1.0, **skewed)).title
    )


def test_weights_among_the_facts_count(patients: ModuleType) -> None:
    run = parts(patients, scale=0.05)
    run.facts["config"] = {"reward_weights": {"format": 0.05, "correct": 1.0}}
    assert silent("reward-term-dominates", run)


def test_one_reward_function_cannot_dominate_another() -> None:
    assert "two reward functions" in skipped(
        "reward-term-dominates", log({"rewards/only/std": np.ones(20)})
    )
    assert "rewards/" in skipped("reward-term-dominates", log({"reward": np.ones(20)}))


# -- preference training


def pairs(patients: ModuleType, **more: Any) -> Log:
    n = 120
    series = {
        "rewards/margins": np.linspace(0.0, 8.0, n) + patients.ar1(n, 0.1, 0.2),
        "rewards/accuracies": np.clip(0.99 + patients.ar1(n, 0.0, 0.003, seed=1), 0.0, 1.0),
        "logps/chosen": np.linspace(-200.0, -270.0, n) + patients.ar1(n, 0.0, 4.0, seed=2),
        "loss": np.linspace(0.69, 0.01, n),
    }
    return log(series | more)


def test_a_margin_that_grows_while_chosen_answers_are_unlearned_is_over_optimised(
    patients: ModuleType,
) -> None:
    found = only("preference-over-optimised", pairs(patients))
    assert (found.severity, found.basis) == ("warn", "heuristic")
    assert "beta" in found.fix[0]
    steady = -200.0 + patients.ar1(120, 0.0, 4.0)
    assert silent("preference-over-optimised", pairs(patients, **{"logps/chosen": steady}))
    usual = {"rewards/accuracies": 0.75 + patients.ar1(120, 0.0, 0.03)}
    assert silent("preference-over-optimised", pairs(patients, **usual))


def test_held_out_pairs_that_are_told_apart_ever_worse_are_enough(patients: ModuleType) -> None:
    held = (range(0, 120, 4), np.linspace(0.75, 0.55, 30) + patients.ar1(30, 0.0, 0.01))
    steady = -200.0 + patients.ar1(120, 0.0, 4.0)
    run = pairs(patients, **{"logps/chosen": steady, "eval_rewards/accuracies": held})
    assert only("preference-over-optimised", run).basis == "statistical"


# -- all of them


@pytest.mark.slow
@pytest.mark.parametrize("n", [50, 500])
@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_healthy_runs_with_noise_that_remembers_raise_no_warning(
    n: int, phi: float, patients: ModuleType
) -> None:
    """Of 200 slow and 200 fast learners each, none was warned about when this was measured."""
    warned = 0
    curves = (np.linspace(1.0, 1.5, n), learned(n, low=1.0, high=3.0))
    every = max(1, n // 25)
    for seed in range(8):
        for curve in curves:
            held_out = curve + patients.ar1(n, phi, 0.1, seed + 100)
            run = log(
                {
                    "reward": curve + patients.ar1(n, phi, 0.1, seed),
                    "val/reward": (range(0, n, every), held_out[::every]),
                    "episode_length": curve * 100.0 + patients.ar1(n, phi, 5.0, seed + 200),
                    "grad/all/norm/raw": np.exp(patients.ar1(n, phi, 0.3, seed + 300)),
                    "step/predicted": -0.1 + patients.ar1(n, phi, 0.1, seed + 400),
                    "truncated_fraction": np.clip(
                        0.02 + patients.ar1(n, phi, 0.01, seed + 500), 0.0, 1.0
                    ),
                }
            )
            for id in MINE:
                found = verdict(id, run)
                warned += not isinstance(found, Skipped) and any(
                    f.severity != "info" for f in found
                )
    assert warned == 0


@pytest.mark.slow
def test_a_fall_is_found_in_noise_alone_less_often_than_its_level(patients: ModuleType) -> None:
    wrong = 0
    for seed in range(60):
        found = outcome_of(RunData(log({"reward": patients.ar1(200, 0.5, 1.0, seed)})))
        wrong += found is not None and found.course == "fell"
    assert wrong <= 3  # at 2 % more than three come once in 30 such tests


VALUES = st.lists(
    st.floats(allow_nan=True, allow_infinity=True, min_value=None, width=32), max_size=40
)
NAMES = (
    "reward",
    "val/reward",
    "success_rate",
    "episode_length",
    "truncated_fraction",
    "step/predicted",
    "step/realised",
    "grad/all/norm/raw",
    "rewards/a/mean",
    "rewards/a/std",
    "rewards/b/mean",
    "rewards/b/std",
    "grad/all/reward/a/share",
    "grad/all/reward/b/share",
)


@pytest.mark.slow
@given(
    st.dictionaries(st.sampled_from(NAMES), VALUES),
    st.integers(-100, 100),
    st.sampled_from([None, 0, 1.0, -5, "x"]),
)
@settings(max_examples=3 * settings.default.max_examples // 2)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_rule_falls_over_whatever_the_series_hold(
    series: dict[str, list[float]], start: int, best: Any
) -> None:
    shifted = {name: (range(start, start + len(values)), values) for name, values in series.items()}
    run = log(shifted, max_reward=best, max_episode_steps=best, reward_weights=best)
    for id in MINE:
        found = verdict(id, run)
        assert isinstance(found, Skipped | list)


def test_a_fall_through_the_middle_third_is_seen_against_the_first(patients: ModuleType) -> None:
    t = np.linspace(0.0, 1.0, 150)
    reward = 200.0 - 160.0 * np.clip(3.0 * t - 1.0, 0.0, 1.0) + patients.ar1(150, 0.5, 6.0, 1)
    found = only("reward-declining", log({"reward": reward}))
    assert found.title.startswith("The reward fell from 20")
    assert found.since_step is not None
    assert 60 <= found.since_step <= 90
    assert silent("reward-declining", log({"reward": 200.0 + patients.ar1(150, 0.5, 6.0, 1)}))


def test_a_short_run_that_falls_all_along_is_declining(patients: ModuleType) -> None:
    reward = (
        200.0
        - 160.0 * np.minimum(1.0, 2.0 * np.linspace(0.0, 1.0, 60))
        + patients.ar1(60, 0.0, 6.0, 2)
    )
    found = only("reward-declining", log({"reward": reward}))
    assert found.since_step is not None
    assert 10 <= found.since_step <= 30
    assert silent("reward-declining", log({"reward": reward[::-1]}))


def test_a_flat_reward_is_no_warning_where_a_held_out_score_rose_over_the_run(
    patients: ModuleType,
) -> None:
    noisy = 0.25 + patients.ar1(400, 0.0, 0.05, 3)
    evaluated = range(0, 400, 10)
    score = 0.2 + 0.07 * np.linspace(0.0, 1.0, 40) ** 0.5 + patients.ar1(40, 0.0, 0.01, 4)
    assert only("reward-plateau", log({"reward": noisy})).severity == "warn"
    found = verdict("reward-plateau", log({"reward": noisy, "val/reward": (evaluated, score)}))
    assert isinstance(found, list)
    assert [each.severity for each in found] in ([], ["info"])
    flat = 0.2 + patients.ar1(40, 0.0, 0.01, 4)
    assert (
        only("reward-plateau", log({"reward": noisy, "val/reward": (evaluated, flat)})).severity
        == "warn"
    )


def test_updates_that_lower_what_earned_most_are_said_where_nothing_was_held_out() -> None:
    noise = np.random.default_rng(0).normal(0, 0.05, 40)
    series = {"reward": 10 + np.zeros(40), "reward_gain": noise - 0.1}
    found = only("update-opposes-reward", log(series))
    assert found.severity == "critical"
    assert found.since_step == 0


def test_updates_that_raise_it_or_do_nothing_are_left_alone() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 40)
    assert silent(
        "update-opposes-reward", log({"reward": np.zeros(40), "reward_gain": noise + 0.1})
    )
    assert silent("update-opposes-reward", log({"reward": np.zeros(40), "reward_gain": noise}))


def test_a_reward_that_rises_all_the_same_makes_a_negative_gain_information() -> None:
    noise = np.random.default_rng(0).normal(0, 0.05, 40)
    found = only(
        "update-opposes-reward", log({"reward": np.arange(40.0), "reward_gain": noise - 0.1})
    )
    assert found.severity == "info"


def test_a_flat_reward_of_a_training_that_goes_on_is_information() -> None:
    rewards = {"reward": 5 + 0.1 * np.random.default_rng(0).normal(size=200)}
    assert only("reward-plateau", log(rewards)).severity == "warn"
    assert only("reward-plateau", log(rewards, start=None)).severity == "warn"
    assert (
        only("reward-plateau", log(rewards, resume_from_checkpoint="last.ckpt")).severity == "info"
    )


def test_a_small_certain_fall_on_a_plateau_is_not_called_no_trend() -> None:
    fall = np.concatenate([np.full(100, 3.0), np.linspace(3.0, 2.85, 100)])
    noise = np.random.default_rng(0).normal(0.0, 0.05, 200)
    reading = only("reward-plateau", log({"reward": fall + noise})).evidence[0].reading
    assert "no trend" not in reading
    assert reading.startswith("it fell by 0.1")


def test_a_reward_that_rose_early_rests_whatever_its_last_quarters_happen_to_be(
    patients: ModuleType,
) -> None:
    t = np.linspace(0.0, 1.0, 144)
    early = [
        outcome_of(
            RunData(log({"reward": np.minimum(1.0, 8.0 * t) + patients.ar1(144, 0.5, 0.2, seed=k)}))
        )
        for k in range(40)
    ]
    late = [
        outcome_of(RunData(log({"reward": t + patients.ar1(144, 0.5, 0.1, seed=k)})))
        for k in range(40)
    ]
    assert sum(x is not None and x.rests for x in early) >= 36
    assert sum(x is not None and x.rests for x in late) <= 2


def test_evaluations_that_come_down_to_their_start_and_below_are_no_noise() -> None:
    scores = [
        3.04,
        3.37,
        4.48,
        4.93,
        5.0,
        4.09,
        3.67,
        3.4,
        2.91,
        2.13,
        1.64,
        1.17,
        0.49,
        0.11,
        -0.3,
    ]
    found = outcome_of(RunData(log({"val/reward": scores})))
    assert found is not None
    assert (found.course, found.came_down) == ("fell", True)


def test_few_points_under_white_noise_tell_where_they_go_and_a_random_walk_does_not() -> None:
    random = np.random.default_rng(5)
    line, walks = np.linspace(0.0, 1.0, 26), 0
    for sign, course in ((1.0, "gained"), (-1.0, "fell")):
        told = 0
        for _ in range(40):
            found = outcome_of(RunData(log({"reward": sign * line + 0.1 * random.normal(size=26)})))
            told += found is not None and found.course == course
        assert told >= 30
    for _ in range(100):
        found = outcome_of(RunData(log({"reward": np.cumsum(random.normal(size=26))})))
        walks += found is not None and found.course == "gained"
    assert walks <= 8
