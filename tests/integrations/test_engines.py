"""DeepSpeed and verl by stand-ins with the surface that is used of them: neither is installed here.
Both were run by hand, see docs/guide/distributed.md and docs/guide/trainers.md. Where verl is
installed, test_verl.py runs it."""

from __future__ import annotations

import os
import subprocess
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


class Metric:
    """verl's, of which workers send one for each rank."""

    def __init__(self, value: float) -> None:
        self.value = value

    @classmethod
    def aggregate_dp(cls, ranks: list[Metric]) -> float:
        return sum(one.value for one in ranks) / len(ranks)


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
        told = {"actor/pg_loss": Metric(2.0), "grad_norm": norm, "who": "me", "kl": [1.0, 3]}
        return {"metrics": told}


class TrainingWorker:
    """verl's: its train_batch means what its engine says over two ranks."""

    def __init__(self, engine: FSDPEngine) -> None:
        self.engine = engine

    def train_batch(self, data: Tensor) -> Any:
        metrics = self.engine.train_batch(data, lambda y: y.square().mean())["metrics"]
        metrics |= {"actor/pg_loss": [Metric(2.0), Metric(6.0)], "kl": [[1.0, 3.0], [5.0, 7.0]]}
        return {"metrics": {**metrics, "len/max": [3.0, 9.0], "len/min": [3.0, 9.0], "lr": RATE}}

    train_batch.attrs_of_verl = "marked"  # type: ignore[attr-defined]


class Tracking:
    """verl's logger, in its driver."""

    def log(self, data: dict[str, Any], step: int, backend: Any = None) -> None:
        assert step > 0


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """verl with these in it, each as it was before a test."""
    places = {verl.ENGINES: FSDPEngine, verl.WORKERS: TrainingWorker, verl.TRACKING: Tracking}
    for name, kind in places.items():
        module = ModuleType(name)
        copy = type(kind.__name__, kind.__bases__, {**vars(kind)})
        setattr(module, kind.__name__, copy)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("GRADIOMETER_RUN", str(tmp_path / "runs"))
    monkeypatch.setattr(verl, "_OPEN", {})


def of_verl(place: str, kind: str) -> Any:
    return getattr(sys.modules[place], kind)


def engine_of_verl(kind: str, *, trains: bool = True) -> Any:
    return of_verl(verl.ENGINES, "FSDPEngine")(kind, trains=trains)


@pytest.mark.usefixtures("installed")
def test_verl_s_engines_watch_themselves_with_the_metrics_of_their_updates(tmp_path: Path) -> None:
    verl.watch_engines()
    verl.watch_engines()  # by both ways of its config
    actor, critic = engine_of_verl("language_model"), engine_of_verl("value_model")
    reference = engine_of_verl("language_model", trains=False)
    for one in (reference, actor, critic):
        one.initialize()
    for step in range(3):
        for one in (actor, critic):
            one.train_batch(batch(step), lambda y: y.square().mean())
    for one in (actor, critic):
        one._gradiometer.close()
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["actor", "critic"]
    run = gm.load(tmp_path / "runs" / "actor")
    np.testing.assert_allclose(run.series("grad_norm")[1], run.series("grad/all/norm/raw")[1])
    assert run.series("actor/pg_loss")[1].tolist() == [2.0] * 3
    assert run.series("kl")[1].tolist() == [2.0] * 3
    assert "who" not in run.names()


@pytest.mark.usefixtures("installed")
def test_verl_s_workers_tell_an_update_of_all_ranks_and_keep_their_marks(tmp_path: Path) -> None:
    verl.watch_engines()
    worker_class = of_verl(verl.WORKERS, "TrainingWorker")
    assert worker_class.train_batch.attrs_of_verl == "marked"
    engine = engine_of_verl("value_model")
    engine.initialize()
    for step in range(2):
        worker_class(engine).train_batch(batch(step))
    engine._gradiometer.close()
    run = gm.load(tmp_path / "runs" / "critic")
    told = {"actor/pg_loss": 4.0, "kl": 4.0, "len/max": 9.0, "len/min": 3.0, "lr": RATE}
    assert {name: run.series(name)[1].tolist() for name in told} == {
        name: [value] * 2 for name, value in told.items()
    }
    np.testing.assert_allclose(run.series("grad_norm")[1], run.series("grad/all/norm/raw")[1])


@pytest.mark.usefixtures("installed")
def test_an_engine_that_was_there_before_us_is_watched_from_its_next_update(tmp_path: Path) -> None:
    critic = engine_of_verl("value_model")
    critic.initialize()  # verl resets its critic before the actor's line of the config imports us
    verl.watch_engines()
    worker = of_verl(verl.WORKERS, "TrainingWorker")(critic)
    for step in range(2):
        worker.train_batch(batch(step))
    critic._gradiometer.close()
    run = gm.load(tmp_path / "runs" / "critic")
    assert run.series("grad/all/norm/raw")[0].tolist() == [0, 1]
    assert run.series("actor/pg_loss")[1].tolist() == [4.0] * 2


@pytest.mark.usefixtures("installed")
def test_an_engine_that_verl_resets_begins_another_run(tmp_path: Path) -> None:
    verl.watch_engines()
    actor = engine_of_verl("language_model")
    for steps in (3, 2):
        actor.initialize()
        for step in range(steps):
            actor.train_batch(batch(step), lambda y: y.square().mean())
    actor._gradiometer.close()
    lengths = [gm.load(tmp_path / "runs" / name).newest_step for name in ("actor", "actor-2")]
    assert lengths == [2, 1]


@pytest.mark.usefixtures("installed")
def test_what_verl_s_driver_logs_is_in_the_runs_of_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / verl.TOLD).write_text(
        '{"critic/score/mean": -1.0}\n'
    )  # of another training
    verl.watch_engines()
    actor, tracking = engine_of_verl("language_model"), of_verl(verl.TRACKING, "Tracking")()
    actor.initialize()
    here = dict(verl._OPEN)
    for step in range(1, 4):
        for half in range(2):
            actor.train_batch(batch(2 * step + half), lambda y: y.square().mean())
        monkeypatch.setattr(verl, "_OPEN", {})  # the driver is another process
        line = {"critic/score/mean": np.float64(step), "actor/grad_norm": 9.0, "kl": 9.0, "x": "y"}
        tracking.log(line, step)
        monkeypatch.setattr(verl, "_OPEN", here)
    told = tmp_path / "runs" / verl.TOLD
    with told.open("a") as file:
        file.write('{"critic/score/mean": 4')  # the driver is in the middle of a line
    actor._gradiometer.close()
    run = gm.load(tmp_path / "runs" / "actor")
    assert [x.tolist() for x in run.series("critic/score/mean")] == [[1, 3, 5], [1.0, 2.0, 3.0]]
    assert "actor/grad_norm" not in run.names()  # the mean of rows that are there
    assert run.series("kl")[1].tolist() == [2.0] * 6


@pytest.mark.usefixtures("installed")
def test_a_trainer_of_verl_without_a_driver_logs_into_its_run(tmp_path: Path) -> None:
    verl.watch_engines()
    actor = engine_of_verl("language_model")
    actor.initialize()
    for step in range(1, 3):
        actor.train_batch(batch(step), lambda y: y.square().mean())
        of_verl(verl.TRACKING, "Tracking")().log({"val/loss": step / 2}, step=step)
    actor._gradiometer.close()
    run = gm.load(tmp_path / "runs" / "actor")
    assert [x.tolist() for x in run.series("val/loss")] == [[0, 1], [0.5, 1.0]]
    assert not (tmp_path / "runs" / verl.TOLD).exists()


@pytest.mark.usefixtures("installed")
def test_verl_is_left_alone_where_measuring_is_turned_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIOMETER_DISABLED", "1")
    verl.watch_engines()
    actor = engine_of_verl("language_model")
    actor.initialize()
    actor.train_batch(batch(0), lambda y: y.square().mean())
    of_verl(verl.TRACKING, "Tracking")().log({"val/loss": 1.0}, step=1)
    assert not (tmp_path / "runs").exists()


VERL = {
    "__init__": """
import importlib, os
for name in filter(None, os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(",")):
    importlib.import_module(name)
""",
    "workers/engine/fsdp/transformer_impl": """
import torch
from types import SimpleNamespace
class FSDPEngine:
    model_config = SimpleNamespace(model_type="value_model")
    engine_config = SimpleNamespace(strategy="fsdp2")
    optimizer_config = SimpleNamespace(lr=0.1, clip_grad=1.0)
    def initialize(self):
        self.module = torch.nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1)
    def train_batch(self, data, loss_function=None):
        self.optimizer.zero_grad()
        self.module(data).square().mean().backward()
        norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer.step()
        return {"metrics": {"grad_norm": norm.item()}}
""",
    "workers/engine_workers": """
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine
class TrainingWorker:
    def __init__(self):
        self.engine = FSDPEngine()
        self.engine.initialize()
    def train_batch(self, data):
        metrics = self.engine.train_batch(data)["metrics"]
        return {"metrics": {**metrics, "critic/vf_loss": [1.0, 2.0]}}
""",
    "utils/tracking": "class Tracking:\n    def log(self, data, step, backend=None): ...\n",
}


def test_verl_s_environment_variable_is_enough(tmp_path: Path) -> None:
    """A package that imports as verl's does: us in the middle of its own import."""
    for name, source in VERL.items():
        file = tmp_path / "verl" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    script = """
import torch
from verl.workers.engine_workers import TrainingWorker
worker = TrainingWorker()
for step in range(3):
    worker.train_batch(torch.ones(4, 3))
"""
    told = {"VERL_USE_EXTERNAL_MODULES": "gradiometer.integrations.verl"}
    told |= {"GRADIOMETER_RUN": str(tmp_path / "runs")}
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **told, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    run = gm.load(tmp_path / "runs" / "critic")
    assert run.series("critic/vf_loss")[1].tolist() == [1.5] * 3
    np.testing.assert_allclose(
        run.series("grad_norm")[1], run.series("grad/all/norm/raw")[1], rtol=1e-6
    )
