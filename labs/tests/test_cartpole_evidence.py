from __future__ import annotations

import pytest
import torch

from gradiometer_labs.cartpole import evidence, policy
from gradiometer_labs.cartpole.model import QNetwork


def test_the_share_of_the_most_frequent_action_is_counted() -> None:
    assert evidence.action_share(torch.tensor([[1, 0], [1, 1]])) == 0.75


def test_what_was_earned_ends_with_the_episode_and_goes_on_as_before_where_it_was_cut() -> None:
    rewards = torch.ones(3, 3)
    terminated = torch.tensor([[False, False, False], [True, False, False], [False, False, False]])
    done = torch.tensor([[False, False, False], [True, True, False], [False, False, False]])
    found = evidence.earned(rewards, terminated, done, gamma=0.5, longest=2)
    steady = 1.0 * (1 + 0.5)  # two more steps at the mean reward
    after = 1 + 0.5 * steady
    assert found[:, 0].tolist() == [1.5, 1.0, after]
    assert found[:, 1].tolist() == [1 + 0.5 * after, after, after]
    assert found[:, 2].tolist() == [1 + 0.5 * (1 + 0.5 * after), 1 + 0.5 * after, after]


def test_samples_of_another_policy_are_worth_fewer() -> None:
    assert evidence.staleness(torch.zeros(5)) == {"ess": 1.0, "importance_weight": 1.0}
    found = evidence.staleness(torch.tensor([3.0, 1.0]).log())
    assert found == {"ess": pytest.approx(4**2 / (2 * 10)), "importance_weight": pytest.approx(2.0)}


def last_states() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three episodes of 12 steps: two end of themselves, one is cut off."""
    rewards = torch.ones(12, 3)
    terminated, done = torch.zeros(12, 3, dtype=torch.bool), torch.zeros(12, 3, dtype=torch.bool)
    terminated[11, :2] = done[11] = True
    return rewards, terminated, done


def test_targets_that_know_of_the_end_correlate_with_what_was_still_to_come() -> None:
    rewards, terminated, done = last_states()
    to_go = torch.arange(12, 0, -1.0).unsqueeze(1).repeat(1, 3)
    to_go[:, 2] = torch.randn(
        12, generator=torch.Generator().manual_seed(0)
    )  # no end, so nobody looks there
    assert evidence.end_correlation(2 * to_go, rewards, terminated, done) == {
        "terminal_correlation": pytest.approx(1)
    }
    to_go[:2] = 100.0  # eleven and twelve steps before the end are too far from it
    assert evidence.end_correlation(to_go, rewards, terminated, done) == {
        "terminal_correlation": pytest.approx(1)
    }
    assert evidence.end_correlation(0 * to_go + 3, rewards, terminated, done) == {
        "terminal_correlation": 0.0
    }


def test_of_the_last_states_of_one_episode_nothing_is_said() -> None:
    rewards, terminated, done = last_states()
    assert (
        evidence.end_correlation(rewards[:, 1:], rewards[:, 1:], terminated[:, 1:], done[:, 1:])
        == {}
    )


def test_the_score_is_of_mean_zero_for_the_policy_that_sampled_and_for_no_other() -> None:
    torch.manual_seed(0)
    observations = torch.randn(500, 4)
    logits = torch.stack([2 * observations[:, 0], torch.zeros(500)], 1)
    fair = [
        evidence.sampling_z(
            policy.log_prob_of, logits, policy.sample(logits.log_softmax(-1)), observations
        )
        for _ in range(40)
    ]
    assert abs(sum(fair) / len(fair)) < 0.6  # a mean of 40 with a standard deviation of about one
    uniform = torch.randint(2, (500,))
    assert evidence.sampling_z(policy.log_prob_of, logits, uniform, observations) > 20


def test_a_unit_that_never_fires_is_dormant() -> None:
    layer = torch.tensor([[1.0, 0.0, 1.0, 0.01], [3.0, 0.0, 1.0, 0.01]])
    assert evidence.dormant_fraction([layer, torch.ones(2, 4)]) == 2 / 8


def test_the_distance_of_two_networks_is_relative_to_the_first() -> None:
    online, target = QNetwork(4, 2), QNetwork(4, 2)
    target.load_state_dict({name: 0.9 * value for name, value in online.state_dict().items()})
    assert evidence.target_distance(online, target) == pytest.approx(0.1, rel=1e-5)
    assert evidence.target_distance(online, online) == 0.0
