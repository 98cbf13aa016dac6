"""DeepSpeed and verl by stand-ins with the surface that is used of them: neither is installed here.
Both were run by hand, see docs/guide/distributed.md and docs/guide/trainers.md."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gradiometer as gm
from gradiometer.errors import UsageError
from gradiometer.integrations import verl
from gradiometer.integrations.deepspeed import watch_engine

CLIP, RATE, MICRO = 0.05, 0.5, 2


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 100), nn.Tanh(), nn.Linear(100, 50), nn.Linear(50, 3))


def batch(number: int) -> Tensor:
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(number))


class ZeroEngine:
    """Keeps gradients in a list of its own, as ZeRO does in partitions; `scale` as under fp16."""

    global_steps = micro_steps = 0
    norm: float | None = None

    def __init__(self, module: nn.Module, scale: float = 1.0) -> None:
        self.module, self.optimizer = module, SimpleNamespace(loss_scale=scale)
        self.kept: dict[int, Tensor] = {}

    def zero_optimization_stage(self) -> int:
        return 2

    def gradient_accumulation_steps(self) -> int:
        return MICRO

    def gradient_clipping(self) -> float:
        return CLIP

    def get_lr(self) -> list[float]:
        return [RATE]

    def get_global_grad_norm(self) -> float | None:
        return self.norm

    def is_gradient_accumulation_boundary(self) -> bool:
        return (self.micro_steps + 1) % MICRO == 0

    def backward(self, loss: Tensor) -> None:
        torch.autograd.backward(loss * self.optimizer.loss_scale / MICRO)
        for p in self.module.parameters():
            if p.grad is not None:
                self.kept[id(p)] = self.kept.get(id(p), torch.zeros_like(p)) + p.grad
                p.grad = None

    @torch.no_grad()
    def step(self) -> None:
        if self.is_gradient_accumulation_boundary():
            grads = {key: x / self.optimizer.loss_scale for key, x in self.kept.items()}
            total = torch.stack([x.norm() for x in grads.values()]).norm()
            self.norm = float(total)
            for p in self.module.parameters():
                p -= RATE * grads[id(p)] * min(1.0, CLIP / (self.norm + 1e-6))
            self.kept.clear()
            self.global_steps += 1
        self.micro_steps += 1


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ZeroEngine:
    found = ZeroEngine(model(), scale=1024.0)

    def safe_get_full_grad(p: nn.Parameter) -> Tensor | None:
        assert found.is_gradient_accumulation_boundary(), "ZeRO 2 raises here"
        return found.kept.get(id(p))

    utils = ModuleType("deepspeed.utils")
    utils.safe_get_full_grad = safe_get_full_grad  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deepspeed", ModuleType("deepspeed"))
    monkeypatch.setitem(sys.modules, "deepspeed.utils", utils)
    return found


def train(engine: ZeroEngine, *, steps: int = 5) -> None:
    for number in range(MICRO * steps):
        engine.backward(engine.module(batch(number)).square().mean())
        engine.step()


def test_zero_gives_the_norms_of_a_plain_training(engine: ZeroEngine, tmp_path: Path) -> None:
    plain = model()
    optimizer = torch.optim.SGD(plain.parameters(), lr=RATE)
    with gm.watch(plain, optimizer, run=tmp_path / "plain", tier="light", budget=None):
        for step in range(5):
            optimizer.zero_grad()
            for part in range(MICRO):
                torch.autograd.backward(plain(batch(MICRO * step + part)).square().mean() / MICRO)
            nn.utils.clip_grad_norm_(plain.parameters(), CLIP)
            optimizer.step()
    with watch_engine(engine, run=tmp_path / "zero", every=1) as meter:
        train(engine)
        assert meter is not None
    one, other = gm.load(tmp_path / "plain"), gm.load(tmp_path / "zero")
    names = {name for name in one.names() if name.startswith("grad/")}
    assert {"grad/all/norm/raw", "grad/all/norm/clipped", "grad/layer.2/max_abs"} <= names
    assert names == {name for name in other.names() if name.startswith("grad/")}
    for name in names:
        np.testing.assert_allclose(other.series(name)[1], one.series(name)[1], rtol=1e-5)
    norms = other.series("deepspeed/global_grad_norm")[1]
    np.testing.assert_allclose(norms, other.series("grad/all/norm/raw")[1], rtol=1e-5)
    assert other.series("optimizer/0/lr")[1].tolist() == [RATE] * 5
    assert not other.events()  # of a loss that reaches no stand-in nothing is proved


def test_the_engine_trains_the_same_bits_and_is_given_back(
    engine: ZeroEngine, tmp_path: Path
) -> None:
    free = ZeroEngine(model(), scale=1024.0)
    train(free)
    with watch_engine(engine, run=tmp_path / "run", every=2):
        train(engine)
    assert "step" not in vars(engine)
    for mine, other in zip(engine.module.parameters(), free.module.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert gm.load(tmp_path / "run").series("grad/all/norm/raw")[0].tolist() == [0, 2, 4]


def test_a_fault_of_ours_stops_neither_training_nor_messages(
    engine: ZeroEngine, tmp_path: Path
) -> None:
    with watch_engine(engine, run=tmp_path / "run", every=1) as meter:
        train(engine, steps=2)
        meter.take_gradient = None  # type: ignore[assignment, union-attr]
        with pytest.warns(gm.GradiometerWarning):
            train(engine, steps=2)
    assert engine.global_steps == 4
    run = gm.load(tmp_path / "run")
    assert run.series("grad/all/norm/raw")[0].tolist() == [0, 1]
    assert len(run.events("fault")) == 1


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        (lambda engine: None, {"every": 0}, "found every=0"),
        (lambda engine: None, {"tier": "deep"}, "no option 'tier'"),
        (
            lambda engine: setattr(engine, "zero_optimization_stage", lambda: 0),
            {},
            r"gradiometer\.watch\(engine\.module",
        ),
        (
            lambda engine: setattr(engine, "managed_gradient_accumulation", lambda: False),
            {},
            "Leave it at true",
        ),
    ],
)
def test_what_cannot_be_read_is_said_before_a_folder_is_made(
    engine: ZeroEngine,
    tmp_path: Path,
    change: Callable[[ZeroEngine], None],
    options: dict[str, Any],
    said: str,
) -> None:
    change(engine)
    with pytest.raises(UsageError, match=said), watch_engine(engine, run=tmp_path / "x", **options):
        pass
    assert not (tmp_path / "x").exists()
    with pytest.raises(UsageError, match=r"deepspeed\.initialize returns; found Linear"):
        watch_engine(nn.Linear(1, 1)).__enter__()


class FSDPEngine:
    """verl's, as far as it is used."""

    optimizer: torch.optim.Optimizer | None = None

    def __init__(self, kind: str, *, trains: bool = True) -> None:
        self.model_config = SimpleNamespace(model_type=kind)
        self.engine_config = SimpleNamespace(strategy="fsdp2")
        self.optimizer_config = SimpleNamespace(lr=RATE, clip_grad=CLIP)
        self._trains = trains

    def initialize(self) -> None:
        self.module = model()
        if self._trains:
            self.optimizer = torch.optim.SGD(self.module.parameters(), lr=RATE)

    def train_batch(self, data: Tensor, loss_function: Callable[[Tensor], Tensor]) -> Any:
        assert self.optimizer is not None
        self.optimizer.zero_grad()
        torch.autograd.backward(loss_function(self.module(data)))
        norm = nn.utils.clip_grad_norm_(self.module.parameters(), CLIP)
        self.optimizer.step()
        loss = SimpleNamespace(aggregate=lambda: 2.0)
        return {"metrics": {"actor/pg_loss": loss, "grad_norm": norm, "who": "me", "kl": [1.0, 3]}}


def test_verl_s_engines_watch_themselves_with_the_metrics_of_their_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType(verl.ENGINES)
    module.FSDPEngine = FSDPEngine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, verl.ENGINES, module)
    monkeypatch.setenv("GRADIOMETER_RUN", str(tmp_path))
    for name in ("initialize", "train_batch"):
        monkeypatch.setattr(FSDPEngine, name, getattr(FSDPEngine, name))
    verl.watch_engines()
    verl.watch_engines()  # by both ways of its config
    actor, critic = FSDPEngine("language_model"), FSDPEngine("value_model")
    reference = FSDPEngine("language_model", trains=False)
    for one in (reference, actor, critic):
        one.initialize()
    for step in range(3):
        for one in (actor, critic):
            one.train_batch(batch(step), lambda y: y.square().mean())
    for one in (actor, critic):
        one._gradiometer.close()  # type: ignore[attr-defined]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["actor", "critic"]
    run = gm.load(tmp_path / "actor")
    np.testing.assert_allclose(run.series("grad_norm")[1], run.series("grad/all/norm/raw")[1])
    assert run.series("actor/pg_loss")[1].tolist() == [2.0] * 3
    assert run.series("kl")[1].tolist() == [2.0] * 3
    assert "who" not in run.names()
