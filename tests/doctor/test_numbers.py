"""Gradients that are not finite, explode, vanish, spike, are zero, fade with depth, or leave units
out."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gradiometer.doctor.rule import Skipped, rules
from gradiometer.doctor.rundata import RunData
from gradiometer.records import Event, Finding, Table
from gradiometer.store.reader import Run

Patient = Callable[..., Run]
FAMILY = (
    "nonfinite-gradient",
    "training-crashed",
    "exploding-gradient",
    "vanishing-gradient",
    "gradient-spikes",
    "zero-gradient-steps",
    "depth-imbalance",
    "dormant-units",
)


def judge(id: str, run: Run) -> list[Finding] | Skipped:
    return next(rule for rule in rules() if rule.id == id)(RunData(run))


def one(id: str, run: Run) -> Finding:
    found = judge(id, run)
    assert isinstance(found, list)
    assert [finding.id for finding in found] == [id]
    finding = found[0]
    assert finding.evidence
    assert finding.fix
    assert finding.confirm
    return finding


def steady(n: int = 60, seed: int = 0, sigma: float = 0.1) -> Any:
    return 10.0 ** np.random.default_rng(seed).normal(-1.0, sigma, n)


def flat(n: int = 60, seed: int = 7) -> Any:
    return 1.0 + 0.1 * np.random.default_rng(seed).normal(size=n)


def rising(n: int = 60) -> Any:
    return np.linspace(0.0, 10.0, n) + 0.1 * np.random.default_rng(3).normal(size=n)


# Not finite


def test_one_bad_tensor_at_the_last_step_is_critical_and_located(patient: Patient) -> None:
    counts = [0] * 9 + [1]
    event = Event(
        step=9,
        kind="nonfinite",
        message="first in actor.2.weight",
        detail={"tensors": ["actor.2.weight"], "terms": ["kl"]},
    )
    series = {
        "grad/all/nonfinite": counts,
        "grad/layer.actor.2/nonfinite": counts,
        "grad/all/norm/raw": [0.1] * 9,
    }
    finding = one("nonfinite-gradient", patient(series, events=[event]))
    assert (finding.severity, finding.basis, finding.since_step) == ("critical", "proved", 9)
    assert "actor.2.weight" in finding.title
    assert "'kl'" in finding.title
    assert finding.block == "layer.actor.2"


def ended(message: str, step: int = 19, kind: str = "exception") -> Event:
    return Event(step=step, kind=kind, message=message)


NAN = "ValueError: Expected parameter logits to satisfy Real(), but found\ntensor([[nan, nan]])"


def test_a_training_that_an_error_ended_is_told_and_a_nan_in_it_is_critical(
    patient: Patient,
) -> None:
    reward = {"reward": [0.0] * 20}
    found = one("training-crashed", patient(reward, events=[ended(NAN)]))
    assert (found.severity, found.basis, found.since_step) == ("critical", "proved", 19)
    assert found.title == "The training stopped at step 19 with an error: ValueError over a NaN"
    full = one("training-crashed", patient(reward, events=[ended("OSError: No space left")]))
    assert (full.severity, full.evidence[0].reading) == ("warn", "OSError: No space left")


def test_an_error_after_a_reward_that_rose_is_information(patient: Patient) -> None:
    rising = {"reward": list(np.linspace(0.0, 100.0, 200))}
    assert one("training-crashed", patient(rising, events=[ended("OSError: x")])).severity == "info"


@pytest.mark.parametrize(
    "events",
    [
        [],
        [ended("KeyboardInterrupt: ")],
        [ended(NAN, 10), ended("resumed at step 10", 10, "resumed")],
    ],
    ids=["no error", "stopped by hand", "continued"],
)
def test_a_training_that_ended_otherwise_did_not_crash(
    patient: Patient, events: list[Event]
) -> None:
    run = patient({"reward": [0.0] * 20}, events=events, facts={"tier": "standard"})
    assert judge("training-crashed", run) == []


def test_how_a_training_ended_is_not_known_from_the_log_of_another_tool(patient: Patient) -> None:
    assert isinstance(judge("training-crashed", patient({"reward": [0.0] * 20})), Skipped)


def test_no_bad_tensor_is_no_finding(patient: Patient) -> None:
    assert (
        judge(
            "nonfinite-gradient",
            patient({"grad/all/nonfinite": [0] * 10, "grad/all/norm/raw": steady(10)}),
        )
        == []
    )


def test_an_infinite_norm_of_finite_elements_is_not_called_nonfinite(patient: Patient) -> None:
    run = patient({"grad/all/nonfinite": [0] * 10, "grad/all/norm/raw": [1.0] * 9 + [np.inf]})
    assert judge("nonfinite-gradient", run) == []


def test_a_nan_norm_of_another_trainer_that_stays_is_critical(patient: Patient) -> None:
    finding = one("nonfinite-gradient", patient({"actor/grad_norm": [0.2] * 5 + [np.nan] * 5}))
    assert finding.severity == "critical"
    assert finding.since_step == 5


def test_finite_norms_after_a_nan_say_that_the_trainer_skipped_the_step(patient: Patient) -> None:
    values = steady(200)
    values[50] = np.nan
    finding = one("nonfinite-gradient", patient({"actor/grad_norm": values}))
    assert finding.severity == "warn"
    assert "skipped those steps (0.5%)" in finding.cause
    values[50:80] = np.nan
    assert one("nonfinite-gradient", patient({"actor/grad_norm": values})).severity == "critical"


def test_a_loss_scaler_that_looks_for_its_scale_is_information(patient: Patient) -> None:
    values = steady(200)
    values[:5] = np.inf
    assert (
        one("nonfinite-gradient", patient({"grad_norm": values}, facts={"fp16": True})).severity
        == "info"
    )
    assert one("nonfinite-gradient", patient({"grad_norm": values})).severity == "critical"


def test_a_logged_loss_that_ends_in_nans_is_found_and_one_with_gaps_is_not(
    patient: Patient,
) -> None:
    gone = [0.3] * 10 + [np.nan] * 3
    finding = one("nonfinite-gradient", patient({"train/value_loss": gone}))
    assert finding.since_step == 10
    assert judge("nonfinite-gradient", patient({"train/value_loss": [0.3, np.nan] * 10})) == []
    assert (
        judge("nonfinite-gradient", patient({"policy_loss": gone, "grad_norm": steady(13)})) == []
    )


def test_the_term_whose_gradient_is_first_nan_is_named(patient: Patient) -> None:
    run = patient(
        {
            "grad/actor/term/policy/norm": [0.1] * 5,
            "grad/actor/term/entropy/norm": [0.1, 0.1, np.nan, np.nan],
        }
    )
    finding = one("nonfinite-gradient", run)
    assert "'entropy'" in finding.title
    assert finding.since_step == 2


def test_a_table_of_states_alone_proves_it(patient: Patient) -> None:
    table = Table(step=4, name="states", content={"a.weight": "finite", "b.weight": "nonfinite"})
    finding = one("nonfinite-gradient", patient({"reward": [1.0] * 5}, tables=[table]))
    assert "b.weight" in finding.title


# Too large


def growth(n: int = 60, decades: float = 3.0) -> Any:
    return steady(n) * 10.0 ** np.clip(np.linspace(-1.0, 4.0, n) * decades, 0.0, decades)


def test_a_norm_that_grows_a_thousandfold_while_the_reward_is_flat_has_exploded(
    patient: Patient,
) -> None:
    finding = one("exploding-gradient", patient({"grad_norm": growth(), "reward": flat()}))
    assert finding.severity == "warn"
    assert finding.since_step is not None
    assert 17 <= finding.since_step <= 23  # where it has grown a hundredfold


def test_it_is_critical_when_the_reward_falls(patient: Patient) -> None:
    assert (
        one("exploding-gradient", patient({"grad_norm": growth(), "reward": -rising()})).severity
        == "critical"
    )


def test_growth_alone_accuses_nobody(patient: Patient) -> None:
    grown = {"grad_norm": growth(decades=2.4)}  # as the returns of a policy that learns make it
    assert judge("exploding-gradient", patient(grown | {"reward": rising()})) == []
    unknown = one("exploding-gradient", patient(grown))
    assert unknown.severity == "info"
    assert unknown.title.startswith("Watch: ")


def test_a_language_model_has_no_returns_that_gradients_could_grow_with(patient: Patient) -> None:
    early = np.minimum(np.linspace(0.1, 2.5, 60), 0.5) + 0.01 * np.sin(np.arange(60))
    logged = {"grad_norm": growth(), "reward": early, "completions/mean_length": np.full(60, 200.0)}
    assert one("exploding-gradient", patient(logged)).severity == "warn"


def test_a_tenfold_growth_is_no_explosion(patient: Patient) -> None:
    assert (
        judge("exploding-gradient", patient({"grad_norm": growth(decades=1.5), "reward": flat()}))
        == []
    )


def test_weights_that_leap_are_a_second_signal_where_no_reward_is_logged(patient: Patient) -> None:
    ratio = np.full(60, 0.2)
    leaping = {"grad/all/norm/raw": growth(), "grad/all/update_ratio": ratio}
    assert one("exploding-gradient", patient(leaping)).severity == "warn"
    calm = leaping | {"grad/all/update_ratio": ratio / 3}
    assert one("exploding-gradient", patient(calm)).severity == "info"


def test_a_run_broken_from_its_first_step_is_not_excused_by_its_own_history(
    patient: Patient,
) -> None:
    huge = {"grad_norm": 1e6 * steady(), "reward": flat()}
    assert one("exploding-gradient", patient(huge)).since_step == 0
    assert (
        judge("exploding-gradient", patient({"grad_norm": 1e4 * steady(), "reward": flat()})) == []
    )


# Too small


def decay(n: int = 90, decades: float = 2.0) -> Any:
    return steady(n) * 10.0 ** -np.clip(np.linspace(-0.5, 2.0, n) * decades, 0.0, decades)


def test_a_norm_that_falls_to_a_hundredth_while_the_reward_is_flat_has_vanished(
    patient: Patient,
) -> None:
    finding = one("vanishing-gradient", patient({"grad_norm": decay(), "reward": flat(90)}))
    assert finding.severity == "warn"
    assert finding.since_step is not None
    assert 35 <= finding.since_step <= 55
    assert "has not risen" in finding.evidence[1].reading


def test_a_tenth_is_not_vanished(patient: Patient) -> None:
    assert (
        judge("vanishing-gradient", patient({"grad_norm": decay(decades=1.0), "reward": flat(90)}))
        == []
    )


def test_a_converged_policy_has_tiny_gradients_and_is_well(patient: Patient) -> None:
    learned = 10.0 * (1.0 - np.exp(-np.linspace(0, 12, 90))) + 0.1 * flat(90)
    assert judge("vanishing-gradient", patient({"grad_norm": decay(), "reward": learned})) == []
    at_its_best = patient({"grad_norm": decay(), "reward": flat(90)}, facts={"max_reward": 1.0})
    assert judge("vanishing-gradient", at_its_best) == []


def test_below_what_adam_lets_through_is_vanished_from_the_start(patient: Patient) -> None:
    assert (
        one(
            "vanishing-gradient", patient({"grad_norm": 1e-11 * steady(), "reward": flat()})
        ).since_step
        == 0
    )
    assert (
        judge("vanishing-gradient", patient({"grad_norm": 1e-6 * steady(), "reward": flat()})) == []
    )


# Now and then


def spiky(count: int, factor: float = 30.0, n: int = 120) -> Any:
    values = steady(n)
    values[20 : 20 + 7 * count : 7] *= factor
    return values


def test_three_spikes_are_found_and_two_are_not(patient: Patient) -> None:
    finding = one("gradient-spikes", patient({"grad_norm": spiky(3)}))
    assert finding.since_step == 20
    assert "3 of 120" in finding.title
    assert judge("gradient-spikes", patient({"grad_norm": spiky(2)})) == []
    assert judge("gradient-spikes", patient({"grad_norm": spiky(5, factor=2.0)})) == []


def test_a_log_normal_norm_has_no_spikes(patient: Patient) -> None:
    assert judge("gradient-spikes", patient({"grad_norm": steady(3000, sigma=0.3)})) == []


def test_spikes_warn_only_where_nothing_was_ever_learned(patient: Patient) -> None:
    assert (
        one("gradient-spikes", patient({"grad_norm": spiky(5), "reward": flat(120)})).severity
        == "warn"
    )
    assert (
        one("gradient-spikes", patient({"grad_norm": spiky(5), "reward": rising(120)})).severity
        == "info"
    )


@pytest.mark.parametrize(("steps", "severity"), [(600, "info"), (200, "warn")])
def test_a_few_huge_spikes_are_information_where_the_reward_rose_and_stands(
    patient: Patient, steps: int, severity: str
) -> None:
    rose = np.concatenate([rising(steps // 2), rising(steps // 2)[-1] + 0.1 * steady(steps // 2)])
    series = {"grad_norm": spiky(4, 200.0, steps), "reward": rose}
    assert one("gradient-spikes", patient(series)).severity == severity


@pytest.mark.parametrize(("factor", "severity"), [(1.5, "info"), (9.0, "warn")])
def test_spikes_that_the_update_does_not_follow_are_information(
    patient: Patient, factor: float, severity: str
) -> None:
    """Adam divides a gradient by its size: what counts is whether the weights leap."""
    series = {
        "grad/actor/norm/raw": spiky(5),
        "grad/actor/norm/update": 0.01 * np.where(spiky(5) > 1.0, factor, 1.0),
        "reward": flat(120),
    }
    assert one("gradient-spikes", patient(series)).severity == severity


def test_what_jumps_with_the_spikes_is_the_cause(patient: Patient) -> None:
    high = np.where(spiky(5) > 1.0, 9.0, 1.0)
    heavy = one("gradient-spikes", patient({"grad_norm": spiky(5), "advantages/max_abs": high}))
    assert "advantages/max_abs" in heavy.cause
    assert "normalise advantages" in heavy.fix[0]
    large = one("gradient-spikes", patient({"grad_norm": spiky(5), "train/approx_kl": 0.01 * high}))
    assert "train/approx_kl" in large.cause
    assert "learning rate" in large.fix[0]
    alone = one("gradient-spikes", patient({"grad_norm": spiky(5), "advantages/std": np.ones(120)}))
    assert "Nothing else" in alone.cause


# Exactly zero


def zeros(share: float, n: int = 100) -> Any:
    values = steady(n)
    values[np.random.default_rng(1).random(n) < share] = 0.0
    return values


def test_exact_zeros_warn_from_a_quarter_of_the_steps(patient: Patient) -> None:
    finding = one(
        "zero-gradient-steps",
        patient({"grad_norm": zeros(0.5), "frac_reward_zero_std": zeros(0.5)}),
    )
    assert (finding.severity, finding.basis) == ("warn", "proved")
    assert len(finding.evidence) == 2
    assert one("zero-gradient-steps", patient({"grad_norm": zeros(0.2)})).severity == "info"
    assert judge("zero-gradient-steps", patient({"grad_norm": zeros(0.04)})) == []


def test_nothing_but_zeros_is_critical_unless_the_reward_rises_all_the_same(
    patient: Patient,
) -> None:
    assert (
        one("zero-gradient-steps", patient({"grad_norm": np.zeros(60), "reward": flat()})).severity
        == "critical"
    )
    unreal = one("zero-gradient-steps", patient({"grad_norm": np.zeros(60), "reward": rising()}))
    assert unreal.severity == "info"
    assert "not that of the real gradient" in unreal.cause


def test_a_delayed_actor_is_zero_in_a_rhythm_and_well(patient: Patient) -> None:
    values = steady(60)
    values[1::2] = 0.0
    assert judge("zero-gradient-steps", patient({"grad_norm": values})) == []
    values = steady(60)
    values[30:] = 0.0  # evenly spaced before, and then nothing: no rhythm
    assert one("zero-gradient-steps", patient({"grad_norm": values})).since_step == 30


def test_a_policy_at_its_maximum_has_earned_its_zeros(patient: Patient) -> None:
    run = patient({"grad_norm": zeros(0.9), "reward": np.ones(100)}, facts={"max_reward": 1.0})
    assert one("zero-gradient-steps", run).severity == "info"


# By depth


def layers(
    ratio: float, n: int = 30, names: tuple[str, str] = ("net.0", "net.10"), max_abs: bool = True
) -> dict[str, Any]:
    series: dict[str, Any] = {"reward": flat(n)}
    for name, scale, seed in ((names[0], ratio, 1), ("net.2", 1.0, 2), (names[1], 1.0, 3)):
        series[f"grad/layer.{name}/norm/raw"] = scale * steady(n, seed)
        if max_abs:
            series[f"grad/layer.{name}/max_abs"] = 0.1 * scale * steady(n, seed)
    return series


@pytest.mark.parametrize(
    ("ratio", "fires"), [(100.0, True), (35.0, False), (5e-4, True), (3e-3, False)]
)
def test_first_over_last_is_judged_against_its_bounds(
    patient: Patient, ratio: float, fires: bool
) -> None:
    found = judge("depth-imbalance", patient(layers(ratio)))
    assert isinstance(found, list)
    assert bool(found) == fires
    if fires:
        assert found[0].severity == "warn"
        assert found[0].block == "layer.net.0"
        assert "net.10" in found[0].title  # not net.2: numbers are numbers
        assert "sizes of the layers are not known" in found[0].evidence[0].reading


def test_where_the_elements_are_alike_it_is_only_the_size_of_the_layers(patient: Patient) -> None:
    series = layers(100.0)
    series["grad/layer.net.0/max_abs"] = series["grad/layer.net.10/max_abs"]
    assert judge("depth-imbalance", patient(series)) == []


def test_depth_is_information_while_the_policy_learns(patient: Patient) -> None:
    assert (
        one("depth-imbalance", patient(layers(100.0) | {"reward": rising(30)})).severity == "info"
    )


def test_layers_of_two_networks_are_not_compared(patient: Patient) -> None:
    series = {
        "grad/layer.actor.0/norm/raw": steady(30),
        "grad/layer.critic.0/norm/raw": 1e5 * steady(30),
    }
    assert isinstance(judge("depth-imbalance", patient(series)), Skipped)


def test_the_order_of_the_layers_is_that_of_the_model(patient: Patient) -> None:
    series = layers(100.0, names=("net.zero", "net.a"))
    states = {f"net.{name}.weight": "finite" for name in ("zero", "2", "a")}
    finding = one(
        "depth-imbalance", patient(series, tables=[Table(step=0, name="states", content=states)])
    )
    assert finding.block == "layer.net.zero"


def zero_fractions(
    *fractions: float, names: tuple[str, ...] = ("net.0", "net.2", "net.4")
) -> dict[str, Any]:
    noise = 0.01 * np.random.default_rng(0).normal(size=30)
    return {
        f"grad/layer.{name}/zero_fraction": f + noise
        for name, f in zip(names, fractions, strict=True)
    }


def test_two_neighbouring_layers_of_zeros_are_dead_units(patient: Patient) -> None:
    series = zero_fractions(0.8, 0.8, 0.1)
    assert one("dormant-units", patient(series)).severity == "info"  # nobody knows what it cost
    finding = one("dormant-units", patient(series | {"reward": flat(30)}))
    assert (finding.severity, finding.block, finding.since_step) == ("warn", "layer.net.0", 0)
    assert judge("dormant-units", patient(zero_fractions(0.65, 0.65, 0.1))) == []


def test_one_layer_of_zeros_is_a_one_hot_input_or_an_embedding(patient: Patient) -> None:
    assert judge("dormant-units", patient(zero_fractions(0.95, 0.1, 0.1))) == []
    assert (
        judge(
            "dormant-units",
            patient(zero_fractions(0.95, 0.95, 0.1, names=("m.embed", "m.wpe", "m.1"))),
        )
        == []
    )


def test_a_logged_share_of_dormant_units_warns_at_a_half_or_when_it_grows(patient: Patient) -> None:
    noise = 0.01 * np.random.default_rng(0).normal(size=60)
    half = {"dormant_fraction": 0.6 + noise}
    assert one("dormant-units", patient(half | {"reward": flat()})).severity == "warn"
    assert one("dormant-units", patient(half | {"reward": rising()})).severity == "info"
    assert one("dormant-units", patient({"dormant_fraction": 0.3 + noise})).severity == "info"
    more = {"dormant_fraction": np.linspace(0.0, 0.45, 60) + noise}
    grows = one("dormant-units", patient(more | {"reward": flat()}))
    assert grows.severity == "warn"
    assert "they get more" in grows.title
    assert grows.since_step is not None
    assert 22 <= grows.since_step <= 32
    assert judge("dormant-units", patient({"dormant_fraction": 0.15 + noise})) == []


def test_advantages_that_lost_their_spread_leave_nothing_to_learn(patient: Patient) -> None:
    left = np.maximum(0.01, 1.0 - np.linspace(0.0, 3.0, 60))
    run = patient({"advantages/std": 0.7 * left, "reward": flat()})
    found = one("zero-gradient-steps", run)
    assert (found.severity, found.basis) == ("warn", "statistical")
    assert "Advantages are down to" in found.title
    assert judge("zero-gradient-steps", patient({"advantages/std": 0.7 + 0 * left})) == []
    noise = np.random.default_rng(0).normal(0.0, 0.1, 60)
    stands = 4.0 + 3.0 * np.minimum(1.0, np.linspace(0.0, 4.0, 60)) + noise
    spent = one("zero-gradient-steps", patient({"advantages/std": 0.7 * left, "reward": stands}))
    assert spent.severity == "warn"
    some = 0.7 * np.maximum(0.04, left)  # as of a task that is nearly solved
    assert (
        one("zero-gradient-steps", patient({"advantages/std": some, "reward": stands})).severity
        == "info"
    )


# All of them


def test_too_little_is_skipped_with_how_much_is_needed(patient: Patient) -> None:
    run = patient({"grad_norm": steady(5), "reward": flat(5)})
    for id in (
        "exploding-gradient",
        "vanishing-gradient",
        "gradient-spikes",
        "zero-gradient-steps",
    ):
        found = judge(id, run)
        assert isinstance(found, Skipped)
        assert "5 points" in found.why
    assert isinstance(judge("nonfinite-gradient", patient({"reward": flat(5)})), Skipped)


@pytest.mark.parametrize(
    "values",
    [
        [1.0],
        [np.nan] * 40,
        [0.0] * 40,
        [1.0] * 40,
        [np.inf] * 40,
        [-np.inf, 1.0] * 20,
        [1e-320, 1e150] * 20,
    ],
    ids=["one", "nan", "zero", "constant", "inf", "minus inf", "extremes"],
)
def test_no_series_makes_a_rule_fall_over(patient: Patient, values: list[float]) -> None:
    names = [
        "grad/all/norm/raw",
        "dormant_fraction",
        "policy_loss",
        "grad/all/nonfinite",
        "advantages/std",
    ]
    names += [
        f"grad/layer.{k}/{what}"
        for k in (0, 1)
        for what in ("norm/raw", "max_abs", "zero_fraction")
    ]
    steps = range(-10, len(values) - 10)
    run = patient({"reward": flat(40)} | dict.fromkeys(names, (steps, values)))
    for id in FAMILY:
        assert isinstance(judge(id, run), list | Skipped)


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_healthy_runs_get_no_alarm(patient: Patient, patients: ModuleType, phi: float) -> None:
    for seed in range(6):
        noise = [patients.ar1(120, phi, 1.0, 10 * seed + k) for k in range(4)]
        series = {"reward": noise[0]}  # flat: the harder case, where every rule may speak
        series |= {
            f"grad/{b}/norm/raw": 10.0 ** (0.25 * x)
            for b, x in zip(("all", "actor", "critic"), noise, strict=False)
        }
        run = patient(series)
        for id in FAMILY:
            found = judge(id, run)
            assert isinstance(found, Skipped) or [f for f in found if f.severity != "info"] == []


def test_a_norm_that_runs_off_late_has_exploded_before_half_of_the_run_is_lost(
    patient: Patient,
) -> None:
    n = 120
    t = np.linspace(0.0, 1.0, n)
    norm = steady(n) * 10.0 ** (8.0 * np.maximum(0.0, t - 0.5))
    lost = np.where(t < 0.5, 2.0 * t, np.maximum(0.0, 1.0 - 4.0 * (t - 0.5))) + 0.02 * flat(n)
    finding = one("exploding-gradient", patient({"grad_norm": norm, "reward": lost}))
    assert finding.since_step is not None
    assert 84 <= finding.since_step <= 94
    watched = one("exploding-gradient", patient({"grad_norm": norm, "reward": rising(n)}))
    assert watched.severity == "info"  # ten thousandfold: not what larger returns make
    assert watched.title.startswith("Watch: ")
    assert judge("exploding-gradient", patient({"grad_norm": norm**0.5, "reward": lost})) == []


def test_a_norm_that_a_script_calls_its_own_way_is_that_of_the_whole_gradient(
    patient: Patient,
) -> None:
    grown = np.exp(9.0 * np.linspace(0.0, 1.0, 60) ** 3)
    run = patient({"total_grad_norm": grown, "reward": flat()})
    assert "the whole model" in one("exploding-gradient", run).title


def test_spikes_out_of_a_gradient_that_became_small_are_a_note(patient: Patient) -> None:
    """An actor's gradient falls as its critic flattens; what comes back is no more than it was."""
    falls = np.r_[np.full(80, 1.0), np.full(120, 0.02)] * np.exp(
        0.1 * np.random.default_rng(0).normal(size=200)
    )
    falls[[120, 140, 160, 180]] = 0.4
    flat = {"reward": 1.0 + 0.05 * np.random.default_rng(1).normal(size=200)}
    note = one("gradient-spikes", patient({"grad/actor/norm/raw": falls, **flat}))
    assert note.severity == "info"
    falls[[120, 140, 160, 180]] = 4.0
    assert (
        one("gradient-spikes", patient({"grad/actor/norm/raw": falls, **flat})).severity == "warn"
    )


def test_groups_that_come_to_agree_while_the_reward_rises_are_something_to_watch(
    patient: Patient,
) -> None:
    """Solved groups have no gradient; those that never had one are another matter."""
    late = np.arange(200) > 90
    norms = np.where(late & (np.arange(200) % 2 == 0), 0.0, 1.0)
    noise = 0.05 * np.random.default_rng(0).normal(size=200)
    rose = np.minimum(np.linspace(0.0, 1.7, 200), 0.85) + noise
    series = {"grad_norm": norms, "reward": rose}
    agree = patient({**series, "zero_variance_groups": (norms == 0.0).astype(float)})
    assert one("zero-gradient-steps", agree).severity == "info"
    other = patient({**series, "zero_variance_groups": np.full(200, 0.9)})
    assert one("zero-gradient-steps", other).severity == "warn"
