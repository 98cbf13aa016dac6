"""Logs made up of curves: healthy trainings of several kinds, and one for each way to go wrong.

What a log holds is what a trainer of that kind logs, with noise that remembers (AR(1)), so that the
doctor may be judged on thousands of them in minutes: `gradiometer clinic --sweep` counts what each
rule finds in the ill ones and says of the healthy ones, and tests of silence use the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradiometer.store.logs import Log
from gradiometer_labs import trainerlogs

__all__ = [
    "HEALTHY",
    "KINDS",
    "LAYERS",
    "MAKERS",
    "POINTS",
    "SICK",
    "LogNoise",
    "SyntheticLog",
    "actor_critic",
    "ar1",
    "as_log",
    "facts",
    "healthy_logs",
    "sick_logs",
]

POINTS = 160
BEST = 500.0
LAYERS = ("layer.trunk.0", "layer.trunk.2", "layer.action_net", "layer.value_net")
HEALTHY = ("fast", "slow", "converged", "noisy")
KINDS = (*HEALTHY, "stuck", "fallen")
"""How a training goes: learns fast, slowly, is done from the start, is noisy; or it does not learn,
or loses again what it has learned."""
FIRST_SEED = 70_000
"""Other than those of the tests."""
PHIS = (0.0, 0.5, 0.8)
"""How much of its last value noise remembers."""

Series = dict[str, Any]
"""By name: values at steps 0, 1, 2, ..., or a pair (steps, values)."""


def ar1(
    n: int, phi: float = 0.0, sigma: float = 1.0, seed: int = 0
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """AR(1) noise with this standard deviation from its first value on."""
    rng = np.random.default_rng(seed)
    shocks = rng.normal(0.0, sigma * np.sqrt(1 - phi**2), n)
    values = np.empty(n)
    values[0] = rng.normal(0.0, sigma)
    for i in range(1, n):
        values[i] = phi * values[i - 1] + shocks[i]
    return values


class LogNoise:
    """AR(1) noise from one seed: each call another stream."""

    def __init__(self, seed: int, phi: float) -> None:
        self.phi, self.streams = phi, np.random.default_rng(seed)

    def __call__(self, sigma: float = 1.0) -> Any:
        """Around zero."""
        return ar1(POINTS, self.phi, sigma, int(self.streams.integers(2**31)))

    def around(self, level: Any, decades: float) -> Any:
        """Positive, scattered by this many decades."""
        return level * 10.0 ** self(decades)


def learned(kind: str) -> Any:
    """How much of the task is learned along the run, from 0 to 1."""
    t = np.linspace(0.0, 1.0, POINTS)
    return {
        "fast": 1.0 - np.exp(-60.0 * t),
        "slow": 0.4 * t,
        "converged": np.full(POINTS, 0.99),
        "noisy": 0.7 * t,
        "stuck": np.zeros(POINTS),
        "fallen": np.where(t < 0.4, 2.0 * t, np.maximum(0.0, 0.8 - 1.6 * (t - 0.4))),
    }[kind]


def returns(kind: str, noise: LogNoise) -> Any:
    """What an episode earns, up to the task's maximum."""
    sigma = {"converged": 0.005, "noisy": 0.12}.get(kind, 0.02)
    return np.minimum(BEST * (0.05 + 0.95 * learned(kind) + noise(sigma)), BEST)


def gradients(noise: LogNoise, learned: Any) -> Series:
    """What `watch` and `meter.terms` write: norms by stage, block and layer, the clip, directions,
    terms."""
    actor, critic = noise.around(0.4 - 0.2 * learned, 0.1), noise.around(0.3 - 0.1 * learned, 0.1)
    raw = np.hypot(actor, critic)
    ratio = np.minimum(1.0, 0.5 / raw)
    series = {
        "grad/all/norm/raw": raw,
        "grad/actor/norm/raw": actor,
        "grad/critic/norm/raw": critic,
    }
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
    for term, block, share in (
        ("policy", actor, 0.6),
        ("value", critic, 0.37),
        ("entropy", 0.05 * actor, 0.03),
    ):
        series[f"grad/all/term/{term}/norm"] = block
        series[f"grad/all/term/{term}/share"] = share + noise(0.02)
        series[f"grad/all/term/{term}/loss"] = 0.1 + noise(0.02)
    series["grad/actor/term/policy~entropy/cos"] = -0.1 + noise(0.1)
    return series


def actor_critic(kind: str, noise: LogNoise) -> Series:
    """As the meter and a PPO write it."""
    part, reward = learned(kind), returns(kind, noise)
    return gradients(noise, part) | {
        "reward": reward,
        "episode_length": 200.0 + noise(5.0),
        "val/reward": (range(0, POINTS, 4), (returns(kind, noise) * 0.98)[::4]),
        "entropy": np.minimum(1.386 * (1.0 - 0.6 * part) + noise(0.01), 1.386),
        "policy_loss": -0.01 + noise(0.01),
        "value_loss": noise.around(1.0 - 0.8 * part, 0.1),
        "explained_variance": np.minimum(0.3 + 0.6 * part + noise(0.04), 0.99),
        "approx_kl": np.abs(0.008 + noise(0.002)),
        "clip_fraction": np.clip(0.08 + noise(0.02), 0.0, 1.0),
        "ratio/max": 1.3 + np.abs(noise(0.1)),
        "ratio/mean": 1.0 + noise(0.002),
        "advantages/mean": noise(0.01),
        "advantages/std": 1.0 + noise(0.02),
        "advantages/max_abs": 4.0 + np.abs(noise(0.5)),
        "returns/mean": 1.0 + part + noise(0.05),
        "returns/std": 1.0 + noise(0.05),
        "returns/max_abs": 3.0 + np.abs(noise(0.2)),
        "value_mean": 1.0 + part + noise(0.05),
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


def grpo(kind: str, noise: LogNoise) -> Series:
    """As TRL logs it: a reward between 0 and 1 from two functions."""
    part = learned(kind)
    right = np.clip(0.05 + 0.93 * part + noise(0.06 if kind == "noisy" else 0.015), 0.0, 1.0)
    form = np.clip(0.6 + 0.39 * np.minimum(1.0, 2.0 * part) + noise(0.01), 0.0, 1.0)
    return {
        "train/reward": 0.9 * right + 0.1 * form,
        "train/rewards/correct/mean": right,
        "train/rewards/correct/std": np.sqrt(right * (1.0 - right)),
        "train/rewards/format/mean": form,
        "train/rewards/format/std": np.sqrt(form * (1.0 - form)),
        "train/reward_std": np.clip(
            0.35 * np.sqrt(right * (1.0 - right)) * 2.0 + np.abs(noise(0.02)), 0.02, 1.0
        ),
        "train/frac_reward_zero_std": np.clip(0.2 + noise(0.03), 0.0, 1.0),
        "train/completions/mean_length": 300.0 * (1.0 + part) + noise(10.0),
        "train/completions/clipped_ratio": np.clip(0.02 + noise(0.005), 0.0, 1.0),
        "train/entropy": 0.6 * (1.0 - 0.5 * part) + noise(0.01),
        "train/kl": np.abs(0.001 + 0.05 * part + noise(0.002)),
        "train/grad_norm": noise.around(0.3, 0.1),
        "train/learning_rate": np.full(POINTS, 1e-6),
        "train/clip_ratio/region_mean": np.clip(0.02 + noise(0.005), 0.0, 1.0),
        "val/reward": (range(0, POINTS, 4), np.clip(right + noise(0.02), 0.0, 1.0)[::4]),
    }


def dqn(kind: str, noise: LogNoise) -> Series:
    """As SB3 logs it, with a target network and an exploration schedule."""
    part, reward = learned(kind), returns(kind, noise)
    return {
        "rollout/ep_rew_mean": reward,
        "rollout/exploration_rate": np.maximum(0.05, 1.0 - np.arange(POINTS) / (0.2 * POINTS)),
        "train/loss": noise.around(0.1, 0.1),
        "train/learning_rate": np.full(POINTS, 1e-4),
        "q_value": BEST * (0.05 + 0.9 * part) + noise(5.0),
        "target_distance": np.abs(0.01 + noise(0.002)),
        "grad/all/norm/raw": noise.around(1.0, 0.15),
        "grad/all/update_ratio": noise.around(5e-4, 0.1),
    }


MAKERS: Mapping[str, Callable[[str, LogNoise], Series]] = {
    "actor_critic": actor_critic,
    "grpo": grpo,
    "dqn": dqn,
}


def facts(kind: str, maker: str) -> dict[str, Any]:
    """What the trainer wrote down of its settings."""
    known = {
        "gamma": 0.99,
        "clip_range": 0.2,
        "target_kl": 0.02,
        "num_actions": 4,
        "entropy_coef": 0.01,
    }
    if kind == "converged":
        known |= {"max_reward": 1.0 if maker == "grpo" else BEST}
    return (
        known
        if maker == "actor_critic"
        else {name: known[name] for name in known if name == "max_reward"}
    )


def as_log(series: Series, known: Mapping[str, Any], name: str = "healthy") -> Log:
    """The series as a log in memory, ten steps from one measurement to the next."""
    rows: dict[int, dict[str, float]] = {}
    for name, held in series.items():
        steps, values = held if isinstance(held, tuple) else (range(POINTS), held)
        for step, value in zip(steps, values, strict=True):
            rows.setdefault(10 * int(step), {})[name] = float(value)
    return Log(
        Path(name),
        name=name,
        run_id=name,
        rows=sorted(rows.items()),
        facts={"config": dict(known)},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticLog:
    """A log and the truth about it."""

    log: Log
    kind: str
    accept: tuple[str, ...]
    """Findings that name what is wrong with it; none of a healthy one."""


def healthy_logs(seeds: int) -> Iterator[SyntheticLog]:
    """Each maker and each kind of health, in this many seeds."""
    for seed in range(seeds):
        for maker, make in MAKERS.items():
            for kind in HEALTHY:
                noise = LogNoise(seed, PHIS[seed % len(PHIS)])
                name = f"healthy-{maker}-{kind}-{seed}"
                made = as_log(make(kind, noise), facts(kind, maker), name)
                yield SyntheticLog(log=made, kind=f"{maker} {kind}", accept=())
        for trainer, columns in trainerlogs.HEALTHY.items():
            made = trainerlogs.column_log(columns(_rng(seed)), f"{trainer}-{seed}")
            yield SyntheticLog(log=made, kind=trainer, accept=())


def sick_logs(seeds: int) -> Iterator[SyntheticLog]:
    """Each way to go wrong, in this many seeds; how far it goes differs from seed to seed."""
    for seed in range(seeds):
        for kind, sick in SICK.items():
            noise = LogNoise(10_000 + seed, PHIS[seed % len(PHIS)])
            dose = float(noise.streams.uniform(0.5, 1.0))
            series = MAKERS[sick.maker](sick.course, noise) | sick.change(noise, dose)
            made = as_log(series, facts(sick.course, sick.maker), f"{kind}-{seed}")
            yield SyntheticLog(log=made, kind=kind, accept=sick.accept)
        for kind, (columns, names) in trainerlogs.SICK.items():
            made = trainerlogs.column_log(columns(_rng(seed)), f"{kind}-{seed}")
            yield SyntheticLog(log=made, kind=kind, accept=tuple(sorted(names)))


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(FIRST_SEED + seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sick:
    """A way to go wrong: what else the log holds, how the reward goes, and what is changed."""

    maker: str
    course: str
    change: Callable[[LogNoise, float], Series]
    """From noise and a dose (0.5 to 1) to the series that are other than usual."""
    accept: tuple[str, ...]


def _ramp(start: float = 0.3) -> Any:
    """0 up to a share of the run, then up to 1."""
    return np.clip((np.linspace(0.0, 1.0, POINTS) - start) / (1.0 - start), 0.0, 1.0)


def _entropy_gone(noise: LogNoise, dose: float) -> Series:
    fell = np.exp(-5.0 * dose * np.minimum(1.0, 3.0 * np.linspace(0.0, 1.0, POINTS)))
    return {"entropy": noise.around(1.386 * fell, 0.02), "action_share": 1.0 - 0.5 * fell}


def _entropy_kept(noise: LogNoise, dose: float) -> Series:
    return {"entropy": np.minimum(1.386, 1.384 + 0.001 * noise())}


def _steps_too_large(noise: LogNoise, dose: float) -> Series:
    return {
        "approx_kl": noise.around(0.01 + 0.4 * dose * _ramp(), 0.1),
        "clip_fraction": np.clip(0.08 + 0.6 * dose * _ramp() + noise(0.02), 0.0, 1.0),
        "ratio/max": 1.3 + 30.0 * dose * _ramp() + np.abs(noise(0.1)),
    }


def _steps_too_small(noise: LogNoise, dose: float) -> Series:
    blocks = ("all", "actor", "critic", *LAYERS)
    still = {f"grad/{block}/update_ratio": noise.around(1e-9, 0.1) for block in blocks}
    moved = {"approx_kl": np.abs(1e-8 * (1.0 + noise(0.1))), "clip_fraction": np.zeros(POINTS)}
    return still | moved | {"learning_rate": np.full(POINTS, 1e-10)}


def _critic_blind(noise: LogNoise, dose: float) -> Series:
    return {"explained_variance": -0.05 + noise(0.05)}


def _critic_diverges(noise: LogNoise, dose: float) -> Series:
    grown = 10.0 ** (5.0 * dose * _ramp(0.1))
    return {
        "value_loss": noise.around(grown, 0.1),
        "explained_variance": np.maximum(-1e6, 0.2 - 0.1 * grown),
        "value_mean": np.sqrt(grown),
    }


def _norms(noise: LogNoise, factor: Any) -> Series:
    blocks = ("all", "actor", "critic", *LAYERS)
    return {f"grad/{block}/norm/raw": noise.around(0.3 * factor, 0.1) for block in blocks}


def _explodes(noise: LogNoise, dose: float) -> Series:
    return _norms(noise, 10.0 ** (5.0 * dose * _ramp()))


def _vanishes(noise: LogNoise, dose: float) -> Series:
    return _norms(noise, 10.0 ** (-7.0 * dose * _ramp()))


def _not_a_number(noise: LogNoise, dose: float) -> Series:
    bad = np.arange(POINTS) > POINTS * (1.0 - 0.5 * dose)
    norms = {name: np.where(bad, np.nan, each) for name, each in _norms(noise, 1.0).items()}
    return norms | {"grad/all/nonfinite": bad.astype(float)}


def _kl_runs_away(noise: LogNoise, dose: float) -> Series:
    return {"train/kl": noise.around(0.01 + 8.0 * dose * _ramp(), 0.1)}


def _groups_too_hard(noise: LogNoise, dose: float) -> Series:
    solved = np.clip(np.abs(noise(0.01)), 0.0, 1.0)
    return {
        "train/reward": 0.9 * solved,
        "train/rewards/correct/mean": solved,
        "train/frac_reward_zero_std": np.clip(0.9 + 0.08 * dose + noise(0.01), 0.0, 1.0),
        "train/reward_std": np.abs(noise(0.01)),
    }


def _cut_off(noise: LogNoise, dose: float) -> Series:
    return {
        "train/completions/clipped_ratio": np.clip(dose + noise(0.02), 0.0, 1.0),
        "train/completions/mean_length": 512.0 * (0.9 + 0.1 * dose) + np.abs(noise(1.0)),
    }


def _longer_and_longer(noise: LogNoise, dose: float) -> Series:
    return {"train/completions/mean_length": 300.0 * (1.0 + 6.0 * dose * _ramp(0.1)) + noise(10.0)}


def _hacked(noise: LogNoise, dose: float) -> Series:
    steps = range(0, POINTS, 4)
    fell = np.clip(0.45 - 0.4 * dose * _ramp() + noise(0.02), 0.0, 1.0)
    return {"val/reward": (steps, fell[::4])}


def _values_too_high(noise: LogNoise, dose: float) -> Series:
    grown = 10.0 ** (4.0 * dose * _ramp(0.1))
    return {"q_value": BEST * grown, "train/loss": noise.around(0.1 * grown**2, 0.1)}


SICK: Mapping[str, _Sick] = {
    "entropy-gone": _Sick(
        maker="actor_critic",
        course="stuck",
        change=_entropy_gone,
        accept=("entropy-collapse", "exploration-schedule", "action-collapse"),
    ),
    "entropy-kept": _Sick(
        maker="actor_critic",
        course="stuck",
        change=_entropy_kept,
        accept=("entropy-never-falls", "reward-plateau"),
    ),
    "steps-too-large": _Sick(
        maker="actor_critic",
        course="fallen",
        change=_steps_too_large,
        accept=("step-too-large", "ppo-clip-saturated", "stale-data", "ratio-explosion"),
    ),
    "steps-too-small": _Sick(
        maker="actor_critic", course="stuck", change=_steps_too_small, accept=("policy-frozen",)
    ),
    "critic-blind": _Sick(
        maker="actor_critic",
        course="stuck",
        change=_critic_blind,
        accept=("critic-explains-nothing",),
    ),
    "critic-diverges": _Sick(
        maker="actor_critic",
        course="fallen",
        change=_critic_diverges,
        accept=("critic-diverges", "critic-explains-nothing"),
    ),
    "gradient-explodes": _Sick(
        maker="actor_critic",
        course="fallen",
        change=_explodes,
        accept=("exploding-gradient", "gradient-spikes"),
    ),
    "gradient-vanishes": _Sick(
        maker="actor_critic",
        course="stuck",
        change=_vanishes,
        accept=("vanishing-gradient", "policy-frozen"),
    ),
    "not-a-number": _Sick(
        maker="actor_critic",
        course="stuck",
        change=_not_a_number,
        accept=("nonfinite-gradient",),
    ),
    "kl-runs-away": _Sick(
        maker="grpo", course="fallen", change=_kl_runs_away, accept=("kl-runaway",)
    ),
    "groups-too-hard": _Sick(
        maker="grpo",
        course="stuck",
        change=_groups_too_hard,
        accept=("groups-too-hard", "zero-gradient-steps"),
    ),
    "cut-off": _Sick(maker="grpo", course="stuck", change=_cut_off, accept=("truncation",)),
    "longer-and-longer": _Sick(
        maker="grpo",
        course="stuck",
        change=_longer_and_longer,
        accept=("length-exploit",),
    ),
    "hacked": _Sick(maker="grpo", course="slow", change=_hacked, accept=("reward-hacking",)),
    "values-too-high": _Sick(
        maker="dqn", course="fallen", change=_values_too_high, accept=("critic-diverges",)
    ),
}
"""By what goes wrong; what is accepted was written down before the doctor was run on them."""
