"""Answers drawn from the policy, and what the policy says of them before and after it is trained on
them.

Shapes: N = P·G answers, P groups of G, of A tokens to questions of Q; V tokens of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from gradiometer.maths.scores import reward_gain, score_z
from gradiometer_labs.bugs.model import AnswerPolicy
from gradiometer_labs.bugs.objective import advantages_of, sampled_log_probs_of
from gradiometer_labs.bugs.pieces import Pieces
from gradiometer_labs.bugs.questions import answered, questions, rewards_of

__all__ = ["AnswerCheck", "AnswerRollout", "agreement_of", "collect", "drawn", "look", "summary_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRollout:
    """Answers to the questions of one step, the G answers to one question side by side."""

    tokens: Tensor
    """Questions and answers, [N, Q + A]."""
    mask: Tensor
    """Which of the last A tokens are of the answer, [N, A]."""
    old_log_probs: Tensor
    """As the sampler says, [N, A]."""
    rewards: Tensor
    """[N]"""
    correct: Tensor
    """[N]"""
    advantages: Tensor
    """[N]"""
    num_groups: int

    @property
    def by_group(self) -> Tensor:
        """Rewards, [P, G]."""
        return self.rewards.view(self.num_groups, -1)

    @property
    def earned(self) -> Tensor:
        """What an answer earned beyond its group's mean, whatever the training made of it, [N]."""
        return (self.by_group - self.by_group.mean(1, keepdim=True)).flatten()


@torch.no_grad()
def drawn(
    policy: AnswerPolicy, asked: Tensor, generator: Generator, pieces: Pieces
) -> tuple[Tensor, Tensor]:
    """Answers [N, A] to questions [N, Q], and the log-policy of each of their tokens, [N, A, V]."""
    tokens, log_policies = asked, []
    for _ in range(pieces.config.max_digits + 2):
        log_policy = pieces.log_softmax(policy(tokens).logits[:, -1])
        log_policies.append(log_policy)
        # The Gumbel-max trick: the largest of log π plus noise is a draw from π. Unlike multinomial
        # it does not refuse a NaN, as inference engines do not.
        uniform = torch.rand(log_policy.shape, generator=generator).to(log_policy.device)
        token = (log_policy - (-uniform.log()).log()).argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, token], 1)
    return tokens[:, asked.shape[1] :], torch.stack(log_policies, 1)


def collect(policy: AnswerPolicy, generator: Generator, pieces: Pieces) -> AnswerRollout:
    """Groups of answers to new questions, judged and compared."""
    config, device = pieces.config, next(policy.parameters()).device
    asked, right = questions(config.num_prompts, config.max_digits, generator)
    asked, right = (
        each.repeat_interleave(config.group_size, 0).to(device) for each in (asked, right)
    )
    answers, log_policy = drawn(policy, asked, generator, pieces)
    rewards, correct = rewards_of(answers, right)
    grouped = rewards.view(config.num_prompts, config.group_size)
    return AnswerRollout(
        tokens=torch.cat([asked, answers], 1),
        mask=answered(answers),
        old_log_probs=pieces.sampled_log_probs_of(log_policy, answers),
        rewards=rewards,
        correct=correct,
        advantages=advantages_of(grouped, pieces.statistics_of(grouped), config).flatten(),
        num_groups=config.num_prompts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCheck:
    """What the policy that is trained says of a rollout."""

    log_probs: Tensor
    """[N, A], 0 where the answer has ended."""
    score_z: float
    """Of ∂ log π/∂ logits as the loss has it."""


def look(policy: AnswerPolicy, rollout: AnswerRollout, pieces: Pieces) -> AnswerCheck:
    """One more forward pass, and a backward pass through the log-probs alone."""
    length = rollout.mask.shape[1]
    with torch.no_grad():
        output = policy(rollout.tokens[:, :-1])
    logits = output.logits[:, -length:].requires_grad_()
    log_probs = (
        sampled_log_probs_of(pieces.log_softmax(logits), rollout.tokens[:, -length:]) * rollout.mask
    )
    (residuals,) = torch.autograd.grad(log_probs.sum(), logits)
    features = output.hidden[:, -length:]
    return AnswerCheck(
        log_probs=log_probs.detach(),
        score_z=score_z(residuals[rollout.mask], features[rollout.mask]),
    )


def summary_of(rollout: AnswerRollout) -> dict[str, float]:
    """How the answers were."""
    said = rollout.tokens[:, -rollout.mask.shape[1] :][rollout.mask]
    lengths = rollout.mask.sum(1)
    spread = rollout.by_group.std(1)
    return {
        "reward": float(rollout.rewards.mean()),
        "reward_std": float(spread.mean()),
        "success_rate": float(rollout.correct.float().mean()),
        "episode_length": float(lengths.float().mean()),
        "truncated_fraction": float(rollout.mask[:, -1].float().mean()),
        "zero_variance_groups": float((spread == 0).float().mean()),
        "action_share": float(torch.bincount(said).max() / len(said)),
    }


def agreement_of(
    rollout: AnswerRollout, before: AnswerCheck, after: AnswerCheck
) -> dict[str, float]:
    """Whether the policy agrees with the one that drew the answers, and whether the updates raised
    what earned more."""
    log_weight = (before.log_probs - rollout.old_log_probs)[rollout.mask].double()
    weight = log_weight.exp()
    return {
        "score_z": before.score_z,
        "sampler_kl": float((log_weight.expm1() - log_weight).mean()),
        "importance_weight": float(weight.mean()),
        "ess": float(weight.sum().square() / weight.square().sum() / len(weight)),
        "reward_gain": reward_gain(rollout.earned, (after.log_probs - before.log_probs).sum(1)),
    }
