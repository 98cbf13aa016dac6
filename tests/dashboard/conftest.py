"""A real server in a thread, and a real Chromium."""

from __future__ import annotations

import fcntl
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from gradiometer.dashboard.app import create_app
from gradiometer.dashboard.server import bind

Serve = Callable[[Path], Any]


@contextmanager
def served(root: Path, **given: Any) -> Iterator[str]:
    """The address of a server over a folder, with uvicorn and a socket as `gradiometer serve` has them."""
    listening = bind("127.0.0.1", 0)
    app = create_app(root, **given)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()
        assert not thread.is_alive(), "the server did not stop"


@pytest.fixture(scope="session")
def serving() -> Serve:
    """`with serving(folder) as address: ...`"""
    return served


TINY_SOKOBAN = (
    "model.hidden_size=32", "model.num_layers=1", "model.num_heads=2", "model.intermediate_size=32", "env.max_turns=2",
    "env.max_actions_per_turn=2", "warm_start.steps=10", "warm_start.batch_size=8", "warm_start.num_levels=32",
    "es_manager.train.env_groups=4", "es_manager.train.group_size=4", "es_manager.val.env_groups=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
    "trainer.test_freq=-1", "trainer.val_before_train=false", "trainer.gradient_analysis_every=1",
    "actor_rollout_ref.rollout.rollout_filter_value=1", "trainer.total_training_steps=3",
)  # fmt: skip
LABS: dict[str, tuple[str, ...]] = {
    "healthy": ("cartpole", "total_steps=6144", "tier=deep"),
    "broken": ("cartpole", "total_steps=6144", "fault=entropy_no_grad"),
    "experts": (
        "prismatic", "steps=40", "batch_size=4", "context=24", "prompt=8", "width=16", "num_heads=2", "val_size=0", "every=1",
    ),
    "analysed": ("sokoban", *TINY_SOKOBAN),
    "tsp": ("tsp", "steps=2", "batch_size=4", "num_loc=6", "embed_dim=16", "num_layers=1", "num_heads=2", "val_size=0"),
}  # fmt: skip


def _train(root: Path) -> None:
    from gradiometer.cli.main import run as command

    for name, (lab, *overrides) in LABS.items():
        assert command(["train", lab, f"run={root / name}", *overrides]) == 0
    common = ["variance", "--ckpt_path", str(root / "tsp" / "last.ckpt"), "--num_loc", "6", "--num_instances", "8"]
    compared = ["--num-replicates", "3", "--k", "3", "--compare", "none", "subloo", "--run", str(root / "estimators")]
    assert command([*common, *compared]) == 0


@pytest.fixture(scope="session")
def lab_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short real trainings of every lab, and an estimator study; made once, whichever process of the tests comes first."""
    root = tmp_path_factory.getbasetemp().parent / "lab_runs"
    root.mkdir(exist_ok=True)
    with (root.parent / "lab_runs.lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        if not (root.parent / "lab_runs.done").exists():
            shutil.rmtree(root)
            _train(root)
            (root.parent / "lab_runs.done").touch()
    return root


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A browser that all tests of a process share; each opens pages of its own."""
    from playwright.sync_api import sync_playwright

    found = shutil.which("chromium")
    assert found is not None, "Chromium is missing: apt-get install -y chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()
