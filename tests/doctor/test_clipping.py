"""A clip that is always active, one that takes too much, and a log that only shows what the clip
left."""

from __future__ import annotations

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
ALWAYS, OVER = "clip-always-active", "over-clipping"


def judge(id: str, run: Run) -> list[Finding] | Skipped:
    return next(rule for rule in rules() if rule.id == id)(RunData(run))


def one(id: str, run: Run) -> Finding:
    found = judge(id, run)
    assert isinstance(found, list)
    assert [finding.id for finding in found] == [id]
    return found[0]


def scattered(centre: float, sigma: float, n: int = 60, seed: int = 0) -> Any:
    return centre * 10.0 ** np.random.default_rng(seed).normal(0.0, sigma, n)


def flat(n: int = 60) -> Any:
    return 1.0 + 0.1 * np.random.default_rng(7).normal(size=n)


def rising(n: int = 60) -> Any:
    return np.linspace(0.0, 10.0, n)


# Always active


def test_a_clip_active_at_every_step_is_information(patient: Patient) -> None:
    run = patient(
        {
            "grad/all/clip/ratio": scattered(0.3, 0.05),
            "grad/all/clip/threshold": [0.5] * 60,
            "reward": flat(),
        }
    )
    finding = one(ALWAYS, run)
    assert finding.severity == "info"
    assert "steady ratio near 0.3" in finding.title
    assert any("1.6" in fix or "1.7" in fix for fix in finding.fix)  # the median raw norm: 0.5/0.3
    assert finding.since_step == 0


def test_a_clip_that_spares_a_tenth_of_the_steps_is_not_always_active(patient: Patient) -> None:
    ratio = scattered(0.3, 0.05)
    ratio[::10] = 1.0
    assert judge(ALWAYS, patient({"grad/all/clip/ratio": ratio})) == []


def test_a_clip_for_outliers_is_healthy(patient: Patient) -> None:
    ratio = np.ones(60)
    ratio[::12] = 0.4
    assert judge(ALWAYS, patient({"grad/all/clip/ratio": ratio})) == []
    assert judge(OVER, patient({"grad/all/clip/ratio": ratio, "reward": flat()})) == []


def test_since_when_it_is_active_is_said(patient: Patient) -> None:
    ratio = scattered(0.3, 0.05)
    ratio[:20] = 1.0
    assert one(ALWAYS, patient({"grad/all/clip/ratio": ratio})).since_step == 20


# Pinned


@pytest.mark.parametrize(
    "name", ["grad_norm", "total_grad_norm", "Total Grad Norm", "grad/all/norm/clipped"]
)
def test_a_norm_pinned_at_one_value_was_taken_after_the_clip(patient: Patient, name: str) -> None:
    rounded = np.round(1.0 + 1e-4 * np.random.default_rng(0).normal(size=30), 4)
    rounded = np.minimum(rounded, 1.0)
    finding = one(ALWAYS, patient({name: rounded}, facts={"grad_clip": 1.0}))
    assert finding.severity == "info"
    assert "proves nothing about raw gradients" in finding.title
    assert "the run's clip threshold" in finding.title
    assert "clip_grad_norm_ returns" in finding.fix[0]


def test_eight_equal_norms_are_enough_and_seven_are_not(patient: Patient) -> None:
    assert one(ALWAYS, patient({"grad_norm": [1.0] * 8}))
    assert isinstance(judge(ALWAYS, patient({"grad_norm": [1.0] * 7})), Skipped)


def test_the_meter_s_own_clipped_norm_hides_no_raw_one_however_short_the_run(
    patient: Patient,
) -> None:
    ours = {
        "grad/all/norm/raw": scattered(7.0, 0.1)[:8],
        "grad/all/norm/clipped": [0.5] * 8,
        "grad/all/clip/ratio": 0.5 / scattered(7.0, 0.1)[:8],
    }
    assert isinstance(judge(ALWAYS, patient(ours)), Skipped)


@pytest.mark.parametrize("values", [scattered(1.0, 0.02), [0.0] * 30, np.linspace(0.5, 1.0, 30)])
def test_a_norm_that_varies_or_is_zero_is_not_pinned(patient: Patient, values: Any) -> None:
    assert isinstance(judge(ALWAYS, patient({"grad_norm": values})), Skipped)


def test_a_pinned_norm_accuses_nobody_of_over_clipping(patient: Patient) -> None:
    run = patient({"grad_norm": [1.0] * 60, "reward": flat()}, facts={"max_grad_norm": 1.0})
    assert isinstance(judge(OVER, run), Skipped)


def test_where_both_norms_are_logged_the_ratio_is_theirs(patient: Patient) -> None:
    run = patient({"grad/all/norm/raw": scattered(4.0, 1e-3), "grad/all/norm/clipped": [1.0] * 60})
    finding = one(ALWAYS, run)
    assert "0.25" in finding.title
    assert "norm/clipped over norm/raw" in finding.evidence[0].reading


# Too much


def clipped(centre: float, sigma: float, **more: Any) -> dict[str, Any]:
    ratio = np.minimum(scattered(centre, sigma), 1.0)
    return {
        "grad/all/clip/ratio": ratio,
        "grad/all/clip/threshold": [1e-3] * 60,
        "reward": flat(),
    } | more


def test_a_ratio_far_below_one_that_varies_harms(patient: Patient) -> None:
    run = patient(clipped(0.01, 0.5))
    finding = one(OVER, run)
    assert finding.severity == "warn"
    assert finding.since_step == 0
    assert "varies" in finding.title
    assert judge(ALWAYS, run) == []  # one word about one clip


def test_a_ratio_far_below_one_that_is_steady_is_cancelled_by_adam(patient: Patient) -> None:
    run = patient(clipped(0.01, 0.1))
    assert judge(OVER, run) == []
    assert one(ALWAYS, run).severity == "info"


def test_a_steady_ratio_harms_where_the_update_starves(patient: Patient) -> None:
    starved = {"grad/all/update_ratio": scattered(3e-6, 0.1)}
    assert "hardly move" in one(OVER, patient(clipped(0.01, 0.1, **starved))).title
    fed = {"grad/all/update_ratio": scattered(3e-5, 0.1)}
    assert judge(OVER, patient(clipped(0.01, 0.1, **fed))) == []


def test_less_than_the_epsilon_of_adam_is_told_whatever_the_reward_does(patient: Patient) -> None:
    finding = one(OVER, patient(clipped(2e-10, 0.02, reward=rising())))
    assert finding.severity == "warn"
    assert "steps of Adam shrink with it" in finding.title
    assert judge(OVER, patient(clipped(2e-7, 0.02, reward=rising()))) == []


def test_half_of_the_gradient_left_is_not_over_clipping(patient: Patient) -> None:
    assert judge(OVER, patient(clipped(0.3, 0.4))) == []


def test_nobody_is_accused_while_the_policy_learns_or_no_reward_is_known(patient: Patient) -> None:
    assert judge(OVER, patient(clipped(0.01, 0.5, reward=rising()))) == []
    alone = clipped(0.01, 0.5)
    del alone["reward"]
    assert judge(OVER, patient(alone)) == []


def test_a_policy_that_creeps_up_far_below_a_simple_rule_is_held_back_by_such_a_clip(
    patient: Patient,
) -> None:
    series = clipped(0.01, 0.5, reward=rising())
    end = float(np.mean(rising()[-6:]))
    slow = {"random_reward": end - 1.0, "baseline_reward": end + 9.0}
    assert "varies" in one(OVER, patient(series, facts=slow)).title
    near = {"random_reward": end - 9.0, "baseline_reward": end + 1.0}
    assert judge(OVER, patient(series, facts=near)) == []
    assert judge(OVER, patient(series, facts={"random_reward": end - 1.0})) == []
    steady = clipped(0.01, 0.1, reward=rising())
    assert judge(OVER, patient(steady, facts=slow)) == []


def test_a_raw_norm_of_another_trainer_and_its_threshold_are_enough(patient: Patient) -> None:
    series = {"actor/grad_norm": scattered(100.0, 0.5), "critic/score/mean": flat()}
    finding = one(OVER, patient(series, facts={"actor": {"grad_clip": 1.0}}))
    assert "threshold 1 over actor/grad_norm" in finding.evidence[0].reading
    assert finding.fix[0].startswith("actor.grad_clip: raise it to about")
    assert isinstance(judge(OVER, patient(series)), Skipped)


# Both


def test_too_little_is_skipped_with_how_much_is_needed(patient: Patient) -> None:
    run = patient({"grad/all/clip/ratio": [0.01] * 5})
    for id in (ALWAYS, OVER):
        found = judge(id, run)
        assert isinstance(found, Skipped)
        assert "5 points, 12 needed" in found.why


@pytest.mark.parametrize(
    "values", [[1.0], [np.nan] * 40, [0.0] * 40, [np.inf] * 40, [-1.0, np.nan] * 20, [1e-320] * 40]
)
def test_no_series_makes_a_rule_fall_over(patient: Patient, values: list[float]) -> None:
    names = ("clip/ratio", "clip/threshold", "norm/raw", "norm/clipped", "update_ratio")
    whole = patient({f"grad/all/{name}": values for name in names} | {"reward": flat(40)})
    norms = patient(
        {f"grad/all/{name}": values for name in ("norm/raw", "norm/clipped")} | {"reward": flat(40)}
    )
    theirs = patient({"grad_norm": values, "reward": flat(40)}, facts={"max_grad_norm": 1.0})
    for run in (whole, norms, theirs):
        for id in (ALWAYS, OVER):
            assert isinstance(judge(id, run), list | Skipped)


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_healthy_clips_are_never_over_clipping(
    patient: Patient, patients: ModuleType, phi: float
) -> None:
    for seed in range(6):
        noise = [patients.ar1(120, phi, 1.0, 10 * seed + k) for k in range(2)]
        run = patient(
            {
                "reward": noise[0],
                "grad/all/clip/ratio": np.minimum(1.0, 10.0 ** (0.25 * noise[1] - 0.5)),
            }
        )
        assert judge(OVER, run) == []


def test_a_norm_that_the_meter_took_is_no_post_clip_norm(patient: Patient) -> None:
    """Taken before any clip: the same at every step it is the gradient itself."""
    for name, said in (("grad_norm", True), ("grad/all/norm/raw", False)):
        found = judge("clip-always-active", patient({name: np.full(40, 174.2)}))
        assert (isinstance(found, list) and bool(found)) == said
