"""A graph network over the rows of a matrix that scores each of their connections; plain torch, no
graph library.

Every problem of a batch has the same graph, so its messages are one `index_add` over the second
axis. Shapes: B problems, N rows, E connections, D candidates of a row, H the width. References:
Kipf & Welling (2017), GCN; Hamilton, Ying & Leskovec (2017), GraphSAGE; Xu et al. (2019), GIN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradiometer_labs.sparsify.config import GraphModelConfig
from gradiometer_labs.sparsify.problem import EDGE_FEATURES, NODE_FEATURES, Graph
from gradiometer_labs.sparsify.sampling import NEVER

__all__ = ["Backbone", "Scores", "SparsifyNet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What the network says of a batch of problems."""

    logits: Tensor
    """Of each candidate, NEVER where there is none: [B, N, D]."""
    values: Tensor | None
    """The reward it expects, [B]; None without a value head."""
    hidden: Tensor
    """What the heads see of each row, [B, N, H]."""


class SparsifyNet(nn.Module):
    """Rounds of message passing, a head that scores connections, and perhaps one that predicts the
    reward."""

    def __init__(
        self, config: GraphModelConfig, *, value_head: bool, sees_choices: bool = False
    ) -> None:
        super().__init__()
        self.gnn = Backbone(config)
        self.policy_head = PolicyHead(config.hidden_size)
        self.separate_value, width = config.separate_value, config.hidden_size
        self.sees_choices = sees_choices
        inputs = EDGE_FEATURES + sees_choices if config.separate_value else width
        self.value_head = ValueHead(inputs, width) if value_head else None

    def forward(self, nodes: Tensor, edges: Tensor, graph: Graph) -> Scores:
        """Scores of all candidates of all rows; nodes [B, N, ·] and edges [B, E, ·]."""
        hidden = self.gnn(nodes, edges, graph)
        scores = self.policy_head(hidden, edges, graph)
        rows, candidates = graph.mask.shape
        logits = scores.new_full((len(scores), rows * candidates), NEVER).index_copy(
            1, graph.slot, scores
        )
        values = None if self.value_head is None else self._values(edges, hidden)
        return Scores(logits=logits.unflatten(1, (rows, candidates)), values=values, hidden=hidden)

    def _values(self, edges: Tensor, hidden: Tensor) -> Tensor:
        """Before anything is chosen, [B]."""
        assert self.value_head is not None
        if self.sees_choices:
            return self.value_of(edges, edges.new_zeros(len(edges), 1, edges.shape[1])).squeeze(1)
        return self.value_head(edges if self.separate_value else hidden)  # type: ignore[no-any-return]

    def value_of(self, edges: Tensor, taken: Tensor) -> Tensor:
        """The reward it expects when these connections are taken, [B, R, E] -> [B, R]."""
        assert self.value_head is not None
        seen = edges.unsqueeze(1).expand(-1, taken.shape[1], -1, -1)
        both = torch.cat([seen, taken.unsqueeze(-1).to(seen)], -1)
        return self.value_head(both.flatten(0, 1)).view(taken.shape[:2])  # type: ignore[no-any-return]


class Backbone(nn.Module):
    """Rows hear of their neighbours, `num_layers` times; each round adds to what a row knew."""

    def __init__(self, config: GraphModelConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.embed = nn.Linear(NODE_FEATURES, width)
        self.rounds = nn.ModuleList(
            [CONVOLUTIONS[config.backbone](width) for _ in range(config.num_layers)]
        )

    def forward(self, nodes: Tensor, edges: Tensor, graph: Graph) -> Tensor:
        """[B, N, NODE_FEATURES] -> [B, N, H]."""
        hidden: Tensor = self.embed(nodes).tanh()
        for round_ in self.rounds:
            hidden = hidden + round_(hidden, edges, graph)
        return hidden


class GCN(nn.Module):
    """The sum over neighbours, each with the weight |a_ij| / Σ_j |a_ij| of its connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width)

    def forward(self, hidden: Tensor, edges: Tensor, graph: Graph) -> Tensor:
        """[B, N, H] -> [B, N, H]."""
        weight = edges[..., 1:2]
        heard = gathered(weight * hidden[:, graph.column], hidden, graph)
        return self.mix(heard).relu()  # type: ignore[no-any-return]


class GraphSAGE(nn.Module):
    """A row beside the mean of what its neighbours say over their connections."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.say = nn.Linear(width, width)
        self.over = nn.Linear(EDGE_FEATURES, width)
        self.mix = nn.Linear(2 * width, width)

    def forward(self, hidden: Tensor, edges: Tensor, graph: Graph) -> Tensor:
        """[B, N, H] -> [B, N, H]."""
        messages = (self.say(hidden)[:, graph.column] + self.over(edges)).relu()
        heard = gathered(messages, hidden, graph) / graph.mask.sum(-1, keepdim=True)
        return self.mix(torch.cat([hidden, heard], -1)).relu()  # type: ignore[no-any-return]


class GIN(nn.Module):
    """MLP((1 + ε) h_i + Σ_j relu(h_j + W e_ij)); the sum tells neighbourhoods apart that a mean
    does not."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.over = nn.Linear(EDGE_FEATURES, width)
        self.epsilon = nn.Parameter(torch.zeros(1))
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, hidden: Tensor, edges: Tensor, graph: Graph) -> Tensor:
        """[B, N, H] -> [B, N, H]."""
        messages = (hidden[:, graph.column] + self.over(edges)).relu()
        heard = gathered(messages, hidden, graph)
        return self.mlp((1 + self.epsilon) * hidden + heard)  # type: ignore[no-any-return]


CONVOLUTIONS: dict[str, Callable[[int], nn.Module]] = {
    "gcn": GCN,
    "graphsage": GraphSAGE,
    "gin": GIN,
}


class PolicyHead(nn.Module):
    """The score of a connection, from its two rows and its entry of the matrix; it starts near even
    odds."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.row = nn.Linear(width, width)
        self.column = nn.Linear(width, width, bias=False)
        self.edge = nn.Linear(EDGE_FEATURES, width, bias=False)
        self.out = nn.Linear(width, 1)
        nn.init.normal_(self.out.weight, std=0.1 / width**0.5)
        nn.init.zeros_(self.out.bias)

    def forward(self, hidden: Tensor, edges: Tensor, graph: Graph) -> Tensor:
        """[B, N, H], [B, E, ·] -> [B, E]."""
        both = self.row(hidden)[:, graph.row] + self.column(hidden)[:, graph.column]
        return self.out((both + self.edge(edges)).relu()).squeeze(-1)  # type: ignore[no-any-return]


class ValueHead(nn.Module):
    """The reward to expect of a problem, from the mean square of what it sees: its connections, or
    the trunk's rows.

    The entries of a row sum to nearly the same in every problem; how they spread is what tells
    problems apart.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.see = nn.Linear(inputs, width)
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, seen: Tensor) -> Tensor:
        """[B, ·, inputs] -> [B]."""
        pooled = self.norm((2 * self.see(seen)).tanh().square().mean(1))
        return self.out(self.inner(pooled).relu()).squeeze(-1)  # type: ignore[no-any-return]


def gathered(messages: Tensor, hidden: Tensor, graph: Graph) -> Tensor:
    """The sum of each row's messages, [B, E, H] -> [B, N, H]."""
    return torch.zeros_like(hidden).index_add(1, graph.row, messages)
