"""Processor, memory and graphics cards as a part of a run, where it is asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from nvml import nvml_with_cards
from torch import nn

import gradiometer as gm
from gradiometer.capture import system


def train(folder: Path, steps: int = 3, **options: bool) -> list[str]:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, run=folder, quiet=True, **options):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
    return [name for name in gm.load(folder).names() if name.startswith("system/")]


def test_it_is_there_only_where_it_is_asked_for(tmp_path: Path) -> None:
    assert train(tmp_path / "without") == []
    assert "system/memory" in train(tmp_path / "with", system=True)


def test_memory_and_processor_are_those_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "SECONDS", 0.0)
    held = torch.ones(64 * 2**20 // 4)  # 64 MiB that are certainly there
    train(tmp_path / "run", steps=20, system=True)
    run = gm.load(tmp_path / "run")
    steps, memory = run.series("system/memory")
    assert len(steps) == 20
    assert held.numel() * 4 / 2**20 < memory.min() < 24 * 1024
    assert 0.0 < run.series("system/cpu")[1][1:].mean() < 64.0
    share = run.series("system/memory_share")[1]
    assert ((share > 0.0) & (share < 1.0)).all()


def test_a_look_is_taken_every_ten_seconds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(system.time, "monotonic", lambda: clock[0])
    reader = system.SystemReader()
    looks = []
    for clock[0] in (100.0, 104.0, 109.9, 110.1, 115.0, 120.2):
        looks.append(reader.values() is not None)
    assert looks == [True, False, False, True, False, True]


def test_every_card_of_nvml_is_read_and_one_that_fails_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml_with_cards(3, failing={1}))
    found = system.SystemReader().values()
    assert found is not None
    cards = {name: x for name, x in found.items() if "gpu" in name}
    assert cards == {
        "system/gpu/0/busy": 0.5,
        "system/gpu/0/memory": 1024.0,
        "system/gpu/2/busy": 0.5,
        "system/gpu/2/memory": 1024.0,
    }


def test_a_machine_without_proc_and_nvml_tells_the_processor_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "PROCESS", tmp_path / "none")
    monkeypatch.setattr(system, "MACHINE", tmp_path / "none")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = system.SystemReader().values()
    assert found is not None
    assert found.keys() <= {"system/cpu"}
