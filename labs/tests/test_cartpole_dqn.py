from __future__ import annotations

import dataclasses
import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

import gradiometer as gm
from gradiometer_labs.cartpole import dqn
from gradiometer_labs.cartpole.config import DqnConfig
from gradiometer_labs.cartpole.dqn import Transitions, draw
from gradiometer_labs.cartpole.train import Config, Pieces, set_up, train
from gradiometer_labs.replay import Replay

SHORT = Config(algorithm="dqn", total_steps=800, num_steps=50, dqn=DqnConfig(learning_starts=200))


def weights(model: torch.nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def step(number: int) -> Transitions:
    """A step of two environments whose every number says which step it was."""
    observations = torch.full((2, 4), float(number))
    marks = torch.zeros(2, dtype=torch.bool)
    actions, rewards = torch.tensor([0, 1]), torch.full((2,), float(number))
    return Transitions(observations, actions, rewards, observations + 1, marks, marks)


def test_epsilon_falls_in_a_line_and_stays() -> None:
    config = Config(dqn=DqnConfig(first_epsilon=1.0, last_epsilon=0.2, epsilon_share=0.5))
    rates = [dqn.exploration_rate_at(config, share) for share in (0.0, 0.25, 0.5, 1.0)]
    assert rates == pytest.approx([1.0, 0.6, 0.2, 0.2])


def test_a_target_is_the_reward_and_the_best_of_what_follows_unless_the_episode_ended() -> None:
    online = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    target = torch.tensor([[5.0, 3.0], [5.0, 3.0]])
    assert dqn.next_values_of(online, target, double=False).tolist() == [5.0, 5.0]
    following = dqn.next_values_of(online, target, double=True)
    assert following.tolist() == [3.0, 3.0]
    rewards, terminated = torch.tensor([1.0, 1.0]), torch.tensor([False, True])
    assert dqn.td_targets_of(rewards, following, terminated, 0.5).tolist() == [2.5, 1.0]


def test_the_value_that_is_learnt_is_that_of_the_action_taken() -> None:
    assert dqn.q_of(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1, 0])).tolist() == [
        2.0,
        3.0,
    ]


def test_the_error_is_squared_up_to_one_and_linear_beyond() -> None:
    assert dqn.td_loss_of(
        torch.tensor([0.0, 0.0]), torch.tensor([0.5, 3.0])
    ).item() == pytest.approx((0.125 + 2.5) / 2)


def test_the_memory_keeps_the_newest_steps_in_their_order() -> None:
    replay = Replay(4, Transitions)
    for number in range(3):
        replay.add_row(step(number))
    assert len(replay) == 3
    assert replay.newest(10).rewards[:, 0].tolist() == [0.0, 1.0, 2.0]
    for number in range(3, 10):
        replay.add_row(step(number))
    assert len(replay) == 4
    assert replay.newest(3).rewards[:, 1].tolist() == [7.0, 8.0, 9.0]
    assert sorted(replay.spread(4).rewards[:, 0].tolist()) == [6.0, 7.0, 8.0, 9.0]
    assert replay.spread(2).rewards.shape == (2, 2)


def test_what_is_drawn_was_remembered_and_its_parts_belong_together() -> None:
    torch.manual_seed(0)
    replay = Replay(8, Transitions)
    for number in range(8):
        replay.add_row(step(number))
    drawn = draw(replay, 500, Config(num_envs=2))
    assert torch.equal(drawn.successors[:, 0], drawn.observations[:, 0] + 1)
    assert torch.equal(drawn.rewards, drawn.observations[:, 0])
    counts = drawn.rewards.long().bincount(minlength=8)
    assert len(counts) == 8
    assert counts.min() > 500 / 8 - 4 * math.sqrt(500 / 8)
    assert 150 < int(drawn.actions.sum()) < 350


def test_a_successor_is_the_state_the_action_led_to_also_at_the_end_of_an_episode() -> None:
    pieces = Pieces(config=SHORT)
    with set_up(pieces) as setup:
        observation, steps = setup.observation, []
        for _ in range(60):
            transitions, observation = dqn.act(setup, observation, 1.0, pieces)
            steps.append(transitions)
    ended = torch.stack([each.terminated for each in steps])
    assert ended.any()
    for now, later in pairwise(steps):
        same = (now.successors == later.observations).all(-1)
        assert torch.equal(
            same, ~now.done
        )  # where it ended, the next observation is another episode's first
    fallen = torch.stack([each.successors for each in steps])[ended]
    assert ((fallen[:, 0].abs() > 2.4) | (fallen[:, 2].abs() > 12 * math.pi / 180)).all()


def test_without_exploration_the_best_action_is_taken_and_with_all_of_it_any() -> None:
    pieces = Pieces(config=SHORT)
    with set_up(pieces) as setup:
        greedy, _ = dqn.act(setup, setup.observation, 0.0, pieces)
        assert torch.equal(
            greedy.actions, setup.model(torch.from_numpy(setup.observation)).argmax(-1)
        )
        taken = torch.stack(
            [dqn.act(setup, setup.observation, 1.0, pieces)[0].actions for _ in range(50)]
        )
    assert 0.35 < taken.float().mean() < 0.65


def test_the_target_is_a_copy_that_follows_only_when_it_is_renewed() -> None:
    pieces = Pieces(config=SHORT)
    with set_up(pieces) as setup:
        target = dqn.target_of(setup.model)
        assert not any(each.requires_grad for each in target.parameters())
        for number in range(10):
            replay = Replay(4, Transitions)
            replay.add_row(step(number))
            dqn.update(setup, target, draw(replay, 16, Config(num_envs=2)), pieces)
        assert not torch.equal(weights(target), weights(setup.model))
        dqn.renew(target, setup.model)
        assert torch.equal(weights(target), weights(setup.model))
        assert setup.model.last.weight.requires_grad


@pytest.mark.slow
def test_the_same_seed_gives_the_same_weights() -> None:
    first, again = train(SHORT), train(SHORT)
    other = train(dataclasses.replace(SHORT, seed=2))
    assert torch.equal(weights(first.model), weights(again.model))
    assert not torch.equal(weights(first.model), weights(other.model))
    assert math.isnan(first.entropy)


@pytest.mark.slow
def test_the_run_keeps_what_a_value_based_agent_is_judged_by(tmp_path: Path) -> None:
    train(dataclasses.replace(SHORT, run=str(tmp_path / "run")))
    with gm.load(tmp_path / "run") as run:
        logged = {
            "reward",
            "episode_length",
            "value_loss",
            "q_value",
            "target_distance",
            "exploration_rate",
        }
        logged |= {
            "dormant_fraction",
            "learning_rate",
            "action_share",
            "returns/std",
            "observation/std",
        }
        assert logged | {"terminal_correlation"} <= set(run.names())
        assert {"grad/first/norm/raw", "grad/all/term/value/norm"} <= set(run.names())
        assert run.series("exploration_rate")[1].tolist()[-1] == pytest.approx(0.02)


@pytest.mark.slow
def test_a_short_training_leaves_random_actions_behind() -> None:
    """A random policy's mean over 100 episodes is 22 ± 1.2; a tenth of the clinic's training
    doubles it."""
    result = train(
        Config(algorithm="dqn", total_steps=8_000, learning_rate=2e-3, max_reward=200, every=100)
    )
    assert result.mean_return > 45


@pytest.mark.proof
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_learns_to_balance_the_pole(seed: int) -> None:
    config = Config(
        algorithm="dqn",
        total_steps=30_000,
        learning_rate=2e-3,
        max_reward=200,
        every=100,
        seed=seed,
    )
    assert train(config).mean_return > 140
