"""The two questions to a policy gradient: against scores written out one by one, and against
policies that are wrong."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from gradiometer.maths.scores import MOST, reward_gain, score_z


def batch(seed: int, *, number: int = 256) -> tuple[Tensor, Tensor, Tensor]:
    """Features, probabilities of three actions, and actions drawn from them."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(number, 8, generator=generator)
    probs = (0.5 * features @ torch.randn(8, 3, generator=generator)).softmax(-1)
    return features, probs, torch.multinomial(probs, 1, generator=generator).squeeze(-1)


def test_it_is_the_sum_over_pairs_of_scores_written_out_by_autograd() -> None:
    features, _, actions = batch(0, number=40)
    layer = torch.nn.Linear(8, 3, dtype=torch.float64)
    logits = layer(features.double())
    scores = []
    for log_prob in logits.log_softmax(-1).gather(-1, actions[:, None]).unbind():
        found = torch.autograd.grad(log_prob.squeeze(), list(layer.parameters()), retain_graph=True)
        scores.append(torch.cat([each.flatten() for each in found]))
    products = [(scores[i] @ scores[j]) for i in range(40) for j in range(40) if i != j]
    expected = sum(products) / (2 * sum(x * x for x in products)) ** 0.5
    residuals = one_hot(actions, 3) - logits.softmax(-1)
    assert score_z(residuals, features) == pytest.approx(float(expected), rel=1e-9)


def test_sampled_actions_have_a_mean_score_of_zero() -> None:
    found = []
    for seed in range(200):
        features, probs, actions = batch(seed)
        found.append(score_z(one_hot(actions, 3) - probs, features))
    values = torch.tensor(found)
    assert abs(float(values.mean())) < 0.25  # 3.5 standard errors of 200 draws
    assert 0.8 < float(values.std()) < 1.25
    assert float((values > 4).float().mean()) <= 0.01


@pytest.mark.parametrize(
    "wrong", ["uniform", "of the next state", "argmax", "of another temperature"]
)
def test_other_actions_than_the_sampled_ones_stand_out(wrong: str) -> None:
    features, probs, actions = batch(1, number=512)
    chosen = {
        "uniform": torch.randint(0, 3, (512,), generator=torch.Generator().manual_seed(2)),
        "of the next state": actions.roll(1),
        "argmax": probs.argmax(-1),
        "of another temperature": actions,
    }[wrong]
    if wrong == "of another temperature":
        probs = (4 * probs.log()).softmax(-1)
    assert score_z(one_hot(chosen, 3) - probs, features) > 4


def test_a_large_batch_is_thinned_evenly() -> None:
    features, probs, actions = batch(3, number=3 * MOST)
    residuals = one_hot(actions, 3) - probs
    assert score_z(residuals, features) == score_z(residuals[::3], features[::3])


def test_a_policy_without_choice_has_no_score() -> None:
    assert score_z(torch.zeros(5, 2), torch.randn(5, 3)) == 0.0


def test_reward_gain_is_a_correlation() -> None:
    earned, change = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.1, 0.0, 0.5])
    assert reward_gain(earned, change) == pytest.approx(
        float(torch.corrcoef(torch.stack([earned, change]))[0, 1])
    )
    assert reward_gain(earned, -earned) == pytest.approx(-1.0)
    assert reward_gain(earned, torch.ones(3)) == 0.0


def test_a_policy_gradient_step_raises_what_earned_more_and_its_negative_lowers_it() -> None:
    features, _, actions = batch(4)
    earned = torch.randn(256, generator=torch.Generator().manual_seed(5)) + (actions == 1)
    for sign in (1.0, -1.0):
        layer = torch.nn.Linear(8, 3)
        before = layer(features).log_softmax(-1).gather(-1, actions[:, None]).squeeze(-1)
        (-sign * (earned - earned.mean()) * before).mean().backward()
        torch.optim.SGD(layer.parameters(), lr=0.1).step()
        after = layer(features).log_softmax(-1).gather(-1, actions[:, None]).squeeze(-1)
        assert sign * reward_gain(earned, after - before) > 0.1


def test_a_policy_that_is_sure_reads_nothing_rather_than_a_wonder() -> None:
    """Without the rare action that balances them, 1,000 residuals of 1e-5 all point one way."""
    residuals = torch.tensor([[1e-5, -1e-5]]).repeat(1000, 1)
    assert score_z(residuals, torch.randn(1000, 3)) == 0.0
