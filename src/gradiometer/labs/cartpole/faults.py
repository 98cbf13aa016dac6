"""What can be broken in the training of the cart: lines of PPO here, of the others and of the settings in files beside."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from gradiometer.labs.cartpole import faults_dqn, faults_reinforce, faults_settings
from gradiometer.labs.faults import fault

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from gradiometer.labs.cartpole.config import Config
    from gradiometer.labs.cartpole.ppo import Rollout
    from gradiometer.labs.cartpole.stage import Array

__all__ = ["faults_dqn", "faults_reinforce", "faults_settings"]

LAB = ("cartpole",)
PPO = ("algorithm=ppo",)


@fault(
    "wrong_sign",
    labs=LAB,
    piece="policy_loss_of",
    summary="the surrogate lost its minus: each step lowers what it should raise",
    expected=("update-opposes-reward", "reward-declining"),
    catalogue="F26",
    needs=PPO,
)
def wrong_sign(policy_loss_of: Callable[[Tensor, Tensor, float], Tensor]) -> Callable[[Tensor, Tensor, float], Tensor]:
    """An objective that is maximised, given to an optimizer that minimises."""
    return lambda log_ratio, advantages, clip_coef: -policy_loss_of(log_ratio, advantages, clip_coef)


@fault(
    "no_done_mask",
    labs=LAB,
    piece="advantages_of",
    summary="neither the bootstrap nor the sum of errors stops where an episode does: falling costs nothing",
    expected=("returns-wrong", "misaligned-data"),
    catalogue="F9",
    needs=PPO,
)
def no_done_mask(advantages_of: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """(1 − done) left out, in both places."""

    def broken(rewards: Tensor, values: Tensor, next_values: Tensor, terminated: Tensor, *rest: Any) -> Tensor:
        done, config = rest
        never = terminated & False
        return advantages_of(rewards, values, next_values, never, done & False, config)

    return broken


@fault(
    "rewards_misaligned",
    labs=LAB,
    piece="advantages_of",
    summary="rewards and ends are kept environment by environment and read step by step: each belongs to another state",
    expected=("misaligned-data", "returns-wrong"),
    catalogue="F44",
    needs=PPO,
)
def rewards_misaligned(advantages_of: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A reshape where a transpose was meant."""

    def broken(rewards: Tensor, values: Tensor, next_values: Tensor, *rest: Any) -> Tensor:
        terminated, done, config = rest
        moved = [each.T.reshape(each.shape) for each in (rewards, terminated, done)]
        return advantages_of(moved[0], values, next_values, moved[1], moved[2], config)

    return broken


@fault(
    "normalised_twice",
    labs=LAB,
    piece="advantages_of",
    summary="advantages are normalised where they are made and again in the loss; value targets are made in between",
    expected=("advantage-scale", "returns-wrong"),
    catalogue="F12",
    needs=PPO,
)
def normalised_twice(advantages_of: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns are made of advantages plus values, and the advantages have lost their unit by then."""

    def broken(*given: Any) -> Tensor:
        advantages = advantages_of(*given)
        return (advantages - advantages.mean()) / (advantages.std() + 1e-8)

    return broken


@fault(
    "reward_x100",
    labs=LAB,
    piece="scaled",
    summary="rewards are scaled up once more, by 100: value targets go up to 200",
    expected=("reward-scale", "critic-dominates"),
    catalogue="F8",
    needs=PPO,
)
def reward_x100(scaled: Callable[[Tensor, Config], Tensor]) -> Callable[[Tensor, Config], Tensor]:
    """A percentage taken for a share."""
    return lambda rewards, config: 100 * scaled(rewards, config)


@fault(
    "critic_detached",
    labs=LAB,
    piece="value_loss_of",
    summary="the value loss is computed on detached values: it is in the loss, and the critic never learns",
    expected=("dead-term", "dead-block"),
    catalogue="F36",
    needs=PPO,
)
def critic_detached(value_loss_of: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The detach that belongs to the returns, on the wrong side."""
    return lambda values, returns: value_loss_of(values.detach(), returns)


@fault(
    "critic_lr_zero",
    labs=LAB,
    piece="parameters_of",
    summary="the critic has a parameter group of its own whose learning rate is zero, and no schedule sets it",
    expected=("not-in-optimizer", "critic-explains-nothing"),
    catalogue="F36",
    needs=PPO,
)
def critic_lr_zero(
    parameters_of: Callable[[nn.Module], Iterable[Any]],
) -> Callable[[nn.Module], Iterable[Any]]:
    """Kept still for a warm-up, and never let go."""

    def broken(model: nn.Module) -> Iterable[Any]:
        critic = {id(each) for each in model.get_submodule("critic").parameters()}
        given = list(parameters_of(model))
        own = [each for each in given if id(each) in critic]
        return [{"params": [each for each in given if id(each) not in critic]}, {"params": own, "lr": 0.0}]

    return broken


@fault(
    "frozen_layer",
    labs=LAB,
    piece="parameters_of",
    summary="the actor's last layer is in no optimizer: it has a gradient and never moves",
    expected=("not-in-optimizer",),
    catalogue="F34",
    needs=PPO,
)
def frozen_layer(
    parameters_of: Callable[[nn.Module], Iterable[Any]],
) -> Callable[[nn.Module], Iterable[Any]]:
    """As when the head is replaced after the optimizer was made."""

    def broken(model: nn.Module) -> Iterable[Any]:
        *_, head = model.get_submodule("actor").children()
        left_out = {id(each) for each in head.parameters()}
        return [each for each in parameters_of(model) if id(each) not in left_out]

    return broken


@fault(
    "nan_layer",
    labs=LAB,
    piece="model_of",
    summary="from a tenth of the training on the actor's last layer adds √(0·w): no value changes, its gradient is NaN",
    expected=("nonfinite-gradient",),
    catalogue="F32",
    needs=PPO,
)
def nan_layer(model_of: Callable[[Config], nn.Module]) -> Callable[[Config], nn.Module]:
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
        updates = config.total_steps // config.batch_size * config.update_epochs * config.num_minibatches
        actor[-1] = Head(actor[-1], healthy=updates * config.accumulate // 10)
        return model

    return broken


@fault(
    "log_prob_wrong_action",
    labs=LAB,
    piece="log_prob_of",
    summary="actions are counted from the other end: the log-prob is that of the action that was not taken",
    expected=("score-not-zero-mean", "update-opposes-reward"),
    catalogue="F25",
    needs=PPO,
)
def log_prob_wrong_action(log_prob_of: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Ratios are one before the first update, as they should be: sampler and trainer err alike."""
    return lambda log_policy, actions: log_prob_of(log_policy, log_policy.shape[-1] - 1 - actions)


@fault(
    "sampler_ignores_logits",
    labs=LAB,
    piece="sample",
    summary="actions are drawn with even odds, whatever the policy says",
    expected=("score-not-zero-mean", "actions-ignore-policy"),
    catalogue="F25",
    needs=PPO,
)
def sampler_ignores_logits(sample: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """As when the sampler is given the mask for the logits."""
    return lambda log_policy: sample(0 * log_policy)


@fault(
    "entropy_wrong_axis",
    labs=LAB,
    piece="entropy_of",
    summary="the softmax of the entropy runs over the samples of a minibatch instead of the actions",
    expected=("entropy-of-wrong-distribution", "regulariser-dominates"),
    catalogue="F29",
    needs=PPO,
)
def entropy_wrong_axis(entropy_of: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """dim=0 for dim=-1."""
    return lambda logits: entropy_of(logits.T)


@fault(
    "stale_batches",
    labs=LAB,
    piece="collect",
    summary="training lags behind collecting by so many rollouts: the policy has long been another when a batch is used",
    expected=("stale-data",),
    catalogue="F24",
    needs=PPO,
    doses=(3, 10, 30),
)
def stale_batches(
    collect: Callable[..., tuple[Rollout, Array]], *, dose: float
) -> Callable[..., tuple[Rollout, Array]]:
    """A queue between sampler and trainer that fills up."""
    queue: deque[Rollout] = deque(maxlen=int(dose) + 1)

    def broken(*given: Any) -> tuple[Rollout, Array]:
        rollout, observation = collect(*given)
        queue.append(rollout)
        return queue[0], observation

    return broken


@fault(
    "observations_unscaled",
    labs=LAB,
    piece="observed",
    summary="observations come in other units, that many times as large: every hidden unit is saturated",
    expected=("observation-scale",),
    catalogue="F43",
    needs=PPO,
    doses=(100, 1000, 10_000),
)
def observations_unscaled(
    observed: Callable[[Array, torch.device], Tensor], *, dose: float
) -> Callable[[Array, torch.device], Tensor]:
    """Millimetres for metres."""
    return lambda observation, device: dose * observed(observation, device)


@fault(
    "clip_before_unscale",
    labs=LAB,
    piece="clip",
    summary="gradients are clipped while they still hold the loss scale: what is left of them is a 65,536th",
    expected=("clip-before-unscale",),
    catalogue="F30",
    needs=("algorithm=ppo", "amp=true"),
)
def clip_before_unscale(clip: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """As Lightning once had it (issues 9330 and 9694)."""
    from torch import nn

    def broken(model: nn.Module, optimizer: Any, scaler: Any, max_norm: float) -> Tensor:
        return nn.utils.clip_grad_norm_(model.parameters(), max_norm)

    return broken


@fault(
    "divided_twice",
    labs=LAB,
    piece="divided",
    summary="the loss of a micro-batch is divided by their number twice: the gradient is a quarter of what it should be",
    expected=("gradient-not-invariant",),
    catalogue="F28",
    needs=("algorithm=ppo", "accumulate=4"),
)
def divided_twice(divided: Callable[[Tensor, int], Tensor]) -> Callable[[Tensor, int], Tensor]:
    """As ms-swift once had it (issue 10117): once by hand, once by the trainer."""
    return lambda loss, parts: divided(divided(loss, parts), parts)
