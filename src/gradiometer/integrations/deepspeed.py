"""DeepSpeed ZeRO 1, 2 and 3: `with watch_engine(engine, run="runs/zero"):` around the loop.

ZeRO keeps gradients in partitions of its own, where torch's hooks do not see them. Its public
accessors show one whole gradient at a time, at the accumulation boundary and before its clip: rank
0 reads each and lets go of it. Nothing else is to be seen from there: no weights and updates, no
terms of the loss, no credit, no micro-batches.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from gradiometer.capture.hooks import guarded
from gradiometer.capture.meter import Meter
from gradiometer.capture.watch import watch
from gradiometer.errors import UsageError
from gradiometer.integrations.session import OPTIONS

__all__ = ["EngineReader", "watch_engine"]

OWN = ("tier", "budget", "every", "doctor_every")
"""Options of `watch` that do not apply: every measured step costs messages of all ranks."""


@contextmanager
def watch_engine(
    engine: Any, *, run: str | os.PathLike[str] | None = "auto", every: int = 10, **options: Any
) -> Iterator[Meter | None]:
    """Measure every `every`-th optimizer step of a DeepSpeed engine; call it on all ranks.

    Gives rank 0's meter, whose `log` keeps scalars of yours, and None on the other ranks, which
    only take part in the messages. Other options are those of `watch`; the tier is `light`.
    """
    _check(engine, every, options)
    reader = EngineReader(engine, every)
    if reader.first:
        config = {**_config(engine), **(options.pop("config", None) or {})}
        options |= {"run": run, "config": config, "tier": "light", "every": 1, "budget": None}
        reader.meter = watch(reader.standins, reader.optimizer, **options)
        reader.meter.only_take()
    before = vars(engine).get("step")
    engine.step = reader.step
    try:
        if reader.meter is None:
            yield None
        else:
            with reader.meter:
                yield reader.meter
    finally:
        if before is None:
            del engine.step
        else:
            engine.step = before


def _check(engine: Any, every: int, options: dict[str, Any]) -> None:
    stage = getattr(engine, "zero_optimization_stage", None)
    if not callable(stage):
        raise UsageError(
            f"watch_engine() takes what deepspeed.initialize returns; found {type(engine).__name__}"
        )
    if stage() == 0:
        raise UsageError(
            "the engine does not partition gradients (ZeRO stage 0): use"
            " gradiometer.watch(engine.module, engine.optimizer), which sees more"
        )
    if not isinstance(every, int) or every < 1:
        raise UsageError(f"watch_engine() measures every n-th step, n ≥ 1; found every={every!r}")
    for name in options.keys() - (set(OPTIONS) - set(OWN)):
        raise UsageError(
            f"watch_engine() has no option {name!r}; the tier is light, and `every` counts"
        )
    managed = getattr(engine, "managed_gradient_accumulation", None)
    if callable(managed) and not managed():
        raise UsageError(
            "with managed_gradient_accumulation=false DeepSpeed reduces gradients inside step(),"
            " and there is no moment before its clip to read them at. Leave it at true"
        )


class EngineReader:
    """Reads the gradients of one engine before each of its steps."""

    def __init__(self, engine: Any, every: int) -> None:
        self._engine, self._every = engine, every
        self._step: Callable[..., Any] = engine.step
        self._full_grad = import_module("deepspeed.utils").safe_get_full_grad
        named = [(name, p) for name, p in engine.module.named_parameters() if p.requires_grad]
        self._parameters: Sequence[Tensor] = [p for _, p in named]
        self.first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
        self.standins = _standins([(name, getattr(p, "ds_shape", p.shape)) for name, p in named])
        self.optimizer = torch.optim.SGD(self.standins.parameters(), lr=0.0)
        self.meter: Meter | None = None
        self.seconds = self.entered = 0.0
        self._rate = math.nan
        """Of the engine's first group, before the step."""

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """The engine's own, with a look before it where an optimizer step follows."""
        measured = self._engine.is_gradient_accumulation_boundary() and self._is_due()
        if measured:
            self._read()
        answer = self._step(*args, **kwargs)
        if measured:
            self._finish()
        return answer

    def _is_due(self) -> bool:
        """The same on all ranks: the accessors are messages of all of them."""
        return int(self._engine.global_steps) % self._every == 0

    def _read(self) -> None:
        """Each gradient in turn. What fails in the reading fails on rank 0 alone, which goes on
        gathering with the others."""
        self._begin()
        square = torch.zeros((), dtype=torch.float64)
        for standin, p in zip(self.standins.parameters(), self._parameters, strict=True):
            grad = self._full_grad(p)
            if grad is not None and self.meter is not None:
                self._take(standin, grad.detach().float() / self._loss_scale(), square)
        self._note_clip(square.sqrt())

    @guarded
    def _begin(self) -> None:
        if self.meter is not None:
            self._rate = next(iter(self._engine.get_lr()), math.nan)
            self.meter.step(int(self._engine.global_steps))

    @guarded
    def _take(self, standin: nn.Parameter, grad: Tensor, square: Tensor) -> None:
        square += grad.double().square().sum().cpu()
        standin.grad = grad.to(standin.device).view_as(standin)
        if self.meter is not None:
            self.meter.take_gradient(standin)
        standin.grad = None

    @guarded
    def _note_clip(self, norm: Tensor) -> None:
        threshold = float(self._engine.gradient_clipping() or 0.0)
        if self.meter is not None and threshold > 0:
            self.meter.note_clip(norm, threshold)

    @guarded
    def _finish(self) -> None:
        if self.meter is None:
            return
        norm = self._engine.get_global_grad_norm()
        self.optimizer.param_groups[0]["lr"] = float(self._rate)
        self.optimizer.step()  # no stand-in holds a gradient: it ends the step and moves nothing
        if norm is not None and math.isfinite(norm):
            self.meter.log(**{"deepspeed/global_grad_norm": float(norm)})

    def _loss_scale(self) -> float:
        scale = getattr(self._engine.optimizer, "loss_scale", 1.0)
        return float(scale) if scale else 1.0

    def give_up(self, problem: str) -> None:
        """A fault of ours: nothing is read any more, and the messages go on."""
        meter, self.meter = self.meter, None
        if meter is not None:
            meter.give_up(problem)


def _standins(shapes: Sequence[tuple[str, Sequence[int]]]) -> nn.Module:
    """Modules with parameters of these names and shapes, and no memory of their own."""
    root = nn.Module()
    for name, shape in shapes:
        *path, last = name.split(".")
        home = root
        for part in path:
            if part not in home._modules:
                home.add_module(part, nn.Module())
            home = home.get_submodule(part)
        home.register_parameter(last, nn.Parameter(torch.zeros(()).expand(tuple(shape))))
    return root


def _config(engine: Any) -> dict[str, Any]:
    return {
        "deepspeed": {
            "zero_stage": engine.zero_optimization_stage(),
            "gradient_accumulation_steps": engine.gradient_accumulation_steps(),
            "gradient_clipping": engine.gradient_clipping(),
        }
    }
