"""Imitation of the solver, so that the training starts from a policy that solves some levels and
not most.

The actor is taught the solver's move with probability 1 - ε and any of the four moves otherwise (ε
= warm_start.noise). So it knows more about the game than it plays, and the training can teach it to
play what it knows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gradiometer_labs.sokoban.config import Config
from gradiometer_labs.sokoban.levels import ACTIONS, SokobanLevel, level_seeds, push
from gradiometer_labs.sokoban.pieces import log_policy_of
from gradiometer_labs.sokoban.rollout import (
    Rows,
    SokobanPurpose,
    Transcript,
    cut,
    generator_for,
    rows_of,
    select,
)
from gradiometer_labs.sokoban.solver import solve
from gradiometer_labs.sokoban.tokens import Dialogue

__all__ = ["imitation_loss", "solver_games", "warm_start"]

RAMP = 20
"""Optimizer steps over which the step size grows to its full length."""


def warm_start(
    actor: PreTrainedModel,
    dialogue: Dialogue,
    config: Config,
    progress: Callable[[int], None] | None = None,
) -> float | None:
    """Fit the actor to the solver's games; returns the last mean loss, nats per token, or None if
    there was no step."""
    settings = config.warm_start
    if settings.steps == 0:
        return None
    generator = generator_for(config, SokobanPurpose.WARM_START, 0, actor.device)
    games = solver_games(dialogue, config, actor.device)
    moves = torch.tensor(
        [dialogue.answer((action,))[0] for action in range(len(ACTIONS))], device=actor.device
    )
    optimizer = torch.optim.AdamW(
        actor.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    loss = torch.zeros(())
    for number in range(settings.steps):
        optimizer.param_groups[0]["lr"] = settings.learning_rate * min(1.0, (number + 1) / RAMP)
        index = torch.randint(
            len(games["tokens"]), (settings.batch_size,), generator=generator, device=actor.device
        )
        loss = imitation_loss(actor, cut(select(games, index)), moves, noise=settings.noise)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(actor.parameters(), 1.0)
        optimizer.step()
        if progress is not None:
            progress(number + 1)
    return loss.item()


def imitation_loss(actor: PreTrainedModel, rows: Rows, moves: Tensor, *, noise: float) -> Tensor:
    """The mean of -(1 - ε) log π(move) - ε/4 Σ log π(any move) over the solver's words; those that
    are no moves have ε = 0."""
    wanted, mask = rows["tokens"][:, 1:], rows["mask"][:, 1:]
    log_policy = log_policy_of(actor, rows["tokens"])
    of_wanted = log_policy.gather(-1, wanted.unsqueeze(-1)).squeeze(-1)
    slips = noise * torch.isin(wanted, moves)
    expected = (1 - slips) * of_wanted + slips * log_policy[..., moves].mean(-1)
    return -(mask * expected).sum() / mask.sum()


def solver_games(dialogue: Dialogue, config: Config, device: torch.device) -> Rows:
    """Each warm-start level solved in the fewest actions, as many in a turn as the game carries
    out."""
    seeds = level_seeds(config.seed, SokobanPurpose.WARM_START, count=config.warm_start.num_levels)
    games = [demonstration(config.env.level(seed), dialogue, config) for seed in seeds]
    return rows_of(games, pad=dialogue.pad, device=device)


def demonstration(level: SokobanLevel, dialogue: Dialogue, config: Config) -> Transcript:
    """The solver's game, turn by turn."""
    transcript, at_once = Transcript(group=0), config.env.max_actions_per_turn
    solution = solve(level)
    assert solution is not None, "levels are made by reverse play"
    for start in range(0, len(solution), at_once):
        transcript.saw((dialogue.following if start else dialogue.opening)(level.text()))
        answer = dialogue.answer(solution[start : start + at_once])
        transcript.said(answer, [0.0] * len(answer), 0.0)
        for action in solution[start : start + at_once]:
            level, _ = push(level, action)
    return transcript
