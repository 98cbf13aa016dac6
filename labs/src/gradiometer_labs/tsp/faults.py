"""What can be broken in the training of a policy that walks tours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gradiometer_labs.faults import FaultsOf
from gradiometer_labs.sharedfaults import Line, negated

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from gradiometer_labs.tsp.config import Config
    from gradiometer_labs.tsp.model import TourPolicy, TourRollouts


__all__: list[str] = []

fault = FaultsOf("tsp")


@fault(
    piece="policy_loss_of",
    summary="the minus before the loss is missing: each step makes the longer tours likelier",
    expected=("update-opposes-reward", "reward-declining"),
    catalogue="F26",
)
def wrong_sign(policy_loss_of: Line) -> Line:
    """As when a length, which is a cost, is taken for a reward."""
    return negated(policy_loss_of)


@fault(
    piece="log_probs_of",
    summary="choices and log-probs are off by one: a choice is credited with the probability of the"
    " city that came after it",
    expected=("score-not-zero-mean",),
    catalogue="F25",
)
def log_prob_wrong_action(log_probs_of: Line) -> Line:
    """The city after it was open too, so that nothing is infinite."""
    return lambda log_probs, choices: log_probs_of(log_probs, [*choices[1:], choices[-1]])


@fault(
    piece="sampled",
    summary=(
        "tours are drawn with even odds among the open cities: what walks is not what is trained"
    ),
    expected=("score-not-zero-mean", "actions-ignore-policy"),
    catalogue="F25",
)
def sampler_ignores_logits(sampled: Line) -> Line:
    """As a sampler that is handed the mask alone: what is −∞ stays so."""
    return lambda log_probs, generator: sampled(
        log_probs.masked_fill(log_probs.isfinite(), 0.0), generator
    )


@fault(
    piece="weights_of",
    summary="rewards are laid out rollout by rollout and read instance by instance: tours are "
    "weighed by those of others",
    expected=("misaligned-data", "reward-unreliable"),
    catalogue="F44",
)
def rewards_misaligned(weights_of: Line) -> Line:
    """As repeat() where repeat_interleave() was meant: rollouts of a batch can be laid out in two
    ways."""
    return lambda rewards, config: weights_of(rewards.t().reshape(rewards.shape), config)


@fault(
    piece="weights_of",
    summary="rewards are the weights, without a baseline: every tour is made less likely, the "
    "long ones a little more",
    expected=("advantage-scale", "noise-dominated"),
    catalogue="F11",
)
def baseline_missing(weights_of: Line) -> Line:
    """The right gradient in the mean, and several times the noise."""
    return lambda rewards, config: rewards


@fault(
    piece="rewards_of",
    summary="a share of the tours is told the length of another instance's tour",
    expected=("reward-unreliable", "noise-dominated"),
    catalogue="F3",
    doses=(0.5, 0.8, 0.95),
)
def noisy_verifier(rewards_of: Line, *, dose: float) -> Line:
    """As answers of verifiers that run side by side and come back in another order.

    Who is hit is told by digits of the length that mean nothing, so that a training can be repeated
    and resumed.
    """
    import torch

    def broken(walked: TourRollouts, config: Config) -> Tensor:
        rewards = rewards_of(walked, config)
        return torch.where((1_000 * rewards).frac().abs() < dose, rewards.flip(0), rewards)

    return broken


@fault(
    piece="optimizer_of",
    summary="the optimizer is given the decoder alone: the encoder has gradients and stays as it "
    "was drawn",
    expected=("not-in-optimizer",),
    catalogue="F34",
)
def frozen_layer(
    optimizer_of: Callable[[nn.Module, Config], Optimizer],
) -> Callable[[nn.Module, Config], Optimizer]:
    """As an optimizer that is made of one part of a model that has two."""
    return lambda policy, config: optimizer_of(policy.get_submodule("decoder"), config)


@fault(
    piece="policy_of",
    summary="the decoder is given the encoder's output detached: no loss reaches the encoder",
    expected=("dead-block",),
    catalogue="F34",
)
def encoder_detached(policy_of: Callable[[Config], TourPolicy]) -> Callable[[Config], TourPolicy]:
    """As an embedding that is computed once, kept, and used for every choice."""

    def broken(config: Config) -> TourPolicy:
        policy = policy_of(config)
        policy.encoder.register_forward_hook(lambda _module, _args, encoded: encoded.detach())
        return policy

    return broken


@fault(
    piece="policy_of",
    summary="one layer takes where(x > 0, √x, 0) for ReLU: forward the NaN is not chosen, "
    "backward 0 · NaN is NaN",
    expected=("nonfinite-gradient",),
    catalogue="F32",
)
def nan_layer(policy_of: Callable[[Config], TourPolicy]) -> Callable[[Config], TourPolicy]:
    """In the encoder's last layer: the first loss is finite, its gradient in that layer and those
    below is not."""
    import torch

    def broken(config: Config) -> TourPolicy:
        policy = policy_of(config)
        relu = policy.encoder.layers[-1].get_submodule("mlp.1")
        relu.register_forward_hook(
            lambda _module, args, _out: torch.where(args[0] > 0, args[0].sqrt(), 0.0)
        )
        return policy

    return broken


# As a rate that was meant for another optimizer.
fault.wrong_setting(
    "lr_high",
    times="learning_rate",
    summary="the learning rate is a hundred times what it should be",
    expected=("step-too-large",),
    catalogue="F15",
    doses=(10, 100, 1_000),
)


# As a rate that was meant for a model a thousand times as large.
fault.wrong_setting(
    "lr_low",
    times="learning_rate",
    summary="the learning rate is a hundredth of what it should be",
    expected=("policy-frozen",),
    catalogue="F16",
    doses=(1 / 30, 1 / 100, 1 / 1_000),
)


# Adam divides a constant factor out again: only the last dose is below what its ε lets through.
fault.wrong_setting(
    "clip_tiny",
    to="max_grad_norm",
    summary="gradients are cut to a norm of 0.001, thousands of times less than they have",
    expected=("over-clipping",),
    catalogue="F31",
    doses=(1e-2, 1e-3, 1e-7),
)
