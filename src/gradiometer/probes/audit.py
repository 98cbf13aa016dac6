"""The audit: is the loss wired right, before a night is spent on it?

One batch, no step, in seconds. Every check is ok, failed (with what to change) or skipped (with what to pass). What is
structural is proved from the graph: a term without an autograd path is dead, a gradient that is zero for a reason is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradiometer.capture import hooks
from gradiometer.capture import terms as splitting
from gradiometer.capture.blocks import Model, Selector, find_blocks, modules_of, named_parameters
from gradiometer.capture.randomness import RandomState
from gradiometer.errors import UsageError
from gradiometer.maths import gram
from gradiometer.probes.auditbaseline import baseline_leak
from gradiometer.probes.auditcheck import Check, finding_of
from gradiometer.probes.auditpolicy import policy_checks
from gradiometer.probes.auditprint import text
from gradiometer.probes.auditreach import Cell, Reach, Subject, Terms, checked, evaluated, take
from gradiometer.probes.auditscale import clip_before_unscale
from gradiometer.probes.auditwiring import LOSS, hidden_term, wiring
from gradiometer.probes.invariance import LossOf, Pad, invariance
from gradiometer.probes.plan import whole
from gradiometer.probes.stillness import held_still
from gradiometer.probes.subject import seed_everything
from gradiometer.records import Finding
from gradiometer.store.strictjson import plain

if TYPE_CHECKING:
    from gradiometer.capture.meter import Meter

__all__ = ["Audit", "audit"]

MEMORY_LIMIT = 2**30
FEWEST_SAMPLES = 8  # below, no sign vector is rare enough to be a proof
ORDER = {"failed": 0, "ok": 1, "skipped": 2}
SEVERITY = {"critical": 0, "warn": 1, "info": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The result. `print` it for a table, `plain()` it for JSON."""

    checks: tuple[Check, ...]
    """Failures first, the worst of them first; then what is well, then what was skipped."""
    reach: Mapping[str, Mapping[str, Cell]]
    """From a term to a block (`all`, the named ones, then the layers) to what arrives there."""
    seconds: float

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.state == "failed")

    @property
    def worst(self) -> str | None:
        """The severity of the worst failure; None when there is none."""
        return self.failed[0].severity if self.failed else None

    def findings(self) -> list[Finding]:
        """The failures as the doctor's records."""
        return [finding_of(check) for check in self.failed]

    def plain(self) -> dict[str, Any]:
        """As JSON knows it; `meter.record({}, tables={"audit": audit.plain()})` keeps it in a run."""
        reach = {
            term: {block: {"state": cell.state, "norm": cell.norm} for block, cell in row.items()}
            for term, row in self.reach.items()
        }
        return {"checks": [check.plain() for check in self.checks], "reach": plain(reach), "seconds": self.seconds}

    def __str__(self) -> str:
        return text(self.checks, self.reach)


def audit(
    terms: Terms,
    model: Model,
    optimizer: Optimizer | Sequence[Optimizer] | Mapping[str, Optimizer],
    *,
    blocks: Mapping[str, Selector] | None = None,
    batch: Mapping[str, Tensor] | None = None,
    loss: Callable[..., Tensor] | None = None,
    policy: Any = None,
    micro_batches: LossOf | None = None,
    pad: Pad | None = None,
    baseline: Any = None,
    update: Callable[[], Any] | None = None,
    scaler: Any = None,
    samples: int = 64,
    memory_limit: int = MEMORY_LIMIT,
    seed: int = 0,
    meter: Meter | None = None,
) -> Audit:
    """Check the wiring of a loss at the weights as they are; nothing of the training changes.

    `terms()` gives the loss terms by name, coefficients included, `{"policy": pg, "value": 0.5 * vf}`; it is called again,
    with the same random numbers, and may take the `batch`. `optimizer` is all of them. `loss()` gives what goes backward, to
    look for a term you did not name. A check whose input is not given is skipped and says what to pass:

    `policy` has `sample() -> (actions, log_prob)`, called `samples` times, and may have `logits()`, `select(logits)`,
    `entropy()`, `num_actions` and `picks`. `micro_batches(rows)`, or `micro_batches(rows, parts)`, is the loss that goes
    backward for some rows of `batch`, when it is cut into `parts`; `pad(rows)` gives them with more padding. `baseline` is an
    object with `value()` and `update(reward)`, or one called with a reward that gives what is subtracted from it; a copy is
    fed, or what a function without arguments makes. `update()` does one update as the training does (backward, unscale, clip,
    step; no scheduler), with its optimizers held back, and `scaler` is its GradScaler.

    Weights, `.grad`, buffers, modes, random numbers of torch, numpy and Python, optimizers and scaler stay as they are; a
    torch.Generator of your own and a data loader you draw from do not. Hooks of yours on the model fire. Under
    torch.distributed every rank calls this. With `meter` the result is kept in its run, as the table `audit`.
    """
    started = time.perf_counter()
    _check_arguments(terms, samples, seed)
    named, optimizers = named_parameters(model), _listed(optimizer)
    subject = Subject(named=named, blocks=find_blocks(named, blocks), optimizers=optimizers, memory_limit=memory_limit)
    with _untouched(model, named, optimizers):
        reach, checks = _wired(subject, terms, loss, batch, model)
        checks.append(clip_before_unscale(update, scaler, optimizers))
        _quiet(model)
        seed_everything(seed)
        checks += policy_checks(policy, subject.parameters, samples=samples, memory_limit=memory_limit)
        checks += invariance(micro_batches, batch, pad, subject.parameters)
        checks.append(baseline_leak(baseline, seed))
    result = Audit(
        checks=tuple(sorted(checks, key=lambda check: (ORDER[check.state], SEVERITY[check.severity]))),
        reach={term: {b: reach.cell(term, m) for b, m in subject.members().items()} for term in reach.terms},
        seconds=time.perf_counter() - started,
    )
    if meter is not None:
        meter.record({}, tables={"audit": result.plain()})
    return result


def _check_arguments(terms: Any, samples: int, seed: int) -> None:
    whole("samples", samples, FEWEST_SAMPLES)
    whole("seed", seed, 0)
    if torch.is_inference_mode_enabled():
        raise UsageError("a probe needs gradients, and torch.inference_mode() is on: call it outside")
    if not callable(terms):
        raise UsageError(
            "terms is a function that gives the loss terms, so that it can be called again: terms=lambda: {...}"
        )


def _wired(
    subject: Subject,
    terms: Terms,
    loss: Callable[..., Tensor] | None,
    batch: Mapping[str, Tensor] | None,
    model: Model,
) -> tuple[Reach, list[Check]]:
    random = RandomState.now()
    found = checked(evaluated(terms, batch, random, "terms"))
    reach = take(subject, found)
    checks = list(wiring(subject, reach))
    del found
    if loss is None:
        return reach, [*checks, hidden_term(None, 0.0)]
    for module in modules_of(model).values():
        for part in module.modules():
            if isinstance(part, nn.modules.dropout._DropoutNd):  # two forwards draw in another order
                part.training = False
    found = checked(evaluated(terms, batch, random, "terms"))
    once_more = splitting.total(checked(evaluated(terms, batch, random, "terms")).values())
    again, _ = gram.additivity(take(subject, found, (LOSS, once_more)).products.sum(0))
    total = evaluated(loss, batch, random, "loss")
    if not isinstance(total, Tensor) or total.numel() != 1:
        raise UsageError(f"loss() gives the scalar tensor on which you call backward(); found {type(total).__name__}")
    against = take(subject, found, (LOSS, total.reshape(())))
    return reach, [*checks, hidden_term(against, 0.0 if again != again else again)]


@contextmanager
def _untouched(model: Model, named: Mapping[str, nn.Parameter], optimizers: Sequence[Optimizer]) -> Iterator[None]:
    """Held still, and `.grad` out of reach, so that a loss that calls backward() adds to nothing."""
    others = {id(p): p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    held = list({**others, **{id(p): p for p in named.values()}}.values())
    grads = [p.grad for p in held]
    versions = [p._version for p in named.values()]
    with held_still(model):
        try:
            for p in held:
                p.grad = None
            yield
        finally:
            for p, grad in zip(held, grads, strict=True):
                p.grad = grad
    moved = [name for (name, p), version in zip(named.items(), versions, strict=True) if p._version != version]
    if moved:
        raise UsageError(
            f"a function given to the audit changed the weights ({moved[0]}): give ones that compute a loss and take no step"
        )


def _quiet(model: Model) -> None:
    """Dropout and running statistics off. Recurrent layers stay as they are: cuDNN has no backward for them otherwise."""
    for module in modules_of(model).values():
        for part in module.modules():
            if not isinstance(part, nn.RNNBase):
                part.training = False


def _listed(optimizer: Any) -> list[Optimizer]:
    given = list(optimizer.values()) if isinstance(optimizer, Mapping) else optimizer
    given = given if isinstance(given, list | tuple) else [given]
    if not given:
        raise UsageError("audit() needs at least one optimizer; found an empty list")
    try:
        return [hooks.unwrap(one) for one in given]
    except TypeError as problem:
        raise UsageError(f"audit() takes torch optimizers; {problem}") from problem
