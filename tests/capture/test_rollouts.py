"""From a training on a real environment to the recipe of its advantages: the script is watched, and
told nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.distributions import Categorical

import gradiometer as gm
from gradiometer.doctor.replayed import replayed, replayed_values, rollouts_of
from gradiometer.doctor.rule import Skipped, rules
from gradiometer.doctor.rundata import RunData
from gradiometer.records import Finding

GAMMA, LAM, STEPS = 0.97, 0.9, 64


class Walk(gym.Env[Any, Any]):
    """Left or right on a line; it ends at either side, and after twenty steps."""

    observation_space = spaces.Box(-10.0, 10.0, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.t = float(self.np_random.normal()), 0
        return self._seen(), {}

    def _seen(self) -> Any:
        noise = self.np_random.normal()
        return np.array([self.place, self.t / 20, noise], np.float32)

    def step(self, action: Any) -> Any:
        self.place += (1.0 if action else -1.0) + 0.3 * float(self.np_random.normal())
        self.t += 1
        over = abs(self.place) > 3.0
        return self._seen(), self.place - 2.0 * over, over, self.t >= 20, {}


class Wall(Walk):
    """Without noise in what is seen, and walls: who walks into one sees the same again."""

    def _seen(self) -> Any:
        return np.array([self.place, self.start, 0.0], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        gym.Env.reset(self, seed=seed)
        self.place = self.start = float(self.np_random.uniform(-1.0, 1.0))
        self.t = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.place = float(np.clip(self.place + (0.7 if action else -0.7), -2.0, 2.0))
        self.t += 1
        return self._seen(), -abs(self.place), False, self.t >= 9, {}


class Once(Walk):
    """Each step is an episode."""

    def step(self, action: Any) -> Any:
        return self._seen(), self.place * (1.0 if action else -1.0), True, False, {}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2))
        self.v = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))


Recipe = Callable[..., np.ndarray]


def right(rewards: Any, ends: Any, cuts: Any, values: Any, following: Any) -> np.ndarray:
    found, last = np.zeros(len(rewards)), 0.0
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + GAMMA * (1 - ends[t]) * following[t] - values[t]
        last = delta + GAMMA * LAM * (1 - max(ends[t], cuts[t])) * last
        found[t] = last
    return found


def unmasked(rewards: Any, ends: Any, cuts: Any, values: Any, following: Any) -> np.ndarray:
    none = np.zeros(len(rewards))
    return right(rewards, none, none, values, np.append(values[1:], following[-1]))


def train(
    run: Path,
    recipe: Recipe,
    *,
    sign: float = 1.0,
    updates: int = 7,
    env: gym.Env[Any, Any] | None = None,
    clip: float | None = None,
    lr: float = 3e-3,
    forgets: bool = True,
    towards: str = "returns",
    next_values: bool = False,
    replaces: bool = True,
    epochs: int = 1,
    budget: float | None = None,
    parts: int = 2,
    steps: int = STEPS,
) -> Net:
    torch.manual_seed(3)
    env, net = env or Walk(), Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    obs, _ = env.reset(seed=1)
    with gm.watch(net, optimizer, run=run, quiet=True, budget=budget):
        rows: list[tuple[Any, ...]] = []
        for _ in range(updates):
            rows, befores = [] if forgets else rows, []
            for _ in range(steps):
                with torch.no_grad():
                    seen = torch.as_tensor(obs)
                    action = Categorical(logits=net.pi(seen)).sample()
                    value = net.v(seen).item()
                after, reward, ended, cut, _ = env.step(int(action))
                with torch.no_grad():
                    following = net.v(torch.as_tensor(after)).item()
                rows.append((obs, int(action), reward, ended, cut, value, following))
                befores.append(after if next_values else obs)
                after = after if replaces else obs
                obs = env.reset()[0] if ended or cut else after
            observations, actions, *others = zip(*rows, strict=True)
            arrays = [np.array(each, np.float64) for each in others]
            made = torch.as_tensor(recipe(*arrays), dtype=torch.float32)
            baseline = {"returns": 1.0, "less": -1.0}.get(towards, 0.0) * arrays[3]
            returns = torch.as_tensor(right(*arrays) + baseline, dtype=torch.float32)
            states = torch.as_tensor(np.array(observations))
            valued = torch.as_tensor(np.array(befores)) if next_values else states
            with torch.no_grad():
                before = Categorical(logits=net.pi(states)).log_prob(torch.tensor(actions))
            passes = [torch.randperm(len(rows)).split(len(rows) // parts) for _ in range(epochs)]
            for index in (each for several in passes for each in several):
                part = made[index]
                part = (part - part.mean()) / part.std()
                logp = Categorical(logits=net.pi(states[index])).log_prob(
                    torch.tensor(actions)[index]
                )
                loss = -sign * (logp * part).mean()
                if clip is not None:
                    ratio = (logp - before[index]).exp()
                    loss = -torch.min(
                        ratio * part, ratio.clamp(1.0 - clip, 1.0 + clip) * part
                    ).mean()
                loss = (
                    loss + 0.5 * (net.v(valued[index]).squeeze(-1) - returns[index]).pow(2).mean()
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return net


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Callable[..., RunData]]:
    opened: list[Any] = []

    def made(recipe: Recipe, **more: Any) -> RunData:
        train(tmp_path / "run", recipe, **more)
        opened.append(gm.load(tmp_path / "run"))
        return RunData(opened[-1])

    yield made
    for run in opened:
        run.close()


def verdict(run: RunData) -> list[Finding] | Skipped:
    return next(each for each in rules() if each.id == "recipe-mismatch")(run)


@pytest.mark.slow
def test_the_right_recipe_is_checked_and_nothing_is_said(data: Callable[..., RunData]) -> None:
    run = data(right)
    found = replayed(run)
    assert found is not None
    assert found.checked
    assert found.fits[0].r2 > 0.999
    assert verdict(run) == []


@pytest.mark.slow
def test_ends_that_are_not_masked_are_proved(data: Callable[..., RunData]) -> None:
    (said,) = verdict(data(unmasked))
    assert "running on over the ends" in said.title
    assert (said.severity, said.basis) == ("critical", "proved")
    assert "(1 − done)" in said.fix[0]


@pytest.mark.slow
def test_a_flipped_sign_is_proved(data: Callable[..., RunData]) -> None:
    (said,) = verdict(data(right, sign=-1.0))
    assert "opposite sign" in said.title


def test_what_is_kept_is_what_happened(data: Callable[..., RunData]) -> None:
    pairs = rollouts_of(data(right))
    assert len(pairs) >= 4
    for rollout, credit in pairs:  # the first one lacks a step, and is a part
        assert rollout.rewards.shape == (STEPS, 1)
        assert rollout.values is not None
        assert sorted(credit.rows.tolist()) == list(range(STEPS))
        assert rollout.ends.sum() + rollout.cuts.sum() > 0


def moved(*arrays: Any) -> np.ndarray:
    return np.roll(right(*arrays), 1)


def test_who_sees_the_same_twice_is_left_out_and_the_others_tell(
    data: Callable[..., RunData],
) -> None:
    """Those rows had the credit of another step, and the right recipe explained four fifths."""
    run = data(right, env=Wall())
    found = replayed(run)
    assert found is not None
    assert found.samples < 7 * STEPS
    assert found.checked
    assert found.right.r2 > 0.999


def test_episodes_of_one_step_are_replayed(data: Callable[..., RunData]) -> None:
    found = replayed(data(right, env=Once()))
    assert found is not None
    assert found.checked
    assert found.right.r2 > 0.999


def test_advantages_of_the_step_before_are_proved(data: Callable[..., RunData]) -> None:
    (said,) = verdict(data(moved, env=Once()))
    assert "Advantages of the step before explain" in said.title
    assert said.basis == "proved"


def test_ratios_that_move_within_the_first_epoch_are_divided_out(
    data: Callable[..., RunData],
) -> None:
    found = replayed(data(right, clip=0.1, lr=3e-2))
    assert found is not None
    assert found.samples < 7 * STEPS
    assert found.right.r2 > 0.999


@pytest.mark.parametrize(
    ("towards", "words"),
    [
        ("returns", None),
        ("advantages", "the advantages, not"),
        ("less", "the advantages less the values"),
    ],
)
def test_values_that_are_trained_towards_something_else_are_proved(
    data: Callable[..., RunData], towards: str, words: str | None
) -> None:
    run = data(right, towards=towards)
    found = replayed_values(run)
    assert (found is not None) is (words is not None)
    told = verdict(run)
    assert not isinstance(told, Skipped)
    assert [f"Values are trained towards {words}" in each.title for each in told] == (
        [] if words is None else [True]
    )


@pytest.mark.parametrize(("recipe", "told"), [(right, []), (moved, ["recipe-mismatch"])])
def test_the_first_rollout_is_enough(
    data: Callable[..., RunData], recipe: Recipe, told: list[str]
) -> None:
    """Its values were said before any loss had told which network is the critic."""
    run = data(recipe, updates=1)
    found = replayed(run)
    assert found is not None
    assert found.samples == STEPS - 1
    said = verdict(run)
    assert isinstance(said, list)
    assert [each.id for each in said] == told


@pytest.mark.parametrize(("recipe", "told"), [(right, []), (moved, ["recipe-mismatch"])])
def test_a_part_of_the_first_rollout_counts_as_long_as_there_is_no_other(
    data: Callable[..., RunData], recipe: Recipe, told: list[str]
) -> None:
    run = data(recipe, updates=1, parts=6, steps=192)
    assert [bool(each.content.get("is_part")) for each in run.tables("replay")] == [True, True]
    assert len(rollouts_of(run)) == 1
    contents = [each.content for each in run.tables("replay")]
    assert len(contents[0]["credit"]) < len(contents[1]["credit"]) == 191
    said = verdict(run)
    assert isinstance(said, list)
    assert [each.id for each in said] == told


@pytest.mark.slow
def test_only_a_few_rollouts_are_kept_and_no_hook_stays(tmp_path: Path) -> None:
    """Of small ones as many as make up 512 samples."""
    net = train(tmp_path / "run", right, updates=14)
    assert not any(part._forward_hooks for part in net.modules())
    with gm.load(tmp_path / "run") as run:
        assert len(run.tables("replay")) == 512 // STEPS + 1  # the first lacks a step


def test_the_first_updates_on_a_rollout_are_measured_where_few_steps_are(
    data: Callable[..., RunData],
) -> None:
    """As with ten epochs of 32 minibatches: the guaranteed steps met hardly any first one."""
    run = data(right, epochs=60, budget=1e-9, updates=6)
    kept = rollouts_of(run)
    assert len(kept) >= 4
    assert min(len(credit.rows) for _, credit in kept) >= STEPS - 1  # the first lacks a step
    found = replayed(run)
    assert found is not None
    assert found.checked


@pytest.mark.parametrize("forgets", [True, False])
def test_a_buffer_that_is_never_emptied_trains_on_earlier_rollouts(
    forgets: bool, data: Callable[..., RunData]
) -> None:
    run = data(right, forgets=forgets, updates=9)
    share = run.get("credit/stale_share")
    assert share is not None
    if forgets:
        assert not share.values.any()
    else:
        assert share.values[-4:] == pytest.approx(8 / 9, abs=0.03)
    rule = next(each for each in rules() if each.id == "stale-data")
    said = rule(run)
    titles = said.why if isinstance(said, Skipped) else [each.title for each in said]
    assert ("earlier rollouts" in str(titles)) == (not forgets)


def stored(run: RunData) -> list[str]:
    said = next(each for each in rules() if each.id == "misaligned-data")(run)
    return [] if isinstance(said, Skipped) else [each.title for each in said]


@pytest.mark.parametrize("clip", [None, 0.2])
def test_values_of_the_next_observations_are_told(
    clip: float | None, data: Callable[..., RunData]
) -> None:
    (title,) = stored(data(right, next_values=True, clip=clip, updates=4))
    assert "values that are trained are those of the next" in title


def test_an_observation_that_is_never_replaced_is_told(data: Callable[..., RunData]) -> None:
    (title,) = stored(data(right, replaces=False, updates=4))
    assert "first observation" in title


def test_samples_that_are_stored_well_are_not_told(data: Callable[..., RunData]) -> None:
    run = data(right, updates=4)
    assert stored(run) == []
    assert run.table("proofs")["misaligned-data"] == "ok"


def test_without_an_environment_there_is_nothing_to_replay(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, run=tmp_path / "run", quiet=True):
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
    with gm.load(tmp_path / "run") as run:
        assert replayed(RunData(run)) is None
        assert isinstance(verdict(RunData(run)), Skipped)
