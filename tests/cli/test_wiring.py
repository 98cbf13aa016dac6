"""`gradiometer wiring` as a user types it: every call is a real process."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from forkserver import Done, python

from gradiometer.records import Row, Table
from gradiometer.store.writer import Writer

PLAIN = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100", "OMP_NUM_THREADS": "1"}


def gradiometer(*arguments: str) -> Done:
    return python("-m", "gradiometer", *arguments, env=PLAIN)


def term(name: str, *reaches: str, **more: object) -> dict[str, object]:
    usual = {"role": None, "coefficient": 1.0, "value": 0.5, "alive": True, "named_by": "variable"}
    return {"name": name, "reaches": ["all", *reaches], "backward": 1, **usual, **more}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "ppo"
    dead = {"coefficient": -0.01, "alive": False, "role": "entropy", "reaches": [], "value": -0.007}
    first = [term("policy_loss", "actor", role="policy"), term("entropy", **dead)]
    second = [*first, term("value_loss", "critic", coefficient=0.5)]
    with Writer(folder, facts={}) as writer:
        for step in range(3):
            values = {
                "grad/actor/term/policy_loss/norm": 1.0 + step,
                "grad/critic/term/value_loss/norm": 4.0,
            }
            writer.put(Row(step=step, wall_time=0.0, values=values))
        for step, terms in ((0, first), (2, second)):
            content = {"loss": 0.25, "terms": terms, "additivity_error": 3e-8, "backward": 1}
            writer.put(Table(step=step, name="wiring", content=content))
    return folder


def test_the_tree_goes_from_the_loss_to_its_terms_to_the_blocks(run: Path) -> None:
    shown = gradiometer("wiring", str(run))
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0] == "loss 0.25  ppo, step 2; the terms miss 3e-08 of the gradient"
    assert "├── policy_loss  (policy)  adds 0.5" in lines
    assert "│   └── actor  |g| 3" in lines
    assert any("-0.01 × entropy" in line and "no gradient" in line for line in lines)
    assert "└── 0.5 × value_loss  adds 0.5" in lines


def test_a_step_shows_what_was_known_then(run: Path) -> None:
    shown = gradiometer("wiring", str(run), "--step", "1", "--json")
    content = json.loads(shown.stdout)
    assert [row["name"] for row in content["terms"]] == ["policy_loss", "entropy"]
    assert content["terms"][0]["reaches"] == {"actor": 2.0}
    assert content["terms"][1]["alive"] is False


def test_what_has_no_wiring_is_the_users_to_mend(tmp_path: Path, run: Path) -> None:
    with Writer(tmp_path / "old", facts={}) as writer:
        writer.put(Row(step=0, wall_time=0.0, values={"reward": 1.0}))
    for arguments, words in (
        ((str(tmp_path / "old"),), "has no wiring"),
        ((str(run), "--step", "-1"), "the first is of step 0"),
        (("train.py",), "no script at train.py"),
        ((str(run), "--steps", "3"), "--steps is for a script"),
        (("--step", "3", "train.py"), "--step is for a run"),
    ):
        shown = gradiometer("wiring", *arguments)
        assert shown.returncode == 2
        assert words in " ".join(shown.stderr.split())
        assert "Traceback" not in shown.stderr


SCRIPT = """
import sys
import torch

torch.manual_seed(0)
body, head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)
optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()])
for step in range(10_000):
    print("step", step, *sys.argv[1:])
    said = head(torch.relu(body(torch.randn(16, 4))))
    fit = (said[:, 0] - 1).square().mean()
    decay = said[:, 1].abs().mean()
    loss = fit + 0.25 * decay
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_script_is_run_for_a_few_steps_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "scratch").mkdir()
    env = {**PLAIN, "TMPDIR": str(tmp_path / "scratch")}
    command = ("-m", "gradiometer", "wiring", "--steps", "3", "--json", "train.py", "--seed", "7")
    shown = python(*command, env=env, cwd=tmp_path)

    assert shown.returncode == 0, shown.stderr
    content = json.loads(shown.stdout)  # what the script prints goes elsewhere
    assert content["script"] == "train"
    assert [(row["name"], row["coefficient"]) for row in content["terms"]] == [
        ("fit", 1.0),
        ("decay", 0.25),
    ]
    assert all(norm > 0 for row in content["terms"] for norm in row["reaches"].values())
    assert "step 2 --seed 7" in shown.stderr
    assert "step 3" not in shown.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["scratch", "train.py"]
    assert not list((tmp_path / "scratch").iterdir())

    kept = python("-m", "gradiometer", "wiring", "--out", "kept", "train.py", env=env, cwd=tmp_path)
    assert "0.25 × decay" in kept.stdout
    again = python("-m", "gradiometer", "wiring", "kept", env=env, cwd=tmp_path)
    assert again.stdout == kept.stdout.replace("  train,", "  kept,")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("print('hello')", "ended without a step in this process"),
        ("import torch", "no optimizer stepped"),
        (SCRIPT.replace("step in range(10_000)", "step in 1 / 0"), "before any step: ZeroDivision"),
        ("import sys\nsys.exit(3)", "left with code 3"),
        (
            SCRIPT.replace(
                "for step", "import gradiometer as gm\ngm.watch(head, optimizer)\nfor step"
            ),
            "has its own meter",
        ),
    ],
)
def test_a_script_that_shows_no_wiring_is_one_clear_error(
    tmp_path: Path, source: str, words: str
) -> None:
    (tmp_path / "train.py").write_text(source)
    shown = python("-m", "gradiometer", "wiring", "train.py", env=PLAIN, cwd=tmp_path)
    assert shown.returncode == 2
    last = shown.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert words in last
    assert not shown.stdout
