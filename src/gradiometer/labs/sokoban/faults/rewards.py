"""Faults in the levels, the sampling and the rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from gradiometer.labs.faults import fault
from gradiometer.labs.sokoban.config import EnvConfig
from gradiometer.labs.sokoban.levels import Level, level_seeds
from gradiometer.labs.sokoban.solver import solve

if TYPE_CHECKING:
    from torch import Tensor

    from gradiometer.labs.sokoban.batches import Batch
    from gradiometer.labs.sokoban.tokens import Dialogue

__all__: list[str] = []

Levels = Callable[[EnvConfig, Sequence[int]], list[Level]]

CANDIDATES = 64
"""Levels of which a curriculum that goes wrong takes one."""
VERIFIER = ("reward.kind=verifier",)
TWO_FUNCTIONS = (*VERIFIER, "reward.solved=0.9", "reward.format=0.1")


@cache
def _moves(level: Level) -> float:
    """Of the shortest solution; a level the solver gives up on is the hardest."""
    solution = solve(level)
    return float("inf") if solution is None else len(solution)


@fault(
    "groups_too_easy",
    labs=("sokoban",),
    piece="levels_of",
    summary="of 64 levels the one with the shortest solution is trained on: most groups are solved by every rollout",
    expected=("groups-too-easy", "zero-gradient-steps"),
    catalogue="F1",
    needs=VERIFIER,
)
def groups_too_easy(levels_of: Levels) -> Levels:
    """A curriculum that never moves on."""

    def broken(env: EnvConfig, seeds: Sequence[int]) -> list[Level]:
        return [min(levels_of(env, level_seeds(seed, count=CANDIDATES)), key=_moves) for seed in seeds]

    return broken


@fault(
    "groups_too_hard",
    labs=("sokoban",),
    piece="levels_of",
    summary="of 64 levels the one with the longest solution is trained on: most groups are failed by every rollout",
    expected=("groups-too-hard", "zero-gradient-steps"),
    catalogue="F2",
    needs=VERIFIER,
)
def groups_too_hard(levels_of: Levels) -> Levels:
    """The same curriculum, sorted the wrong way round."""

    def broken(env: EnvConfig, seeds: Sequence[int]) -> list[Level]:
        return [max(levels_of(env, level_seeds(seed, count=CANDIDATES)), key=_moves) for seed in seeds]

    return broken


@fault(
    "truncation",
    labs=("sokoban",),
    piece="answer_limit_of",
    summary="an answer may have fewer tokens than its moves need (by 1, 2, 4): what is cut off in a word cannot be read",
    expected=("truncation",),
    catalogue="F6",
    doses=(1, 2, 4),
)
def truncation(answer_limit_of: Callable[[Dialogue], int], *, dose: float) -> Callable[[Dialogue], int]:
    """One token short, only the end is missing, which does no harm; two short, the last move is."""
    return lambda dialogue: max(1, answer_limit_of(dialogue) - int(dose))


@fault(
    "sampler_mismatch",
    labs=("sokoban",),
    piece="sampler_logits_of",
    summary="the sampler divides its logits by a temperature (1.2, 1.5, 2) that the losses know nothing of",
    expected=("sampler-mismatch", "score-not-zero-mean"),
    catalogue="F25",
    doses=(1.2, 1.5, 2.0),
)
def sampler_mismatch(
    sampler_logits_of: Callable[[Tensor, float], Tensor], *, dose: float
) -> Callable[[Tensor, float], Tensor]:
    """As an inference engine with a generation config of its own; the log-probs it hands over are those it drew from."""
    return lambda logits, temperature: sampler_logits_of(logits, temperature * dose)


@fault(
    "noisy_verifier",
    labs=("sokoban",),
    piece="verdicts_of",
    summary="the verifier's verdict is the wrong one for some games (20, 40, 50 %), at random",
    expected=("reward-unreliable", "noise-dominated"),
    catalogue="F3",
    needs=VERIFIER,
    doses=(0.2, 0.4, 0.5),
)
def noisy_verifier(verdicts_of: Callable[[Tensor], Tensor], *, dose: float) -> Callable[[Tensor], Tensor]:
    """A judge that does not look; at one half its verdicts say nothing."""
    import torch

    generator = torch.Generator().manual_seed(1)

    def broken(solved: Tensor) -> Tensor:
        verdicts = verdicts_of(solved)
        wrong = (torch.rand(len(verdicts), generator=generator) < dose).to(verdicts.device)
        return torch.where(wrong, 1 - verdicts, verdicts)

    return broken


@fault(
    "length_rewarded",
    labs=("sokoban",),
    piece="format_of",
    summary="the format is paid by the words of a game instead of by the share of its answers: longer games earn more",
    expected=("length-exploit", "reward-hacking"),
    catalogue="F5",
    needs=(*TWO_FUNCTIONS, "env.max_turns=3"),
)
def length_rewarded(
    format_of: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """A sum where a mean was meant."""
    return lambda complete, turns, words: words


@fault(
    "format_dominates",
    labs=("sokoban",),
    piece="weighed",
    summary="the weights of the two reward functions are swapped: the format is worth nine times the solution",
    expected=("reward-term-dominates",),
    catalogue="F7",
    needs=(*TWO_FUNCTIONS, "algorithm.norm_adv_by_std_in_grpo=False"),
)
def format_dominates(
    weighed: Callable[[Mapping[str, Tensor], Mapping[str, float]], dict[str, Tensor]],
) -> Callable[[Mapping[str, Tensor], Mapping[str, float]], dict[str, Tensor]]:
    """A list of weights in another order than the list of functions."""

    def broken(parts: Mapping[str, Tensor], weights: Mapping[str, float]) -> dict[str, Tensor]:
        return weighed(parts, dict(zip(weights, reversed(list(weights.values())), strict=True)))

    return broken


@fault(
    "stale_batches",
    labs=("sokoban",),
    piece="batch_at",
    summary="fresh rollouts are collected at every 4th, 8th or 16th step only, and trained on again in between",
    expected=("stale-data", "ppo-clip-saturated"),
    catalogue="F24",
    doses=(4, 8, 16),
)
def stale_batches(
    batch_at: Callable[[int, Callable[[int], Batch]], Batch], *, dose: float
) -> Callable[[int, Callable[[int], Batch]], Batch]:
    """A buffer that is not emptied."""
    held: list[Batch] = []

    def broken(step: int, collect: Callable[[int], Batch]) -> Batch:
        if not held or (step - 1) % int(dose) == 0:
            held[:] = [batch_at(step, collect)]
        return held[0]

    return broken
