"""The catalogue: every quantity by name, with what it means, when it is healthy and what to do when it is not.

One table, many outputs: `gradiometer metrics`, docs/reference/metrics.md, the tooltips and the aliases of the importers
are all made from `CATALOGUE`. A name is a slash path; a part in angle brackets stands for a name of the run
(`grad/<block>/norm/raw` is `grad/actor/norm/raw` in a run that has a block `actor`). A block is `all`, a named block, or
`layer.<module path>`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

from gradiometer.errors import UnknownName

__all__ = ["CATALOGUE", "Alias", "Metric", "find", "resolve"]

Scale = Literal["linear", "log"]
Origin = Literal["light", "standard", "deep", "logged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """What another library calls the same quantity: ours = sign × theirs, estimated their way."""

    name: str
    library: str
    sign: int = 1
    estimator: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One quantity. `origin` is the lowest tier that measures it, or `logged` when the user gives it to `meter.log`."""

    name: str
    unit: str
    meaning: str
    origin: Origin
    scale: Scale = "linear"
    healthy: str = ""
    source: str = ""
    """Where the healthy range comes from."""
    remedy: str = ""
    aliases: tuple[Alias, ...] = ()


def _alias(library: str, *names: str, sign: int = 1, estimator: str = "") -> tuple[Alias, ...]:
    return tuple(Alias(name=name, library=library, sign=sign, estimator=estimator) for name in names)


_GRADIENT = (
    Metric(
        name="grad/<block>/norm/raw",
        unit="loss/weight",
        scale="log",
        origin="light",
        meaning="L2 norm of the gradient after backward and before any clipping, the root of the summed squares of the "
        "tensor norms.",
        healthy="steady within a decade of its own history",
        source="its own history: the scale of the reward sets the scale of the gradient",
        remedy="Jumps: lower the learning rate or normalise advantages. Near zero: look for a detached term or groups "
        "without reward variance.",
        aliases=_alias("TRL, transformers", "grad_norm", "train/grad_norm") + _alias("verl", "actor/grad_norm"),
    ),
    Metric(
        name="grad/<block>/norm/clipped",
        unit="loss/weight",
        scale="log",
        origin="light",
        meaning="L2 norm of the gradient as the optimizer saw it, after clipping. Missing when no clip was seen.",
        healthy="equal to norm/raw on most steps",
        source="a clip is meant for outliers",
        remedy="Much smaller than norm/raw on every step: raise max_norm towards the median raw norm.",
    ),
    Metric(
        name="grad/<block>/norm/update",
        unit="weight",
        scale="log",
        origin="standard",
        meaning="L2 norm of what the step did to the weights, w_after − w_before, momentum and weight decay included.",
        healthy="steady; follows the learning-rate schedule",
        source="what the weights did is what trains; the gradient is only asked",
        remedy="Zero while norm/raw is not: the step was skipped, or the parameters are in no optimizer.",
    ),
    Metric(
        name="grad/<block>/update_ratio",
        unit="1",
        scale="log",
        origin="standard",
        meaning="‖Δw‖/‖w‖: the share of its own size a block moves in one step.",
        healthy="about 1e-4 to 1e-2",
        source="TheDeepChecker (log10 ratio below −4 is slow); 1e-3 is the usual rule of thumb",
        remedy="Above 1e-2: lower the learning rate. Below 1e-5: raise it, or check that the schedule has not ended.",
    ),
    Metric(
        name="grad/<block>/max_abs",
        unit="loss/weight",
        scale="log",
        origin="light",
        meaning="Largest absolute element of the raw gradient.",
        healthy="within a few decades of norm/raw / √n",
        remedy="Close to norm/raw itself: one weight gets the whole gradient; look at the input that excites it.",
    ),
    Metric(
        name="grad/<block>/nonfinite",
        unit="tensors",
        origin="light",
        meaning="How many tensors of the block hold a NaN or an Inf, judged on the elements and never on the norm.",
        healthy="0",
        remedy="The event `nonfinite` of that step names the first such tensor. Look for log(0), a division by a zero "
        "std, or an fp16 overflow.",
    ),
    Metric(
        name="grad/<block>/clip/threshold",
        unit="loss/weight",
        scale="log",
        origin="light",
        meaning="The max_norm (or clip_value) of the clip call that covered the block.",
    ),
    Metric(
        name="grad/<block>/clip/active",
        unit="0 or 1",
        origin="light",
        meaning="1 when the raw norm was above the threshold, so the clip changed the gradient.",
        healthy="mostly 0, or steadily 1 with a steady ratio under Adam",
        source="under Adam a constant factor cancels",
        remedy="Always 1 with a ratio that varies: raise max_norm.",
    ),
    Metric(
        name="grad/<block>/clip/ratio",
        unit="1",
        scale="log",
        origin="light",
        meaning="min(1, threshold/raw norm): the factor the clip multiplied the gradient by.",
        healthy="1 on most steps; what harms is a ratio that varies",
        remedy="Below 0.1 for long: the gradient is far larger than the clip was meant for; normalise advantages or "
        "rewards, then set max_norm near the median raw norm.",
    ),
)

_TERMS = (
    Metric(
        name="grad/<block>/term/<term>/norm",
        unit="loss/weight",
        scale="log",
        origin="standard",
        meaning="L2 norm of the gradient of one loss term by itself, as given to `meter.terms`.",
        healthy="above zero on every block the term is meant to train",
        source="TRL PRs 5595 and 5596, mlx-lm-lora issue 50, NeMo-RL issue 3792: terms in the loss without a gradient",
        remedy="Zero or missing: the term is detached from the block; look for no_grad, detach, .item() or numpy on the way.",
    ),
    Metric(
        name="grad/<block>/term/<term>/loss",
        unit="loss",
        origin="standard",
        meaning="The value of the term, as it entered the loss (coefficient included).",
    ),
)

_LOGGED = (
    Metric(
        name="reward",
        unit="return",
        origin="logged",
        meaning="Mean episodic return, or mean reward of the rollouts.",
        healthy="rising, then level at what the task allows",
        source="the point of training",
        aliases=_alias("SB3", "rollout/ep_rew_mean", "eval/mean_reward")
        + _alias("CleanRL", "charts/episodic_return")
        + _alias("TRL", "train/reward", "objective/scores", "objective/rlhf_reward")
        + _alias("verl", "critic/score/mean", "critic/rewards/mean"),
    ),
    Metric(
        name="episode_length",
        unit="steps or tokens",
        origin="logged",
        meaning="Mean length of the finished episodes.",
        aliases=_alias("SB3", "rollout/ep_len_mean") + _alias("CleanRL", "charts/episodic_length"),
    ),
    Metric(
        name="entropy",
        unit="nats",
        origin="logged",
        meaning="Mean entropy of the policy, positive.",
        healthy="falls slowly while reward rises",
        source="arXiv 2505.22617: without intervention 73 % of it is consumed in the first twelfth of training",
        remedy="Raise the entropy coefficient, and make sure the entropy term has a gradient (`meter.terms`).",
        aliases=_alias("SB3", "train/entropy_loss", sign=-1)
        + _alias("CleanRL", "losses/entropy")
        + _alias("TRL", "train/entropy", "policy/entropy_avg", "objective/entropy")
        + _alias("verl", "actor/entropy"),
    ),
    Metric(
        name="policy_loss",
        unit="loss",
        origin="logged",
        meaning="The policy term of the loss. Its value says little; its gradient says more.",
        aliases=_alias("SB3", "train/policy_gradient_loss")
        + _alias("CleanRL", "losses/policy_loss")
        + _alias("TRL", "loss/policy_avg")
        + _alias("verl", "actor/pg_loss")
        + _alias("RAGEN", "actor/loss/policy"),
    ),
    Metric(
        name="value_loss",
        unit="loss",
        origin="logged",
        meaning="The value (critic) term of the loss before its coefficient.",
        aliases=_alias("SB3", "train/value_loss")
        + _alias("CleanRL", "losses/value_loss")
        + _alias("TRL", "loss/value_avg")
        + _alias("verl", "critic/vf_loss"),
    ),
    Metric(
        name="approx_kl",
        unit="nats",
        scale="log",
        origin="logged",
        meaning="KL divergence from the policy that collected the data. Libraries use three estimators: k1 = −log r, "
        "k2 = ½ log² r, k3 = r − 1 − log r, with r = π/π_old.",
        healthy="about 0.003 to 0.02",
        source="Spinning Up's target 0.01; SB3 stops at 1.5 × target_kl; below 1e-4 the policy hardly moves",
        remedy="Higher: smaller learning rate or fewer epochs. Lower: the policy hardly moves.",
        aliases=_alias("SB3", "train/approx_kl", estimator="k3")
        + _alias("CleanRL", "losses/approx_kl", estimator="k3")
        + _alias("CleanRL", "losses/old_approx_kl", estimator="k1")
        + _alias("TRL", "policy/approxkl_avg", estimator="k2")
        + _alias("verl", "actor/ppo_kl", estimator="k1"),
    ),
    Metric(
        name="kl_ref",
        unit="nats",
        scale="log",
        origin="logged",
        meaning="KL divergence from the frozen reference policy (another quantity than approx_kl).",
        aliases=_alias("TRL", "train/kl", estimator="k3")
        + _alias("TRL", "objective/kl", estimator="k1")
        + _alias("verl", "actor/kl_loss", "actor/reward_kl_penalty"),
    ),
    Metric(
        name="clip_fraction",
        unit="1",
        origin="logged",
        meaning="Share of samples whose policy ratio is outside the PPO clip range.",
        healthy="below about 0.2",
        source="log-judging tools warn from 0.1 to 0.4",
        remedy="Higher: fewer epochs, smaller learning rate or larger batches.",
        aliases=_alias("SB3", "train/clip_fraction")
        + _alias("CleanRL", "losses/clipfrac")
        + _alias("TRL", "train/clip_ratio/region_mean", "policy/clipfrac_avg")
        + _alias("verl", "actor/pg_clipfrac"),
    ),
    Metric(
        name="explained_variance",
        unit="1",
        origin="logged",
        meaning="1 − Var(return − value)/Var(return). Against bootstrapped returns it flatters the critic when λ < 1.",
        healthy="above 0.2 and rising",
        source="SB3's documentation: at or below 0 the critic is worse than predicting zero",
        remedy="Train the critic longer or faster, scale the returns, or check that its loss reaches it.",
        aliases=_alias("SB3", "train/explained_variance")
        + _alias("CleanRL", "losses/explained_variance")
        + _alias("verl", "critic/vf_explained_var"),
    ),
    Metric(
        name="learning_rate",
        unit="1",
        scale="log",
        origin="logged",
        meaning="The optimizer's learning rate.",
        aliases=_alias("SB3, TRL", "train/learning_rate")
        + _alias("CleanRL", "charts/learning_rate")
        + _alias("TRL", "lr")
        + _alias("verl", "actor/lr"),
    ),
    Metric(
        name="zero_variance_groups",
        unit="1",
        origin="logged",
        meaning="Share of groups whose rollouts all earned the same reward, so they give no policy gradient.",
        healthy="below 0.5",
        source="log-judging tools warn from 0.5",
        remedy="Mostly right: harder prompts. Mostly wrong: easier prompts or a repaired verifier.",
        aliases=_alias("TRL", "frac_reward_zero_std", "train/frac_reward_zero_std"),
    ),
)

CATALOGUE: dict[str, Metric] = {metric.name: metric for metric in (*_GRADIENT, *_TERMS, *_LOGGED)}


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], Metric], ...]:
    """The names with placeholders as regular expressions; a placeholder never spans a slash."""
    return tuple(
        (re.compile(re.sub(r"<[a-z_]+>", "[^/]+", name)), metric) for name, metric in CATALOGUE.items() if "<" in name
    )


@cache
def _aliases() -> dict[str, tuple[Metric, Alias]]:
    return {alias.name: (metric, alias) for metric in CATALOGUE.values() for alias in metric.aliases}


def resolve(name: str) -> tuple[Metric, Alias | None] | None:
    """The catalogue entry of a series' name, with the alias it goes by; None when the catalogue does not know it."""
    if metric := CATALOGUE.get(name):
        return metric, None
    if known := _aliases().get(name):
        return known
    return next(((metric, None) for pattern, metric in _patterns() if pattern.fullmatch(name)), None)


def find(name: str) -> tuple[Metric, Alias | None]:
    """Like `resolve`, but an unknown name is an error that says what is close."""
    if known := resolve(name):
        return known
    raise UnknownName("metric", name, [*CATALOGUE, *_aliases()], hint="`gradiometer metrics` lists them all.")
