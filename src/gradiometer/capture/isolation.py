"""Where the instrument meets the user's training: trouble of ours is told once and never stops the training."""

from __future__ import annotations

import functools
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from gradiometer.errors import GradiometerWarning, NonFiniteGradient, StopTraining

__all__ = ["Guarded", "guarded"]

P = ParamSpec("P")
S = TypeVar("S", bound="Guarded")


class Guarded(Protocol):
    """Something whose hooks can fail, after which it stops measuring, and whose time is counted."""

    seconds: float
    entered: float
    """When the outermost call in progress began."""

    def give_up(self, problem: str) -> None: ...


def guarded(method: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """Let no exception of a hook reach the training, but for those the user asked for; count the time it takes."""

    @functools.wraps(method)
    def wrapper(self: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
        started = self.entered = time.perf_counter()
        try:
            method(self, *args, **kwargs)
        except (NonFiniteGradient, StopTraining):
            raise
        except Exception:
            problem = traceback.format_exc()
            self.give_up(problem)
            warnings.warn(
                "Gradiometer had a fault and stopped measuring; your training goes on untouched. Please report this "
                f"with the versions that `gradiometer env` prints:\n{problem}",
                GradiometerWarning,
                stacklevel=3,
            )
        finally:
            self.seconds += time.perf_counter() - started

    return wrapper
