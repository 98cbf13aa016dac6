"""Which recipe made the targets, in programs and in SB3's trainers with one wrong line each."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import gradiometer as gm
from gradiometer.doctor.diagnosis import diagnose
from gradiometer.doctor.replayed import replayed_targets
from gradiometer.doctor.rundata import RunData
from gradiometer.maths.targetrecipes import ReplayedTargets

ID = "recipe-mismatch"
FIRST, STEPS, EVERY = 190, 260, 4
"""Steps of the environment before the first update, in all, and between updates: looks are at 200
and 252."""
CHEAP: dict[str, Any] = {"budget": None, "quiet": True, "tier": "light", "terms": "manual"}


def critic() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))


def drawn(policy: nn.Module, states: Tensor, bug: str) -> tuple[Tensor, Tensor]:
    """Squashed actions and their log-probabilities."""
    centre, spread = policy(states).chunk(2, 1)
    normal = torch.distributions.Normal(centre, spread.clamp(-3, 1).exp())
    free = normal.rsample()
    log_probs = normal.log_prob(free)
    if bug != "tanh":
        way = -1.0 if bug == "turned" else 1.0
        log_probs = log_probs - way * 2 * (math.log(2) - free - functional.softplus(-2 * free))
    return 2.0 * free.tanh(), log_probs.sum(1)


def learn_soft(folder: Path | None, bug: str = "", asked: str = "__call__") -> list[Tensor]:
    """SAC with one wrong line, or none; its weights and a random number. Without a folder nobody
    watches. Critics are `asked` by calling them, or by a method."""
    torch.manual_seed(0)
    rng = random.Random(0)
    policy, first, second = nn.Linear(3, 2), critic(), critic()
    first_target, second_target = copy.deepcopy(first), copy.deepcopy(second)
    ours = torch.optim.Adam(policy.parameters(), lr=1e-2)
    theirs = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=1e-2)
    log_alpha = nn.Parameter(torch.tensor(math.log(0.2)))
    warmth = torch.optim.SGD([log_alpha], lr=1e-4)
    env = gym.make("Pendulum-v1")
    state = env.reset(seed=0)[0]
    kept = []
    model = nn.ModuleDict({"policy": policy, "first": first, "second": second})
    model.register_parameter("log_alpha", log_alpha)
    watched = (
        nullcontext()
        if folder is None
        else gm.watch(model, [ours, theirs, warmth], run=folder, **CHEAP)
    )
    with watched:
        for step in range(STEPS):
            with torch.no_grad():
                action = drawn(policy, torch.tensor(state)[None], bug)[0][0].numpy()
            following, reward, ended, cut, _ = env.step(action)
            kept.append((state, action, np.float32(reward), following))
            state = env.reset()[0] if ended or cut else following
            if step < FIRST or step % EVERY:
                continue
            columns = zip(*rng.sample(kept, 64), strict=True)
            states, actions, rewards, nexts = (torch.tensor(np.array(x)) for x in columns)
            alpha = log_alpha.detach().exp()
            with torch.no_grad():
                chosen, logs = drawn(policy, nexts, bug)
                ahead = torch.cat([nexts, chosen], 1)
                both = (first, second) if bug == "online" else (first_target, second_target)
                q1, q2 = (getattr(each, asked)(ahead)[:, 0] for each in both)
                lower = torch.max(q1, q2) if bug == "largest" else torch.min(q1, q2)
                soft = lower + alpha * logs * {"added": 1, "missing": 0}.get(bug, -1)
                goals = rewards + 0.95 * soft
            seen = torch.cat([states, actions], 1)
            if bug == "by hand":
                worth = torch.cat([first(seen), second(seen)], 1)
                loss = (worth[:, 0] - goals).square().mean() + (worth[:, 1] - goals).pow(2).mean()
            else:
                loss = sum(
                    (functional.mse_loss(each(seen)[:, 0], goals) for each in (first, second)),
                    torch.zeros(()),
                )
            theirs.zero_grad()
            loss.backward()
            theirs.step()
            chosen, logs = drawn(policy, states, bug)
            ahead = torch.cat([states, chosen], 1)
            ours.zero_grad()
            (alpha * logs - torch.min(first(ahead), second(ahead))[:, 0]).mean().backward()
            ours.step()
            sign = 1.0 if bug == "temperature" else -1.0
            warmth.zero_grad()
            (sign * log_alpha.exp() * (logs.detach() - 1.0)).mean().backward()
            warmth.step()
            with torch.no_grad():
                for one, other in ((first_target, first), (second_target, second)):
                    for p, q in zip(one.parameters(), other.parameters(), strict=True):
                        p.lerp_(q, 0.05)
    return [*(p.detach() for p in model.parameters()), torch.rand(3)]


def read(folder: Path) -> ReplayedTargets:
    with gm.load(folder) as run:
        assert not run.events("fault")
        found = replayed_targets(RunData(run))
    assert found is not None
    return found


@pytest.mark.parametrize("bug", ["", "by hand"])
def test_a_healthy_soft_actor_critic_is_checked_to_the_last_digit(tmp_path: Path, bug: str) -> None:
    learn_soft(tmp_path / "run", bug)
    found = read(tmp_path / "run")
    assert (found.checked, found.wrong) == (True, None)
    assert found.right is not None
    assert found.right.gamma == pytest.approx(0.95, abs=1e-4)
    assert found.right.temperature == pytest.approx(0.2, abs=2e-3)
    assert not {ID, "entropy-sign"} & {each.id for each in diagnose(tmp_path / "run").findings}
    with gm.load(tmp_path / "run") as run:
        assert run.tables("proofs")[-1].content["entropy-sign"] == "ok"


@pytest.mark.parametrize(
    ("bug", "recipe", "title"),
    [
        ("largest", "twins-largest", "larger value of both critics: exact on"),
        ("added", "entropy-added", "entropy subtracted"),
        ("missing", "entropy-missing", "without the entropy of the policy"),
        ("tanh", "tanh-missing", "not corrected for tanh"),
        ("online", "online", "asking the online network"),
    ],
)
def test_one_wrong_line_of_soft_targets_is_named(
    tmp_path: Path, bug: str, recipe: str, title: str
) -> None:
    learn_soft(tmp_path / "run", bug)
    found = read(tmp_path / "run")
    assert found.wrong is not None
    assert found.wrong.recipe.name == recipe
    said = next(each for each in diagnose(tmp_path / "run").findings if each.id == ID)
    assert (said.basis, said.severity) == ("proved", "warn" if bug == "missing" else "critical")
    assert title in said.title
    assert said.fix


def test_a_temperature_that_runs_away_is_told(tmp_path: Path) -> None:
    learn_soft(tmp_path / "run", "temperature")
    said = next(x for x in diagnose(tmp_path / "run").findings if x.id == "entropy-sign")
    assert (said.basis, said.severity) == ("proved", "critical")
    assert "temperature moves away" in said.title
    assert ID not in {each.id for each in diagnose(tmp_path / "run").findings}


def test_wrong_log_probs_are_not_laid_to_the_temperature(tmp_path: Path) -> None:
    """Corrected for the tanh the wrong way round, they fall where the right ones rise."""
    learn_soft(tmp_path / "run", "turned")
    with gm.load(tmp_path / "run") as run:
        assert not [e for e in run.events("entropy-sign") if e.detail.get("how") == "temperature"]


def test_listening_changes_no_bit_of_a_soft_actor_critic(tmp_path: Path) -> None:
    heard, alone = learn_soft(tmp_path / "run"), learn_soft(None)
    assert all(torch.equal(one, other) for one, other in zip(heard, alone, strict=True))
    assert read(tmp_path / "run").checked


class TwoCritics(nn.Module):
    """Both critics in one module, as the authors of TD3 have them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(*x) for x in ((4, 16), (16, 1)) * 2)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        return self.b(self.a(seen).relu()), self.d(self.c(seen).relu())


@pytest.mark.parametrize(("bug", "wrong"), [("", None), ("largest", "twins-largest")])
def test_two_critics_in_one_module_are_replayed(
    tmp_path: Path, bug: str, wrong: str | None
) -> None:
    torch.manual_seed(0)
    rng = random.Random(0)
    both = TwoCritics()
    target = copy.deepcopy(both)
    optimizer = torch.optim.Adam(both.parameters(), lr=1e-2)
    env = gym.make("Pendulum-v1")
    env.action_space.seed(0)
    kept = []
    with gm.watch(both, optimizer, run=tmp_path / "run", **CHEAP):
        state = env.reset(seed=0)[0]
        for step in range(STEPS):
            action = env.action_space.sample()
            following, reward, ended, cut, _ = env.step(action)
            kept.append((state, action, np.float32(reward), following))
            state = env.reset()[0] if ended or cut else following
            if step < FIRST or step % EVERY:
                continue
            columns = zip(*rng.sample(kept, 64), strict=True)
            states, actions, rewards, nexts = (torch.tensor(np.array(x)) for x in columns)
            with torch.no_grad():
                ahead = target(torch.cat([nexts, nexts[:, :1].tanh()], 1))
                chosen = torch.max(*ahead) if bug else torch.min(*ahead)
                goals = rewards[:, None] + 0.95 * chosen
            q1, q2 = both(torch.cat([states, actions], 1))
            optimizer.zero_grad()
            (functional.mse_loss(q1, goals) + functional.mse_loss(q2, goals)).backward()
            optimizer.step()
            with torch.no_grad():
                for p, q in zip(target.parameters(), both.parameters(), strict=True):
                    p.lerp_(q, 0.05)
    found = read(tmp_path / "run")
    assert found.checked is (wrong is None)
    assert (None if found.wrong is None else found.wrong.recipe.name) == wrong


# SB3, with a changed method.


def trained(folder: Path, name: str, change: Callable[[Any], None] | None = None) -> Path:
    sb3 = pytest.importorskip("stable_baselines3")
    env = "CartPole-v1" if name == "DQN" else "Pendulum-v1"
    more: dict[str, Any] = {"target_update_interval": 30} if name == "DQN" else {}
    model = getattr(sb3, name)(
        "MlpPolicy",
        env,
        seed=1,
        device="cpu",
        learning_starts=FIRST,
        train_freq=EVERY,
        gradient_steps=1,
        batch_size=64,
        policy_kwargs={"net_arch": [16]},
        **more,
    )
    if change is not None:
        change(model)
    parts = [model.policy] if name == "DQN" else [model.actor, model.critic]
    with gm.watch(model.policy, [each.optimizer for each in parts], run=folder, **CHEAP):
        model.learn(STEPS)
    return folder


@pytest.mark.parametrize(("bug", "wrong"), [("", None), ("largest", "twins-largest")])
def test_networks_that_are_asked_by_their_forward_are_replayed(
    tmp_path: Path, bug: str, wrong: str | None
) -> None:
    """`network.forward(x)` passes by the hooks of the network."""
    learn_soft(tmp_path / "run", bug, "forward")
    found = read(tmp_path / "run")
    assert found.checked is (wrong is None)
    assert (None if found.wrong is None else found.wrong.recipe.name) == wrong


@pytest.mark.parametrize("name", ["DQN", "SAC", "TD3"])
def test_sb3_is_checked(tmp_path: Path, name: str) -> None:
    found = read(trained(tmp_path / "run", name))
    assert (found.checked, found.wrong) == (True, None)
    assert found.right is not None
    assert found.right.gamma == pytest.approx(0.99, abs=1e-3)
    assert ID not in {each.id for each in diagnose(tmp_path / "run").findings}


def _asks_online(model: Any) -> None:
    model.q_net_target.forward = model.q_net.forward


def _takes_larger(model: Any) -> None:
    ahead = model.critic_target.forward

    def forward(*given: Tensor) -> tuple[Tensor, ...]:
        larger = torch.max(*ahead(*given))
        return larger, larger

    model.critic_target.forward = forward


@pytest.mark.parametrize(
    ("name", "change", "recipe"),
    [("DQN", _asks_online, "online"), ("TD3", _takes_larger, "twins-largest")],
)
def test_sb3_with_a_changed_method_is_named(
    tmp_path: Path, name: str, change: Callable[[Any], None], recipe: str
) -> None:
    found = read(trained(tmp_path / "run", name, change))
    assert found.wrong is not None
    assert found.wrong.recipe.name == recipe


@pytest.mark.parametrize("first", ["states", "actions"])
def test_values_of_stored_actions_by_a_target_network_are_not_taken_for_the_target(
    tmp_path: Path, first: str
) -> None:
    """Implicit Q-learning: state values follow the target network's, actions' those of states, and
    the policy has the form of the state values."""
    torch.manual_seed(0)
    rng = random.Random(0)
    worth, state_worth, policy = (
        critic(),
        *(nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1)) for _ in range(2)),
    )
    target = copy.deepcopy(worth)
    model = nn.ModuleDict({"worth": worth, "state_worth": state_worth, "policy": policy})
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    env = gym.make("Pendulum-v1")
    kept, state = [], env.reset(seed=0)[0]
    with gm.watch(model, optimizer, run=tmp_path / "run", **CHEAP):
        for step in range(STEPS):
            action = np.array([4.0 * rng.random() - 2.0], np.float32)
            following, reward, ended, cut, _ = env.step(action)
            kept.append((state, action, np.float32(reward), following))
            state = env.reset()[0] if ended or cut else following
            if step < FIRST or step % EVERY:
                continue
            columns = zip(*rng.sample(kept, 64), strict=True)
            states, actions, rewards, nexts = (torch.tensor(np.array(x)) for x in columns)
            seen = torch.cat([states, actions], 1)
            with torch.no_grad():
                said, goals = target(seen)[:, 0], rewards + 0.95 * state_worth(nexts)[:, 0]
            gap = said - state_worth(states)[:, 0]
            losses = {
                "states": ((0.7 - (gap < 0).float()).abs() * gap.square()).mean(),
                "actions": functional.mse_loss(worth(seen)[:, 0], goals),
                "policy": (gap.detach().exp() * (policy(states) - actions)[:, 0].square()).mean(),
            }
            for name in sorted(losses, key=lambda each: each != first):
                optimizer.zero_grad()
                losses[name].backward()
                optimizer.step()
            with torch.no_grad():
                for p, q in zip(target.parameters(), worth.parameters(), strict=True):
                    p.lerp_(q, 0.05)
    with gm.load(tmp_path / "run") as run:
        assert not run.events("fault")
        assert run.tables("proofs")[-1].content["misaligned-data"] == "ok"
