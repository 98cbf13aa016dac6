"""CartPole-v1 by PPO, DQN or REINFORCE, watched by a meter; each algorithm is a file of its own
beside this one.

What they share is here: the faults, the model, the environments, the instrument. An algorithm is a
generator that trains for a stretch, yields what there is to log, and goes on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

from gradiometer.errors import UsageError
from gradiometer_labs import faults
from gradiometer_labs.cartpole import dqn, ppo, reinforce, setup
from gradiometer_labs.cartpole.config import Config, TrainingProgress
from gradiometer_labs.config import torch_device
from gradiometer_labs.control import CONTROL_SEED, ControlRewards
from gradiometer_labs.episodes import Episodes, return_of
from gradiometer_labs.watching import watched
from gradiometer_labs.weights import load_weights

__all__ = ["ALGORITHMS", "Config", "Pieces", "Result", "TrainingProgress", "set_up", "train"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How the training ended."""

    mean_return: float
    """Over the last 100 episodes."""
    episodes: int
    env_steps: int
    entropy: float
    """Of the policy on the last rollout, in nats; NaN of DQN, whose policy has none."""
    run: Path | None
    model: nn.Module


@dataclass(frozen=True, kw_only=True)
class Pieces(ppo.PpoPieces, dqn.DqnPieces, reinforce.ReinforcePieces):
    """The lines of this training that a fault may change, of all its algorithms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """How to train, and the lines it is made of."""

    rounds: Callable[[setup.TrainingSetup[Any], Any], setup.Rounds]
    pieces: type[setup.SharedPieces]


ALGORITHMS: Mapping[str, Algorithm] = {
    "ppo": Algorithm(rounds=ppo.rounds, pieces=ppo.PpoPieces),
    "dqn": Algorithm(rounds=dqn.rounds, pieces=dqn.DqnPieces),
    "reinforce": Algorithm(rounds=reinforce.rounds, pieces=reinforce.ReinforcePieces),
}


def train(config: Config, progress: Callable[[TrainingProgress], None] | None = None) -> Result:
    """Train from scratch, or from `config.start`; all that is random comes from `config.seed`."""
    refuse_misplaced(config)
    pieces = faults.apply(config.fault, "cartpole", Pieces(config=config))
    config, logged = pieces.config, dict[str, Any]()
    control = control_of(config)
    progress = control.announced(progress)
    with set_up(pieces, control.facts) as training:
        episodes, meter = training.episodes, training.meter
        for env_steps, logged in ALGORITHMS[config.algorithm].rounds(training, pieces):
            if logged:
                meter.log(logged, **episodes.news())
            if progress is not None:
                done = min(env_steps, config.total_steps)
                progress(
                    TrainingProgress(
                        done=done, total=config.total_steps, mean_return=episodes.mean_return
                    )
                )
    return Result(
        mean_return=episodes.mean_return,
        episodes=len(episodes.returns),
        env_steps=env_steps,
        entropy=logged.get("entropy", float("nan")),
        run=meter.run,
        model=training.model,
    )


def maker(config: Config) -> Callable[[], gymnasium.Env[Any, Any]]:
    """Makes one cart."""
    return partial(gymnasium.make, "CartPole-v1", max_episode_steps=int(config.max_reward))


def control_of(config: Config) -> ControlRewards:
    """Pushes at random, and pushes to where the pole leans and falls."""
    make, seed = maker(config), CONTROL_SEED
    return ControlRewards(
        random_reward=return_of(lambda _, rng: rng.integers(2), make, seed=seed),
        baseline_reward=return_of(
            lambda seen, _: int(seen[2] + seen[3] > 0), make, seed=seed, episodes=4
        ),
        rule="Push where it falls",
    )


@contextmanager
def set_up(
    pieces: Pieces, facts: Mapping[str, float] | None = None
) -> Iterator[setup.TrainingSetup[Any]]:
    """The model, its optimizer, the environments and the instrument; closed again when all is
    over."""
    config = pieces.config
    torch.manual_seed(config.seed)
    model = pieces.model_of(config)
    load_weights(model, config.start)
    model = model.to(torch_device(config.device))
    optimizer = torch.optim.Adam(pieces.parameters_of(model), lr=config.learning_rate, eps=1e-5)
    envs = SyncVectorEnv([maker(config)] * config.num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    # seed, seed + 1, ... would give neighbouring seeds nearly the same environments
    observation, _ = envs.reset(
        seed=np.random.SeedSequence(config.seed).generate_state(config.num_envs).tolist()
    )
    blocks = {name: f"^{name}" for name, part in model.named_children() if [*part.parameters()]}
    with closing(envs), watched(model, optimizer, config, facts=facts, blocks=blocks) as meter:
        yield setup.TrainingSetup(
            envs=envs,
            observation=observation,
            episodes=Episodes(config.num_envs),
            model=model,
            optimizer=optimizer,
            meter=meter,
        )


def refuse_misplaced(config: Config) -> None:
    """A fault of another algorithm, or of a part that is switched off, would change nothing and say
    nothing."""
    lines = {field.name for field in dataclasses.fields(ALGORITHMS[config.algorithm].pieces)}
    for found, _ in faults.chosen(config.fault, "cartpole"):
        for need in found.needs:
            key, _, value = need.partition("=")
            if str(getattr(config, key)).lower() != value:
                raise UsageError(
                    f"fault={found.name} needs {need}; found {key}={getattr(config, key)}"
                )
        if found.piece not in lines:
            raise UsageError(
                f"fault={found.name} changes {found.piece}, which algorithm={config.algorithm} does"
                " not have"
            )
