"""Silence on healthy runs: look-alikes of faults over all rules together give no warning and
nothing critical.

A fast learner, a slow one, a plateau at the known maximum and one that is noisy but fine; each as
an actor-critic, a GRPO and a DQN log, with noise that remembers.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gradiometer.doctor.diagnosis import Diagnosis, diagnose
from gradiometer.records import Table
from gradiometer.store.reader import Run
from gradiometer_labs.synthetic import LAYERS, MAKERS, LogNoise, actor_critic, as_log, facts

SEEDS = 20


def alarms(diagnosis: Diagnosis) -> list[str]:
    serious = [each for each in (*diagnosis.findings, *diagnosis.folded) if each.severity != "info"]
    return [f"{each.id} ({each.severity}): {each.title}" for each in serious]


@pytest.mark.slow
@pytest.mark.parametrize("maker", sorted(MAKERS))
@pytest.mark.parametrize("kind", ["fast", "slow", "converged", "noisy"])
def test_a_healthy_run_gives_no_warning_and_nothing_critical(kind: str, maker: str) -> None:
    found: dict[int, list[str]] = {}
    for seed in range(SEEDS):
        phi = (0.0, 0.5, 0.8)[seed % 3]
        series = MAKERS[maker](kind, LogNoise(seed, phi))
        found[seed] = alarms(diagnose(as_log(series, facts(kind, maker))))
    assert {seed: said for seed, said in found.items() if said} == {}


def test_most_rules_had_what_they_need() -> None:
    """Silence counts only from those that looked."""
    diagnosis = diagnose(
        as_log(actor_critic("fast", LogNoise(0, 0.5)), facts("fast", "actor_critic"))
    )
    assert diagnosis.unknown_keys == ()
    assert len(diagnosis.looked) + len(diagnosis.findings) >= 40


def test_a_healthy_run_on_disk_with_its_tables_is_healthy(
    patient: Callable[..., Run],
) -> None:
    """The meter's tables: every parameter has a gradient, every term a path."""
    states = {f"{layer.removeprefix('layer.')}.weight": "finite" for layer in LAYERS}
    paths = {
        "policy": {"actor": "path", "critic": "none"},
        "value": {"actor": "none", "critic": "path"},
    }
    paths["entropy"] = {"actor": "path", "critic": "none"}
    tables = [
        Table(step=0, name="states", content=states),
        Table(step=0, name="terms", content=paths),
    ]
    run = patient(
        actor_critic("slow", LogNoise(1, 0.5)),
        facts=facts("slow", "actor_critic"),
        tables=tables,
    )
    assert alarms(diagnose(run)) == []


@pytest.mark.parametrize("length", [0, 1, 2, 5, 12])
def test_a_run_that_has_hardly_begun_is_not_accused(length: int) -> None:
    for seed in range(5):
        series = actor_critic("slow", LogNoise(seed, 0.5))
        begun = {
            name: (
                (
                    [s for s in held[0] if s < length],
                    [v for s, v in zip(*held, strict=True) if s < length],
                )
                if isinstance(held, tuple)
                else (range(length), held[:length])
            )
            for name, held in series.items()
        }
        assert alarms(diagnose(as_log(begun, facts("slow", "actor_critic")))) == []
