"""What values are trained towards, in a DQN and in an actor-critic with one wrong line each."""

from __future__ import annotations

import random
from collections.abc import Callable
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

STEPS = 450


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


def error(values: Tensor, targets: Tensor, bug: str) -> Tensor:
    if bug.startswith("by hand"):
        return (values - targets).pow(2).mean()
    return functional.smooth_l1_loss(values, targets)


def learn(folder: Path, bug: str = "") -> None:
    """A DQN on CartPole; some bugs are of what is stored, some of the targets."""
    torch.manual_seed(0)
    rng = random.Random(0)
    online, target = network(4, 2), network(4, 2)
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-2)
    env = gym.make("CartPole-v1", max_episode_steps=40)
    kept = []
    state = env.reset(seed=0)[0]
    with gm.watch(online, optimizer, run=folder, budget=None, quiet=True):
        for step in range(STEPS):
            action = rng.randrange(2)
            following, reward, terminated, truncated, _ = env.step(action)
            seen = following if "after" in bug else state
            seen = seen * 0.0 if "blind" in bug and step > 2 else seen
            ahead_of = state if "next" in bug else following
            kept.append((seen, action, float(reward), ahead_of, float(terminated)))
            if "first" not in bug and "frozen" not in bug:
                state = following
            if terminated or truncated:
                begun = env.reset()[0]
                state = state if "frozen" in bug else begun
            if step < 100:
                continue
            columns = zip(*rng.sample(kept, 64), strict=True)
            states, actions, rewards, nexts, ends = (torch.tensor(np.array(x)) for x in columns)
            with torch.set_grad_enabled("attached" in bug):
                if "left out" not in bug:
                    ahead = target(nexts).max(1).values
                else:
                    ahead, lives = torch.zeros(64), ends == 0
                    worths = target(nexts[lives])
                    ahead[lives] = (worths.min(1) if "worst" in bug else worths.max(1)).values
            ends = ends * 0 if "ends" in bug else ends
            rewards = -rewards if "turned" in bug else rewards
            rewards = rewards + 3 * states[:, 3].abs() if "bonus" in bug else rewards
            rewards = rewards * 0 if "rewards" in bug else rewards * (0.1 if "scaled" in bug else 1)
            goals = (rewards + 0.99 * (1 - ends) * ahead).float()
            chosen = actions * 0 if "gather" in bug else actions
            chosen = 1 - actions if "renumbered" in bug else chosen
            values = online(states).gather(1, chosen[:, None]).squeeze(1)
            optimizer.zero_grad()
            error(values, goals, bug).backward()
            optimizer.step()
            if step % 20 == 0:
                target.load_state_dict(online.state_dict())


class Street(gym.Env[np.ndarray, int]):
    """Seven places in a row, so that each is seen again and again; its ends pay and are ends."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.at = int(self.np_random.integers(2, 5))
        return self.seen(), {}

    def seen(self) -> np.ndarray:
        return np.array([self.at / 6, 1 - self.at / 6], np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.at += 2 * action - 1
        return self.seen(), self.at / 6 - 0.4, self.at in (0, 6), False, {}


def learn_in_a_street(folder: Path, bug: str = "", *, steps: int = 400) -> None:
    """A DQN where no observation is of one transition alone."""
    torch.manual_seed(0)
    rng = random.Random(0)
    online, target = network(2, 2), network(2, 2)
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-2)
    env = Street()
    state, kept = env.reset(seed=0)[0], []
    with gm.watch(online, optimizer, run=folder, budget=None, quiet=True):
        for step in range(steps):
            action = rng.randrange(2)
            following, reward, ended, _, _ = env.step(action)
            if "full" not in bug or step < 100:
                kept.append((state, action, reward, following, float(ended)))
            state = env.reset()[0] if ended else following
            if step < 100:
                continue
            columns = zip(*rng.sample(kept, 48), strict=True)
            states, actions, rewards, nexts, ends = (torch.tensor(np.array(x)) for x in columns)
            with torch.no_grad():
                ahead = target(nexts).max(1).values * (1.0 if "ends" in bug else 1 - ends)
            values = online(states).gather(1, actions[:, None])[:, 0]
            optimizer.zero_grad()
            functional.mse_loss(values, (rewards + 0.9 * ahead).float()).backward()
            optimizer.step()
            if step % 20 == 0:
                target.load_state_dict(online.state_dict())


@pytest.mark.parametrize("bug", ["", "ends"])
def test_targets_are_replayed_where_states_are_seen_again(tmp_path: Path, bug: str) -> None:
    learn_in_a_street(tmp_path / "run", bug)
    with gm.load(tmp_path / "run") as run:
        found = replayed_targets(RunData(run))
    assert found is not None
    assert (found.wrong.recipe.name if found.wrong else "") == ("ends-not-masked" if bug else "")
    assert found.checked != bool(bug)


@pytest.mark.parametrize("bug", ["", "ends"])
def test_the_first_five_losses_are_enough_for_a_replay(tmp_path: Path, bug: str) -> None:
    learn_in_a_street(tmp_path / "run", bug, steps=105)
    ids = [each.id for each in diagnose(tmp_path / "run").findings]
    assert ids[:1] == (["recipe-mismatch"] if bug else [])


def learn_from_a_store(folder: Path, most: int, *, unit: float = 1.0) -> None:
    """Values of Pendulum's states; only the first `most` transitions are ever stored."""
    torch.manual_seed(0)
    rng = random.Random(0)
    critic = network(3, 1)
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    env = gym.make("Pendulum-v1")
    env = gym.wrappers.TransformObservation(env, lambda seen: seen * np.float32(unit), None)
    env.action_space.seed(0)
    state, kept = env.reset(seed=0)[0], []
    with gm.watch(critic, optimizer, run=folder, budget=None, quiet=True):
        for step in range(1200):
            following, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            if step < most:
                kept.append((state, np.float32(reward)))
            state = env.reset()[0] if terminated or truncated else following
            if step < 100 or step % 4:
                continue
            states, rewards = (
                torch.tensor(np.array(x)) for x in zip(*rng.sample(kept, 64), strict=True)
            )
            optimizer.zero_grad()
            functional.mse_loss(critic(states)[:, 0], rewards).backward()
            optimizer.step()


@pytest.mark.parametrize("unit", [1.0, 1000.0])
def test_what_a_critic_of_stored_samples_takes_is_measured(tmp_path: Path, unit: float) -> None:
    learn_from_a_store(tmp_path / "run", 10_000, unit=unit)
    with gm.load(tmp_path / "run") as run:
        largest = run.series("credit/input_largest")[1]
    assert len(largest) >= 9
    assert 0.5 * unit <= np.median(largest) <= 10.0 * unit


@pytest.mark.parametrize("shift", [0, 1])
def test_rewards_of_the_row_beside_are_told_where_they_are_one_of_two(
    tmp_path: Path, shift: int
) -> None:
    """A bandit: every step is an end, and pays 1 or nothing."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    critic = network(4, 2)
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    env, kept = Arms(), []
    with gm.watch(critic, optimizer, run=tmp_path / "run", budget=None, quiet=True):
        for step in range(320):
            state = env.reset(seed=step)[0]
            action = int(rng.integers(2))
            reward = env.step(action)[1]
            kept.append((state, action, reward))
            if step < 200:
                continue
            chosen = [kept[place] for place in rng.integers(len(kept), size=32)]
            states, actions, paid = (torch.tensor(np.array(x)) for x in zip(*chosen, strict=True))
            values = critic(states).gather(1, actions[:, None])[:, 0]
            optimizer.zero_grad()
            functional.mse_loss(values, paid.float().roll(shift)).backward()
            optimizer.step()
    told = {("recipe-mismatch", "rewards-of-others")} if shift else set()
    assert facts(tmp_path / "run") == told


class Arms(gym.Env[np.ndarray, int]):
    """Of two arms the one that the context points to pays; a step each."""

    observation_space = gym.spaces.Box(-9, 9, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.context = self.np_random.normal(size=4).astype(np.float32)
        return self.context, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        return self.context, float((self.context.sum() > 0) == bool(action)), True, False, {}


@pytest.mark.parametrize("most", [100, 10_000])
def test_a_buffer_that_nothing_is_added_to_is_named(tmp_path: Path, most: int) -> None:
    learn_from_a_store(tmp_path / "run", most)
    with gm.load(tmp_path / "run") as run:
        events = run.events("stale-data")
        state_of_it = run.tables("proofs")[-1].content["stale-data"]
    assert [each.detail["newest"] for each in events] == ([100] if most == 100 else [])
    assert state_of_it == ("found" if most == 100 else "ok")
    found = [each for each in diagnose(tmp_path / "run").findings if each.id == "stale-data"]
    assert [each.basis for each in found] == (["proved"] if most == 100 else [])


def facts(folder: Path) -> set[tuple[str, str]]:
    """Findings with basis `proved`, and what their evidence says first."""
    with gm.load(folder) as run:
        assert not run.events("fault")
        kinds = ("recipe-mismatch", "misaligned-data")
        return {
            (kind, str(event.detail.get("recipe", event.detail.get("how"))))
            for kind in kinds
            for event in run.events(kind)
        }


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["", "by hand", "scaled"])
def test_right_targets_are_checked_and_nothing_is_claimed(tmp_path: Path, bug: str) -> None:
    learn(tmp_path / "run", bug)
    assert facts(tmp_path / "run") == set()
    with gm.load(tmp_path / "run") as run:
        states = run.tables("proofs")[-1].content
    assert (states["recipe-mismatch"], states["misaligned-data"]) == ("ok", "ok")
    assert not {"recipe-mismatch", "misaligned-data"} & {
        each.id for each in diagnose(tmp_path / "run").findings
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "fact", "title"),
    [
        ("ends", ("recipe-mismatch", "ends-not-masked"), "run on over the ends"),
        ("by hand, ends", ("recipe-mismatch", "ends-not-masked"), "run on over the ends"),
        ("rewards", ("recipe-mismatch", "reward-missing"), "The reward is not in"),
        ("after", ("misaligned-data", "after"), "the observation after their action"),
        ("first", ("misaligned-data", "first"), "the first observation of its episode"),
        ("next", ("misaligned-data", "next"), "the same observation twice"),
        ("frozen", ("misaligned-data", "first"), "the first observation of its episode"),
        ("gather", ("misaligned-data", "action"), "Values of other actions"),
        ("blind", ("misaligned-data", "one"), "that the environment never showed"),
    ],
)
def test_one_wrong_line_is_named(
    tmp_path: Path, bug: str, fact: tuple[str, str], title: str
) -> None:
    learn(tmp_path / "run", bug)
    assert facts(tmp_path / "run") == {fact}
    first = diagnose(tmp_path / "run").findings[0]
    assert (first.id, first.basis, first.severity) == (fact[0], "proved", "critical")
    assert title in first.title


def test_a_bonus_of_the_program_s_own_is_no_proof_of_wrong_targets(tmp_path: Path) -> None:
    learn(tmp_path / "run", "bonus")
    assert facts(tmp_path / "run") == {("recipe-mismatch", "targets-wrong")}
    found = diagnose(tmp_path / "run").findings
    assert [each for each in found if each.basis == "proved"] == []


@pytest.mark.parametrize(
    ("bug", "wrong"), [("left out", None), ("left out, worst", "target-worst")]
)
def test_programs_that_leave_out_what_follows_an_end_are_replayed(
    tmp_path: Path, bug: str, wrong: str | None
) -> None:
    """`target(next[not_final])`: the network is asked about fewer rows than there are samples."""
    learn(tmp_path / "run", bug)
    with gm.load(tmp_path / "run") as run:
        found = replayed_targets(RunData(run))
    assert found is not None
    assert found.checked is (wrong is None)
    assert (None if found.wrong is None else found.wrong.recipe.name) == wrong


def test_actions_that_have_another_number_in_the_loss_are_nobody_s_mistake(tmp_path: Path) -> None:
    learn(tmp_path / "run", "renumbered")
    assert facts(tmp_path / "run") == set()


def test_a_target_that_is_not_detached_is_read_all_the_same(tmp_path: Path) -> None:
    """As minimalRL writes it: the target network has a gradient, and nobody steps it."""
    learn(tmp_path / "right", "attached")
    assert facts(tmp_path / "right") == set()
    learn(tmp_path / "wrong", "attached, ends")
    assert facts(tmp_path / "wrong") == {("recipe-mismatch", "ends-not-masked")}


def test_targets_of_ends_with_the_opposite_sign_of_what_was_paid_are_not_called_checked(
    tmp_path: Path,
) -> None:
    """Rewards that a program changes on purpose, or a minus too many: ends alone do not say."""
    learn(tmp_path / "run", "turned")
    assert facts(tmp_path / "run") == set()
    with gm.load(tmp_path / "run") as run:
        state = run.tables("proofs")[-1].content["recipe-mismatch"]
        found = replayed_targets(RunData(run))
    assert state.startswith("unmeasurable: ")
    assert "negates them" in state
    assert found is not None
    assert found.wrong is not None
    assert found.wrong.recipe.name == "reward-negated"  # what the networks said tells it


class Apart(nn.Module):
    """A critic with a layer for observations and one for actions."""

    def __init__(self) -> None:
        super().__init__()
        self.states, self.actions = nn.Linear(3, 16), nn.Linear(1, 16)
        self.rest = network(32, 1)

    def forward(self, given: Tensor) -> Tensor:
        parts = self.states(given[:, :3].contiguous()), self.actions(given[:, 3:].contiguous())
        found: Tensor = self.rest(torch.cat(parts, 1).relu())
        return found


@pytest.mark.slow
@pytest.mark.parametrize("is_wrong", [True, False])
@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("made", [lambda: network(4, 1), Apart])
def test_a_critic_of_states_and_actions_is_found_by_its_columns(
    tmp_path: Path, made: Callable[[], nn.Module], scale: float, is_wrong: bool
) -> None:
    """Or by its layers; what is stored is the action of the environment, or what the actor said of
    it in units of its own."""
    torch.manual_seed(0)
    rng = random.Random(0)
    critic = made()
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    env = gym.make("Pendulum-v1")
    env.action_space.seed(0)
    kept = []
    state = env.reset(seed=0)[0]
    with gm.watch(critic, optimizer, run=tmp_path / "run", budget=None, quiet=True):
        for step in range(350):
            action = env.action_space.sample()
            following, reward, terminated, truncated, _ = env.step(action)
            seen = following if is_wrong else state  # the one it was chosen for, or not
            kept.append((seen, scale * action, np.float32(reward)))
            state = env.reset()[0] if terminated or truncated else following
            if step < 100:
                continue
            columns = zip(*rng.sample(kept, 64), strict=True)
            states, actions, rewards = (torch.tensor(np.array(x)) for x in columns)
            optimizer.zero_grad()
            values = critic(torch.cat([states, actions], 1))[:, 0]
            functional.mse_loss(values, rewards).backward()
            optimizer.step()
    assert facts(tmp_path / "run") == ({("misaligned-data", "after")} if is_wrong else set())
    with gm.load(tmp_path / "run") as run:
        state_of_it = run.tables("proofs")[-1].content["misaligned-data"]
    assert state_of_it == ("found" if is_wrong else "ok")


@pytest.mark.parametrize("bug", ["", "actions", "rewards"])
def test_arrays_of_a_batch_that_were_rolled_show_in_a_few_samples(tmp_path: Path, bug: str) -> None:
    """Actions that are real numbers are known by their digits; so are rewards at ends."""
    torch.manual_seed(0)
    rng, draws = random.Random(0), np.random.default_rng(0)
    critic = network(2, 1)
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    env = Drift()
    kept = []
    state = env.reset(seed=0)[0]
    with gm.watch(critic, optimizer, run=tmp_path / "run", budget=None, quiet=True):
        for step in range(700):
            action = draws.uniform(-1, 1, 1).astype(np.float32)
            following, reward, over, _, _ = env.step(action)
            kept.append((state, action, np.float32(reward), float(over)))
            state = env.reset()[0] if over else following
            if step < 100:
                continue
            columns = zip(*rng.sample(kept, 64), strict=True)
            states, actions, rewards, ends = (torch.tensor(np.array(x)) for x in columns)
            actions = actions.roll(1, 0) if bug == "actions" else actions
            rewards = rewards.roll(1, 0) if bug == "rewards" else rewards
            optimizer.zero_grad()
            values = critic(torch.cat([states, actions], 1))[:, 0]
            targets = (rewards + 0.9 * (1 - ends) * (values.detach() + 1.0)).float()
            functional.mse_loss(values, targets).backward()
            optimizer.step()
    expected = {
        "": set(),
        "actions": {("misaligned-data", "others")},
        "rewards": {("recipe-mismatch", "rewards-of-others")},
    }
    assert facts(tmp_path / "run") == expected[bug]


class Drift(gym.Env[Any, Any]):
    """A point that drifts; an episode has 25 steps, and each step pays a number of its own."""

    observation_space = gym.spaces.Box(-99, 99, (1,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Somewhere else."""
        super().reset(seed=seed)
        self.at, self.steps = float(self.np_random.normal()), 0
        return np.array([self.at], np.float32), {}

    def step(self, action: Any) -> Any:
        """A little further."""
        self.at += 0.3 * float(action[0]) + 0.1 * float(self.np_random.normal())
        self.steps += 1
        paid = -abs(self.at)
        return np.array([self.at], np.float32), paid, self.steps >= 25, False, {}


def learn_every_few_steps(folder: Path, bug: str = "") -> None:
    """An actor-critic that learns from ten steps at a time, or from an episode at its end."""
    torch.manual_seed(0)
    actor, critic = network(4, 2), network(4, 1)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-3)
    env = gym.make("CartPole-v1", max_episode_steps=60)
    state, kept = env.reset(seed=0)[0], []
    with gm.watch(nn.ModuleList([actor, critic]), optimizer, run=folder, budget=None, quiet=True):
        for _ in range(700):
            policy = torch.distributions.Categorical(logits=actor(torch.tensor(state)))
            action = policy.sample()
            following, reward, terminated, truncated, _ = env.step(action.item())
            seen = following if "after" in bug else state
            kept.append((seen, action, reward / 100.0, following, float(terminated)))
            over, state = terminated or truncated, following
            if not over and (len(kept) < 10 or "episodes" in bug):
                continue
            columns = [np.array(x) for x in zip(*kept, strict=True)]
            states, actions, rewards, nexts, ends = map(torch.tensor, columns)
            goals = (rewards + 0.98 * (1 - ends) * critic(nexts)[:, 0].detach()).float()
            if "unmasked" in bug:
                goals = (rewards + 0.98 * critic(nexts)[:, 0].detach()).float()
            if "episodes" in bug:
                goals = torch.tensor(
                    [sum(0.98**k for k in range(n)) for n in range(len(ends), 0, -1)]
                )
                goals = (goals - goals.mean()) / (goals.std() + 1e-8)
            values = critic(states)[:, 0]
            chosen = torch.distributions.Categorical(logits=actor(states)).log_prob(actions)
            loss = -(chosen * (goals - values).detach()).mean()
            optimizer.zero_grad()
            (loss + functional.smooth_l1_loss(values, goals)).backward()
            optimizer.step()
            kept = []
            state = env.reset()[0] if over else state


@pytest.mark.slow
@pytest.mark.parametrize("style", ["", "episodes"])
def test_losses_on_a_few_steps_with_right_targets_claim_nothing(tmp_path: Path, style: str) -> None:
    """Also where returns are normalised episode by episode: each has a scale of its own."""
    learn_every_few_steps(tmp_path / "run", style)
    assert facts(tmp_path / "run") == set()


@pytest.mark.slow
def test_ends_that_are_not_masked_show_in_losses_on_a_few_steps(tmp_path: Path) -> None:
    """One end of an episode in three of them: no single loss has enough."""
    learn_every_few_steps(tmp_path / "run", "unmasked")
    assert facts(tmp_path / "run") == {("recipe-mismatch", "ends-not-masked")}


@pytest.mark.slow
def test_the_observation_after_the_step_shows_beside_the_policy_s_actions(tmp_path: Path) -> None:
    """The critic has no action to compare: that of the log-probability tells."""
    learn_every_few_steps(tmp_path / "run", "after")
    assert ("misaligned-data", "after") in facts(tmp_path / "run")


class Line(gym.Env[np.ndarray, int]):
    """A walk of five steps or so that pays what it stands on."""

    observation_space = gym.spaces.Box(-9, 9, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.at, self.noise = 0.0, float(self.np_random.normal())
        return np.array([self.at, self.noise], np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.at += 2.0 * action - 1.0 + 0.1 * float(self.np_random.normal())
        seen = np.array([self.at, self.noise], np.float32)
        return seen, float(self.at), bool(abs(self.at) > 2), False, {}


def learn_in_one_layer(
    folder: Path, discount: float, told: dict[str, float], shift: int = 0
) -> None:
    """Two critics whose weights are stacked, as torchrl has them (torch.func.vmap)."""
    torch.manual_seed(0)
    rng = random.Random(0)
    weights = nn.ParameterDict({"a": torch.randn(2, 32, 3) * 0.3, "b": torch.randn(2, 1, 32) * 0.3})
    frozen = {name: each.detach().clone() for name, each in weights.items()}

    def values(layers: dict[str, Tensor], seen: Tensor) -> Tensor:
        def one(a: Tensor, b: Tensor) -> Tensor:
            return functional.linear(functional.linear(seen, a).relu(), b)[:, 0]

        return torch.func.vmap(one)(layers["a"], layers["b"])

    optimizer = torch.optim.Adam(weights.parameters(), lr=1e-2)
    env, kept = Line(), []
    state = env.reset(seed=0)[0]
    with gm.watch(weights, optimizer, run=folder, budget=None, quiet=True, config=told):
        for step in range(700):
            action = rng.randrange(2)
            following, reward, terminated, _, _ = env.step(action)
            kept.append((np.append(state, action), reward, np.append(following, 0), terminated))
            state = env.reset()[0] if terminated else following
            if step < 100:
                continue
            columns = zip(*rng.sample(kept, 64), strict=True)
            seen, rewards, nexts, ends = (torch.tensor(np.array(x)).float() for x in columns)
            ahead = values(frozen, nexts).min(0).values
            goals = (rewards.roll(shift, 0) + discount * (1 - ends) * ahead).expand(2, -1)
            optimizer.zero_grad()
            functional.smooth_l1_loss(values(dict(weights), seen), goals).backward()
            optimizer.step()
            if step % 20 == 0:
                frozen = {name: each.detach().clone() for name, each in weights.items()}


@pytest.mark.parametrize(
    ("discount", "shift", "fact"),
    [
        (0.0, 0, {("recipe-mismatch", "reward-alone")}),
        (0.97, 1, {("recipe-mismatch", "rewards-of-others")}),
        (0.97, -1, {("recipe-mismatch", "rewards-of-others")}),
        (0.97, 0, set()),
    ],
)
def test_critics_in_one_layer_are_read_and_a_wrong_target_is_named(
    tmp_path: Path, discount: float, shift: int, fact: set[tuple[str, str]]
) -> None:
    learn_in_one_layer(tmp_path / "run", discount, {"gamma": 0.97}, shift)
    assert facts(tmp_path / "run") == fact
    found = {each.id for each in diagnose(tmp_path / "run").findings}
    assert ("recipe-mismatch" in found) == bool(fact)
    with gm.load(tmp_path / "run") as run:
        state = run.tables("proofs")[-1].content["recipe-mismatch"]
    assert state == ("found" if fact else "ok")


def test_a_discount_of_0_in_the_settings_is_meant(tmp_path: Path) -> None:
    learn_in_one_layer(tmp_path / "run", 0.0, {"gamma": 0.0})
    assert facts(tmp_path / "run") == {("recipe-mismatch", "reward-alone")}
    assert "recipe-mismatch" not in {each.id for each in diagnose(tmp_path / "run").findings}
