"""Silence on healthy runs: look-alikes of faults over all rules together give no warning and nothing critical.

A fast learner, a slow one, a plateau at the known maximum and one that is noisy but fine; each as an actor-critic, a GRPO and
a DQN log, with noise that remembers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gradiometer.doctor.diagnosis import Diagnosis, diagnose
from gradiometer.records import Table
from gradiometer.store.logs import Log
from gradiometer.store.reader import Run

SEEDS = 20
POINTS = 160
BEST = 500.0
LAYERS = ("layer.trunk.0", "layer.trunk.2", "layer.action_net", "layer.value_net")


class Noise:
    """AR(1) noise from one seed: each call another stream."""

    def __init__(self, patients: ModuleType, seed: int, phi: float) -> None:
        self.patients, self.phi = patients, phi
        self.streams = np.random.default_rng(seed)

    def __call__(self, sigma: float = 1.0) -> Any:
        return self.patients.ar1(POINTS, self.phi, sigma, int(self.streams.integers(2**31)))

    def around(self, level: Any, decades: float) -> Any:
        """Positive, scattered by this many decades."""
        return level * 10.0 ** self(decades)


def done(kind: str) -> Any:
    """How much of the task is learned along the run, from 0 to 1."""
    t = np.linspace(0.0, 1.0, POINTS)
    return {"fast": 1.0 - np.exp(-60.0 * t), "slow": 0.4 * t, "converged": np.full(POINTS, 0.99), "noisy": 0.7 * t}[
        kind
    ]


def returns(kind: str, noise: Noise) -> Any:
    sigma = {"fast": 0.02, "slow": 0.02, "converged": 0.005, "noisy": 0.12}[kind]
    return np.minimum(BEST * (0.05 + 0.95 * done(kind) + noise(sigma)), BEST)


def gradients(noise: Noise, learned: Any) -> dict[str, Any]:
    """What `watch` and `meter.terms` write: norms by stage, block and layer, the clip, directions, terms."""
    actor, critic = noise.around(0.4 - 0.2 * learned, 0.1), noise.around(0.3 - 0.1 * learned, 0.1)
    raw = np.hypot(actor, critic)
    ratio = np.minimum(1.0, 0.5 / raw)
    series = {"grad/all/norm/raw": raw, "grad/actor/norm/raw": actor, "grad/critic/norm/raw": critic}
    series |= {f"grad/{layer}/norm/raw": noise.around(0.2, 0.1) for layer in LAYERS}
    series |= {
        "grad/all/norm/clipped": raw * ratio,
        "grad/all/clip/ratio": ratio,
        "grad/all/clip/active": (ratio < 1.0).astype(float),
        "grad/all/clip/threshold": np.full(POINTS, 0.5),
        "grad/all/clip/intensity": 1.0 - ratio,
        "grad/all/nonfinite": np.zeros(POINTS),
        "grad/all/max_abs": 0.1 * raw,
        "grad/all/zero_fraction": np.clip(0.1 + noise(0.02), 0.0, 1.0),
        "grad/all/concentration": np.clip(0.8 + noise(0.03), 0.0, 1.0),
        "grad/all/cos_prev": 0.02 + noise(0.05),
        "grad/all/cos_noise": np.full(POINTS, 0.05),
        "grad/all/noise_scale": noise.around(300.0, 0.2),
        "grad/all/term/additivity_error": noise.around(4e-7, 0.2),
        "grad/all/term/scale": np.ones(POINTS),
    }
    for block in ("all", "actor", "critic", *LAYERS):
        series[f"grad/{block}/update_ratio"] = noise.around(1e-3, 0.1)
        series[f"grad/{block}/norm/update"] = noise.around(1e-2, 0.1)
    for term, block, share in (("policy", actor, 0.6), ("value", critic, 0.37), ("entropy", 0.05 * actor, 0.03)):
        series[f"grad/all/term/{term}/norm"] = block
        series[f"grad/all/term/{term}/share"] = share + noise(0.02)
        series[f"grad/all/term/{term}/loss"] = 0.1 + noise(0.02)
    series["grad/actor/term/policy~entropy/cos"] = -0.1 + noise(0.1)
    return series


def actor_critic(kind: str, noise: Noise) -> dict[str, Any]:
    learned, reward = done(kind), returns(kind, noise)
    return gradients(noise, learned) | {
        "reward": reward,
        "episode_length": 200.0 + noise(5.0),
        "val/reward": (range(0, POINTS, 4), (returns(kind, noise) * 0.98)[::4]),
        "entropy": np.minimum(1.386 * (1.0 - 0.6 * learned) + noise(0.01), 1.386),
        "policy_loss": -0.01 + noise(0.01),
        "value_loss": noise.around(1.0 - 0.8 * learned, 0.1),
        "explained_variance": np.minimum(0.3 + 0.6 * learned + noise(0.04), 0.99),
        "approx_kl": np.abs(0.008 + noise(0.002)),
        "clip_fraction": np.clip(0.08 + noise(0.02), 0.0, 1.0),
        "ratio/max": 1.3 + np.abs(noise(0.1)),
        "ratio/mean": 1.0 + noise(0.002),
        "advantages/mean": noise(0.01),
        "advantages/std": 1.0 + noise(0.02),
        "advantages/max_abs": 4.0 + np.abs(noise(0.5)),
        "returns/mean": 1.0 + learned + noise(0.05),
        "returns/std": 1.0 + noise(0.05),
        "returns/max_abs": 3.0 + np.abs(noise(0.2)),
        "value_mean": 1.0 + learned + noise(0.05),
        "action_share": np.clip(0.4 + noise(0.03), 0.0, 1.0),
        "observation/std": np.abs(1.0 + noise(0.05)),
        "observation/max_abs": 4.0 + np.abs(noise(0.5)),
        "dormant_fraction": np.clip(0.01 + np.abs(noise(0.003)), 0.0, 1.0),
        "learning_rate": np.linspace(3e-4, 1e-4, POINTS),
        "ess": np.clip(0.96 + noise(0.01), 0.0, 1.0),
        "importance_weight": 1.0 + noise(0.005),
        "terminal_correlation": np.clip(0.95 + noise(0.01), -1.0, 1.0),
        "penultimate_correlation": np.clip(0.93 + noise(0.01), -1.0, 1.0),
        "reward_lag": np.zeros(POINTS),
        "step/predicted": -0.01 + noise(0.01),
        "step/realised": -0.009 + noise(0.012),
    }


def grpo(kind: str, noise: Noise) -> dict[str, Any]:
    """As TRL logs it: a reward between 0 and 1 from two functions."""
    learned = done(kind)
    right = np.clip(0.05 + 0.93 * learned + noise(0.06 if kind == "noisy" else 0.015), 0.0, 1.0)
    form = np.clip(0.6 + 0.39 * np.minimum(1.0, 2.0 * learned) + noise(0.01), 0.0, 1.0)
    return {
        "train/reward": 0.9 * right + 0.1 * form,
        "train/rewards/correct/mean": right,
        "train/rewards/correct/std": np.sqrt(right * (1.0 - right)),
        "train/rewards/format/mean": form,
        "train/rewards/format/std": np.sqrt(form * (1.0 - form)),
        "train/reward_std": np.clip(0.35 * np.sqrt(right * (1.0 - right)) * 2.0 + np.abs(noise(0.02)), 0.02, 1.0),
        "train/frac_reward_zero_std": np.clip(0.2 + noise(0.03), 0.0, 1.0),
        "train/completions/mean_length": 300.0 * (1.0 + learned) + noise(10.0),
        "train/completions/clipped_ratio": np.clip(0.02 + noise(0.005), 0.0, 1.0),
        "train/entropy": 0.6 * (1.0 - 0.5 * learned) + noise(0.01),
        "train/kl": np.abs(0.001 + 0.05 * learned + noise(0.002)),
        "train/grad_norm": noise.around(0.3, 0.1),
        "train/learning_rate": np.full(POINTS, 1e-6),
        "train/clip_ratio/region_mean": np.clip(0.02 + noise(0.005), 0.0, 1.0),
        "val/reward": (range(0, POINTS, 4), np.clip(right + noise(0.02), 0.0, 1.0)[::4]),
    }


def dqn(kind: str, noise: Noise) -> dict[str, Any]:
    """As SB3 logs it, with a target network and an exploration schedule."""
    learned, reward = done(kind), returns(kind, noise)
    return {
        "rollout/ep_rew_mean": reward,
        "rollout/exploration_rate": np.maximum(0.05, 1.0 - np.arange(POINTS) / (0.2 * POINTS)),
        "train/loss": noise.around(0.1, 0.1),
        "train/learning_rate": np.full(POINTS, 1e-4),
        "q_value": BEST * (0.05 + 0.9 * learned) + noise(5.0),
        "target_distance": np.abs(0.01 + noise(0.002)),
        "grad/all/norm/raw": noise.around(1.0, 0.15),
        "grad/all/update_ratio": noise.around(5e-4, 0.1),
    }


MAKERS: dict[str, Callable[[str, Noise], dict[str, Any]]] = {"actor_critic": actor_critic, "grpo": grpo, "dqn": dqn}


def facts(kind: str, maker: str) -> dict[str, Any]:
    known = {"gamma": 0.99, "clip_range": 0.2, "target_kl": 0.02, "num_actions": 4, "entropy_coef": 0.01}
    if kind == "converged":
        known |= {"max_reward": 1.0 if maker == "grpo" else BEST}
    return known if maker == "actor_critic" else {name: known[name] for name in known if name == "max_reward"}


def log(series: dict[str, Any], known: dict[str, Any]) -> Log:
    rows: dict[int, dict[str, float]] = {}
    for name, held in series.items():
        steps, values = held if isinstance(held, tuple) else (range(POINTS), held)
        for step, value in zip(steps, values, strict=True):
            rows.setdefault(10 * int(step), {})[name] = float(value)
    return Log(Path("healthy"), name="healthy", run_id="healthy", rows=sorted(rows.items()), facts={"config": known})


def alarms(diagnosis: Diagnosis) -> list[str]:
    serious = [each for each in (*diagnosis.findings, *diagnosis.folded) if each.severity != "info"]
    return [f"{each.id} ({each.severity}): {each.title}" for each in serious]


@pytest.mark.parametrize("maker", sorted(MAKERS))
@pytest.mark.parametrize("kind", ["fast", "slow", "converged", "noisy"])
def test_a_healthy_run_gives_no_warning_and_nothing_critical(kind: str, maker: str, patients: ModuleType) -> None:
    found: dict[int, list[str]] = {}
    for seed in range(SEEDS):
        phi = (0.0, 0.5, 0.8)[seed % 3]
        series = MAKERS[maker](kind, Noise(patients, seed, phi))
        found[seed] = alarms(diagnose(log(series, facts(kind, maker))))
    assert {seed: said for seed, said in found.items() if said} == {}


def test_most_rules_had_what_they_need(patients: ModuleType) -> None:
    """Silence counts only from those that looked."""
    diagnosis = diagnose(log(actor_critic("fast", Noise(patients, 0, 0.5)), facts("fast", "actor_critic")))
    assert diagnosis.unknown_keys == ()
    assert len(diagnosis.looked) + len(diagnosis.findings) >= 40


def test_a_healthy_run_on_disk_with_its_tables_is_healthy(patient: Callable[..., Run], patients: ModuleType) -> None:
    """The meter's tables: every parameter has a gradient, every term a path."""
    states = {f"{layer.removeprefix('layer.')}.weight": "finite" for layer in LAYERS}
    paths = {"policy": {"actor": "path", "critic": "none"}, "value": {"actor": "none", "critic": "path"}}
    paths["entropy"] = {"actor": "path", "critic": "none"}
    tables = [Table(step=0, name="states", content=states), Table(step=0, name="terms", content=paths)]
    run = patient(actor_critic("slow", Noise(patients, 1, 0.5)), facts=facts("slow", "actor_critic"), tables=tables)
    assert alarms(diagnose(run)) == []


@pytest.mark.parametrize("length", [0, 1, 2, 5, 12])
def test_a_run_that_has_hardly_begun_is_not_accused(length: int, patients: ModuleType) -> None:
    for seed in range(5):
        series = actor_critic("slow", Noise(patients, seed, 0.5))
        begun = {
            name: ([s for s in held[0] if s < length], [v for s, v in zip(*held, strict=True) if s < length])
            if isinstance(held, tuple)
            else (range(length), held[:length])
            for name, held in series.items()
        }
        assert alarms(diagnose(log(begun, facts("slow", "actor_critic")))) == []
