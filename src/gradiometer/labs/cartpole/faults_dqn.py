"""What can be broken in DQN: the target network, the replay, exploration, the values themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gradiometer.labs.faults import fault

if TYPE_CHECKING:
    from torch import Tensor, nn

    from gradiometer.labs.cartpole.config import Config
    from gradiometer.labs.cartpole.replay import Replay, Transitions

__all__: list[str] = []

LAB = ("cartpole",)
DQN = ("algorithm=dqn",)


@fault(
    "target_never_updated",
    labs=LAB,
    piece="renew",
    summary="the target network is never renewed: all targets are made with the untrained one",
    expected=("target-network",),
    catalogue="F38",
    needs=DQN,
)
def target_never_updated(renew: Callable[[nn.Module, nn.Module], None]) -> Callable[[nn.Module, nn.Module], None]:
    """The copy goes into a state dict that nobody loads."""

    def broken(target: nn.Module, online: nn.Module) -> None:
        target.state_dict().update(online.state_dict())

    return broken


@fault(
    "target_is_online",
    labs=LAB,
    piece="target_of",
    summary="the target network is the network itself: targets move with every update",
    expected=("target-network",),
    catalogue="F38",
    needs=DQN,
)
def target_is_online(target_of: Callable[[nn.Module], nn.Module]) -> Callable[[nn.Module], nn.Module]:
    """An assignment for a copy."""
    return lambda online: online


@fault(
    "exploration_off",
    labs=LAB,
    piece="exploration_rate_at",
    summary="ε is zero from the first step on: only what seems best is ever tried",
    expected=("exploration-schedule",),
    catalogue="F41",
    needs=DQN,
)
def exploration_off(exploration_rate_at: Callable[[Config, float], float]) -> Callable[[Config, float], float]:
    """ε kept as a whole number, and so rounded down."""
    return lambda config, done_fraction: float(int(exploration_rate_at(config, done_fraction)))


@fault(
    "dqn_no_done_mask",
    labs=LAB,
    piece="td_targets_of",
    summary="the bootstrap goes on beyond the end of an episode: falling costs nothing",
    expected=("returns-wrong", "misaligned-data"),
    catalogue="F9",
    needs=DQN,
)
def dqn_no_done_mask(td_targets_of: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """(1 − terminated) left out."""

    def broken(rewards: Tensor, next_values: Tensor, terminated: Tensor, gamma: float) -> Tensor:
        return td_targets_of(rewards, next_values, terminated & False, gamma)

    return broken


@fault(
    "dqn_wrong_action",
    labs=LAB,
    piece="q_of",
    summary="actions are counted from the other end: what one action earned is learnt of the other",
    expected=("misaligned-data", "returns-wrong"),
    catalogue="F44",
    needs=DQN,
)
def dqn_wrong_action(q_of: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Only in the update: what acts takes the largest value of all."""
    return lambda values, actions: q_of(values, values.shape[-1] - 1 - actions)


@fault(
    "replay_frozen",
    labs=LAB,
    piece="keep",
    summary="the memory takes no more once that share of it is full: all updates are on the first, random transitions",
    expected=("stale-data",),
    catalogue="F24",
    needs=DQN,
    doses=(0.1, 0.03, 0.01),
)
def replay_frozen(keep: Callable[[Replay, Transitions], None], *, dose: float) -> Callable[[Replay, Transitions], None]:
    """An index that stops at the end instead of going round."""

    def broken(replay: Replay, transitions: Transitions) -> None:
        if len(replay) < dose * replay.capacity:
            keep(replay, transitions)

    return broken


@fault(
    "dead_relus",
    labs=LAB,
    piece="model_of",
    summary="the biases of the first layer start at −20: none of its units ever fires, and none gets a gradient",
    expected=("dormant-units", "dead-block"),
    catalogue="F40",
    needs=DQN,
)
def dead_relus(model_of: Callable[[Config], nn.Module]) -> Callable[[Config], nn.Module]:
    """An initialisation for units that have no threshold."""
    from torch import nn

    def broken(config: Config) -> nn.Module:
        model = model_of(config)
        first: Any = next(each for each in model.modules() if isinstance(each, nn.Linear))
        nn.init.constant_(first.bias, -20.0)
        return model

    return broken
