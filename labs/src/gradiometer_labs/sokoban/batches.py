"""From levels to a batch that can be trained on: rollouts, filter, advantages. Training and
analysis go the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradiometer.maths.groups import reward_std
from gradiometer_labs.sokoban.learner import Learner
from gradiometer_labs.sokoban.levels import SokobanLevel, level_seeds
from gradiometer_labs.sokoban.pieces import Pieces
from gradiometer_labs.sokoban.rewards import last_chosen, paid
from gradiometer_labs.sokoban.rollout import Rows, SokobanPurpose, generator_for, play_games, select
from gradiometer_labs.sokoban.update import log_probs_in_parts, values_in_parts

__all__ = ["Batch", "batch_of", "permuted_advantages", "rollouts", "scored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What was played, what the filter kept of it, and what the groups were worth."""

    played: Rows
    kept: Rows
    """With advantages, and what else the losses need."""
    index: Tensor
    """Which of the played games they are."""
    num_groups: int
    num_kept: int
    zero_variance: float
    """The share of groups whose rewards are all equal."""
    reward_std: float
    """Of the rewards within a group, the mean over groups."""


def rollouts(
    learner: Learner,
    pieces: Pieces,
    purpose: SokobanPurpose,
    step: int,
    *,
    env_groups: int,
    group_size: int,
) -> Rows:
    """Games of the actor as it is, and what they were paid."""
    levels = _levels(pieces, purpose, step, env_groups)
    generator = generator_for(pieces.config, purpose, step, learner.actor.device)
    played = play_games(
        learner.actor,
        learner.dialogue,
        levels,
        group_size=group_size,
        pieces=pieces,
        generator=generator,
    )
    return paid(played, pieces)


def _levels(
    pieces: Pieces, purpose: SokobanPurpose, step: int, count: int
) -> Sequence[SokobanLevel]:
    """Validation plays the same levels at every step, and those of the game whatever is trained
    on."""
    env, seed = pieces.config.env, pieces.config.seed
    if purpose is SokobanPurpose.VALIDATION:
        return [env.level(each) for each in level_seeds(seed, purpose, 0, count=count)]
    return pieces.levels_of(env, level_seeds(seed, purpose, step, count=count))


def batch_of(
    learner: Learner,
    pieces: Pieces,
    purpose: SokobanPurpose,
    step: int,
    *,
    env_groups: int,
    group_size: int,
) -> Batch:
    """Rolled out, filtered, scored."""
    played = rollouts(learner, pieces, purpose, step, env_groups=env_groups, group_size=group_size)
    groups = reward_std(played["rewards"].cpu().numpy(), played["groups"].cpu().numpy())
    rollout_filter = pieces.config.actor_rollout_ref.rollout.rollout_filter
    chosen = rollout_filter.select(rollout_filter.scores_of(groups))
    index = torch.from_numpy(np.flatnonzero(np.isin(groups.index, chosen))).to(
        played["tokens"].device
    )
    return Batch(
        played=played,
        kept=scored(select(played, index), learner, pieces),
        index=index,
        num_groups=len(groups.ids),
        num_kept=len(chosen),
        zero_variance=float(np.mean(groups.scores <= 1e-10)),
        reward_std=float(np.mean(groups.scores)),
    )


def scored(rows: Rows, learner: Learner, pieces: Pieces) -> Rows:
    """With advantages [N, T]; with values and returns if there is a critic, and the reference's log
    π if the loss asks."""
    if len(rows["tokens"]) == 0:
        return rows
    rows = dict(rows)
    if pieces.config.actor_rollout_ref.actor.use_kl_loss:
        rows["ref_log_probs"] = log_probs_in_parts(learner.reference, rows, pieces)
    if learner.critic is not None:
        rows["values"] = values_in_parts(learner.critic, rows, pieces)
        rows["returns"] = rows["values"] + _raw_advantages(rows, rows["token_rewards"], pieces)
    rows["advantages"] = _advantages(rows, rows["token_rewards"], pieces)
    return rows


def permuted_advantages(rows: Rows, order: Tensor, pieces: Pieces) -> Rows:
    """What the advantages would be, had game i been paid in all what game `order[i]` was paid.

    The difference is settled at its last token; when in the game the rest was paid stays as it was,
    or the null would differ from the task where no reward does.
    """
    settled = (rows["rewards"][order] - rows["rewards"]).unsqueeze(-1)
    token_rewards = rows["token_rewards"].scatter_add(-1, last_chosen(rows["mask"]), settled)
    return {"advantages": _advantages(rows, token_rewards, pieces)}


def _advantages(rows: Rows, token_rewards: Tensor, pieces: Pieces) -> Tensor:
    """As the loss takes them, [N, T]."""
    algorithm = pieces.config.algorithm
    if algorithm.adv_estimator == "gae":
        return pieces.normalised(_raw_advantages(rows, token_rewards, pieces), rows["mask"])
    compared = pieces.group_advantages(
        token_rewards.sum(-1), rows["groups"], by_std=algorithm.norm_adv_by_std_in_grpo
    )
    return compared.unsqueeze(-1) * rows["mask"]


def _raw_advantages(rows: Rows, token_rewards: Tensor, pieces: Pieces) -> Tensor:
    algorithm = pieces.config.algorithm
    return pieces.advantages_of(
        token_rewards, rows["values"], rows["mask"], gamma=algorithm.gamma, lam=algorithm.lam
    )
