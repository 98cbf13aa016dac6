"""What the pendulum lab logs beside its losses: questions to a round of episodes, answered from
what was really done.

Shapes: a round is T steps of N environments, [T, N, ...].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Normal, TanhTransform

from gradiometer.maths import scores
from gradiometer_labs.pendulum.model import LogProb, SacModel, TwinCritic, log_normal

__all__ = [
    "Step",
    "dormant_fraction",
    "explained_variance",
    "measured",
    "reward_gain",
    "reward_lag",
    "sampler_kl",
    "score_z",
    "scores_of",
    "stacked",
    "target_distance",
]

DORMANT = 0.025
"""Of its layer's mean activation: a unit with less is dormant (ReDo, Sokar et al. 2023)."""
LAGS = range(-3, 4)
"""Steps by which rewards and what earned them are tried against each other."""
HORIZON = 3.0
"""Time constants of the discount that must lie before an episode's end: what is cut off then counts
5 %."""
FOLLOWED = 10
"""Steps over which an action's earnings are counted: half a second. Later, other actions and chance
outweigh it."""
WAVES = 80
"""Random waves that a function of the state is fitted with."""


class Step(NamedTuple):
    """One step of each environment, [N, ...]; stacked, a round of them."""

    observations: Tensor
    u: Tensor
    mean: Tensor
    log_std: Tensor
    kept: Tensor
    """Rewards as they went into the replay."""
    rewards: Tensor
    """Rewards as the environment gave them, times the same scale."""


def stacked(steps: Sequence[Step]) -> Step:
    """A round."""
    return Step(*(torch.stack(column) for column in zip(*steps, strict=True)))


@torch.no_grad()
def measured(
    played: Step,
    before: Step,
    model: SacModel,
    target: TwinCritic,
    log_prob_of: LogProb,
    gamma: float,
) -> dict[str, float]:
    """All of it, under the names of the catalogue, of this round and of the one before it."""
    return {
        "score_z": score_z(played),
        "reward_gain": reward_gain(before, model, gamma),
        "sampler_kl": sampler_kl(played, log_prob_of),
        "explained_variance": explained_variance(played, model.critic, gamma),
        "reward_lag": reward_lag(played),
        "dormant_fraction": dormant_fraction(played, model),
        "target_distance": target_distance(target, model.critic),
    }


def score_z(played: Step) -> float:
    """Whether the actions that were taken are samples of the policies that took them."""
    residuals, features = scores_of(played), played.observations.flatten(0, 1)
    return scores.score_z(residuals, features) if residuals.isfinite().all() else math.nan


def scores_of(played: Step) -> Tensor:
    """∂ log π/∂(μ, log σ) at the actions that were taken, under the policies that took them, [T·N,
    2].

    For a given action the tanh adds nothing that depends on μ or σ: the scores are the Gaussian's,
    ε/σ and ε² - 1.
    """
    std = played.log_std.exp()
    noise = (played.u - played.mean) / std
    return torch.cat([noise / std, noise.square() - 1], dim=-1).flatten(0, 1)


def sampler_kl(played: Step, log_prob_of: LogProb) -> float:
    """E[log p - log π] over what was done: the density of tanh(u) as torch.distributions has it,
    and as it is trained with."""
    normal, squeezed = (
        Normal(played.mean, played.log_std.exp(), validate_args=False),
        TanhTransform(),
    )
    density = normal.log_prob(played.u) - squeezed.log_abs_det_jacobian(played.u, played.u.tanh())  # type: ignore[no-untyped-call]
    return float((density.sum(-1) - log_prob_of(played.u, (played.mean, played.log_std))).mean())


def reward_gain(played: Step, model: SacModel, gamma: float) -> float:
    """The correlation, at equal states, of what actions earned with how much likelier the policy
    has made them since.

    Both depend on the state far more than on the action: good states earn whatever is done in them,
    and the policy changes more where it matters. So what a smooth function of the state predicts is
    taken away from both, by least squares.
    """
    now, then = model.policy(played.observations), (played.mean, played.log_std)
    since = log_normal(played.u, now) - log_normal(
        played.u, then
    )  # the tanh is the same in both, and cancels
    earned = returns_of(played.rewards, gamma, FOLLOWED)
    both = torch.stack([each[:-FOLLOWED].flatten() for each in (earned, since)], dim=-1)
    own = _unexplained(both, _waves(played.observations[:-FOLLOWED].flatten(0, 1)))
    return scores.reward_gain(own[:, 0], own[:, 1]) if own.isfinite().all() else math.nan


def returns_of(rewards: Tensor, gamma: float, steps: int) -> Tensor:
    """Discounted, over that many steps or to the end of the episode, [T, N]."""
    returns = torch.zeros_like(rewards)
    for ahead in range(min(steps, len(rewards))):
        returns[: len(rewards) - ahead] += gamma**ahead * rewards[ahead:]
    return returns


def _waves(observations: Tensor) -> Tensor:
    """A basis for functions of the state: cosines of random directions and phases, always the same
    ones, [B, 81]."""
    generator = torch.Generator().manual_seed(0)
    directions = 2.5 * torch.randn(3, WAVES, generator=generator, dtype=torch.float64)
    phases = 2 * math.pi * torch.rand(WAVES, generator=generator, dtype=torch.float64)
    waves = (
        observations.double() @ directions.to(observations.device) + phases.to(observations.device)
    ).cos()
    return torch.cat([torch.ones_like(waves[:, :1]), waves], dim=-1)


def _unexplained(effects: Tensor, causes: Tensor) -> Tensor:
    """What is left of each column of effects after the best linear prediction; NaN where a number
    is not finite."""
    if not (effects.isfinite().all() and causes.isfinite().all()):
        return torch.full_like(effects, math.nan)
    fitted: Tensor = causes @ torch.linalg.lstsq(causes, effects.double()).solution
    return effects.double() - fitted


def explained_variance(played: Step, critic: TwinCritic, gamma: float) -> float:
    """1 - Var(G - Q)/Var(G), with the discounted rewards G that really followed; ends of episodes
    are left out."""
    returns = returns_of(played.rewards, gamma, len(played.rewards))
    whole = max(2, len(returns) - round(HORIZON / (1 - gamma)))
    values = critic(played.observations[:whole], played.u[:whole].tanh()).mean(0)
    return float(1 - (returns[:whole] - values).var() / returns[:whole].var())


def reward_lag(played: Step) -> float:
    """The shift at which what was seen and done predicts the kept rewards best; NaN where a number
    is not finite."""
    cosine, sine, speed = played.observations.double().unbind(-1)
    seen = torch.stack(
        [torch.atan2(sine, cosine), speed, played.u.double().tanh().squeeze(-1)], dim=-1
    )
    most = max(LAGS)
    now = slice(most, len(seen) - most)
    causes = torch.cat([torch.ones_like(seen[..., :1]), seen, seen.square()], dim=-1)[now].flatten(
        0, 1
    )
    effects = torch.stack(
        [played.kept[now.start + lag : now.stop + lag].flatten() for lag in LAGS], dim=-1
    )
    left = _unexplained(effects, causes).square().mean(0) / effects.var(0)
    return float(LAGS[int(left.argmin())]) if left.isfinite().all() else math.nan


def dormant_fraction(played: Step, model: SacModel) -> float:
    """The share of hidden units, of the actor and of both critics, that hardly ever fire."""
    seen = played.observations.flatten(0, 1)
    both = torch.cat([seen, played.u.flatten(0, 1).tanh()], dim=-1)
    dormant: list[Tensor] = []
    for network, hidden in (
        (model.actor, seen),
        (model.critic.first, both),
        (model.critic.second, both),
    ):
        for layer in network:
            hidden = layer(hidden)
            if isinstance(layer, nn.ReLU):
                size = hidden.mean(0)
                dormant.append((size <= DORMANT * size.mean()).where(size.isfinite(), math.nan))
    return float(torch.cat(dormant).mean())


def target_distance(target: TwinCritic, critic: TwinCritic) -> float:
    """‖θ' - θ‖/‖θ‖."""
    theirs, ours = (nn.utils.parameters_to_vector(each.parameters()) for each in (target, critic))
    return float((theirs - ours).norm() / ours.norm())
