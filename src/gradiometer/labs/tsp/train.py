"""POMO (Kwon et al. 2020), leader reward and max@K on the travelling salesman, watched by a meter: read top to bottom.

An update draws instances, walks n tours of each from n different cities, weighs every tour by its reward among the tours
of its instance, and follows Σ w ∇log π. Everything random in update s comes from (seed, purpose, s), so a resumed
training goes on as if it had never stopped.

Shapes: B instances of N cities, n rollouts of each.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

import gradiometer as gm
from gradiometer.capture.settings import Tier
from gradiometer.labs import faults
from gradiometer.labs.tsp import checkpoint
from gradiometer.labs.tsp.config import Config, Progress
from gradiometer.labs.tsp.evaluate import Evaluation, evaluate
from gradiometer.labs.tsp.model import Policy
from gradiometer.maths import estimators

__all__ = ["Config", "Pieces", "Progress", "Result", "loss_of", "train", "weights_of"]

RECENT = 10
"""Updates whose mean reward is reported."""


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
    """Of the trained policy, on `val_size` instances nobody trained on; None when there are none."""
    run: Path | None
    checkpoint: Path | None
    model: Policy


class Purpose(IntEnum):
    """What a random number is drawn for: each has its own stream at each step."""

    INSTANCES = 1
    CHOICES = 2
    VALIDATION = 3


def generator_for(config: Config, purpose: Purpose, step: int) -> torch.Generator:
    """The random numbers of one purpose at one step, the same on every device."""
    words = np.random.SeedSequence((config.seed, purpose, step)).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(words[0]) >> 1)


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
    """The lines of this training that a fault may change; see `labs/faults.py`."""

    config: Config
    weights_of: Callable[[Tensor, Config], Tensor] = weights_of
    policy_loss_of: Callable[[Tensor, Tensor, Config], Tensor] = loss_of
    learning_rate_at: Callable[[Config, float], float] = learning_rate_at


def update(
    policy: Policy, optimizer: torch.optim.Optimizer, meter: gm.Meter, step: int, pieces: Pieces
) -> dict[str, Tensor]:
    """One optimizer step on new instances; returns what to log."""
    config = pieces.config
    instances = policy.instances(config.batch_size, config.num_loc, generator_for(config, Purpose.INSTANCES, step))
    walked = policy.rollouts(
        instances, num_starts=config.num_rollouts, generator=generator_for(config, Purpose.CHOICES, step)
    )
    weights = pieces.weights_of(walked.reward, config)
    policy_loss = pieces.policy_loss_of(weights, walked.log_likelihood, config)

    optimizer.zero_grad()
    with meter.terms(policy=policy_loss) as loss:
        loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()

    return {
        "reward": walked.reward.mean(),
        "best_reward": walked.reward.max(-1).values.mean(),
        "entropy": walked.entropy,
        "policy_loss": policy_loss.detach(),
        "advantages": weights,
    }


def train(config: Config, progress: Callable[[Progress], None] | None = None) -> Result:
    """Train from scratch or from a checkpoint; all that is random comes from `config.seed`."""
    pieces = faults.apply(config.fault, "tsp", Pieces(config=config))
    config = pieces.config
    policy = checkpoint.make_policy(config)
    optimizer = torch.optim.Adam(policy.parameters(), lr=config.learning_rate)
    resumed = checkpoint.resume(config, policy, optimizer)
    first = 0 if resumed is None else int(resumed["step"])
    recent: deque[float] = deque([] if resumed is None else resumed["recent"], maxlen=RECENT)
    saved: Path | None = None
    with watched(policy, optimizer, config, first) as meter:
        if resumed is not None:
            meter.load_state_dict(resumed["meter"])
        for step in range(first, config.steps):
            learning_rate = pieces.learning_rate_at(config, step / config.steps)
            optimizer.param_groups[0]["lr"] = learning_rate
            logged = update(policy, optimizer, meter, step, pieces)
            meter.log(**logged, learning_rate=learning_rate)
            recent.append(float(logged["reward"]))
            done = step + 1
            if config.run is not None and (done % config.save_every == 0 or done == config.steps):
                state = checkpoint.state_of(policy, optimizer, step=done, recent=recent, meter=meter.state_dict())
                saved = checkpoint.save(Path(config.run), config, state)
            if progress is not None:
                progress(Progress(done=done, total=config.steps, mean_return=float(np.mean(recent))))
        validation = validate(policy, config)
        if validation is not None:
            rewards = {"val/reward": validation.plain.mean(), "val/reward_augmented": validation.augmented.mean()}
            meter.log(rewards)
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


def validate(policy: Policy, config: Config) -> Evaluation | None:
    """Greedily, on instances that depend on the seed alone."""
    if config.val_size == 0:
        return None
    instances = policy.instances(config.val_size, config.num_loc, generator_for(config, Purpose.VALIDATION, 0))
    return evaluate(policy, instances)


def watched(policy: Policy, optimizer: torch.optim.Optimizer, config: Config, first: int) -> gm.Meter:
    """The instrument around this training; a resumed one goes on in its run."""
    kept_before = config.run is not None and first > 0 and (Path(config.run) / "run.db").exists()
    return gm.watch(
        policy,
        optimizer,
        run=config.run,
        resume=first if kept_before else None,
        every=config.every,
        budget=None,  # the same steps on every machine
        tier=cast(Tier, config.tier),
        blocks={"encoder": "^encoder", "decoder": "^decoder"},
        config=dataclasses.asdict(config),
        seed=config.seed,
    )
