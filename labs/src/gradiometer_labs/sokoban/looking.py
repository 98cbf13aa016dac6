"""What a batch says about the policy gradient before and after the update on it; looked at without
a gradient.

Shapes: N rollouts of T tokens, V words, H numbers of the last hidden state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gradiometer.maths.losses import token_log_probs
from gradiometer.maths.scores import reward_gain, score_z
from gradiometer_labs.sokoban.pieces import Pieces
from gradiometer_labs.sokoban.rollout import Rows
from gradiometer_labs.sokoban.update import in_micro_batches

__all__ = ["RolloutCheck", "agreement", "gain_of", "look"]

SCORED = 1024
"""Tokens of a micro-batch whose scores are looked at, at most: there is a number for each word of
the vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutCheck:
    """What the policy that is trained says of the rollouts."""

    log_probs: Tensor
    """As the losses have them, [N, T]; 0 where no token was chosen."""
    score_z: float
    """Of the tokens as the losses have them."""


@torch.no_grad()
def look(actor: PreTrainedModel, rows: Rows, pieces: Pieces) -> RolloutCheck:
    """One more forward pass over the rollouts."""
    settings = pieces.config.actor_rollout_ref
    log_probs = torch.zeros_like(rows["old_log_probs"])
    residuals, features = [], []
    numbered = {**rows, "row": torch.arange(len(log_probs), device=log_probs.device)}
    for part in in_micro_batches(numbered, settings.actor.ppo_micro_batch_size_per_gpu):
        output = actor(input_ids=part["tokens"][:, :-1], use_cache=False, output_hidden_states=True)
        logits = output.logits.float() / settings.rollout.temperature
        labels, chosen = pieces.labels_of(part["tokens"]), part["mask"][:, 1:] > 0
        placed = nn.functional.pad(token_log_probs(logits, labels) * chosen, (1, 0))
        log_probs[part["row"], : placed.shape[1]] = placed
        every = -(-int(chosen.sum()) // SCORED)
        policy = logits[chosen][::every].softmax(-1)
        said = nn.functional.one_hot(labels[chosen][::every], policy.shape[-1])
        residuals.append(said - policy)
        features.append(output.hidden_states[-1][chosen][::every])
    return RolloutCheck(
        log_probs=log_probs, score_z=score_z(torch.cat(residuals), torch.cat(features))
    )


def agreement(before: RolloutCheck, rows: Rows) -> dict[str, float]:
    """How the policy that is about to be trained agrees with the one that drew the tokens: the
    same, if all is well."""
    chosen = rows["mask"] > 0
    log_weight = (before.log_probs - rows["old_log_probs"])[chosen].double()
    weight = log_weight.exp()
    return {
        "sampler_kl": float((log_weight.expm1() - log_weight).mean()),
        "importance_weight": float(weight.mean()),
        "ess": float(weight.sum().square() / weight.square().sum() / len(weight)),
    }


def gain_of(rows: Rows, before: Tensor, after: Tensor) -> float:
    """Whether the update made those rollouts of a group more likely that had earned more than the
    group's mean."""
    groups, rewards = rows["groups"], rows["rewards"]
    means = torch.bincount(groups, weights=rewards) / torch.bincount(
        groups
    )  # NaN for a group that is not there
    return reward_gain(rewards - means[groups], (after - before).sum(-1))
