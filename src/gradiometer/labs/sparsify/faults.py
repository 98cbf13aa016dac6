"""What can be broken in REINFORCE on a graph: the source's own bug first, then what else such a training gets wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gradiometer.labs.faults import fault
from gradiometer.labs.sparsify import faults_settings

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

    from gradiometer.labs.sparsify.baseline import Baseline, RunningScale
    from gradiometer.labs.sparsify.config import Config
    from gradiometer.labs.sparsify.model import SparsifyNet
    from gradiometer.labs.sparsify.solver import Solver

    Entropy = Callable[[Tensor, int, float], Tensor]
    LogProb = Callable[[Tensor, Tensor, float], Tensor]
    Draw = Callable[[Tensor, int, float, int, Generator], tuple[Tensor, Tensor]]
    Targets = Callable[[Tensor, RunningScale, Config], Tensor]

__all__ = ["faults_settings"]

LAB = ("sparsify",)


@fault(
    "entropy_no_grad",
    labs=LAB,
    piece="entropy_of",
    summary="the entropy is computed under torch.no_grad(): the loss shows the bonus, no weight ever feels it",
    expected=("dead-term",),
    catalogue="F19",
)
def entropy_no_grad(entropy_of: Entropy) -> Entropy:
    """The source's bug, lines 496 to 498 and 679 to 681 of its reinforce.py."""
    import torch

    def broken(logits: Tensor, k: int, temperature: float) -> Tensor:
        with torch.no_grad():
            return entropy_of(logits, k, temperature)

    return broken


@fault(
    "entropy_wrong_axis",
    labs=LAB,
    piece="entropy_of",
    summary="one softmax over all connections of a problem: its entropy is no row's, and the bonus evens out rows",
    expected=("entropy-of-wrong-distribution", "regulariser-dominates"),
    catalogue="F29",
)
def entropy_wrong_axis(entropy_of: Entropy) -> Entropy:
    """The source's 8.8268 at the start is ln 6815: an entropy over about as many connections as a grid of 32 × 32 has."""

    def broken(logits: Tensor, k: int, temperature: float) -> Tensor:
        log_probs = (logits / temperature).flatten(1).log_softmax(-1)
        return -(log_probs.exp() * log_probs).sum(-1)

    return broken


@fault(
    "entropy_nan",
    labs=LAB,
    piece="entropy_of",
    summary="candidates that are not there have a logit of −inf, and 0 · log 0 is NaN: so is the gradient, from the first step",
    expected=("nonfinite-gradient",),
    catalogue="F32",
)
def entropy_nan(entropy_of: Entropy) -> Entropy:
    """As with any mask of −inf that meets p · log p."""

    def broken(logits: Tensor, k: int, temperature: float) -> Tensor:
        return entropy_of(logits.masked_fill(_missing(logits), float("-inf")), k, temperature)

    return broken


@fault(
    "baseline_leak",
    labs=LAB,
    piece="expected_of",
    summary="the moving average is updated with the rewards first, and subtracted from them then: it contains them",
    expected=("baseline-leak", "critic-explains-nothing"),
    catalogue="F36",
    needs=("baseline.type=exponential_moving",),
)
def baseline_leak(
    expected_of: Callable[[Baseline, Tensor, Tensor | None], Tensor],
) -> Callable[[Baseline, Tensor, Tensor | None], Tensor]:
    """The source's explained variance of 5 to 7 % is what that shows on pure noise at a momentum of 0.95."""

    def broken(baseline: Baseline, targets: Tensor, values: Tensor | None) -> Tensor:
        expected_of(baseline, targets, values)  # sees them
        return baseline.expected(targets, values)

    return broken


@fault(
    "wrong_sign",
    labs=LAB,
    piece="policy_loss_of",
    summary="the policy loss has lost its minus: what earned more becomes less likely",
    expected=("update-opposes-reward", "reward-declining"),
    catalogue="F26",
)
def wrong_sign(
    policy_loss_of: Callable[[Tensor, Tensor, Tensor, Config], Tensor],
) -> Callable[[Tensor, Tensor, Tensor, Config], Tensor]:
    """advantages * log_probs, and an optimizer that descends."""
    return lambda log_probs, old, advantages, config: -policy_loss_of(log_probs, old, advantages, config)


@fault(
    "log_prob_wrong_action",
    labs=LAB,
    piece="log_prob_of",
    summary="choices are looked up one candidate further along: rewards go to connections that nobody chose",
    expected=("score-not-zero-mean", "sampler-mismatch"),
    catalogue="F25",
)
def log_prob_wrong_action(log_prob_of: LogProb) -> LogProb:
    """As when edges are counted with the diagonal in one place and without it in another."""
    import torch

    def broken(logits: Tensor, choices: Tensor, temperature: float) -> Tensor:
        there, candidates = ~_missing(logits), logits.shape[-1]
        following = torch.arange(candidates, device=logits.device).expand_as(logits)
        for ahead in range(candidates - 1, 0, -1):  # the nearest that is there is written last
            index = (torch.arange(candidates, device=logits.device) + ahead) % candidates
            following = torch.where(there[..., index], index.expand_as(logits), following)
        wrong = following.unsqueeze(1).expand(-1, choices.shape[1], -1, -1).gather(-1, choices)
        return log_prob_of(logits, wrong, temperature)

    return broken


@fault(
    "log_prob_with_replacement",
    labs=LAB,
    piece="log_prob_of",
    summary="each choice's log-prob is taken over all candidates, those already taken too: the sampler does not put back",
    expected=("score-not-zero-mean", "sampler-mismatch"),
    catalogue="F25",
)
def log_prob_with_replacement(log_prob_of: LogProb) -> LogProb:
    """One log_softmax for all choices of a row: shorter, and right only for k = 1."""

    import torch

    def broken(logits: Tensor, choices: Tensor, temperature: float) -> Tensor:
        each = [log_prob_of(logits, choice.unsqueeze(-1), temperature) for choice in choices.unbind(-1)]
        return torch.stack(each).sum(0)

    return broken


@fault(
    "log_prob_detached",
    labs=LAB,
    piece="log_prob_of",
    summary="the loss uses the log-probs that were kept without gradients: the policy term moves no weight",
    expected=("dead-term",),
    catalogue="F20",
)
def log_prob_detached(log_prob_of: LogProb) -> LogProb:
    """As with log-probs that come out of a rollout buffer."""
    return lambda logits, choices, temperature: log_prob_of(logits, choices, temperature).detach()


@fault(
    "sampler_ignores_logits",
    labs=LAB,
    piece="draw",
    summary="the k largest of the noise alone are taken: whatever is learned, the choice stays random",
    expected=("score-not-zero-mean", "actions-ignore-policy"),
    catalogue="F25",
)
def sampler_ignores_logits(draw: Draw) -> Draw:
    """(noise).topk(k) for (logits + noise).topk(k)."""

    def broken(
        logits: Tensor, k: int, temperature: float, rollouts: int, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        from gradiometer.labs.sparsify.sampling import NEVER, log_prob_of

        even = logits.new_zeros(logits.shape).masked_fill(_missing(logits), NEVER)
        choices, _ = draw(even, k, temperature, rollouts, generator)
        return choices, log_prob_of(logits, choices, temperature)

    return broken


@fault(
    "sampler_mismatch",
    labs=LAB,
    piece="draw",
    summary="the sampler does not know of the temperature: choices come from another distribution than the log-probs",
    expected=("sampler-mismatch", "score-not-zero-mean"),
    catalogue="F25",
    needs=("temperature.initial=0.5",),
)
def sampler_mismatch(draw: Draw) -> Draw:
    """As when only the loss was given the setting."""
    return lambda logits, k, temperature, rollouts, generator: draw(logits, k, 1.0, rollouts, generator)


@fault(
    "critic_detached",
    labs=LAB,
    piece="value_loss_of",
    summary="the value loss is taken of detached values: the value head never learns",
    expected=("dead-term", "dead-block"),
    catalogue="F36",
    needs=("baseline.type=learned",),
)
def critic_detached(value_loss_of: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """One .detach() more than the advantage needs."""
    return lambda values, targets: value_loss_of(values.detach(), targets)


@fault(
    "frozen_layer",
    labs=LAB,
    piece="parameters_of",
    summary="the optimizer is given everything but the policy head: its gradient is there, its weights never move",
    expected=("not-in-optimizer",),
    catalogue="F34",
)
def frozen_layer(
    parameters_of: Callable[[SparsifyNet], list[nn.Parameter]],
) -> Callable[[SparsifyNet], list[nn.Parameter]]:
    """As when a head is added after the optimizer was made."""

    def broken(model: SparsifyNet) -> list[nn.Parameter]:
        left_out = {id(parameter) for parameter in model.policy_head.parameters()}
        return [parameter for parameter in parameters_of(model) if id(parameter) not in left_out]

    return broken


@fault(
    "rewards_misaligned",
    labs=LAB,
    piece="targets_of",
    summary="rewards come back in another order than they were asked for: each rollout gets the one of the rollout before",
    expected=("misaligned-data", "returns-wrong"),
    catalogue="F44",
)
def rewards_misaligned(targets_of: Targets) -> Targets:
    """As from a pool of workers whose results are appended as they come."""

    def broken(rewards: Tensor, scale: RunningScale, config: Config) -> Tensor:
        return targets_of(rewards.flatten().roll(1).view_as(rewards), scale, config)

    return broken


@fault(
    "reward_x100",
    labs=LAB,
    piece="targets_of",
    summary="rewards are learned from in hundredths: the value head has far to go, and its loss swamps the others",
    expected=("reward-scale", "advantage-scale"),
    catalogue="F8",
    needs=("baseline.type=learned",),
)
def reward_x100(targets_of: Targets) -> Targets:
    """Reported rewards stay as they are."""
    return lambda rewards, scale, config: targets_of(100.0 * rewards, scale, config)


@fault(
    "noisy_verifier",
    labs=LAB,
    piece="rewards_of",
    summary="a share of the rewards is a random number from 0 to 1 that has nothing to do with the choice",
    expected=("reward-unreliable", "noise-dominated"),
    catalogue="F3",
    doses=(0.2, 0.5, 0.9),
)
def noisy_verifier(
    rewards_of: Callable[[Sequence[Solver], Tensor], Tensor], *, dose: float
) -> Callable[[Sequence[Solver], Tensor], Tensor]:
    """As from a solver that now and then is stopped before it has converged."""
    import torch

    generator = torch.Generator().manual_seed(0)

    def broken(solvers: Sequence[Solver], columns: Tensor) -> Tensor:
        rewards = rewards_of(solvers, columns)
        random, lot = torch.rand(2, *rewards.shape, generator=generator)
        return torch.where(lot < dose, random, rewards)

    return broken


def _missing(logits: Tensor) -> Tensor:
    """Which candidates are not there."""
    from gradiometer.labs.sparsify.sampling import NEVER

    return logits <= NEVER / 2
