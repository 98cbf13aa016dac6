"""The policy: a small transformer over twelve tokens, dense or with experts.

Shapes: B sequences of T tokens, S = B·T of them, D the width, V tokens of the vocabulary, N
experts, k of them for a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradiometer_labs.bugs.config import Config
from gradiometer_labs.bugs.questions import VOCABULARY
from gradiometer_labs.transformer import Attention, FeedForward, balance_loss_of

__all__ = [
    "AnswerPolicy",
    "ModelPieces",
    "Output",
    "balance_loss_of",
    "mixed",
    "routing_weights_of",
    "wired",
]


def routing_weights_of(chosen: Tensor, config: Config) -> Tensor:
    """What the experts are multiplied with, [S, k]: the probabilities, made to sum to 1 where there
    are several."""
    return chosen / chosen.sum(-1, keepdim=True) if config.top_k > 1 else chosen


def wired(weights: Tensor, balance: Tensor, config: Config) -> Tensor:
    """The routing weights, with nothing attached to them: a balance loss is a term of the loss, or
    it is not there."""
    return weights


def mixed(rows: Tensor, weights: Tensor, indices: Tensor, experts: Iterable[nn.Module]) -> Tensor:
    """Each token through its k experts, their outputs times the routing weights and added: [S, D]
    -> [S, D]."""
    pool = list(experts)
    shares = weights.new_zeros(len(rows), len(pool)).scatter_add(1, indices, weights)
    # Every expert runs for every token, at a share of 0 where it was not chosen: with so few tokens
    # that is faster than a cut.
    return torch.stack([shares[:, [e]] * expert(rows) for e, expert in enumerate(pool)]).sum(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPieces:
    """The lines of the model that a fault may change."""

    routing_weights_of: Callable[[Tensor, Config], Tensor] = routing_weights_of
    wired: Callable[[Tensor, Tensor, Config], Tensor] = wired
    mixed: Callable[[Tensor, Tensor, Tensor, Iterable[nn.Module]], Tensor] = mixed


@dataclass(frozen=True, slots=True)
class Output:
    """What the policy says of sequences."""

    logits: Tensor
    """[B, T, V]"""
    hidden: Tensor
    """What the last layer makes them of, [B, T, D]."""
    balance: Tensor
    """The balance loss of the experts, the mean over layers that have them; 0 without experts."""


class Experts(nn.Module):
    """A router, and the feed-forward blocks that it chooses from."""

    def __init__(self, config: Config, routing: ModelPieces) -> None:
        super().__init__()
        self.config, self.routing = config, routing
        self.top_k, self.norm_topk_prob = config.top_k, config.top_k > 1
        self.router = nn.Linear(config.width, config.num_experts, bias=False)
        self.experts = nn.ModuleList([FeedForward(config.width) for _ in range(config.num_experts)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T, D] -> [B, T, D], and the balance loss."""
        rows = x.flatten(0, 1)
        logits = self.router(rows)
        chosen, indices = logits.softmax(-1).topk(self.config.top_k)
        balance = balance_loss_of(logits, indices)
        weights = self.routing.routing_weights_of(chosen, self.config)
        weights = self.routing.wired(weights, balance, self.config)
        return self.routing.mixed(rows, weights, indices, self.experts).view_as(x), balance


class AnswerLayer(nn.Module):
    """Attention and feed-forward, each on the normalised input and added to it."""

    def __init__(self, config: Config, routing: ModelPieces, *, dense: bool) -> None:
        super().__init__()
        self.norm_attention, self.norm_block = (
            nn.LayerNorm(config.width),
            nn.LayerNorm(config.width),
        )
        self.attention = Attention(config.width, config.num_heads)
        self.block: FeedForward | Experts
        self.block = FeedForward(config.width) if dense else Experts(config, routing)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """[B, T, D] -> [B, T, D], and the balance loss where there are experts."""
        x = x + self.attention(self.norm_attention(x))
        inside = self.norm_block(x)
        if isinstance(self.block, Experts):
            added, balance = self.block(inside)
            return x + added, balance
        return x + self.block(inside), None


class AnswerPolicy(nn.Module):
    """Tokens to the logits of the next one."""

    def __init__(self, config: Config, routing: ModelPieces) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, config.width)
        self.places = nn.Embedding(2 * config.max_digits + 4, config.width)
        # The first layer stays dense, as in DeepSeek's models
        dense = [not config.num_experts or number == 0 for number in range(config.num_layers)]
        self.layers = nn.ModuleList([AnswerLayer(config, routing, dense=each) for each in dense])
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Output:
        """[B, T] -> logits [B, T, V] and what belongs to them."""
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        balances = []
        for layer in self.layers:
            x, balance = layer(x)
            balances += [] if balance is None else [balance]
        hidden = self.norm(x)
        balance = torch.stack(balances).mean() if balances else x.new_zeros(())
        return Output(self.head(hidden), hidden, balance)
