"""Missing is not zero is not NaN: the state of every parameter's gradient."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torch import Tensor

from gradiometer.records import State

__all__ = ["Change", "States"]


@dataclass(frozen=True, slots=True)
class Change:
    """What is different from the last measured step."""

    changed: bool
    newly_missing: tuple[str, ...]
    newly_nonfinite: tuple[str, ...]


class States:
    """`finite`, `nonfinite`, `missing` (could have a gradient, has none) or `frozen`, by parameter."""

    def __init__(self) -> None:
        self.current: dict[str, State] = {}

    def in_order(self, names: Sequence[str]) -> list[State]:
        """The states of these parameters; missing before the first measured step."""
        return [self.current.get(name, "missing") for name in names]

    def update(
        self,
        names: Sequence[str],
        parameters: Sequence[Tensor],
        *,
        captured: Collection[int],
        nonfinite: Collection[int],
        waiting: Collection[int],
    ) -> Change:
        """Take in a measured step. Those `waiting` for an optimizer that did not step in it stay as they were."""
        bad = set(nonfinite)

        def state(i: int, name: str, p: Tensor) -> State:
            if i in captured:
                return "nonfinite" if i in bad else "finite"
            if not p.requires_grad:
                return "frozen"
            return self.current.get(name, "missing") if i in waiting else "missing"

        new = {name: state(i, name, p) for i, (name, p) in enumerate(zip(names, parameters, strict=True))}
        before, self.current = self.current, new
        turned = {name: state for name, state in new.items() if before.get(name) != state}
        return Change(
            changed=new != before,
            newly_missing=tuple(
                name for i, name in enumerate(names) if turned.get(name) == "missing" and i not in waiting
            ),
            newly_nonfinite=tuple(name for name, state in turned.items() if state == "nonfinite"),
        )
