"""POMO (Kwon et al. 2020), leader reward and max@K on the travelling salesman, watched by a meter:
read top to bottom.

An update draws instances, walks n tours of each from n different cities, weighs every tour by its
reward among the tours of its instance, and follows Σ w ∇log π. Everything random in update s comes
from (seed, purpose, s), so a resumed training goes on as if it had never stopped.

Shapes: B instances of N cities, n rollouts of each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

import gradiometer as gm
from gradiometer.maths import estimators, scores
from gradiometer_labs import faults
from gradiometer_labs.control import CONTROL_SEED, ControlRewards
from gradiometer_labs.streams import generator_of
from gradiometer_labs.tsp import checkpoint
from gradiometer_labs.tsp.config import Config, TrainingProgress
from gradiometer_labs.tsp.evaluate import Evaluation, evaluate
from gradiometer_labs.tsp.model import TourPolicy, TourRollouts, Walk, log_probs_of, sampled
from gradiometer_labs.tsp.problem import TourProblem
from gradiometer_labs.watching import watched
from gradiometer_labs.weights import load_weights

__all__ = ["Config", "Pieces", "Result", "TrainingProgress", "loss_of", "train", "weights_of"]

BLOCKS = {"encoder": "^encoder", "decoder": "^decoder"}
RECENT = 10
"""Updates whose mean reward is reported."""
SHIFTS = (0, -3, -2, -1, 1, 2, 3)
"""Tours by which weights and rewards may be apart and be found so; the first of equals counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How the training ended."""

    mean_return: float
    """Minus the mean length of the sampled tours of the last 10 updates."""
    episodes: int
    """Tours walked to train on, since the start or the checkpoint."""
    steps: int
    entropy: float
    """Of the policy at the last update, nats per choice."""
    validation: Evaluation | None
    """Of the trained policy, on `val_size` instances nobody trained on; None when there are
    none."""
    run: Path | None
    checkpoint: Path | None
    model: TourPolicy


CONTROL = 256
"""Instances that are toured without a policy."""


class TspPurpose(IntEnum):
    """What a random number is drawn for: each has its own stream at each step."""

    INSTANCES = 1
    CHOICES = 2
    VALIDATION = 3
    CONTROL = 4


def control_of(problem: TourProblem, config: Config) -> ControlRewards:
    """Cities in any order, and always on to the nearest that is left."""
    generator = generator_of(CONTROL_SEED, TspPurpose.CONTROL, 0)
    instances = problem.generate(CONTROL, config.num_loc, generator)
    starts = problem.starts(instances, 1)
    distances = torch.cdist(instances, instances)
    # nobody says how far it is at random: those are distances of their own
    at_random = torch.rand(distances.shape, generator=generator)
    random, nearest = (
        float(problem.reward(instances, nearest_first(problem, instances, starts, each)).mean())
        for each in (at_random, distances)
    )
    return ControlRewards(random_reward=random, baseline_reward=nearest, rule="Nearest city")


def nearest_first(
    problem: TourProblem, instances: Tensor, starts: Tensor, distances: Tensor
) -> Tensor:
    """Tours [B, 1, N] that always go on to the nearest open city; distances [B, N, N]."""
    tour, closed = [starts], problem.closed(instances, starts)
    for _ in range(problem.num_choices(instances.shape[1])):
        ahead = distances.gather(1, tour[-1].unsqueeze(-1).expand(-1, -1, distances.shape[-1]))
        tour.append(ahead.masked_fill(closed, torch.inf).argmin(-1))
        closed = problem.close(closed, tour[-1])
    return torch.stack(tour, -1)


def generator_for(config: Config, purpose: TspPurpose, step: int) -> torch.Generator:
    """The random numbers of one purpose at one step, the same on every device."""
    return generator_of(config.seed, purpose, step)


def optimizer_of(policy: nn.Module, config: Config) -> torch.optim.Optimizer:
    """Adam, on all weights."""
    return torch.optim.Adam(policy.parameters(), lr=config.learning_rate)


def rewards_of(walked: TourRollouts, config: Config) -> Tensor:
    """What is said of each tour, [B, n]: minus its length."""
    return walked.reward


def weights_of(rewards: Tensor, config: Config) -> Tensor:
    """The weight of each rollout's ∇log π, [B, n]."""
    options: dict[str, dict[str, Any]] = {
        "pomo": {},
        "leader_reward": {"alpha": config.alpha},
        "maxk_pomo": {"k": config.k, "baseline": config.baseline},
    }
    return estimators.find(config.algorithm)(rewards, **options[config.algorithm])


def loss_of(weights: Tensor, log_likelihood: Tensor, config: Config) -> Tensor:
    """L = −(1/B) Σ_b Σ_i w_bi log π_bi, over n where rollouts are averaged; all [B, n]."""
    source = estimators.find(config.algorithm).reduction
    mean = (source if config.reduction == "source" else config.reduction) == "mean"
    weighted = weights * log_likelihood
    return -(weighted.mean(-1) if mean else weighted.sum(-1)).mean()


def learning_rate_at(config: Config, done_fraction: float) -> float:
    """Linear from `learning_rate` to zero."""
    return config.learning_rate * (1 - done_fraction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """The lines of this training that a fault may change; see `gradiometer_labs/faults.py`."""

    config: Config
    policy_of: Callable[[Config], TourPolicy] = checkpoint.make_policy
    optimizer_of: Callable[[nn.Module, Config], torch.optim.Optimizer] = optimizer_of
    sampled: Callable[[Tensor, Generator | None], Tensor] = sampled
    log_probs_of: Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor] = log_probs_of
    rewards_of: Callable[[TourRollouts, Config], Tensor] = rewards_of
    weights_of: Callable[[Tensor, Config], Tensor] = weights_of
    policy_loss_of: Callable[[Tensor, Tensor, Config], Tensor] = loss_of
    learning_rate_at: Callable[[Config, float], float] = learning_rate_at

    @property
    def walk(self) -> Walk:
        """Those that are inside a rollout."""
        return Walk(sampled=self.sampled, log_probs_of=self.log_probs_of)


def update(
    policy: TourPolicy, optimizer: torch.optim.Optimizer, meter: gm.Meter, step: int, pieces: Pieces
) -> tuple[Tensor, dict[str, Any]]:
    """One optimizer step on new instances; returns the tours' mean reward, and what to log."""
    config = pieces.config
    instances = policy.instances(
        config.batch_size, config.num_loc, generator_for(config, TspPurpose.INSTANCES, step)
    )
    choices = generator_for(config, TspPurpose.CHOICES, step)
    walked = policy.rollouts(
        instances, num_starts=config.num_rollouts, generator=choices, walk=pieces.walk
    )
    rewards = pieces.rewards_of(walked, config)
    weights = pieces.weights_of(rewards, config)
    policy_loss = pieces.policy_loss_of(weights, walked.log_likelihood, config)
    looked_at = step % config.every == 0
    before = log_probs_now(policy, instances, walked) if looked_at else None

    optimizer.zero_grad()
    with meter.terms(policy=policy_loss) as loss:
        loss.backward()  # type: ignore[no-untyped-call]
    if config.max_grad_norm is not None:
        nn.utils.clip_grad_norm_(policy.parameters(), config.max_grad_norm)
    optimizer.step()

    logged: dict[str, Any] = {
        "reward": rewards.mean(),
        "best_reward": rewards.max(-1).values.mean(),
        "reward_std": rewards.std(-1).mean(),
        "entropy": walked.entropy,
        "policy_loss": policy_loss.detach(),
        "advantages": weights,
        "observation": instances,
    }
    if before is not None:
        logged |= second_look(before, log_probs_now(policy, instances, walked), walked, rewards)
        logged["reward_lag"] = lag_of(weights, rewards)
    return walked.reward.mean(), logged


@torch.no_grad()
def log_probs_now(policy: TourPolicy, instances: Tensor, walked: TourRollouts) -> Tensor:
    """Of the choices that were made, by the weights as they are: [B, n, T - 1]."""
    return policy.log_probs_of_tours(instances, walked.tours)


def second_look(
    before: Tensor, after: Tensor, walked: TourRollouts, rewards: Tensor
) -> dict[str, float]:
    """What the update did to the choices it was made of, log π of each [B, n, T - 1] before and
    after it.

    The score is that of the temperature, ∂ log π(a)/∂(1/τ) at τ = 1: log π(a) + H. Cities have no
    names, so that a score by city would say nothing.
    """
    log_ratio = after - before
    score = (walked.log_probs.detach() + walked.entropies.movedim(0, -1))[..., :-1].reshape(-1, 1)
    return {
        "approx_kl": float((log_ratio.expm1() - log_ratio)[..., :-1].mean()),
        "reward_gain": scores.reward_gain(
            rewards - rewards.mean(-1, keepdim=True), log_ratio.sum(-1)
        ),
        "score_z": scores.score_z(score, score.new_empty(len(score), 0)),
    }


def lag_of(weights: Tensor, rewards: Tensor) -> int:
    """How many tours on are the rewards that the weights follow most, [B, n] each; 0 when each tour
    has its own."""
    centred = rewards - rewards.mean(-1, keepdim=True)
    fits = torch.stack([weights.flatten() @ centred.flatten().roll(-shift) for shift in SHIFTS])
    return SHIFTS[int(fits.argmax())]


def train(config: Config, progress: Callable[[TrainingProgress], None] | None = None) -> Result:
    """Train from scratch, from weights or from a checkpoint; all that is random comes from
    `config.seed`."""
    pieces = faults.apply(config.fault, "tsp", Pieces(config=config))
    config = pieces.config
    policy = pieces.policy_of(config)
    load_weights(policy, config.start)
    optimizer = pieces.optimizer_of(policy, config)
    resumed = checkpoint.resume(config, policy, optimizer)
    first = 0 if resumed is None else int(resumed["step"])
    recent: deque[float] = deque([] if resumed is None else resumed["recent"], maxlen=RECENT)
    saved: Path | None = None
    control = control_of(policy.problem, config)
    progress = control.announced(progress)
    facts = {
        "num_actions": config.num_loc - 1,
        "max_reward": policy.problem.best_mean(config.num_loc),
        **control.facts,
    }
    with watched(policy, optimizer, config, facts=facts, first=first, blocks=BLOCKS) as meter:
        if resumed is not None:
            meter.load_state_dict(resumed["meter"])
        for step in range(first, config.steps):
            learning_rate = pieces.learning_rate_at(config, step / config.steps)
            optimizer.param_groups[0]["lr"] = learning_rate
            reward, logged = update(policy, optimizer, meter, step, pieces)
            meter.log(**logged, learning_rate=learning_rate)
            recent.append(float(reward))
            done = step + 1
            if config.run is not None and (done % config.save_every == 0 or done == config.steps):
                state = checkpoint.state_of(
                    policy, optimizer, step=done, recent=recent, meter=meter.state_dict()
                )
                saved = checkpoint.save(Path(config.run), config, state)
            if done == config.steps or (
                config.val_every is not None and done % config.val_every == 0
            ):
                validation = validate(policy, config)
                meter.log(told(validation))
            if progress is not None:
                progress(
                    TrainingProgress(
                        done=done, total=config.steps, mean_return=float(np.mean(recent))
                    )
                )
    return Result(
        mean_return=float(np.mean(recent)),
        episodes=(config.steps - first) * config.batch_size * config.num_rollouts,
        steps=config.steps,
        entropy=float(logged["entropy"]),
        validation=validation,
        run=meter.run,
        checkpoint=saved,
        model=policy,
    )


def validate(policy: TourPolicy, config: Config) -> Evaluation | None:
    """Greedily, on instances that depend on the seed alone."""
    if config.val_size == 0:
        return None
    instances = policy.instances(
        config.val_size, config.num_loc, generator_for(config, TspPurpose.VALIDATION, 0)
    )
    return evaluate(policy, instances)


def told(validation: Evaluation | None) -> dict[str, Tensor]:
    """What to log of it."""
    if validation is None:
        return {}
    return {
        "val/reward": validation.plain.mean(),
        "val/reward_augmented": validation.augmented.mean(),
    }
