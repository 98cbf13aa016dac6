"""The rules on the signal: each fires on the least evidence that should, not just below, and not on
its healthy twin."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gradiometer.doctor.rule import Rule, Skipped, rules
from gradiometer.doctor.rundata import RunData
from gradiometer.records import Finding
from gradiometer.store.logs import Log
from gradiometer.store.reader import Run

Patient = Callable[..., Run]
N = 60
RISING = np.linspace(0.1, 0.7, N)
FLAT = 0.3 + 0.01 * np.sin(np.arange(N))
IDS = (
    "groups-too-easy",
    "groups-too-hard",
    "noise-dominated",
    "reward-unreliable",
    "advantage-outliers",
    "advantage-scale",
    "reward-scale",
    "template-collapse",
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


# Groups


def test_groups_that_fail_together_are_too_hard(patient: Patient) -> None:
    share = np.where(np.arange(N) < 12, 0.2, 0.6)
    found = finding(
        "groups-too-hard", patient({"zero_variance_groups": share, "success_rate": level(0.1)})
    )
    assert found.severity == "warn"
    assert found.since_step == 12
    assert "verifier" in " ".join(found.fix)
    assert (
        judge(
            "groups-too-easy", patient({"zero_variance_groups": share, "success_rate": level(0.1)})
        )
        == []
    )


def test_groups_that_all_fail_make_the_run_worthless(patient: Patient) -> None:
    run = patient({"zero_variance_groups": level(1.0), "success_rate": level(0.0)})
    assert finding("groups-too-hard", run).severity == "critical"


def test_groups_just_below_half_are_no_finding(patient: Patient) -> None:
    for success in (0.1, 0.95):
        run = patient({"zero_variance_groups": level(0.49), "success_rate": level(success)})
        assert judge("groups-too-hard", run) == []
        assert judge("groups-too-easy", run) == []


def test_hard_groups_that_are_learnt_from_are_no_finding(patient: Patient) -> None:
    run = patient(
        {
            "zero_variance_groups": np.linspace(0.9, 0.55, N),
            "success_rate": np.linspace(0.01, 0.14, N),
        }
    )
    assert judge("groups-too-hard", run) == []


def test_groups_that_were_solved_from_the_start_are_too_easy(patient: Patient) -> None:
    run = patient({"zero_variance_groups": level(0.8), "success_rate": level(0.95)})
    found = finding("groups-too-easy", run)
    assert found.severity == "warn"
    assert found.since_step == 0
    assert "Harder prompts" in found.fix[0]
    assert judge("groups-too-hard", run) == []


def test_groups_that_the_training_solved_are_success(patient: Patient) -> None:
    run = patient(
        {
            "zero_variance_groups": np.linspace(0.1, 0.95, N),
            "success_rate": np.clip(np.linspace(0.2, 1.7, N), 0, 0.98),
        }
    )
    assert finding("groups-too-easy", run).severity == "info"


def test_the_level_may_come_from_the_reward_and_its_range(patient: Patient) -> None:
    series = {"zero_variance_groups": level(0.7), "reward": -9.5 + 0.1 * FLAT}
    hard = patient(series, facts={"max_reward": 10.0, "min_reward": -10.0})
    assert finding("groups-too-hard", hard).severity == "warn"
    assert judge("groups-too-easy", hard) == []


def test_held_out_prompts_tell_whether_groups_are_solved_or_failed(patient: Patient) -> None:
    idle = {"zero_variance_groups": level(0.7), "reward": 40 + FLAT}
    run = patient({**idle, "val/success_rate": level(0.9)})
    assert "solved by every rollout" in finding("groups-too-easy", run).title
    assert judge("groups-too-hard", run) == []


def test_an_unknown_level_is_said_to_be_either(patient: Patient) -> None:
    run = patient({"zero_variance_groups": level(0.7), "reward": 40 + FLAT})
    for id in ("groups-too-easy", "groups-too-hard"):
        found = finding(id, run)
        assert "too easy or too hard" in found.title
        assert "maximum" in found.fix[0]
        assert "minimum" in found.fix[1]


def test_half_solved_half_failed_is_said_once(patient: Patient) -> None:
    run = patient({"zero_variance_groups": level(0.6), "success_rate": 0.3 + FLAT})
    assert finding("groups-too-easy", run).severity == "warn"  # half is lost, and nothing is gained
    assert judge("groups-too-hard", run) == []


def test_a_log_with_only_the_spread_inside_groups_is_understood(
    patients: ModuleType, patient: Patient
) -> None:
    run = patient({"train/reward_std": level(0.005), "train/reward": level(0.05)})
    found = finding("groups-too-hard", run)
    assert "num_generations" in found.fix[-1]
    assert (
        judge(
            "groups-too-hard",
            patient({"train/reward_std": level(0.02), "train/reward": level(0.05)}),
        )
        == []
    )


def test_few_points_are_not_enough_for_groups(patient: Patient) -> None:
    found = judge(
        "groups-too-hard",
        patient({"zero_variance_groups": level(1.0, 8), "success_rate": level(0.0, 8)}),
    )
    assert isinstance(found, Skipped)
    assert "8 points, 9 needed" in found.why


# Noise


def noisy(scale: float, reward: Any, **more: Any) -> dict[str, Any]:
    return {
        "grad/all/noise_scale": level(scale),
        "meter/micro_batches": level(4),
        "reward": reward,
        **more,
    }


def test_a_noise_scale_far_above_the_batch_with_a_flat_reward_is_noise(patient: Patient) -> None:
    scale = np.where(np.arange(N) < 20, 4.0, 41.0)
    found = finding("noise-dominated", patient({**noisy(0, FLAT), "grad/all/noise_scale": scale}))
    assert found.severity == "warn"
    assert found.since_step == 20
    assert found.block == "all"


def test_a_noise_scale_below_ten_batches_is_no_finding(patient: Patient) -> None:
    assert judge("noise-dominated", patient(noisy(39, FLAT))) == []


def test_noise_that_learns_or_is_done_is_no_finding(patient: Patient) -> None:
    assert judge("noise-dominated", patient(noisy(400, RISING))) == []
    done = patient(noisy(400, level(500)), facts={"max_reward": 500})
    assert judge("noise-dominated", done) == []


def test_the_bound_counts_when_it_is_above_the_batch(patient: Patient) -> None:
    def run(bound: float) -> Run:
        series = {
            "grad/all/noise_scale_bound": level(bound),
            "meter/micro_batches": level(4),
            "reward": FLAT,
        }
        return patient(series)

    assert finding("noise-dominated", run(4.1)).severity == "warn"
    assert not isinstance(judge("noise-dominated", run(3.9)), list)


def test_micro_batch_size_turns_the_batch_into_samples(patient: Patient) -> None:
    assert (
        judge(
            "noise-dominated", patient(noisy(100, FLAT), facts={"meter": {"micro_batch_size": 8}})
        )
        == []
    )


def analysed(p_values: list[float], snr: float, reward: Any, groups: int = 8) -> dict[str, Any]:
    steps = [10 * k for k in range(len(p_values))]
    return {
        "grad_norm/all/p_value/task": (steps, p_values),
        "grad_norm/all/snr/task": (steps, [snr] * len(steps)),
        "grad_norm/all/group_rv_count": (steps, [groups] * len(steps)),
        "reward": reward,
    }


def test_three_analyses_without_a_signal_and_a_flat_reward_are_noise(patient: Patient) -> None:
    found = finding("noise-dominated", patient(analysed([0.4, 0.2, 0.7], 0.01, FLAT)))
    assert (found.severity, found.basis) == ("warn", "statistical")


def test_one_analysis_without_a_signal_is_information(patient: Patient) -> None:
    assert finding("noise-dominated", patient(analysed([0.4], 0.01, FLAT))).severity == "info"
    assert judge("noise-dominated", patient(analysed([0.4], 0.01, RISING))) == []


def test_one_significant_analysis_among_three_is_a_signal(patient: Patient) -> None:
    assert judge("noise-dominated", patient(analysed([0.4, 0.01, 0.7], 0.01, FLAT))) == []
    assert (
        len(finding("noise-dominated", patient(analysed([0.4, 0.02, 0.7], 0.01, FLAT))).evidence)
        == 2
    )  # 0.02 × 3 > 0.05


def test_too_few_groups_to_be_significant_say_nothing(patient: Patient) -> None:
    assert judge("noise-dominated", patient(analysed([0.4, 0.4, 0.4], 0.01, FLAT, groups=5))) == []


def test_replicates_with_a_bounded_signal_are_enough(patient: Patient) -> None:
    def run(high: float) -> Run:
        return patient({"variance/pomo/snr_high": ([0], [high]), "reward": FLAT})

    assert finding("noise-dominated", run(0.09)).basis == "statistical"
    assert judge("noise-dominated", run(0.11)) == []


# Rewards that err


def erring(**more: Any) -> dict[str, Any]:
    n = 120
    return {
        "zero_variance_groups": np.linspace(0.6, 0.1, n),
        "grad/all/norm/raw": np.linspace(1.0, 3.0, n),
        "grad/all/cos_ema": 0.01 * np.cos(np.arange(n)),
        "success_rate": 0.3 + 0.01 * np.sin(np.arange(n)),
        **more,
    }


def test_a_growing_gradient_without_direction_hints_at_a_verifier_that_errs(
    patient: Patient,
) -> None:
    found = finding("reward-unreliable", patient(erring()))
    assert found.severity == "info"
    assert len(found.evidence) == 4


@pytest.mark.parametrize(
    "better",
    [
        {"success_rate": np.linspace(0.1, 0.8, 120)},
        {"grad/all/cos_ema": level(0.1, 120)},
        {"grad/all/norm/raw": level(1.0, 120)},
        {"zero_variance_groups": np.linspace(0.35, 0.3, 120)},
        {"grad/all/alignment_window": level(0.5, 120)},
    ],
)
def test_one_healthy_sign_lifts_the_suspicion_of_the_verifier(
    patient: Patient, better: dict[str, Any]
) -> None:
    assert judge("reward-unreliable", patient(erring(**better))) == []


def test_gradients_that_permuted_rewards_explain_are_a_warning(patient: Patient) -> None:
    def run(null: float, p: float) -> Run:
        steps = [0, 10, 20]
        series = analysed([p, 0.5, 0.6], 0.02, FLAT)
        series |= {
            "grad_norm/all/task": (steps, [1.0] * 3),
            "grad_norm/all/null/task": (steps, [null] * 3),
        }
        return patient(series | {"grad_norm/all/reward_std_mean": (steps, [0.4] * 3)})

    found = finding("reward-unreliable", run(0.95, 0.4))
    assert (found.severity, found.basis) == ("warn", "statistical")
    assert isinstance(
        judge("reward-unreliable", run(0.9, 0.4)), Skipped
    )  # 11 % above: asks for a log instead
    assert isinstance(judge("reward-unreliable", run(0.95, 0.01)), Skipped)


# Advantages


def advantages(largest: Any, std: Any, **more: Any) -> dict[str, Any]:
    return {"advantages/max_abs": largest, "advantages/std": std, **more}


def spiked(places: list[int], size: float = 2075.39) -> Any:
    values = level(2.5)
    values[places] = size
    return values


def test_repeated_spikes_of_the_advantages_are_outliers(patient: Patient) -> None:
    run = patient(advantages(spiked([20, 31, 44]), np.where(spiked([20, 31, 44]) > 3, 259.0, 1.0)))
    found = finding("advantage-outliers", run)
    assert found.severity == "warn"
    assert found.since_step == 20
    assert "2.08e+03" in found.title


def test_one_spike_counts_with_the_gradient_it_made(patient: Patient) -> None:
    series = advantages(spiked([20]), np.where(spiked([20]) > 3, 259.0, 1.0))
    assert finding("advantage-outliers", patient(series)).severity == "info"
    jumped = {**series, "grad/all/norm/raw": np.where(np.arange(N) == 20, 3.1, 1.0)}
    assert finding("advantage-outliers", patient(jumped)).severity == "warn"


def test_smaller_spikes_are_no_outliers(patient: Patient) -> None:
    assert (
        judge("advantage-outliers", patient(advantages(spiked([20, 31, 44], 70.0), level(8.0))))
        == []
    )
    small = advantages(
        0.1 * spiked([20, 31, 44], 190.0), level(2.0)
    )  # 76 medians, and still only 19
    assert judge("advantage-outliers", patient(small)) == []


def test_sparse_successes_are_information_and_normal_tails_nothing(patient: Patient) -> None:
    assert (
        finding("advantage-outliers", patient(advantages(level(14.0), level(1.0)))).severity
        == "info"
    )
    assert (
        judge("advantage-outliers", patient(advantages(level(14.0), level(1.0), reward=RISING)))
        == []
    )  # max@k weights
    assert judge("advantage-outliers", patient(advantages(level(5.0), level(1.0)))) == []


@pytest.mark.parametrize(
    ("fires", "below"),
    [
        ({"advantages/std": level(5.1)}, {"advantages/std": level(4.9)}),
        (
            {"advantages/std": level(1.0), "advantages/mean": level(-0.55)},
            {"advantages/std": level(1.0), "advantages/mean": level(0.45)},
        ),
        ({"policy_loss": level(-1.1)}, {"policy_loss": level(-0.9)}),
    ],
)
def test_advantages_off_scale_count_with_a_reward_that_stands(
    patient: Patient, fires: dict[str, Any], below: dict[str, Any]
) -> None:
    found = finding("advantage-scale", patient({**fires, "reward": FLAT}))
    assert found.severity == "warn"
    assert found.since_step == 0
    assert finding("advantage-scale", patient(fires)).severity == "info"
    assert judge("advantage-scale", patient({**below, "reward": FLAT})) == []
    assert judge("advantage-scale", patient({**fires, "reward": RISING})) == []


def test_a_std_of_three_is_wrong_only_where_advantages_are_normalised(patient: Patient) -> None:
    series = {"advantages/std": level(3.0), "reward": FLAT}
    assert judge("advantage-scale", patient(series)) == []
    assert finding("advantage-scale", patient(series, facts={"norm_adv": True})).severity == "warn"


def test_a_loss_that_is_not_of_normalised_advantages_says_nothing(patient: Patient) -> None:
    assert (
        judge("advantage-scale", patient({"train/actor_loss": level(-40.0), "reward": FLAT})) == []
    )
    summed = patient({"policy_loss": level(-8.5), "reward": FLAT}, facts={"reduction": "sum"})
    assert judge("advantage-scale", summed) == []
    known = patient({"policy_loss": level(-8.5), "advantages/std": level(0.3), "reward": FLAT})
    assert judge("advantage-scale", known) == []


def test_the_key_is_that_of_the_trainer(patient: Patient) -> None:
    run = patient({"train/policy_gradient_loss": level(2.0), "rollout/ep_rew_mean": FLAT})
    assert "normalize_advantage=True" in finding("advantage-scale", run).fix[0]


# Rewards


@pytest.mark.parametrize(
    ("targets", "second"),
    [
        ({"returns/max_abs": level(10.5)}, {"explained_variance": level(-0.1)}),
        ({"returns/mean": level(-11.0)}, {"grad/all/term/value/share": level(0.6)}),
        ({"value_loss": level(101.0)}, {"explained_variance": level(0.0)}),
        ({"returns/max_abs": level(0.04)}, {"explained_variance": level(-0.1)}),
        ({"returns/max_abs": level(50.0)}, {"value_loss": np.geomspace(1, 90, N)}),
    ],
)
def test_targets_out_of_reach_count_with_a_critic_that_suffers(
    patient: Patient, targets: dict[str, Any], second: dict[str, Any]
) -> None:
    found = finding("reward-scale", patient({**targets, **second, "reward": FLAT}))
    assert found.severity == "warn"
    assert found.since_step == 0
    assert judge("reward-scale", patient({**targets, "reward": FLAT})) == []
    rising = judge("reward-scale", patient({**targets, **second, "reward": RISING}))
    assert not isinstance(rising, Skipped)
    assert all(each.severity == "info" for each in rising)


def test_targets_within_reach_are_no_finding(patient: Patient) -> None:
    for targets in (
        {"returns/max_abs": level(9.9)},
        {"returns/max_abs": level(0.06)},
        {"value_loss": level(99.0)},
    ):
        assert (
            judge(
                "reward-scale",
                patient({**targets, "explained_variance": level(-0.1), "reward": FLAT}),
            )
            == []
        )


# Templates


def test_information_that_falls_while_entropy_holds_is_a_template(patient: Patient) -> None:
    information = np.concatenate([level(1.0, 20), np.linspace(1.0, 0.5, 40)])
    series = {"mutual_information": information, "entropy": level(2.0), "reward": FLAT}
    found = finding("template-collapse", patient(series))
    assert (found.severity, found.basis) == ("warn", "statistical")
    assert found.since_step in range(42, 48)
    assert finding("template-collapse", patient({**series, "reward": RISING})).severity == "info"


def test_less_loss_or_less_entropy_is_no_template(patient: Patient) -> None:
    falling = np.linspace(1.0, 0.5, N)
    assert (
        judge(
            "template-collapse",
            patient({"mutual_information": 0.55 + 0.45 * falling, "entropy": level(2.0)}),
        )
        == []
    )
    assert (
        judge("template-collapse", patient({"mutual_information": falling, "entropy": 2 * falling}))
        == []
    )
    assert (
        judge(
            "template-collapse",
            patient({"mutual_information": np.linspace(0.5, 1, N), "entropy": level(2.0)}),
        )
        == []
    )


def bucketed(low_task: float) -> dict[str, Any]:
    series: dict[str, Any] = {}
    for place, task in enumerate([low_task, low_task, 1.0, 1.2], start=1):
        at = f"grad_norm/bucket_{place}"
        values = {
            "reward_std_mean": 0.5 * place,
            "sample_pct": 0.25,
            "task": task,
            "entropy": 0.05,
            "kl": 0.05,
        }
        series |= {f"{at}/{name}": ([5], [value]) for name, value in values.items()}
    return series


def test_buckets_that_the_regularisers_rule_are_information(patient: Patient) -> None:
    found = finding("template-collapse", patient(bucketed(0.09)))
    assert (found.severity, found.basis) == ("info", "heuristic")
    assert "bucket_1, bucket_2: 50 %" in found.evidence[0].reading
    assert judge("template-collapse", patient(bucketed(0.11))) == []


# What all of them must bear


@pytest.mark.parametrize("id", IDS)
def test_a_rule_without_its_metrics_says_how_to_get_them(id: str, patient: Patient) -> None:
    found = judge(id, patient({"time/fps": level(1.0)}))
    assert isinstance(found, Skipped)
    assert found.metric
    assert "log it" in found.why or "log " in found.why or "gm.watch" in found.why


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
        "success_rate": np.clip(
            0.4 + noise(0.08, 1), 0, 1
        ),  # flat: the second signal is there all along
        "zero_variance_groups": np.clip(0.25 + noise(0.08, 2), 0, 1),
        "mutual_information": np.exp(noise(0.15, 3)),
        "entropy": 2 + noise(0.1, 4),
        "advantages/std": np.exp(noise(0.1, 5)),
        "advantages/mean": noise(0.05, 6),
        "advantages/max_abs": 4 * np.exp(noise(0.2, 7)),
        "grad/all/norm/raw": np.exp(noise(0.3, 8)),
        "grad/all/cos_ema": noise(0.02, 9),
        "grad/all/noise_scale": 8 * np.exp(noise(0.5, 10)),
        "meter/micro_batches": np.full(n, 4.0),
        "value_loss": np.exp(noise(0.3, 11)),
        "explained_variance": 0.4 + noise(0.1, 12),
        "returns/max_abs": 4 * np.exp(noise(0.2, 13)),
        "policy_loss": noise(0.05, 14),
    }
    return {step: {name: float(x[step]) for name, x in series.items()} for step in range(n)}


def test_targets_out_of_reach_are_told_too_where_the_reward_rose_a_little_and_stands_with_a_blind_critic(
    patient: Patient,
) -> None:
    stands = np.minimum(20.0 + 3.0 * np.arange(N), 50.0) + np.sin(np.arange(N))
    huge = {"value_loss": level(5e5) * 10.0 ** (0.05 * np.sin(np.arange(N))), "reward": stands}
    assert (
        finding("reward-scale", patient({**huge, "explained_variance": level(1e-5)})).severity
        == "warn"
    )
    assert judge("reward-scale", patient({**huge, "explained_variance": level(0.1)})) == []
    still = {**huge, "explained_variance": level(1e-5), "reward": 20.0 + 3.0 * np.arange(N)}
    assert finding("reward-scale", patient(still)).title.startswith("Watch: ")


def test_a_held_out_score_that_falls_while_updates_do_what_the_rewards_say_means_that_the_rewards_err(
    patient: Patient,
) -> None:
    noise = np.random.default_rng(0).normal(0, 0.03, N)
    fooled = {
        "reward": 0.5 + noise,
        "reward_gain": level(0.4),
        "val/reward": np.linspace(0.45, 0.2, N) + noise,
    }
    assert finding("reward-unreliable", patient(fooled)).severity == "warn"
    for healthy in (
        {"val/reward": 0.45 + noise},
        {"reward_gain": level(0.02)},
        {"reward": np.linspace(0.3, 0.9, N)},
    ):
        assert not as_list(judge("reward-unreliable", patient(fooled | healthy)))


def as_list(found: list[Finding] | Skipped) -> list[Finding]:
    return [] if isinstance(found, Skipped) else found


def test_groups_solved_by_a_training_that_goes_on_are_information(patient: Patient) -> None:
    solved = {
        "zero_variance_groups": level(0.9),
        "success_rate": level(0.95),
        "reward": level(0.95),
    }
    assert finding("groups-too-easy", patient(solved)).severity == "warn"
    assert (
        finding(
            "groups-too-easy", patient(solved, facts={"resume_from_checkpoint": "last"})
        ).severity
        == "info"
    )


def test_a_value_loss_of_ten_thousands_that_does_not_come_down_is_a_scale(
    patient: Patient,
) -> None:
    """TD3 and SAC log no explained variance."""
    lost = {"value_loss": level(2e6) * 10.0 ** (0.05 * np.sin(np.arange(N))), "reward": FLAT}
    assert finding("reward-scale", patient(lost)).severity == "warn"
    arrives = {**lost, "value_loss": np.geomspace(2e6, 1e5, N)}
    assert judge("reward-scale", patient(arrives)) == []


@pytest.mark.parametrize(("share", "told"), [(0.04, 1), (0.6, 0)])
def test_single_samples_that_decide_every_update_are_told_by_their_credit(
    patient: Patient, share: float, told: int
) -> None:
    series = {"credit/ess": level(share), "credit/max": level(30.0), "reward": FLAT}
    found = as_list(judge("advantage-outliers", patient(series)))
    assert [each.severity for each in found] == ["warn"] * told
