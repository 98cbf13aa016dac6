"""Estimators: closed forms against all subsets, exact expectations over small policies, z-tests on
a Gaussian one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradiometer.errors import UnknownName, UsageError
from gradiometer.maths import estimators
from gradiometer.maths.estimators import (
    BASELINES,
    ESTIMATORS,
    bias_sources,
    find,
    max_at_k,
    maxk,
    pass_at_k,
)


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def allowed(baseline: str, n: int, k: int) -> bool:
    return n > k if baseline.startswith("sample_loo") else k >= 2 or baseline == "none"


# All subsets, in fractions


def brute_value(rewards: list[Fraction], k: int) -> Fraction:
    subsets = list(itertools.combinations(rewards, k))
    return sum((max(subset) for subset in subsets), Fraction(0)) / len(subsets)


def brute_maxk(
    rewards: list[Fraction], k: int, baseline: str, lam: Fraction, floor: Fraction
) -> list[Fraction]:
    """The definitions of the docstring, word by word."""
    n, mean = len(rewards), sum(rewards, Fraction(0)) / len(rewards)
    subsets, width = list(itertools.combinations(range(n), k)), max(rewards) - min(rewards)
    found = []
    for i in range(n):
        mine = [[rewards[j] for j in subset] for subset in subsets if i in subset]
        others = [[rewards[j] for j in subset if j != i] for subset in subsets if i in subset]
        s = sum((max(subset) for subset in mine), Fraction(0)) / len(subsets)
        if baseline == "none":
            found.append(s)
        elif baseline.startswith("sample_loo"):
            factor = Fraction(k, n) if baseline.endswith("scaled") else 1
            found.append(s - factor * brute_value(rewards[:i] + rewards[i + 1 :], k))
        else:
            rises = sum(
                (max(a) - max(b) for a, b in zip(mine, others, strict=True)), Fraction(0)
            ) / len(subsets)
            best_of = sum(max(subset) == rewards[i] for subset in mine)
            w = max(rises, floor * width * best_of / len(subsets))
            if baseline != "subloo":
                w = lam * w + (1 - lam) * (rewards[i] - mean) / (n if baseline == "hybrid" else 1)
            found.append(w)
    return found


def rewards_of(kind: str, n: int) -> list[Fraction]:
    """Multiples of 1/64, so that floats and fractions are the same numbers."""
    generator = torch.Generator().manual_seed(n)
    if kind == "float":
        values = torch.randint(-900, 900, (n,), generator=generator).tolist()
    elif kind == "tied":
        values = (64 * torch.randint(-1, 2, (n,), generator=generator)).tolist()
    else:
        values = [-192] * n
    return [Fraction(value, 64) for value in values]


@pytest.mark.parametrize("kind", ["float", "tied", "equal"])
@pytest.mark.parametrize("baseline", BASELINES)
def test_max_at_k_equals_its_definition_over_all_subsets(baseline: str, kind: str) -> None:
    compared = 0
    for n in range(1, 9):
        rewards = rewards_of(kind, n)
        tensor = double(*map(float, rewards))
        for k in range(1, n + 1):
            assert max_at_k(tensor, k).item() == pytest.approx(
                float(brute_value(rewards, k)), rel=1e-14
            )
            if not allowed(baseline, n, k):
                continue
            expected = brute_maxk(rewards, k, baseline, Fraction(3, 10), Fraction(0))
            found = maxk(tensor, k, baseline=baseline, lam=0.3)
            assert found.tolist() == pytest.approx(
                [float(x) for x in expected], rel=1e-13, abs=1e-13
            )
            compared += 1
    assert compared == (36 if baseline == "none" else 28)


@pytest.mark.parametrize("kind", ["float", "tied"])
@pytest.mark.parametrize("baseline", ["subloo", "hybrid", "hybrid_source"])
def test_the_floor_equals_its_definition_over_all_subsets_and_matters(
    baseline: str, kind: str
) -> None:
    moved = 0
    for n in range(2, 9):
        rewards = rewards_of(kind, n)
        tensor = double(*map(float, rewards))
        for k in range(2, n + 1):
            expected = brute_maxk(rewards, k, baseline, Fraction(1, 2), Fraction(1, 5))
            found = maxk(tensor, k, baseline=baseline, min_gap=0.2)
            assert found.tolist() == pytest.approx(
                [float(x) for x in expected], rel=1e-13, abs=1e-13
            )
            moved += not torch.equal(found, maxk(tensor, k, baseline=baseline))
    assert moved > 5
    assert torch.equal(
        maxk(tensor, 3, baseline=baseline, min_gap=True),
        maxk(tensor, 3, baseline=baseline, min_gap=0.01),
    )


@pytest.mark.parametrize("n", [9, 12])
def test_rank_formula_in_exact_arithmetic(n: int) -> None:
    rewards = sorted(rewards_of("float", n))
    for k in range(1, n + 1):
        found = maxk(double(*map(float, rewards)), k)
        expected = [float(exact_at_rank(rewards, i, k)) for i in range(1, n + 1)]
        assert found.tolist() == pytest.approx(expected, rel=1e-13, abs=1e-14)


def exact_at_rank(ordered: list[Any], i: int, k: int) -> Fraction:
    """[1{i≥K} C(i−1,K−1) R_(i) + Σ_{j>i} C(j−2,K−2) R_(j)]/C(n,K), ranks from 1, in whole
    numbers."""
    own = math.comb(i - 1, k - 1) * ordered[i - 1]
    above = (
        sum(
            math.comb(j - 2, k - 2) * ordered[j - 1] for j in range(max(i + 1, k), len(ordered) + 1)
        )
        if k > 1
        else 0
    )
    return Fraction(own + above) / math.comb(len(ordered), k)


def test_binomials_of_thousands_of_rollouts_stay_finite_and_right() -> None:
    n, k = 4096, 512
    ordered = [i * i % 1000 + 10 * i for i in range(n)]  # nearly rising, whole numbers
    ordered.sort()
    shuffle = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    rewards = torch.empty(n, dtype=torch.float64)
    rewards[shuffle] = double(*ordered)
    found = {baseline: maxk(rewards, k, baseline=baseline)[shuffle] for baseline in BASELINES}
    assert all(weights.isfinite().all() for weights in found.values())
    best = sum(math.comb(j - 1, k - 1) * ordered[j - 1] for j in range(k, n + 1))
    rho = Fraction(best, math.comb(n, k))
    assert max_at_k(rewards, k).item() == pytest.approx(float(rho), rel=1e-12)
    for i in (1, k, 2000, 4090, n):
        s = exact_at_rank(ordered, i, k)
        scaled = s - Fraction(k, n) * Fraction(n, n - k) * (rho - s)
        gaps = [ordered[m] - ordered[m - 1] for m in range(1, i)]
        rises = sum(math.comb(m, k - 1) * gap for m, gap in enumerate(gaps, 1))
        assert found["none"][i - 1].item() == pytest.approx(float(s), rel=1e-11)
        assert found["sample_loo"][i - 1].item() == pytest.approx(
            float(s - Fraction(n, n - k) * (rho - s)), rel=1e-11
        )
        assert found["sample_loo_scaled"][i - 1].item() == pytest.approx(float(scaled), rel=1e-11)
        assert found["subloo"][i - 1].item() == pytest.approx(
            float(Fraction(rises, math.comb(n, k))), rel=1e-11
        )


# Golden vectors


def test_golden_vectors_of_four_rollouts() -> None:
    rewards = double(3, 1, 4, 2)  # weights come back in the order of the rewards
    by_rank = double(1, 2, 3, 4)
    assert max_at_k(by_rank, 2).item() == pytest.approx(10 / 3)
    assert maxk(by_rank, 2).tolist() == pytest.approx([1.5, 1.5, 5 / 3, 2])
    assert maxk(rewards, 2).tolist() == pytest.approx([5 / 3, 1.5, 2, 1.5])
    assert maxk(by_rank, 2, baseline="subloo").tolist() == pytest.approx([0, 1 / 6, 1 / 2, 1])
    without = (maxk(by_rank, 2) - maxk(by_rank, 2, baseline="sample_loo")).tolist()
    assert without == pytest.approx([11 / 3, 11 / 3, 10 / 3, 8 / 3])
    without = 2 * (maxk(by_rank, 2) - maxk(by_rank, 2, baseline="sample_loo_scaled"))
    assert without.tolist() == pytest.approx([11 / 3, 11 / 3, 10 / 3, 8 / 3])
    # ½ subloo + ½ (R − 2.5)/4, and without the quarter
    assert maxk(by_rank, 2, baseline="hybrid").tolist() == pytest.approx(
        [-3 / 16, 1 / 48, 5 / 16, 11 / 16]
    )
    assert maxk(by_rank, 2, baseline="hybrid_source").tolist() == pytest.approx(
        [-0.75, -1 / 6, 0.5, 1.25]
    )
    # the floor of rank i is min_gap · range · C(i−1, 1)/C(n, 2), and the three tied ones have that
    # of rank 3
    assert maxk(double(0, 3, 3.001), 2, baseline="subloo", min_gap=True).tolist() == pytest.approx(
        [0, 1.0, 1.0 + 0.002 / 3]
    )
    assert maxk(double(0, 0, 0, 3), 2, baseline="subloo", min_gap=1.0).tolist() == pytest.approx(
        [1, 1, 1, 1.5]
    )


def test_golden_vectors_of_the_mean_reward_family() -> None:
    rewards = double(1, 2, 6)
    std = math.sqrt(7)  # deviations −2, −1, 3
    assert estimators.pomo(rewards).tolist() == pytest.approx([-2, -1, 3])
    assert estimators.dr_grpo(rewards).tolist() == pytest.approx([-2, -1, 3])
    assert estimators.leader_reward(rewards).tolist() == pytest.approx([-2, -1, 6])
    assert estimators.leader_reward(rewards, alpha=0.5).tolist() == pytest.approx([-2, -1, 4.5])
    assert estimators.rloo(rewards).tolist() == pytest.approx([-3, -1.5, 4.5])
    assert estimators.grpo(rewards).tolist() == pytest.approx(
        [x / (std + 1e-6) for x in (-2, -1, 3)], rel=1e-13
    )
    assert estimators.reinforce(rewards).tolist() == [1, 2, 6]
    assert estimators.reinforce(rewards, baseline=2.0).tolist() == [-1, 0, 4]
    assert estimators.ppo(rewards, baseline=double(1, 1, 2)).tolist() == [0, 1, 4]
    normal = estimators.ppo(rewards, normalize=True)
    assert normal.tolist() == pytest.approx([x / (std + 1e-8) for x in (-2, -1, 3)], rel=1e-13)
    zscored = maxk(rewards, 1, zscore=True)
    assert zscored.tolist() == pytest.approx(
        [x / 3 / (std / 3 + 1e-8) for x in (-2, -1, 3)], rel=1e-13
    )


def test_the_first_of_tied_leaders_gets_the_bonus_so_the_sum_holds() -> None:
    found = estimators.leader_reward(double(0, 5, 1, 5, 5))
    assert found.tolist() == pytest.approx([-3.2, 3.6, -2.2, 1.8, 1.8])
    assert found.sum().item() == pytest.approx(1.8)


def test_pass_at_k_by_hand_and_as_max_at_k() -> None:
    # n=4, c=1, k=2: a wrong rollout's partner is right with chance 1/3
    assert pass_at_k(double(0, 1, 0, 0), 2).tolist() == pytest.approx([1 / 6, 1 / 2, 1 / 6, 1 / 6])
    outcomes = torch.tensor(list(itertools.product((0.0, 1.0), repeat=6)), dtype=torch.float64)
    for k in range(1, 7):
        torch.testing.assert_close(
            pass_at_k(outcomes, k), maxk(outcomes, k), rtol=1e-13, atol=1e-14
        )
    n, k = 4096, 512
    found = pass_at_k((torch.arange(n) < 3).double(), k)
    others_fail = Fraction(math.comb(n - 4, k - 1), math.comb(n - 1, k - 1))
    assert found[-1].item() == pytest.approx(float(Fraction(k, n) * (1 - others_fail)), rel=1e-12)


# Invariants

ROWS = st.integers(2, 24).flatmap(
    lambda n: st.lists(
        st.one_of(st.integers(-3, 3).map(float), st.floats(-1e3, 1e3, width=32)),
        min_size=n,
        max_size=n,
    )
)


@st.composite
def rows_and_sizes(draw: Any) -> tuple[Tensor, int]:
    row = draw(ROWS)
    return double(*row), draw(st.integers(1, len(row)))


@given(rows_and_sizes())
def test_without_a_baseline_weights_sum_to_k_times_the_value(case: tuple[Tensor, int]) -> None:
    rewards, k = case
    expected, scale = k * max_at_k(rewards, k).item(), rewards.abs().max().item()
    assert maxk(rewards, k).sum().item() == pytest.approx(
        expected, rel=1e-12, abs=1e-12 * k * scale
    )


@given(rows_and_sizes(), st.floats(-100, 100))
def test_a_shift_of_the_rewards_changes_no_centred_weight(
    case: tuple[Tensor, int], shift: float
) -> None:
    rewards, k = case
    n, shifted = len(rewards), rewards + shift
    for baseline in BASELINES:
        if not allowed(baseline, n, k):
            continue
        change = maxk(shifted, k, baseline=baseline) - maxk(rewards, k, baseline=baseline)
        expected = {"none": shift * k / n, "sample_loo": shift * (k / n - 1)}.get(baseline, 0.0)
        assert change.tolist() == pytest.approx([expected] * n, abs=1e-10)


@given(rows_and_sizes())
def test_subloo_is_never_negative_and_zero_below_rank_k(case: tuple[Tensor, int]) -> None:
    rewards, k = case
    if k < 2:
        return
    weights = maxk(rewards, k, baseline="subloo")
    assert (weights >= 0).all()
    assert (weights[rewards.argsort()][: k - 1] == 0).all()
    assert (weights[rewards == rewards.max()] == weights.max()).all()


@given(rows_and_sizes(), st.randoms(use_true_random=False))
def test_order_does_not_matter_and_tied_rollouts_weigh_the_same_to_the_bit(
    case: tuple[Tensor, int], random: Any
) -> None:
    rewards, k = case
    n = len(rewards)
    shuffle = torch.tensor(random.sample(range(n), n))
    for baseline, zscore in itertools.product(BASELINES, (False, True)):
        if not allowed(baseline, n, k):
            continue
        options = {"min_gap": 0.1} if baseline in ("subloo", "hybrid") else {}
        weights = maxk(rewards, k, baseline=baseline, zscore=zscore, **options)
        assert torch.equal(
            maxk(rewards[shuffle], k, baseline=baseline, zscore=zscore, **options), weights[shuffle]
        )
        for value in rewards.unique():
            assert weights[rewards == value].unique().numel() == 1


@given(ROWS)
def test_of_one_rollout_max_at_k_is_the_mean_reward(row: list[float]) -> None:
    rewards, n = double(*row), len(row)
    torch.testing.assert_close(maxk(rewards, 1), rewards / n, rtol=1e-11, atol=1e-10)
    torch.testing.assert_close(
        maxk(rewards, 1, baseline="sample_loo_scaled"),
        estimators.rloo(rewards) / n,
        rtol=1e-11,
        atol=1e-10,
    )
    torch.testing.assert_close(max_at_k(rewards, 1), rewards.mean(), rtol=1e-11, atol=1e-10)


@given(st.floats(-1e9, 1e9), st.integers(2, 30))
def test_equal_rewards_have_centred_weights_of_exactly_zero(value: float, n: int) -> None:
    rewards = torch.full((n,), value, dtype=torch.float64)
    for estimator in ESTIMATORS.values():
        if estimator.objective == "mean reward" and estimator.name not in ("reinforce", "ppo"):
            assert (estimator(rewards) == 0).all()
    assert (estimators.ppo(rewards, normalize=True) == 0).all()
    for baseline in BASELINES[3:]:
        assert (maxk(rewards, 2, baseline=baseline, min_gap=True) == 0).all()
    for baseline in BASELINES[:1] + BASELINES[3:]:
        assert (maxk(rewards, 2, baseline=baseline, zscore=True) == 0).all()


@settings(max_examples=20)
@given(st.integers(0, 3), st.integers(1, 3))
def test_a_batch_is_its_instances_one_by_one(first: int, second: int) -> None:
    rewards = torch.randn(
        first, second, 6, generator=torch.Generator().manual_seed(first + 5 * second)
    )
    for estimator in ESTIMATORS.values():
        given_rewards = (rewards > 0).float() if estimator.name == "pass_at_k" else rewards
        options = {"k": 3} if estimator.required else {}
        found = estimator(given_rewards, **options)
        assert found.shape == rewards.shape
        for i, j in itertools.product(range(first), range(second)):
            torch.testing.assert_close(
                found[i, j], estimator(given_rewards[i, j], **options), rtol=1e-6, atol=1e-7
            )
    assert max_at_k(rewards, 3).shape == (first, second)


def test_weights_have_the_type_of_the_rewards_and_no_graph() -> None:
    for given_type, found_type in [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.int64, torch.float32),
        (torch.bool, torch.float32),
    ]:
        rewards = torch.tensor([0, 1, 1, 0]).to(given_type)
        for estimator in ESTIMATORS.values():
            assert (
                estimator(rewards, **({"k": 2} if estimator.required else {})).dtype == found_type
            )
        assert max_at_k(rewards, 2).dtype == found_type
    assert not maxk(torch.randn(4, requires_grad=True), 2).requires_grad


def test_float32_rewards_far_from_zero_lose_nothing_to_cancellation() -> None:
    near = torch.tensor([0.0, 0.5, 1.0, 3.0, 3.5])
    for baseline in ("sample_loo_scaled", "subloo", "hybrid"):
        assert torch.equal(
            maxk(near + 2**20, 3, baseline=baseline), maxk(near, 3, baseline=baseline)
        )


# Expectations. First exactly: every outcome of five rollouts of a policy with four actions, two of
# them of equal reward.

REWARD = double(0.0, 1.0, 1.0, -2.0)
OUTCOMES = torch.cartesian_prod(*[torch.arange(4)] * 5)  # [1024, 5]

UNBIASED: dict[str, tuple[Callable[..., Tensor], dict[str, Any]]] = {
    "none": (maxk, {"k": 3}),
    "sample_loo": (maxk, {"k": 3, "baseline": "sample_loo"}),
    "sample_loo_scaled": (maxk, {"k": 3, "baseline": "sample_loo_scaled"}),
    "subloo": (maxk, {"k": 3, "baseline": "subloo"}),
    "hybrid lam=1": (maxk, {"k": 3, "baseline": "hybrid", "lam": 1.0}),
    "rloo": (estimators.rloo, {}),
    "reinforce": (estimators.reinforce, {"baseline": 0.7}),
    "ppo": (estimators.ppo, {"baseline": -1.0}),
}
BIASED: dict[str, tuple[Callable[..., Tensor], dict[str, Any]]] = {
    "zscore": (maxk, {"k": 3, "zscore": True}),
    "min_gap": (maxk, {"k": 3, "baseline": "subloo", "min_gap": 0.2}),
    "hybrid": (maxk, {"k": 3, "baseline": "hybrid"}),
    "hybrid_source": (maxk, {"k": 3, "baseline": "hybrid_source"}),
    "pomo": (estimators.pomo, {}),
    "dr_grpo": (estimators.dr_grpo, {}),
    "grpo": (estimators.grpo, {}),
    "leader_reward": (estimators.leader_reward, {}),
}


def expected_and_true_gradient(
    function: Callable[..., Tensor], options: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """E[Σ w_i ∇log π(a_i)] and ∇ of the objective, both exact, [4]."""
    entry = ESTIMATORS[function.__name__]
    theta = double(0.3, -0.2, 0.1, 0.4).requires_grad_()
    log_p = theta.log_softmax(-1)
    log_likelihood = log_p[OUTCOMES]
    weights = function(REWARD[OUTCOMES], **options) / (
        OUTCOMES.shape[1] if entry.reduction == "mean" else 1
    )
    chance = log_likelihood.sum(-1).exp().detach()
    (expected,) = torch.autograd.grad(
        (chance * (weights * log_likelihood).sum(-1)).sum(), theta, retain_graph=True
    )
    size = 1 if entry.objective == "mean reward" else options["k"]
    draws = torch.cartesian_prod(*[torch.arange(4)] * size).reshape(-1, size)
    (true,) = torch.autograd.grad(
        (log_p[draws].sum(-1).exp() * REWARD[draws].amax(-1)).sum(), theta
    )
    return expected, true


@pytest.mark.parametrize("name", UNBIASED)
def test_over_all_outcomes_the_unbiased_have_the_true_gradient(name: str) -> None:
    expected, true = expected_and_true_gradient(*UNBIASED[name])
    torch.testing.assert_close(expected, true, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", BIASED)
def test_over_all_outcomes_the_biased_miss_it_by_more_than_a_tenth(name: str) -> None:
    expected, true = expected_and_true_gradient(*BIASED[name])
    assert (expected - true).norm() > 0.1 * true.norm()


@pytest.mark.parametrize("name", [*UNBIASED, *BIASED])
def test_bias_is_stated_where_and_only_where_there_is_one(name: str) -> None:
    function, options = {**UNBIASED, **BIASED}[name]
    stated = bias_sources(function.__name__, **options)
    assert bool(stated) == (
        name in BIASED or name == "ppo"
    )  # of PPO it is the clip, which comes after the weights


def test_pass_at_k_has_the_true_gradient_over_all_outcomes() -> None:
    theta = double(-0.4).requires_grad_()
    outcomes = torch.cartesian_prod(*[torch.arange(2)] * 5)
    right = theta.sigmoid()
    log_likelihood = torch.where(outcomes == 1, right.log(), (1 - right).log())
    chance = log_likelihood.sum(-1).exp().detach()
    surrogate = (chance * (pass_at_k(outcomes.double(), 3) * log_likelihood).sum(-1)).sum()
    (expected,) = torch.autograd.grad(surrogate, theta, retain_graph=True)
    (true,) = torch.autograd.grad(1 - (1 - right.sum()) ** 3, theta)
    torch.testing.assert_close(expected, true, rtol=1e-12, atol=1e-14)


def test_own_reward_in_the_baseline_scales_the_gradient_by_n_minus_one_over_n() -> None:
    expected, true = expected_and_true_gradient(estimators.pomo, {})
    torch.testing.assert_close(expected, 4 / 5 * true, rtol=1e-12, atol=1e-14)


# Then by chance: a policy N(θ, 1) whose score is x − θ, and a reward e^(x/2), for which max@K and
# the mean differ.

THETA, N, K, DRAWS = 0.5, 16, 4, 40_000


def gaussian_gradient(k: int) -> float:
    """∇_θ E max of k of e^(x/2) = ∫ ½ e^((θ+u)/2) k Φ(u)^(k−1) φ(u) du."""
    u = torch.linspace(-12, 12, 20_001, dtype=torch.float64)
    density = torch.exp(-u.square() / 2) / math.sqrt(2 * math.pi)
    below = torch.special.ndtr(u)
    return torch.trapezoid(0.5 * ((THETA + u) / 2).exp() * k * below ** (k - 1) * density, u).item()


def z_score(function: Callable[..., Tensor], options: dict[str, Any]) -> float:
    """How many standard errors the mean estimate is from the true gradient."""
    entry = ESTIMATORS[function.__name__]
    score = torch.randn(DRAWS, N, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    options = {**options, "k": K} if entry.required else options
    weights = function(((THETA + score) / 2).exp(), **options)
    estimates = (weights * score).sum(-1) / (N if entry.reduction == "mean" else 1)
    true = gaussian_gradient(K if entry.objective == "max@K" else 1)
    return ((estimates.mean() - true) / (estimates.std() / math.sqrt(DRAWS))).item()


def test_the_gaussian_integral_is_right_for_one_rollout() -> None:
    assert gaussian_gradient(1) == pytest.approx(0.5 * math.exp(THETA / 2 + 1 / 8), rel=1e-12)
    assert gaussian_gradient(K) > 1.4 * gaussian_gradient(1)


@pytest.mark.parametrize("name", UNBIASED)
def test_on_a_gaussian_policy_the_unbiased_pass_a_z_test(name: str) -> None:
    assert abs(z_score(*UNBIASED[name])) < 4


@pytest.mark.parametrize("name", BIASED)
def test_on_a_gaussian_policy_the_biased_fail_it(name: str) -> None:
    assert abs(z_score(*BIASED[name])) > 6


@pytest.mark.slow
def test_standard_deviations_of_the_toy() -> None:
    # x ~ N(0, 1), score x, R = 0.3 x − 6, n = 64, K = 8
    generator = torch.Generator().manual_seed(0)
    found: dict[str, list[Tensor]] = {baseline: [] for baseline in BASELINES[:4]}
    for _ in range(60):
        x = torch.randn(5_000, 64, generator=generator, dtype=torch.float64)
        for baseline, estimates in found.items():
            estimates.append((maxk(0.3 * x - 6, 8, baseline=baseline) * x).sum(-1))
    deviations = {
        baseline: torch.cat(estimates).std().item() for baseline, estimates in found.items()
    }
    expected = {"none": 5.57, "sample_loo": 38.98, "sample_loo_scaled": 0.100, "subloo": 0.102}
    assert deviations == pytest.approx(expected, rel=0.01)


# The registry


def test_every_estimator_is_found_under_its_names() -> None:
    assert set(ESTIMATORS) == {
        "maxk",
        "pass_at_k",
        "pomo",
        "leader_reward",
        "rloo",
        "grpo",
        "dr_grpo",
        "reinforce",
        "ppo",
    }
    for name, entry in ESTIMATORS.items():
        assert find(name) is entry
        assert entry.name == name
        assert entry.function is getattr(estimators, name)
    assert all(find(alias).name == name for alias, name in estimators.ALIASES.items())
    assert find("maxk-POMO").name == "maxk"
    assert {name for name, entry in ESTIMATORS.items() if entry.reduction == "sum"} == {
        "maxk",
        "pass_at_k",
    }


def test_options_of_an_estimator_come_with_their_defaults() -> None:
    entry = find("maxk_pomo")
    assert entry.required == ("k",)
    assert entry.options == {"baseline": "none", "lam": 0.5, "min_gap": False, "zscore": False}
    rewards = double(1, 2, 3, 4)
    assert torch.equal(entry(rewards, k=2, baseline="subloo"), maxk(rewards, 2, baseline="subloo"))
    with pytest.raises(UsageError, match="maxk needs k="):
        entry(rewards)
    with pytest.raises(
        UnknownName, match="unknown option of the estimator maxk 'basline'; did you mean 'baseline'"
    ):
        entry(rewards, k=2, basline="none")
    with pytest.raises(UnknownName, match="It takes none"):
        find("pomo")(rewards, k=2)


def test_an_unknown_estimator_is_said_with_what_is_close() -> None:
    with pytest.raises(
        UnknownName, match="unknown estimator 'leader_rewards'; did you mean 'leader_reward'"
    ):
        find("leader_rewards")


def test_bias_sources_name_what_the_options_bring() -> None:
    assert bias_sources("maxk", k=4, baseline="subloo") == ()
    found = bias_sources("maxk_pomo", baseline="hybrid", min_gap=True, zscore=True, iid=False)
    assert [source.partition(":")[0] for source in found] == [
        "hybrid",
        "min_gap",
        "zscore",
        "multi-start",
    ]
    assert "best of K different starts" in found[-1]
    assert "mean over the forced starts" in bias_sources("rloo", iid=False)[0]
    assert any("std" in source for source in bias_sources("grpo"))
    assert bias_sources("ppo", normalize=True)[-1].startswith("normalize")
    with pytest.raises(UnknownName, match="option of the estimator grpo 'zscore'"):
        bias_sources("grpo", zscore=True)


# Bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: maxk(r, 5), "between 1 and the number of rollouts, 4, found 5"),
        (lambda r: maxk(r, 0), "found 0"),
        (lambda r: maxk(r, 2.5), "whole number of rollouts, found 2.5"),
        (lambda r: max_at_k(r, 5), "found 5"),
        (lambda r: pass_at_k(r, 2), "rewards of 0 and 1, found 2 at rollout 1"),
        (
            lambda r: maxk(r, 4, baseline="sample_loo"),
            "sample_loo leaves one rollout out and needs n > K, found n=4 and K=4",
        ),
        (lambda r: maxk(r, 4, baseline="sample_loo_scaled"), "needs n > K"),
        (lambda r: maxk(r, 1, baseline="subloo"), "needs K ≥ 2, found K=1"),
        (lambda r: maxk(r, 1, baseline="hybrid"), "needs K ≥ 2"),
        (lambda r: maxk(r, 1, baseline="hybrid_source"), "needs K ≥ 2"),
        (lambda r: maxk(r, 2, baseline="sublo"), "did you mean 'subloo'"),
        (lambda r: maxk(r, 2, baseline="hybrid", lam=1.5), r"in \[0, 1\], found 1.5"),
        (lambda r: maxk(r, 2, baseline="subloo", min_gap=-0.1), "at least 0, found -0.1"),
        (lambda r: maxk(r, 2, min_gap=True), "subloo and hybrid, found the baseline none"),
        (
            lambda r: maxk(r[:1], 1, zscore=True),
            "zscore divides by a standard deviation and needs at least 2",
        ),
        (lambda r: estimators.pomo(r[:1]), "pomo compares rollouts and needs at least 2, found 1"),
        (lambda r: estimators.leader_reward(r[:1]), "leader_reward compares"),
        (lambda r: estimators.rloo(r[:1]), "rloo compares"),
        (lambda r: estimators.grpo(r[:1]), "grpo compares"),
        (lambda r: estimators.dr_grpo(r[:1]), "dr_grpo compares"),
        (lambda r: estimators.ppo(r[:1], normalize=True), "normalize=True compares"),
        (lambda r: estimators.reinforce(r, torch.zeros(3)), r"like the rewards \[4\], found \[3\]"),
        (lambda r: estimators.reinforce(r, torch.zeros(2, 4)), r"found \[2, 4\]"),
        (lambda r: estimators.ppo(r, baseline=float("nan")), "baseline is not finite"),
        (lambda r: maxk(r[:0], 1), r"at least one rollout, found the shape \[0\]"),
        (lambda r: maxk(r[0], 1), r"found the shape \[\]"),
    ],
)
def test_bad_input_is_said(call: Callable[[Tensor], Tensor], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(double(1, 2, 3, 4))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_located(value: float) -> None:
    rewards = torch.zeros(2, 3, 4)
    rewards[1, 0, 2] = value
    for entry in ESTIMATORS.values():
        with pytest.raises(UsageError, match=f"reward of instance 1, 0, rollout 2 is {value}"):
            entry(rewards, **({"k": 2} if entry.required else {}))
    with pytest.raises(UsageError, match=f"reward of rollout 2 is {value}"):
        max_at_k(rewards[1, 0], 2)
