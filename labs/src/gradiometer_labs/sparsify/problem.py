"""Anisotropic diffusion on a square grid: the matrix, its graph, and what the network sees of it.

−∇·(Q diag(1, ε) Qᵀ ∇u) with Q the rotation by θ, zero on the boundary. With ε far from 1 an error
that relaxation leaves is smooth along one direction alone, and a coarse grid helps only if it
coarsens along that one.

Shapes: N rows of the matrix, D candidates of a row (its neighbours on the grid, fewer at the edge),
E = connections in all. Reference: Trottenberg, Oosterlee & Schüller (2001), Multigrid, chapter 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from pyamg.gallery import diffusion_stencil_2d, stencil_grid
from scipy.sparse import csr_array
from torch import Tensor

from gradiometer_labs.sparsify.config import ProblemConfig

__all__ = [
    "EDGE_FEATURES",
    "NODE_FEATURES",
    "DiffusionProblem",
    "Graph",
    "batch_of",
    "graph_of",
    "make_problems",
]

Array = np.ndarray[Any, np.dtype[Any]]

NEIGHBOURS = {
    8: ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1)),
    4: ((-1, 0), (0, -1), (0, 1), (1, 0)),
}
CPU = torch.device("cpu")
NODE_FEATURES = 2
EDGE_FEATURES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Who is connected with whom: the same for every problem of a size."""

    candidates: Tensor
    """The row each candidate leads to, 0 where there is none: [N, D]."""
    mask: Tensor
    """Which of them there are: [N, D]."""
    row: Tensor
    """Of each connection, [E]."""
    column: Tensor
    """[E]"""
    slot: Tensor
    """Its place among the N · D candidates, [E]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffusionProblem:
    """One matrix, and what the network sees of it."""

    grid_size: int
    degree: int
    matrix: csr_array
    """[N, N], symmetric and positive definite."""
    theta: float
    epsilon: float
    nodes: Tensor
    """[N, NODE_FEATURES]"""
    edges: Tensor
    """[E, EDGE_FEATURES]"""

    def graph(self, device: torch.device = CPU) -> Graph:
        """Its connections."""
        return graph_of(self.grid_size, self.degree, device)


@cache
def graph_of(grid_size: int, degree: int, device: torch.device = CPU) -> Graph:
    """The grid's connections, row by row in the order of NEIGHBOURS."""
    offsets = np.array(NEIGHBOURS[degree])
    at = np.stack(
        np.meshgrid(np.arange(grid_size), np.arange(grid_size), indexing="ij"), -1
    ).reshape(-1, 1, 2)
    there = at + offsets
    mask = ((there >= 0) & (there < grid_size)).all(-1)
    candidates = np.where(mask, there[..., 0] * grid_size + there[..., 1], 0)
    slot = np.flatnonzero(mask)
    return Graph(
        candidates=torch.from_numpy(candidates).to(device),
        mask=torch.from_numpy(mask).to(device),
        row=torch.from_numpy(slot // degree).to(device),
        column=torch.from_numpy(candidates.reshape(-1)[slot]).to(device),
        slot=torch.from_numpy(slot).to(device),
    )


def make_problems(
    config: ProblemConfig, number: int, rng: np.random.Generator
) -> list[DiffusionProblem]:
    """Angle and ε at random; with four neighbours the strong direction is one of the axes."""
    low, high = np.log(config.epsilon_min), np.log(config.epsilon_max)
    made = []
    for _ in range(number):
        angle, epsilon = rng.uniform(0, np.pi), float(np.exp(rng.uniform(low, high)))
        theta = float(angle) if config.degree == 8 else float(np.pi / 2 * (angle > np.pi / 2))
        made.append(make_problem(config, theta, epsilon))
    return made


def make_problem(config: ProblemConfig, theta: float, epsilon: float) -> DiffusionProblem:
    """The problem of one angle and ε."""
    stencil = diffusion_stencil_2d(epsilon, theta, type="FD")
    matrix = csr_array(stencil_grid(stencil, (config.grid_size, config.grid_size), format="csr"))
    graph = graph_of(config.grid_size, config.degree)
    around = np.array([stencil[1 + down, 1 + right] for down, right in NEIGHBOURS[config.degree]])
    entries = around[graph.slot.numpy() % config.degree]
    return DiffusionProblem(
        grid_size=config.grid_size,
        degree=config.degree,
        matrix=matrix,
        theta=theta,
        epsilon=epsilon,
        **_seen(graph, entries, matrix.diagonal()),
    )


def _seen(graph: Graph, entries: Array, diagonal: Array) -> dict[str, Tensor]:
    """Entries of the matrix, each relative to others of its row, for a solver does not know the
    problem's units."""
    row, size = graph.row.numpy(), np.abs(entries)
    largest, total = np.zeros(len(diagonal)), np.zeros(len(diagonal))
    np.maximum.at(largest, row, size)
    np.add.at(total, row, size)
    edges = np.stack([entries / largest[row], size / total[row], entries / diagonal[row]], -1)
    nodes = np.stack([largest / diagonal, graph.mask.numpy().mean(-1)], -1)
    return {"nodes": torch.from_numpy(nodes).float(), "edges": torch.from_numpy(edges).float()}


def batch_of(problems: list[DiffusionProblem], device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes [B, N, NODE_FEATURES] and edges [B, E, EDGE_FEATURES] of several problems."""
    return (
        torch.stack([problem.nodes for problem in problems]).to(device),
        torch.stack([problem.edges for problem in problems]).to(device),
    )
