"""Settings that a program's variables name."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

import gradiometer as gm
from gradiometer.capture.seensettings import seen_settings


def test_a_setting_with_two_values_around_is_none() -> None:
    spaces = [{"gamma": 0.99, "LMBDA": 0.95, "lam": 0.95}, {"discount": 0.9, "alpha": 0.2}]
    assert seen_settings(spaces) == {"gae_lambda": 0.95}


def test_what_is_no_share_is_no_discount() -> None:
    assert seen_settings([{"gamma": 2.0, "lam": True}]) == {}


def test_the_settings_of_a_script_are_read_off_its_arguments(tmp_path: Path) -> None:
    args = argparse.Namespace(gamma=0.97, gae_lambda=0.9, seed=1)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.gamma)
    with gm.watch(model, optimizer, run=tmp_path / "run", quiet=True):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(3, 2)).mean().backward()
            optimizer.step()
    with gm.load(tmp_path / "run") as run:
        (table,) = run.tables("settings-seen")
    assert table.content == {"gamma": 0.97, "gae_lambda": 0.9}
