"""Weights of a lab's model in a file, so that a training can start where another one ended
(`start=FILE`)."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from torch import nn

from gradiometer.errors import UsageError

__all__ = ["load_weights", "save_weights"]


def save_weights(model: nn.Module, path: str | Path) -> None:
    """The whole state dict, buffers too."""
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_suffix(f"{place.suffix}.part")
    torch.save(model.state_dict(), beside)
    beside.replace(place)  # nobody ever reads half a file


def load_weights(model: nn.Module, path: str | Path | None) -> bool:
    """Into the model, in place; False where there is no path, and nothing is done."""
    if path is None:
        return False
    try:
        model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except FileNotFoundError as error:
        raise UsageError(
            f"start={path}: there is no such file; null starts from scratch"
        ) from error
    except (OSError, RuntimeError, pickle.UnpicklingError, TypeError, AttributeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UsageError(
            f"start={path} does not hold weights of this lab's model ({reason})"
        ) from error
    return True
