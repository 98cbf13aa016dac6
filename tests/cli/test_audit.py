"""`gradiometer audit` on real scripts, stopped at their first steps; a few in a process of their
own, as a user types it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
from forkserver import Done, python

from gradiometer.cli.main import run

pytestmark = pytest.mark.slow

Checks = Callable[..., dict[str, Any]]

PLAIN = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100", "OMP_NUM_THREADS": "1"}

MODEL = """
import sys
import torch
from torch import nn

torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(4, 8)
        self.actor = nn.Linear(8, 2)
        self.critic = nn.Linear(8, 1)

    def forward(self, x):
        h = torch.tanh(self.trunk(x))
        return self.actor(h), self.critic(h)

net = Net()
"""

HEALTHY = (
    MODEL
    + """
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
print("hello from the script", sys.argv[1:])
for step in range(100_000_000):
    logits, value = net(torch.randn(8, 4))
    optimizer.zero_grad()
    (logits.log_softmax(-1)[:, 0].mean() + value.square().mean()).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    optimizer.step()
"""
)


def typed(folder: Path, *arguments: str) -> Done:
    return python("-m", "gradiometer", "audit", *arguments, env=PLAIN, cwd=folder)


class Audited(Protocol):
    def __call__(self, script: str, *options: str) -> Done: ...


@pytest.fixture
def audited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Audited:
    """In this process, where torch is there already."""

    def go(script: str, *options: str) -> Done:
        (tmp_path / "train.py").write_text(script)
        code = run(["audit", *options, "train.py"])
        told = capsys.readouterr()
        return Done(returncode=code, stdout=told.out, stderr=told.err)

    return go


@pytest.fixture
def checks(audited: Audited) -> Callable[..., dict[str, Any]]:
    def go(script: str, *options: str) -> dict[str, Any]:
        done = audited(script, "--json", *options)
        assert done.returncode == 0, done.stderr
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    return go


def failures(told: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (check["id"], check["severity"]) for check in told["checks"] if check["state"] == "failed"
    ]


def test_a_healthy_endless_script_is_stopped_at_its_first_step_and_leaves_no_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(HEALTHY)
    done = typed(tmp_path, "--fail-on", "warn", "train.py", "--lr", "3", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "train.py: stopped at its first step; Adam; 6 of 6 parameters require a gradient"
    )
    assert "0 failed" in done.stdout
    assert "✓ what has a gradient is trained" in done.stdout
    assert "hello from the script ['--lr', '3', '--json']" in done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert [entry.name for entry in tmp_path.iterdir()] == ["train.py"]


def test_json_is_one_object_and_steps_are_counted(checks: Checks) -> None:
    told = checks(HEALTHY, "--steps", "3")
    assert (told["steps"], told["optimizers"], told["parameters"], told["scale"]) == (
        3,
        ["Adam"],
        6,
        None,
    )
    assert failures(told) == []


def test_a_critic_made_after_the_optimizer_is_in_none(checks: Checks, audited: Audited) -> None:
    script = HEALTHY.replace("for step in", "net.critic = nn.Linear(8, 1)\nfor step in")
    told = checks(script)
    assert failures(told) == [("not-in-optimizer", "critical")]
    assert told["checks"][0]["numbers"]["parameters"] == 2
    assert "a layer was replaced" in told["checks"][0]["message"]
    assert audited(script, "--fail-on", "critical").returncode == 1


def test_two_optimizers_of_one_trunk_and_a_dead_block_come_out_together(checks: Checks) -> None:
    script = HEALTHY.replace(
        "print(",
        "other = torch.optim.SGD([*net.trunk.parameters(), *net.critic.parameters()],"
        " lr=0.1)\nprint(",
    ).replace(" + value.square().mean()", "")
    told = checks(script)
    assert ("dead-block", "critical") in failures(told)
    assert ("not-in-optimizer", "warn") in failures(told)
    assert told["steps"] > 1  # it waited for the second one, and not for ever


def test_what_the_graph_proves_is_in_the_audit(checks: Checks) -> None:
    script = HEALTHY.replace("value.square().mean()", "(value - torch.randn(8)).pow(2).mean()")
    assert failures(checks(script)) == [("shapes-broadcast", "critical")]
    script = HEALTHY.replace("logits.log_softmax(-1)", "logits.softmax(-1).log_softmax(-1)")
    assert failures(checks(script)) == [("double-softmax", "critical")]


def test_gradients_that_are_not_cleared_need_two_steps_to_show(checks: Checks) -> None:
    script = HEALTHY.replace("    optimizer.zero_grad()\n", "")
    state = {check["id"]: check["state"] for check in checks(script)["checks"]}
    assert state["gradients-not-cleared"] == "skipped"
    assert failures(checks(script, "--steps", "2")) == [("gradients-not-cleared", "critical")]
    state = {check["id"]: check["state"] for check in checks(HEALTHY, "--steps", "2")["checks"]}
    assert state["gradients-not-cleared"] == "ok"


def test_a_gradient_of_exactly_zero_is_not_called_a_gradient(checks: Checks) -> None:
    """All of them: nothing is learned. One at the first step: it may start from zero."""
    nothing = HEALTHY.replace("mean()).backward()", "mean()).mul(0.0).backward()")
    assert failures(checks(nothing)) == [("dead-block", "critical")]
    head = HEALTHY.replace("logits, value = net(", "logits, value = silenced(").replace(
        "print(",
        "def silenced(x):\n    logits, value = net(x)\n    return 0 * logits, value\nprint(",
    )
    assert failures(checks(head)) == []
    assert failures(checks(head, "--steps", "3")) == [("dead-block", "warn")]


def test_a_critic_that_begins_later_and_a_target_are_no_failures(checks: Checks) -> None:
    late = HEALTHY.replace(
        "optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)",
        "optimizer = torch.optim.Adam([*net.trunk.parameters(), *net.actor.parameters()])\n"
        "other = torch.optim.Adam(net.critic.parameters())",
    ).replace(" + value.square().mean()", " + (value.square().mean() if step > 80 else 0)")
    assert failures(checks(late)) == []
    target = HEALTHY.replace(
        "print(", "import copy\nnet.critic_target = copy.deepcopy(net.critic)\nprint("
    ).replace("+ value.square()", "+ (value - net.critic_target(torch.randn(8, 8))).square()")
    assert failures(checks(target)) == []


def test_a_delayed_actor_is_waited_for(checks: Checks) -> None:
    script = (
        MODEL
        + """
actor = torch.optim.Adam(net.actor.parameters())
critic = torch.optim.Adam([*net.trunk.parameters(), *net.critic.parameters()])
for step in range(100_000_000):
    logits, value = net(torch.randn(8, 4))
    critic.zero_grad()
    value.square().mean().backward()
    critic.step()
    if step % 3 == 2:
        actor.zero_grad()
        net(torch.randn(8, 4))[0][:, 0].mean().backward()
        actor.step()
"""
    )
    told = checks(script)
    assert failures(told) == []
    assert (told["steps"], sorted(told["optimizers"])) == (4, ["Adam", "Adam"])


def test_dead_terms_of_a_meter_in_the_script_are_heard_and_no_run_is_kept(
    checks: Checks, tmp_path: Path
) -> None:
    script = (
        MODEL
        + """
import gradiometer as gm
optimizer = torch.optim.Adam(net.parameters())
with gm.watch(net, optimizer, run="runs/mine") as meter:
    for step in range(100_000_000):
        logits, value = net(torch.randn(8, 4))
        with torch.no_grad():
            entropy = torch.distributions.Categorical(logits=logits).entropy().mean()
        optimizer.zero_grad()
        with meter.terms(policy=logits.log_softmax(-1)[:, 0].mean(), value=value.square().mean(), entropy=entropy) as loss:
            loss.backward()
        optimizer.step()
"""
    )
    told = checks(script)
    assert failures(told) == [("dead-term", "critical")]
    assert told["checks"][0]["numbers"]["term"] == "entropy"
    assert [entry.name for entry in tmp_path.iterdir()] == ["train.py"]
    healthy = checks(script.replace("torch.no_grad()", "torch.enable_grad()"))
    assert failures(healthy) == []
    assert healthy["checks"][0]["state"] == "ok"


@pytest.mark.parametrize("order", ["clip first", "unscale first"])
def test_a_clip_before_unscale_is_seen(checks: Checks, order: str) -> None:
    lines = [
        "    scaler.unscale_(optimizer)",
        "    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)",
    ]
    script = (
        MODEL
        + """
optimizer = torch.optim.Adam(net.parameters())
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(100_000_000):
    logits, value = net(torch.randn(8, 4))
    optimizer.zero_grad()
    scaler.scale(logits.square().mean() + value.square().mean()).backward()
"""
        + "\n".join(lines if order == "unscale first" else [lines[1]])
        + "\n    scaler.step(optimizer)\n    scaler.update()\n"
    )
    told = checks(script)
    assert told["scale"] == 1024.0
    assert failures(told) == (
        [] if order == "unscale first" else [("clip-before-unscale", "critical")]
    )


def test_a_nan_and_frozen_parameters_are_told(checks: Checks) -> None:
    script = HEALTHY.replace("value.square().mean())", "(value - value).sum().sqrt())").replace(
        "for step in", "net.actor.requires_grad_(False)\nfor step in"
    )
    told = checks(script)
    assert ("nonfinite-gradient", "critical") in failures(told)
    assert ("dead-block", "warn") in failures(told)  # an optimizer holds a frozen actor


def test_a_closure_has_its_gradients_after_the_step(checks: Checks) -> None:
    script = (
        MODEL
        + """
optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)
def closure():
    optimizer.zero_grad()
    logits, value = net(torch.ones(8, 4))
    loss = logits.square().mean() + value.square().mean()
    loss.backward()
    return loss
while True:
    optimizer.step(closure)
"""
    )
    assert failures(checks(script)) == []


def test_files_of_the_script_are_closed_and_its_except_exception_does_not_catch_us(
    audited: Audited, tmp_path: Path
) -> None:
    script = HEALTHY.replace("for step in", "log = open('log.txt', 'w')\ntry:\n  for step in", 1)
    head, _, loop = script.partition("  for step in")
    indented = "  for step in" + "\n".join("  " + line for line in loop.splitlines()).removeprefix(
        "  "
    )
    whole = (
        head
        + indented
        + "\nexcept Exception:\n    log.write('caught')\nfinally:\n    log.write('end');"
        " log.close()\n"
    )
    done = audited(whole)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "log.txt").read_text() == "end"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "import torch\nraise ValueError('no data here')\n",
            "failed before any optimizer step: ValueError: no data here",
        ),
        ("import sys\nsys.exit(3)\n", "left with code 3 before any optimizer step"),
        ("print('done')\n", "ended without an optimizer step in this process"),
        ("import nowhere_to_be_found\n", "ModuleNotFoundError"),
        ("def f(:\n", "SyntaxError"),
    ],
)
def test_the_scripts_own_failure_is_one_clear_error(
    audited: Audited, script: str, said: str
) -> None:
    done = audited(script)
    assert done.returncode == 2
    assert done.stdout == ""
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: train.py")
    assert said in last
    assert "auditscript.py" not in done.stderr
    assert "fault of Gradiometer" not in done.stderr


def test_wrong_usage_is_told(audited: Audited, tmp_path: Path) -> None:
    missing = typed(tmp_path, "nowhere.py")
    assert missing.returncode == 2
    assert "no script at nowhere.py" in missing.stderr
    level = audited(HEALTHY, "--fail-on", "warning")
    assert level.returncode == 2
    assert "did you mean 'warn'" in level.stderr
