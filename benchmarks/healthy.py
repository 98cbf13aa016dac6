"""Is the doctor silent on healthy trainings, and does it name the dead entropy bonus? The labs at their defaults, three seeds.

`python -m benchmarks.healthy [LAB ...]`; sokoban takes some five minutes a seed, the others about one.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

from gradiometer.doctor.diagnosis import diagnose
from gradiometer.labs import LABS, find
from gradiometer.labs.config import configure
from gradiometer.labs.faults import faults_of
from gradiometer.store.reader import load

__all__ = ["main"]

SEEDS = (1, 2, 3)
VARIANTS = {"prismatic": ((), ("router_type=topk",))}


def findings(lab: str, folder: Path, overrides: list[str]) -> list[str]:
    """Train, and what the doctor says: `id (severity)`."""
    made = find(lab)
    made.train(configure(made.config(), [f"run={folder}", *overrides]))
    with load(folder) as run:
        return [f"{finding.id} ({finding.severity})" for finding in diagnose(run).findings]


def main(labs: list[str]) -> int:
    """A line a training; the number of healthy ones with a warning or worse, and of faults not named first."""
    torch.set_num_threads(1)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for lab in labs:
            for variant in VARIANTS.get(lab, ((),)):
                for seed in SEEDS:
                    said = findings(lab, Path(folder) / f"{lab}{len(variant)}-{seed}", [f"seed={seed}", *variant])
                    bad = any("(info)" not in each for each in said)
                    wrong += bad
                    print(f"{lab} {' '.join(variant)} seed {seed}: {', '.join(said) or 'nothing'}", flush=True)
            for fault in faults_of(lab):
                said = findings(lab, Path(folder) / f"{lab}-{fault.name}", [f"fault={fault.name}", *fault.needs])
                named = bool(said) and said[0].split()[0] in fault.expected
                wrong += not named
                print(
                    f"{lab} fault={fault.name}: {', '.join(said) or 'nothing'}   expected {fault.expected}", flush=True
                )
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(LABS)))
