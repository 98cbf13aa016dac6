"""verl itself, where it is installed: its actor and critic workers on two gloo ranks.

It is not among our packages. To run this: a virtual environment that sees ours, and in it
`pip install --no-deps verl==0.9.1 codetiming torchdata`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gradiometer as gm

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parent / "verl_workers.py"
OURS = "gradiometer.integrations.verl"


def trained(folder: Path, *more: str, **environment: str) -> list[dict[str, Any]]:
    """What each rank has trained; `more` are modules that verl imports after its platform."""
    folder.mkdir()
    told = {
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": ",".join([SCRIPT.stem, *more]),
        "GRADIOMETER_RUN": str(folder / "runs"),
        "PYTHONPATH": os.pathsep.join([str(SCRIPT.parent), *sys.path]),
        **environment,
    }
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launch, str(SCRIPT), str(folder)],
        env={**os.environ, **told},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


def test_verl_s_workers_train_the_same_bits_and_each_has_a_run(tmp_path: Path) -> None:
    free = trained(tmp_path / "free")
    assert not (tmp_path / "free" / "runs").exists()
    watched = {
        "variable": trained(tmp_path / "variable", OURS),
        "line": trained(tmp_path / "line", LINE_OF_THE_CONFIG=OURS),
    }
    for way, ranks in watched.items():
        for mine, other in zip(ranks, free, strict=True):
            assert mine["weights"].keys() == {"actor", "critic"}
            for role, weights in mine["weights"].items():
                for name, tensor in weights.items():
                    assert torch.equal(tensor, other["weights"][role][name]), (way, role, name)
        for role, loss in (("actor", "actor/pg_loss"), ("critic", "critic/vf_loss")):
            told = ranks[0]["told"][role]
            run = gm.load(tmp_path / way / "runs" / role)
            steps, norms = run.series("grad/all/norm/raw")
            assert steps.tolist() == run.steps()["step"].tolist() == list(range(6))
            theirs = [x for metrics in told for x in metrics["grad_norm"]]
            np.testing.assert_allclose(norms, theirs, rtol=1e-6)
            losses = [x for metrics in told for x in metrics[loss]]
            np.testing.assert_allclose(run.series(loss)[1], losses, rtol=1e-6)
