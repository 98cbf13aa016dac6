"""Telemetry that nobody produces is dead: every metric comes out of some run, and every series of a run is known."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import gradiometer as gm
from gradiometer.labs import find
from gradiometer.labs.config import configure
from gradiometer.metrics import CATALOGUE, resolve

# Given to meter.log by trainers whose data the labs do not have yet (language models).
NOT_OF_A_LAB = {"kl_ref", "zero_variance_groups"}


def lab_run(folder: Path) -> list[str]:
    """A real PPO training, with two losses and a clip."""
    lab = find("cartpole")
    lab.train(configure(lab.config(), [f"run={folder}", "total_steps=3000", "every=1", "tier=deep"]))
    return gm.load(folder).names()


def accumulating_run(folder: Path) -> list[str]:
    """Micro-batches, pairs, ratios and advantages, with a gradient that oscillates and, in the critic, only noise."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"actor": nn.Linear(20, 1, bias=False), "critic": nn.Linear(300, 1, bias=False)})
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    watched = gm.watch(
        model, optimizer, run=folder, budget=None, direction="sketch", pairs={"graft": ("critic", "actor")}
    )
    with watched as meter:
        for step in range(121):
            optimizer.param_groups[0]["lr"] = 1e-9 * (1 + step % 7)
            level = 10 ** (0.5 * math.sin(2 * math.pi * step / 12))
            optimizer.zero_grad()
            for _ in range(2):
                signal, noise = (
                    model["actor"](torch.ones(20) + 0.1 * torch.randn(20)),
                    model["critic"](torch.randn(300)),
                )
                (level * (signal + noise).sum()).backward()
            optimizer.step()
            meter.log(ratio=torch.ones(8), advantages=torch.randn(8) * level)
    return gm.load(folder).names()


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("runs")
    return lab_run(folder / "lab") + accumulating_run(folder / "accumulating")


def test_every_metric_of_the_catalogue_is_produced(names: list[str]) -> None:
    produced = {found[0].name for name in names if (found := resolve(name))}
    assert set(CATALOGUE) - produced == NOT_OF_A_LAB


def test_every_series_of_a_run_is_in_the_catalogue(names: list[str]) -> None:
    assert [name for name in names if resolve(name) is None] == []


def test_a_name_of_the_catalogue_means_one_thing() -> None:
    concrete = {"<block>": "actor", "<term>": "policy", "<name>": "graft", "<number>": "0", "<statistic>": "max"}
    for name, metric in CATALOGUE.items():
        for placeholder, word in concrete.items():
            name = name.replace(placeholder, word)
        found = resolve(name)
        assert found is not None
        assert found[0] is metric
        assert np.isscalar(found[0].unit)
