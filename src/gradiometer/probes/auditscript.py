"""A training script, run until its optimizers step, and what can be told of it then without its author's help.

Optimizers are found by torch's own hooks around every optimizer's step, models among the living modules. The script is
stopped by an exception that `except Exception` does not catch, so its `finally` blocks and context managers still end well.
A meter inside the script measures and writes nothing.
"""

from __future__ import annotations

import gc
import os
import runpy
import sys
import traceback
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gradiometer.capture import hooks, watch
from gradiometer.capture.blocks import WRAPPERS
from gradiometer.capture.meter import Meter
from gradiometer.errors import UsageError
from gradiometer.probes.auditscale import ClipWatch, scale_now

__all__ = ["Script", "Seen", "seen_of"]

MOST_MORE = 16  # steps that are waited for an optimizer that has not stepped yet (a delayed actor, a second phase)
DEAD, STILL = "dead-term", "stationary-term"
KINDS: tuple[type, ...] = (Optimizer, nn.Module, torch.amp.GradScaler)
LOOSE = "parameter {} of no module"


class _Enough(BaseException):
    """The script has shown what there is to see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What to run."""

    path: Path
    arguments: tuple[str, ...] = ()
    steps: int = 1
    """How often every optimizer steps before the script is stopped."""


@dataclass(slots=True, kw_only=True)
class Seen:
    """What was there when the script was stopped."""

    steps: int = 0
    optimizers: list[Optimizer] = field(default_factory=list)
    named: dict[str, nn.Parameter] = field(default_factory=dict)
    """Every parameter of every model that an optimizer or a gradient belongs to."""
    num_loose: int = 0
    """How many of them, the last ones, an optimizer holds and no module has."""
    reached: set[int] = field(default_factory=set)
    """By id: parameters that had a gradient at some step."""
    zero: set[int] = field(default_factory=set)
    """Those of them whose gradient was exactly zero each time."""
    nonfinite: dict[str, int] = field(default_factory=dict)
    """Parameters with a NaN or an Inf, and at which step first."""
    dead_terms: dict[str, str] = field(default_factory=dict)
    still_terms: dict[str, str] = field(default_factory=dict)
    used_terms: bool = False
    scale: float | None = None
    clip: ClipWatch | None = None
    factor: float | None = None
    """The largest by which gradients shrank between a clip and its step."""


def seen_of(script: Script) -> Seen:
    """Run it. What it prints goes to stderr; its own failure is a UsageError that says where."""
    if not script.path.is_file():
        raise UsageError(f"no script at {script.path}: give a Python file, then its arguments")
    seen = Seen()
    with ExitStack() as stack:
        _Observer(seen, script.steps).install(stack)
        _overhear(seen, stack)
        stack.enter_context(_as_main(script))
        stack.enter_context(redirect_stdout(sys.stderr))
        try:
            runpy.run_path(str(script.path), run_name="__main__")
        except _Enough:
            return seen
        except SystemExit as leaving:
            if not seen.steps:
                raise UsageError(f"{script.path} left with code {leaving.code} before any optimizer step") from None
        except Exception as problem:
            _show(problem)
            after = f"after {seen.steps} optimizer steps" if seen.steps else "before any optimizer step"
            raise UsageError(f"{script.path} failed {after}: {type(problem).__name__}: {problem}") from None
    if not seen.steps:
        raise UsageError(
            f"{script.path} ended without an optimizer step in this process: give arguments that make it train, and start the "
            "training itself rather than a launcher (torchrun, ray, multiprocessing)"
        )
    return seen


def _show(problem: Exception) -> None:
    """The script's part of the traceback."""
    ours = {__file__, runpy.__file__, "<frozen runpy>"}
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if frame.filename not in ours]
    print("Traceback (most recent call last):", *traceback.format_list(frames), sep="\n", file=sys.stderr)


@contextmanager
def _as_main(script: Script) -> Iterator[None]:
    """As `python train.py ARGS` would start it."""
    argv, path, disabled = sys.argv, list(sys.path), os.environ.pop("GRADIOMETER_DISABLED", None)
    sys.argv = [str(script.path), *script.arguments]
    sys.path.insert(0, str(script.path.resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path
        if disabled is not None:
            os.environ["GRADIOMETER_DISABLED"] = disabled


def _overhear(seen: Seen, stack: ExitStack) -> None:
    """What a meter of the script says of its terms; and it keeps no run, for nobody asked for a file."""
    writer, event, terms = watch._writer, Meter.event, Meter.terms

    def told(self: Meter, kind: str, message: str, step: int | None = None, **detail: Any) -> None:
        if kind in (DEAD, STILL):
            (seen.dead_terms if kind == DEAD else seen.still_terms)[str(detail.get("term"))] = message
        event(self, kind, message, step, **detail)

    def noted(self: Meter, **given: Any) -> Any:
        seen.used_terms = True
        return terms(self, **given)

    replaced: dict[tuple[Any, str], tuple[Any, Any]] = {
        (watch, "_writer"): (writer, lambda *_, **__: None),
        (Meter, "event"): (event, told),
        (Meter, "terms"): (terms, noted),
    }
    for (place, name), (before, now) in replaced.items():
        setattr(place, name, now)
        stack.callback(setattr, place, name, before)


class _Observer:
    """Told of every step in the process; looks at gradients just before it, and stops the script when it has seen enough."""

    def __init__(self, seen: Seen, steps: int) -> None:
        self._seen, self._wanted = seen, steps
        self._count: dict[int, int] = {}
        # What lived before the script is not the script's.
        self._strangers = weakref.WeakSet([held for living in _living().values() for held in living])
        self._found: dict[type, list[Any]] | None = None
        seen.clip = ClipWatch(self._scalers, self._optimizers)

    def install(self, stack: ExitStack) -> None:
        """Hooks of torch that serve all optimizers, and the observed clips, until the stack unwinds."""
        assert self._seen.clip is not None
        for remove in (
            register_optimizer_step_pre_hook(self._before).remove,
            register_optimizer_step_post_hook(self._after).remove,
            hooks.observe_clips(self._seen.clip),
        ):
            stack.callback(remove)

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if not _has_closure(args, kwargs):
            self._look(optimizer)

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if _has_closure(args, kwargs):  # gradients are made inside the step
            self._look(optimizer)

    def _look(self, optimizer: Optimizer) -> None:
        seen = self._seen
        seen.steps += 1
        self._count[id(optimizer)] = self._count.get(id(optimizer), 0) + 1
        seen.optimizers = self._optimizers()
        seen.named, seen.num_loose = _parameters(seen.optimizers, _roots(self._new(nn.Module)))
        scales = [scale for scaler in self._scalers() if (scale := scale_now(scaler)) is not None]
        seen.scale = scales[0] if scales else None
        self._found = None
        for name, p in seen.named.items():
            if p.grad is not None:
                _note(seen, name, p)
        assert seen.clip is not None
        seen.factor = max((f for f in (seen.factor, seen.clip.factor_since()) if f is not None), default=None)
        seen.clip.norm_after = None
        waiting = [one for one in seen.optimizers if self._count.get(id(one), 0) < self._wanted]
        if not waiting or seen.steps >= self._wanted * len(seen.optimizers) + MOST_MORE:
            raise _Enough

    def _new(self, kind: type) -> list[Any]:
        """One walk over all objects serves a clip and the step after it."""
        if self._found is None:
            self._found = _living()
        return [held for held in self._found[kind] if held not in self._strangers]

    def _scalers(self) -> list[Any]:
        return self._new(torch.amp.GradScaler)

    def _optimizers(self) -> list[Optimizer]:
        """Without the wrappers of trainers, which hold the same parameters once more."""
        found: dict[int, Optimizer] = {}
        for one in self._new(Optimizer):
            if getattr(one, "param_groups", None):
                inner = hooks.unwrap(one)
                found[id(inner)] = inner
        return list(found.values())


def _note(seen: Seen, name: str, p: nn.Parameter) -> None:
    grad = p.grad
    assert grad is not None
    values = grad.coalesce().values() if grad.is_sparse else grad.detach()
    if not bool(torch.isfinite(values).all()):
        seen.nonfinite.setdefault(name, seen.steps)
    is_zero = not bool(values.any())
    if is_zero and id(p) not in seen.reached:
        seen.zero.add(id(p))
    elif not is_zero:
        seen.zero.discard(id(p))
    seen.reached.add(id(p))


def _has_closure(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return kwargs.get("closure", args[1] if len(args) > 1 else None) is not None


def _living() -> dict[type, list[Any]]:
    """Every object of these classes. By type and not isinstance: proxies answer that with work of their own."""
    found: dict[type, list[Any]] = {kind: [] for kind in KINDS}
    known: dict[type, type | None] = {}
    for held in gc.get_objects():
        own = type(held)
        if own not in known:
            known[own] = next((kind for kind in KINDS if issubclass(own, kind)), None)
        kind = known[own]
        if kind is not None:
            found[kind].append(held)
    return found


def _parameters(optimizers: list[Optimizer], roots: list[nn.Module]) -> tuple[dict[str, nn.Parameter], int]:
    """Those of the models that matter (an optimizer holds some of it, or some of it has a gradient), and how many an
    optimizer holds that are no module's."""
    held = {id(p) for one in optimizers for group in one.param_groups for p in group["params"]}
    named: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    for root in roots:
        parameters = dict(root.named_parameters())
        if not any(id(p) in held or p.grad is not None for p in parameters.values()):
            continue
        for name, p in parameters.items():
            if id(p) not in seen:
                seen.add(id(p))
                clean = WRAPPERS.sub("", name)
                named[clean if clean not in named else f"{type(root).__name__}.{clean}"] = p
    every = {id(p): p for one in optimizers for group in one.param_groups for p in group["params"]}
    loose = [p for key, p in every.items() if key not in seen]
    named.update({LOOSE.format(number): p for number, p in enumerate(loose)})
    return named, len(loose)


def _roots(living: list[nn.Module]) -> list[nn.Module]:
    """Modules that are part of no other, largest first: a wrapper comes before what it wraps."""
    modules = [module for module in living if "_modules" in vars(module)]
    inside = {id(child) for module in modules for child in module._modules.values() if child is not None}
    roots = [module for module in modules if id(module) not in inside]
    return sorted(roots, key=lambda module: -sum(1 for _ in module.parameters()))
