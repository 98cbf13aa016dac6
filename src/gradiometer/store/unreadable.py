"""What something is that cannot be read as a run or log, and what to do with it: the words of the errors."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from gradiometer.store.folders import READABLE

__all__ = ["no_log", "no_log_in"]

COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
WEIGHTS = (".pt", ".pth", ".ckpt", ".safetensors")
PICKLED = (b"data.pkl", b"policy.pth")
"""Names that torch and SB3 give to parts of a checkpoint, which is a zip."""
MOST_NAMES = 1_000
SHOWN = 5


def no_log(path: Path, start: bytes) -> str:
    """Of a file, by how it begins."""
    return (
        f"{path} is not a run, nor a log that can be read: it is {_looks(path, start)}; what can be read is {READABLE}"
    )


def no_log_in(folder: Path) -> str:
    """Of a folder, by what lies in it."""
    names = sorted(path.name for path in islice(folder.iterdir(), MOST_NAMES))
    weights = [name for name in names if name.endswith(WEIGHTS)]
    if weights:
        there = f"; {weights[0]} holds weights, which do not say how they were trained"
    elif names:
        there = f"; in it: {', '.join(names[:SHOWN])}" + (", ..." if len(names) > SHOWN else "")
    else:
        there = ", it is empty"
    return f"{folder} is not a run: no run.db in it, nor a log{there}; what can be read is {READABLE}"


def _looks(path: Path, start: bytes) -> str:
    if not start:
        return "an empty file"
    if path.suffix in WEIGHTS or (start.startswith(b"PK") and any(name in start for name in PICKLED)):
        return "a checkpoint, and weights do not say how they were trained: give the log of that training"
    packed = next((name for magic, name in COMPRESSED.items() if start.startswith(magic)), None)
    if packed is not None:
        return f"compressed ({packed}): unpack it first"
    if path.suffix == ".py":
        return f"a script: `gradiometer run {path}` trains and measures, `gradiometer audit {path}` stops at the first step"
    if b"\0" in start:
        return "a binary file"
    return "text without a line of names that counts steps (what a script prints `gradiometer run` picks up)"
