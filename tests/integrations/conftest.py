"""Trainers that are not among our packages are tested where they are installed."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("verl") else ["test_verl.py"]
