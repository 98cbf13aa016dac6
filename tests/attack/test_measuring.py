"""Measuring never ends by accident, and never ends a training."""

from __future__ import annotations

import copy
import gc
import importlib
import inspect
import pkgutil
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gradiometer as gm
import gradiometer.capture
import gradiometer.store
from gradiometer.capture import hooks
from gradiometer.capture.meter import Meter
from gradiometer.errors import GradiometerError
from gradiometer.records import Event, Row, Table
from gradiometer.store.locks import WriterLock
from gradiometer.store.reader import load
from gradiometer.store.writer import Writer

pytestmark = pytest.mark.filterwarnings("ignore")


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    meter: Any,
    steps: int = 3,
    *,
    generator: torch.Generator | None = None,
) -> None:
    """All that a loop does with a meter."""
    for step in range(steps):
        batch = torch.randn(8, 4, generator=generator)
        out = model(batch)
        meter.at(env_steps=8 * step)
        optimizer.zero_grad()
        with meter.terms(fit=out.pow(2).mean(), size=0.1 * out.abs().mean()) as loss:
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        meter.log(reward=float(step), advantages=out.detach())


ODD: dict[str, Callable[[Any], Any]] = {
    "a number as a name": lambda meter: meter.log({0: 1.0}),
    "half a character": lambda meter: meter.log({"a\ud800": 1.0}),
    "env_steps of 70 bits": lambda meter: meter.at(env_steps=2**70),
    "env_steps in words": lambda meter: meter.at(env_steps="many"),
    "a step of 64 bits": lambda meter: meter.step(2**63),
    "no step": lambda meter: meter.step(-1),
    "a number too large": lambda meter: meter.log(x=10**400),
    "a number without a name": lambda meter: meter.log(x=10**5000),
    "a table in itself": lambda meter: meter.record({}, tables={"t": circular()}),
    "half a character in a table": lambda meter: meter.record(
        {}, tables={"t\ud800": {"\udfff": 1}}
    ),
    "a probe at no step": lambda meter: meter.record({"x": 1.0}, step=2**70),
    "no probe": lambda meter: meter.record(7),
    "a probe in words": lambda meter: meter.record({"x": "much"}, step="late"),
    "a list": lambda meter: meter.log([1.0]),
    "text": lambda meter: meter.log(x="much"),
    "an object that raises": lambda meter: meter.log(x=Hostile()),
    "a name that raises": lambda meter: meter.log({Hostile(): 1.0}),
    "a log at no step": lambda meter: meter.log(x=1.0, step=2**70),
    "an event with half a character": lambda meter: meter.event("kind\ud800", "text\ud800"),
    "an event at no step": lambda meter: meter.event("kind", "text", 2**70),
    "an event with itself": lambda meter: meter.event("kind", "text", detail=circular()),
    "an empty tensor": lambda meter: meter.log(x=torch.empty(0)),
    "a complex number": lambda meter: meter.log(x=1j),
}


class Hostile:
    def __float__(self) -> float:
        raise SystemError("no")

    def __repr__(self) -> str:
        raise SystemError("no")

    __str__ = __repr__


def circular() -> dict[str, Any]:
    table: dict[str, Any] = {}
    table["self"] = table
    return table


@pytest.mark.parametrize("odd", ODD)
def test_a_bad_record_is_refused_and_everything_else_is_kept(tmp_path: Path, odd: str) -> None:
    model, optimizer = made()
    with gm.watch(model, optimizer, run=tmp_path / "run", budget=None, quiet=True) as meter:
        train(model, optimizer, meter)
        with suppress(GradiometerError):
            ODD[odd](meter)
        train(model, optimizer, meter)
    with load(tmp_path / "run") as run:
        assert list(run.series("grad/all/norm/raw")[0]) == [*range(6)]
        assert len(run.series("reward")[0]) == 6
        assert not run.events("fault")
        assert run.verify() == []


def test_what_could_not_be_kept_is_counted_told_once_and_an_event(tmp_path: Path) -> None:
    with pytest.warns(gm.GradiometerWarning, match="could not be kept") as told:
        writer = Writer(tmp_path / "run")
        for step in range(20):
            writer.put(Row(step=step, wall_time=1.0, values={"loss": 1.0, "a\ud800": 2.0}))
            writer.put(Row(step=2**70 + step, wall_time=1.0, values={"loss": 1.0}))
            writer.put(Row(step=step, wall_time=1.0, values={"big": 10**400}, env_steps=2**70))
            writer.put(Table(step=step, name="t", content=circular()))
            writer.put(Event(step=step, kind="k", message="m"))
        writer.close()
    assert len(told) == 1
    assert writer.dropped == 80
    with load(tmp_path / "run") as run:
        assert len(run.series("loss")[0]) == len(run.series("a\\ud800")[0]) == 20
        assert len(run.events("k")) == 20
        (event, *_) = run.events("refused")
        assert "could not be kept" in event.message


def modules() -> list[ModuleType]:
    packages = (gradiometer.capture, gradiometer.store)
    names = [
        found.name
        for package in packages
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if ".formats." not in found.name and ".sinks." not in found.name
    ]
    return [importlib.import_module(name) for name in names]


def functions() -> list[tuple[Any, str]]:
    """Every function and method of capture and store, with who holds it."""
    found: list[tuple[Any, str]] = []
    for module in modules():
        for name, held in vars(module).items():
            if getattr(held, "__module__", None) != module.__name__:
                continue
            if isinstance(held, FunctionType):
                found.append((module, name))
            elif inspect.isclass(held):
                found += [
                    (held, inner)
                    for inner, method in vars(held).items()
                    if isinstance(method, FunctionType) and not inner.startswith("__")
                ]
    # The entries themselves: what the user calls raises if it is replaced by what raises.
    entries = {name for name in vars(Meter) if not name.startswith("_")}
    return [
        (owner, name)
        for owner, name in found
        if not (owner is Meter and name in entries) and name not in ("report_fault", "harmless")
    ]


class InjectedFault(Exception):
    pass


@contextmanager
def broken(owner: Any, name: str) -> Iterator[None]:
    """The function raises, under every name it was imported as."""
    original = getattr(owner, name)

    def raises(*_: Any, **__: Any) -> None:
        raise InjectedFault(f"{owner.__name__}.{name}")

    places = [(owner, name)]
    if isinstance(owner, ModuleType):
        ours = [m for key, m in sys.modules.items() if key.startswith("gradiometer") and m]
        places += [
            (module, key)
            for module in ours
            for key, held in list(vars(module).items())
            if held is original and (module, key) != (owner, name)
        ]
    for place, key in places:
        setattr(place, key, raises)
    try:
        yield
    finally:
        for place, key in places:
            setattr(place, key, original)


def reaches_the_training(owner: Any, name: str, folder: Path) -> str | None:
    """What a training sees when a function of ours raises, from after `watch` to after `close`."""
    model, optimizer = made()
    meter = gm.watch(model, optimizer, run=folder, budget=None, quiet=True)
    try:
        train(model, optimizer, meter, 1)
        with broken(owner, name):
            train(model, optimizer, meter, 2)
            meter.state_dict()
            assert isinstance(meter.terms_due, bool)
            meter.close()
    except InjectedFault as fault:
        return str(fault)
    finally:
        with suppress(Exception):
            meter.close()
        with suppress(Exception):
            meter._writer._writer._thread.join(5)  # type: ignore[union-attr]
    return None


# With these gone the writer's thread never works or never rests, and who closes waits a minute.
SLOW = {"_work", "_await", "rest"}


def sweep(chosen: list[tuple[Any, str]], tmp_path: Path) -> list[str]:
    reached = []
    for number, (owner, name) in enumerate(chosen):
        if name in SLOW:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = reaches_the_training(owner, name, tmp_path / str(number))
        reached += [found] if found else []
    return reached


def test_no_fault_of_ours_reaches_a_training(tmp_path: Path) -> None:
    """A part of the sweep; `make proofs` does all of it."""
    assert sweep(functions()[3::40], tmp_path) == []


@pytest.mark.proof
def test_no_fault_of_any_function_reaches_a_training(tmp_path: Path) -> None:
    assert sweep(functions(), tmp_path) == []


def test_a_fault_whose_report_fails_too_does_not_reach_a_training(tmp_path: Path) -> None:
    from gradiometer.capture.observer import StepObserver
    from gradiometer.store import writer as writing

    model, optimizer = made()
    meter = gm.watch(model, optimizer, run=tmp_path / "run", budget=None, quiet=True)
    with broken(writing, "_weight"), broken(StepObserver, "retire"):
        train(model, optimizer, meter)
        meter.close()
    assert torch.nn.utils.clip_grad._clip_grads_with_norm_.__closure__ is not None


def test_optimizers_that_step_inside_backward_are_measured_to_the_end() -> None:
    model, _ = made()
    optimizers = {p: torch.optim.Adam([p], lr=0.01) for p in model.parameters()}

    def stepped(parameter: nn.Parameter) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(stepped)
    with gm.watch(model, list(optimizers.values()), run=None, budget=None) as meter:
        for _ in range(10):
            model(torch.randn(8, 4)).pow(2).mean().backward()
    assert (meter.coverage.measured, meter.coverage.steps) == (10, 10)


def numbers(folder: Path) -> dict[str, list[float]]:
    with load(folder) as run:
        names = [name for name in run.names() if not name.startswith("meter/")]
        return {name: run.series(name)[1].tolist() for name in names}


def test_trainings_in_several_threads_have_the_numbers_of_trainings_alone(tmp_path: Path) -> None:
    def run(folder: Path, seed: int, gate: threading.Barrier | None) -> None:
        generator = torch.Generator().manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        for parameter in model.parameters():
            parameter.data.normal_(generator=generator)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with gm.watch(model, optimizer, run=folder, budget=None, quiet=True) as meter:
            for _ in range(25):
                if gate is not None:
                    gate.wait(30)
                train(model, optimizer, meter, 1, generator=generator)

    for seed in range(3):
        run(tmp_path / f"alone-{seed}", seed, None)
    gate = threading.Barrier(3)
    threads = [
        threading.Thread(target=run, args=(tmp_path / f"beside-{seed}", seed, gate))
        for seed in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for seed in range(3):
        alone, beside = numbers(tmp_path / f"alone-{seed}"), numbers(tmp_path / f"beside-{seed}")
        assert alone.keys() == beside.keys()
        for name, values in alone.items():
            np.testing.assert_array_equal(values, beside[name], err_msg=name)


def test_a_meter_that_is_let_go_gives_back_the_model_torch_and_the_folder(tmp_path: Path) -> None:
    from torch.nn.utils import clip_grad

    def contents() -> tuple[Any, ...]:
        cells = clip_grad._clip_grads_with_norm_.__closure__ or ()
        return (torch.autograd.backward, *(cell.cell_contents for cell in cells))

    before = contents()
    models = []
    for number in range(3):
        model, optimizer = made()
        meter = gm.watch(model, optimizer, run=tmp_path / str(number), budget=None, quiet=True)
        train(model, optimizer, meter)
        models.append(weakref.ref(model))
    del model, optimizer, meter
    gc.collect()
    assert [reference() for reference in models] == [None, None, None]
    assert contents() == before
    for number in range(3):
        WriterLock(tmp_path / str(number)).release()
        with load(tmp_path / str(number)) as run:
            assert run.newest_step == 2


def test_a_meter_nobody_holds_measures_as_long_as_its_optimizer_lives(tmp_path: Path) -> None:
    model, optimizer = made()
    gm.watch(model, optimizer, run=tmp_path / "run", budget=None, quiet=True)
    gc.collect()
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).mean().backward()
        optimizer.step()
    del model, optimizer
    gc.collect()
    with load(tmp_path / "run") as run:
        assert len(run.series("grad/all/norm/raw")[0]) == 3


def test_a_model_that_is_listened_to_is_saved_and_copied_without_us(tmp_path: Path) -> None:
    heard: list[Tensor] = []
    model = nn.Sequential(nn.Linear(3, 2))
    hooks.observe_layer(model[0], lambda given, said: heard.append(said))
    torch.save(model, tmp_path / "model.pt")
    assert b"gradiometer" not in (tmp_path / "model.pt").read_bytes()
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    x = torch.ones(1, 3)
    for other in (loaded, copy.deepcopy(model)):
        assert torch.equal(other(x), model(x))
    assert len(heard) == 2, "of the model alone"
