"""A doctor beside the training: findings are kept, said once, and may stop it; and the first look
of the meter."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import gradiometer as gm
from gradiometer.doctor.diagnosis import diagnose
from gradiometer.doctor.live import Watch
from gradiometer.doctor.rule import Rule
from gradiometer.doctor.rundata import RunData
from gradiometer.records import Finding, Row, StateChange
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
                entropy = (
                    -(model["actor"](x).softmax(-1) * model["actor"](x).log_softmax(-1))
                    .sum(-1)
                    .mean()
                )
            optimizer.zero_grad()
            value = model["critic"](x).square().mean()
            with meter.terms(
                policy=log_probs[:, 0].mean(), value=value, entropy=-0.01 * entropy
            ) as loss:
                loss.backward()
            optimizer.step()
            steps += 1
            time.sleep(0.002)
    return steps


@pytest.mark.slow
def test_a_dead_term_stops_the_training_when_asked_to(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
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


@pytest.mark.slow
def test_a_training_shorter_than_a_look_is_judged_at_its_end(tmp_path: Path) -> None:
    train(tmp_path / "broken", dead=True, seconds=0.2)
    assert [finding.id for finding in gm.load(tmp_path / "broken").findings()] == ["dead-term"]
    train(tmp_path / "healthy", dead=False, seconds=0.2)
    assert [f for f in gm.load(tmp_path / "healthy").findings() if f.severity != "info"] == []


def test_what_is_not_proved_is_said_after_three_looks_that_agree_and_once(tmp_path: Path) -> None:
    def always(data: RunData) -> Finding:
        return Finding(id="noise", title="noise", severity="warn", basis="statistical")

    def proved(data: RunData) -> Finding:
        return Finding(id="nan", title="a NaN", severity="critical", basis="proved")

    rules = tuple(
        Rule(id=name, family="x", needs=(), judge=judge)
        for name, judge in [("a", always), ("b", proved)]
    )
    watch = Watch(tmp_path / "run", rules)
    heard: list[list[str]] = []
    with Writer(tmp_path / "run") as writer:
        for step in range(6):
            writer.put(Row(step=step, wall_time=0.0, values={"reward": 1.0}))
            writer.flush()
            heard.append([finding.id for finding in watch.look()])
            assert watch.look() == []  # nothing new was written: no look at all
    assert heard == [["nan"], [], ["noise"], [], [], []]


def test_a_state_is_said_when_it_is_new_and_three_looks_agree(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "run", ())
    said: list[StateChange | None] = []
    with Writer(tmp_path / "run") as writer:
        for step in range(240):  # rises for 120 steps, then falls below its start
            reward = float(min(step, 240 - 2 * step) + step % 3)
            writer.put(Row(step=step, wall_time=0.0, values={"reward": reward}))
            if step % 10 == 9:
                writer.flush()
                watch.look()
                said.append(watch.state_change())
    changes = [(place, each) for place, each in enumerate(said) if each]
    assert [(each.before, each.state) for _, each in changes] == [
        (None, "healthy"),
        ("healthy", "broken"),
    ]
    assert changes[0][0] >= 3  # ten points are too early, then three looks
    assert changes[0][1].step == 10 * changes[0][0] + 9
    assert watch.state_change(last=True) is None
    assert diagnose(tmp_path / "run", only=()).state == "broken"


def test_the_last_look_says_the_state_at_once_unless_there_is_none(tmp_path: Path) -> None:
    for count, state in ((5, ""), (60, "healthy")):
        with Writer(tmp_path / str(count)) as writer:
            for step in range(count):
                row = Row(step=step, wall_time=0.0, values={"reward": float(step + step % 3)})
                writer.put(row)
        watch = Watch(tmp_path / str(count), ())
        watch.look()
        change = watch.state_change(last=True)
        assert ("" if change is None else change.state) == state


def learn(folder: Path, *, seconds: float, heard: Callable[[StateChange], None]) -> None:
    """A regression by small steps: what it is rewarded with rises all along."""
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with gm.watch(
        model, optimizer, run=folder, budget=None, doctor="live", on_state_change=heard
    ) as meter:
        started, steps = time.monotonic(), 0
        while steps < 60 or time.monotonic() - started < seconds:
            batch = x[torch.randint(64, (16,))]
            loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            meter.log(reward=-loss.item())
            steps += 1
            time.sleep(0.002 if steps < 60 else 0.05)


@pytest.mark.slow
def test_a_training_hears_at_its_end_what_became_of_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[StateChange] = []
    learn(tmp_path / "run", seconds=0.0, heard=told.append)
    (change,) = told
    assert change.before is None
    assert change.state == diagnose(tmp_path / "run").state
    assert change.verdict.startswith(f"{change.state}: ")
    (event,) = gm.load(tmp_path / "run").events("state")
    assert (event.step, event.message) == (change.step, change.verdict)
    assert event.detail == {"state": change.state, "before": None}
    assert capfd.readouterr().err.count(change.verdict) == 1


@pytest.mark.proof
def test_a_change_of_state_may_stop_the_training(tmp_path: Path) -> None:
    def stop(change: StateChange) -> None:
        raise gm.StopTraining(change.verdict)

    with pytest.raises(gm.StopTraining, match=": the reward "):
        learn(tmp_path / "run", seconds=150.0, heard=stop)
    assert len(gm.load(tmp_path / "run").events("state")) == 1
    assert not gm.load(tmp_path / "run").events("fault")


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
    run = gm.load(tmp_path / "orphan")
    assert run.table("proofs").content["not-in-optimizer"] == "found"
    assert "1.weight, 1.bias" in run.events("not-in-optimizer")[0].message
    assert [check["state"] for check in run.table("audit").content["checks"]] == ["ok"]
    both = [
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.optim.SGD(model[1].parameters(), lr=0.1),
    ]
    with gm.watch(model, both, run=tmp_path / "twice", budget=None):
        model(torch.randn(4, 3)).sum().backward()
        for each in both:
            each.step()
    run = gm.load(tmp_path / "twice")
    assert run.table("proofs").content["not-in-optimizer"] == "ok"
    (check,) = run.table("audit").content["checks"]
    assert (check["id"], check["numbers"]["count"]) == ("in-two-optimizers", 2)
