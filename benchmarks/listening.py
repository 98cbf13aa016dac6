"""What listening costs where nothing is measured: a backward, an environment step; and what credit
and environment together take of SB3's PPO.

    python -m benchmarks listening

A backward that is not measured is timed with torch's own left out, whose spread is larger than what
a meter adds; the meter's next measured step never comes. A training step is a small network's, with
its backward, clip and Adam. An environment step is CartPole's, with and without a listener; for SB3
it is one of a vector environment. Of PPO (SB3's defaults, CartPole, 49,152 steps) the time inside
the hooks of credit and of the critic's layers is added up, and each of its environment steps is
charged what was measured of one before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

import gradiometer as gm
from benchmarks.models import mlp
from benchmarks.rows import Row, Scale, clock, counted, measured
from benchmarks.timing import in_turns, seconds_of
from gradiometer.capture import environment, hooks

__all__ = ["rows"]

BACKWARDS, TRAINED, STEPS = 20_000, 300, 4_000
ROLLOUT, ROLLOUTS = 2_048, 24
MICRO = 1e6


def rows(scale: Scale) -> Iterator[Row]:
    """A backward, a training step, an environment step, and the share of a training."""
    yield backward(scale)
    yield training_step(scale)
    for name, play in (("an environment step", played), ("a step of SB3's VecEnv", played_by_sb3)):
        taken = steps(scale, play)
        each = taken["heard"] - taken["alone"]
        yield measured(
            f"{name} that is heard",
            each * MICRO,
            unit="µs more",
            note=clock(taken, "alone", "heard"),
        )
    # one training, of seconds that are added up: there are no rounds to take a spread of
    whole = share(scale, float(np.median(each)))
    yield counted("credit and environment, of SB3's PPO", whole, unit="of its time", at_most=0.01)


def backward(scale: Scale) -> Row:
    """One that is not measured, without what torch does in it."""
    calls = scale.of(BACKWARDS, 50)
    torchs, tensor = torch.autograd.backward, torch.ones((), requires_grad=True)

    def alone() -> None:
        for _ in range(calls):
            torch.autograd.backward(tensor)

    def beside_a_meter() -> None:
        with idle_meter():
            inside.append(seconds_of(alone))

    def nothing(*args: Any, **kwargs: Any) -> None:
        """In the place of torch's."""

    inside: list[float] = []
    torch.autograd.backward = nothing
    try:
        taken = in_turns({"alone": alone, "watched": beside_a_meter}, rounds=scale.rounds())
    finally:
        torch.autograd.backward = torchs
    watched = np.array(inside[-len(taken["alone"]) :])
    taken = {"alone": taken["alone"] / calls, "watched": watched / calls}
    return measured(
        "a backward that is not measured",
        (taken["watched"] - taken["alone"]) * MICRO,
        unit="µs more",
        at_most=2.0,
        note=clock(taken, "alone", "watched"),
    )


def training_step(scale: Scale) -> Row:
    """One that is not measured: backward, clip and step of a 2 × 64 network."""
    number = scale.of(TRAINED, 20)

    def trained(watched: bool) -> Callable[[], None]:
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters())
        if watched:
            stack.enter_context(
                gm.watch(model, optimizer, run=None, quiet=True, every=1_000_000, budget=None)
            )
        inputs = torch.randn(64, 4)

        def steps() -> None:
            for _ in range(number):
                optimizer.zero_grad()
                sum(part(inputs).square().mean() for part in model.children()).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()

        steps()
        return steps

    with ExitStack() as stack:
        candidates = {"alone": trained(False), "watched": trained(True)}
        taken = {
            name: seconds / number
            for name, seconds in in_turns(candidates, rounds=scale.rounds()).items()
        }
    return measured(
        "a training step of a 2 × 64 network that is not measured",
        (taken["watched"] - taken["alone"]) * MICRO,
        unit="µs more",
        note=clock(taken, "alone", "watched"),
    )


@contextmanager
def idle_meter() -> Iterator[None]:
    """Past its first step, and with none to come."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters())
    with gm.watch(model, optimizer, run=None, quiet=True, every=1_000_000, budget=None):
        for _ in range(2):
            model(torch.randn(8, 8)).sum().backward()
            optimizer.step()
        yield


def played(actions: list[int]) -> Callable[[], None]:
    """CartPole, step by step."""
    import gymnasium

    env = gymnasium.make("CartPole-v1")

    def play() -> None:
        env.reset(seed=0)
        for action in actions:
            _, _, ended, cut, _ = env.step(action)
            if ended or cut:
                env.reset()

    return play


def played_by_sb3(actions: list[int]) -> Callable[[], None]:
    """The same behind SB3's vector environment of one, as its PPO makes it."""
    import gymnasium
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    env = DummyVecEnv([lambda: Monitor(gymnasium.make("CartPole-v1"))])
    chosen = [np.array([action]) for action in actions]

    def play() -> None:
        env.reset()
        for action in chosen:
            env.step(action)

    return play


def steps(scale: Scale, made: Callable[[list[int]], Callable[[], None]]) -> dict[str, Any]:
    """Seconds of an environment step, with and without a listener."""
    number = scale.of(STEPS, 100)
    play = made(np.random.default_rng(0).integers(0, 2, number).tolist())

    def heard() -> None:
        remove = environment.listen()
        try:
            inside.append(seconds_of(play))
        finally:
            remove()

    inside: list[float] = []
    taken = in_turns({"alone": play, "heard": heard}, rounds=scale.rounds())
    listened = np.array(inside[-len(taken["alone"]) :])
    return {"alone": taken["alone"] / number, "heard": listened / number}


def share(scale: Scale, step: float) -> float:
    """Of a PPO training the part that credit took, and environment steps at `step` seconds each."""
    from stable_baselines3 import PPO

    from gradiometer.integrations.sb3 import GradiometerCallback

    rollout, rollouts = scale.of(ROLLOUT, 64), scale.of(ROLLOUTS, 2)
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=rollout, seed=0, device="cpu", verbose=0)
    callback = GradiometerCallback(run=None)
    with timed(hooks.LayerListener, "__call__") as layers:
        seconds = seconds_of(lambda: model.learn(rollouts * rollout, callback=callback))
    assert callback.meter is not None
    credit = callback.meter._observer.credit.seconds + sum(layers)
    return float((credit + rollouts * rollout * max(step, 0.0)) / seconds)


@contextmanager
def timed(owner: type, name: str) -> Iterator[list[float]]:
    """Seconds of each call of a method."""
    original, taken = getattr(owner, name), []

    def call(*args: Any) -> Any:
        started = time.perf_counter()
        try:
            return original(*args)
        finally:
            taken.append(time.perf_counter() - started)

    setattr(owner, name, call)
    try:
        yield taken
    finally:
        setattr(owner, name, original)
