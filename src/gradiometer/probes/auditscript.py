"""A training script, run until its optimizers step, and what can be checked then by itself.

Optimizers are found by torch's own hooks around every optimizer's step, models among the living
modules. The script is stopped by an exception that `except Exception` does not catch, so its
`finally` blocks and context managers still end well. A meter inside the script measures and writes
nothing.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gradiometer.capture import hooks, watch
from gradiometer.capture.blocks import WRAPPERS, find_blocks
from gradiometer.capture.cleared import ClearedGradients
from gradiometer.capture.leaks import leaves_of
from gradiometer.capture.living import living, outermost
from gradiometer.capture.meter import Meter
from gradiometer.capture.proofs import ProofLog
from gradiometer.capture.structure import walk
from gradiometer.capture.untrained import held_by, whole_blocks
from gradiometer.errors import UsageError
from gradiometer.probes.auditcheck import Check, failed, few, passed, skipped
from gradiometer.probes.auditproofs import ProofEvents
from gradiometer.probes.auditwiring import (
    DEAD_REFERENCES,
    SCALE,
    Audited,
    ClipWatch,
    clip_check,
    frozen_check,
    scale_now,
    two_optimizers_check,
    unreached,
    untrained_places,
)

__all__ = ["Script", "ScriptState", "checks_of", "observed"]

MOST_MORE = 16  # steps to wait for an optimizer that has none yet (a delayed actor, a second phase)
DEAD, STILL = "dead-term", "stationary-term"
KINDS: tuple[type, ...] = (Optimizer, nn.Module, torch.amp.GradScaler)
LOOSE = "parameter {} of no module"
MORE = {
    "hidden-term": "whether the terms are the whole loss: gm.audit(terms, model, optimizer,"
    " loss=...)",
    "score-not-zero-mean": "whether log_prob is that of the sampler: gm.audit(..., policy=...)",
    "gradient-not-invariant": "whether micro-batches change the gradient: gm.audit(...,"
    " micro_batches=..., batch=...)",
    "baseline-leak": "whether the baseline holds its own reward: gm.audit(..., baseline=...)",
}
"""What a script does not show by itself."""


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
class ScriptState:
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
    idle: set[int] = field(default_factory=set)
    """By id: parameters of optimizers that have not stepped yet."""
    looks: int = 0
    """Steps of the optimizer that stepped most."""
    facts: ProofEvents = field(default_factory=ProofEvents)
    proofs: ProofLog = field(init=False)
    nonfinite: dict[str, int] = field(default_factory=dict)
    """Parameters with a NaN or an Inf, and at which step first."""
    dead_terms: dict[str, str] = field(default_factory=dict)
    still_terms: dict[str, str] = field(default_factory=dict)
    used_terms: bool = False
    scale: float | None = None
    clip: ClipWatch | None = None
    factor: float | None = None
    """The largest by which gradients shrank between a clip and its step."""

    def __post_init__(self) -> None:
        self.proofs = ProofLog(self.facts)


def observed(script: Script) -> ScriptState:
    """Run it. What it prints goes to stderr; its own failure is a UsageError that says where."""
    seen = ScriptState()
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
                raise UsageError(
                    f"{script.path} left with code {leaving.code} before any optimizer step"
                ) from None
        except Exception as problem:
            _show(problem)
            steps = f"after {seen.steps} optimizer steps"
            after = steps if seen.steps else "before any optimizer step"
            raise UsageError(
                f"{script.path} failed {after}: {type(problem).__name__}: {problem}"
            ) from None
    if not seen.steps:
        raise UsageError(
            f"{script.path} ended without an optimizer step in this process: give arguments that"
            " make it train, and start the training itself rather than a launcher (torchrun, ray,"
            " multiprocessing)"
        )
    return seen


def _show(problem: Exception) -> None:
    """The script's part of the traceback."""
    ours = {__file__, runpy.__file__, "<frozen runpy>"}
    frames = [f for f in traceback.extract_tb(problem.__traceback__) if f.filename not in ours]
    lines = ["Traceback (most recent call last):", *traceback.format_list(frames)]
    print(*lines, sep="\n", file=sys.stderr)


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


def _overhear(seen: ScriptState, stack: ExitStack) -> None:
    """What a meter of the script says of its terms; it keeps no run: nobody asked for a file."""
    writer, event, terms = watch._writer, Meter.event, Meter.terms

    def told(self: Meter, kind: str, message: str, step: int | None = None, **detail: Any) -> None:
        if kind in (DEAD, STILL):
            terms_of = seen.dead_terms if kind == DEAD else seen.still_terms
            terms_of[str(detail.get("term"))] = message
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
    """Looks at gradients just before every step, and stops the script when it has seen enough."""

    def __init__(self, seen: ScriptState, steps: int) -> None:
        self._seen, self._wanted = seen, steps
        self._count: dict[int, int] = {}
        # What lived before the script is not the script's. By identity: a WeakSet asks objects
        # whether they are equal, and some (a tensordict) answer with work of their own.
        self._strangers = {
            id(held): weakref.ref(held) for each in living(*KINDS).values() for held in each
        }
        self._found: dict[type, list[Any]] | None = None
        self._cleared = ClearedGradients(seen.proofs)
        seen.clip = ClipWatch(self._scalers, self._optimizers)

    def install(self, stack: ExitStack) -> None:
        """Torch's hooks for all optimizers, and the observed clips, until the stack unwinds."""
        assert self._seen.clip is not None
        for remove in (
            register_optimizer_step_pre_hook(self._before).remove,
            register_optimizer_step_post_hook(self._after).remove,
            hooks.observe_clips(self._seen.clip),
            hooks.observe_roots(self),
        ):
            stack.callback(remove)

    @property
    def wants_graph(self) -> bool:
        """Of every backward; the script is stopped soon."""
        return True

    def graph_ready(self, call: hooks.BackwardCall) -> None:
        """What the graph of a loss proves; a fault of ours is nothing to the script."""
        roots = [x.grad_fn for x in call.tensors if isinstance(x, Tensor) and x.grad_fn is not None]
        with suppress(Exception):
            walk(roots, self._seen.proofs)
            self._cleared.adds_to(leaves_of(roots))

    def _before(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        if not _has_closure(args, kwargs):
            self._look(optimizer)

    def _after(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        if _has_closure(args, kwargs):  # gradients are made inside the step
            self._look(optimizer)
        self._cleared.stepped(id(optimizer))

    def _look(self, optimizer: Optimizer) -> None:
        seen = self._seen
        seen.steps += 1
        self._count[id(optimizer)] = self._count.get(id(optimizer), 0) + 1
        if not self._cleared.knows(id(optimizer)):
            self._cleared.add(id(optimizer), _some_parameters(optimizer))
        self._cleared.stepping(id(optimizer))
        seen.optimizers = self._optimizers()
        seen.named, seen.num_loose = _parameters(seen.optimizers, outermost(self._new(nn.Module)))
        idle = [one for one in seen.optimizers if id(one) not in self._count]
        seen.idle = held_by(idle) - held_by(one for one in seen.optimizers if one not in idle)
        seen.looks = max(self._count.values())
        scales = [scale for scaler in self._scalers() if (scale := scale_now(scaler)) is not None]
        seen.scale = scales[0] if scales else None
        self._found = None
        for name, p in seen.named.items():
            if p.grad is not None:
                _note(seen, name, p)
        assert seen.clip is not None
        factors = [f for f in (seen.factor, seen.clip.factor_since()) if f is not None]
        seen.factor = max(factors, default=None)
        seen.clip.norm_after = None
        waiting = [one for one in seen.optimizers if self._count.get(id(one), 0) < self._wanted]
        if not waiting or seen.steps >= self._wanted * len(seen.optimizers) + MOST_MORE:
            raise _Enough

    def _new(self, kind: type) -> list[Any]:
        """One walk over all objects serves a clip and the step after it."""
        if self._found is None:
            self._found = living(*KINDS)
        return [held for held in self._found[kind] if not self._is_stranger(held)]

    def _is_stranger(self, held: Any) -> bool:
        reference = self._strangers.get(id(held))
        return reference is not None and reference() is held

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


def _some_parameters(optimizer: Optimizer) -> list[Tensor]:
    """A few that have a gradient."""
    held = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    return held[:: max(1, len(held) // 3)][:3]


def _note(seen: ScriptState, name: str, p: nn.Parameter) -> None:
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


def _parameters(
    optimizers: list[Optimizer], roots: list[nn.Module]
) -> tuple[dict[str, nn.Parameter], int]:
    """Those of every model with a gradient or an optimizer, and how many are no module's."""
    held = {id(p): p for one in optimizers for group in one.param_groups for p in group["params"]}
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
    loose = [p for key, p in held.items() if key not in seen]
    named.update({LOOSE.format(number): p for number, p in enumerate(loose)})
    return named, len(loose)


def checks_of(seen: ScriptState) -> list[Check]:
    """Every check a script allows, and what would allow the others."""
    audited = Audited(
        named=seen.named, blocks=find_blocks(seen.named, None), optimizers=seen.optimizers
    )
    return [
        *_term_checks(seen),
        *_proved(seen),
        _finite(seen),
        _dead_blocks(seen, audited),
        _in_no_optimizer(seen, audited),
        two_optimizers_check(audited),
        frozen_check(audited),
        _clipped(seen),
        *(
            skipped((kind, kind.replace("-", " ")), f"a script alone does not show {how}")
            for kind, how in MORE.items()
        ),
    ]


def _proved(seen: ScriptState) -> Iterator[Check]:
    seen.proofs.unmeasurable(
        "gradients-not-cleared", "one step does not show whether gradients are cleared: --steps 2"
    )
    yield from seen.facts.checks(seen.proofs)


def _term_checks(seen: ScriptState) -> Iterator[Check]:
    about = ("dead-term", "every term has a gradient")
    if not seen.used_terms:
        yield skipped(
            about,
            "the script does not split its loss: with meter.terms(policy=..., entropy=...) as loss",
        )
        return
    for term, message in seen.dead_terms.items():
        yield failed(
            about,
            "critical",
            message,
            f"compute {term!r} outside torch.no_grad(), without .detach(), .item(), .data or"
            " argmax",
            numbers={"term": term},
            references=DEAD_REFERENCES,
        )
    if not seen.dead_terms:
        yield passed(about, "every term of meter.terms reaches a parameter")
    if seen.still_terms:
        yield passed(("dead-term", "stationary terms"), "; ".join(seen.still_terms.values()))


def _finite(seen: ScriptState) -> Check:
    about = ("nonfinite-gradient", "gradients are finite")
    if not seen.nonfinite:
        return passed(
            about, f"no NaN and no Inf in {len(seen.reached)} gradients, {seen.steps} steps seen"
        )
    name, step = min(seen.nonfinite.items(), key=lambda each: each[1])
    return failed(
        about,
        "critical" if seen.scale is None else "info",
        f"{len(seen.nonfinite)} gradients hold a NaN or an Inf, first {name} at step {step}"
        + ("" if seen.scale is None else "; the GradScaler skips such steps until its scale fits"),
        "look for log(0), 0/0, a std of one sample or a masked -inf;"
        " torch.autograd.set_detect_anomaly finds the line",
        numbers={"parameters": len(seen.nonfinite)},
    )


SURE = 3
"""Steps after which a gradient of exactly zero is no start from zero (LoRA) any more."""


def _dead_blocks(seen: ScriptState, audited: Audited) -> Check:
    """Blocks and layers that could be trained and had no gradient at any step, or only zeros."""
    about = ("dead-block", "every block is reached")
    parameters, blocks = audited.parameters, audited.blocks
    of_modules = parameters[: len(parameters) - seen.num_loose]
    trained = {i for i, p in enumerate(of_modules) if p.requires_grad and id(p) not in seen.idle}
    reached = {i for i in trained if id(parameters[i]) in seen.reached}
    named, layers = unreached(audited, trained, reached)
    felt = {i for i in reached if id(parameters[i]) not in seen.zero}
    silent = [name for name in unreached(audited, reached, felt)[1] if name not in layers]
    number = len(blocks.names) - blocks.num_named - seen.num_loose
    if not named and not layers:
        return _silent(about, seen, silent, number)
    what = f"the block {few(named)}" if named else f"{len(layers)} layers ({few(layers)})"
    return failed(
        about,
        "critical" if named else "warn",
        f"no gradient in {seen.steps} steps: {what}",
        "use its output in the loss, outside no_grad and detach; or requires_grad_(False)",
        numbers={"blocks": named, "layers": layers},
        block=named[0] if named else f"layer.{layers[0]}",
    )


def _silent(about: tuple[str, str], seen: ScriptState, silent: list[str], number: int) -> Check:
    """Layers that are reached by exact zeros only; a start from zero is no failure yet."""
    late = f"; {len(seen.idle)} parameters wait for their optimizer's first step"
    late = late if seen.idle else ""
    if not silent:
        return passed(about, f"each of {number} layers has a gradient{late}")
    what = f"the gradient of {len(silent)} of {number} layers ({few(silent)}) is exactly zero"
    if len(silent) < number and seen.looks < SURE:
        return passed(
            about,
            f"{what} so far, which is right for a layer before one that starts from zero (LoRA);"
            f" look at {SURE} steps to be sure{late}",
            layers=silent,
        )
    return failed(
        about,
        "critical" if len(silent) == number else "warn",
        f"{what} at each of {seen.looks} steps",
        "look at what multiplies the loss or the output of this layer: a mask, a coefficient or an"
        " advantage of zero, dead ReLUs",
        numbers={"layers": silent},
        block=f"layer.{silent[0]}",
    )


def _in_no_optimizer(seen: ScriptState, audited: Audited) -> Check:
    about = ("not-in-optimizer", "what has a gradient is trained")
    reached = seen.reached
    places = untrained_places(
        audited, {i for i, p in enumerate(audited.parameters) if id(p) in reached}
    )
    if not places:
        return passed(about, f"all {len(reached)} parameters with a gradient are in an optimizer")
    whole = whole_blocks(audited.blocks, audited.parameters, places)
    loose = audited.parameters[len(audited.named) - seen.num_loose :]
    stale = sum(id(p) not in reached for p in loose)
    replaced = f"; the optimizers hold {stale} of no module instead: a layer was replaced"
    return failed(
        about,
        "critical" if whole else "warn",
        f"{len(places)} parameters get a gradient and are in no optimizer:"
        f" {few([audited.names[i] for i in places])}"
        + (f" (the whole block {few(whole)})" if whole else "")
        + (replaced if stale else ""),
        "give them to an optimizer: make it after the layers are made or replaced, or"
        " add_param_group; if nobody should train them, requires_grad_(False)",
        numbers={"parameters": len(places), "blocks": whole, "stale": stale},
        block=whole[0] if whole else None,
    )


def _clipped(seen: ScriptState) -> Check:
    if seen.clip is None or (seen.scale is None and not seen.clip.clips):
        return passed(SCALE, "no GradScaler and no clip")
    return clip_check(seen.clip, seen.scale, seen.factor)
