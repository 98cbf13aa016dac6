"""What a game is paid: action by action as the environment has it, or once at its end by reward
functions that are added up.

Shapes: N games. Observed is what the training is told; earned is what the game was worth, whoever
told it otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gradiometer_labs.sokoban.pieces import Pieces

__all__ = ["format_of", "last_chosen", "paid", "verdicts_of", "weighed"]


def verdicts_of(solved: Tensor) -> Tensor:
    """1 for a level that is solved, 0 for one that is not, [N]."""
    return solved.float()


def format_of(complete: Tensor, turns: Tensor, words: Tensor) -> Tensor:
    """The share of a game's answers that are complete, [N], however many words it took."""
    return complete / turns


def weighed(parts: Mapping[str, Tensor], weights: Mapping[str, float]) -> dict[str, Tensor]:
    """What each reward function adds to the reward, [N] each."""
    return {name: weight * parts[name] for name, weight in weights.items()}


def paid(rows: Mapping[str, Tensor], pieces: Pieces) -> dict[str, Tensor]:
    """Games with their rewards, with what they earned, with what the verifier thinks and what each
    function adds."""
    settings = pieces.config.reward
    if settings.kind == "game":
        return {**rows, "earned": rows["rewards"], "verdicts": verdicts_of(rows["solved"])}
    weights = {
        name: weight for name in ("solved", "format") if (weight := getattr(settings, name)) > 0
    }
    answers = (rows["complete"], rows["turns"], rows["mask"].sum(-1))
    seen = {"solved": pieces.verdicts_of(rows["solved"]), "format": pieces.format_of(*answers)}
    meant = {"solved": verdicts_of(rows["solved"]), "format": format_of(*answers)}
    parts = pieces.weighed(seen, weights)
    rewards = torch.stack(list(parts.values())).sum(0)
    nothing = torch.zeros_like(rows["token_rewards"])
    return {
        **rows,
        "token_rewards": nothing.scatter(-1, last_chosen(rows["mask"]), rewards.unsqueeze(-1)),
        "rewards": rewards,
        "earned": torch.stack(list(weighed(meant, weights).values())).sum(0),
        "verdicts": seen["solved"],
        **{f"rewards/{name}": part for name, part in parts.items()},
    }


def last_chosen(mask: Tensor) -> Tensor:
    """Where the last chosen token stands, [N, T] to [N, 1]."""
    return mask.shape[-1] - 1 - (mask > 0).flip(-1).float().argmax(-1, keepdim=True)
