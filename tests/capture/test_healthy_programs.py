"""No structural fact is claimed of healthy programs: other people's styles, SB3's algorithms, our
examples, integrations and labs, each for its first optimizer steps."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from forkserver import python

import gradiometer as gm
from gradiometer_labs import LABS

ROOT = Path(__file__).parents[2]
STEPS = 25
FACTS = {
    "gradients-not-cleared",
    "shapes-broadcast",
    "double-softmax",
    "leak-between-terms",
    "not-in-optimizer",
    "target-network",
}
PLAIN = {**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}

LIMITED = """
import sys
from torch.optim.optimizer import register_optimizer_step_post_hook

def stop(*_, steps=[int(sys.argv[1])]):
    steps[0] -= 1
    if steps[0] <= 0:
        raise SystemExit(0)

register_optimizer_step_post_hook(stop)
from gradiometer.cli.main import run
sys.exit(run(sys.argv[2:]))
"""
"""`gradiometer ...`, until the optimizers have stepped so often."""

SB3 = """
from stable_baselines3 import {name}
model = {name}("MlpPolicy", "{env}", seed=1, device="cpu", policy_kwargs={{"net_arch": [16]}}, {more})
model.learn(total_timesteps=400)
"""
ALGORITHMS = {
    "PPO": ("CartPole-v1", "n_steps=64, batch_size=32"),
    "A2C": ("CartPole-v1", "n_steps=5"),
    "DQN": ("CartPole-v1", "learning_starts=100"),
    "SAC": ("Pendulum-v1", "learning_starts=100"),
    "TD3": ("Pendulum-v1", "learning_starts=100"),
    "DDPG": ("Pendulum-v1", "learning_starts=100"),
}
STYLES = sorted(
    tomllib.loads((ROOT / "labs" / "programs" / "bugs.toml").read_text(encoding="utf-8"))
)


def limited(folder: Path, *words: str) -> None:
    done = python("-c", LIMITED, str(STEPS), *words, env=PLAIN, cwd=folder, timeout=300)
    assert "Traceback" not in done.stderr, done.stderr[-2000:]


def check(folder: Path, *, measured: bool = True) -> None:
    """Every run below the folder was looked at, and has no fact."""
    runs = [path.parent for path in folder.rglob("run.db")]
    assert runs or not measured
    for path in runs:
        with gm.load(path) as run:
            events = [(e.kind, e.message) for e in run.events() if e.kind in FACTS | {"fault"}]
            assert events == [], path
            trained = "grad/all/norm/raw" in run.names()  # a probe's run has neither
            tables = run.tables("proofs") if trained else []
            assert tables or not trained, path
            states = set(tables[-1].content.values()) if tables else set()
            assert "found" not in states


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn_agent", "sac_steps", "bandit_helper"])
def test_no_fact_is_claimed_of_a_healthy_program(tmp_path: Path, name: str) -> None:
    limited(tmp_path, "run", "--run", "kept", str(ROOT / "labs" / "programs" / f"{name}.py"))
    check(tmp_path)


@pytest.mark.proof
@pytest.mark.parametrize("name", STYLES)
def test_no_fact_is_claimed_of_a_program_in_another_style(tmp_path: Path, name: str) -> None:
    limited(tmp_path, "run", "--run", "kept", str(ROOT / "labs" / "programs" / f"{name}.py"))
    check(tmp_path)


@pytest.mark.proof
@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_fact_is_claimed_of_sb3(tmp_path: Path, name: str) -> None:
    pytest.importorskip("stable_baselines3")
    env, more = ALGORITHMS[name]
    script = tmp_path / "train.py"
    script.write_text(SB3.format(name=name, env=env, more=more), encoding="utf-8")
    limited(tmp_path, "run", "--run", "kept", str(script))
    check(tmp_path)


@pytest.mark.proof
@pytest.mark.parametrize(
    "script",
    sorted((ROOT / "tests" / "integrations" / "scripts").glob("*.py")),
    ids=lambda x: x.stem,
)
def test_no_fact_is_claimed_of_a_trainer(tmp_path: Path, script: Path) -> None:
    limited(tmp_path, "run", "--run", "kept", str(script), str(tmp_path / "weights.pt"))
    check(tmp_path)


@pytest.mark.proof
@pytest.mark.parametrize(
    "example", sorted((ROOT / "examples").glob("*.py")), ids=lambda example: example.stem
)
def test_no_fact_is_claimed_of_an_example(tmp_path: Path, example: Path) -> None:
    limited(tmp_path, "run", "--run", "kept", str(example))
    check(tmp_path, measured=False)  # some are probes and train nothing


@pytest.mark.proof
@pytest.mark.parametrize("lab", sorted(LABS))
def test_no_fact_is_claimed_of_a_lab(tmp_path: Path, lab: str) -> None:
    # Steps before the meter watches are not among those that are counted here.
    limited(tmp_path, "train", lab, "run=kept", *(["warm_start_steps=0"] if lab == "bugs" else []))
    check(tmp_path)
