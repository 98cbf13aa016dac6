"""REINFORCE (Williams 1992) or PPO for the strong connections of multigrid, watched by a meter:
read from top to bottom.

An update takes problems, draws k connections of each row several times, has multigrid measured on
each choice, and follows E[Â ∇log π]. Everything random in update u comes from (seed, purpose, u).

Shapes: B problems, R rollouts of each, N rows, D candidates of a row, k choices.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import gradiometer as gm
from gradiometer_labs import faults
from gradiometer_labs.config import torch_device
from gradiometer_labs.control import CONTROL_SEED, ControlRewards
from gradiometer_labs.sparsify.baseline import Baseline, RunningScale
from gradiometer_labs.sparsify.config import (
    Config,
    CurriculumConfig,
    ProblemConfig,
    SolverConfig,
    TrainingProgress,
)
from gradiometer_labs.sparsify.gae import ChoiceSteps, log_probs_by_step, values_by_step
from gradiometer_labs.sparsify.model import Scores, SparsifyNet
from gradiometer_labs.sparsify.observer import Observer
from gradiometer_labs.sparsify.pieces import Pieces
from gradiometer_labs.sparsify.problem import graph_of
from gradiometer_labs.sparsify.report import EpochReport
from gradiometer_labs.sparsify.rollout import (
    Rollouts,
    SparsifyPurpose,
    collect,
    generator_for,
    make_solvers,
    random_reward,
    rule_reward,
    sampled_reward,
    solvers_at,
)
from gradiometer_labs.sparsify.sampling import largest_entropy
from gradiometer_labs.sparsify.solver import Solver
from gradiometer_labs.watching import watched
from gradiometer_labs.weights import load_weights

__all__ = ["Config", "Pieces", "Result", "TrainingProgress", "train"]

RECENT = 10
"""Updates whose mean reward is reported."""
CONTROL = (16, 64)
"""Problems that the random policy and the rule are measured on: at least, at most."""
CONTROL_ROWS = 65_536
"""Rows that these have together, in between."""
LOGGED = {"policy": "policy_loss", "entropy": "entropy", "value": "value_loss"}
"""From a term of the loss to its name in the catalogue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How the training ended."""

    mean_return: float
    """Mean reward of the last 10 updates."""
    episodes: int
    """Choices that were measured to train on."""
    steps: int
    entropy: float
    """Of a row's ordered choice at the last update, in nats."""
    largest_entropy: float
    """The same of even odds."""
    explained_variance: float
    """Of the baseline over the last rewards; NaN where that is not defined."""
    epoch_rewards: list[float]
    """The mean reward of each whole epoch."""
    control: ControlRewards
    """What a policy of even odds earns, and what the rule of two lines does: each row keeps its
    largest entries."""
    validation: float
    """On problems nobody trained on; NaN without them."""
    run: Path | None
    model: SparsifyNet


def losses_of(
    model: SparsifyNet, rollouts: Rollouts, temperature: float, pieces: Pieces
) -> dict[str, Tensor]:
    """The terms of the loss of one forward pass, before coefficients: policy, entropy, and value
    where it is learned."""
    config = pieces.config
    scored = model(rollouts.nodes, rollouts.edges, rollouts.graph)
    entropy = pieces.entropy_of(scored.logits, config.k, temperature).mean()
    if rollouts.steps is not None:
        policy, value = losses_by_step(model, rollouts, rollouts.steps, scored, temperature, pieces)
        return {"policy": policy, "entropy": entropy, "value": value}
    log_probs = pieces.log_prob_of(scored.logits, rollouts.choices, temperature)
    policy = pieces.policy_loss_of(
        log_probs, rollouts.sampled_log_probs, rollouts.advantages, config
    )
    losses = {"policy": policy, "entropy": entropy}
    if scored.values is not None:
        losses["value"] = pieces.value_loss_of(scored.values, rollouts.targets)
    return losses


def losses_by_step(
    model: SparsifyNet,
    rollouts: Rollouts,
    steps: ChoiceSteps,
    scored: Scores,
    temperature: float,
    pieces: Pieces,
) -> tuple[Tensor, Tensor]:
    """Policy and value loss where each choice has an advantage of its own."""
    log_probs = log_probs_by_step(pieces.log_prob_of, scored.logits, rollouts.choices, temperature)
    each = zip(log_probs, steps.log_probs, steps.advantages.unbind(-1), strict=True)
    policy = [pieces.policy_loss_of(new, old, adv, pieces.config) for new, old, adv in each]
    values = values_by_step(model, rollouts.edges, rollouts.choices, rollouts.graph)
    value = pieces.value_loss_of(values.flatten(), steps.targets.flatten().unsqueeze(1))
    return torch.stack(policy).sum(), value


def step_on(
    model: SparsifyNet,
    optimizer: torch.optim.Optimizer,
    meter: gm.Meter,
    batches: list[Rollouts],
    temperature: float,
    pieces: Pieces,
) -> dict[str, float]:
    """One optimizer step, its gradient averaged over the forward passes; returns losses and
    norms."""
    config = pieces.config
    weights = {"policy": 1.0, "entropy": -config.entropy_coef, "value": config.vf_coef}
    found: list[dict[str, Tensor]] = []
    optimizer.zero_grad()
    for rollouts in batches:
        losses = losses_of(model, rollouts, temperature, pieces)
        terms: dict[str, Any] = {
            name: pieces.averaged(weights[name] * loss, config) for name, loss in losses.items()
        }
        with meter.terms(**terms) as loss:  # their sum
            loss.backward()  # type: ignore[no-untyped-call]
        found.append({name: loss.detach() for name, loss in losses.items()})
    total = float(nn.utils.get_total_norm(gradients(model)))
    if config.grad_clip:
        nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
    optimizer.step()
    norms = {
        "total_grad_norm": total,
        "clipped_grad_norm": float(nn.utils.get_total_norm(gradients(model))),
        "policy_grad_norm": float(nn.utils.get_total_norm(gradients(model.policy_head))),
        "gnn_grad_norm": float(nn.utils.get_total_norm(gradients(model.gnn))),
    }
    means = {
        LOGGED[name]: float(torch.stack([each[name] for each in found]).mean()) for name in found[0]
    }
    return means | norms


def gradients(module: nn.Module) -> list[Tensor]:
    """Those there are."""
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


@torch.no_grad()
def log_ratios(
    model: SparsifyNet, rollouts: Rollouts, temperature: float, pieces: Pieces
) -> Tensor:
    """log π_after − log π_before of each row's choices, as the loss has them: [B, R, N]."""
    logits = model(rollouts.nodes, rollouts.edges, rollouts.graph).logits
    return pieces.log_prob_of(logits, rollouts.choices, temperature) - rollouts.log_probs


class SparsifyTraining:
    """The state of one training, and what it does in an update."""

    def __init__(self, pieces: Pieces) -> None:
        config = self.config = pieces.config
        self._pieces = pieces
        torch.manual_seed(config.seed)
        self.model = SparsifyNet(
            config.model,
            value_head=config.baseline.type == "learned",
            sees_choices=config.gae.lam is not None,
        )
        self.model.to(torch_device(config.device))
        load_weights(self.model, config.start)
        self.optimizer = torch.optim.Adam(
            pieces.parameters_of(self.model), lr=config.learning_rate, eps=1e-5
        )
        self.solvers = self.solvers_of(config.problem.grid_size)
        self._smaller: dict[int, list[Solver]] = {}
        self._unseen = make_solvers(config, SparsifyPurpose.VALIDATION, config.val_size)
        self._baseline, self._scale, self._observer = (
            Baseline(config.baseline),
            RunningScale(),
            Observer(),
        )

    def solvers_of(self, grid_size: int) -> list[Solver]:
        """The problems of that size that are trained on; angles and ε are the same on every
        grid."""
        problem = dataclasses.replace(self.config.problem, grid_size=grid_size)
        config = dataclasses.replace(self.config, problem=problem, curriculum=CurriculumConfig())
        return make_solvers(config, SparsifyPurpose.PROBLEMS, problem.num_samples)

    def _solvers_at(self, number: int) -> list[Solver]:
        """Of the stage of the curriculum that update `number` belongs to."""
        size = self.config.grid_size_at(number)
        if size == self.config.problem.grid_size:
            return self.solvers
        if size not in self._smaller:
            self._smaller = {size: self.solvers_of(size)}  # those of the stage before go
        return self._smaller[size]

    def update(self, number: int, meter: gm.Meter) -> tuple[dict[str, Any], dict[str, float]]:
        """Collect, learn, look back; returns what to log, and what the report adds to it."""
        config, pieces, model = self.config, self._pieces, self.model
        temperature = config.temperature.at(number // config.updates_per_epoch)
        generator = generator_for(config, SparsifyPurpose.CHOICES, number)
        batches = [
            collect(model, solvers, self._baseline, self._scale, temperature, generator, pieces)
            for solvers in solvers_at(number, self._solvers_at(number), config)
        ]
        passes = config.ppo.epochs if config.algorithm == "ppo" else 1
        steps = [
            step_on(model, self.optimizer, meter, batches, temperature, pieces)
            for _ in range(passes)
        ]
        means = {name: float(np.mean([step[name] for step in steps])) for name in steps[0]}
        ratios = [log_ratios(model, each, temperature, pieces) for each in batches]
        logged = self._observer.see(batches, ratios, config)
        logged |= {name: means.pop(name) for name in LOGGED.values() if name in means}
        spread = float(logged["advantages"].std()) if logged["advantages"].numel() > 1 else np.nan
        return logged, means | {"temperature": temperature, "advantage_std": spread}

    def validate(self, number: int) -> float:
        """The policy's reward on problems nobody trains on, after update `number`; NaN without
        them."""
        temperature = self.config.temperature.at(number // self.config.updates_per_epoch)
        return sampled_reward(self.model, self._unseen, temperature, self.config)


@cache
def control_of(problem: ProblemConfig, solver: SolverConfig, k: int) -> ControlRewards:
    """On problems of the same kind as those that are trained on."""
    config = Config(seed=CONTROL_SEED, problem=problem, solver=solver, k=k, batch_size=1)
    number = np.clip(CONTROL_ROWS // config.problem.grid_size**2, *CONTROL)
    solvers = make_solvers(config, SparsifyPurpose.CONTROL, int(number))
    return ControlRewards(
        random_reward=random_reward(config, solvers),
        baseline_reward=rule_reward(config, solvers),
        rule="Largest entries",
    )


def train(config: Config, progress: Callable[[TrainingProgress], None] | None = None) -> Result:
    """Train from scratch or from `start`; all that is random comes from `config.seed`."""
    pieces = faults.apply(config.fault, "sparsify", Pieces(config=config))
    training, config = SparsifyTraining(pieces), pieces.config
    control = control_of(config.problem, config.solver, config.k)
    progress = control.announced(progress)
    even = largest_entropy(graph_of(config.problem.grid_size, config.problem.degree).mask, config.k)
    report, recent = EpochReport(largest_entropy=even), deque[float](maxlen=RECENT)
    notes: tuple[str, ...] = ()
    children = training.model.named_children()
    blocks = {name: f"^{name}" for name, module in children if module is not None}
    with watched(
        training.model, training.optimizer, config, facts=control.facts, blocks=blocks
    ) as meter:
        for number in range(config.updates):
            meter.at(rollout=number, epoch=number // config.updates_per_epoch)
            logged, diagnostics = training.update(number, meter)
            report.add({**logged, **diagnostics})
            recent.append(logged["reward"])
            if (number + 1) % config.updates_per_epoch == 0:
                validation = training.validate(number)
                notes += report.end_epoch(validation)
                logged |= {} if np.isnan(validation) else {"val/reward": validation}
            meter.log(logged, learning_rate=config.learning_rate)
            if progress is not None:
                mean_return = float(np.mean(recent))
                progress(
                    TrainingProgress(
                        done=number + 1, total=config.updates, mean_return=mean_return, notes=notes
                    )
                )
            notes = ()
    return Result(
        mean_return=float(np.mean(recent)),
        episodes=config.updates * config.problems_per_update * config.rollouts,
        steps=config.updates,
        entropy=logged["entropy"],
        largest_entropy=even,
        explained_variance=logged.get("explained_variance", np.nan),
        epoch_rewards=report.rewards,
        control=control,
        validation=training.validate(number),
        run=meter.run,
        model=training.model,
    )
