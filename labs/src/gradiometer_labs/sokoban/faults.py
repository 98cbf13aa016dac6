"""What can be broken in the training of a language model that plays: losses, rewards, settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from gradiometer_labs.faults import FaultsOf
from gradiometer_labs.sharedfaults import Line, first_detached, negated, times
from gradiometer_labs.sokoban.config import Config, EnvConfig
from gradiometer_labs.sokoban.levels import SokobanLevel, level_seeds
from gradiometer_labs.sokoban.solver import solve

if TYPE_CHECKING:
    from torch import Tensor

    from gradiometer_labs.sokoban.batches import Batch
    from gradiometer_labs.sokoban.tokens import Dialogue

    Weigh = Callable[[Mapping[str, Tensor], Mapping[str, float]], dict[str, Tensor]]
    BatchAt = Callable[[int, Callable[[int], Batch]], Batch]

__all__: list[str] = []

fault = FaultsOf("sokoban")

Levels = Callable[[EnvConfig, Sequence[int]], list[SokobanLevel]]
Rate = Callable[[Config, float], float]

CANDIDATES = 64
"""Levels of which a curriculum that goes wrong takes one."""
VERIFIER = ("reward.kind=verifier",)
TWO_FUNCTIONS = (*VERIFIER, "reward.solved=0.9", "reward.format=0.1")
GROUPS = ("algorithm.adv_estimator=grpo",)
CRITIC = ("algorithm.adv_estimator=gae",)

# What is made of the rewards: advantages, log-probabilities, losses, values.


@fault(
    piece="group_advantages",
    summary="a reward is compared with the mean and the spread of the others of its group, "
    "without an ε: one that differs from others that are alike is divided by a rounding error",
    expected=("advantage-outliers", "advantage-scale"),
    catalogue="F13",
    needs=(
        *GROUPS,
        "algorithm.norm_adv_by_std_in_grpo=True",
        "reward.kind=verifier",
        "reward.solved=0.95",
    ),
)
def tiny_std(group_advantages: Line) -> Line:
    """As NeMo-RL once had it (issue 4158): rewards 0, 0.95, ..., 0.95 gave an advantage of -2075.
    With 1 nothing is rounded."""
    import torch

    def broken(rewards: Tensor, groups: Tensor, *, by_std: bool) -> Tensor:
        if not by_std:
            return group_advantages(rewards, groups, by_std=by_std)
        advantages = torch.empty_like(rewards)
        for group in set(groups.tolist()):
            inside = rewards[groups == group]
            others = len(inside) - 1
            mean = (inside.sum() - inside) / others
            variance = (inside.square().sum() - inside.square()) / others - mean.square()
            std = variance.clamp(min=0).sqrt()
            centred = inside - mean
            advantages[groups == group] = torch.where(std > 0, centred / std, centred)
        return advantages

    return broken


@fault(
    piece="group_advantages",
    summary="rewards come level by level within a round and are read round by round within a level:"
    " most rollouts are judged by what another level's earned",
    expected=("misaligned-data", "reward-unreliable"),
    catalogue="F44",
    needs=GROUPS,
)
def rewards_misaligned(group_advantages: Line) -> Line:
    """repeat where repeat_interleave was meant."""

    def broken(rewards: Tensor, groups: Tensor, *, by_std: bool) -> Tensor:
        laid_out = rewards.reshape(len(set(groups.tolist())), -1).T.flatten()
        return group_advantages(laid_out, groups, by_std=by_std)

    return broken


@fault(
    piece="policy_loss_of",
    summary="the surrogate is minimised instead of maximised: what earned more becomes less likely",
    expected=("update-opposes-reward", "reward-declining"),
    catalogue="F26",
)
def wrong_sign(policy_loss_of: Line) -> Line:
    """A minus that is missing, or there twice."""
    return negated(policy_loss_of)


@fault(
    piece="policy_loss_of",
    summary="the ratio is computed from detached log-probs: the policy loss has its value and no"
    " gradient",
    expected=("dead-term",),
    catalogue="F20",
)
def log_prob_detached(policy_loss_of: Line) -> Line:
    """As mlx-lm-lora had it (issue 50): only the regularisers trained the policy."""
    return first_detached(policy_loss_of)


@fault(
    piece="labels_of",
    summary="labels are not shifted: the log-prob of a token is that of the token before it in its"
    " place",
    expected=("score-not-zero-mean", "sampler-mismatch"),
    catalogue="F25",
)
def log_prob_wrong_action(labels_of: Line) -> Line:
    """logits[:, :-1] with labels[:, :-1]."""
    return lambda tokens: tokens[:, :-1]


@fault(
    piece="value_of",
    summary="the weight of the value head is detached: only its bias learns, and every state has "
    "one value",
    expected=("critic-explains-nothing", "dead-block"),
    catalogue="F36",
    needs=CRITIC,
)
def critic_detached(value_of: Line) -> Line:
    """The loss falls a little, as the bias finds the mean return."""
    return lambda hidden, weight, bias: value_of(hidden, weight.detach(), bias)


# Which levels are played, how they are sampled, and what they are paid.


@cache
def _moves(level: SokobanLevel) -> float:
    """Of the shortest solution; a level the solver gives up on is the hardest."""
    solution = solve(level)
    return float("inf") if solution is None else len(solution)


@fault(
    piece="levels_of",
    summary="of 64 levels the one with the shortest solution is trained on: most groups are "
    "solved by every rollout",
    expected=("groups-too-easy", "zero-gradient-steps"),
    catalogue="F1",
    needs=VERIFIER,
)
def groups_too_easy(levels_of: Levels) -> Levels:
    """A curriculum that never moves on."""

    def broken(env: EnvConfig, seeds: Sequence[int]) -> list[SokobanLevel]:
        return [
            min(levels_of(env, level_seeds(seed, count=CANDIDATES)), key=_moves) for seed in seeds
        ]

    return broken


@fault(
    piece="levels_of",
    summary="of 64 levels the one with the longest solution is trained on: most groups are failed "
    "by every rollout",
    expected=("groups-too-hard", "zero-gradient-steps"),
    catalogue="F2",
    needs=VERIFIER,
)
def groups_too_hard(levels_of: Levels) -> Levels:
    """The same curriculum, sorted the wrong way round."""

    def broken(env: EnvConfig, seeds: Sequence[int]) -> list[SokobanLevel]:
        return [
            max(levels_of(env, level_seeds(seed, count=CANDIDATES)), key=_moves) for seed in seeds
        ]

    return broken


@fault(
    piece="answer_limit_of",
    summary="an answer may have fewer tokens than its moves need (by 1, 2, 4): what is cut off in a"
    " word cannot be read",
    expected=("truncation",),
    catalogue="F6",
    doses=(1, 2, 4),
)
def truncation(
    answer_limit_of: Callable[[Dialogue], int], *, dose: float
) -> Callable[[Dialogue], int]:
    """One token short, only the end is missing, which does no harm; two short, the last move is."""
    return lambda dialogue: max(1, answer_limit_of(dialogue) - int(dose))


@fault(
    piece="sampler_logits_of",
    summary="the sampler divides its logits by a temperature (1.2, 1.5, 2) that the losses know"
    " nothing of",
    expected=("sampler-mismatch", "score-not-zero-mean"),
    catalogue="F25",
    doses=(1.2, 1.5, 2.0),
)
def sampler_mismatch(sampler_logits_of: Line, *, dose: float) -> Line:
    """As an inference engine with a generation config of its own; the log-probs it hands over are
    those it drew from."""
    return lambda logits, temperature: sampler_logits_of(logits, temperature * dose)


@fault(
    piece="verdicts_of",
    summary="the verifier's verdict is the wrong one for some games (20, 40, 50 %), at random",
    expected=("reward-unreliable", "noise-dominated"),
    catalogue="F3",
    needs=VERIFIER,
    doses=(0.2, 0.4, 0.5),
)
def noisy_verifier(verdicts_of: Line, *, dose: float) -> Line:
    """A judge that does not look; at one half its verdicts say nothing."""
    import torch

    generator = torch.Generator().manual_seed(1)

    def broken(solved: Tensor) -> Tensor:
        verdicts = verdicts_of(solved)
        wrong = (torch.rand(len(verdicts), generator=generator) < dose).to(verdicts.device)
        return torch.where(wrong, 1 - verdicts, verdicts)

    return broken


@fault(
    piece="format_of",
    summary="the format is paid by the words of a game instead of by the share of its answers: "
    "longer games earn more",
    expected=("length-exploit", "reward-hacking"),
    catalogue="F5",
    needs=(*TWO_FUNCTIONS, "env.max_turns=3"),
)
def length_rewarded(format_of: Line) -> Line:
    """A sum where a mean was meant."""
    return lambda complete, turns, words: words


@fault(
    piece="weighed",
    summary="the weights of the two reward functions are swapped: the format is worth nine times "
    "the solution",
    expected=("reward-term-dominates",),
    catalogue="F7",
    needs=(*TWO_FUNCTIONS, "algorithm.norm_adv_by_std_in_grpo=False"),
)
def format_dominates(weighed: Weigh) -> Weigh:
    """A list of weights in another order than the list of functions."""

    def broken(parts: Mapping[str, Tensor], weights: Mapping[str, float]) -> dict[str, Tensor]:
        return weighed(parts, dict(zip(weights, reversed(list(weights.values())), strict=True)))

    return broken


@fault(
    piece="batch_at",
    summary="fresh rollouts are collected at every 4th, 8th or 16th step only, and trained on "
    "again in between",
    expected=("stale-data", "ppo-clip-saturated"),
    catalogue="F24",
    doses=(4, 8, 16),
)
def stale_batches(batch_at: BatchAt, *, dose: float) -> BatchAt:
    """A buffer that is not emptied."""
    held: list[Batch] = []

    def broken(step: int, collect: Callable[[int], Batch]) -> Batch:
        if not held or (step - 1) % int(dose) == 0:
            held[:] = [batch_at(step, collect)]
        return held[0]

    return broken


# Lines that are right, with a number that is not.


def _with_actor(config: Config, **changes: Any) -> Config:
    """The config with other `actor_rollout_ref.actor.*`."""
    rollout = config.actor_rollout_ref
    return dataclasses.replace(
        config,
        actor_rollout_ref=dataclasses.replace(
            rollout, actor=dataclasses.replace(rollout.actor, **changes)
        ),
    )


# A coefficient meant for a reward of another scale.
fault.wrong_setting(
    "kl_strangles",
    times="actor_rollout_ref.actor.kl_loss_coef",
    summary="the KL term counts a thousand, ten thousand or a hundred thousand times as much: the"
    " policy stays where it was",
    expected=("kl-strangled", "regulariser-dominates"),
    catalogue="F22",
    needs=("actor_rollout_ref.actor.use_kl_loss=True",),
    doses=(1e3, 1e4, 1e5),
)


# A max_norm of another model.
fault.wrong_setting(
    "clip_tiny",
    to="actor_rollout_ref.actor.grad_clip",
    summary="gradients are cut to a norm of 1e-2, 1e-3 or 1e-4; under Adam, which undoes a constant"
    " factor, mostly harmless",
    expected=("over-clipping", "clip-always-active"),
    catalogue="F31",
    doses=(1e-2, 1e-3, 1e-4),
)


@fault(
    piece="config",
    summary="three passes with a clip range of 0.02, 0.002 or 0.0002: nearly every ratio is "
    "outside, and stops learning",
    expected=("ppo-clip-saturated", "policy-frozen"),
    catalogue="F23",
    doses=(2e-2, 2e-3, 2e-4),
)
def ppo_clip_tiny(config: Config, *, dose: float) -> Config:
    """A range for log-ratios of whole sequences, given to tokens."""
    return _with_actor(config, clip_ratio_low=dose, clip_ratio_high=dose, ppo_epochs=3)


@fault(
    piece="learning_rate_at",
    summary="the actor's learning rate is 5, 10 or 100 times as high",
    expected=("step-too-large", "kl-runaway"),
    catalogue="F15",
    doses=(5, 10, 100),
)
def lr_high(learning_rate_at: Rate, *, dose: float) -> Rate:
    """A rate for a model that is not this one."""
    return times(dose, learning_rate_at)


@fault(
    piece="learning_rate_at",
    summary="the actor's learning rate is 30, 100 or 1000 times as low",
    expected=("policy-frozen",),
    catalogue="F16",
    doses=(30, 100, 1000),
)
def lr_low(learning_rate_at: Rate, *, dose: float) -> Rate:
    """As 1e-6 for a model of a few thousand weights."""
    return lambda config, done: learning_rate_at(config, done) / dose


@fault(
    piece="critic_learning_rate_of",
    summary="the critic's learning rate is 0: it values every state at nothing, for ever",
    expected=("critic-explains-nothing", "not-in-optimizer"),
    catalogue="F36",
    needs=CRITIC,
)
def critic_lr_zero(critic_learning_rate_of: Callable[[Config], float]) -> Callable[[Config], float]:
    """A schedule that was given the wrong optimizer."""
    return lambda config: 0.0
