from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

import gradiometer as gm
from gradiometer_labs.cartpole import policy, reinforce
from gradiometer_labs.cartpole.train import Config, Pieces, set_up, train

SHORT = Config(algorithm="reinforce", total_steps=1_000, every=1)


def weights(model: torch.nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_the_return_of_a_step_is_what_came_after_it_discounted() -> None:
    rewards = torch.tensor(
        [[1.0, 1.0], [1.0, 2.0], [4.0, 0.0]]
    )  # the second episode has ended after two steps
    found = reinforce.returns_of(rewards, Config(gamma=0.5))
    assert found.tolist() == [[2.5, 2.0], [3.0, 2.0], [4.0, 0.0]]


def test_the_loss_pays_for_what_earned_more() -> None:
    log_probs = torch.tensor([-1.0, -2.0], requires_grad=True)
    loss = reinforce.reinforce_loss_of(log_probs, torch.tensor([3.0, -1.0]))
    assert loss.item() == pytest.approx(-(-3.0 + 2.0) / 2)
    (grad,) = torch.autograd.grad(loss, log_probs)
    assert grad.tolist() == [-1.5, 0.5]


def test_explained_variance_is_one_for_a_baseline_that_knows_and_zero_for_a_constant() -> None:
    returns = torch.tensor([1.0, 2.0, 4.0])
    assert policy.explained_variance(returns, returns) == 1.0
    assert policy.explained_variance(torch.full((3,), 9.0), returns) == pytest.approx(0.0)
    assert policy.explained_variance(0.5 * returns, returns) == pytest.approx(0.75)


def test_a_batch_is_one_whole_episode_of_each_environment() -> None:
    pieces = Pieces(config=dataclasses.replace(SHORT, num_envs=3, gamma=0.9))
    with set_up(pieces) as setup:
        batch, fresh = reinforce.play(setup, setup.observation, pieces)
        lengths = setup.episodes.lengths
        assert len(lengths) == 3
        assert setup.episodes.returns == lengths
        assert sum(lengths) == len(batch.actions) == len(batch.observations)
        assert (abs(fresh) < 0.05).all()  # where Gymnasium starts an episode
        first = torch.zeros(len(batch.actions), dtype=torch.bool)
        first[:3] = (
            True  # steps lie end to end: the first of each episode comes before the second of any
        )
        expected = [0.02 * (1 - 0.9**length) / 0.1 for length in lengths]
        torch.testing.assert_close(batch.returns[first], torch.tensor(expected))
        assert setup.episodes.news() == {
            "reward": sum(lengths) / 3,
            "episode_length": sum(lengths) / 3,
        }


def test_the_batch_holds_the_log_probs_and_values_of_the_policy_that_played() -> None:
    pieces = Pieces(config=SHORT)
    with set_up(pieces) as setup:
        batch, _ = reinforce.play(setup, setup.observation, pieces)
        logits, values = setup.model(batch.observations)
    log_probs = logits.log_softmax(-1)[torch.arange(len(batch.actions)), batch.actions]
    torch.testing.assert_close(log_probs.detach(), batch.log_probs)
    torch.testing.assert_close(values.detach(), batch.values)


def test_an_episode_is_cut_off_where_it_has_earned_the_most() -> None:
    pieces = Pieces(config=dataclasses.replace(SHORT, max_reward=9))
    with set_up(pieces) as setup:
        reinforce.play(setup, setup.observation, pieces)
        assert max(setup.episodes.lengths) == 9


@pytest.mark.slow
def test_the_same_seed_gives_the_same_weights() -> None:
    first, again = train(SHORT), train(SHORT)
    assert torch.equal(weights(first.model), weights(again.model))
    assert not torch.equal(
        weights(first.model), weights(train(dataclasses.replace(SHORT, seed=2)).model)
    )
    assert first.env_steps >= 1_000


def test_the_run_keeps_what_a_policy_gradient_is_judged_by(tmp_path: Path) -> None:
    train(dataclasses.replace(SHORT, run=str(tmp_path / "run")))
    with gm.load(tmp_path / "run") as run:
        logged = {
            "reward",
            "episode_length",
            "entropy",
            "policy_loss",
            "value_loss",
            "approx_kl",
            "ratio/max",
        }
        logged |= {
            "explained_variance",
            "explained_variance_before",
            "learning_rate",
            "action_share",
            "value_mean",
        }
        logged |= {
            "returns/std",
            "advantages/std",
            "observation/std",
            "score_z",
            "reward_gain",
            "terminal_correlation",
        }
        assert logged <= set(run.names())
        assert (
            run.series("explained_variance")[1].tolist()
            == run.series("explained_variance_before")[1].tolist()
        )
        assert {"grad/actor/term/policy/norm", "grad/critic/term/value/norm"} <= set(run.names())


@pytest.mark.slow
def test_a_short_training_leaves_random_actions_behind() -> None:
    """A random policy's mean over 100 episodes is 22 ± 1.2."""
    result = train(
        Config(algorithm="reinforce", total_steps=15_000, learning_rate=5e-3, max_reward=200)
    )
    assert result.mean_return > 45


@pytest.mark.proof
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_learns_to_balance_the_pole(seed: int) -> None:
    config = Config(
        algorithm="reinforce", total_steps=60_000, learning_rate=3e-3, max_reward=200, seed=seed
    )
    assert train(config).mean_return > 150
