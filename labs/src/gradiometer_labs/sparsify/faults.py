"""What can be broken in REINFORCE on a graph: settings, then lines.

The study's own bug, an entropy under no_grad (lines 496 to 498 and 679 to 681 of its
reinforce.py), is one that other labs have too: `entropy_no_grad` in sharedfaults.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gradiometer_labs.faults import FaultsOf
from gradiometer_labs.sharedfaults import Line, first_detached, left_out, negated

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

    from gradiometer_labs.sparsify.baseline import Baseline, RunningScale
    from gradiometer_labs.sparsify.config import Config
    from gradiometer_labs.sparsify.model import SparsifyNet
    from gradiometer_labs.sparsify.pieces import Earned
    from gradiometer_labs.sparsify.solver import Solver

    Draw = Callable[[Tensor, int, float, int, Generator], tuple[Tensor, Tensor]]

__all__: list[str] = []

fault = FaultsOf("sparsify")

fault.wrong_setting(
    "lr_high",
    times="learning_rate",
    summary="the learning rate is a hundred times too high",
    expected=("step-too-large",),
    catalogue="F15",
    doses=(10, 100, 1000),
)

fault.wrong_setting(
    "lr_low",
    times="learning_rate",
    summary="the learning rate is a hundred times too low: nothing is wrong, and nothing happens",
    expected=("policy-frozen",),
    catalogue="F16",
    doses=(1 / 30, 1 / 100, 1 / 1000),
)

fault.wrong_setting(
    "clip_tiny",
    to="grad_clip",
    summary="gradients are clipped to a thousandth: Adam forgives the scale, not that every "
    "gradient counts alike",
    expected=("over-clipping", "clip-always-active"),
    catalogue="F31",
    doses=(1e-2, 1e-3, 1e-5),
)

# Times the dose; the study's 0.01, once it works, is such a one beside a mean over a thousand
# rows.
fault.wrong_setting(
    "entropy_coef_high",
    times="entropy_coef",
    summary="the entropy bonus counts a hundred times as much: the policy stays random, whatever is"
    " earned",
    expected=("entropy-never-falls", "regulariser-dominates"),
    catalogue="F18",
    doses=(10, 100, 1000),
)

fault.wrong_setting(
    "value_coef_high",
    times="vf_coef",
    summary=(
        "the value loss counts a hundred times as much, on a trunk that it shares with the policy"
    ),
    expected=("critic-dominates", "terms-conflict"),
    catalogue="F37",
    needs=("baseline.type=learned", "model.separate_value=false"),
    doses=(10, 100, 1000),
)


@fault(
    piece="entropy_of",
    summary="one softmax over all connections of a problem: its entropy is no row's, and the bonus"
    " evens out rows",
    expected=("entropy-of-wrong-distribution", "regulariser-dominates"),
    catalogue="F29",
)
def entropy_wrong_axis(entropy_of: Line) -> Line:
    """The study's 8.8268 at the start is ln 6815: an entropy over about as many connections as a
    grid of 32 × 32 has."""

    def broken(logits: Tensor, k: int, temperature: float) -> Tensor:
        log_probs = (logits / temperature).flatten(1).log_softmax(-1)
        return -(log_probs.exp() * log_probs).sum(-1)

    return broken


@fault(
    piece="entropy_of",
    summary="candidates that are not there have a logit of −inf, and 0 · log 0 is NaN: so is the"
    " gradient, from the first step",
    expected=("nonfinite-gradient",),
    catalogue="F32",
)
def entropy_nan(entropy_of: Line) -> Line:
    """As with any mask of −inf that meets p · log p."""

    def broken(logits: Tensor, k: int, temperature: float) -> Tensor:
        return entropy_of(logits.masked_fill(_missing(logits), float("-inf")), k, temperature)

    return broken


@fault(
    piece="expected_of",
    summary="the moving average is updated with the rewards first, and subtracted from them then: "
    "it contains them",
    expected=("baseline-leak", "critic-explains-nothing"),
    catalogue="F36",
    needs=("baseline.type=exponential_moving",),
)
def baseline_leak(expected_of: Line) -> Line:
    """The study's explained variance of 5 to 7 % is what that shows on pure noise at a momentum of
    0.95."""

    def broken(baseline: Baseline, targets: Tensor, values: Tensor | None) -> Tensor:
        expected_of(baseline, targets, values)  # sees them
        return baseline.expected(targets, values)

    return broken


@fault(
    piece="policy_loss_of",
    summary="the policy loss has lost its minus: what earned more becomes less likely",
    expected=("update-opposes-reward", "reward-declining"),
    catalogue="F26",
)
def wrong_sign(policy_loss_of: Line) -> Line:
    """advantages * log_probs, and an optimizer that descends."""
    return negated(policy_loss_of)


@fault(
    piece="log_prob_of",
    summary="choices are looked up one candidate further along: rewards go to connections that "
    "nobody chose",
    expected=("score-not-zero-mean", "sampler-mismatch"),
    catalogue="F25",
)
def log_prob_wrong_action(log_prob_of: Line) -> Line:
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
    piece="log_prob_of",
    summary="each choice's log-prob is taken over all candidates, those already taken too: the "
    "sampler does not put back",
    expected=("score-not-zero-mean", "sampler-mismatch"),
    catalogue="F25",
)
def log_prob_with_replacement(log_prob_of: Line) -> Line:
    """One log_softmax for all choices of a row: shorter, and right only for k = 1."""

    import torch

    def broken(logits: Tensor, choices: Tensor, temperature: float) -> Tensor:
        each = [
            log_prob_of(logits, choice.unsqueeze(-1), temperature) for choice in choices.unbind(-1)
        ]
        return torch.stack(each).sum(0)

    return broken


@fault(
    piece="log_prob_of",
    summary="the loss uses the log-probs that were kept without gradients: the policy term moves no"
    " weight",
    expected=("dead-term",),
    catalogue="F20",
)
def log_prob_detached(log_prob_of: Line) -> Line:
    """As with log-probs that come out of a rollout buffer."""
    return lambda logits, choices, temperature: log_prob_of(logits, choices, temperature).detach()


@fault(
    piece="draw",
    summary=(
        "the k largest of the noise alone are taken: whatever is learned, the choice stays random"
    ),
    expected=("score-not-zero-mean", "actions-ignore-policy"),
    catalogue="F25",
)
def sampler_ignores_logits(draw: Draw) -> Draw:
    """(noise).topk(k) for (logits + noise).topk(k)."""

    def broken(
        logits: Tensor, k: int, temperature: float, rollouts: int, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        from gradiometer_labs.sparsify.sampling import NEVER, log_prob_of

        even = logits.new_zeros(logits.shape).masked_fill(_missing(logits), NEVER)
        choices, _ = draw(even, k, temperature, rollouts, generator)
        return choices, log_prob_of(logits, choices, temperature)

    return broken


@fault(
    piece="draw",
    summary="the sampler does not know of the temperature: choices come from another distribution "
    "than the log-probs",
    expected=("sampler-mismatch", "score-not-zero-mean"),
    catalogue="F25",
    needs=("temperature.initial=0.5",),
)
def sampler_mismatch(draw: Draw) -> Draw:
    """As when only the loss was given the setting."""
    return lambda logits, k, temperature, rollouts, generator: draw(
        logits, k, 1.0, rollouts, generator
    )


@fault(
    piece="value_loss_of",
    summary="the value loss is taken of detached values: the value head never learns",
    expected=("dead-term", "dead-block"),
    catalogue="F36",
    needs=("baseline.type=learned",),
)
def critic_detached(value_loss_of: Line) -> Line:
    """One .detach() more than the advantage needs."""
    return first_detached(value_loss_of)


@fault(
    piece="parameters_of",
    summary="the optimizer is given everything but the policy head: its gradient is there, its "
    "weights never move",
    expected=("not-in-optimizer",),
    catalogue="F34",
)
def frozen_layer(
    parameters_of: Callable[[SparsifyNet], list[nn.Parameter]],
) -> Callable[[SparsifyNet], list[nn.Parameter]]:
    """As when a head is added after the optimizer was made."""

    def broken(model: SparsifyNet) -> list[nn.Parameter]:
        return left_out(model.policy_head, parameters_of(model))

    return broken


@fault(
    piece="targets_of",
    summary="rewards come back in another order than they were asked for: each rollout gets the "
    "one of the rollout before",
    expected=("misaligned-data", "returns-wrong"),
    catalogue="F44",
)
def rewards_misaligned(targets_of: Line) -> Line:
    """As from a pool of workers whose results are appended as they come."""

    def broken(rewards: Tensor, scale: RunningScale, config: Config) -> Tensor:
        return targets_of(rewards.flatten().roll(1).view_as(rewards), scale, config)

    return broken


@fault(
    piece="targets_of",
    summary="rewards are learned from in hundredths: the value head has far to go, and its loss "
    "swamps the others",
    expected=("reward-scale", "advantage-scale"),
    catalogue="F8",
    needs=("baseline.type=learned",),
)
def reward_x100(targets_of: Line) -> Line:
    """Reported rewards stay as they are."""
    return lambda rewards, scale, config: targets_of(100.0 * rewards, scale, config)


@fault(
    piece="rewards_of",
    summary="a share of the rewards is a random number from 0 to 1 that has nothing to do with the"
    " choice",
    expected=("reward-unreliable", "noise-dominated"),
    catalogue="F3",
    doses=(0.2, 0.5, 0.9),
)
def noisy_verifier(rewards_of: Callable[..., Earned], *, dose: float) -> Callable[..., Earned]:
    """As from a solver that now and then is stopped before it has converged."""
    import torch

    generator = torch.Generator().manual_seed(0)

    def broken(solvers: Sequence[Solver], columns: Tensor) -> Earned:
        earned = rewards_of(solvers, columns)
        random, lot = torch.rand(2, *earned.rewards.shape, generator=generator)
        return replace(earned, rewards=torch.where(lot < dose, random, earned.rewards))

    return broken


def _missing(logits: Tensor) -> Tensor:
    """Which candidates are not there."""
    from gradiometer_labs.sparsify.sampling import NEVER

    return logits <= NEVER / 2
