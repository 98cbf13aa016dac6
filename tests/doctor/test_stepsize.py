"""The rules on step size: each fires on the least evidence that should, not just below, and not on
its healthy twin."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gradiometer.doctor.rule import Rule, Skipped, rules
from gradiometer.doctor.rundata import RunData
from gradiometer.records import Event, Finding, Row
from gradiometer.store.logs import Log
from gradiometer.store.reader import Run, load
from gradiometer.store.writer import Writer

Patient = Callable[..., Run]
N = 60
NOISE = 0.01 * np.sin(np.arange(N))
FLAT = 0.3 + NOISE
RISING = np.linspace(0.1, 0.7, N) + NOISE
FALLING = RISING[::-1].copy()
LOST = np.concatenate([np.linspace(0.1, 0.9, N // 2), np.linspace(0.9, 0.35, N // 2)]) + NOISE
IDS = (
    "step-too-large",
    "policy-frozen",
    "kl-runaway",
    "kl-strangled",
    "ratio-explosion",
    "ppo-clip-saturated",
    "stale-data",
)


def the_rule(id: str) -> Rule:
    return next(each for each in rules() if each.id == id)


def judge(id: str, run: Run | Log) -> list[Finding] | Skipped:
    return the_rule(id)(RunData(run))


def finding(id: str, run: Run | Log) -> Finding:
    found = judge(id, run)
    assert not isinstance(found, Skipped), found.why
    assert [each.id for each in found] == [id]
    assert found[0].evidence
    assert found[0].cause
    assert found[0].fix
    assert found[0].confirm
    return found[0]


def level(value: float, n: int = N) -> Any:
    return np.full(n, value)


# Too large


@pytest.mark.parametrize("reward", [FALLING, LOST])
def test_a_high_kl_with_a_reward_that_falls_is_too_large(patient: Patient, reward: Any) -> None:
    kl = np.where(np.arange(N) < 15, 0.01, 0.021)
    found = finding("step-too-large", patient({"approx_kl": kl, "reward": reward}))
    assert found.severity == "warn"
    assert found.since_step == 15
    assert (
        judge("step-too-large", patient({"approx_kl": np.minimum(kl, 0.019), "reward": reward}))
        == []
    )


def test_with_a_flat_reward_it_takes_a_larger_kl(patient: Patient) -> None:
    assert (
        finding("step-too-large", patient({"approx_kl": level(0.051), "reward": FLAT})).severity
        == "warn"
    )
    assert judge("step-too-large", patient({"approx_kl": level(0.049), "reward": FLAT})) == []


def test_a_high_kl_that_learns_is_something_to_watch(patient: Patient) -> None:
    """A strong sign is never silence, and no alarm while it costs nothing."""
    found = finding("step-too-large", patient({"approx_kl": level(0.3), "reward": RISING}))
    assert (found.severity, found.title[:6]) == ("info", "Watch:")
    assert judge("step-too-large", patient({"approx_kl": level(0.08), "reward": RISING})) == []
    done = patient({"approx_kl": level(0.08), "reward": level(500)}, facts={"max_reward": 500})
    assert judge("step-too-large", done) == []


def test_the_target_of_the_trainer_is_the_limit(patient: Patient) -> None:
    def run(kl: float) -> Run:
        return patient(
            {"train/approx_kl": level(kl), "rollout/ep_rew_mean": FLAT}, facts={"target_kl": 0.2}
        )

    found = finding("step-too-large", run(0.31))
    assert "(k3)" in found.title
    assert "n_epochs" in found.fix[0]
    assert judge("step-too-large", run(0.29)) == []


def test_k1_is_signed_and_its_noise_no_step(patient: Patient, patients: ModuleType) -> None:
    noise = patients.ar1(N, 0.0, 0.1, 3)  # |k1| of 0.07 at a typical step
    assert (
        judge("step-too-large", patient({"actor/ppo_kl": noise - noise.mean(), "reward": FALLING}))
        == []
    )


def test_a_kl_of_nats_with_weights_that_jumped_is_seen_though_it_was_early(
    patient: Patient,
) -> None:
    """Two of six windows are enough where two series say it; one alone needs three."""
    early = np.where(np.arange(N) < 24, 1.5, 0.001)
    series = {
        "approx_kl": early,
        "reward": FLAT,
        "grad/all/update_ratio": np.where(np.arange(N) < 24, 0.3, 1e-3),
    }
    found = finding("step-too-large", patient(series))
    assert (found.severity, found.since_step) == ("warn", 0)
    rising = finding("step-too-large", patient({**series, "reward": RISING}))
    assert (rising.severity, rising.title[:6]) == ("info", "Watch:")
    calm = {**series, "grad/all/update_ratio": level(1e-3)}
    assert judge("step-too-large", patient(calm)) == []
    assert (
        finding("step-too-large", patient({**calm, "clip_fraction": level(0.9)})).severity == "warn"
    )


def test_large_updates_of_a_reward_that_stands_are_too_large(patient: Patient) -> None:
    assert (
        finding(
            "step-too-large", patient({"grad/all/update_ratio": level(0.011), "reward": FLAT})
        ).severity
        == "warn"
    )
    assert (
        judge("step-too-large", patient({"grad/all/update_ratio": level(0.009), "reward": FLAT}))
        == []
    )
    assert (
        judge("step-too-large", patient({"grad/all/update_ratio": level(0.011), "reward": RISING}))
        == []
    )


def test_without_a_reward_a_large_kl_is_information(patient: Patient) -> None:
    assert finding("step-too-large", patient({"approx_kl": level(0.06)})).severity == "info"


# Frozen


@pytest.mark.parametrize(
    ("frozen", "moving"),
    [
        ({"grad/all/update_ratio": level(0.9e-5)}, {"grad/all/update_ratio": level(1.1e-5)}),
        ({"approx_kl": level(0.9e-4)}, {"approx_kl": level(1.1e-4)}),
        (
            {"learning_rate": np.where(np.arange(N) < 25, 1e-3, 0.9e-6)},
            {"learning_rate": np.where(np.arange(N) < 25, 1e-3, 1.1e-6)},
        ),
    ],
)
def test_a_policy_that_hardly_moves_below_its_best_is_frozen(
    patient: Patient, frozen: dict[str, Any], moving: dict[str, Any]
) -> None:
    found = finding("policy-frozen", patient({**frozen, "reward": FLAT}))
    assert found.severity == "warn"
    assert found.since_step == (25 if "learning_rate" in frozen else 0)
    assert judge("policy-frozen", patient({**moving, "reward": FLAT})) == []
    assert judge("policy-frozen", patient({**frozen, "reward": RISING})) == []
    assert (
        judge("policy-frozen", patient({**frozen, "reward": level(500)}, facts={"max_reward": 500}))
        == []
    )


def test_a_schedule_that_ends_with_the_run_is_fine(patient: Patient) -> None:
    series = {
        "learning_rate": np.linspace(1e-3, 0, N),
        "approx_kl": np.linspace(1e-2, 0, N),
        "reward": FLAT,
    }
    assert judge("policy-frozen", patient(series)) == []


def test_a_schedule_that_ended_halfway_below_the_known_best_is_not(patient: Patient) -> None:
    rate = np.maximum(np.linspace(1e-3, -1e-3, N), 0)
    reward = np.minimum(np.linspace(0, 200, N), 100)
    series = {"learning_rate": np.roll(rate, -3), "reward": reward}
    assert finding("policy-frozen", patient(series, facts={"max_reward": 500})).severity == "warn"
    assert judge("policy-frozen", patient(series)) == []


def test_a_learning_rate_far_below_any_in_use_or_in_its_warm_up_all_along(
    patient: Patient,
) -> None:
    tiny = finding("policy-frozen", patient({"learning_rate": level(1e-10), "reward": FLAT}))
    assert (tiny.severity, tiny.since_step) == ("warn", 0)
    assert judge("policy-frozen", patient({"learning_rate": level(1e-7), "reward": FLAT})) == []
    warming = {"learning_rate": np.linspace(1e-9, 2e-7, N), "reward": FLAT}
    found = finding("policy-frozen", patient(warming))
    assert (found.severity, "warm-up all along" in found.title) == ("warn", True)
    ended = {**warming, "learning_rate": np.minimum(np.linspace(1e-9, 1e-6, N), 2e-7)}
    assert judge("policy-frozen", patient(ended)) == []


def test_a_policy_that_is_still_its_own_reference_never_moved(patient: Patient) -> None:
    near = {"kl_ref": level(3e-7), "reward": FLAT}
    assert finding("policy-frozen", patient(near)).severity == "warn"
    assert judge("policy-frozen", patient({**near, "kl_ref": level(0.0)})) == []
    assert judge("policy-frozen", patient({**near, "kl_ref": level(1e-3)})) == []


def test_a_kl_of_exactly_zero_was_taken_before_the_step(patient: Patient) -> None:
    assert judge("policy-frozen", patient({"approx_kl": level(0.0), "reward": FLAT})) == []


def test_weights_that_move_are_not_frozen_whatever_the_kl(patient: Patient) -> None:
    series = {"approx_kl": level(1e-5), "grad/all/update_ratio": level(1e-3), "reward": FLAT}
    assert judge("policy-frozen", patient(series)) == []


# The reference


def test_a_kl_that_grows_while_the_reward_stalls_runs_away(patient: Patient) -> None:
    kl = np.linspace(0.0, 0.6, N)
    found = finding("kl-runaway", patient({"kl_ref": kl, "reward": FLAT}))
    assert (found.severity, found.basis) == ("warn", "statistical")
    assert found.since_step in range(28, 33)
    assert judge("kl-runaway", patient({"kl_ref": 0.45 * kl, "reward": FLAT})) == []
    assert judge("kl-runaway", patient({"kl_ref": kl, "reward": RISING})) == []


def test_a_kl_that_doubles_again_and_again_runs_away_though_it_was_small_for_most_of_it(
    patient: Patient,
) -> None:
    doubling = np.geomspace(0.003, 6.0, N)
    assert finding("kl-runaway", patient({"kl_ref": doubling, "reward": FLAT})).severity == "warn"
    assert judge("kl-runaway", patient({"kl_ref": 0.1 * doubling, "reward": FLAT})) == []
    lost = patient({"kl_ref": np.geomspace(0.003, 30.0, N), "reward": FLAT})
    assert finding("kl-runaway", lost).severity == "critical"


def test_a_kl_that_takes_off_late_is_told_before_it_is_a_runaway(patient: Patient) -> None:
    late = 0.01 + 4.0 * np.maximum(0.0, np.linspace(0.0, 1.0, N) - 0.45) ** 2
    assert finding("kl-runaway", patient({"kl_ref": late, "reward": FLAT})).severity == "warn"
    assert judge("kl-runaway", patient({"kl_ref": 0.1 * late, "reward": FLAT})) == []


def test_a_kl_that_settled_does_not_run_away(patient: Patient) -> None:
    settled = 0.6 * (1 - np.exp(-np.arange(N) / 8))
    assert judge("kl-runaway", patient({"kl_ref": settled, "reward": FLAT})) == []


def test_far_out_a_reward_that_stopped_rising_is_enough(patient: Patient) -> None:
    reward = np.minimum(np.linspace(0, 1, N), 0.3) + NOISE
    assert (
        finding("kl-runaway", patient({"kl_ref": np.linspace(0, 3, N), "reward": reward})).severity
        == "warn"
    )
    less = finding("kl-runaway", patient({"kl_ref": np.linspace(0, 1, N), "reward": reward}))
    assert less.severity == "info"


def test_a_kl_that_is_high_counts_though_it_has_settled(patient: Patient) -> None:
    settled = np.minimum(np.linspace(0, 12, N), 3.0)
    found = finding("kl-runaway", patient({"kl_ref": settled, "reward": FLAT}))
    assert (found.severity, found.basis) == ("warn", "heuristic")
    assert "growing" not in found.title
    rising = finding("kl-runaway", patient({"kl_ref": settled, "reward": RISING}))
    assert (rising.severity, rising.title[:6]) == ("info", "Watch:")


def test_a_kl_at_the_first_step_says_that_the_reference_is_another_model(
    patient: Patient,
) -> None:
    found = finding("kl-runaway", patient({"kl_ref": level(1.1), "reward": FLAT}))
    assert (found.severity, found.since_step) == ("warn", 0)
    assert "first step already" in found.title
    assert "reference" in found.fix[0]
    near = {"kl_ref": level(0.8), "reward": FLAT}
    assert judge("kl-runaway", patient(near)) == []
    resumed = ({"kl_ref": level(1.1), "reward": FLAT}, {"resume_from": "checkpoint-100"})
    assert judge("kl-runaway", patient(resumed[0], facts=resumed[1])) == []


def test_a_kl_summed_over_completions_has_another_limit(patient: Patient) -> None:
    assert (
        judge("kl-runaway", patient({"objective/kl": np.linspace(0, 10, N), "reward": FLAT})) == []
    )
    found = finding("kl-runaway", patient({"objective/kl": np.linspace(0, 40, N), "reward": FLAT}))
    assert "a completion" in found.title
    assert "beta" in found.fix[0]


def test_a_kl_of_a_script_of_its_own_may_be_summed_over_an_answer(patient: Patient) -> None:
    kl = np.minimum(np.linspace(0, 40, N), 5.3)
    series = {"kl_ref": kl, "episode_length": level(10.0), "reward": FLAT}
    script = {"script": "rlhf.py", "versions": {"torch": "2"}}
    found = finding("kl-runaway", patient(series, facts=script))
    assert (found.severity, "summed over an answer" in found.title) == ("warn", True)
    assert judge("kl-runaway", patient({**series, "reward": RISING}, facts=script)) == []
    lost = patient({**series, "kl_ref": 8 * kl}, facts=script)
    assert finding("kl-runaway", lost).severity == "critical"
    for facts in ({"script": "grpo.py", "versions": {"trl": "1", "torch": "2"}}, {}):
        assert finding("kl-runaway", patient(series, facts=facts)).severity == "critical"


def chained(kl: float, kl_norm: float, reward: Any) -> dict[str, Any]:
    norms = {"grad/all/term/policy/norm": level(1.0), "grad/all/term/kl/norm": level(kl_norm)}
    return {"kl_ref": level(kl), "reward": reward, **norms}


def test_a_kl_term_as_strong_as_the_task_strangles(patient: Patient) -> None:
    found = finding("kl-strangled", patient(chained(0.9e-4, 0.51, FLAT)))
    assert (found.severity, found.since_step) == ("warn", 0)


@pytest.mark.parametrize(
    "healthy", [(0.051, 0.51, FLAT), (0.9e-4, 0.49, FLAT), (0.9e-4, 0.51, RISING)]
)
def test_a_kl_term_that_only_steers_does_not(
    patient: Patient, healthy: tuple[float, float, Any]
) -> None:
    assert judge("kl-strangled", patient(chained(*healthy))) == []


def test_at_the_reference_there_is_neither_kl_nor_gradient(patient: Patient) -> None:
    assert judge("kl-strangled", patient(chained(0.0, 0.0, FLAT))) == []


def test_a_known_coefficient_alone_makes_it_information(patient: Patient) -> None:
    run = patient({"kl_ref": level(1e-5), "reward": FLAT}, facts={"kl_loss_coef": 10.0})
    found = finding("kl-strangled", run)
    assert found.severity == "info"
    assert "(now 10)" in found.fix[0]


# Ratios and clips


def test_one_exploded_ratio_is_information_and_three_are_a_warning(patient: Patient) -> None:
    ratio = level(1.5)
    ratio[20] = 10.1
    found = finding("ratio-explosion", patient({"ratio/max": ratio, "reward": FLAT}))
    assert (found.severity, found.since_step) == ("info", 20)
    ratio[[30, 40]] = 40.0
    assert (
        finding("ratio-explosion", patient({"ratio/max": ratio, "reward": FLAT})).severity == "warn"
    )
    assert (
        finding("ratio-explosion", patient({"ratio/max": ratio, "reward": RISING})).severity
        == "info"
    )
    assert judge("ratio-explosion", patient({"ratio/max": level(9.9), "reward": FLAT})) == []


def test_an_infinite_ratio_is_a_warning_at_once(patient: Patient) -> None:
    ratio = level(1.5)
    ratio[20] = math.inf
    assert (
        finding("ratio-explosion", patient({"ratio/max": ratio, "reward": RISING})).severity
        == "warn"
    )


def test_the_event_of_the_meter_counts(patient: Patient) -> None:
    events = [
        Event(
            step=7, kind="ratio-explosion", message="a policy ratio of 35", detail={"ratio": 35.0}
        )
    ]
    found = finding("ratio-explosion", patient({"reward": FLAT}, events=events))
    assert (found.severity, found.since_step) == ("info", 7)
    assert "35 at step 7" in found.title


def test_a_saturated_clip_counts_with_a_reward_that_stands_or_falls(patient: Patient) -> None:
    share = np.where(np.arange(N) < 10, 0.1, 0.31)
    for reward in (FLAT, LOST):
        found = finding("ppo-clip-saturated", patient({"clip_fraction": share, "reward": reward}))
        assert (found.severity, found.since_step) == ("warn", 10)
    assert (
        judge("ppo-clip-saturated", patient({"clip_fraction": level(0.29), "reward": FLAT})) == []
    )
    assert judge("ppo-clip-saturated", patient({"clip_fraction": share, "reward": RISING})) == []
    half = finding("ppo-clip-saturated", patient({"clip_fraction": level(0.5), "reward": RISING}))
    assert (half.severity, half.title[:6]) == ("info", "Watch:")
    assert finding("ppo-clip-saturated", patient({"clip_fraction": share})).severity == "info"
    assert finding("ppo-clip-saturated", patient({"clip_fraction": level(0.41)})).severity == "warn"


def test_clips_mostly_from_below_count_too(patient: Patient) -> None:
    def run(low: float, high: float, reward: Any = FLAT) -> Run:
        return patient(
            {
                "clip_ratio/low_mean": level(low),
                "clip_ratio/high_mean": level(high),
                "reward": reward,
            }
        )

    assert "from below" in finding("ppo-clip-saturated", run(0.06, 0.02)).title
    assert judge("ppo-clip-saturated", run(0.06, 0.021)) == []
    assert judge("ppo-clip-saturated", run(0.049, 0.001)) == []
    assert judge("ppo-clip-saturated", run(0.06, 0.02, RISING)) == []


# Stale


@pytest.mark.parametrize(
    ("stale", "fresh"),
    [
        ({"ess": level(0.29)}, {"ess": level(0.31)}),
        ({"importance_weight": level(0.49)}, {"importance_weight": level(0.51)}),
        ({"importance_weight": level(2.1)}, {"importance_weight": level(1.9)}),
        ({"approx_kl": np.linspace(0.001, 0.06, N)}, {"approx_kl": np.linspace(0.001, 0.05, N)}),
    ],
)
def test_data_of_another_policy_is_stale(
    patient: Patient, stale: dict[str, Any], fresh: dict[str, Any]
) -> None:
    found = finding("stale-data", patient({**stale, "reward": FLAT}))
    assert found.severity == "warn"
    assert found.since_step is not None
    assert judge("stale-data", patient({**fresh, "reward": FLAT})) == []
    learns = judge("stale-data", patient({**stale, "reward": RISING}))
    assert isinstance(learns, list)
    assert all(each.severity == "info" for each in learns)


def test_a_long_first_rollout_does_not_hide_that_the_buffer_is_never_emptied(
    patient: Patient,
) -> None:
    share = np.where(np.arange(N) < 0.6 * N, 0.0, 0.78)
    found = finding("stale-data", patient({"credit/stale_share": share, "reward": FLAT}))
    assert "78 % of the policy's samples are of earlier rollouts" in found.title


@pytest.mark.parametrize(("upwards", "told"), [(0.6, True), (1.0, False)])
def test_who_imitates_a_data_set_is_not_told_that_it_is_old(
    patient: Patient, upwards: float, told: bool
) -> None:
    old = {"credit/stale_share": np.minimum(1.0, np.arange(N)), "ess": level(0.9)}
    logged = {**old, "credit/positive_share": level(upwards), "reward": FLAT}
    judged = judge("stale-data", patient(logged))
    assert isinstance(judged, list)
    assert bool(judged) is told


def test_a_kl_that_grows_with_its_learning_rate_is_a_warm_up(patient: Patient) -> None:
    ramp = np.linspace(0.001, 0.06, N)
    assert (
        judge("stale-data", patient({"approx_kl": ramp, "learning_rate": ramp, "reward": FLAT}))
        == []
    )


def test_a_kl_that_grows_over_the_epochs_of_a_rollout_is_information(tmp_path: Path) -> None:
    def run(name: str, last: float) -> Run:
        with Writer(tmp_path / name, facts={}) as writer:
            for step in range(80):
                rollout, epoch = divmod(step, 4)
                values = {
                    "approx_kl": 0.005 + (last - 0.005) * epoch / 3,
                    "reward": 0.3 + 0.01 * math.sin(step),
                }
                writer.put(
                    Row(step=step, wall_time=0.0, values=values, rollout=rollout, epoch=epoch)
                )
        return load(tmp_path / name)

    found = finding("stale-data", run("stale", 0.06))
    assert found.severity == "info"
    assert "0.005 in the first epoch of a rollout, 0.06 in epoch 4" in found.title
    assert judge("stale-data", run("fresh", 0.045)) == []


# What all of them must bear


@pytest.mark.parametrize("id", IDS)
def test_a_rule_without_its_metrics_says_how_to_get_them(id: str, patient: Patient) -> None:
    found = judge(id, patient({"time/fps": level(1.0)}))
    assert isinstance(found, Skipped)
    assert found.metric
    assert "log" in found.why


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("n", [50, 500])
def test_healthy_noise_is_no_finding(
    patients: ModuleType, planted: ModuleType, phi: float, n: int
) -> None:
    alarms = []
    for seed in range(4):
        run = planted.log(healthy(patients, n, phi, seed))
        found = [judge(id, run) for id in IDS]
        alarms += [
            each
            for some in found
            if not isinstance(some, Skipped)
            for each in some
            if each.severity != "info"
        ]
    assert alarms == []


def healthy(patients: ModuleType, n: int, phi: float, seed: int) -> dict[int, dict[str, float]]:
    def noise(sigma: float, k: int) -> Any:
        return patients.ar1(n, phi, sigma, 100 * seed + k)

    series = {
        "reward": 10 + noise(1.0, 1),  # flat: the second signal is there all along
        "approx_kl": 0.008 * np.exp(noise(0.4, 2)),
        "clip_fraction": np.clip(0.12 + noise(0.05, 3), 0, 1),
        "grad/all/update_ratio": 1e-3 * np.exp(noise(0.4, 4)),
        "kl_ref": 0.4 * np.exp(noise(0.3, 5)),  # above its limit and steady
        "ratio/max": 1.5 * np.exp(noise(0.2, 6)),
        "ess": np.clip(0.8 + noise(0.05, 7), 0, 1),
        "learning_rate": np.linspace(3e-4, 0, n),
        "grad/all/term/policy/norm": np.exp(noise(0.3, 8)),
        "grad/all/term/kl/norm": 0.1 * np.exp(noise(0.3, 9)),
    }
    return {step: {name: float(x[step]) for name, x in series.items()} for step in range(n)}


# What a KL of one step cannot show


def signed(size: float, seed: int = 0) -> Any:
    """A KL by k1: noise around almost nothing."""
    return size * np.random.default_rng(seed).normal(size=N)


def test_a_signed_kl_whose_median_is_near_zero_is_no_frozen_policy(patient: Patient) -> None:
    assert judge("policy-frozen", patient({"actor/ppo_kl": signed(5e-4), "reward": FLAT})) == []
    assert (
        finding("policy-frozen", patient({"actor/ppo_kl": signed(1e-5), "reward": FLAT})).severity
        == "warn"
    )


def test_a_kl_taken_before_the_only_step_is_excused_by_a_reference_left_behind_or_an_entropy_on_its_way(
    patient: Patient,
) -> None:
    tiny = {"actor/ppo_kl": signed(1e-6), "reward": FLAT}
    falls = np.linspace(0.5, 0.2, N) + 0.01 * NOISE
    assert (
        judge("policy-frozen", patient({**tiny, "actor/kl_loss": np.linspace(0.0, 0.02, N)})) == []
    )
    assert judge("policy-frozen", patient({**tiny, "actor/entropy": falls})) == []
    stands = {"actor/kl_loss": level(1e-5), "actor/entropy": 0.5 + 0.01 * NOISE}
    assert finding("policy-frozen", patient({**tiny, **stands})).severity == "warn"


def test_a_policy_whose_schedule_ended_near_a_maximum_of_zero_is_done(patient: Patient) -> None:
    rate = np.where(np.arange(N) < 20, 3e-4, 0.0)
    learnt = np.minimum(-1400.0 + 80.0 * np.arange(N), -100.0) + NOISE
    assert (
        judge(
            "policy-frozen",
            patient({"learning_rate": rate, "reward": learnt}, facts={"max_reward": 0}),
        )
        == []
    )
    short = np.minimum(-1400.0 + 80.0 * np.arange(N), -700.0) + NOISE
    assert finding(
        "policy-frozen", patient({"learning_rate": rate, "reward": short}, facts={"max_reward": 0})
    )


JUMPED = {
    "grad/all/update_ratio": [1.5, 0.02] + [1e-4] * 28,
    "reward": [-3.5, -70.0] + [-60.0] * 14 + [-3.0] * 14,
}


def test_one_step_that_replaces_the_network_is_proved_and_critical(patient: Patient) -> None:
    found = finding("step-too-large", patient(JUMPED))
    assert (found.severity, found.basis, found.since_step) == ("critical", "proved", 0)
    assert "150%" in found.title


def test_a_jump_after_which_the_reward_rose_is_nobodys_fault(patient: Patient) -> None:
    assert not judge("step-too-large", patient(JUMPED | {"reward": [float(x) for x in range(30)]}))
    below = JUMPED | {"grad/all/update_ratio": [0.4] + [1e-4] * 29}
    assert not judge("step-too-large", patient(below))


def test_a_policy_that_learns_in_tiny_steps_is_told_so_as_information(patient: Patient) -> None:
    crawling = {"grad/all/update_ratio": level(5e-5), "approx_kl": level(5e-4), "reward": RISING}
    assert finding("policy-frozen", patient(crawling)).severity == "info"
    for faster in ({"approx_kl": level(2e-3)}, {"grad/all/update_ratio": level(2e-4)}):
        assert judge("policy-frozen", patient(crawling | faster)) == []


def test_a_reward_lost_at_one_stroke_after_a_far_step_is_critical(patient: Patient) -> None:
    kl = np.where(np.arange(N) == 4, 0.6, 0.004)
    reward = np.where(np.arange(N) <= 4, 0.4, 0.0) + 0.01 * np.sin(np.arange(N))
    found = finding("step-too-large", patient({"approx_kl": kl, "reward": reward}))
    assert (found.severity, found.since_step) == ("critical", 4)
    assert (
        judge("step-too-large", patient({"approx_kl": np.minimum(kl, 0.1), "reward": reward})) == []
    )
    back = np.where(np.arange(N) < 20, reward, 0.4)
    assert judge("step-too-large", patient({"approx_kl": kl, "reward": back})) == []


def test_a_penalty_that_outweighs_the_rewards_strangles_a_policy_that_moves_a_little(
    patient: Patient,
) -> None:
    """Where the KL is a part of the reward (RLOO), no term of the loss shows it."""
    held = {"kl_ref": level(0.016), "reward_std": level(0.11), "reward": FLAT}
    found = finding("kl-strangled", patient(held, facts={"beta": 10.0}))
    assert found.severity == "warn"
    assert any("rewards differ by 0.11" in each.reading for each in found.evidence)
    assert judge("kl-strangled", patient(held, facts={"beta": 0.04})) == []
    assert judge("kl-strangled", patient({**held, "reward": RISING}, facts={"beta": 10.0})) == []


def test_weights_that_hardly_move_under_an_entropy_that_keeps_its_digits_are_frozen(
    patient: Patient,
) -> None:
    """Of one step on each rollout there is no KL."""
    entropy = 0.69 + 1e-5 * np.sin(np.arange(N))
    still = {"grad/all/update_ratio": level(2e-5), "entropy": entropy, "reward": FLAT}
    assert finding("policy-frozen", patient(still)).severity == "warn"
    moving = {**still, "entropy": np.linspace(0.69, 0.6, N)}
    assert judge("policy-frozen", patient(moving)) == []
    assert judge("policy-frozen", patient({**still, "grad/all/update_ratio": level(2e-3)})) == []


@pytest.mark.parametrize(("dead", "told"), [(0.95, 1), (0.3, 0)])
def test_a_network_that_was_replaced_and_learned_with_what_was_left_is_a_note(
    patient: Patient, dead: float, told: int
) -> None:
    moved = np.r_[0.9, np.full(N - 1, 0.004)]
    series = {"grad/all/update_ratio": moved, "grad/all/zero_fraction": level(dead)}
    found = judge("step-too-large", patient({**series, "reward": RISING}))
    assert isinstance(found, list)
    assert [each.severity for each in found] == ["info"] * told


@pytest.mark.parametrize("rises", [True, False])
def test_samples_that_are_never_newer_than_the_first_are_stale(
    patient: Patient, rises: bool
) -> None:
    """A data set and evaluations beside it bring it on by design: no warning while it learns."""
    detail = {"how": "never-renewed", "newest": 150, "steps": 900, "samples": 700}
    event = Event(step=9, kind="stale-data", message="none is newer", detail=detail)
    reward = RISING if rises else FLAT
    found = finding("stale-data", patient({"reward": reward}, events=[event]))
    assert found.basis == "proved"
    assert found.severity == ("info" if rises else "warn")
    assert "first 150 steps" in found.title
