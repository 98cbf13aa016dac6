"""The networks: an actor and a critic for the policy gradients, values of the actions for DQN."""

from __future__ import annotations

from torch import Tensor, nn

from gradiometer_labs.cartpole.config import Config

__all__ = ["ActorCritic", "QNetwork", "model_of"]

NUM_INPUTS = 4
"""Position and speed of the cart, angle and angular speed of the pole."""
HIDDEN = 64


class ActorCritic(nn.Module):
    """Two networks that share nothing, so that a gradient in one can be laid at its own loss; or
    one trunk with two heads."""

    def __init__(self, num_inputs: int, num_actions: int, *, shared_trunk: bool = False) -> None:
        super().__init__()
        if shared_trunk:
            self.trunk: nn.Module = mlp(num_inputs, HIDDEN, gain=2**0.5)[:-1]
            self.actor, self.critic = (
                nn.Sequential(_initialised(nn.Linear(HIDDEN, num_outputs), gain))
                for num_outputs, gain in ((num_actions, 0.01), (1, 1.0))
            )
        else:
            self.trunk = nn.Identity()
            self.actor = mlp(num_inputs, num_actions, gain=0.01)
            self.critic = mlp(num_inputs, 1, gain=1.0)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [..., A] and values [...]."""
        hidden = self.trunk(observations)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)

    def logits(self, observations: Tensor) -> Tensor:
        """Of the actions, [..., A]."""
        logits: Tensor = self.actor(self.trunk(observations))
        return logits

    def values(self, observations: Tensor) -> Tensor:
        """Of the states, [...]."""
        values: Tensor = self.critic(self.trunk(observations)).squeeze(-1)
        return values


def mlp(num_inputs: int, num_outputs: int, *, gain: float) -> nn.Sequential:
    """Two tanh layers of 64; a small last `gain` starts the policy uniform."""
    layers = [
        nn.Linear(num_inputs, HIDDEN),
        nn.Linear(HIDDEN, HIDDEN),
        nn.Linear(HIDDEN, num_outputs),
    ]
    for layer, layer_gain in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        _initialised(layer, layer_gain)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


def _initialised(layer: nn.Linear, gain: float) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class QNetwork(nn.Module):
    """The value of each action, [..., 4] -> [..., A], by two layers of rectified units."""

    def __init__(self, num_inputs: int, num_actions: int) -> None:
        super().__init__()
        self.first = nn.Sequential(_initialised(nn.Linear(num_inputs, HIDDEN), 2**0.5), nn.ReLU())
        self.second = nn.Sequential(_initialised(nn.Linear(HIDDEN, HIDDEN), 2**0.5), nn.ReLU())
        self.last = _initialised(nn.Linear(HIDDEN, num_actions), 1.0)

    def forward(self, observations: Tensor) -> Tensor:
        """Q(s, ·)."""
        values: Tensor = self.last(self.activations(observations)[-1])
        return values

    def activations(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """What the units of the two hidden layers put out."""
        first = self.first(observations)
        return first, self.second(first)


def model_of(config: Config) -> nn.Module:
    """An untrained network for the algorithm."""
    if config.algorithm == "dqn":
        return QNetwork(NUM_INPUTS, config.num_actions)
    return ActorCritic(NUM_INPUTS, config.num_actions, shared_trunk=config.shared_trunk)
