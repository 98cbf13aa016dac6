"""What listening costs where nothing is measured: a backward, an environment step; and what credit
and environment together take of SB3's PPO.

    python -m benchmarks listening

A backward is that of one multiplication, so that nothing hides behind it, with and without a meter
whose next measured step never comes. An environment step is CartPole's, with and without a
listener. Of PPO (SB3's defaults, CartPole) the time inside the hooks of credit is added up, and
each of its environment steps is charged what was measured of one before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import nn

import gradiometer as gm
from benchmarks.rows import Row, Scale, clock, measured
from benchmarks.timing import in_turns, seconds_of
from gradiometer.capture import environment

__all__ = ["rows"]

BACKWARDS, STEPS, ROLLOUT = 2_000, 4_000, 2_048
MICRO = 1e6


def rows(scale: Scale) -> Iterator[Row]:
    """A backward, an environment step, and their share of a training."""
    yield backward(scale)
    taken = steps(scale)
    each = taken["heard"] - taken["alone"]
    yield measured(
        "an environment step that is heard",
        each * MICRO,
        unit="µs more",
        note=clock(taken, "alone", "heard"),
    )
    shares = [share(scale, float(cost)) for cost in each]
    yield measured("credit and environment, of SB3's PPO", shares, unit="of its time", at_most=0.01)


def backward(scale: Scale) -> Row:
    """One that is not measured."""
    calls = scale.of(BACKWARDS, 50)
    weight = torch.ones((), requires_grad=True)

    def alone() -> None:
        for _ in range(calls):
            (2.0 * weight).backward()  # type: ignore[no-untyped-call]

    def beside_a_meter() -> None:
        with ExitStack() as stack:
            stack.enter_context(idle_meter())
            inside.append(seconds_of(alone))

    inside: list[float] = []
    taken = in_turns({"alone": alone, "watched": beside_a_meter}, rounds=scale.rounds())
    watched = np.array(inside[-len(taken["alone"]) :])
    taken = {"alone": taken["alone"] / calls, "watched": watched / calls}
    return measured(
        "a backward that is not measured",
        (taken["watched"] - taken["alone"]) * MICRO,
        unit="µs more",
        at_most=2.0,
        note=clock(taken, "alone", "watched"),
    )


def idle_meter() -> Any:
    """Past its first steps, and with none to come."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters())
    meter = gm.watch(model, optimizer, run=None, quiet=True, every=1_000_000)
    for _ in range(2):
        model(torch.randn(8, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return meter


def steps(scale: Scale) -> dict[str, Any]:
    """Seconds of an environment step, with and without a listener."""
    import gymnasium

    env, number = gymnasium.make("CartPole-v1"), scale.of(STEPS, 100)
    actions = np.random.default_rng(0).integers(0, 2, number).tolist()

    def play() -> None:
        env.reset(seed=0)
        for action in actions:
            _, _, ended, cut, _ = env.step(action)
            if ended or cut:
                env.reset()

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
    """Of a PPO training of four rollouts the part that credit took, and environment steps at
    `step` seconds each."""
    from stable_baselines3 import PPO

    from gradiometer.integrations.sb3 import GradiometerCallback

    rollout = scale.of(ROLLOUT, 64)
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=rollout, seed=0, device="cpu", verbose=0)
    callback = GradiometerCallback(run=None)
    seconds = seconds_of(lambda: model.learn(4 * rollout, callback=callback))
    assert callback.meter is not None
    spent = callback.meter._observer.credit.seconds + 4 * rollout * max(step, 0.0)
    return float(spent / seconds)
