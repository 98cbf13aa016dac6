"""A script from before its first line to after its last, watched as far as it uses torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import ModuleType
from typing import TYPE_CHECKING

from gradiometer.integrations.script.boundary import Boundary
from gradiometer.integrations.script.imports import on_import
from gradiometer.integrations.script.printed import Printed, overhear
from gradiometer.integrations.script.running import (
    INTERRUPTED,
    NothingToRun,
    Program,
    RunOptions,
    ScriptEnd,
    execute,
    is_first_rank,
)
from gradiometer.integrations.script.scalars import SOURCES, Loggers

if TYPE_CHECKING:
    from gradiometer.integrations.script.watching import Watcher

__all__ = ["WatchedScript"]

ENVIRONMENTS = ("gymnasium", "gym", "stable_baselines3.common.vec_env")
"""Modules after whose import there are new classes of environments."""
GENERATING = {
    "trl.trainer.grpo_trainer": "GRPOTrainer",
    "trl.trainer.rloo_trainer": "RLOOTrainer",
}
"""Modules of trainers that generate answers and know their rewards, and their class."""


class WatchedScript:
    """Runs it once. Nothing of ours is imported with torch before the script imports torch."""

    def __init__(self, options: RunOptions, *, listen: bool) -> None:
        self._options, self._listen = options, listen
        self._boundary = Boundary()
        self._loggers = Loggers(self._boundary)
        self.watcher: Watcher | None = None
        """None where the script has not imported torch."""

    def run(self, program: Program, *, told: Callable[[Watcher | None], None]) -> ScriptEnd:
        """To its end; `told` is called on the first rank when the runs are closed."""
        harmless = self._boundary
        with ExitStack() as stack:
            actions = dict.fromkeys(SOURCES, harmless(self._loggers.observe))
            actions |= dict.fromkeys(ENVIRONMENTS, harmless(self._environments_are_here))
            actions |= dict.fromkeys(GENERATING, harmless(self._trainer_is_here))
            stack.callback(on_import({"torch": harmless(self._torch_is_here), **actions}))
            if self._listen:
                stack.callback(overhear(harmless(Printed(self._loggers.printed).hear)))
            try:
                outcome = execute(program)
            except NothingToRun:
                self._boundary.after()
                raise
            if not self._boundary.ours:  # a child that the script forked, and that came back here
                return outcome
        try:
            self._close(outcome, told)
        except KeyboardInterrupt as problem:
            return ScriptEnd(code=INTERRUPTED, error=problem)
        return outcome

    def _torch_is_here(self, module: ModuleType) -> None:
        from gradiometer.integrations.script.watching import Watcher

        self.watcher = self._loggers.receiver = Watcher(self._options, self._boundary)
        self._boundary.after = self.watcher.retire
        self.watcher.install()

    def _environments_are_here(self, module: ModuleType) -> None:
        if self.watcher is not None:  # else it looks for them itself, when torch is there
            self.watcher.look_for_environments()

    def _trainer_is_here(self, module: ModuleType) -> None:
        trainer = getattr(module, GENERATING[module.__name__], None)
        if self.watcher is not None and isinstance(trainer, type):
            self.watcher.listen_to(trainer)

    def _close(self, outcome: ScriptEnd, told: Callable[[Watcher | None], None]) -> None:
        def close() -> None:
            if self.watcher is not None:
                self.watcher.runs.close(outcome.error)
                self.watcher.retire()
            if is_first_rank():
                told(self.watcher)

        self._boundary(close)()
