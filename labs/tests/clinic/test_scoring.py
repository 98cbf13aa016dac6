"""The count, on made-up patients whose scores can be done by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gradiometer_labs.clinic import scoring
from gradiometer_labs.clinic.judging import JudgedTraining
from gradiometer_labs.clinic.summary import summary

Case = Callable[..., JudgedTraining]
DEAD = "entropy_no_grad"


def test_the_first_finding_names_it_or_one_of_three(case: Case) -> None:
    third = case(DEAD, ["reward-plateau", "entropy-collapse", "dead-term"])
    fourth = case(DEAD, ["reward-plateau", "entropy-collapse", "critic-dominates", "dead-term"])
    said = scoring.full(third)
    assert not scoring.named(third, said, within=1)
    assert scoring.named(third, said, within=3)
    assert not scoring.named(fourth, scoring.full(fourth), within=3)
    assert not scoring.named(case(DEAD), [], within=3)


def test_of_two_faults_the_first_names_either_and_three_name_both(case: Case) -> None:
    both = f"{DEAD}+clip_tiny"
    either = case(both, ["over-clipping", "reward-plateau"])
    assert scoring.named(either, scoring.full(either), within=1)
    assert not scoring.named(either, scoring.full(either), within=3)
    all_named = case(both, ["reward-plateau", "over-clipping", "dead-term"])
    assert not scoring.named(all_named, scoring.full(all_named), within=1)
    assert scoring.named(all_named, scoring.full(all_named), within=3)


def test_seeds_of_one_fault_are_one_case() -> None:
    """Ten seeds of a fault that is missed weigh as much as one seed of a fault that is found."""
    rate = scoring.cluster_rate([*[("missed", False)] * 10, ("found", True)])
    assert rate is not None
    assert (rate.share, rate.clusters, rate.count) == (0.5, 2, 11)
    assert (rate.low, rate.high) == (
        0.0,
        1.0,
    )  # two clusters tell nothing, eleven coins would have told something


def test_the_interval_narrows_with_faults_and_not_with_seeds() -> None:
    few = scoring.cluster_rate((f"f{k}", k % 2 == 0) for k in range(10) for _ in range(20))
    many = scoring.cluster_rate((f"f{k}", k % 2 == 0) for k in range(200))
    assert few is not None
    assert many is not None
    assert few.high - few.low == pytest.approx(0.6, abs=0.1)  # 2 · 1.96 · √(0.25/10) = 0.62
    assert many.high - many.low == pytest.approx(0.139, abs=0.02)


def test_no_cases_have_no_rate() -> None:
    assert scoring.cluster_rate([]) is None


def test_precision_counts_what_came_first_and_accuses(case: Case) -> None:
    all_judged = [
        case(DEAD, ["dead-term"]),
        case("none", ["dead-term"]),
        case("none", [("clip-always-active", "info")]),
        case(DEAD, ["reward-plateau", "dead-term"]),
    ]
    assert scoring.precision(all_judged) == {"dead-term": (1, 2), "reward-plateau": (0, 1)}


def test_the_confusion_of_a_healthy_run_is_what_accuses_it(case: Case) -> None:
    table = scoring.confusion(
        [
            case("none", [("clip-always-active", "info")]),
            case("none", ["noise-dominated"]),
            case(DEAD, ["reward-plateau"]),
            case(f"{DEAD}+clip_tiny", ["reward-plateau"]),
        ]
    )
    assert table == {
        "healthy": {"nothing": 1, "noise-dominated": 1},
        "dead-term": {"reward-plateau": 1},
    }


def test_the_bound_on_false_alarms_is_clopper_and_pearsons() -> None:
    assert scoring.upper_bound(0, 59) == pytest.approx(1 - 0.05 ** (1 / 59))
    assert scoring.upper_bound(2, 124) == pytest.approx(0.0499, abs=5e-4)  # why the target says 124
    assert scoring.upper_bound(3, 3) == 1.0


def test_a_fault_that_costs_less_than_a_tenth_of_the_gain_is_harmless(case: Case) -> None:
    control = case("none", returns=(20.0, 500.0))
    assert scoring.harmless([control, case(DEAD, returns=(20.0, 460.0))]) == {
        ("cartpole-ppo", DEAD)
    }
    assert scoring.harmless([control, case(DEAD, returns=(20.0, 440.0))]) == set()
    assert (
        scoring.harmless([control, case(DEAD, returns=(20.0, 490.0), ended="RuntimeError: nan")])
        == set()
    )
    assert scoring.harmless([case(DEAD, returns=(20.0, 490.0))]) == set()  # nothing to compare with


def test_detection_needs_the_fault_among_the_early_findings(case: Case) -> None:
    judged = case(
        DEAD,
        ["dead-term"],
        early={"5": ["dead-term"], "0.1": [], "0.5": ["reward-plateau", "dead-term"]},
    )
    assert scoring.detected(judged) == {"5": True, "0.1": False, "0.25": False, "0.5": True}


def test_the_summary_keeps_harmless_and_held_out_apart(case: Case) -> None:
    all_judged = [
        case("none", returns=(0.0, 100.0)),
        case("none", ["noise-dominated"], returns=(0.0, 100.0), kind="slow"),
        case(
            DEAD,
            ["dead-term"],
            scalars=["entropy-collapse"],
            public=["dead-term"],
            returns=(0.0, 10.0),
        ),
        case("no_done_mask", ["reward-plateau"], returns=(0.0, 10.0)),
        case("lr_low", ["policy-frozen"], returns=(0.0, 99.0)),
        case("lr_low:mild", [], returns=(0.0, 99.0)),
    ]
    found = summary(all_judged)
    assert found["accuracy"]["all"]["full"]["top1"]["share"] == 0.5
    assert found["accuracy"]["tuned"]["full"]["top1"]["share"] == 1.0
    assert found["accuracy"]["held_out"]["full"]["top1"]["share"] == 0.0
    assert found["accuracy"]["tuned"]["scalars"]["top1"]["share"] == 0.0
    assert found["accuracy"]["tuned"]["public"]["top1"]["share"] == 1.0
    assert found["harmless"]["faults"] == ["cartpole-ppo/lr_low"]
    assert found["doses"]["mild"]["full"]["top3"]["share"] == 0.0
    assert found["healthy"]["with_warning"] == 1
    assert found["healthy"]["alarms_per_1000_steps"] == 5.0
    assert found["healthy"]["warned"] == [
        {"run": "cartpole-ppo/slow-1", "said": ["noise-dominated"]}
    ]
