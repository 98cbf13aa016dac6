"""What the meter hears of environments, and that it leaves them as they are."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import gradiometer as gm
from gradiometer.capture import environment
from gradiometer.capture.environment import EnvironmentView, listen
from gradiometer.doctor.diagnosis import diagnose


class Counting(gym.Env[Any, Any]):
    """Pays its action, ends after five steps, and reuses its buffer."""

    observation_space = gym.spaces.Box(-1, 100, (3,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def __init__(self, length: int = 5) -> None:
        self._seen, self._length = np.zeros(3, np.float32), length

    def reset(self, **_: Any) -> Any:
        self._seen[:] = 0
        return self._seen, {}

    def step(self, action: Any) -> Any:
        self._seen += 1
        ended = bool(self._seen[0] >= self._length)
        return self._seen, float(action), ended, False, {}


@pytest.fixture
def view() -> Iterator[EnvironmentView]:
    made = EnvironmentView()
    yield made
    made.close()


def play(env: Any, actions: list[Any]) -> None:
    env.reset()
    for action in actions:
        *_, terminated, truncated, _ = env.step(action)
        if np.all(np.logical_or(terminated, truncated)):
            env.reset()


def test_every_episode_of_the_outermost_environment_is_counted(view: EnvironmentView) -> None:
    play(gym.wrappers.TimeLimit(Counting(), 50), [1] * 5 + [2] * 5 + [3])
    episodes = view.episodes()
    assert episodes is not None
    assert episodes.totals.tolist() == [5.0, 10.0]
    assert episodes.lengths.tolist() == [5.0, 5.0]
    assert episodes.values()["env/return"] == 7.5
    assert view.episodes() is None
    assert view.steps == 11


def test_what_recorders_of_statistics_say_counts_more_than_a_reward_that_was_scaled(
    view: EnvironmentView,
) -> None:
    inner = gym.wrappers.RecordEpisodeStatistics(Counting())
    play(gym.wrappers.TransformReward(inner, lambda r: r / 10), [2] * 5)
    episodes = view.episodes()
    assert episodes is not None
    assert episodes.totals.tolist() == [10.0]


def told_of(folder: Path, factor: float) -> list[str]:
    """What the meter notes of a training whose reward is changed outside of its monitor."""
    inner = gym.wrappers.RecordEpisodeStatistics(Counting())
    env = gym.wrappers.TransformReward(inner, lambda reward: factor * float(reward))
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with gm.watch(model, optimizer, run=folder, budget=None, quiet=True):
        for action in (1, 2, 0, 3, 1, 2, 3, 1):
            play(env, [action] * 5)
            optimizer.zero_grad()
            model(torch.ones(4, 3)).square().mean().backward()
            optimizer.step()
    with gm.load(folder) as run:
        return [str(each.detail["how"]) for each in run.events("update-opposes-reward")]


@pytest.mark.parametrize(("factor", "told"), [(-1.0, ["told"]), (1.0, []), (0.1, []), (-0.1, [])])
def test_a_reward_of_the_opposite_sign_of_what_the_monitor_tells_is_named(
    tmp_path: Path, factor: float, told: list[str]
) -> None:
    """An episode that pays nothing has no sign; a scale may be meant."""
    assert told_of(tmp_path / "run", factor) == told


@pytest.mark.parametrize("shown", [np.nan, 1.0])
def test_an_observation_that_is_no_number_is_told_when_the_training_dies_of_it(
    tmp_path: Path, shown: float
) -> None:
    env = gym.wrappers.TransformObservation(Counting(), lambda seen: seen * shown, None)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with (
        pytest.raises(ValueError, match="logits"),
        gm.watch(model, optimizer, run=tmp_path / "run", budget=None, quiet=True),
    ):
        env.reset()
        seen = env.step(0)[0]
        logits = model(torch.tensor(seen)) / float(shown != 1.0)
        torch.distributions.Categorical(logits=logits, validate_args=True)
    first = diagnose(tmp_path / "run").findings[0]
    assert (first.id == "nonfinite-gradient") == bool(np.isnan(shown))
    assert ("observation" in first.title) == bool(np.isnan(shown))


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_vector_environments_are_counted_part_by_part(mode: str, view: EnvironmentView) -> None:
    envs = gym.vector.SyncVectorEnv(
        [lambda: Counting(3), lambda: Counting(4)], autoreset_mode=gym.vector.AutoresetMode[mode]
    )
    envs.reset()
    for _ in range(4):
        envs.step(np.array([1, 2]))
    episodes = view.episodes()
    assert episodes is not None
    assert sorted(zip(episodes.totals, episodes.lengths, strict=True)) == [(3.0, 3.0), (8.0, 4.0)]


def test_sb3_vector_environments_are_heard(view: EnvironmentView) -> None:
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    environment.look_for_environments()
    envs = vec_env.DummyVecEnv([lambda: Counting(3)] * 2)
    envs.reset()
    for _ in range(3):
        envs.step(np.array([1, 2]))
    episodes = view.episodes()
    assert episodes is not None
    assert sorted(episodes.totals) == [3.0, 6.0]


@pytest.mark.parametrize("kind", ["sb3", "SAME_STEP", "NEXT_STEP"])
def test_a_step_that_ends_an_episode_leads_to_its_last_observation(
    kind: str, view: EnvironmentView
) -> None:
    """Not to the first one of the next episode, which a vector environment answers with."""

    class Fresh(Counting):
        def step(self, action: Any) -> Any:
            seen, *rest = super().step(action)
            return seen.copy(), *rest

    makers = [lambda: Fresh(3), lambda: Fresh(4)]
    if kind == "sb3":
        envs = pytest.importorskip("stable_baselines3.common.vec_env").DummyVecEnv(makers)
        environment.look_for_environments()
    else:
        mode = gym.vector.AutoresetMode[kind]
        envs = gym.vector.SyncVectorEnv(makers, autoreset_mode=mode)
    envs.reset()
    for _ in range(4):
        envs.step(np.array([1, 2]))
    view.round_ended(1)
    assert view.collection is not None
    ends = np.flatnonzero(view.collection.ends.reshape(-1))[:2]
    led = view.collection.led_to(ends)
    assert led is not None
    assert led[:, 0].tolist() == [3.0, 4.0]
    begun = view.collection.began_with(ends[:1] + 2)
    assert begun is not None
    assert begun[0, 0] == (3.0 if kind == "NEXT_STEP" else 0.0)


def test_a_rollout_is_found_again_by_its_observations_though_buffers_are_reused(
    view: EnvironmentView,
) -> None:
    play(Counting(), [0, 1, 2, 3])
    view.round_ended(1)
    collection = view.collection
    assert collection is not None
    assert len(collection) == 4
    seen = np.repeat(np.arange(5.0)[:, None], 3, axis=1)
    assert collection.places(seen) == [[0], [1], [2], [3], []]
    assert collection.actions is not None
    assert collection.actions[:, 0].tolist() == [0, 1, 2, 3]
    assert collection.returns[-1] == 3.0
    view.round_ended(2)
    assert (view.rounds, view.num_collections) == (2, 1)


@pytest.mark.parametrize("size", [1, 3])
def test_every_place_of_an_observation_is_found_however_many_there_are(size: int) -> None:
    generator = np.random.default_rng(0)
    table = generator.integers(0, 3, (60, size)).astype(np.float32)
    rows = [row.tobytes() for row in table]
    numbers = list(range(100, 160))
    places = environment.ObservationIndex(rows, numbers)
    wanted = np.unique(np.concatenate([table, np.full((1, size), 7.0, np.float32)]), axis=0)
    expected = [
        [n for n, x in zip(numbers, table, strict=True) if (x == row).all()] for row in wanted
    ]
    assert places.of(wanted.astype(np.float64)) == expected
    assert len(places) == len(wanted) - 1
    assert places.of(np.empty((0, size))) == []


def test_rollouts_of_a_short_script_are_kept_and_later_ones_within_their_share(
    view: EnvironmentView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it costs at first: acting alone takes no time, and no share of it would be left."""
    monkeypatch.setattr(environment, "MAX_SHARE", 0.0)
    env = Counting()
    play(env, [1] * 2048)
    view.round_ended(0)
    assert view.collection is not None
    assert len(view.collection) == 2048
    play(env, [1] * environment.FREE)
    view.round_ended(1)
    assert view.collection is None
    assert view.steps == 2048 + environment.FREE


def test_an_environment_that_answers_oddly_is_left_alone(view: EnvironmentView) -> None:
    class Odd(Counting):
        def step(self, action: Any) -> Any:
            return self._seen, "much", object(), None, 3

    assert Odd().step(0)[1] == "much"
    assert view.episodes() is None


def test_classes_are_put_back_and_those_made_meanwhile_too() -> None:
    before = vars(Counting)["step"]
    remove = listen()

    class Later(Counting):
        def step(self, action: Any) -> Any:
            return super().step(action)

    assert vars(Counting)["step"] is not before
    assert hasattr(vars(Later)["step"], "__wrapped__")
    remove()
    assert vars(Counting)["step"] is before
    assert not hasattr(vars(Later)["step"], "__wrapped__")
    assert "__init_subclass__" not in vars(gym.Env)
    assert Later().step(1)[1] == 1.0


def test_a_class_of_the_script_goes_to_a_worker_process(view: EnvironmentView) -> None:
    """By its value, as vector environments send it: what stands in it must be fit for that."""
    cloudpickle = pytest.importorskip("cloudpickle")
    scope: dict[str, Any] = {"__name__": "__main__", "Counting": Counting}
    exec("class Own(Counting):\n    def step(self, action): return super().step(action)", scope)
    sent = cloudpickle.dumps(scope["Own"])
    assert pickle.loads(sent)().step(2)[1] == 2.0


@pytest.mark.slow
def test_weights_are_the_same_bits_with_an_environment_that_is_recorded(tmp_path: Path) -> None:
    def train(*, watched: bool) -> tuple[list[torch.Tensor], list[float], torch.Tensor]:
        torch.manual_seed(0)
        env = gym.wrappers.TimeLimit(gym.make("CartPole-v1"), 30)
        policy = nn.Linear(4, 2)
        optimizer = torch.optim.Adam(policy.parameters(), 1e-2)
        meter = gm.watch(policy, optimizer, run=tmp_path / "run", budget=None, quiet=True)
        if not watched:
            meter.close()
        seen: list[float] = []
        for episode in range(12):
            state, _ = env.reset(seed=episode)
            log_probs, ended = [], False
            while not ended:
                chosen = torch.distributions.Categorical(logits=policy(torch.from_numpy(state)))
                action = chosen.sample()
                log_probs.append(chosen.log_prob(action))
                state, _, terminated, truncated, _ = env.step(action.item())
                ended = terminated or truncated
                seen += state.tolist()
            loss = -torch.stack(log_probs).sum() * len(log_probs)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        meter.close()
        return [p.detach().clone() for p in policy.parameters()], seen, torch.get_rng_state()

    ours, ours_seen, ours_rng = train(watched=True)
    with gm.load(tmp_path / "run") as kept:
        assert kept.series("env/episodes")[1].sum() == 12
        assert "credit/ess" in kept.names()
    (tmp_path / "run" / "run.db").unlink()
    plain, plain_seen, plain_rng = train(watched=False)
    assert all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))
    assert ours_seen == plain_seen
    assert torch.equal(ours_rng, plain_rng)


@pytest.mark.slow
def test_no_graph_and_no_tensor_is_kept_from_step_to_step(tmp_path: Path) -> None:
    policy = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(policy.parameters(), 1e-3)

    def step() -> None:
        chosen = torch.distributions.Categorical(logits=policy(torch.randn(32, 4)))
        loss = -(chosen.log_prob(chosen.sample()) * torch.randn(32)).mean()
        optimizer.zero_grad()
        (loss - 0.01 * chosen.entropy().mean()).backward()
        optimizer.step()

    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    with gm.watch(policy, optimizer, run=tmp_path / "run", budget=None, quiet=True):
        for _ in range(20):
            step()
        before = tensors()
        for _ in range(200):
            step()
        assert tensors() <= before
