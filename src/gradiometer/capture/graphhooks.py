"""Inside the graph of a loss: who else listens there, whose gradient is kept, and whether a backward came through.

autograd does not tell what hangs on a node. But torch numbers its hooks by one counter: where that stands still nothing was
hooked, and where it moved the newer hooks are looked up among all living objects (milliseconds, and rare). `retain_grad`
has no number; it is wrapped as long as somebody watches.
"""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from gradiometer.capture.hooks import Remove

__all__ = ["HookMark", "Use", "hooked_since", "observe_retained", "observe_use", "own_pass", "retained"]

_own_passes = 0
_num_own_hooks = 0


class Use:
    """Whether a backward, not one of ours, has come through any of some tensors; hooked to their nodes."""

    __slots__ = ("came",)

    def __init__(self, *, came: bool) -> None:
        self.came = came

    def __call__(self, _: Any) -> None:
        self.came = self.came or not _own_passes


def observe_use(tensors: Iterable[Tensor]) -> Use:
    """Notice the backward of these tensors. On the node, which dies with the graph; the tensor itself shows nothing."""
    global _num_own_hooks
    nodes = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    use = Use(came=not nodes)  # of a leaf nothing can be known
    for node in nodes:
        node.register_prehook(use)
        _num_own_hooks += 1
    return use


@contextmanager
def own_pass() -> Iterator[None]:
    """A backward of ours, which is nobody's use."""
    global _own_passes
    _own_passes += 1
    try:
        yield
    finally:
        _own_passes -= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HookMark:
    """Where torch's counter of hooks stood."""

    next_id: int
    not_ours: int

    @classmethod
    def now(cls) -> HookMark:
        """At this moment."""
        return cls(next_id=RemovableHandle.next_id, not_ours=RemovableHandle.next_id - _num_own_hooks)


def hooked_since(mark: HookMark, modules: Iterable[nn.Module] = ()) -> bool:
    """Whether anybody has hooked a tensor or a node since then, and the hook still lives.

    Where all new numbers are of hooks on `modules`, there is nothing to look for: transformers hooks a module anew at every
    generation, and beside it a process holds a million objects, half a second to look through.
    """
    moved = HookMark.now().not_ours - mark.not_ours
    if moved == 0 or moved == _num_on(modules, mark.next_id):
        return False
    newer = [held for held in gc.get_objects() if type(held) is OrderedDict and _has_newer(held, mark.next_id)]
    return bool(newer) and not {id(held) for held in newer} <= _owned(newer)


def _num_on(modules: Iterable[nn.Module], since: int) -> int:
    """How many hooks of at least that number hang on these modules."""
    parts = {id(part): part for root in modules for part in root.modules()}
    tables = [held for part in parts.values() for name, held in vars(part).items() if name.endswith("_hooks") and held]
    return sum(type(number) is int and number >= since for held in tables for number in held)


def _has_newer(held: OrderedDict[Any, Any], since: int) -> bool:
    return any(
        type(number) is int and number >= since and callable(hook) and not isinstance(hook, Use)
        for number, hook in list(held.items())
    )


def _owned(held: list[OrderedDict[Any, Any]]) -> set[int]:
    """Not autograd's: a module or an optimizer has its hooks among its attributes. Nor those that follow accumulation."""
    owned: set[int] = set()
    for owner in gc.get_referrers(*held):
        if type(owner) is dict:
            owned.update(map(id, owner.values()))
        elif isinstance(owner, (nn.Module, Optimizer)):
            owned.update(map(id, vars(owner).values()))
        elif isinstance(owner, Tensor):
            owned.add(id(getattr(owner, "_post_accumulate_grad_hooks", None)))
    return owned


_retained: dict[int, weakref.ref[Tensor]] = {}
_watching: list[object] = []
_restore: list[Remove] = []


def retained() -> list[Tensor]:
    """The living tensors inside graphs whose gradient somebody has asked to keep: each backward adds to it."""
    return [tensor for reference in list(_retained.values()) if (tensor := reference()) is not None]


def observe_retained() -> Remove:
    """Note every `retain_grad` in this process, until the returned function is called. One wrapper serves all."""
    if not _watching:
        _restore.append(_wrap_retain_grad())
    token = object()
    _watching.append(token)

    def remove() -> None:
        if token in _watching:
            _watching.remove(token)
            if not _watching:
                _restore.pop()()

    return remove


def _wrap_retain_grad() -> Remove:
    wrapped_before, original = "retain_grad" in vars(Tensor), Tensor.retain_grad

    def retain_grad(self: Tensor) -> None:
        original(self)
        if not self.is_leaf:
            key = id(self)
            _retained[key] = weakref.ref(self, lambda _: _retained.pop(key, None))

    # Dynamo breaks its graph here with and without us; it should not try to look inside.
    setattr(Tensor, "retain_grad", torch.compiler.disable(retain_grad))  # type: ignore[no-untyped-call]  # noqa: B010

    def restore() -> None:
        if wrapped_before:
            setattr(Tensor, "retain_grad", original)  # noqa: B010
        else:
            delattr(Tensor, "retain_grad")  # that of torch's base class is seen again

    return restore
