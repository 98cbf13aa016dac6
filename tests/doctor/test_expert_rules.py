"""Experts: each rule fires on the smallest evidence, is silent just below it, and silent on its
healthy look-alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gradiometer.doctor.rule import Skipped, rules
from gradiometer.doctor.rundata import RunData
from gradiometer.records import Finding, Table
from gradiometer.store.logs import Log
from gradiometer.store.reader import Run

Patient = Callable[..., Run | Log]

IDS = (
    "expert-starved",
    "expert-dominates",
    "router-untrained",
    "experts-converged",
    "routing-imbalance",
)
EXPERTS = Table(
    step=0, name="experts", content={"layers": [{"layer": "layer.moe", "router": "moe"}]}
)


def verdict(run: Run | Log, id: str) -> list[Finding] | Skipped:
    return next(rule for rule in rules() if rule.id == id)(RunData(run))


def found(run: Run | Log, id: str) -> Finding:
    result = verdict(run, id)
    assert not isinstance(result, Skipped), result.why
    assert len(result) == 1, result
    assert result[0].evidence
    assert result[0].fix
    assert result[0].confirm
    return result[0]


def silent(run: Run | Log, id: str) -> bool:
    return verdict(run, id) == []


def log(series: dict[str, Any], facts: dict[str, Any] | None = None) -> Log:
    rows: dict[int, dict[str, float]] = {}
    for name, given in series.items():
        steps, values = given if isinstance(given, tuple) else (range(len(given)), given)
        for step, value in zip(steps, values, strict=True):
            rows.setdefault(int(step), {})[name] = float(value)
    return Log("made", name="made", run_id="made", rows=rows.items(), facts=facts)


@pytest.fixture
def patient(tmp_path: Path, patients: ModuleType) -> Patient:
    """In memory where series are all there is: a run on disk takes a tenth of a second."""

    def made(series: dict[str, Any], **given: Any) -> Run | Log:
        on_disk = given.get("events") or given.get("tables")
        return (
            patients.patient(tmp_path, series, **given)
            if on_disk
            else log(series, given.get("facts"))
        )

    return made


def loads(
    *shares: float, points: int = 12, router: str = "moe", noise: float = 0.0, seed: int = 0
) -> dict[str, Any]:
    """Loads of a router that add up to one, with a little noise."""
    rng = np.random.default_rng(seed)
    values = np.maximum(
        np.array(shares)[:, None] * (1 + noise * rng.normal(size=(len(shares), points))), 0
    )
    return {f"router/{router}/load/{e}": row for e, row in enumerate(values / values.sum(axis=0))}


# expert-starved


def test_an_expert_that_gets_nothing_starves(patient: Patient) -> None:
    finding = found(patient(loads(0.3, 0.3, 0.4, 0.0, points=9)), "expert-starved")
    assert (finding.severity, finding.basis, finding.since_step, finding.block) == (
        "warn",
        "statistical",
        0,
        "layer.moe",
    )
    assert "Expert 3" in finding.title
    assert "nothing" in finding.title
    assert isinstance(
        verdict(patient(loads(0.3, 0.3, 0.4, 0.0, points=8)), "expert-starved"), Skipped
    )


def test_a_tenth_of_an_even_share_is_the_line(patient: Patient) -> None:
    assert found(patient(loads(0.4, 0.4, 0.2 - 0.02, 0.02, noise=0.05)), "expert-starved")
    assert silent(patient(loads(0.4, 0.4, 0.2 - 0.03, 0.03, noise=0.05)), "expert-starved")


def test_an_expert_that_begins_to_starve_has_a_first_step(patient: Patient) -> None:
    idle = np.where(np.arange(60) < 20, 0.25, 0.0)
    series = {"router/moe/load/0": 1 - idle, "router/moe/load/1": idle}
    assert found(patient(series), "expert-starved").since_step == 20


def test_a_busy_expert_that_once_got_nothing_does_not_starve(patient: Patient) -> None:
    idle = np.full(60, 0.25)
    idle[:10], idle[30:35] = 0.0, 0.0
    assert silent(
        patient({"router/moe/load/0": 1 - idle, "router/moe/load/1": idle}), "expert-starved"
    )


def test_of_many_experts_with_few_tokens_none_starves_by_chance(patient: Patient) -> None:
    rng = np.random.default_rng(0)
    counts = (
        rng.multinomial(128, [1 / 64] * 64, size=40) / 128
    )  # 13 % of the experts get nothing on a step
    assert silent(
        patient({f"router/moe/load/{e}": counts[:, e] for e in range(64)}), "expert-starved"
    )


def test_the_router_of_all_does_not_count_beside_those_of_layers(patient: Patient) -> None:
    series = (
        loads(0.5, 0.5, 0.0, router="a")
        | loads(0.5, 0.5, 0.0, router="b")
        | loads(0.5, 0.5, 0.0, router="all")
    )
    finding = found(patient(series), "expert-starved")
    assert "2 of 6" in finding.title
    assert finding.block is None
    assert found(patient(loads(0.5, 0.5, 0.0, router="all")), "expert-starved").block is None


def test_without_loads_a_gradient_decades_below_the_others_tells(patient: Patient) -> None:
    def norms(last: float) -> dict[str, Any]:
        return {f"grad/expert/{e}/norm": np.full(12, x) for e, x in enumerate((1.0, 2.0, last))}

    assert found(patient(norms(1e-9)), "expert-starved").basis == "heuristic"
    assert silent(patient(norms(1e-2)), "expert-starved")
    assert isinstance(verdict(patient({"reward": [1.0]}), "expert-starved"), Skipped)


# expert-dominates


def test_one_expert_with_most_of_the_tokens_dominates(patient: Patient) -> None:
    finding = found(patient(loads(0.64, 0.12, 0.12, 0.12)), "expert-dominates")
    assert (finding.severity, finding.since_step) == ("warn", 0)
    assert "64%" in finding.title
    assert silent(patient(loads(0.61, 0.13, 0.13, 0.13)), "expert-dominates")


def test_with_two_experts_for_each_token_half_is_all_there_is(patient: Patient) -> None:
    routed = {"grad/expert/0/norm_per_token": np.ones(12)}
    series = loads(0.48, 0.18, 0.17, 0.17)
    assert found(patient(series | routed, facts={"num_experts_per_tok": 2}), "expert-dominates")
    assert silent(
        patient(series, facts={"num_experts_per_tok": 2}), "expert-dominates"
    )  # merged: the setting is another's


def test_the_busier_of_two_that_are_left_does_not_dominate(patient: Patient) -> None:
    assert silent(patient(loads(0.52, 0.48, 0.0)), "expert-dominates")
    assert silent(patient(loads(0.43, 0.3, 0.27)), "expert-dominates")


def test_an_expert_with_nearly_all_of_the_gradient_dominates_at_an_even_load(
    patient: Patient,
) -> None:
    def norms(first: float) -> dict[str, Any]:
        return loads(*[0.25] * 4) | {
            f"grad/layer.moe/expert/{e}/norm": np.full(12, first if e == 0 else 1.0)
            for e in range(4)
        }

    assert "gradient" in found(patient(norms(18.0)), "expert-dominates").title
    assert silent(patient(norms(15.0)), "expert-dominates")


# router-untrained


def router(
    task: float, aux: float | None = None, points: int = 6, noise: float = 0.3, seed: int = 0
) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    series = {"router/moe/grad_task": task * np.exp(noise * rng.normal(size=points))} | loads(
        0.5, 0.5
    )
    if aux is not None:
        series["router/moe/grad_aux"] = aux * np.exp(noise * rng.normal(size=points))
    return series | {f"grad/layer.moe/expert/{e}/norm": np.full(12, 0.04) for e in range(2)}


def test_a_router_that_the_task_never_reaches_is_proved_by_an_exact_zero(patient: Patient) -> None:
    finding = found(patient(router(0.0, points=5)), "router-untrained")
    assert (finding.severity, finding.basis, finding.since_step, finding.block) == (
        "critical",
        "proved",
        0,
        "layer.moe",
    )
    assert isinstance(verdict(patient(router(0.0, points=4)), "router-untrained"), Skipped)


def test_a_router_decades_below_its_experts_is_untrained_however_even_the_load(
    patient: Patient,
) -> None:
    finding = found(patient(router(7e-10, aux=1e-3)), "router-untrained")
    assert (finding.severity, finding.basis) == ("warn", "statistical")
    assert found(patient(router(0.04 * 5e-7, noise=0.1)), "router-untrained")
    assert silent(patient(router(0.04 * 2e-6, noise=0.1)), "router-untrained")


def test_a_small_router_among_small_experts_is_trained(patient: Patient) -> None:
    series = router(1e-9) | {f"grad/layer.moe/expert/{e}/norm": np.full(12, 1e-7) for e in range(2)}
    assert silent(patient(series), "router-untrained")


def test_a_router_whose_parameters_have_no_path_is_proved_untrained(patient: Patient) -> None:
    series = {name: x for name, x in router(1.0).items() if "grad_task" not in name}
    content = {
        "moe.router.gate.weight": "missing",
        "moe.experts.0.gate_proj.weight": "finite",
        "a.weight": "finite",
    }
    cut = Table(step=0, name="states", content=content)
    assert found(patient(series, tables=[EXPERTS, cut]), "router-untrained").severity == "critical"
    whole = Table(step=0, name="states", content=content | {"moe.router.gate.weight": "finite"})
    assert isinstance(
        verdict(patient(series, tables=[EXPERTS, whole]), "router-untrained"), Skipped
    )
    hashed = Table(step=0, name="states", content={"moe.experts.0.gate_proj.weight": "missing"})
    assert isinstance(
        verdict(patient(series, tables=[EXPERTS, hashed]), "router-untrained"), Skipped
    )  # no parameters


# experts-converged


def distance(first: float, last: float, points: int = 3) -> dict[str, Any]:
    return {
        "grad/layer.moe/expert/1/weight_distance": (
            [70 * i for i in range(points)],
            np.geomspace(first, last, points),
        )
    }


def test_experts_whose_weights_have_met_are_one(patient: Patient) -> None:
    finding = found(patient(distance(1.4, 0.13)), "experts-converged")
    assert (finding.severity, finding.block, finding.since_step) == ("warn", "layer.moe", 140)
    assert silent(patient(distance(1.4, 0.15)), "experts-converged")
    assert isinstance(verdict(patient(distance(1.4, 0.13, points=1)), "experts-converged"), Skipped)


def test_weights_that_come_closer_while_they_grow_are_still_apart(patient: Patient) -> None:
    assert silent(patient(distance(0.38, 0.22)), "experts-converged")
    assert silent(patient(distance(1.41, 1.38)), "experts-converged")


def test_copies_are_one_expert_unless_they_part(patient: Patient) -> None:
    assert found(patient(distance(1e-4, 5e-3)), "experts-converged")
    assert silent(patient(distance(1e-4, 2e-2)), "experts-converged")


def test_one_merge_for_the_whole_batch_is_no_collapse(planted: ModuleType) -> None:
    """Its experts' gradients are one by construction, and their weights are apart."""
    assert silent(planted.log(planted.planted(weights=(0.5, 0.3, 0.2))), "experts-converged")


def test_the_judge_is_believed_where_the_weights_do_not_contradict_it(planted: ModuleType) -> None:
    fall = np.geomspace(1.0, 0.02, 200)
    rows = planted.planted(
        size=fall,
        cosine=1 - 0.5 * fall,
        distance=0.3 * fall**0.4,
        noise=0.02,
        phi=0.3,
        token_routed=True,
    )
    finding = found(planted.log(rows), "experts-converged")
    assert (finding.severity, finding.basis) == ("warn", "statistical")
    apart = planted.planted(
        size=fall, cosine=1 - 0.5 * fall, distance=0.3, noise=0.02, phi=0.3, token_routed=True
    )
    assert silent(planted.log(apart), "experts-converged")


# routing-imbalance


def balance(value: float, **more: float) -> dict[str, Any]:
    return {f"router/moe/{name}": np.full(12, x) for name, x in {"balance": value, **more}.items()}


def test_half_of_the_experts_idle_is_a_warning_and_less_is_information(patient: Patient) -> None:
    finding = found(patient(balance(0.45)), "routing-imbalance")
    assert (finding.severity, finding.since_step) == ("warn", 0)
    assert found(patient(balance(0.7)), "routing-imbalance").severity == "info"
    assert silent(patient(balance(0.85)), "routing-imbalance")
    assert found(patient(balance(0.9, dead_share=0.6)), "routing-imbalance").severity == "warn"
    assert found(patient(balance(0.9, max_violation=1.5)), "routing-imbalance").severity == "info"
    assert silent(patient(balance(0.9, dead_share=0.1, max_violation=0.5)), "routing-imbalance")


def test_a_load_that_recovers_is_balanced(patient: Patient) -> None:
    values = np.where(np.arange(60) < 20, 0.4, 0.95)
    assert silent(patient({"router/moe/balance": values}), "routing-imbalance")
    assert isinstance(
        verdict(patient({"router/moe/balance": values[:8]}), "routing-imbalance"), Skipped
    )


def test_a_balance_loss_that_leads_the_router_is_told(patient: Patient) -> None:
    finding = found(patient(router(1e-3, aux=5e-3, noise=0.05)), "routing-imbalance")
    assert (finding.severity, finding.since_step) == ("warn", 0)
    assert "4.92 times" in finding.title
    assert silent(patient(router(1e-3, aux=2e-3, noise=0.05)), "routing-imbalance")
    assert silent(patient(router(1e-3, aux=5e-3, points=4)), "routing-imbalance")


def test_a_router_the_task_does_not_reach_is_not_led_but_untrained(patient: Patient) -> None:
    assert silent(patient(router(7e-10, aux=1e-3)), "routing-imbalance")


# Whatever a log may hold, and healthy ones

WILD = {
    "nan": [math.nan] * 30,
    "inf": [math.inf, -math.inf] * 15,
    "one": [1.0],
    "zero": [0.0] * 60,
    "constant": [1e30] * 60,
    "mixed": [math.nan, 0.0, -1.0, math.inf, 1e-300, 1e100] * 10,
}
PARTS = (
    "norm",
    "middle_norm",
    "weight_distance",
    "routing_weight",
    "cos_to_0",
    "log_ratio_routed",
    "norm_per_token",
)
SERIES = (
    *(
        f"router/{r}/{name}"
        for r in ("a", "b", "all")
        for name in ("load/0", "load/1", "balance", "grad_task", "grad_aux")
    ),
    *(
        f"grad/{place}expert/{e}/{part}"
        for place in ("", "layer.a/")
        for e in (0, 1)
        for part in PARTS
    ),
)


@pytest.mark.parametrize("kind", WILD)
def test_no_series_however_wild_raises(patient: Patient, kind: str) -> None:
    steps = range(-5, len(WILD[kind]) - 5)
    run = patient(dict.fromkeys(SERIES, (steps, WILD[kind])), facts={"top_k": 2})
    for id in IDS:
        verdict(run, id)


@pytest.mark.parametrize("content", [None, [], {"layers": None}, {"layers": [3, {}]}])
def test_a_broken_table_breaks_nothing(patient: Patient, content: Any) -> None:
    tables = [
        Table(step=0, name="experts", content=content),
        Table(step=0, name="states", content=content),
    ]
    run = patient(router(1e-3) | loads(0.5, 0.5, 0.0), tables=tables)
    for id in IDS:
        verdict(run, id)


def healthy(patients: ModuleType, points: int, phi: float, seed: int) -> Log:
    """Two routers of four experts each, loads and gradients that wander."""
    series: dict[str, Any] = {}
    for place, name in enumerate(("a", "b")):
        logits = np.array(
            [
                0.25 * patients.ar1(points, phi, 1.0, seed=100 * seed + 10 * place + e)
                for e in range(4)
            ]
        )
        shares = np.exp(logits) / np.exp(logits).sum(axis=0)
        spread = -(shares * np.log(shares)).sum(axis=0)
        series |= {f"router/{name}/load/{e}": shares[e] for e in range(4)}
        series |= {
            f"router/{name}/balance": np.exp(spread) / 4,
            f"router/{name}/max_violation": 4 * shares.max(axis=0) - 1,
        }
        size = np.exp(0.5 * patients.ar1(points, phi, 1.0, seed=100 * seed + 10 * place + 5))
        series |= {f"grad/layer.{name}/expert/{e}/norm": 0.04 * size * shares[e] for e in range(4)}
        for i, quantity in enumerate(("grad_task", "grad_aux")):
            noise = patients.ar1(points, phi, 1.0, seed=100 * seed + 10 * place + 6 + i)
            series[f"router/{name}/{quantity}"] = (1e-2, 5e-3)[i] * np.exp(0.5 * noise)
    return log(series)


@pytest.mark.slow
@pytest.mark.parametrize(("phi", "points"), [(0.0, 50), (0.5, 50), (0.9, 50), (0.9, 500)])
def test_healthy_experts_with_autocorrelated_noise_are_left_alone(
    patients: ModuleType, phi: float, points: int
) -> None:
    alarms = 0
    for seed in range(20):
        run = healthy(patients, points, phi, seed)
        alarms += any(verdict(run, id) != [] for id in IDS if id != "experts-converged")
    assert alarms == 0
