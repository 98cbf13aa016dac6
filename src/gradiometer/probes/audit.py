"""The audit: is the loss wired right, before a night is spent on it?

One batch, no step, in seconds. Every check is ok, failed (with what to change) or skipped (with
what to pass). What is structural is proved from the graph: a term without an autograd path is dead,
a gradient that is zero for a reason is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from gradiometer.capture import hooks
from gradiometer.capture import terms as splitting
from gradiometer.capture.blocks import Model, Selector, find_blocks, modules_of, named_parameters
from gradiometer.capture.randomness import RandomState
from gradiometer.errors import UsageError
from gradiometer.maths import gram
from gradiometer.probes.auditcheck import Check, in_order, lines_of, verdict
from gradiometer.probes.auditpolicy import baseline_leak, policy_checks
from gradiometer.probes.auditwiring import (
    LOSS,
    Audited,
    Cell,
    Reach,
    Terms,
    checked,
    clip_before_unscale,
    evaluated,
    graph_checks,
    hidden_term,
    reach_of,
    wiring,
)
from gradiometer.probes.invariance import LossOf, Pad, invariance
from gradiometer.probes.stillness import check_whole, held_still, need_gradients, seed_everything
from gradiometer.records import Finding
from gradiometer.store.strictjson import plain

if TYPE_CHECKING:
    from gradiometer.capture.meter import Meter

__all__ = ["Audit", "audit"]

MEMORY_LIMIT = 2**30
FEWEST_SAMPLES = 8  # below, no sign vector is rare enough to be a proof
MOST_BLOCKS = 8  # columns of the printed matrix


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
        return [check.finding() for check in self.failed]

    def plain(self) -> dict[str, Any]:
        """As JSON; `meter.record({}, tables={"audit": audit.plain()})` keeps it in a run."""
        reach = {
            term: {block: {"state": cell.state, "norm": cell.norm} for block, cell in row.items()}
            for term, row in self.reach.items()
        }
        return {
            "checks": [check.plain() for check in self.checks],
            "reach": plain(reach),
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        parts = [*_matrix(self.reach), "", *lines_of(self.checks), "", verdict(self.checks)]
        return "\n".join(parts)


def _matrix(reach: Mapping[str, Mapping[str, Cell]]) -> list[str]:
    """Norms of the terms' gradients on the named blocks; where there are none, on the layers."""
    blocks = list(next(iter(reach.values())))
    named = [block for block in blocks if not block.startswith("layer.")]
    shown = named if len(named) > 1 else blocks[:MOST_BLOCKS]
    titles = ["gradient of", *(block.removeprefix("layer.") for block in shown)]
    rows = [titles, *([term, *(_shown(row[b]) for b in shown)] for term, row in reach.items())]
    widths = [max(len(row[i]) for row in rows) for i in range(len(titles))]
    first, *lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
    hidden = len(blocks) - len(shown) if len(named) == 1 else 0
    more = [f"and {hidden} more layers"] if hidden else []
    return [first, "─" * len(first), *lines, *more]


def _shown(cell: Cell) -> str:
    return "no path" if cell.norm is None else "0" if cell.state == "zero" else f"{cell.norm:.3g}"


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

    `terms()` gives the loss terms by name, coefficients included, `{"policy": pg, "value": 0.5 *
    vf}`; it is called again, with the same random numbers, and may take the `batch`. `optimizer` is
    all of them. `loss()` gives what goes backward, to look for a term you did not name. A check
    whose input is not given is skipped and says what to pass:

    `policy` has `sample() -> (actions, log_prob)`, called `samples` times, and may have `logits()`,
    `select(logits)`, `entropy()`, `num_actions` and `picks`. `micro_batches(rows)`, or
    `micro_batches(rows, parts)`, is the loss that goes backward for some rows of `batch`, when it
    is cut into `parts`; `pad(rows)` gives them with more padding. `baseline` is an object with
    `value()` and `update(reward)`, or one called with a reward that gives what is subtracted from
    it; a copy is fed, or what a function without arguments makes. `update()` does one update as the
    training does (backward, unscale, clip, step; no scheduler), with its optimizers held back, and
    `scaler` is its GradScaler.

    Weights, `.grad`, buffers, modes, random numbers of torch, numpy and Python, optimizers and
    scaler stay as they are; a torch.Generator of your own and a data loader you draw from do not.
    Your own hooks on the model fire. Under torch.distributed every rank calls this. With `meter`
    the result is kept in its run, as the table `audit`.
    """
    started = time.perf_counter()
    _check_arguments(terms, samples, seed)
    named, optimizers = named_parameters(model), _listed(optimizer)
    audited = Audited(named=named, blocks=find_blocks(named, blocks), optimizers=optimizers)
    with _untouched(model, named, optimizers):
        reach, checks = _wired(audited, terms, loss, batch, model, memory_limit)
        checks.append(clip_before_unscale(update, scaler, optimizers))
        _quiet(model)
        seed_everything(seed)
        parameters = audited.parameters
        checks += policy_checks(policy, parameters, samples=samples, memory_limit=memory_limit)
        checks += invariance(micro_batches, batch, pad, parameters)
        checks.append(baseline_leak(baseline, seed))
    members = audited.members()
    result = Audit(
        checks=in_order(checks),
        reach={t: {b: reach.cell(t, m) for b, m in members.items()} for t in reach.terms},
        seconds=time.perf_counter() - started,
    )
    if meter is not None:
        meter.record({}, tables={"audit": result.plain()})
    return result


def _check_arguments(terms: Any, samples: int, seed: int) -> None:
    check_whole("samples", samples, FEWEST_SAMPLES)
    check_whole("seed", seed, 0)
    need_gradients()
    if not callable(terms):
        raise UsageError(
            "terms is a function that gives the loss terms, so that it can be called again:"
            " terms=lambda: {...}"
        )


def _wired(
    audited: Audited,
    terms: Terms,
    loss: Callable[..., Tensor] | None,
    batch: Mapping[str, Tensor] | None,
    model: Model,
    memory_limit: int,
) -> tuple[Reach, list[Check]]:
    random, parameters = RandomState.now(), audited.parameters

    def evaluated_terms() -> dict[str, Tensor]:
        return checked(evaluated(terms, batch, random, "terms"))

    first = evaluated_terms()
    proved = list(graph_checks(audited, first))
    reach = reach_of(first, parameters, memory_limit=memory_limit)
    checks = [*wiring(audited, reach), *proved]
    del first
    if loss is None:
        return reach, [*checks, hidden_term(None, 0.0)]
    for part in _parts(model):  # two forwards draw in another order
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.training = False
    found = evaluated_terms()
    once_more = splitting.total(evaluated_terms().values())
    twice = reach_of({**found, LOSS: once_more}, parameters, memory_limit=memory_limit)
    again, _ = gram.additivity(twice.products.sum(0))
    total = evaluated(loss, batch, random, "loss")
    if not isinstance(total, Tensor) or total.numel() != 1:
        raise UsageError(
            "loss() gives the scalar tensor on which you call backward(); found"
            f" {type(total).__name__}"
        )
    against = {**found, LOSS: total.reshape(())}
    whole = reach_of(against, parameters, memory_limit=memory_limit)
    return reach, [*checks, hidden_term(whole, 0.0 if again != again else again)]


@contextmanager
def _untouched(
    model: Model, named: Mapping[str, nn.Parameter], optimizers: Sequence[Optimizer]
) -> Iterator[None]:
    """Held still, and `.grad` out of reach: a loss that calls backward() adds to nothing."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    others = [p for group in groups for p in group["params"]]
    held = list({id(p): p for p in [*others, *named.values()]}.values())
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
    now = zip(named.items(), versions, strict=True)
    moved = [name for (name, p), version in now if p._version != version]
    if moved:
        raise UsageError(
            f"a function given to the audit changed the weights ({moved[0]}): give ones that"
            " compute a loss and take no step"
        )


def _quiet(model: Model) -> None:
    """Dropout and running statistics off."""
    for part in _parts(model):
        if not isinstance(part, nn.RNNBase):  # cuDNN has no backward for them outside of training
            part.training = False


def _parts(model: Model) -> Iterator[nn.Module]:
    for module in modules_of(model).values():
        yield from module.modules()


def _listed(optimizer: Any) -> list[Optimizer]:
    given = list(optimizer.values()) if isinstance(optimizer, Mapping) else optimizer
    given = given if isinstance(given, list | tuple) else [given]
    if not given:
        raise UsageError("audit() needs at least one optimizer; found an empty list")
    try:
        return [hooks.unwrap(one) for one in given]
    except TypeError as problem:
        raise UsageError(f"audit() takes torch optimizers; {problem}") from problem
