"""What the user asked of `gradiometer run`, before anything is imported."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradiometer.metrics import Tier

__all__ = ["Wishes", "is_first_rank"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """How to watch, and where to keep it."""

    folder: Path
    """Absolute: the script may change its working directory."""
    every: int = 1
    budget: float | None = 0.01
    tier: Tier = "standard"
    doctor: bool = True
    start: Path = field(default_factory=Path.cwd)

    def run_folder(self, number: int) -> Path:
        """Of the script's first, second, ... training; a later one never takes the place of something else."""
        if number == 1:
            return self.folder
        folder = self.folder.with_name(f"{self.folder.name}-{number}")
        return self.run_folder(number + 1) if folder.exists() else folder

    def shown(self, folder: Path) -> str:
        """As the user would type it."""
        return str(folder.relative_to(self.start) if folder.is_relative_to(self.start) else folder)


def is_first_rank() -> bool:
    """Whether a launcher (torchrun, accelerate, srun through torchrun) calls this process the first of its group."""
    return os.environ.get("RANK", "0") in ("", "0")
