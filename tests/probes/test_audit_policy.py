"""Is it a policy gradient: scores, choices and entropies, each beside its healthy twin."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradiometer.errors import UsageError
from gradiometer.probes.auditpolicy import actions_follow, entropy_fits, score_is_zero_mean

ROWS, ACTIONS, MEMORY = 16, 6, 2**28


def network(seed: int = 0, gain: float = 3.0) -> tuple[nn.Linear, Tensor]:
    torch.manual_seed(seed)
    model = nn.Linear(4, ACTIONS)
    with torch.no_grad():
        model.weight.mul_(gain)
    return model, torch.randn(ROWS, 4)


def sampler(
    model: nn.Module, x: Tensor, *, temperature: float = 1.0, told: float | None = None
) -> Any:
    """Samples at one temperature; its log-prob is that of `told`, if that is another."""

    def sample() -> tuple[Tensor, Tensor]:
        logits = model(x)
        actions = torch.distributions.Categorical(logits=logits / temperature).sample()
        assumed = temperature if told is None else told
        return actions, torch.distributions.Categorical(logits=logits / assumed).log_prob(actions)

    return SimpleNamespace(sample=sample)


def score(policy: Any, model: nn.Module, samples: int = 64) -> Any:
    return score_is_zero_mean(
        policy, list(model.parameters()), samples=samples, memory_limit=MEMORY
    )


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_a_log_prob_of_another_temperature_is_caught_and_its_own_is_not(temperature: float) -> None:
    model, x = network()
    assert score(sampler(model, x, temperature=temperature), model).state == "ok"
    other = 1.0 if temperature != 1.0 else 0.6
    wrong = score(sampler(model, x, temperature=temperature, told=other), model)
    assert (wrong.state, wrong.severity, wrong.basis) == ("failed", "critical", "statistical")
    assert wrong.numbers["p_value"] <= 0.01
    assert "temperature" in wrong.fix[0]


def test_the_bias_is_that_of_the_exact_expectation_and_the_power_is_stated() -> None:
    model, x = network()
    wrong = score(sampler(model, x, temperature=1.0, told=0.7), model, samples=256)
    logits = model(x)
    sampled, claimed = logits.softmax(-1).detach(), (logits / 0.7).log_softmax(-1)
    exact = torch.autograd.grad((sampled * claimed).sum(), list(model.parameters()))
    norm = math.sqrt(sum(float(g.square().sum()) for g in exact))
    assert wrong.numbers["bias"] == pytest.approx(norm, rel=0.15)
    fine = score(sampler(model, x), model, samples=256)
    assert fine.numbers["detectable"] < 0.7 * norm
    assert f"{fine.numbers['detectable_share']:.0%}" in fine.message


@pytest.mark.slow
def test_a_bias_of_the_stated_size_is_found_nine_times_in_ten() -> None:
    """Planted: gaussian scores around a mean of exactly the size that is called detectable."""
    model = nn.Linear(12, 1, bias=False)
    direction = torch.zeros(12)
    direction[0] = 1.0

    def policy(size: float) -> Any:
        return SimpleNamespace(
            sample=lambda: (torch.rand(3), model(torch.randn(12) + size * direction) - 100)
        )

    torch.manual_seed(0)
    stated = score(policy(0.0), model).numbers["detectable"]
    found = sum(score(policy(stated), model).numbers["p_value"] <= 0.01 for _ in range(60))
    assert found >= 51


def test_healthy_policies_raise_no_false_alarm() -> None:
    """From uniform to sharp. (400 of them gave no failure when this was written.)"""
    states = []
    for seed in range(48):
        model, x = network(seed, gain=(0.1, 1.0, 4.0, 12.0)[seed % 4])
        states.append(score(sampler(model, x), model, samples=16).state)
    assert states.count("failed") == 0
    assert states.count("ok") >= 36


def test_a_policy_that_is_nearly_certain_is_not_accused() -> None:
    """Its rare actions never come, and the scores of the common ones all point one way."""
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight[:] = torch.tensor([[9.0], [0.0]])
    check = score(sampler(model, torch.ones(4, 1)), model)
    assert check.state == "skipped"
    assert "samples=" in check.message


def test_an_argmax_is_no_sample() -> None:
    model, x = network(gain=0.5)

    def greedy() -> tuple[Tensor, Tensor]:
        logits = model(x)
        actions = logits.argmax(-1)
        return actions, torch.distributions.Categorical(logits=logits).log_prob(actions)

    check = score(SimpleNamespace(sample=greedy), model)
    assert check.state == "failed"
    assert "same actions" in check.message


def test_a_squashed_gaussian_needs_its_correction() -> None:
    """tanh(u): the density of the action, not that of u, and the gradient is of the parameters
    alone."""
    torch.manual_seed(0)
    model, x = nn.Linear(4, 2), torch.randn(ROWS, 4)

    def policy(wrong_std: float) -> Any:
        def sample() -> tuple[Tensor, Tensor]:
            mean, log_std = model(x).chunk(2, -1)
            drawn = torch.distributions.Normal(mean, log_std.exp()).sample()
            return drawn.tanh(), torch.distributions.Normal(
                mean, wrong_std * log_std.exp()
            ).log_prob(drawn)

        return SimpleNamespace(sample=sample)

    assert score(policy(1.0), model).state == "ok"
    assert score(policy(2.0), model).state == "failed"


def test_k_of_d_without_replacement_has_an_ordered_log_prob() -> None:
    model, x = network()

    def policy(ordered: bool) -> Any:
        def sample() -> tuple[Tensor, Tensor]:
            logits = model(x)
            picked = torch.multinomial(logits.softmax(-1), 3)
            left, total = logits, torch.zeros(ROWS)
            for t in range(3):
                total = total + left.log_softmax(-1).gather(-1, picked[:, t : t + 1]).squeeze(-1)
                if ordered:
                    left = left.scatter(-1, picked[:, t : t + 1], -math.inf)
            return picked, total

        return SimpleNamespace(sample=sample)

    assert score(policy(ordered=True), model).state == "ok"
    assert score(policy(ordered=False), model).state == "failed"


def test_a_log_prob_without_a_gradient_is_no_verdict() -> None:
    model, x = network()

    def sample() -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return sampler(model, x).sample()  # type: ignore[no-any-return]

    # enable_grad of the probe does not reach inside a no_grad of the user's
    assert "outside torch.no_grad()" in score(SimpleNamespace(sample=sample), model).message
    with pytest.raises(UsageError, match="two things"):
        score(SimpleNamespace(sample=lambda: torch.ones(2)), model)


# The choice.


def choosing(select: Any, logits: Tensor | None = None) -> Any:
    return actions_follow(
        SimpleNamespace(
            logits=lambda: torch.randn(ROWS, ACTIONS) if logits is None else logits, select=select
        )
    )


def categorical(logits: Tensor) -> Tensor:
    return torch.distributions.Categorical(logits=logits).sample()


@pytest.mark.parametrize(
    "select",
    [
        categorical,
        lambda logits: logits.argmax(-1),
        lambda logits: torch.multinomial(logits.softmax(-1), 3),
        lambda logits: torch.zeros_like(logits).scatter(-1, logits.topk(2).indices, 1.0),
        lambda logits: torch.where(
            torch.rand(ROWS) < 0.3, torch.randint(0, ACTIONS, (ROWS,)), logits.argmax(-1)
        ),
    ],
    ids=["sample", "argmax", "three of six", "a mask", "epsilon greedy"],
)
def test_a_choice_that_looks_at_the_logits_passes(select: Any) -> None:
    torch.manual_seed(0)
    assert choosing(select).state == "ok"


@pytest.mark.parametrize(
    "select",
    [
        lambda logits: torch.randint(0, ACTIONS, (ROWS,)),
        lambda logits: torch.zeros(ROWS, dtype=torch.long),
        lambda logits: categorical(logits.sort(-1).values * 0 + 1),
        lambda logits: torch.rand(ROWS, ACTIONS).topk(2).indices,
    ],
    ids=["random", "constant", "flattened", "two of six at random"],
)
def test_a_choice_that_ignores_them_is_caught(select: Any) -> None:
    torch.manual_seed(0)
    check = choosing(select)
    assert (check.state, check.severity) == ("failed", "critical")
    assert check.numbers["chosen"] == pytest.approx(check.numbers["by_chance"], abs=0.12)


def test_masked_actions_stay_masked_and_a_row_of_one_says_nothing() -> None:
    torch.manual_seed(0)
    logits = torch.randn(ROWS, ACTIONS)
    logits[:, 3:] = -math.inf
    seen: list[Tensor] = []

    def select(given: Tensor) -> Tensor:
        seen.append(given)
        return categorical(given)

    assert choosing(select, logits).state == "ok"
    assert all(bool((given[:, 3:] == -math.inf).all()) for given in seen)
    logits[:, 1:] = -math.inf
    assert choosing(select, logits).state == "skipped"
    with pytest.raises(UsageError, match="shape"):
        choosing(lambda given: torch.zeros(3))


# The entropy.


def entropy(**policy: Any) -> Any:
    return entropy_fits(SimpleNamespace(**policy))


def test_an_entropy_of_all_edges_together_is_not_that_of_a_row_of_eight() -> None:
    """8.83 nats on rows of degree 8: one softmax over 6,836 edges."""
    edges = 6836
    wrong = entropy(entropy=lambda: math.log(edges), num_actions=8)
    assert (wrong.state, wrong.severity) == ("failed", "warn")
    assert wrong.numbers["largest"] == pytest.approx(math.log(8))
    assert "about 6,836" in wrong.message
    assert entropy(entropy=lambda: math.log(8), num_actions=8).state == "ok"


def test_k_of_d_without_replacement_may_have_more_than_ln_d() -> None:
    most = math.log(8 * 7 * 6)
    check = entropy(entropy=lambda: torch.tensor([most, most]), num_actions=8, picks=3)
    assert check.state == "ok"
    assert check.numbers["largest"] == pytest.approx(most)
    assert entropy(entropy=lambda: 1.01 * most, num_actions=8, picks=3).state == "failed"
    assert entropy(entropy=lambda: most, num_actions=8).state == "failed"
    assert entropy(entropy=lambda: math.log(24), num_actions=4, picks=4).state == "ok"


def test_the_bound_knows_masks_and_a_forgotten_temperature_is_worth_a_word() -> None:
    logits = torch.zeros(2, 4)
    logits[0, 2:] = -math.inf
    half = (math.log(2) + math.log(4)) / 2
    assert entropy(entropy=lambda: half, logits=lambda: logits).state == "ok"
    assert entropy(entropy=lambda: math.log(4), logits=lambda: logits).state == "failed"
    torch.manual_seed(0)
    sharp = 3 * torch.randn(5, 4)
    own = torch.distributions.Categorical(logits=sharp).entropy()
    hot = torch.distributions.Categorical(logits=sharp / 2).entropy()
    assert entropy(entropy=lambda: own, logits=lambda: sharp).state == "ok"
    forgotten = entropy(entropy=lambda: hot, logits=lambda: sharp)
    assert (forgotten.state, forgotten.severity) == ("failed", "info")
    assert entropy(entropy=lambda: float("nan"), num_actions=4).state == "failed"
    assert entropy(entropy=lambda: -0.5, num_actions=4).state == "failed"
