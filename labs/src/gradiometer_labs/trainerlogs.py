"""Made-up logs with the names of real trainers: six kinds of healthy runs, and what goes wrong.

Numbers are our own. Noise remembers (AR(1)), returns are means over episodes or single ones,
levels, lengths and shapes differ from seed to seed. `column_log` makes a log of what `HEALTHY` and
`SICK` give.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gradiometer.store.logs import Log

__all__ = ["HEALTHY", "SICK", "Columns", "column_log"]

Array = np.ndarray[Any, np.dtype[np.float64]]
Rng = np.random.Generator
Columns = dict[str, Array]


def column_log(columns: Columns, name: str = "log") -> Log:
    """A log in memory; a held-out score is there only where it was taken."""
    rows: dict[int, dict[str, float]] = {}
    for column, values in columns.items():
        for step, value in enumerate(values.tolist()):
            if not (math.isnan(value) and column.startswith(("val", "eval"))):
                rows.setdefault(step, {})[column] = value
    return Log(Path(name), name=name, run_id=name, rows=sorted(rows.items()), facts={})


def wander(rng: Rng, n: int, phi: float, sigma: float) -> Array:
    """AR(1) noise of this standard deviation."""
    values, last = np.empty(n), rng.normal(0.0, sigma)
    for place, shock in enumerate(rng.normal(0.0, sigma * math.sqrt(1.0 - phi * phi), n)):
        last = values[place] = phi * last + shock
    return values


def course(rng: Rng, n: int) -> Array:
    """From 0 to 1: at once, slowly, late, or in a straight line."""
    t = np.linspace(0.0, 1.0, n)
    shapes = (
        1.0 - np.exp(-t / rng.uniform(0.05, 0.35)),
        t,
        1.0 / (1.0 + np.exp(-(t - rng.uniform(0.3, 0.6)) / rng.uniform(0.05, 0.15))),
    )
    return shapes[rng.integers(3)]


def around(rng: Rng, n: int, level: float | Array, spread: float, phi: float = 0.5) -> Array:
    """A positive quantity about a level, by a relative spread."""
    return np.asarray(level * np.exp(wander(rng, n, phi, spread)))


def averaged(rng: Rng, clean: Array, spread: float, window: int) -> Array:
    """Means over the last episodes, as SB3 logs them."""
    episodes = clean + rng.normal(0.0, spread, len(clean))
    kept = [episodes[max(0, i + 1 - window) : i + 1].mean() for i in range(len(clean))]
    return np.array(kept)


def sb3_ppo(rng: Rng) -> Columns:
    n, low, gain = int(rng.integers(60, 400)), rng.uniform(-200, 50), rng.uniform(100, 500)
    clean = low + gain * course(rng, n)
    return {
        "rollout/ep_rew_mean": averaged(rng, clean, 0.3 * gain, int(rng.integers(5, 30))),
        "rollout/ep_len_mean": around(rng, n, rng.uniform(80, 400), 0.05, 0.9),
        "time/fps": around(rng, n, 900.0, 0.05),
        "train/approx_kl": around(rng, n, rng.uniform(0.004, 0.015), 0.3),
        "train/clip_fraction": np.clip(around(rng, n, rng.uniform(0.04, 0.15), 0.3), 0, 1),
        "train/entropy_loss": -around(rng, n, np.linspace(1.4, rng.uniform(0.4, 1.0), n), 0.03),
        "train/explained_variance": np.clip(
            np.linspace(0.1, rng.uniform(0.6, 0.95), n) + wander(rng, n, 0.3, 0.05), -1, 1
        ),
        "train/learning_rate": np.linspace(3e-4, 3e-4 * rng.choice([1.0, 0.02]), n),
        "train/value_loss": around(rng, n, np.linspace(60.0, 15.0, n), 0.3),
        "train/policy_gradient_loss": wander(rng, n, 0.2, 0.004),
    }


def cleanrl_ppo(rng: Rng) -> Columns:
    n, low, gain = int(rng.integers(200, 1200)), rng.uniform(0, 30), rng.uniform(80, 400)
    clean = low + gain * course(rng, n)
    return {
        "charts/episodic_return": clean * np.exp(rng.normal(0.0, 0.25, n)),
        "charts/episodic_length": around(rng, n, 150.0, 0.2, 0.2),
        "losses/approx_kl": around(rng, n, rng.uniform(0.003, 0.012), 0.4, 0.2),
        "losses/clipfrac": np.clip(around(rng, n, 0.1, 0.3), 0, 1),
        "losses/entropy": around(rng, n, np.linspace(0.69, rng.uniform(0.2, 0.5), n), 0.05),
        "losses/explained_variance": np.clip(
            rng.uniform(0.5, 0.9) + wander(rng, n, 0.3, 0.08), -1, 1
        ),
        "losses/value_loss": around(rng, n, np.linspace(20.0, 8.0, n), 0.4, 0.2),
        "losses/policy_loss": wander(rng, n, 0.1, 0.01),
        "charts/learning_rate": np.linspace(2.5e-4, 1e-6, n),
    }


def trl_grpo(rng: Rng) -> Columns:
    n, low, gain = int(rng.integers(60, 500)), rng.uniform(0.1, 0.4), rng.uniform(0.2, 0.5)
    clean = low + gain * course(rng, n)
    reward = np.clip(clean + wander(rng, n, 0.2, 0.05), 0.0, 1.0)
    warm = np.minimum(1.0, np.arange(1, n + 1) / max(3, n // 20))
    length = rng.uniform(150, 400)
    return {
        "reward": reward,
        "reward_std": np.clip(around(rng, n, 0.3, 0.15), 0, 1),
        "rewards/accuracy_reward/mean": 0.8 * reward,
        "rewards/format_reward/mean": 0.2 * reward,
        "kl": around(rng, n, np.linspace(1e-4, rng.uniform(0.01, 0.15), n), 0.3),
        "entropy": around(rng, n, np.linspace(0.8, rng.uniform(0.2, 0.6), n), 0.05),
        "grad_norm": around(rng, n, rng.uniform(0.1, 1.0), 0.3),
        "learning_rate": 1e-6 * warm * np.linspace(1.0, 0.01, n),
        "completions/mean_length": around(
            rng, n, np.linspace(length, length * rng.uniform(0.8, 1.4), n), 0.06
        ),
        "completions/clipped_ratio": np.clip(np.abs(wander(rng, n, 0.3, 0.03)), 0, 1),
        "frac_reward_zero_std": np.clip(
            np.linspace(0.15, rng.uniform(0.2, 0.45), n) + wander(rng, n, 0.2, 0.08), 0, 1
        ),
        "clip_ratio/region_mean": np.clip(np.abs(wander(rng, n, 0.3, 0.004)), 0, 1),
        "loss": wander(rng, n, 0.1, 0.02),
    }


def verl_grpo(rng: Rng) -> Columns:
    n, low, gain = int(rng.integers(60, 400)), rng.uniform(0.2, 0.5), rng.uniform(0.15, 0.4)
    clean = low + gain * course(rng, n)
    score = np.clip(clean + wander(rng, n, 0.2, 0.03), 0.0, 1.0)
    held = np.full(n, np.nan)
    held[::10] = np.clip(clean - 0.05 + wander(rng, n, 0.0, 0.01), 0.0, 1.0)[::10]
    return {
        "critic/score/mean": score,
        "critic/rewards/mean": score,
        "val-core/math/acc/mean@1": held,
        "actor/entropy": around(rng, n, np.linspace(0.5, rng.uniform(0.12, 0.4), n), 0.05),
        "actor/ppo_kl": wander(rng, n, 0.1, 5e-4),
        "actor/kl_loss": around(rng, n, np.linspace(1e-4, rng.uniform(0.01, 0.1), n), 0.3),
        "actor/pg_clipfrac": np.clip(np.abs(wander(rng, n, 0.2, 0.003)), 0, 1),
        "actor/grad_norm": around(rng, n, rng.uniform(0.05, 0.5), 0.3),
        "actor/lr": np.full(n, 1e-6),
        "response_length/mean": around(rng, n, np.linspace(600.0, rng.uniform(550, 900), n), 0.05),
        "response_length/clip_ratio": np.clip(0.03 + np.abs(wander(rng, n, 0.3, 0.02)), 0, 1),
    }


def sb3_sac(rng: Rng) -> Columns:
    n, low, gain = int(rng.integers(80, 500)), rng.uniform(-1500, -200), rng.uniform(150, 1400)
    clean = low + min(gain, -0.9 * low) * course(rng, n)
    held = np.full(n, np.nan)
    held[::8] = (clean + wander(rng, n, 0.0, 0.05 * abs(low)))[::8]
    return {
        "rollout/ep_rew_mean": averaged(rng, clean, 0.15 * abs(low), 10),
        "rollout/ep_len_mean": np.full(n, 200.0),
        "eval/mean_reward": held,
        "train/actor_loss": -around(rng, n, np.linspace(5.0, 80.0, n), 0.1),
        "train/critic_loss": around(rng, n, np.linspace(3.0, 1.5, n), 0.4),
        "train/ent_coef": around(rng, n, np.geomspace(1.0, rng.uniform(0.01, 0.2), n), 0.05),
        "train/learning_rate": np.full(n, 3e-4),
    }


def trl_dpo(rng: Rng) -> Columns:
    n = int(rng.integers(60, 400))
    t = course(rng, n)
    chosen, rejected = 0.3 * t + wander(rng, n, 0.1, 0.1), -1.2 * t + wander(rng, n, 0.1, 0.15)
    return {
        "loss": 0.69 - 0.35 * t + wander(rng, n, 0.1, 0.05),
        "rewards/chosen": chosen,
        "rewards/rejected": rejected,
        "rewards/margins": chosen - rejected,
        "rewards/accuracies": np.clip(0.5 + 0.28 * t + wander(rng, n, 0.1, 0.06), 0.0, 1.0),
        "logps/chosen": -250.0 + 3.0 * t + wander(rng, n, 0.0, 12.0),
        "logps/rejected": -260.0 - 12.0 * t + wander(rng, n, 0.0, 12.0),
        "grad_norm": around(rng, n, rng.uniform(2.0, 12.0), 0.25),
        "learning_rate": 5e-7 * np.minimum(1.0, np.arange(1, n + 1) / 10) * np.linspace(1, 0.05, n),
    }


HEALTHY: dict[str, Callable[[Rng], Columns]] = {
    "SB3 PPO": sb3_ppo,
    "CleanRL PPO": cleanrl_ppo,
    "TRL GRPO": trl_grpo,
    "verl GRPO": verl_grpo,
    "SB3 SAC": sb3_sac,
    "TRL DPO": trl_dpo,
}


# What goes wrong


def stall(rng: Rng, log: Columns, name: str, until: float = 0.2) -> Columns:
    """The reward stands after a first rise, which may be none."""
    values = log[name]
    n, at = len(values), max(2, int(until * len(values)))
    height = float(np.mean(values[max(0, at - 5) : at]))
    noise = float(np.std(np.diff(values))) / math.sqrt(2.0) or 0.01
    flat = np.concatenate([values[:at], height + wander(rng, n - at, 0.2, noise)])
    return {**log, name: np.clip(flat, 0.0, 1.0) if values.max() <= 1.0 else flat}


def _stalled_grpo(rng: Rng) -> Columns:
    return stall(rng, trl_grpo(rng), "reward", rng.uniform(0.05, 0.25))


def _stalled_ppo(rng: Rng) -> Columns:
    return stall(rng, sb3_ppo(rng), "rollout/ep_rew_mean", 0.05)


def entropy_collapses(rng: Rng) -> Columns:
    log = _stalled_grpo(rng)
    n = len(log["reward"])
    fall = np.maximum(0.01, np.geomspace(1.0, 1e-4, n))
    return {**log, "entropy": around(rng, n, 0.8 * fall, 0.1)}


def kl_runs_away(rng: Rng) -> Columns:
    log = _stalled_grpo(rng)
    n = len(log["reward"])
    return {**log, "kl": around(rng, n, np.geomspace(0.01, rng.uniform(3, 15), n), 0.15)}


def groups_agree(rng: Rng) -> Columns:
    log = _stalled_grpo(rng)
    n = len(log["reward"])
    return {
        **log,
        "frac_reward_zero_std": np.clip(0.93 + wander(rng, n, 0.2, 0.04), 0, 1),
        "reward_std": np.clip(around(rng, n, 0.02, 0.4), 0, 1),
    }


def clip_saturates(rng: Rng) -> Columns:
    log = _stalled_ppo(rng)
    n = len(log["time/fps"])
    return {
        **log,
        "train/clip_fraction": np.clip(0.5 + wander(rng, n, 0.3, 0.05), 0, 1),
        "train/approx_kl": around(rng, n, 0.12, 0.3),
    }


def everything_is_cut(rng: Rng) -> Columns:
    log = _stalled_grpo(rng)
    n = len(log["reward"])
    return {
        **log,
        "completions/clipped_ratio": np.clip(0.97 + wander(rng, n, 0.2, 0.03), 0, 1),
        "completions/mean_length": np.minimum(512.0, around(rng, n, 508.0, 0.005)),
    }


def length_is_exploited(rng: Rng) -> Columns:
    log = _stalled_grpo(rng)
    n = len(log["reward"])
    return {**log, "completions/mean_length": around(rng, n, np.linspace(200.0, 900.0, n), 0.05)}


def proxy_is_hacked(rng: Rng) -> Columns:
    log = verl_grpo(rng)
    n = len(log["critic/score/mean"])
    rise = np.clip(np.linspace(0.3, 0.9, n) + wander(rng, n, 0.2, 0.02), 0, 1)
    held = np.full(n, np.nan)
    places = np.arange(0, n, max(1, n // 24))
    held[places] = np.linspace(0.45, 0.2, len(places)) + rng.normal(0.0, 0.01, len(places))
    return {
        **log,
        "critic/score/mean": rise,
        "critic/rewards/mean": rise,
        "val-core/math/acc/mean@1": held,
    }


def critic_diverges(rng: Rng) -> Columns:
    log = _stalled_ppo(rng)
    n = len(log["time/fps"])
    return {
        **log,
        "train/value_loss": around(rng, n, np.geomspace(20.0, rng.uniform(1e5, 1e8), n), 0.3),
        "train/explained_variance": np.clip(wander(rng, n, 0.3, 0.2) - 0.2, -5, 1),
    }


def gradient_explodes(rng: Rng) -> Columns:
    log = _stalled_grpo(rng)
    n = len(log["reward"])
    grown = around(rng, n, np.geomspace(0.3, rng.uniform(1e3, 1e5), n), 0.2)
    return {**log, "grad_norm": grown}


def numbers_end(rng: Rng) -> Columns:
    log = _stalled_grpo(rng)
    n = len(log["reward"])
    after = np.arange(n) > 0.6 * n
    return {
        **log,
        "grad_norm": np.where(after, np.nan, log["grad_norm"]),
        "loss": np.where(after, np.nan, log["loss"]),
    }


def rate_is_tiny(rng: Rng) -> Columns:
    log = stall(rng, sb3_ppo(rng), "rollout/ep_rew_mean", 0.03)
    n = len(log["time/fps"])
    return {
        **log,
        "train/learning_rate": np.full(n, 1e-8),
        "train/approx_kl": around(rng, n, 2e-7, 0.3),
        "train/clip_fraction": np.zeros(n),
        "train/entropy_loss": np.full(n, -1.386) + wander(rng, n, 0.9, 1e-5),
    }


def rate_is_huge(rng: Rng) -> Columns:
    log = sb3_ppo(rng)
    n = len(log["time/fps"])
    values = log["rollout/ep_rew_mean"]
    low = float(values[0])
    return {
        **log,
        "rollout/ep_rew_mean": low + wander(rng, n, 0.6, 0.1 * abs(float(np.ptp(values)))),
        "train/learning_rate": np.full(n, 3e-2),
        "train/approx_kl": around(rng, n, rng.uniform(0.3, 3.0), 0.6),
        "train/clip_fraction": np.clip(0.55 + wander(rng, n, 0.3, 0.1), 0, 1),
    }


def reward_collapses(rng: Rng) -> Columns:
    log = verl_grpo(rng)
    n = len(log["critic/score/mean"])
    up, down = int(0.45 * n), int(0.15 * n)
    clean = np.concatenate(
        [np.linspace(0.3, 0.7, up), np.linspace(0.7, 0.05, down), np.full(n - up - down, 0.05)]
    )
    score = np.clip(clean + wander(rng, n, 0.2, 0.03), 0, 1)
    held = np.full(n, np.nan)
    held[::10] = score[::10]
    columns = {"critic/score/mean": score, "critic/rewards/mean": score}
    return {**log, **columns, "val-core/math/acc/mean@1": held}


def policy_is_frozen(rng: Rng) -> Columns:
    log = _stalled_grpo(rng)
    n = len(log["reward"])
    start = float(log["reward"][0])
    return {
        **log,
        "reward": np.clip(start + wander(rng, n, 0.1, 0.03), 0, 1),
        "kl": around(rng, n, 3e-7, 0.3),
        "entropy": np.full(n, 0.8) + wander(rng, n, 0.5, 1e-4),
        "grad_norm": around(rng, n, 1e-6, 0.3),
        "learning_rate": np.full(n, 1e-10),
    }


SICK: dict[str, tuple[Callable[[Rng], Columns], frozenset[str]]] = {
    "entropy collapses": (entropy_collapses, frozenset({"entropy-collapse"})),
    "KL runs away": (kl_runs_away, frozenset({"kl-runaway"})),
    "groups agree": (
        groups_agree,
        frozenset({"groups-too-easy", "groups-too-hard", "zero-gradient-steps"}),
    ),
    "clip saturates": (clip_saturates, frozenset({"ppo-clip-saturated", "step-too-large"})),
    "everything is cut": (everything_is_cut, frozenset({"truncation", "never-ends"})),
    "length is exploited": (length_is_exploited, frozenset({"length-exploit"})),
    "proxy is hacked": (proxy_is_hacked, frozenset({"reward-hacking"})),
    "critic diverges": (critic_diverges, frozenset({"critic-diverges"})),
    "gradient explodes": (gradient_explodes, frozenset({"exploding-gradient", "gradient-spikes"})),
    "numbers end": (numbers_end, frozenset({"nonfinite-gradient"})),
    "rate is tiny": (rate_is_tiny, frozenset({"policy-frozen"})),
    "rate is huge": (rate_is_huge, frozenset({"step-too-large", "ppo-clip-saturated"})),
    "reward collapses": (reward_collapses, frozenset({"reward-declining"})),
    "policy is frozen": (policy_is_frozen, frozenset({"policy-frozen", "kl-strangled"})),
}
"""Each with the findings that name it."""
