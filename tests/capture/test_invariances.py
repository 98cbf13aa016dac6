"""What must hold whatever the gradients are: blocks add up, scale and order change nothing they
should not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gradiometer as gm

SHAPES = [(3, 4), (4,), (2, 3), (2,)]
elements = st.floats(-100.0, 100.0, width=32).filter(lambda x: x == 0 or abs(x) > 1e-3)
gradients = st.tuples(
    *[st.lists(elements, min_size=int(np.prod(s)), max_size=int(np.prod(s))) for s in SHAPES]
)


def measured(
    numbers: list[list[float]], *, factor: float = 1.0, reverse: bool = False
) -> dict[str, float]:
    """The values of one step with these gradients, and of a second one with their mirror image."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"actor": nn.Linear(4, 3), "critic": nn.Linear(3, 2)})
    model["actor"].bias = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, run=None, budget=None) as meter:
        for mirror in (1.0, -1.0):
            for p, row in zip(model.parameters(), numbers, strict=True):
                order = row[::-1] if reverse else row
                p.grad = (torch.tensor(order, dtype=torch.float32) * factor * mirror).reshape(
                    p.shape
                )
            optimizer.step()
        return dict(meter._values)


def near(a: float, b: float) -> Any:
    return a == pytest.approx(b, rel=1e-4, abs=1e-6)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(gradients)
def test_squared_norms_add_up_over_disjoint_blocks(numbers: list[list[float]]) -> None:
    values = measured(numbers)
    total = values["grad/all/norm/raw"] ** 2
    assert near(values["grad/actor/norm/raw"] ** 2 + values["grad/critic/norm/raw"] ** 2, total)
    assert near(
        values["grad/layer.actor/norm/raw"] ** 2 + values["grad/layer.critic/norm/raw"] ** 2, total
    )


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(gradients, st.sampled_from([1e-3, 0.5, 8.0, 1e3]))
def test_scaling_moves_norms_and_nothing_else(numbers: list[list[float]], factor: float) -> None:
    plain, scaled = measured(numbers), measured(numbers, factor=factor)
    assert near(scaled["grad/all/norm/raw"], factor * plain["grad/all/norm/raw"])
    assert near(scaled["grad/all/max_abs"], factor * plain["grad/all/max_abs"])
    for name in (
        "zero_fraction",
        "positive_fraction",
        "participation",
        "concentration",
        "cos_prev",
        "sign_agreement",
    ):
        assert (f"grad/all/{name}" in plain) == (f"grad/all/{name}" in scaled)
        if f"grad/all/{name}" in plain:
            assert near(scaled[f"grad/all/{name}"], plain[f"grad/all/{name}"]), name


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(gradients)
def test_the_order_of_elements_does_not_matter(numbers: list[list[float]]) -> None:
    plain, reversed_order = measured(numbers), measured(numbers, reverse=True)
    for name in ("norm/raw", "max_abs", "zero_fraction", "positive_fraction", "participation"):
        assert (f"grad/all/{name}" in plain) == (f"grad/all/{name}" in reversed_order)
        if f"grad/all/{name}" in plain:
            assert near(reversed_order[f"grad/all/{name}"], plain[f"grad/all/{name}"]), name


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(gradients)
def test_every_share_and_cosine_stays_in_its_range(numbers: list[list[float]]) -> None:
    values = measured(numbers)
    for name, value in values.items():
        if name.endswith(("_fraction", "_severity", "health", "concentration", "sign_agreement")):
            assert -1e-9 <= value <= 1 + 1e-9, name
        if "/cos_" in name and not name.endswith("noise"):
            assert -1 - 1e-5 <= value <= 1 + 1e-5, name
    if values["grad/all/norm/raw"] > 0:
        assert near(
            values["grad/all/cos_prev"], -1.0
        )  # the second step is the first one's mirror image
