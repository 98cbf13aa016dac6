"""An attention model that walks from city to city, all rollouts of all instances at once.

Encoder: a transformer over the cities of an instance. Decoder: what it needs of a city (queries as
the first and as the present city, keys, values, pointer) is computed once; a step is then one
attention over the open cities and one product. Nothing couples two instances: there is no batch
normalisation, so an instance's gradient is its own.

Shapes: B instances, N cities, n rollouts of each, D the width, H heads. Reference: Kool et al.
(2019), Attention, Learn to Solve Routing Problems!; Kwon et al. (2020), POMO.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from gradiometer_labs.tsp.problem import TourProblem, check_instances

__all__ = ["Encoded", "TourPolicy", "TourRollouts", "Walk"]

LOGIT_RANGE = (
    10.0  # Bello et al. (2017): logits are 10 tanh(·), so that no city's probability vanishes
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """What the decoder knows of the cities."""

    first: Tensor
    """Query of a city as the one the rollout began at, [B, N, D]."""
    present: Tensor
    """Query of a city as the one the rollout is at, [B, N, D]."""
    keys: Tensor
    """[B, H, N, D/H]"""
    values: Tensor
    """[B, H, N, D/H]"""
    pointers: Tensor
    """[B, D, N]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TourRollouts:
    """What the policy did."""

    tours: Tensor
    """[B, n, T], the given start first."""
    reward: Tensor
    """[B, n]"""
    log_probs: Tensor
    """Of each choice, without the given start: [B, n, T - 1]."""
    entropies: Tensor
    """Of each choice, in nats, without gradient: [T - 1, B, n]; the last is 0, there is only one
    city left."""

    @property
    def log_likelihood(self) -> Tensor:
        """Of the tours, [B, n]."""
        return self.log_probs.sum(-1)

    @property
    def entropy(self) -> Tensor:
        """Mean over all choices but the last."""
        return self.entropies[:-1].mean()


def sampled(log_probs: Tensor, generator: Generator | None) -> Tensor:
    """A city of each row, drawn from π: [B, n, N] -> [B, n]."""
    return raced(log_probs, generator).argmax(-1)


def log_probs_of(log_probs: Sequence[Tensor], choices: Sequence[Tensor]) -> Tensor:
    """Of what was chosen, choice by choice: T - 1 times [B, n, N] and [B, n] -> [B, n, T - 1]."""
    pairs = zip(log_probs, choices, strict=True)
    return torch.stack(
        [each.gather(-1, choice.unsqueeze(-1)).squeeze(-1) for each, choice in pairs], -1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """The lines of a rollout that a fault may change."""

    sampled: Callable[[Tensor, Generator | None], Tensor] = sampled
    log_probs_of: Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor] = log_probs_of


class TourPolicy(nn.Module):
    """The policy for a problem, for any number of cities."""

    def __init__(
        self, problem: TourProblem, *, embed_dim: int, num_layers: int, num_heads: int
    ) -> None:
        super().__init__()
        self.problem = problem
        self.encoder = Encoder(problem.num_features, embed_dim, num_layers, num_heads)
        self.decoder = Decoder(embed_dim, num_heads)

    def forward(
        self,
        instances: Tensor,
        *,
        num_starts: int | None = None,
        generator: Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Sampled rollouts: reward [B, n] and log_likelihood [B, n], which has the gradient; n = N
        unless told.

        Without a generator the numbers come from torch's global one.
        """
        done = self.rollouts(instances, num_starts=num_starts, generator=generator)
        return done.reward, done.log_likelihood

    def instances(self, num: int, num_loc: int, generator: Generator | None = None) -> Tensor:
        """Instances of the problem, [num, num_loc, F], where the weights are."""
        return self.problem.generate(num, num_loc, generator).to(next(self.parameters()).device)

    def rollouts(
        self,
        instances: Tensor,
        *,
        num_starts: int | None = None,
        generator: Generator | None = None,
        greedy: bool = False,
        walk: Walk = Walk(),  # noqa: B008  # frozen
    ) -> TourRollouts:
        """One rollout from each start: sampled, or greedily the likeliest place each time."""
        problem = self.problem
        check_instances(problem, instances)
        num_loc = instances.shape[1]
        encoded = self.decoder.prepare(self.encoder(instances))
        present = problem.starts(instances, num_loc if num_starts is None else num_starts)
        closed = problem.closed(instances, present)
        first = queries(encoded.first, present)
        tour, policies, entropies = [present], [], []
        for _ in range(problem.num_choices(num_loc)):
            log_probs = self.decoder(encoded, first + queries(encoded.present, present), closed)
            policies.append(log_probs)
            entropies.append(entropy_of(log_probs.detach(), closed))
            present = log_probs.argmax(-1) if greedy else walk.sampled(log_probs, generator)
            closed = problem.close(closed, present)
            tour.append(present)
        tours = torch.stack(tour, -1)
        return TourRollouts(
            tours=tours,
            reward=problem.reward(instances, tours),
            log_probs=walk.log_probs_of(policies, tour[1:]),
            entropies=torch.stack(entropies),
        )

    def log_probs_of_tours(self, instances: Tensor, tours: Tensor) -> Tensor:
        """Of each choice that led to these tours, all at once: [B, N, F] and [B, n, T] -> [B, n, T
        - 1]."""
        problem = self.problem
        encoded = self.decoder.prepare(self.encoder(instances))
        num, num_rollouts, length = tours.shape
        steps = [problem.closed(instances, tours[..., 0])]
        for place in range(1, length - 1):
            steps.append(problem.close(steps[-1], tours[..., place]))
        closed = torch.stack(steps, 2).flatten(1, 2)
        first = queries(encoded.first, tours[..., :1].expand(-1, -1, length - 1).flatten(1))
        log_probs = self.decoder(
            encoded, first + queries(encoded.present, tours[..., :-1].flatten(1)), closed
        )
        chosen = log_probs.gather(-1, tours[..., 1:].reshape(num, -1, 1))
        return cast(Tensor, chosen.view(num, num_rollouts, length - 1))


class Encoder(nn.Module):
    """Places to vectors, [B, N, F] -> [B, N, D]."""

    def __init__(self, num_features: int, embed_dim: int, num_layers: int, num_heads: int) -> None:
        super().__init__()
        self.embed = nn.Linear(num_features, embed_dim)
        self.layers = nn.Sequential(
            *(EncoderLayer(embed_dim, num_heads) for _ in range(num_layers))
        )

    def forward(self, instances: Tensor) -> Tensor:
        return cast(Tensor, self.layers(self.embed(instances)))


class EncoderLayer(nn.Module):
    """Attention and two linear layers, each on the normalised input and added to it."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(embed_dim), nn.LayerNorm(embed_dim)
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=False)
        self.out = nn.Linear(embed_dim, embed_dim)
        self.mlp = nn.Sequential(
            nn.Linear(embed_dim, 4 * embed_dim), nn.ReLU(), nn.Linear(4 * embed_dim, embed_dim)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            heads(each, self.num_heads) for each in self.qkv(self.norm_attention(x)).chunk(3, -1)
        )
        attended = scaled_dot_product_attention(q, k, v)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return cast(Tensor, x + self.mlp(self.norm_mlp(x)))


class Decoder(nn.Module):
    """From vectors of cities and where a rollout is, to the log-probabilities of where it goes."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.norm = nn.LayerNorm(embed_dim)
        # The attention's output layer would meet the pointers with nothing but a product between:
        # it is in them
        self.project = nn.Linear(embed_dim, 5 * embed_dim, bias=False)

    def prepare(self, encoded: Tensor) -> Encoded:
        """All that depends on the cities alone, [B, N, D]."""
        first, present, keys, values, pointers = self.project(self.norm(encoded)).chunk(5, -1)
        return Encoded(
            first=first,
            present=present,
            keys=heads(keys, self.num_heads),
            values=heads(values, self.num_heads),
            pointers=pointers.transpose(1, 2).contiguous(),
        )

    def forward(self, encoded: Encoded, query: Tensor, closed: Tensor) -> Tensor:
        """log π of every city, −∞ where closed: [B, n, D], [B, n, N] -> [B, n, N]."""
        open_ones = ~closed.unsqueeze(1)
        glimpse = scaled_dot_product_attention(
            heads(query, self.num_heads), encoded.keys, encoded.values, attn_mask=open_ones
        )
        similarity = (
            glimpse.transpose(1, 2).flatten(2) @ encoded.pointers / math.sqrt(self.embed_dim)
        )
        logits = LOGIT_RANGE * similarity.tanh()
        # Closed again, so that a tour visits each city once even where weights are NaN
        return logits.masked_fill(closed, -math.inf).log_softmax(-1).masked_fill(closed, -math.inf)


def heads(x: Tensor, num_heads: int) -> Tensor:
    """[B, N, D] -> [B, H, N, D/H]."""
    return x.view(*x.shape[:-1], num_heads, -1).transpose(1, 2)


def queries(of_cities: Tensor, at: Tensor) -> Tensor:
    """The rows of the cities that the rollouts are at, [B, N, D] and [B, n] -> [B, n, D]."""
    return of_cities.gather(1, at.unsqueeze(-1).expand(-1, -1, of_cities.shape[-1]))


def raced(log_probs: Tensor, generator: Generator | None) -> Tensor:
    """log π − log E with E exponential: whose is largest is a sample of π."""
    device = log_probs.device if generator is None else generator.device
    noise = (
        torch.empty(log_probs.shape, device=device)
        .exponential_(generator=generator)
        .to(log_probs.device)
    )
    return log_probs.detach() - noise.log()


def entropy_of(log_probs: Tensor, closed: Tensor) -> Tensor:
    """H = −Σ π log π over the open cities, [B, n, N] -> [B, n]."""
    return -(log_probs.exp() * log_probs.masked_fill(closed, 0.0)).sum(-1)
