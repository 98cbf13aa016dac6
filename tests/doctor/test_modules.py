"""A grafted module beside its host: dormant, saturated, outrun, or out of reach."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gradiometer.doctor.rule import Skipped, rules
from gradiometer.doctor.rundata import RunData
from gradiometer.records import Finding, Table
from gradiometer.store.reader import Run

Patient = Callable[..., Run]
DORMANT, SATURATED, HOST, UNREACHED = (
    "module-dormant",
    "module-saturated",
    "host-dominates",
    "loss-not-reaching-module",
)
PAIR = "grad/pair/graft/ratio"


def judge(id: str, run: Run) -> list[Finding] | Skipped:
    return next(rule for rule in rules() if rule.id == id)(RunData(run))


def ids(run: Run) -> list[str]:
    found = [judge(id, run) for id in (DORMANT, SATURATED, HOST, UNREACHED)]
    return [finding.id for each in found if isinstance(each, list) for finding in each]


def one(id: str, run: Run) -> Finding:
    assert ids(run) == [id]
    found = judge(id, run)
    assert isinstance(found, list)
    return found[0]


def scattered(centre: Any, n: int = 60, seed: int = 0) -> Any:
    return np.broadcast_to(centre, n) * 10.0 ** np.random.default_rng(seed).normal(0.0, 0.1, n)


def steps(before: float, after: float, at: int = 24, n: int = 60) -> Any:
    return np.where(np.arange(n) < at, before, after)


def flat(n: int = 60) -> Any:
    return 1.0 + 0.1 * np.random.default_rng(7).normal(size=n)


def pair(ratio: Any, whole: Any = 1.0, **more: Any) -> dict[str, Any]:
    return {
        PAIR: scattered(ratio),
        "grad/all/norm/raw": scattered(whole, seed=1),
        "reward": flat(),
    } | more


def test_a_module_that_was_silent_from_the_start_is_dormant(patient: Patient) -> None:
    finding = one(DORMANT, patient(pair(0.003)))
    assert finding.severity == "warn"
    assert finding.since_step == 0
    assert "'graft'" in finding.title
    assert finding.evidence[0].series == PAIR


def test_a_small_ratio_is_information_and_a_comparable_one_nothing(patient: Patient) -> None:
    assert one(DORMANT, patient(pair(0.04))).severity == "info"  # Adam cancels a constant scale
    assert ids(patient(pair(0.2))) == []


def test_a_dormant_module_is_information_while_the_policy_learns(patient: Patient) -> None:
    assert one(DORMANT, patient(pair(0.003, reward=np.linspace(0.0, 5.0, 60)))).severity == "info"


def test_a_module_that_fell_silent_is_saturated(patient: Patient) -> None:
    finding = one(SATURATED, patient(pair(steps(0.8, 0.005))))
    assert finding.severity == "warn"
    assert finding.since_step is not None
    assert 22 <= finding.since_step <= 26


def test_a_module_that_came_down_a_little_is_well(patient: Patient) -> None:
    assert ids(patient(pair(steps(0.8, 0.2)))) == []


def test_where_the_host_rose_it_is_the_host_that_dominates(patient: Patient) -> None:
    finding = one(HOST, patient(pair(steps(0.8, 0.02), whole=steps(1.0, 40.0))))
    assert finding.severity == "info"
    assert float(finding.title.partition("learns ")[2].split()[0]) == pytest.approx(50.0, rel=0.15)


def test_without_the_whole_norm_nobody_can_tell_which_of_them_moved(patient: Patient) -> None:
    finding = one(SATURATED, patient({PAIR: scattered(steps(0.8, 0.005))}))
    assert "nobody can tell" in finding.cause


def test_a_dip_that_ended_is_no_finding(patient: Patient) -> None:
    ratio = np.full(60, 0.8)
    ratio[20:40] = 0.01
    assert ids(patient(pair(ratio))) == []


# Out of reach


def tables(seed: str, host: str = "finite") -> list[Table]:
    states = {"host.weight": host, "graft.weight": seed, "graft.bias": seed}
    members = {"graft": {"seed": ["graft.weight", "graft.bias"], "host": ["host.weight"]}}
    return [
        Table(step=0, name="states", content=states),
        Table(step=0, name="pairs", content=members),
    ]


def test_a_module_without_a_gradient_while_its_host_has_one_is_out_of_reach(
    patient: Patient,
) -> None:
    finding = one(UNREACHED, patient({"grad/all/norm/raw": [1.0]}, tables=tables("missing")))
    assert (finding.severity, finding.basis, finding.since_step) == ("critical", "proved", 0)
    assert "graft.weight" in finding.evidence[0].reading


@pytest.mark.parametrize(
    ("seed", "host"), [("finite", "finite"), ("frozen", "finite"), ("missing", "missing")]
)
def test_frozen_on_purpose_or_nothing_measured_is_no_finding(
    patient: Patient, seed: str, host: str
) -> None:
    assert judge(UNREACHED, patient({"grad/all/norm/raw": [1.0]}, tables=tables(seed, host))) == []


def test_a_ratio_that_ends_while_the_rest_is_measured_lost_its_path(patient: Patient) -> None:
    whole = scattered(1.0, n=90)
    finding = one(UNREACHED, patient({PAIR: scattered(0.8, n=40), "grad/all/norm/raw": whole}))
    assert finding.severity == "warn"
    assert finding.since_step == 40
    assert ids(patient({PAIR: scattered(0.8, n=75), "grad/all/norm/raw": whole})) == []
    frozen = [
        Table(step=40, name="states", content={"graft.weight": "frozen", "host.weight": "finite"})
    ]
    assert (
        ids(patient({PAIR: scattered(0.8, n=40), "grad/all/norm/raw": whole}, tables=frozen)) == []
    )


# All of them


def test_too_little_is_skipped_with_how_much_is_needed(patient: Patient) -> None:
    run = patient({PAIR: [0.001] * 5, "grad/all/norm/raw": [1.0] * 5})
    for id in (DORMANT, SATURATED, HOST):
        found = judge(id, run)
        assert isinstance(found, Skipped)
        assert "5 points, 24 needed" in found.why
    assert isinstance(judge(UNREACHED, patient({"reward": [1.0]})), Skipped)


@pytest.mark.parametrize(
    "values", [[1.0], [np.nan] * 40, [0.0] * 40, [np.inf] * 40, [0.0, np.nan] * 20, [1e-320] * 40]
)
def test_no_series_makes_a_rule_fall_over(patient: Patient, values: list[float]) -> None:
    for series in ({PAIR: values}, {PAIR: values, "grad/all/norm/raw": values}):
        for id in (DORMANT, SATURATED, HOST, UNREACHED):
            assert isinstance(judge(id, patient(series | {"reward": flat()})), list | Skipped)
    odd = [
        Table(step=0, name="pairs", content=["not", "a", "mapping"]),
        Table(step=0, name="states", content="nothing"),
    ]
    assert ids(patient({"reward": flat()}, tables=odd)) == []


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_modules_that_learn_together_get_no_finding(
    patient: Patient, patients: ModuleType, phi: float
) -> None:
    for seed in range(6):
        noise = [patients.ar1(120, phi, 0.2, 10 * seed + k) for k in range(3)]
        run = patient(
            {
                PAIR: 0.6 * 10.0 ** noise[0],
                "grad/all/norm/raw": 10.0 ** noise[1],
                "reward": noise[2],
            }
        )
        assert ids(run) == []
