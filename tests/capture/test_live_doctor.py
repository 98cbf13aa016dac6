"""A doctor beside the training: findings are kept, said once, and may stop it; and the first look of the meter."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch import nn

import gradiometer as gm
from gradiometer.doctor.chart import Chart
from gradiometer.doctor.live import Watch
from gradiometer.doctor.rule import Rule
from gradiometer.records import Finding, Row
from gradiometer.store.writer import Writer


def train(folder: Path, *, dead: bool, seconds: float, **given: object) -> int:
    model = nn.ModuleDict({"actor": nn.Linear(4, 2), "critic": nn.Linear(4, 1)})
    optimizer = torch.optim.Adam(model.parameters())
    steps = 0
    with gm.watch(model, optimizer, run=folder, budget=None, doctor="live", **given) as meter:  # type: ignore[arg-type]
        started = (
            time.monotonic()
        )  # to start the doctor's process takes a busy machine longer than the shortest training
        while steps < 5 or time.monotonic() - started < seconds:
            x = torch.randn(16, 4)
            log_probs = model["actor"](x).log_softmax(-1)
            with torch.set_grad_enabled(not dead):
                entropy = -(model["actor"](x).softmax(-1) * model["actor"](x).log_softmax(-1)).sum(-1).mean()
            optimizer.zero_grad()
            value = model["critic"](x).square().mean()
            with meter.terms(policy=log_probs[:, 0].mean(), value=value, entropy=-0.01 * entropy) as loss:
                loss.backward()
            optimizer.step()
            steps += 1
            time.sleep(0.002)
    return steps


def test_a_dead_term_stops_the_training_when_asked_to(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told: list[Finding] = []

    def stop(finding: Finding) -> None:
        told.append(finding)
        raise gm.StopTraining(finding.title)

    with pytest.raises(gm.StopTraining):
        train(tmp_path / "run", dead=True, seconds=60, on_finding=stop)
    assert told[0].id == "dead-term"
    assert told[0].severity == "critical"
    run = gm.load(tmp_path / "run")
    assert run.findings()[0].id == "dead-term"
    assert not run.events("fault")
    said = [line for line in capfd.readouterr().err.splitlines() if "dead-term" in line]
    assert len(said) == 1
    assert said[0].startswith("gradiometer: critical dead-term")


def test_a_training_shorter_than_a_look_is_judged_at_its_end(tmp_path: Path) -> None:
    train(tmp_path / "broken", dead=True, seconds=0.2)
    assert [finding.id for finding in gm.load(tmp_path / "broken").findings()] == ["dead-term"]
    train(tmp_path / "healthy", dead=False, seconds=0.2)
    assert [f for f in gm.load(tmp_path / "healthy").findings() if f.severity != "info"] == []


def test_what_is_not_proved_is_said_after_three_looks_that_agree_and_once(tmp_path: Path) -> None:
    def always(chart: Chart) -> Finding:
        return Finding(id="noise", title="noise", severity="warn", basis="statistical")

    def proved(chart: Chart) -> Finding:
        return Finding(id="nan", title="a NaN", severity="critical", basis="proved")

    rules = tuple(Rule(id=name, family="x", needs=(), judge=judge) for name, judge in [("a", always), ("b", proved)])
    watch = Watch(tmp_path / "run", rules)
    heard: list[list[str]] = []
    with Writer(tmp_path / "run") as writer:
        for step in range(6):
            writer.put(Row(step=step, wall_time=0.0, values={"reward": 1.0}))
            writer.flush()
            heard.append([finding.id for finding in watch.look()])
            assert watch.look() == []  # nothing new was written: no look at all
    assert heard == [["nan"], [], ["noise"], [], [], []]


def test_a_live_doctor_needs_a_folder(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(gm.UsageError, match="give it a folder"):
        gm.watch(model, optimizer, run=None, doctor="live")
    with pytest.raises(gm.UsageError, match="'live' or None"):
        gm.watch(model, optimizer, run=tmp_path / "run", doctor="house")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_the_first_step_says_which_parameters_nobody_steps(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with gm.watch(model, optimizer, run=tmp_path / "orphan", budget=None):
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
    checks = {check["id"]: check for check in gm.load(tmp_path / "orphan").table("audit").content["checks"]}
    assert checks["not-in-optimizer"]["state"] == "failed"
    assert "1.weight, 1.bias" in checks["not-in-optimizer"]["message"]
    assert checks["in-two-optimizers"]["state"] == "ok"
    both = [torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD(model[1].parameters(), lr=0.1)]
    with gm.watch(model, both, run=tmp_path / "twice", budget=None):
        model(torch.randn(4, 3)).sum().backward()
        for each in both:
            each.step()
    checks = {check["id"]: check for check in gm.load(tmp_path / "twice").table("audit").content["checks"]}
    assert checks["not-in-optimizer"]["state"] == "ok"
    assert checks["in-two-optimizers"]["numbers"]["count"] == 2
