"""A real probe of a real model, kept in a real run, read and drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from gradiometer.charts.analysis import read_analysis
from gradiometer.metrics import resolve
from gradiometer.plots.files import write_step
from gradiometer.probes.anatomy import anatomy
from gradiometer.records import Row, Table
from gradiometer.store.importers import open_log
from gradiometer.store.writer import Writer

GROUPS, SIZE = 24, 8


def probe(folder: Path) -> None:
    """A softmax policy on 24 groups of 8 rollouts; its entropy bonus is detached, as it happens to
    people."""
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
    states = torch.randn(GROUPS, 6).repeat_interleave(SIZE, 0)
    actions = torch.randint(4, (GROUPS * SIZE,))
    groups = torch.arange(GROUPS).repeat_interleave(SIZE)
    rewards = (actions == 0).float() * (1 + groups % 5) + 0.1 * torch.randn(GROUPS * SIZE)
    table = rewards.view(GROUPS, SIZE)
    advantages = (
        (table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-6)
    ).flatten()

    def terms(rows: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        logs = policy(rows["states"]).log_softmax(-1)
        chosen = logs.gather(1, rows["actions"][:, None])[:, 0]
        return {
            "task": -rows["advantages"] * chosen,
            "entropy": 0.01 * (logs.exp() * logs).sum(-1).detach(),
            "kl": 0.001 * 0.5 * (chosen + 1.386) ** 2,
        }

    batch = {"states": states, "actions": actions, "advantages": advantages}
    found = anatomy(policy, batch, terms, rewards=rewards, groups=groups, null=True)  # type: ignore[arg-type]
    with Writer(folder) as writer:
        writer.put(Row(step=1, wall_time=0.0, values=found.metrics))
        for name, content in found.tables.items():
            writer.put(Table(step=1, name=name, content=content))


@pytest.mark.slow
def test_what_the_probe_measured_is_what_the_figures_show(tmp_path: Path) -> None:
    probe(tmp_path / "probed")
    with open_log(tmp_path / "probed") as run:
        step = read_analysis(run)[1]
        series = {
            name
            for name in run.names()
            if (known := resolve(name)) and known[0].origin == "anatomy"
        }
    assert series <= set(step.metrics)
    assert step.buckets == (*(f"bucket_{number}" for number in range(1, 7)), "all")
    assert step.measured_terms == ("task", "kl")
    assert step.dead == ("entropy",)
    assert {group.bucket for group in step.groups} == set(step.buckets)
    assert len([group for group in step.groups if group.bucket == "all"]) == GROUPS
    files = write_step(step, tmp_path)
    assert len(files) == 7
    assert all(file.stat().st_size > 100 for file in files)
