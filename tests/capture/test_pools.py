"""Small tensors are read together, and every number is the one that reading each by itself gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

import gradiometer as gm
from gradiometer.capture import pools
from gradiometer.maths import stats


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools of a few tensors, which are not worth it where torch reads them, to test with."""
    monkeypatch.setattr(pools, "FEWEST", 4)


class Mixed(nn.Module):
    """Small and large, float32 and float64, frozen, unused, sparse, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 6, sparse=True)
        self.trunk = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))
        self.wide = nn.Linear(6, 900)  # larger than SMALL
        self.middle = nn.Linear(900, 3)  # larger than a sample
        self.actor, self.critic = nn.Linear(3, 2), nn.Linear(3, 1)
        self.wider = nn.ParameterList(
            [nn.Parameter(torch.randn(2, 3, dtype=torch.float64)) for _ in range(5)]
        )
        self.frozen = nn.Parameter(torch.ones(5), requires_grad=False)
        self.unused = nn.Linear(3, 3)
        self.scalar = nn.Parameter(torch.tensor(0.5))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.trunk(self.embed(tokens)) * self.scalar)
        h = self.middle(torch.tanh(self.wide(h)))
        weights = [part @ part.t() for part in self.wider]
        bonus = sum(weight.square().mean() for weight in weights)
        return self.actor(h).square().mean() + bonus, self.critic(h).square().mean()


def train(folder: Path, steps: int, *, clip: str, **options: Any) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = Mixed()
    dense = [p for name, p in model.named_parameters() if not name.startswith("embed")]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(1)
    with gm.watch(model, optimizer, run=folder, budget=None, quiet=True, **options) as meter:
        for step in range(steps):
            optimizer.zero_grad()
            tokens = torch.randint(12, (4, 3), generator=generator)
            with meter.terms(**dict(zip(("a", "b"), model(tokens), strict=True))) as loss:
                loss.backward()
            if step == 3 and clip == "parts":
                model.trunk[0].bias.grad = None
            if clip == "all":
                clip_grad_norm_(dense, 0.1)
            elif clip == "parts":
                clip_grad_norm_([*model.trunk.parameters(), *model.wide.parameters()], 0.1)
                clip_grad_norm_(list(model.wider), 1e-3)
                nn.utils.clip_grad_value_(model.critic.parameters(), 1e-3)
            optimizer.step()
    return dict(model.named_parameters())


@pytest.mark.parametrize(
    ("reads", "clip", "options"),
    [
        ("numpy", "all", {}),
        ("numpy", "parts", {}),
        ("torch", "parts", {}),  # as on other devices
        ("numpy", "parts", {"every": 2}),
        ("numpy", "none", {"every": 3}),
        ("torch", "none", {"every": 3}),
        ("numpy", "all", {"tier": "light"}),
        ("numpy", "all", {"direction": "sketch"}),
    ],
)
def test_reading_together_gives_the_numbers_of_reading_one_by_one(
    reads: str,
    clip: str,
    options: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if reads == "torch":
        monkeypatch.setattr(stats, "HOST", ())
    together = train(tmp_path / "together", 9, clip=clip, **options)
    monkeypatch.setattr(pools, "SMALL", 0)
    single = train(tmp_path / "single", 9, clip=clip, **options)
    for name, weight in together.items():
        assert torch.equal(weight, single[name]), name
    runs = [gm.load(tmp_path / name) for name in ("together", "single")]
    names = [{name for name in run.names() if name != "meter/share"} for run in runs]
    assert names[0] == names[1]
    for name in names[0]:
        (steps, values), (expected_steps, expected) = (run.series(name) for run in runs)
        assert steps.tolist() == expected_steps.tolist(), name
        np.testing.assert_allclose(values, expected, rtol=2e-4, atol=1e-6, err_msg=name)


def test_the_pool_of_a_model_that_moves_to_another_dtype_follows(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None, quiet=True):
        model.double()
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 4, dtype=torch.float64)).square().mean().backward()
            optimizer.step()
        norm = torch.linalg.vector_norm(torch.cat([p.grad.reshape(-1) for p in model.parameters()]))
    assert gm.load(tmp_path / "run").series("grad/all/norm/raw")[1][-1] == pytest.approx(
        norm.item(), rel=1e-12
    )
