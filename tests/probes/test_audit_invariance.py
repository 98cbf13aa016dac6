"""One batch, one gradient: published bugs of accumulation in miniature, and their healthy twins."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradiometer.errors import UsageError
from gradiometer.probes.audit import audit
from gradiometer.probes.auditcheck import Check
from gradiometer.probes.invariance import invariance


def model_of(seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(3, 1)


def batch_of(rows: int, seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(rows, 3, generator=generator),
        "y": torch.randn(rows, 1, generator=generator),
    }


def looked(
    loss_of: Any, batch: dict[str, Tensor] | None, model: nn.Module, pad: Any = None
) -> dict[str, Check]:
    return {
        check.name: check for check in invariance(loss_of, batch, pad, list(model.parameters()))
    }


def mean_loss(model: nn.Module) -> Callable[[dict[str, Tensor]], Tensor]:
    return lambda rows: (model(rows["x"]) - rows["y"]).square().mean()


@pytest.mark.parametrize(
    ("rows", "divided", "ratio"),
    [(4, 2, 0.25), (2, 2, 0.5), (4, 0, 4.0), (4, 1, None)],
    ids=[
        "divided twice, g/4 for G=4 (ms-swift)",
        "divided twice, x0.5 (TRL)",
        "never divided, x4 (TRL)",
        "healthy",
    ],
)
def test_a_loss_divided_twice_or_never_prints_its_ratio(
    rows: int, divided: int, ratio: float | None
) -> None:
    model = model_of()
    loss = mean_loss(model)
    check = looked(lambda some, parts: loss(some) / parts**divided, batch_of(rows), model)[
        "micro-batches"
    ]
    if ratio is None:
        assert check.state == "ok"
        return
    assert (check.state, check.severity, check.id) == ("failed", "warn", "gradient-not-invariant")
    assert check.numbers["ratio"] == pytest.approx(ratio, rel=1e-4)
    assert f"×{ratio:.4g}" in check.message
    assert ("twice" if divided == 2 else "not divided") in check.fix[0]


def per_token(normalised: str) -> tuple[nn.Module, dict[str, Tensor], Callable[..., Tensor]]:
    """A slope times token values: one row with one token of 6, one with three that add up to 10."""
    model = nn.Linear(1, 1, bias=False)
    batch = {
        "values": torch.tensor([[6.0, 0.0, 0.0], [3.0, 3.0, 4.0]]),
        "mask": torch.tensor([[1.0, 0, 0], [1, 1, 1]]),
    }

    def loss_of(rows: dict[str, Tensor], parts: int) -> Tensor:
        tokens = model.weight.squeeze() * rows["values"] * rows["mask"]
        if normalised == "by the micro-batch":
            return tokens.sum() / rows["mask"].sum() / parts
        return tokens.sum() / batch["mask"].sum()

    return model, batch, loss_of


def test_a_mean_of_means_over_unequal_micro_batches_is_14_thirds_instead_of_4() -> None:
    model, batch, loss_of = per_token("by the micro-batch")
    gradient = torch.autograd.grad(loss_of(batch, 1), list(model.parameters()))[0]
    assert float(gradient) == pytest.approx(4.0)
    wrong = looked(loss_of, batch, model)["micro-batches"]
    assert wrong.state == "failed"
    assert wrong.numbers["ratio"] == pytest.approx((14 / 3) / 4, rel=1e-5)
    assert "whole batch" in wrong.fix[0]
    model, batch, loss_of = per_token("by the batch")
    assert looked(loss_of, batch, model)["micro-batches"].state == "ok"


def test_a_loss_that_is_not_told_the_parts_may_be_a_mean_or_a_sum_but_not_a_mean_of_means() -> None:
    model = model_of()
    loss = mean_loss(model)
    mean = looked(lambda rows: loss(rows), batch_of(6), model)["micro-batches"]
    assert mean.state == "ok"
    assert "when averaged" in mean.message
    assert (
        "5 + 1 rows" in mean.message
    )  # a short last piece would weigh too much: a word, no failure
    summed = looked(
        lambda rows: (model(rows["x"]) - rows["y"]).square().sum() / 6, batch_of(6), model
    )["micro-batches"]
    assert summed.state == "ok"
    assert "when added up" in summed.message
    assert "unequal" not in summed.message
    slope, batch, loss_of = per_token("by the micro-batch")
    unequal = looked(lambda rows: loss_of(rows, 1), batch, slope)["micro-batches"]
    assert unequal.numbers["ratio"] == pytest.approx(7 / 6, rel=1e-5)


def test_advantages_normalised_inside_a_micro_batch_are_another_gradient() -> None:
    model = model_of()

    def loss_of(rows: dict[str, Tensor], parts: int) -> Tensor:
        advantages = rows["y"] - rows["y"].mean()
        return (
            -(model(rows["x"]) * advantages / (rows["y"].std(correction=0) + 1e-8)).mean() / parts
        )

    check = looked(loss_of, batch_of(8), model)["micro-batches"]
    assert (check.state, check.severity) == ("failed", "critical")

    def with_std(rows: dict[str, Tensor], parts: int) -> Tensor:
        return -(model(rows["x"]) * rows["y"] / rows["y"].std()).mean() / parts

    with pytest.warns(UserWarning, match="degrees of freedom"):
        assert "not finite" in looked(with_std, batch_of(8), model)["micro-batches"].message


def test_order_matters_only_where_neighbours_are_used() -> None:
    model = model_of()
    shifted = looked(
        lambda rows: (model(rows["x"]) * rows["y"].roll(1, 0)).cumsum(0).mean(), batch_of(6), model
    )
    assert shifted["order of the rows"].state == "failed"
    assert looked(mean_loss(model), batch_of(6), model)["order of the rows"].state == "ok"


@pytest.mark.parametrize("masked", [True, False])
def test_padding_that_is_counted_changes_the_gradient(masked: bool) -> None:
    model = nn.Linear(1, 1)
    batch = {"values": torch.randn(4, 5), "mask": torch.ones(4, 5)}

    def pad(rows: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: nn.functional.pad(entry, (0, 5)) for name, entry in rows.items()}

    def loss_of(rows: dict[str, Tensor]) -> Tensor:
        losses = model(rows["values"][..., None]).squeeze(-1).square() * rows["mask"]
        return losses.sum() / rows["mask"].sum() if masked else losses.mean()

    check = looked(loss_of, batch, model, pad)["padding"]
    assert check.state == ("ok" if masked else "failed")
    if not masked:
        assert check.numbers["ratio"] == pytest.approx(0.5, rel=1e-4)


def test_without_inputs_it_says_what_to_pass() -> None:
    model = model_of()
    assert {check.state for check in looked(None, None, model).values()} == {"skipped"}
    assert all("micro_batches=" in check.message for check in looked(None, None, model).values())
    found = looked(mean_loss(model), batch_of(4), model)
    assert "pad=" in found["padding"].message
    assert "torchrun" in found["ranks"].message
    assert looked(mean_loss(model), batch_of(1), model)["micro-batches"].state == "skipped"
    zero = looked(lambda rows: 0.0 * mean_loss(model)(rows), batch_of(4), model)
    assert "exactly zero" in zero["micro-batches"].message
    drawn = looked(lambda rows: (model(rows["x"]) * torch.randn(4, 1)).mean(), batch_of(4), model)
    assert "random numbers" in drawn["micro-batches"].message
    with pytest.raises(UsageError, match="scalar loss"):
        looked(lambda rows: model(rows["x"]), batch_of(4), model)
    with pytest.raises(UsageError, match="same number of rows"):
        looked(mean_loss(model), {"x": torch.ones(2, 3), "y": torch.ones(3, 1)}, model)


def test_dropout_and_batch_norm_are_no_reason_to_fail_and_half_precision_has_its_tolerance() -> (
    None
):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(3, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 1)
    )
    batch = batch_of(40)

    def loss_of(rows: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (model(rows["x"]).float() - rows["y"]).square().mean()

    result = audit(
        lambda: {"value": loss_of(batch)},
        model,
        torch.optim.Adam(model.parameters()),
        batch=batch,
        micro_batches=loss_of,
    )
    assert result.failed == ()
    (pieces,) = [check for check in result.checks if check.name == "micro-batches"]
    assert "1×16 and 16×1" in pieces.message
    assert model.training


RANKS = """
import json, sys
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from gradiometer.probes.audit import audit

rank, world, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
torch.manual_seed(rank)   # in training every rank has a batch of its own
batch = {"values": torch.randn(6, 4), "mask": (torch.arange(4) < torch.tensor([1, 4] * 3)[:, None]).float()}

def loss_of(rows):
    tokens = (model(rows["values"][..., None]).squeeze(-1) * rows["mask"]).sum()
    count = rows["mask"].sum()
    if how == "here":                       # a mean of means over ranks
        return tokens / count
    torch.distributed.all_reduce(count)
    return tokens / count * (world if how == "everywhere" else 1)

result = audit(lambda: {"policy": loss_of(batch)}, model, torch.optim.SGD(model.parameters(), lr=0.1), batch=batch,
               micro_batches=loss_of)
(check,) = [check for check in result.checks if check.name == "ranks"]
print(json.dumps(check.plain()))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "state"), [("here", "failed"), ("everywhere", "ok")])
def test_two_real_ranks_normalise_over_both_or_are_told_so(
    how: str, state: str, ranks: Callable[..., list[tuple[str, str]]]
) -> None:
    checks = [json.loads(out) for out, _ in ranks(RANKS, 2, how)]
    assert [check["state"] for check in checks] == [state, state]
    assert checks[0]["numbers"]["ratio"] == pytest.approx(checks[1]["numbers"]["ratio"])
    if state == "failed":
        assert "all_reduce" in checks[0]["fix"][0]
