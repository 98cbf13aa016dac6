"""What is measured again and again: a policy, its rollouts, and the gradient an estimator makes of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from gradiometer.capture.blocks import Model, named_parameters
from gradiometer.errors import UsageError
from gradiometer.maths import estimators

__all__ = ["REDUCTIONS", "Gradient", "Recipe", "Rollout", "Subject", "batches", "gradient_of", "seed_everything"]

Rollout: TypeAlias = Callable[[Any], tuple[Tensor, Tensor]]
"""Instances of a batch in; rewards [b, n] and log-likelihoods [b, n] of n rollouts each out."""

REDUCTIONS = ("mean", "sum", "source")


@dataclass(frozen=True, slots=True)
class Subject:
    """A policy held still: the modules whose parameters are differentiated, and how they roll out."""

    model: Model
    rollout: Rollout

    def parameters(self) -> dict[str, nn.Parameter]:
        """Those that are trained, by name."""
        return {name: p for name, p in named_parameters(self.model).items() if p.requires_grad}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """From rollouts to a loss."""

    algorithm: str
    options: Mapping[str, Any] = field(default_factory=dict)
    reduction: str = "mean"
    """Over the rollouts of an instance: mean, sum, or what the source takes for this algorithm."""
    batch_size: int = 64
    shuffled: bool = False
    """Rewards permuted among the rollouts of each instance: the control."""

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise UsageError(f"reduction is one of {', '.join(REDUCTIONS)}; found {self.reduction!r}")
        if self.batch_size < 1:
            raise UsageError(f"batch_size is a number of instances, 1 or more; found {self.batch_size}")
        estimators.find(self.algorithm).check_options(self.options)

    def weights(self, rewards: Tensor) -> Tensor:
        """What each rollout's log-likelihood is multiplied by, [b, n]."""
        return estimators.find(self.algorithm)(rewards, **self.options)

    def loss(self, weights: Tensor, log_likelihood: Tensor) -> Tensor:
        """−Σ_i w_i log π(τ_i), reduced over rollouts, mean over the instances of the batch."""
        terms = -(weights * log_likelihood)
        reduction = estimators.find(self.algorithm).reduction if self.reduction == "source" else self.reduction
        return (terms.sum(-1) if reduction == "sum" else terms.mean(-1)).mean()


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of the mean loss over some instances, flat [P] in float32, and the weights it was made of [N, n]."""

    flat: Tensor
    weights: Tensor


def gradient_of(subject: Subject, instances: Any, recipe: Recipe) -> Gradient:
    """Batch by batch with weight b/N, so that memory does not grow and a short last batch counts for what it is."""
    parameters = list(subject.parameters().values())
    flat = torch.zeros(sum(p.numel() for p in parameters), device=parameters[0].device)
    kept: list[Tensor] = []
    total = len(instances)
    for batch in batches(instances, recipe.batch_size):
        with torch.enable_grad():
            rewards, log_likelihood = _checked(subject.rollout(batch), len(batch))
            weights = recipe.weights(_shuffled(rewards) if recipe.shuffled else rewards)
            loss = recipe.loss(weights.to(log_likelihood.dtype), log_likelihood) * (len(batch) / total)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        flat += _flat(gradients, parameters)
        kept.append(weights.detach())
    if not bool(torch.isfinite(flat).all()):
        raise UsageError(
            "the gradient holds a NaN or an Inf: the policy's weights or log-likelihoods are not finite, or an option is not"
        )
    return Gradient(flat, torch.cat(kept))


def batches(instances: Any, size: int) -> Iterator[Any]:
    """Slices of at most `size` instances."""
    for start in range(0, len(instances), size):
        yield instances[start : start + size]


def seed_everything(seed: int) -> None:
    """torch, numpy and Python, as the source does."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _flat(gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    parts = [
        torch.zeros(p.numel(), device=p.device) if g is None else g.reshape(-1).float()
        for g, p in zip(gradients, parameters, strict=True)
    ]
    return torch.cat(parts)


def _shuffled(rewards: Tensor) -> Tensor:
    return rewards.gather(-1, torch.rand(rewards.shape, device=rewards.device).argsort(-1))


def _checked(found: Any, size: int) -> tuple[Tensor, Tensor]:
    if not (isinstance(found, tuple | list) and len(found) == 2 and all(isinstance(each, Tensor) for each in found)):
        raise UsageError("the policy must return two tensors for a batch of instances: rewards and log-likelihoods")
    rewards, log_likelihood = found
    if rewards.ndim != 2 or rewards.shape != log_likelihood.shape or len(rewards) != size:
        raise UsageError(
            f"rewards and log-likelihoods are [instances, rollouts], here [{size}, n]; found {list(rewards.shape)} and "
            f"{list(log_likelihood.shape)}"
        )
    if not log_likelihood.requires_grad:
        raise UsageError("the log-likelihoods have no gradient: compute them outside torch.no_grad()")
    return rewards.detach(), log_likelihood
