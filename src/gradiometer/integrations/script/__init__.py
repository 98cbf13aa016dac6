"""`gradiometer run train.py ARGS`: any training script, unchanged, watched by the meter.

running.py runs the script as python would, imports.py tells when it has imported torch or a
logger. watching.py follows its optimizers, models.py finds what they train, runs.py keeps the runs.
scalars.py and printed.py hear what the script logs and prints, and boundary.py keeps our troubles
ours.
"""

from __future__ import annotations

__all__: list[str] = []
