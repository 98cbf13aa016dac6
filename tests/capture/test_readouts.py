"""What a person or a policy reads off the meter: health, flow, pairs, features, events."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gradiometer as gm
from gradiometer.capture.readout import FEATURES
from gradiometer.errors import NonFiniteGradient, UnknownName
from gradiometer.maths.histogram import LABELS


def deep_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(8, 8) for _ in range(5)])


def set_gradients(model: nn.Module, scales: dict[str, float | None]) -> None:
    for name, p in model.named_parameters():
        scale = scales.get(name, 1.0)
        p.grad = None if scale is None else torch.full_like(p, scale)


def meter_after(
    model: nn.Module, scales: dict[str, float | None], steps: int = 1, **options: Any
) -> gm.Meter:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, run=None, budget=None, **options) as meter:
        for _ in range(steps):
            set_gradients(model, scales)
            optimizer.step()
    return meter


def test_before_the_first_step_nothing_is_healthy_and_nothing_is_zero() -> None:
    model = deep_model()
    with gm.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), run=None) as meter:
        reading = meter.gradient_health()
        assert reading.step is None
        assert reading.gradient_norm is None
        assert reading.gradient_health is None
        assert reading.has_vanishing is None
        assert meter.flow().reason == "nothing measured yet"
        assert meter.features().shape == (len(FEATURES),)


def test_a_healthy_block_under_the_compatibility_names() -> None:
    reading = meter_after(deep_model(), {}).gradient_health("all")
    assert reading.state == "finite"
    assert reading.gradient_norm == pytest.approx(math.sqrt(5 * 72))
    assert reading.gradient_health == 1.0
    assert (reading.has_vanishing, reading.has_exploding) == (False, False)
    assert (reading.vanishing_severity, reading.exploding_severity) == (0.0, 0.0)
    assert reading.zero_grad_fraction == 0.0
    assert reading.min_layer_norm == reading.max_layer_norm == pytest.approx(math.sqrt(72))
    assert reading.norm_ratio == pytest.approx(1.0)


def test_a_block_without_gradients_has_no_health() -> None:
    model = nn.ModuleDict({"actor": nn.Linear(2, 2), "critic": nn.Linear(2, 1)})
    meter = meter_after(model, {"critic.weight": None, "critic.bias": None})
    reading = meter.gradient_health("critic")
    assert reading.state == "missing"
    assert reading.gradient_health is None
    assert reading.gradient_norm is None
    assert meter.gradient_health("actor").gradient_health == 1.0


def test_a_nan_makes_health_zero() -> None:
    reading = meter_after(deep_model(), {"2.weight": math.nan}).gradient_health()
    assert reading.state == "nonfinite"
    assert reading.gradient_health == 0.0


def test_severity_is_judged_against_the_tensors_own_past() -> None:
    model = deep_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    small = {name: 1e-9 for name, _ in model.named_parameters() if name.startswith("0.")}
    with gm.watch(model, optimizer, run=None, budget=None) as meter:
        for _ in range(40):
            set_gradients(model, small)
            optimizer.step()
        early = meter.gradient_health("layer.0")
        assert early.vanishing_severity == 0.0
        assert early.has_vanishing is False
        set_gradients(model, {**small, "3.weight": 1e-4, "3.bias": 1e-4})
        optimizer.step()
        # Its band is log10(n) ± 5 · 0.1 decades, so four decades down are 3.5 below it: 3.5/6.
        assert meter.gradient_health("layer.3").vanishing_severity == pytest.approx(
            3.5 / 6, abs=1e-6
        )
        set_gradients(model, {**small, "3.weight": 1e2, "3.bias": 1e2})
        optimizer.step()
        assert meter.gradient_health("layer.3").exploding_severity == pytest.approx(
            1.5 / 6, abs=1e-6
        )


@pytest.mark.parametrize("usual", [1e-9, 1.0, 500.0])
def test_the_flags_and_health_never_contradict_each_other(usual: float) -> None:
    """Large rewards make norms of thousands, a late policy ones of 1e-9: usual for these tensors."""
    model = deep_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    steady = {name: usual for name, _ in model.named_parameters()}
    with gm.watch(model, optimizer, run=None, budget=None) as meter:
        for factor, flags in [(1.0, (False, False))] * 30 + [
            (100.0, (False, True)),
            (0.01, (True, False)),
        ]:
            jumped = {**steady, "3.weight": usual * factor}
            set_gradients(model, jumped)
            optimizer.step()
            reading = meter.gradient_health()
            assert (reading.has_vanishing, reading.has_exploding) == flags
            assert reading.gradient_health is not None
            assert (reading.gradient_health < 1.0) == any(flags)


@pytest.mark.parametrize(("scale", "exploding"), [(1.0, False), (500.0, False), (1e5, True)])
def test_without_a_past_the_flags_have_the_bounds_that_health_begins_with(
    scale: float, exploding: bool
) -> None:
    reading = meter_after(deep_model(), {"2.weight": scale}, tier="light").gradient_health()
    assert reading.gradient_health is None
    assert reading.has_exploding is exploding


def test_the_flow_names_the_layer_where_the_gradient_is_lost() -> None:
    model = deep_model()
    assert meter_after(model, {}).flow().lost_at is None
    lost = dict.fromkeys(("0.weight", "0.bias", "1.weight", "1.bias"), 1e-9)
    flow = meter_after(model, lost).flow()
    assert flow.lost_at == "layer.1"
    assert "more than 10,000" in flow.reason
    assert [layer.name for layer in flow.layers] == [f"layer.{i}" for i in range(5)]
    missing = dict.fromkeys(
        ("0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"), None
    )
    assert meter_after(model, missing).flow().lost_at == "layer.2"
    assert meter_after(model, {"3.bias": math.inf}).flow().reason == "NaN or Inf"
    for p in model[0].parameters():
        p.requires_grad_(False)
    assert meter_after(model, {"0.weight": None, "0.bias": None}).flow().lost_at is None


def test_features_are_between_zero_and_one_whatever_happens() -> None:
    for scales in (
        {},
        {"0.weight": math.nan},
        {"0.weight": 1e30},
        {"0.weight": 1e-30},
        {"0.weight": None},
    ):
        meter = meter_after(deep_model(), scales, steps=3)  # type: ignore[arg-type]
        row = meter.features("all")
        assert row.dtype == np.float32
        assert row.shape == (len(FEATURES),)
        assert ((row >= 0) & (row <= 1)).all()
    healthy = dict(zip(FEATURES, meter_after(deep_model(), {}, steps=3).features(), strict=True))
    assert healthy["health"] == 1.0
    assert healthy["cos_prev"] == pytest.approx(1.0)
    with pytest.raises(UnknownName, match=r"did you mean 'layer\.0'"):
        meter_after(deep_model(), {}).features("layer.00")


def grafted() -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict({"host": nn.Linear(10, 10), "seed_module": nn.Linear(3, 3)})


def pair_after(history: list[tuple[float | None, float]], run: Path | None = None) -> gm.Meter:
    model = grafted()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    pairs = {"graft": ("seed_module", "host")}
    with gm.watch(model, optimizer, run=run, budget=None, pairs=pairs) as meter:
        for seed, host in history:
            scales = {
                "seed_module.weight": seed,
                "seed_module.bias": seed,
                "host.weight": host,
                "host.bias": host,
            }
            set_gradients(model, scales)
            optimizer.step()
    return meter


@pytest.mark.parametrize(
    ("history", "verdict"),
    [
        ([(1.0, 1.0)] * 5, "balanced"),
        ([(0.0, 1.0)] * 30, "dormant"),
        ([(1.0, 1.0)] * 30 + [(1e-4, 1.0)] * 5, "saturated"),
        ([(1.0, 1.0)] * 30 + [(1.0, 1e3)], "host-learning-fast"),
        ([(None, 1.0)] * 5, "loss-not-reaching"),
    ],
)
def test_a_low_ratio_is_resolved(history: list[tuple[float | None, float]], verdict: str) -> None:
    assert pair_after(history).pair("graft").verdict == verdict


def test_the_ratio_of_a_pair_is_per_element_and_kept(tmp_path: Path) -> None:
    meter = pair_after([(0.5, 1.0)] * 3, run=tmp_path / "run")
    assert meter.pair("graft").ratio == pytest.approx(0.5, rel=1e-6)
    assert list(gm.load(tmp_path / "run").series("grad/pair/graft/ratio")[1]) == pytest.approx(
        [0.5] * 3, rel=1e-6
    )
    with pytest.raises(UnknownName, match="did you mean 'graft'"):
        meter.pair("grafted")


def test_deep_keeps_histograms_that_count_every_element(tmp_path: Path) -> None:
    model = deep_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None, tier="deep"):
        set_gradients(model, {"0.weight": 0.0, "1.bias": math.nan, "2.bias": -math.inf})
        optimizer.step()
    counts = dict(
        zip(
            LABELS,
            gm.load(tmp_path / "run").vector("histogram/all", 0).values.tolist(),
            strict=True,
        )
    )
    assert sum(counts.values()) == 5 * 72
    assert counts["zero"] == 64
    assert (counts["NaN"], counts["Inf"]) == (8, 8)


def test_deep_stops_inside_backward_and_names_tensor_term_and_micro_batch(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reached: list[Tensor] = []
    watched = gm.watch(
        model, optimizer, run=tmp_path / "run", budget=None, tier="deep", on_nonfinite="raise"
    )
    with watched as meter, pytest.raises(NonFiniteGradient) as problem:
        for number in range(3):
            out = model(torch.randn(6, 4))
            bad = out[:, 1].mean() * (math.nan if number == 1 else 1.0)
            with meter.terms(policy=out[:, 0].mean(), entropy=bad) as loss:
                loss.backward()
            reached.append(loss)
        optimizer.step()
    assert len(reached) == 1
    message = str(problem.value)
    assert "1.bias" in message or "1.weight" in message
    assert "from the term 'entropy'" in message
    assert "in micro-batch 2, counted from 1" in message
    assert "inside backward" in message


def test_a_nan_is_traced_to_its_term(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None) as meter:
        out = model(torch.randn(6, 4))
        with meter.terms(policy=out[:, 0].mean(), value=out[:, 1].mean() * math.nan) as loss:
            loss.backward()
        optimizer.step()
    (event,) = gm.load(tmp_path / "run").events("nonfinite")
    assert event.detail["terms"] == ["value"]


def test_a_ratio_explosion_is_an_event_with_the_gradients_of_that_moment(tmp_path: Path) -> None:
    model = deep_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None) as meter:
        for number in range(4):
            set_gradients(model, {"0.weight": float(number)})
            optimizer.step()
            ratio = torch.ones(32)
            ratio[3] = 50.0 if number == 2 else 1.1
            meter.log(ratio=ratio, advantages=torch.randn(32))
    run = gm.load(tmp_path / "run")
    (event,) = run.events("ratio-explosion")
    assert event.step == 2
    assert event.detail["ratio"] == 50.0
    assert event.detail["gradient_step"] == 2
    assert event.detail["gradient"]["grad/all/norm/raw"] == run.series("grad/all/norm/raw")[1][2]
    assert list(run.series("ratio/max")[1]) == pytest.approx([1.1, 1.1, 50.0, 1.1])


def test_gradients_that_follow_the_advantages_are_found(tmp_path: Path) -> None:
    model = deep_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    generator = np.random.default_rng(0)
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None) as meter:
        for _ in range(81):
            spread = float(np.exp(generator.normal()))
            set_gradients(model, {name: spread for name, _ in model.named_parameters()})
            optimizer.step()
            meter.log({"advantages/std": spread})
    assert gm.load(tmp_path / "run").series("grad/all/advantage_response")[1][-1] > 0.95


def run_with_levels(folder: Path, decades: Any) -> gm.Run:
    """A training whose gradient has these log10 levels, and a learning rate that jumps about."""
    model = deep_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    generator = np.random.default_rng(0)
    with gm.watch(model, optimizer, run=folder, budget=None):
        for step in range(251):
            optimizer.param_groups[0]["lr"] = 10.0 ** generator.uniform(-8, -6)
            level = 10 ** (decades(step) + 0.02 * generator.normal())
            set_gradients(model, {name: level for name, _ in model.named_parameters()})
            optimizer.step()
    return gm.load(folder)


@pytest.mark.slow
def test_a_drift_is_found_with_its_significance(tmp_path: Path) -> None:
    run = run_with_levels(tmp_path / "run", lambda step: 0.004 * step)
    assert run.series("grad/all/drift")[1][-1] == pytest.approx(
        4.0, rel=0.1
    )  # decades per 1000 steps
    assert run.series("grad/all/drift_p")[1][-1] < 0.01
    assert run.series("grad/all/lr_response")[1][-1] > 0.6
    assert "grad/all/period" not in run.names()


@pytest.mark.slow
def test_an_oscillation_is_found_with_its_period(tmp_path: Path) -> None:
    run = run_with_levels(tmp_path / "run", lambda step: 0.3 * math.sin(2 * math.pi * step / 20))
    assert run.series("grad/all/period")[1][-1] == pytest.approx(20, rel=0.1)
    assert abs(run.series("grad/all/drift")[1][-1]) < 1.0
