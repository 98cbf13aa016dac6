"""Feed-forward blocks made of experts, and the routers beside them.

Prismatic: expert 0 is clean, the others are clones of it with their largest and smallest weights
perturbed once. The router gives each sample probabilities, and one feed-forward layer is run whose
weights are the experts' weights merged by them (SMEAR: Muqeeth et al. 2024). With one merge a
batch, ∂L/∂W_e = w̄_e ∂L/∂W: the experts' gradients are collinear. Top-k: each character goes to k
experts, whose outputs are multiplied by the router's probabilities, and a balance loss (Fedus et
al. 2022) keeps the load even.

Shapes: B samples of T characters, S = B·T of them, D the width, N experts.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import gelu

from gradiometer.maths.tiers import tier_masks
from gradiometer_labs.prismatic.config import Config
from gradiometer_labs.transformer import FeedForward, balance_loss_of

__all__ = [
    "MergedExperts",
    "RoutedExperts",
    "RoutingPieces",
    "perturbed",
    "router_logits_of",
    "routing_weights_of",
]


def router_logits_of(hidden: Tensor, gate: nn.Linear) -> Tensor:
    """One number for each expert, over √D so that a step of Adam does not settle who is asked:
    [..., D] -> [..., N]."""
    return cast(Tensor, gate(hidden)) / math.sqrt(hidden.shape[-1])


def routing_weights_of(chosen: Tensor, config: Config) -> Tensor:
    """What the experts are multiplied with: the probabilities as they are, so that a single one has
    a gradient too."""
    return chosen


def perturbed(weight: Tensor, config: Config, generator: Generator) -> Tensor:
    """W + scale · |W| · N(0, 1) on the largest and the smallest of the weights, half of the
    sparsity each."""
    if weight.dim() < 2 or config.sparsity == 0:
        return weight
    tiers = tier_masks(weight, config.sparsity / 2)
    noise = torch.randn(weight.shape, generator=generator)
    return weight + config.perturbation_scale * weight.abs() * noise * (tiers.top | tiers.bottom)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingPieces:
    """The lines of routing that a fault may change."""

    router_logits_of: Callable[[Tensor, nn.Linear], Tensor] = router_logits_of
    routing_weights_of: Callable[[Tensor, Config], Tensor] = routing_weights_of
    balance_loss_of: Callable[[Tensor, Tensor], Tensor] = balance_loss_of
    perturbed: Callable[[Tensor, Config, Generator], Tensor] = perturbed


class Router(nn.Module):
    """Logits of the experts; they start close to even."""

    def __init__(self, config: Config, routing: RoutingPieces) -> None:
        super().__init__()
        self.config, self.routing = config, routing
        self.gate = nn.Linear(config.width, config.pool, bias=False)
        nn.init.normal_(self.gate.weight, std=0.1)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.routing.router_logits_of(hidden, self.gate)


class PrismaticRouter(Router):
    """The weights of the experts in each sample's merge, from the mean over its prompt: [B, P, D]
    -> [B, N]."""

    def forward(self, prompt: Tensor) -> Tensor:
        return self.routing.routing_weights_of(self.logits(prompt.mean(1)).softmax(-1), self.config)


class TopKRouter(Router):
    """Logits [S, N], and of the k chosen experts weights [S, k] and indices [S, k]: [S, D] -> the
    three."""

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = self.logits(hidden)
        chosen, indices = logits.softmax(-1).topk(self.config.top_k)
        return logits, self.routing.routing_weights_of(chosen, self.config), indices


class MergedExperts(nn.Module):
    """One feed-forward layer whose weights are merged from the experts', for the batch or for each
    sample."""

    def __init__(self, config: Config, routing: RoutingPieces, generator: Generator) -> None:
        super().__init__()
        self.per_sample, self.prompt = config.merge == "sample", config.prompt
        self.router = PrismaticRouter(config, routing)
        self.experts = nn.ModuleList([FeedForward(config.width)])
        for _ in range(1, config.pool):
            clone = copy.deepcopy(self.experts[0])
            for parameter in clone.parameters():
                parameter.data = routing.perturbed(parameter.data, config, generator)
            self.experts.append(clone)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T, D] -> [B, T, D], and no balance loss."""
        weights = self.router(x[:, : self.prompt])
        if self.per_sample:
            rows = x
        else:
            rows, weights = x.flatten(0, 1).unsqueeze(0), weights.mean(0, keepdim=True)
        experts = cast(Sequence[FeedForward], self.experts)
        hidden = gelu(merged_linear(rows, [expert.up for expert in experts], weights))
        out = merged_linear(hidden, [expert.down for expert in experts], weights)
        return out.view_as(x), x.new_zeros(())


def merged_linear(rows: Tensor, layers: Iterable[nn.Linear], weights: Tensor) -> Tensor:
    """x (Σ_e w_e W_e)' + Σ_e w_e b_e for each of M merges: [M, R, I], N layers, [M, N] -> [M, R,
    O]."""
    layers = list(layers)
    matrix = torch.einsum("mn,noi->mio", weights, torch.stack([layer.weight for layer in layers]))
    bias = weights @ torch.stack([layer.bias for layer in layers])
    return torch.baddbmm(bias.unsqueeze(1), rows, matrix)


class RoutedExperts(nn.Module):
    """Each character through its k experts, their outputs multiplied by the router's weights and
    added."""

    def __init__(self, config: Config, routing: RoutingPieces) -> None:
        super().__init__()
        self.top_k, self.balance_loss_of = config.top_k, routing.balance_loss_of
        self.router = TopKRouter(config, routing)
        self.experts = nn.ModuleList([FeedForward(config.width) for _ in range(config.pool)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T, D] -> [B, T, D], and the balance loss."""
        rows = x.flatten(0, 1)
        logits, weights, indices = self.router(rows)
        out = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            row, slot = (indices == number).nonzero(as_tuple=True)
            if len(row):  # an expert nobody was sent to is not run and gets no gradient
                out = out.index_add(0, row, expert(rows[row]) * weights[row, slot].unsqueeze(-1))
        return out.view_as(x), self.balance_loss_of(logits, indices)
