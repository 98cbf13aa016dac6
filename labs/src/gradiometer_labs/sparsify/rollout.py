"""From a policy and problems to choices, rewards and advantages.

Shapes: B problems, R rollouts of each, N rows, D candidates of a row, k choices.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from torch import Generator, Tensor

from gradiometer.maths import scores
from gradiometer_labs.sparsify import sampling
from gradiometer_labs.sparsify.baseline import Baseline, RunningScale
from gradiometer_labs.sparsify.config import Config
from gradiometer_labs.sparsify.gae import (
    ChoiceSteps,
    log_probs_by_step,
    steps_of,
    values_by_step,
)
from gradiometer_labs.sparsify.model import SparsifyNet
from gradiometer_labs.sparsify.pieces import Pieces
from gradiometer_labs.sparsify.problem import Graph, batch_of, make_problems
from gradiometer_labs.sparsify.solver import Solver
from gradiometer_labs.streams import generator_of, seed_of

__all__ = [
    "Rollouts",
    "SparsifyPurpose",
    "collect",
    "generator_for",
    "greedy_reward",
    "make_solvers",
    "random_reward",
    "rule_reward",
    "sampled_reward",
    "solvers_at",
]

SCORED = 512
"""Rows of an update that score_z looks at."""


class SparsifyPurpose(IntEnum):
    """What a random number is drawn for: each has its own stream."""

    PROBLEMS = 1
    VALIDATION = 2
    ORDER = 3
    CHOICES = 4
    CONTROL = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """What the policy chose for the problems of one forward pass, and what came of it."""

    graph: Graph
    nodes: Tensor
    edges: Tensor
    choices: Tensor
    """[B, R, N, k]"""
    sampled_log_probs: Tensor
    """As the sampler has them, [B, R, N]."""
    log_probs: Tensor
    """As the loss has them, with the same weights: [B, R, N]."""
    rewards: Tensor
    """[B, R]"""
    targets: Tensor
    """[B, R]"""
    expected: Tensor
    """The baseline that was subtracted, [B, R]."""
    expected_before: Tensor
    """The baseline as it was before it saw these rewards, [B, R]."""
    advantages: Tensor
    """[B, R], [B, R, N] where rows have credit of their own, [B, R, k] where choices have."""
    values: Tensor | None
    """[B]"""
    steps: ChoiceSteps | None
    """Where single choices have advantages of their own."""
    score_z: float | None
    """Whether ∇log π, as the loss has it, has mean zero over these choices; see maths/scores.py.
    None without a gradient."""


def generator_for(config: Config, purpose: SparsifyPurpose, step: int = 0) -> Generator:
    """The random numbers of one purpose at one step, the same on every device."""
    return generator_of(config.seed, purpose, step)


def make_solvers(config: Config, purpose: SparsifyPurpose, number: int) -> list[Solver]:
    """Problems with their solvers, made once: only choices change while training."""
    rng = np.random.default_rng(seed_of(config.seed, purpose, 0))
    problems = make_problems(config.problem, number, rng)
    return [Solver(problem, config.solver, config.credit) for problem in problems]


def solvers_at(step: int, solvers: list[Solver], config: Config) -> list[list[Solver]]:
    """The problems of update `step`, a list for each forward pass; every epoch has its own
    order."""
    epoch, place = divmod(step, config.updates_per_epoch)
    order = torch.randperm(
        len(solvers), generator=generator_for(config, SparsifyPurpose.ORDER, epoch)
    ).tolist()
    first, size = place * config.problems_per_update, config.batch_size
    starts = range(first, first + config.problems_per_update, size)
    return [[solvers[i] for i in order[start : start + size]] for start in starts]


@torch.no_grad()
def collect(
    model: SparsifyNet,
    solvers: list[Solver],
    baseline: Baseline,
    scale: RunningScale,
    temperature: float,
    generator: Generator,
    pieces: Pieces,
) -> Rollouts:
    """R choices for each problem, what they earned, and how much better that is than expected."""
    config, graph = pieces.config, _graph(model, solvers)
    nodes, edges = batch_of([solver.problem for solver in solvers], graph.mask.device)
    scored = model(nodes, edges, graph)
    choices, sampled_log_probs = pieces.draw(
        scored.logits, config.k, temperature, config.rollouts, generator
    )
    earned = pieces.rewards_of(solvers, columns_of(choices, graph))
    rewards = earned.rewards.to(graph.mask.device)
    targets = pieces.targets_of(rewards, scale, config)
    before = baseline.expected(targets, scored.values)
    expected = pieces.expected_of(baseline, targets, scored.values)
    advantages = baseline.normalised(targets - expected)
    if earned.credits is not None:
        credits = earned.credits.to(graph.mask.device)
        advantages = pieces.row_advantages_of(credits, advantages, config)
    steps = None
    if config.gae.lam is not None:
        steps = steps_of(
            targets,
            values_by_step(model, edges, choices, graph),
            log_probs_by_step(pieces.log_prob_of, scored.logits, choices, temperature),
            config.gae,
            baseline.normalised,
        )
        advantages = steps.advantages
    return Rollouts(
        graph=graph,
        nodes=nodes,
        edges=edges,
        choices=choices,
        sampled_log_probs=sampled_log_probs,
        log_probs=pieces.log_prob_of(scored.logits, choices, temperature),
        rewards=rewards,
        targets=targets,
        expected=expected,
        expected_before=before,
        advantages=advantages,
        values=scored.values,
        steps=steps,
        score_z=score_z_of(scored.logits, scored.hidden, choices, temperature, pieces),
    )


@torch.enable_grad()
def score_z_of(
    logits: Tensor, hidden: Tensor, choices: Tensor, temperature: float, pieces: Pieces
) -> float | None:
    """Of the log-probs as the loss has them: a row's residual is their derivative by its logits,
    its features are `hidden`."""
    rollouts = choices.flatten(0, 1).unsqueeze(1)  # each with logits of its own
    own = logits.repeat_interleave(choices.shape[1], 0).requires_grad_()
    log_prob = pieces.log_prob_of(own, rollouts, temperature).sum()
    if not log_prob.requires_grad:
        return None
    (residuals,) = torch.autograd.grad(log_prob, own)
    features = hidden.repeat_interleave(choices.shape[1], 0)
    every = -(-residuals.shape[:2].numel() // SCORED)
    return scores.score_z(residuals.flatten(0, 1)[::every], features.flatten(0, 1)[::every])


def columns_of(choices: Tensor, graph: Graph) -> Tensor:
    """From a place among a row's candidates to the column of the matrix, [B, R, N, k]."""
    return graph.candidates.expand(*choices.shape[:2], -1, -1).gather(-1, choices)


@torch.no_grad()
def sampled_reward(
    model: SparsifyNet, solvers: list[Solver], temperature: float, config: Config
) -> float:
    """The policy's mean reward, one choice of each problem, as the solver itself has it; NaN
    without problems."""
    if not solvers:
        return float("nan")
    # the same luck each time: what changes is the policy
    generator = generator_for(config, SparsifyPurpose.VALIDATION)
    choices, _ = sampling.draw(_logits(model, solvers), config.k, temperature, 1, generator)
    return _mean_reward(solvers, choices, _graph(model, solvers))


@torch.no_grad()
def greedy_reward(model: SparsifyNet, solvers: list[Solver], config: Config) -> float:
    """The same of the likeliest choices."""
    choices = _logits(model, solvers).topk(config.k, dim=-1).indices.unsqueeze(1)
    return _mean_reward(solvers, choices, _graph(model, solvers))


def _logits(model: SparsifyNet, solvers: list[Solver]) -> Tensor:
    """Of one problem after the other: large grids need much memory. [B, N, D]"""
    graph = _graph(model, solvers)
    inputs = [batch_of([solver.problem], graph.mask.device) for solver in solvers]
    return torch.cat([model(nodes, edges, graph).logits for nodes, edges in inputs])


def random_reward(config: Config, solvers: list[Solver]) -> float:
    """The control: what even odds earn, one choice of each problem."""
    graph = solvers[0].problem.graph()
    even = (
        torch.zeros(graph.mask.shape)
        .masked_fill(~graph.mask, sampling.NEVER)
        .expand(len(solvers), -1, -1)
    )
    choices, _ = sampling.draw(
        even, config.k, 1.0, 1, generator_for(config, SparsifyPurpose.CONTROL)
    )
    return _mean_reward(solvers, choices, graph)


def rule_reward(config: Config, solvers: list[Solver]) -> float:
    """The rule to beat: each row keeps its k largest entries."""
    graph = solvers[0].problem.graph()
    sizes = torch.stack([solver.problem.edges[:, 0].abs() for solver in solvers])
    scores = sizes.new_full((len(solvers), graph.mask.numel()), sampling.NEVER)
    scores = scores.index_copy(1, graph.slot, sizes).view(-1, *graph.mask.shape)
    return _mean_reward(solvers, scores.topk(config.k, dim=-1).indices.unsqueeze(1), graph)


def _mean_reward(solvers: list[Solver], choices: Tensor, graph: Graph) -> float:
    columns = columns_of(choices, graph).cpu().numpy()
    rewards = [
        solver.reward(choice)
        for solver, drawn in zip(solvers, columns, strict=True)
        for choice in drawn
    ]
    return float(np.mean(rewards))


def _graph(model: SparsifyNet, solvers: list[Solver]) -> Graph:
    return solvers[0].problem.graph(next(model.parameters()).device)
