"""k of a row's candidates, in order and without putting back (Plackett and Luce), with exact
probabilities.

    π(a_1 … a_k) = Π_t exp(l_{a_t}/τ) / Σ_{j not yet taken} exp(l_j/τ)

Adding independent Gumbel noise to l/τ and taking the k largest draws exactly from it. Shapes: B
problems, R rollouts, N rows, D candidates, k choices. A candidate that is not there has the logit
NEVER. Reference: Kool, van Hoof & Welling (2019), Stochastic Beams and Where to Find Them.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

__all__ = ["NEVER", "draw", "entropy_of", "gumbel", "largest_entropy", "log_prob_of"]

NEVER = -1e9
"""Minus infinity that can be multiplied by a probability of zero."""


@torch.no_grad()
def draw(
    logits: Tensor, k: int, temperature: float, rollouts: int, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Ordered choices [B, R, N, k] from logits [B, N, D], and how likely the sampler says they are,
    [B, R, N]."""
    choices = (
        (logits.unsqueeze(1) / temperature + gumbel(logits, rollouts, generator))
        .topk(k, dim=-1)
        .indices
    )
    return choices, log_prob_of(logits, choices, temperature)


def gumbel(logits: Tensor, rollouts: int, generator: Generator) -> Tensor:
    """−ln(−ln u) for each candidate of each rollout, [B, R, N, D]; the same random numbers on every
    device."""
    problems, rows, candidates = logits.shape
    uniform = torch.rand(problems, rollouts, rows, candidates, generator=generator).clamp_(
        1e-12, 1 - 1e-7
    )
    return -(-uniform.log()).log().to(logits.device)


def log_prob_of(logits: Tensor, choices: Tensor, temperature: float) -> Tensor:
    """Of each row's ordered choices: logits [B, N, D], choices [B, R, N, k] -> [B, R, N]."""
    # log π = Σ_t [l_{a_t}/τ - logsumexp over what is left of l/τ]
    left = (logits / temperature).unsqueeze(1).expand(*choices.shape[:-1], logits.shape[-1])
    total = left.new_zeros(choices.shape[:-1])
    for chosen in choices.unbind(-1):
        total = total + left.log_softmax(-1).gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
        left = left.scatter(-1, chosen.unsqueeze(-1), NEVER)
    return total


def entropy_of(logits: Tensor, k: int, temperature: float) -> Tensor:
    """Of each row's ordered choice of k, exactly, in nats: [B, N, D] -> [B, N]."""
    return _entropy(logits / temperature, k)


def _entropy(logits: Tensor, k: int) -> Tensor:
    # H_k(S) = H(first choice from S) + Σ_i p_i H_{k-1}(S without i)
    log_probs = logits.log_softmax(-1)
    probs = log_probs.exp()
    first = -(probs * log_probs).sum(-1)
    if k == 1:
        return first
    taken = torch.eye(logits.shape[-1], dtype=torch.bool, device=logits.device)
    without = logits.unsqueeze(-2).masked_fill(taken, NEVER)  # [..., D, D]: row i lacks candidate i
    return first + (probs * _entropy(without, k - 1)).sum(-1)


def largest_entropy(mask: Tensor, k: int) -> float:
    """The mean over rows of ln(d!/(d−k)!), the entropy of even odds among d candidates: [N, D] ->
    nats."""
    degrees = mask.sum(-1).tolist()
    return sum(math.lgamma(d + 1) - math.lgamma(d - k + 1) for d in degrees) / len(degrees)
