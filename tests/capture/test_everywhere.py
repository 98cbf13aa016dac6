"""The same numbers wherever training happens: mixed precision, sparse and shared parameters,
compiled models."""

from __future__ import annotations

import math
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

import gradiometer as gm
from gradiometer.capture.rounds import Cadence
from gradiometer.maths import tiers
from gradiometer.maths.histogram import log_histogram


def values(folder: Path, name: str) -> list[float]:
    return list(gm.load(folder).series(name)[1])


def norm_of(model: nn.Module) -> float:
    grads = [p.grad.to_dense().double() for p in model.parameters() if p.grad is not None]
    return math.sqrt(sum(float(g.square().sum()) for g in grads))


def mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 2))


def scaler_of(scale: float) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=10**6)


@pytest.mark.parametrize("clip", [True, False])
def test_with_a_grad_scaler_norms_are_those_after_unscale(clip: bool, tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = scaler_of(1024.0)
    expected = []
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        for _ in range(4):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(8, 5)).square().mean()).backward()
            expected.append(norm_of(model) / 1024.0)
            if clip:
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 1e-3)
            scaler.step(optimizer)
            scaler.update()
    assert values(tmp_path / "run", "grad/all/norm/raw") == pytest.approx(expected, rel=1e-5)
    if clip:
        assert values(tmp_path / "run", "grad/all/norm/clipped") == pytest.approx(
            [1e-3] * 4, rel=1e-2
        )


@pytest.mark.parametrize("clip", [True, False])
def test_a_step_the_scaler_skips_is_counted(clip: bool, tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = scaler_of(8.0)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        for number in range(5):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 5)).square().mean()
            scaler.scale(loss * (math.inf if number == 2 else 1.0)).backward()
            if clip:
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
    run = gm.load(tmp_path / "run")
    assert [event.step for event in run.events("skipped-step")] == [2]
    assert run.newest_step == 4
    assert list(run.series("grad/all/norm/update")[0]) == [0, 1, 3, 4]


def test_a_fused_optimizer_under_a_scaler_is_read_unscaled(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    scaler = scaler_of(512.0)
    expected = []
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(8, 5)).square().mean()).backward()
            expected.append(norm_of(model) / 512.0)
            scaler.step(optimizer)
            scaler.update()
    assert values(tmp_path / "run", "grad/all/norm/raw") == pytest.approx(expected, rel=1e-5)


def test_bfloat16_autocast_and_bfloat16_gradients(tmp_path: Path) -> None:
    model = mlp().to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    expected, zeros = [], []
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        for _ in range(5):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(torch.randn(8, 5)).float().square().mean()
            loss.backward()
            expected.append(norm_of(model))
            zeros.append(0.0)
            optimizer.step()
    assert values(tmp_path / "run", "grad/all/norm/raw") == pytest.approx(expected, rel=1e-5)
    assert values(tmp_path / "run", "grad/all/zero_fraction") == zeros
    assert len(values(tmp_path / "run", "grad/all/cos_prev")) == 4
    assert not gm.load(tmp_path / "run").events("fault")


@pytest.mark.parametrize("direction", ["exact", "sketch"])
def test_sparse_gradients_of_an_embedding(direction: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"embed": nn.Embedding(50, 4, sparse=True), "head": nn.Linear(4, 1)})
    sparse = torch.optim.SparseAdam(model["embed"].parameters(), lr=0.01)
    dense = torch.optim.Adam(model["head"].parameters(), lr=0.01)
    norms, grads = [], []
    with gm.watch(model, [sparse, dense], run=tmp_path / "run", budget=None, direction=direction):
        for number in range(6):
            model.zero_grad()
            model["head"](
                model["embed"](torch.tensor([1, 2, 2, 7 + number]))
            ).square().mean().backward()
            norms.append(norm_of(model))
            grads.append(
                torch.cat(
                    [p.grad.to_dense().flatten() for p in model.parameters() if p.grad is not None]
                )
            )
            sparse.step()
            dense.step()
    run = gm.load(tmp_path / "run")
    assert not run.events("fault")
    assert values(tmp_path / "run", "grad/all/norm/raw") == pytest.approx(norms, rel=1e-5)
    if direction == "exact":
        expected = [float(torch.cosine_similarity(a, b, dim=0)) for a, b in pairwise(grads)]
        assert values(tmp_path / "run", "grad/all/cos_prev") == pytest.approx(expected, abs=1e-4)
        assert values(tmp_path / "run", "grad/layer.embed/zero_fraction")[0] == pytest.approx(
            47 / 50
        )


def test_shared_and_frozen_parameters(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {"embed": nn.Embedding(9, 4), "mid": nn.Linear(4, 4), "head": nn.Linear(4, 9, bias=False)}
    )
    model["head"].weight = model["embed"].weight
    model["mid"].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        model["head"](model["mid"](model["embed"](torch.tensor([1, 2])))).square().mean().backward()
        expected = norm_of(model)
        optimizer.step()
    assert values(tmp_path / "run", "grad/all/norm/raw") == pytest.approx([expected], rel=1e-6)
    assert gm.load(tmp_path / "run").table("states").content["mid.bias"] == "frozen"


@pytest.mark.parametrize("set_to_none", [True, False])
def test_both_ways_of_zeroing_gradients(set_to_none: bool, tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        for _ in range(10):
            for _ in range(2):
                model(torch.randn(8, 5)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
    run = gm.load(tmp_path / "run")
    assert not run.events("skipped-step")
    assert run.newest_step == 9
    assert set(run.series("meter/micro_batches")[1]) == {2.0}


def test_terms_of_a_compiled_model_are_measured_or_said_to_be_unmeasurable(tmp_path: Path) -> None:
    model = mlp()
    fast = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gm.GradiometerWarning)
        with gm.watch(fast, optimizer, run=tmp_path / "run", budget=None) as meter:
            for _ in range(3):
                optimizer.zero_grad()
                out = fast(torch.randn(8, 5))
                with meter.terms(policy=out[:, 0].mean(), value=out[:, 1].square().mean()) as loss:
                    loss.backward()
                optimizer.step()
    run = gm.load(tmp_path / "run")
    measured = "grad/all/term/policy/norm" in run.names()
    assert measured != bool(run.events("terms-unmeasurable"))
    assert not run.events("dead-term")
    assert run.newest_step == 2


class Counter(torch.overrides.TorchFunctionMode):
    """Counts the calls that wait for a device."""

    METHODS = (
        "item",
        "tolist",
        "cpu",
        "numpy",
        "__bool__",
        "__float__",
        "__int__",
        "__index__",
        "nonzero",
    )

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        if name in self.METHODS:
            self.calls.append(name)
        return function(*args, **(kwargs or {}))


class DispatchCounter(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the kernels that wait for a device, however they are reached."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if any(
            word in str(function)
            for word in ("_local_scalar_dense", "aten.nonzero", "is_nonzero", "aten.equal")
        ):
            self.calls.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "options", [{"tier": "light"}, {}, {"direction": "sketch"}, {"tier": "deep"}]
)
@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.usefixtures("as_on_a_device")
def test_a_measured_step_has_one_sync_and_the_others_none(
    options: dict[str, Any], every: int
) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    log_histogram(torch.ones(1))  # its table of edges is made once, on the host
    syncs: list[list[str]] = []
    with gm.watch(model, optimizer, run=None, budget=None, every=every, **options) as meter:
        for _ in range(13):
            with Counter() as methods, DispatchCounter() as kernels:
                optimizer.zero_grad()
                for _ in range(2):
                    out = model(torch.randn(8, 5))
                    with meter.terms(
                        policy=out[:, 0].mean(), value=out[:, 1].square().mean()
                    ) as loss:
                        loss.backward()
                clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                meter.log(loss=loss, ratio=out.detach().exp(), advantages=out.detach())
            syncs.append(methods.calls + kernels.calls)
    for step, calls in enumerate(syncs):
        assert calls == (
            ["cpu", "numpy"] if step % every == 0 else []
        )  # one transfer, then its view on the host


class Routed(nn.Module):
    """Two experts, merged by a router; one tensor of each is large enough to be cut by kept
    thresholds."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(5, 2)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(5, 1000), nn.Linear(1000, 2)) for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.router(x).softmax(-1)
        return sum(weights[:, e, None] * expert(x) for e, expert in enumerate(self.experts))


@pytest.mark.usefixtures("as_on_a_device")
def test_experts_take_no_sync_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "on_host", tiers.on_device)  # on a CPU numpy selects
    model = Routed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    log_histogram(torch.ones(1))
    with gm.watch(
        model, optimizer, run=None, budget=None, every=2, experts_every=2, tier="deep"
    ) as meter:
        for step in range(7):
            with Counter() as methods, DispatchCounter() as kernels:
                optimizer.zero_grad()
                out = model(torch.randn(8, 5))
                with meter.terms(task=out[:, 0].mean(), aux=out[:, 1].square().mean()) as loss:
                    loss.backward()
                optimizer.step()
            assert methods.calls + kernels.calls == (["cpu", "numpy"] if step % 2 == 0 else [])


def test_the_counters_see_a_sync() -> None:
    with Counter() as methods, DispatchCounter() as kernels:
        torch.ones(3).sum().item()
        bool(torch.ones(1) > 0)
        torch.ones(3).tolist()
    assert {"item", "__bool__", "tolist"} <= set(methods.calls)
    assert any("_local_scalar_dense" in call for call in kernels.calls)


@pytest.mark.slow
def test_the_budget_stretches_the_cadence_and_is_kept(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=0.01):
        for _ in range(1200):
            optimizer.zero_grad()
            model(torch.randn(64, 5)).square().mean().backward()
            optimizer.step()
    run = gm.load(tmp_path / "run")
    steps, intervals = run.series("meter/interval")
    assert len(steps) < 300  # it would have been 1200
    assert intervals.max() > 1
    assert (
        "grad/all/cos_prev" in run.names()
    )  # still the step before, however far apart the measured ones are
    assert (np.diff(steps) >= 1).all()


def test_a_cadence_that_is_stretched_stays_on_the_grid() -> None:
    cadence = Cadence(every=5, budget=0.01)
    measured = []
    for step in range(200):
        if cadence.due(step):
            measured.append(step)
            cadence.measured(step, 10.0)  # far beyond the budget
    assert all(step % 5 == 0 for step in measured)
    assert len(measured) == 40  # guaranteed, whatever they cost


def measured_by(cadence: Cadence, steps: int, seconds: float) -> list[int]:
    measured = []
    for step in range(steps):
        if cadence.due(step):
            measured.append(step)
            cadence.measured(step, seconds)
    return measured


@pytest.mark.parametrize("every", [1, 3])
def test_a_hundred_steps_are_measured_and_spread_over_any_training_however_dear(every: int) -> None:
    measured = np.array(measured_by(Cadence(every=every, budget=0.01), 20_000 * every, 10.0))
    assert (measured % every == 0).all()
    places = measured // every
    for length in (1, 30, 100, 101, 199, 200, 480, 1_000, 3_333, 20_000):
        so_far = places[places < length]
        assert len(so_far) >= min(length, 100)
        gaps = np.diff([*so_far, length])
        assert gaps.max() <= max(1, length / 25)
        assert len(so_far) <= 100 + 50 * np.log2(max(length, 100) / 100) + 1


def test_guaranteed_steps_meet_every_part_of_an_epoch() -> None:
    measured = np.array(measured_by(Cadence(every=1, budget=0.01), 100_000, 10.0))
    late = measured[measured >= 10_000]
    for period in (32, 64, 256, 320):
        phases = late % period * 8 // period
        assert np.bincount(phases, minlength=8).min() >= 0.5 * len(late) / 8


def test_beyond_the_guaranteed_steps_the_budget_rules_and_the_excess_is_counted() -> None:
    cheap = Cadence(every=1, budget=0.5)
    assert len(measured_by(cheap, 1_000, 0.0)) == 1_000
    dear = Cadence(every=1, budget=0.5)
    count = len(measured_by(dear, 1_000, 1.0))
    assert 250 <= count <= 300
    found = dear.coverage(measured=count, steps=1_000)
    assert found.seconds == count
    assert found.beyond_budget == pytest.approx(count, abs=0.5)
    assert f"measured {count} of 1000 steps (budget=0.5); the first 100 are" in found.words()


def test_a_resumed_training_does_not_begin_dense_again() -> None:
    first = Cadence(every=2, budget=0.01)
    measured_by(first, 20_000, 10.0)
    again = Cadence(every=2, budget=0.01)
    again.load_state_dict(first.state_dict())
    assert len(measured_by(again, 2_000, 10.0)) <= 20


def test_without_a_budget_every_nth_step_is_measured() -> None:
    cadence = Cadence(every=3, budget=None)
    measured = [
        step for step in range(10) if cadence.due(step) and cadence.measured(step, 100.0) is None
    ]
    assert measured == [0, 3, 6, 9]


def test_device_scalars_do_not_pile_up_without_a_measured_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("gradiometer.capture.meter.PENDING_LIMIT", 10)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, run=tmp_path / "run", every=10**6, budget=None) as meter:
        for number in range(25):
            meter.step(number)
            meter.log(x=torch.tensor(float(number)))
        assert meter._scalars.num_waiting <= 10
    assert values(tmp_path / "run", "x") == list(range(25))


def test_forward_and_backward_hooks_of_others_do_not_matter(tmp_path: Path) -> None:
    model = mlp()
    seen: list[Tensor] = []
    model[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 5)).square().mean().backward()
            optimizer.step()
    assert len(seen) == 3
    assert len(values(tmp_path / "run", "grad/all/norm/raw")) == 3
