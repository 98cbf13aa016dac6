"""Hooks around `optimizer.step`, a router's forward, at the end of backward, inside torch's clipping; graphhooks.py has more.

Trainers import `clip_grad_norm_` by name, so replacing that name would miss them. torch wraps its clip functions in
`no_grad` by a closure; putting an observed function into that closure is seen by every caller, however they imported it.
Where a version of torch has no such closure, the public names are replaced instead (`replace_names`).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad
from torch.optim import Optimizer

__all__ = [
    "BackwardListener",
    "ClipCall",
    "ClipListener",
    "StepListener",
    "observe_backward",
    "observe_clips",
    "observe_forward",
    "observe_gradients",
    "observe_optimizer",
    "unwrap",
]

Remove = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipCall:
    """One call of a clip function: which parameters, by what rule, and the norm it found (by norm only)."""

    parameters: tuple[Tensor, ...]
    kind: Literal["norm", "value"]
    threshold: float
    total_norm: Tensor | None = None


class ClipListener(Protocol):
    """Told of every clip in the process, before and after the gradients change. Must not raise."""

    def before_clip(self, call: ClipCall) -> None: ...
    def after_clip(self, call: ClipCall) -> None: ...


class StepListener(Protocol):
    """Told of an optimizer's step. `closure` is there when gradients are made inside the step."""

    def before_step(self, optimizer: Optimizer, closure: Any) -> None: ...
    def after_step(self, optimizer: Optimizer, closure: Any) -> None: ...


class BackwardListener(Protocol):
    """Told when a backward has ended, with the parameters among the sentinels that it reached. Must not raise."""

    def after_backward(self, reached: frozenset[int]) -> None: ...


def unwrap(optimizer: Any) -> Optimizer:
    """The torch optimizer inside the wrappers of accelerate and Lightning."""
    while not isinstance(optimizer, Optimizer) or isinstance(getattr(optimizer, "optimizer", None), Optimizer):
        inner = getattr(optimizer, "optimizer", None)
        if inner is None:
            raise TypeError(f"not a torch optimizer: {type(optimizer).__name__}")
        optimizer = inner
    return optimizer


def observe_optimizer(optimizer: Optimizer, listener: StepListener) -> Remove:
    """Tell `listener` of each step, until the returned function is called."""

    def before(opt: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        listener.before_step(opt, _closure(args, kwargs))

    def after(opt: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        listener.after_step(opt, _closure(args, kwargs))

    handles = optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove


def _closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # torch hands the hooks (self, *args) of the step call.
    return kwargs.get("closure", args[1] if len(args) > 1 else None)


def observe_backward(sentinels: Sequence[Tensor], listener: BackwardListener) -> Remove:
    """Tell `listener` at the end of each backward that reaches a sentinel.

    A post-accumulate hook on a few parameters costs a call each; the end of the backward is the engine's own callback
    (private; DDP and FSDP stand on it). A torch without it gets no report, and nothing that needs one is measured.
    """
    engine: Any = getattr(torch.autograd.Variable, "_execution_engine", None)
    task_id = getattr(torch._C, "_current_graph_task_id", None)
    if task_id is None or not hasattr(engine, "queue_callback"):
        return lambda: None
    reached: set[int] = set()
    task = -1

    def ended() -> None:
        seen = frozenset(reached)
        reached.clear()
        listener.after_backward(seen)

    def hook_for(number: int) -> Callable[[Tensor], None]:
        def accumulated(_: Tensor) -> None:
            nonlocal task
            current = task_id()
            if current != task:  # also after a backward that raised and never ended
                task = current
                reached.clear()
                engine.queue_callback(ended)
            reached.add(number)

        return accumulated

    return _on_gradients({i: p for i, p in enumerate(sentinels) if p.is_leaf}, hook_for)


def observe_gradients(parameters: Sequence[Tensor], accumulated: Callable[[int], None]) -> Remove:
    """Call `accumulated` with a parameter's number as soon as its gradient is there, inside backward."""
    trained = {i: p for i, p in enumerate(parameters) if p.requires_grad and p.is_leaf}
    return _on_gradients(trained, lambda number: lambda _: accumulated(number))


def observe_forward(module: nn.Module, note: Callable[..., None]) -> Remove:
    """Call `note(output, trained=...)` after each forward of the module; `trained` says whether a graph was being made.

    Not while the module is compiled, nor inside torch.func, whose tensors are not to leave it.
    """

    def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is None:
            note(output, trained=torch.is_grad_enabled())

    return module.register_forward_hook(hook).remove


def _on_gradients(parameters: Mapping[int, Any], hook_for: Callable[[int], Callable[[Tensor], None]]) -> Remove:
    handles = [p.register_post_accumulate_grad_hook(hook_for(i)) for i, p in parameters.items()]

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove


_listeners: list[ClipListener] = []
_restore: list[Remove] = []


def observe_clips(listener: ClipListener) -> Remove:
    """Tell `listener` of each clip in this process, until the returned function is called. One patch serves all."""
    if not _listeners:
        _restore.extend(_install())
    _listeners.append(listener)

    def remove() -> None:
        if listener not in _listeners:
            return
        _listeners.remove(listener)
        if not _listeners:
            while _restore:
                _restore.pop()()

    return remove


def _install() -> list[Remove]:
    observers = {"_clip_grads_with_norm_": _observe_norm, "clip_grad_value_": _observe_value}
    return [
        fill_closure(name, observer) or replace_names(name, observer)
        for name, observer in observers.items()
        if hasattr(clip_grad, name)
    ]


def fill_closure(name: str, observer: Callable[..., Callable[..., Any]]) -> Remove | None:
    """Put the observed function inside torch's own no_grad wrapper; None when it is not the closure we know."""
    wrapper = getattr(clip_grad, name)
    cells = getattr(wrapper, "__closure__", None) or ()
    inner = getattr(wrapper, "__wrapped__", None)
    cell = next((cell for cell in cells if isinstance(inner, types.FunctionType) and cell.cell_contents is inner), None)
    if cell is None:
        return None
    cell.cell_contents = observer(inner)

    def restore() -> None:
        cell.cell_contents = inner

    return restore


def replace_names(name: str, observer: Callable[..., Callable[..., Any]]) -> Remove:
    """Replace the function under its names in torch; missed by callers who imported the public name before."""
    original = getattr(clip_grad, name)
    public = name.removeprefix("_") if hasattr(torch.nn.utils, name.removeprefix("_")) else name
    places = [(clip_grad, name), (torch.nn.utils, public)]
    observed = observer(original)
    for module, attribute in places:
        setattr(module, attribute, observed)

    def restore() -> None:
        for module, attribute in places:
            setattr(module, attribute, original)

    return restore


def _observe_norm(inner: Callable[..., Any]) -> Callable[..., Any]:
    def observed(
        parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor, foreach: bool | None = None
    ) -> Any:
        listed = _listed(parameters)
        call = ClipCall(parameters=listed, kind="norm", threshold=float(max_norm), total_norm=total_norm)
        return _told(call, lambda: inner(listed, max_norm, total_norm, foreach))

    return observed


def _observe_value(inner: Callable[..., Any]) -> Callable[..., Any]:
    def observed(parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None) -> Any:
        listed = _listed(parameters)
        call = ClipCall(parameters=listed, kind="value", threshold=float(clip_value))
        return _told(call, lambda: inner(listed, clip_value, foreach))

    return observed


def _listed(parameters: Tensor | Iterable[Tensor]) -> tuple[Tensor, ...]:
    # A generator can be walked once only, and both torch and the listeners need it.
    return (parameters,) if isinstance(parameters, Tensor) else tuple(parameters)


def _told(call: ClipCall, clip: Callable[[], Any]) -> Any:
    if torch.compiler.is_compiling():
        return clip()
    listeners = tuple(_listeners)
    for listener in listeners:
        listener.before_clip(call)
    result = clip()
    for listener in listeners:
        listener.after_clip(call)
    return result
