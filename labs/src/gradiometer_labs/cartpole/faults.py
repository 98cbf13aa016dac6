"""What can be broken in the training of the cart, by the algorithm that has the line."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from gradiometer_labs.faults import FaultsOf
from gradiometer_labs.sharedfaults import Line, first_detached, left_out, negated, times

if TYPE_CHECKING:
    from torch import Tensor, nn

    from gradiometer_labs.cartpole.config import Config
    from gradiometer_labs.cartpole.dqn import Transitions
    from gradiometer_labs.cartpole.model import ActorCritic
    from gradiometer_labs.cartpole.ppo import PpoRollout
    from gradiometer_labs.cartpole.setup import Array
    from gradiometer_labs.replay import Replay

    MakeModel = Callable[[Config], nn.Module]
    Parameters = Callable[[nn.Module], Iterable[Any]]
    Collect = Callable[..., tuple[PpoRollout, Array]]
    Keep = Callable[[Replay[Transitions], Transitions], None]

__all__: list[str] = []

ppo_fault = FaultsOf("cartpole", needs=("algorithm=ppo",))
dqn_fault = FaultsOf("cartpole", needs=("algorithm=dqn",))
reinforce_fault = FaultsOf("cartpole", needs=("algorithm=reinforce",))

FITS = 50
"""Steps of the critic on the returns of a batch, before they are subtracted: baseline_leak."""

# DQN: the target network, the replay, exploration, the values themselves.


@dqn_fault(
    piece="renew",
    summary="the target network is never renewed: all targets are made with the untrained one",
    expected=("target-network",),
    catalogue="F38",
)
def target_never_updated(
    renew: Callable[[nn.Module, nn.Module], None],
) -> Callable[[nn.Module, nn.Module], None]:
    """The copy goes into a state dict that nobody loads."""

    def broken(target: nn.Module, online: nn.Module) -> None:
        target.state_dict().update(online.state_dict())

    return broken


@dqn_fault(
    piece="target_of",
    summary="the target network is the network itself: targets move with every update",
    expected=("target-network",),
    catalogue="F38",
)
def target_is_online(
    target_of: Callable[[nn.Module], nn.Module],
) -> Callable[[nn.Module], nn.Module]:
    """An assignment for a copy."""
    return lambda online: online


@dqn_fault(
    piece="exploration_rate_at",
    summary="ε is zero from the first step on: only what seems best is ever tried",
    expected=("exploration-schedule",),
    catalogue="F41",
)
def exploration_off(
    exploration_rate_at: Callable[[Config, float], float],
) -> Callable[[Config, float], float]:
    """ε kept as a whole number, and so rounded down."""
    return lambda config, done_fraction: float(int(exploration_rate_at(config, done_fraction)))


@dqn_fault(
    piece="td_targets_of",
    summary="the bootstrap goes on beyond the end of an episode: falling costs nothing",
    expected=("returns-wrong", "misaligned-data"),
    catalogue="F9",
)
def dqn_no_done_mask(td_targets_of: Line) -> Line:
    """(1 − terminated) left out."""

    def broken(rewards: Tensor, next_values: Tensor, terminated: Tensor, gamma: float) -> Tensor:
        return td_targets_of(rewards, next_values, terminated & False, gamma)

    return broken


@dqn_fault(
    piece="q_of",
    summary="actions are counted from the other end: what one action earned is learnt of the other",
    expected=("misaligned-data", "returns-wrong"),
    catalogue="F44",
)
def dqn_wrong_action(q_of: Line) -> Line:
    """Only in the update: what acts takes the largest value of all."""
    return lambda values, actions: q_of(values, values.shape[-1] - 1 - actions)


@dqn_fault(
    piece="keep",
    summary="the memory takes no more once that share of it is full: all updates are on the first,"
    " random transitions",
    expected=("stale-data",),
    catalogue="F24",
    doses=(0.1, 0.03, 0.01),
)
def replay_frozen(keep: Keep, *, dose: float) -> Keep:
    """An index that stops at the end instead of going round."""

    def broken(replay: Replay[Transitions], transitions: Transitions) -> None:
        if len(replay) < dose * replay.capacity:
            keep(replay, transitions)

    return broken


@dqn_fault(
    piece="model_of",
    summary="the biases of the first layer start at −20: none of its units ever fires, and none "
    "gets a gradient",
    expected=("dormant-units", "dead-block"),
    catalogue="F40",
)
def dead_relus(model_of: MakeModel) -> MakeModel:
    """An initialisation for units that have no threshold."""
    from torch import nn

    def broken(config: Config) -> nn.Module:
        model = model_of(config)
        first: Any = next(each for each in model.modules() if isinstance(each, nn.Linear))
        nn.init.constant_(first.bias, -20.0)
        return model

    return broken


# REINFORCE: its sign, its path, its returns, its baseline.


@reinforce_fault(
    piece="reinforce_loss_of",
    summary="the loss lost its minus: each step lowers what it should raise",
    expected=("update-opposes-reward", "reward-declining"),
    catalogue="F26",
)
def reinforce_wrong_sign(reinforce_loss_of: Line) -> Line:
    """An objective that is maximised, given to an optimizer that minimises."""
    return negated(reinforce_loss_of)


@reinforce_fault(
    piece="reinforce_loss_of",
    summary="the log-probs are detached: the loss shows the policy term, and only the bonus moves "
    "the policy",
    expected=("dead-term",),
    catalogue="F20",
)
def log_prob_detached(reinforce_loss_of: Line) -> Line:
    """As mlx-lm-lora once had it (issue 50)."""
    return first_detached(reinforce_loss_of)


@reinforce_fault(
    piece="returns_of",
    summary="the return of a step is its own reward: nothing is carried back from what followed",
    expected=("returns-wrong",),
    catalogue="F10",
)
def no_discount_back(returns_of: Line) -> Line:
    """γ read as zero."""
    return lambda rewards, config: returns_of(rewards, dataclasses.replace(config, gamma=0.0))


@reinforce_fault(
    piece="baseline_of",
    summary="the critic is fitted to a batch's returns before it is subtracted from them",
    expected=("baseline-leak", "advantage-scale"),
    catalogue="F12",
)
def baseline_leak(baseline_of: Line) -> Line:
    """The fit moved ahead of the advantages."""
    import torch

    def broken(model: ActorCritic, observations: Tensor, returns: Tensor) -> Tensor:
        weights = list(model.critic.parameters())
        optimizer = torch.optim.Adam(weights, lr=1e-2)
        for _ in range(FITS):
            error = (model.values(observations) - returns).square().mean()
            for weight, grad in zip(weights, torch.autograd.grad(error, weights), strict=True):
                weight.grad = grad
            optimizer.step()
        return baseline_of(model, observations, returns)

    return broken


# Settings that are wrong by orders of magnitude, in three doses.

# 1e-3 typed without its minus, or taken over from SGD.
ppo_fault.wrong_setting(
    "lr_high",
    times="learning_rate",
    summary="the learning rate is that many times as high",
    expected=("step-too-large", "ratio-explosion"),
    catalogue="F15",
    doses=(10, 100, 1000),
)

# The same for values that are bootstrapped from themselves.
dqn_fault.wrong_setting(
    "dqn_lr_high",
    times="learning_rate",
    summary="the learning rate is that many times as high",
    expected=("step-too-large", "critic-diverges"),
    catalogue="F15",
    doses=(10, 100, 1000),
)

# As of a recipe for fine-tuning a large model.
ppo_fault.wrong_setting(
    "lr_low",
    times="learning_rate",
    summary="the learning rate is divided by 30, 100 or 1000",
    expected=("policy-frozen",),
    catalogue="F16",
    doses=(1 / 30, 1 / 100, 1 / 1000),
)

# max_norm of another optimizer, or of a summed loss.
ppo_fault.wrong_setting(
    "clip_tiny",
    to="max_grad_norm",
    summary="gradients are cut to this length, which is far below their own: Adam's ε is larger "
    "than what is left",
    expected=("over-clipping", "clip-always-active"),
    catalogue="F31",
    doses=(1e-2, 1e-3, 1e-5),
)

# 0.01 meant for rewards of another scale.
ppo_fault.wrong_setting(
    "entropy_coef_high",
    times="ent_coef",
    summary=(
        "the entropy bonus counts that many times as much: staying random pays more than balancing"
    ),
    expected=("entropy-never-falls", "regulariser-dominates"),
    catalogue="F18",
    doses=(30, 100, 1000),
)

# A coefficient for returns of order one hundredth.
ppo_fault.wrong_setting(
    "value_coef_high",
    times="vf_coef",
    summary="the value loss counts that many times as much, in a trunk it shares with the policy: "
    "the critic has it for itself",
    expected=("critic-dominates",),
    catalogue="F37",
    needs=("shared_trunk=true",),
    doses=(100, 1000, 10_000),
)

# PPO.


@ppo_fault(
    piece="policy_loss_of",
    summary="the surrogate lost its minus: each step lowers what it should raise",
    expected=("update-opposes-reward", "reward-declining"),
    catalogue="F26",
)
def wrong_sign(policy_loss_of: Line) -> Line:
    """An objective that is maximised, given to an optimizer that minimises."""
    return negated(policy_loss_of)


@ppo_fault(
    piece="advantages_of",
    summary="neither the bootstrap nor the sum of errors stops where an episode does: falling costs"
    " nothing",
    expected=("returns-wrong", "misaligned-data"),
    catalogue="F9",
)
def no_done_mask(advantages_of: Line) -> Line:
    """(1 − done) left out, in both places."""

    def broken(
        rewards: Tensor, values: Tensor, next_values: Tensor, terminated: Tensor, *rest: Any
    ) -> Tensor:
        done, config = rest
        never = terminated & False
        return advantages_of(rewards, values, next_values, never, done & False, config)

    return broken


@ppo_fault(
    piece="advantages_of",
    summary="rewards and ends are kept environment by environment and read step by step: each "
    "belongs to another state",
    expected=("misaligned-data", "returns-wrong"),
    catalogue="F44",
)
def rewards_misaligned(advantages_of: Line) -> Line:
    """A reshape where a transpose was meant."""

    def broken(rewards: Tensor, values: Tensor, next_values: Tensor, *rest: Any) -> Tensor:
        terminated, done, config = rest
        moved = [each.T.reshape(each.shape) for each in (rewards, terminated, done)]
        return advantages_of(moved[0], values, next_values, moved[1], moved[2], config)

    return broken


@ppo_fault(
    piece="advantages_of",
    summary="advantages are normalised where they are made and again in the loss; value targets are"
    " made in between",
    expected=("advantage-scale", "returns-wrong"),
    catalogue="F12",
)
def normalised_twice(advantages_of: Line) -> Line:
    """Returns are made of advantages plus values, and the advantages have lost their unit by
    then."""

    def broken(*given: Any) -> Tensor:
        advantages = advantages_of(*given)
        return (advantages - advantages.mean()) / (advantages.std() + 1e-8)

    return broken


@ppo_fault(
    piece="scaled",
    summary="rewards are scaled up once more, by 100: value targets go up to 200",
    expected=("reward-scale", "critic-dominates"),
    catalogue="F8",
)
def reward_x100(scaled: Line) -> Line:
    """A percentage taken for a share."""
    return times(100, scaled)


@ppo_fault(
    piece="value_loss_of",
    summary="the value loss is computed on detached values: it is in the loss, and the critic never"
    " learns",
    expected=("dead-term", "dead-block"),
    catalogue="F36",
)
def critic_detached(value_loss_of: Line) -> Line:
    """The detach that belongs to the returns, on the wrong side."""
    return first_detached(value_loss_of)


@ppo_fault(
    piece="parameters_of",
    summary="the critic has a parameter group of its own whose learning rate is zero, and no "
    "schedule sets it",
    expected=("not-in-optimizer", "critic-explains-nothing"),
    catalogue="F36",
)
def critic_lr_zero(parameters_of: Parameters) -> Parameters:
    """Kept still for a warm-up, and never let go."""

    def broken(model: nn.Module) -> Iterable[Any]:
        critic = model.get_submodule("critic")
        others = left_out(critic, parameters_of(model))
        return [{"params": others}, {"params": list(critic.parameters()), "lr": 0.0}]

    return broken


@ppo_fault(
    piece="parameters_of",
    summary="the actor's last layer is in no optimizer: it has a gradient and never moves",
    expected=("not-in-optimizer",),
    catalogue="F34",
)
def frozen_layer(parameters_of: Parameters) -> Parameters:
    """As when the head is replaced after the optimizer was made."""

    def broken(model: nn.Module) -> Iterable[Any]:
        *_, head = model.get_submodule("actor").children()
        return left_out(head, parameters_of(model))

    return broken


@ppo_fault(
    piece="model_of",
    summary="from a tenth of the training on the actor's last layer adds √(0·w): no value "
    "changes, its gradient is NaN",
    expected=("nonfinite-gradient",),
    catalogue="F32",
)
def nan_layer(model_of: MakeModel) -> MakeModel:
    """A square root has an infinite slope at zero, and infinity times zero is not a number."""
    import torch
    from torch import nn

    class Head(nn.Module):
        """The same layer, sound for `healthy` calls of the training."""

        def __init__(self, layer: nn.Linear, *, healthy: int) -> None:
            super().__init__()
            self.weight, self.bias, self.healthy = layer.weight, layer.bias, healthy

        def forward(self, hidden: Tensor) -> Tensor:
            self.healthy -= torch.is_grad_enabled()
            nothing = (0 * self.weight).square().sum()
            logits = nn.functional.linear(hidden, self.weight, self.bias)
            return logits + nothing.sqrt() if self.healthy < 0 else logits

    def broken(config: Config) -> nn.Module:
        model = model_of(config)
        actor: Any = model.get_submodule("actor")
        updates = (
            config.total_steps // config.batch_size * config.update_epochs * config.num_minibatches
        )
        actor[-1] = Head(actor[-1], healthy=updates * config.accumulate // 10)
        return model

    return broken


@ppo_fault(
    piece="log_prob_of",
    summary="actions are counted from the other end: the log-prob is that of the action that was "
    "not taken",
    expected=("score-not-zero-mean", "update-opposes-reward"),
    catalogue="F25",
)
def log_prob_wrong_action(log_prob_of: Line) -> Line:
    """Ratios are one before the first update, as they should be: sampler and trainer err alike."""
    return lambda log_policy, actions: log_prob_of(log_policy, log_policy.shape[-1] - 1 - actions)


@ppo_fault(
    piece="sample",
    summary="actions are drawn with even odds, whatever the policy says",
    expected=("score-not-zero-mean", "actions-ignore-policy"),
    catalogue="F25",
)
def sampler_ignores_logits(sample: Line) -> Line:
    """As when the sampler is given the mask for the logits."""
    return lambda log_policy: sample(0 * log_policy)


@ppo_fault(
    piece="entropy_of",
    summary=(
        "the softmax of the entropy runs over the samples of a minibatch instead of the actions"
    ),
    expected=("entropy-of-wrong-distribution", "regulariser-dominates"),
    catalogue="F29",
)
def entropy_wrong_axis(entropy_of: Line) -> Line:
    """dim=0 for dim=-1."""
    return lambda logits: entropy_of(logits.T)


@ppo_fault(
    piece="collect",
    summary="training lags behind collecting by so many rollouts: the policy has long been "
    "another when a batch is used",
    expected=("stale-data",),
    catalogue="F24",
    doses=(3, 10, 30),
)
def stale_batches(collect: Collect, *, dose: float) -> Collect:
    """A queue between sampler and trainer that fills up."""
    queue: deque[PpoRollout] = deque(maxlen=int(dose) + 1)

    def broken(*given: Any) -> tuple[PpoRollout, Array]:
        rollout, observation = collect(*given)
        queue.append(rollout)
        return queue[0], observation

    return broken


@ppo_fault(
    piece="observed",
    summary=(
        "observations come in other units, that many times as large: every hidden unit is saturated"
    ),
    expected=("observation-scale",),
    catalogue="F43",
    doses=(100, 1000, 10_000),
)
def observations_unscaled(observed: Line, *, dose: float) -> Line:
    """Millimetres for metres."""
    return times(dose, observed)


@ppo_fault(
    piece="clip",
    summary="gradients are clipped while they still hold the loss scale: what is left of them is a"
    " 65,536th",
    expected=("clip-before-unscale",),
    catalogue="F30",
    needs=("amp=true",),
)
def clip_before_unscale(clip: Line) -> Line:
    """As Lightning once had it (issues 9330 and 9694)."""
    from torch import nn

    def broken(model: nn.Module, optimizer: Any, scaler: Any, max_norm: float) -> Tensor:
        return nn.utils.clip_grad_norm_(model.parameters(), max_norm)

    return broken


@ppo_fault(
    piece="divided",
    summary="the loss of a micro-batch is divided by their number twice: the gradient is a "
    "quarter of what it should be",
    expected=("gradient-not-invariant",),
    catalogue="F28",
    needs=("accumulate=4",),
)
def divided_twice(divided: Line) -> Line:
    """As ms-swift once had it (issue 10117): once by hand, once by the trainer."""
    return lambda loss, parts: divided(divided(loss, parts), parts)
