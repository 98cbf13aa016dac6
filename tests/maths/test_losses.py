"""Losses: numbers by hand, gradients by exact enumeration over a small categorical, averages by
brute force."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gradiometer.errors import UnknownName, UsageError
from gradiometer.maths.losses import (
    AGGREGATIONS,
    KL_KINDS,
    aggregate,
    entropy,
    kl_loss,
    policy_loss,
    sequence_weights,
    token_log_probs,
    token_weights,
)


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# The policy's loss


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        # slope is dl/d(log π) = −A r where nothing is clipped
        (1.0, 2.0, -2.0, -2.0),
        (1.2, 2.0, -2.4, -2.4),
        (1.5, 2.0, -2.56, 0.0),  # 1 + 0.28
        (0.5, 2.0, -1.0, -1.0),
        (1.0, -2.0, 2.0, 2.0),
        (0.5, -2.0, 1.6, 0.0),  # 1 − 0.2
        (2.0, -2.0, 4.0, 4.0),
        (5.0, -2.0, 6.0, 0.0),  # c = 3
        (5.0, 0.0, 0.0, 0.0),
    ],
)
def test_dual_clip_by_hand(ratio: float, advantage: float, loss: float, slope: float) -> None:
    log_prob = double(math.log(ratio) - 1.0).requires_grad_()
    found = policy_loss(log_prob, double(-1.0), double(advantage))
    (grad,) = torch.autograd.grad(found.sum(), log_prob)
    assert found.item() == pytest.approx(loss)
    assert grad.item() == pytest.approx(slope)


def test_without_the_second_clip_a_bad_action_costs_what_it_weighs() -> None:
    log_ratio, zero = double(math.log(5.0)), double(0.0)
    assert policy_loss(log_ratio, zero, double(-2.0), clip_c=None).item() == pytest.approx(10.0)
    assert policy_loss(
        log_ratio, zero, double(2.0), clip_c=None, clip_high=1.0
    ).item() == pytest.approx(-4.0)


def test_the_log_ratio_is_clamped_at_twenty() -> None:
    found = policy_loss(double(100.0, -100.0), double(0.0, 0.0), double(-1.0, 1.0), clip_c=None)
    assert found.tolist() == pytest.approx([math.exp(20), -math.exp(-20)])


def test_a_second_clip_below_one_is_said() -> None:
    with pytest.raises(UsageError, match=r"more than 1, found 1\.0; None turns it off"):
        policy_loss(double(0.0), double(0.0), double(1.0), clip_c=1.0)


# KL


def test_kl_by_hand() -> None:
    # log π − log π_ref = ln 2, so d = −ln 2 and e^d = ½
    log_prob, ref = double(math.log(0.5)), double(math.log(0.25))
    expected = {"k1": 0.6931471805599453, "k2": 0.2402265069591007, "k3": 0.1931471805599453}
    for name, kind in KL_KINDS.items():
        assert kl_loss(log_prob, ref, name).item() == pytest.approx(expected[kind], rel=1e-14)
    assert {name for name, kind in KL_KINDS.items() if kind == "k3"} == {
        "k3",
        "low_var_kl",
        "low-var-kl",
    }
    assert (KL_KINDS["kl"], KL_KINDS["mse"]) == ("k1", "k2")


def test_k3_of_nearly_equal_policies_is_positive_in_float32() -> None:
    d = 1e-4
    found = kl_loss(torch.zeros(1), torch.full((1,), d), "k3").item()
    assert found == pytest.approx(d * d / 2, rel=2e-3)  # e^d − d − 1 written out gives 0 or 1.2e-7


def test_k3_is_not_clamped() -> None:
    assert kl_loss(double(-5.0), double(0.0)).item() == pytest.approx(math.exp(5) - 6)


def test_an_unknown_kl_is_said() -> None:
    with pytest.raises(UnknownName, match="did you mean 'low_var_kl'"):
        kl_loss(double(0.0), double(0.0), "low_var")


def policy_and_reference() -> tuple[Tensor, Tensor, Tensor]:
    """θ with a gradient, log π [5] and log π_ref [5]."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(5, generator=generator, dtype=torch.float64).requires_grad_()
    ref = torch.randn(5, generator=generator, dtype=torch.float64).log_softmax(-1)
    return theta, theta.log_softmax(-1), ref


def gradient(value: Tensor, theta: Tensor) -> Tensor:
    return torch.autograd.grad(value, theta, retain_graph=True)[0]


def test_on_policy_the_gradients_of_the_three_estimators_differ() -> None:
    theta, log_p, ref = policy_and_reference()
    p = log_p.exp().detach()
    found = {
        kind: gradient((p * kl_loss(log_p, ref, kind)).sum(), theta) for kind in ("k1", "k2", "k3")
    }
    reverse = gradient((log_p.exp() * (log_p - ref)).sum(), theta)
    forward = gradient((ref.exp() * (ref - log_p)).sum(), theta)
    assert found["k1"].abs().max() < 1e-15
    torch.testing.assert_close(found["k2"], reverse)
    torch.testing.assert_close(found["k3"], forward)
    assert (reverse - forward).norm() > 0.1 * reverse.norm()


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_their_mean_is_the_reverse_kl_and_so_is_the_gradient_under_importance_weights(
    kind: str,
) -> None:
    theta, log_p, ref = policy_and_reference()
    old = torch.tensor([0.4, 0.3, 0.1, 0.1, 0.1], dtype=torch.float64)
    weighted = (old * (log_p.exp() / old) * kl_loss(log_p, ref, kind)).sum()
    reverse = (log_p.exp() * (log_p - ref)).sum()
    torch.testing.assert_close(weighted, reverse)
    torch.testing.assert_close(gradient(weighted, theta), gradient(reverse, theta))


# Entropy and log-probabilities


def test_entropy_by_hand() -> None:
    logits = torch.tensor(
        [[0.0] * 4, [math.log(2), 0.0, 0.0, -math.inf], [9.0, *[-math.inf] * 3]],
        dtype=torch.float64,
    )
    expected = [math.log(4), 1.0397207708399179, 0.0]  # p = ½, ¼, ¼: 1.5 ln 2
    assert entropy(logits).tolist() == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("mask", [-math.inf, -1e9, torch.finfo(torch.float32).min])
def test_the_gradient_of_a_masked_entropy_is_that_of_the_actions_left(mask: float) -> None:
    left = torch.tensor([0.3, -1.2, 2.0], requires_grad=True)
    logits = torch.cat([left, torch.full((2,), mask)]).requires_grad_()
    (grad,) = torch.autograd.grad(entropy(logits), logits)
    (expected,) = torch.autograd.grad(entropy(left), left)
    torch.testing.assert_close(grad, torch.cat([expected, torch.zeros(2)]))


def test_large_logits_do_not_overflow() -> None:
    assert entropy(torch.tensor([1e4, 1e4, -1e4])).item() == pytest.approx(math.log(2))


def test_half_precision_is_summed_in_float32() -> None:
    logits = torch.zeros(3, 5000, dtype=torch.bfloat16)
    assert entropy(logits).tolist() == pytest.approx([math.log(5000)] * 3, rel=1e-5)
    found = token_log_probs(logits, torch.zeros(3, dtype=torch.long))
    assert found.tolist() == pytest.approx([-math.log(5000)] * 3, rel=1e-5)


def test_log_probs_of_actions_by_hand() -> None:
    logits = torch.tensor(
        [[[math.log(3), 0.0], [0.0, -math.inf]]], dtype=torch.float64, requires_grad=True
    )
    found = token_log_probs(logits, torch.tensor([[1, 0]]))
    assert found.tolist() == [pytest.approx([-math.log(4), 0.0])]
    (grad,) = torch.autograd.grad(found.sum(), logits)
    torch.testing.assert_close(
        grad[0], torch.tensor([[-0.75, 0.75], [0.0, 0.0]], dtype=torch.float64)
    )


def test_an_action_for_each_distribution_is_needed() -> None:
    with pytest.raises(UsageError, match=r"logits \[2, 3, 4\] and actions \[2, 2\]"):
        token_log_probs(torch.zeros(2, 3, 4), torch.zeros(2, 2, dtype=torch.long))


# Averages


def brute_force(losses: list[list[float]], mask: list[list[float]], aggregation: str) -> float:
    rows = [(row, m) for row, m in zip(losses, mask, strict=True) if sum(m) > 0]
    sums = [sum(x * w for x, w in zip(row, m, strict=True)) for row, m in rows]
    if aggregation == "token-mean":
        return sum(sums) / sum(sum(m) for _, m in rows)
    if aggregation == "seq-mean-token-mean":
        sums = [total / sum(m) for total, (_, m) in zip(sums, rows, strict=True)]
    if aggregation == "seq-mean-token-sum-norm":
        sums = [total / len(mask[0]) for total in sums]
    return sum(sums) / len(rows)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        # rows 1 2 3 and 7, the third empty: sums 6 and 7, lengths 3 and 1, width 4
        ("token-mean", 13 / 4),
        ("seq-mean-token-sum", 13 / 2),
        ("seq-mean-token-mean", (2 + 7) / 2),
        ("seq-mean-token-sum-norm", (6 / 4 + 7 / 4) / 2),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16, torch.float64])
def test_averages_by_hand(aggregation: str, expected: float, dtype: torch.dtype) -> None:
    losses = torch.tensor(
        [[1.0, 2.0, 3.0, math.nan], [math.inf, 7.0, 0.0, 0.0], [5.0, 5.0, 5.0, 5.0]]
    )
    mask = torch.tensor([[1, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]).to(dtype)
    assert aggregate(losses, mask, aggregation).item() == pytest.approx(expected)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("soft", [False, True])
def test_averages_equal_brute_force_and_parts_add(aggregation: str, soft: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        losses, draw = torch.randn(2, 6, 5, generator=generator, dtype=torch.float64)
        mask = draw.clamp(0, 1) if soft else (draw > 0).double()
        mask[0] = 0.0
        mask[1, 0] = 1.0
        expected = brute_force(losses.tolist(), mask.tolist(), aggregation)
        assert aggregate(losses, mask, aggregation).item() == pytest.approx(expected)
        sums = (token_weights(mask, aggregation) * losses).sum(-1)
        weights = sequence_weights(mask, aggregation)
        parts = [(sums[rows].sum(), weights[rows].sum()) for rows in ([0, 3], [5], [1, 2, 4])]
        assert float(sum(s for s, _ in parts) / sum(w for _, w in parts)) == pytest.approx(expected)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_rows_without_tokens_weigh_nothing(aggregation: str) -> None:
    mask = torch.tensor([[0.0, 0.0], [0.5, 0.25]])
    assert token_weights(mask, aggregation)[0].tolist() == [0.0, 0.0]
    assert sequence_weights(mask, aggregation).tolist() == [
        0.0,
        0.75 if aggregation == "token-mean" else 1.0,
    ]


def test_the_horizon_makes_padding_irrelevant() -> None:
    losses, mask = torch.full((2, 3), 6.0), torch.ones(2, 3)
    wide = [torch.nn.functional.pad(x, (0, 5)) for x in (losses, mask)]
    name = "seq-mean-token-sum-norm"
    assert aggregate(losses, mask, name).item() == 6.0
    assert (
        aggregate(losses, mask, name, horizon=9).item()
        == aggregate(wide[0], wide[1], name, horizon=9).item()
        == 2.0
    )
    with pytest.raises(UsageError, match="above 0, found 0"):
        token_weights(mask, name, horizon=0)


def test_long_masks_are_counted_exactly_in_half_precision() -> None:
    mask = torch.ones(1, 4097, dtype=torch.bfloat16)
    assert sequence_weights(mask, "token-mean").item() == 4097.0


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_mask_of_zeros_has_no_loss(aggregation: str) -> None:
    with pytest.raises(UsageError, match="zero everywhere"):
        aggregate(torch.ones(2, 3), torch.zeros(2, 3), aggregation)


def test_bad_averages_are_said() -> None:
    with pytest.raises(UnknownName, match="did you mean 'token-mean'"):
        token_weights(torch.ones(1, 1), "token_mean")
    with pytest.raises(UnknownName, match="The known ones are token-mean, "):
        sequence_weights(torch.ones(1, 1), "sum")
    with pytest.raises(UsageError, match=r"found \[2, 3\] and \[2, 1\]"):
        aggregate(torch.ones(2, 3), torch.ones(2, 1), "token-mean")
    with pytest.raises(UsageError, match=r"found \[3\]; per-sample losses are \[N, 1\]"):
        token_weights(torch.ones(3), "token-mean")
