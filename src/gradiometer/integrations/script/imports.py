"""Told when the script has imported a module, before it can use it: nothing is imported that the
script does not import.

torch reads OMP_NUM_THREADS and the like when it is loaded, and a script may set them first; so we
must not load it before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["on_import"]

Action = Callable[[ModuleType], None]


def on_import(actions: Mapping[str, Action]) -> Callable[[], None]:
    """Call each action once its module is there, now or later, until `remove()` is called."""
    finder = _Finder({name: action for name, action in actions.items() if name not in sys.modules})
    for name, action in actions.items():
        if name in sys.modules:
            action(sys.modules[name])
    sys.meta_path.insert(0, finder)

    def remove() -> None:
        with suppress(ValueError):
            sys.meta_path.remove(finder)

    return remove


class _Finder:
    """Finds nothing by itself: it asks the others, and listens to the loader they name."""

    def __init__(self, actions: dict[str, Action]) -> None:
        self._actions = actions

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._actions:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                self._listen(name, spec)
                return spec
        return None

    def _listen(self, name: str, spec: ModuleSpec) -> None:
        execute = getattr(spec.loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if (action := self._actions.pop(name, None)) is not None:
                action(module)

        with suppress(AttributeError):  # a loader written in C: that module is not listened to
            spec.loader.exec_module = exec_module  # type: ignore[union-attr, method-assign]
