"""The wiring of a loss: which term reaches which parameter, who trains it, and when it is clipped.

What reaches what is proved from the graph alone: one backward a term, and `.grad` is not written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from gradiometer.capture import terms as splitting
from gradiometer.capture.blocks import Blocks
from gradiometer.capture.hooks import ClipCall, observe_clips
from gradiometer.capture.leaks import GraphTerm, leak_words, leaves_of, value_heads
from gradiometer.capture.proofs import ProofLog
from gradiometer.capture.randomness import RandomState
from gradiometer.capture.roles import copies_among
from gradiometer.capture.structure import walk
from gradiometer.capture.untrained import untrained, whole_blocks
from gradiometer.doctor.terms import role_of
from gradiometer.errors import UsageError
from gradiometer.maths import gram
from gradiometer.maths.vectors import vectors_for
from gradiometer.probes.auditcheck import (
    About,
    Check,
    failed,
    few,
    num_arguments,
    passed,
    skipped,
    tolerance,
)
from gradiometer.probes.auditproofs import ProofEvents

__all__ = [
    "DEAD_REFERENCES",
    "LOSS",
    "SCALE",
    "Audited",
    "Cell",
    "ClipWatch",
    "Reach",
    "Terms",
    "checked",
    "clip_before_unscale",
    "clip_check",
    "evaluated",
    "frozen_check",
    "graph_checks",
    "hidden_term",
    "reach_of",
    "scale_now",
    "two_optimizers_check",
    "unreached",
    "untrained_places",
    "wiring",
]

Terms = Callable[..., Mapping[str, Tensor]]

LOSS = "loss|"
"""The name of the whole loss among the terms: no term can be called so."""
DEAD_REFERENCES = ("TRL #5595", "mlx-lm-lora #50", "NeMo-RL #3792")
CONTROL = 5  # times the error of the same decomposition done twice: docs/mathematics.md#additivity
SCALE: About = ("clip-before-unscale", "clip after unscale")
LEAST_SCALE = 16.0  # a factor below may be an accumulation's
UNSCALED = 1  # OptState.UNSCALED of torch.amp.grad_scaler, private; READY is 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """The parameters, blocks and optimizers that an audit looks at."""

    named: Mapping[str, nn.Parameter]
    blocks: Blocks
    optimizers: Sequence[Optimizer]

    @property
    def names(self) -> list[str]:
        """Of the parameters, in order."""
        return list(self.named)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """In order."""
        return list(self.named.values())

    def members(self) -> dict[str, tuple[int, ...]]:
        """Every block's parameters by place."""
        return dict(zip(self.blocks.names, self.blocks.members, strict=True))

    def named_blocks(self) -> list[str]:
        """Without `all` and without the layers."""
        return list(self.blocks.names[1 : self.blocks.num_named])

    def holders(self) -> dict[int, int]:
        """How many optimizers hold a parameter, by its id."""
        count: dict[int, int] = {}
        for optimizer in self.optimizers:
            for one in {id(p) for group in optimizer.param_groups for p in group["params"]}:
                count[one] = count.get(one, 0) + 1
        return count


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A term on a block: a gradient arrives (`path`), exactly zero arrives (`zero`), or `none`."""

    state: Literal["path", "zero", "none"]
    norm: float | None
    """None where there is no path: missing is not zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The gradients of the terms at these weights, as products."""

    terms: tuple[str, ...]
    losses: Mapping[str, float]
    paths: Mapping[str, frozenset[int]]
    """By term, the parameters with a gradient path."""
    outside: Mapping[str, tuple[nn.Parameter, ...]]
    """By term, parameters that are not the model's: the temperature of SAC, say."""
    products: NDArray[np.float64]
    """[parameters, terms, terms]; where the whole loss is among the terms, it is the last."""
    tolerance: float

    def squares(self, term: str) -> NDArray[np.float64]:
        """‖g‖² of each parameter, [parameters]."""
        at = self.terms.index(term)
        return np.asarray(self.products[:, at, at])

    def cell(self, term: str, members: Sequence[int]) -> Cell:
        """A term on some parameters."""
        there = [i for i in members if i in self.paths[term]]
        if not there:
            return Cell(state="none", norm=None)
        square = self.squares(term)[there]
        state: Literal["path", "zero"] = "path" if (square != 0).any() else "zero"
        return Cell(state=state, norm=float(np.sqrt(square.sum())))


def evaluated(
    function: Callable[..., Any], batch: Mapping[str, Tensor] | None, random: RandomState, what: str
) -> Any:
    """Call it with the batch if it wants one, with the random numbers of the first time."""
    wanted = num_arguments(function)
    if wanted > 1 or (wanted == 1 and batch is None):
        raise UsageError(
            f"{what} takes {wanted} arguments: give batch= for one that takes a batch, or take none"
        )
    random.restore()
    with torch.enable_grad():
        return function(batch) if wanted else function()


def checked(found: Any) -> dict[str, Tensor]:
    """What terms() gave, if it can be a loss."""
    if not isinstance(found, Mapping) or not found:
        kind = "an empty mapping" if isinstance(found, Mapping) else type(found).__name__
        raise UsageError(
            "terms() gives a mapping of names to loss tensors, {'policy': ..., 'value': ...};"
            f" found {kind}"
        )
    return dict(zip(found, splitting.resolve(found).given, strict=True))


def reach_of(
    terms: Mapping[str, Tensor], parameters: Sequence[nn.Parameter], *, memory_limit: int
) -> Reach:
    """One backward a term, from the forward that is there; `.grad` is not written."""
    vectors = vectors_for(parameters, expected=len(terms), memory_limit=memory_limit)
    paths: dict[str, frozenset[int]] = {}
    for name, term in terms.items():
        gradients = splitting.gradients(term, parameters)
        paths[name] = frozenset(i for i, gradient in enumerate(gradients) if gradient is not None)
        vectors.add(name, gradients)
    return Reach(
        terms=tuple(terms),
        losses={name: float(term.detach()) for name, term in terms.items()},
        paths=paths,
        outside={name: _outside(term, parameters) for name, term in terms.items()},
        products=vectors.products(list(terms)).cpu().numpy(),
        tolerance=tolerance(terms.values(), parameters),
    )


def _outside(term: Tensor, parameters: Iterable[Tensor]) -> tuple[nn.Parameter, ...]:
    ours = {id(p) for p in parameters}
    leaves = splitting.leaves([term])
    return tuple(p for p in leaves if isinstance(p, nn.Parameter) and id(p) not in ours)


def wiring(audited: Audited, reach: Reach) -> Iterator[Check]:
    """Everything that the reach matrix and the optimizers' lists prove."""
    yield from _dead_terms(audited, reach)
    yield _finite(audited, reach)
    yield _dead_blocks(audited, reach)
    yield _in_no_optimizer(audited, reach)
    yield two_optimizers_check(audited)
    yield frozen_check(audited)


def _dead_terms(audited: Audited, reach: Reach) -> Iterator[Check]:
    about = ("dead-term", "every term has a gradient")
    every = range(len(audited.named))
    dead = [term for term in reach.terms if not reach.paths[term] and not reach.outside[term]]
    for term in dead:
        yield failed(
            about,
            "critical",
            f"the term {term!r} ({reach.losses[term]:.4g}) has no gradient path to any parameter:"
            " it changes the loss and not the weights",
            f"compute {term!r} outside torch.no_grad(), without .detach(), .item(), .data or"
            " argmax, from the logits of this forward",
            numbers={"term": term, "loss": reach.losses[term]},
            confirm=f"multiply the coefficient of {term!r} by 100: if the gradient is the same, the"
            " term is dead",
            references=DEAD_REFERENCES,
        )
    if not dead:
        yield passed(about, f"{few(reach.terms)}: each reaches a parameter")
    still = [term for term in reach.terms if reach.cell(term, every).state == "zero"]
    if still:
        yield passed(
            ("dead-term", "stationary terms"),
            f"{few(still)}: there is a path and the gradient is exactly zero. That is right where π"
            " = π_ref, or where every advantage is zero; if neither is so, look at it again after"
            " the first steps",
            terms=still,
        )
    elsewhere = [term for term in reach.terms if reach.outside[term] and not reach.paths[term]]
    if elsewhere:
        yield passed(
            ("dead-term", "terms of other parameters"),
            f"{few(elsewhere)}: only parameters outside this model feel it",
        )


def _finite(audited: Audited, reach: Reach) -> Check:
    about = ("nonfinite-gradient", "gradients are finite")
    bad: dict[str, list[int]] = {}
    for term in reach.terms:
        finite = np.isfinite(reach.squares(term))
        if places := [i for i in sorted(reach.paths[term]) if not finite[i]]:
            bad[term] = places
    if not bad:
        return passed(about, "no NaN and no Inf in any term's gradient")
    guilty, places = next(iter(bad.items()))
    return failed(
        about,
        "critical",
        f"the gradient of {few(bad)} is not finite, first in {audited.names[places[0]]}; the loss"
        f" is {reach.losses[guilty]:.4g}",
        "look for log(0), 0/0, a division by a std of one sample or a masked -inf in that term",
        numbers={term: len(places) for term, places in bad.items()},
    )


def _dead_blocks(audited: Audited, reach: Reach) -> Check:
    """A block that could be trained and that no term feels; a gradient of zero (LoRA) is fine."""
    about = ("dead-block", "every block is reached")
    trained = {i for i, p in enumerate(audited.parameters) if p.requires_grad}
    dead, layers = unreached(audited, trained, frozenset().union(*reach.paths.values()))
    named = [block for block in dead if block != "all"]
    if not dead and not layers:
        number = len(audited.blocks.names) - 1 or 1
        return passed(about, f"a gradient path leads to each of {number} blocks and layers")
    what = f"the block {few(named)}" if named else f"{len(layers)} of the layers ({few(layers)})"
    return failed(
        about,
        "critical" if named else "info",
        f"no term has a gradient path to {what}: it will stay as it is",
        "use its output in a term, outside no_grad and detach; or leave it out:"
        " requires_grad_(False)",
        "if a term is missing from this audit (the value loss?), give it in terms",
        numbers={"blocks": named, "layers": layers},
        block=named[0] if named else f"layer.{layers[0]}",
    )


def unreached(
    audited: Audited, trained: set[int], reached: Collection[int]
) -> tuple[list[str], list[str]]:
    """The named blocks, and the layers, that have trained parameters and of them none reached."""
    dead = []
    for block, members in audited.members().items():
        inside = trained & set(members)
        if inside and not any(i in reached for i in members):
            dead.append(block)
    layers = [block.removeprefix("layer.") for block in dead if block.startswith("layer.")]
    return [block for block in dead if not block.startswith("layer.")], layers


def _in_no_optimizer(audited: Audited, reach: Reach) -> Check:
    about = ("not-in-optimizer", "what has a gradient is trained")
    holders, reached = audited.holders(), frozenset().union(*reach.paths.values())
    lost = untrained_places(audited, reached)
    strangers = {id(p) for term in reach.terms for p in reach.outside[term]} - set(holders)
    if not lost and not strangers:
        return passed(
            about, f"all {len(reached)} parameters that get a gradient are in an optimizer"
        )
    whole = whole_blocks(audited.blocks, audited.parameters, lost)
    names = few([audited.names[i] for i in lost])
    what = names if lost else f"{len(strangers)} parameters that are not the model's"
    return failed(
        about,
        "critical" if whole or len(lost) > len(reached) / 2 else "warn",
        f"{len(lost) + len(strangers)} parameters get a gradient and are in no optimizer: {what}"
        + (f" (the whole block {few(whole)})" if whole else ""),
        "give them to an optimizer: add_param_group, or make the optimizer after the layers are"
        " made or replaced",
        "if another optimizer trains them, pass it to the audit too; if nobody should,"
        " requires_grad_(False)",
        numbers={"parameters": len(lost), "outside": len(strangers), "blocks": whole},
        block=whole[0] if whole else None,
    )


def untrained_places(audited: Audited, reached: Collection[int]) -> list[int]:
    """Parameters with a gradient that no optimizer holds; a target network is not to join one."""
    holders = audited.holders()
    copies = copies_among(audited.named, holders)
    return untrained(audited.parameters, audited.names, reached, holders, copies)


def two_optimizers_check(audited: Audited) -> Check:
    """Shared parameters that several optimizers move."""
    about = ("not-in-optimizer", "one optimizer each")
    holders = audited.holders()
    twice = [name for name, p in audited.named.items() if holders.get(id(p), 0) > 1]
    if not twice:
        return passed(about, f"no parameter is in two of {len(audited.optimizers)} optimizers")
    return failed(
        about,
        "warn",
        f"{len(twice)} parameters are in more than one optimizer ({few(twice)}): each step moves"
        " them again, with momentum of its own",
        "give shared parameters to one of the optimizers, and sum the losses before one backward",
        numbers={"parameters": len(twice)},
    )


def frozen_check(audited: Audited) -> Check:
    """An optimizer that holds what is frozen: fine for a few tensors, strange for a whole block."""
    about = ("dead-block", "nothing frozen by mistake")
    holders, members = audited.holders(), audited.members()
    parameters = enumerate(audited.parameters)
    frozen = {i for i, p in parameters if not p.requires_grad and id(p) in holders}
    if not frozen:
        return passed(about, "no optimizer holds a frozen parameter")
    whole = [block for block in audited.named_blocks() if set(members[block]) <= frozen]
    if not whole:
        names = few([audited.names[i] for i in sorted(frozen)])
        return passed(
            about,
            f"{len(frozen)} frozen parameters are in an optimizer ({names})",
            parameters=len(frozen),
        )
    return failed(
        about,
        "warn",
        f"the whole block {few(whole)} is frozen (requires_grad=False), and an optimizer holds it",
        f"requires_grad_(True) on {few(whole)} if it should learn; otherwise leave it out of the"
        " optimizer",
        numbers={"parameters": len(frozen), "blocks": whole},
        block=whole[0],
    )


def graph_checks(audited: Audited, terms: Mapping[str, Tensor]) -> Iterator[Check]:
    """What the graphs of the terms prove by themselves, as the meter reads them."""
    seen = ProofEvents()
    log = ProofLog(seen)
    walk([term.grad_fn for term in terms.values() if term.grad_fn is not None], log)
    _leak(audited, terms, log)
    yield from seen.checks(log)


def _leak(audited: Audited, terms: Mapping[str, Tensor], log: ProofLog) -> None:
    """A policy term that reaches the critic's head, which its own optimizer steps.

    With an optimizer each (SAC, TD3, DDPG) an actor's loss runs through a critic on purpose.
    """
    known = [
        GraphTerm(name=name, role=role_of(name), nodes=(term.grad_fn,))
        for name, term in terms.items()
        if term.grad_fn is not None
    ]
    policy = [term for term in known if term.role == "policy"]
    value = [term for term in known if term.role == "value"]
    if not policy or not value or len(audited.optimizers) > 1:
        return
    names = {id(p): name for name, p in audited.named.items()}
    for term in policy:
        below = leaves_of(term.nodes)
        for other in value:
            for head in value_heads(other.nodes):
                if id(head) in below:
                    log.found(*leak_words(term.name, other.name, names.get(id(head), "its head")))
                    return
    log.ok("leak-between-terms")


def hidden_term(reach: Reach | None, again: float) -> Check:
    """Whether the loss is the sum of its terms: ‖g − sΣg_c‖/‖g‖, with a common factor s fitted.

    `again` is the same error between the terms and the terms once more.
    """
    about = ("hidden-term", "the terms are the loss")
    if reach is None:
        return skipped(
            about, "pass loss=, a function that gives the loss on which you call backward()"
        )
    if again > reach.tolerance:
        return skipped(
            about,
            f"terms() gives another gradient when called again ({again:.2g}): let it use one batch",
        )
    error, scale = gram.additivity(reach.products.sum(0))  # the loss is the last of them
    if math.isnan(error):
        return skipped(
            about, "the loss or its terms have no finite gradient here: nothing to compare"
        )
    limit = max(reach.tolerance, CONTROL * again)
    numbers = {"additivity_error": error, "scale": scale, "limit": limit}
    if error > limit:
        return failed(
            about,
            "warn",
            f"{error:.1%} of the loss gradient comes from none of the terms: the loss has a term"
            " you did not name",
            "name every addend: auxiliary losses of a router, weight penalties, a KL inside the"
            " model's own loss",
            numbers=numbers,
            confirm="set the coefficient of the suspect to 0: the error falls to rounding",
            references=("Megatron-LM #5694",),
        )
    if scale < 0:
        return failed(
            about,
            "critical",
            f"the gradient of the loss is {scale:.4g} times that of the terms: a sign is turned",
            "the loss that goes backward and the terms must have the same sign",
            numbers=numbers,
        )
    factor = "" if abs(scale - 1) <= limit else f", times {scale:.4g}"
    return passed(
        about,
        f"the loss gradient is the sum of the terms{factor}, to {max(error, 1e-9):.1g}; a hidden"
        f" term below {limit:.0e} of it would not show",
        **numbers,
    )


class ClipWatch:
    """Told of clips: how large gradients are, and whether a scaler says they are still scaled."""

    def __init__(
        self, scalers: Callable[[], Iterable[Any]], optimizers: Callable[[], Iterable[Optimizer]]
    ) -> None:
        self._scalers, self._optimizers = scalers, optimizers
        self.clips = 0
        self.scaled: float | None = None
        """The scale of a clip that came too early."""
        self.norm_after: float | None = None
        self._clipped: tuple[Tensor, ...] = ()

    def before_clip(self, call: ClipCall) -> None:
        """Is anything of this scaled?"""
        self.clips += 1
        clipped = {id(p) for p in call.parameters}
        for optimizer in self._optimizers():
            held = {id(p) for group in optimizer.param_groups for p in group["params"]}
            if not clipped & held:
                continue
            for scaler in self._scalers():
                factor = scale_now(scaler)
                if factor not in (None, 1.0) and not _is_unscaled(scaler, optimizer):
                    self.scaled = factor

    def after_clip(self, call: ClipCall) -> None:
        """What the clip left."""
        self._clipped = call.parameters
        self.norm_after = _norm(call.parameters)

    def factor_since(self) -> float | None:
        """By how much the clipped gradients were divided since; None where there were none."""
        if not self.norm_after or not math.isfinite(self.norm_after):
            return None
        now = _norm(self._clipped)
        return self.norm_after / now if now > 0 else None


def scale_now(scaler: Any) -> float | None:
    """The scaler's factor; None when it is switched off or has not scaled a loss yet."""
    if not scaler.is_enabled() or getattr(scaler, "_scale", None) is None:
        return None
    return float(scaler.get_scale())


def _is_unscaled(scaler: Any, optimizer: Optimizer) -> bool:
    stage = scaler._per_optimizer_states[id(optimizer)]["stage"]
    return int(getattr(stage, "value", stage)) >= UNSCALED


def _norm(parameters: Iterable[Tensor]) -> float:
    norms = [torch.linalg.vector_norm(p.grad.double()) for p in parameters if p.grad is not None]
    return float(torch.stack(norms).norm()) if norms else 0.0


def clip_before_unscale(
    update: Callable[[], Any] | None, scaler: Any, optimizers: Sequence[Optimizer]
) -> Check:
    """Run one update of the training with its optimizers held back, and watch its clips."""
    if update is None:
        return skipped(
            SCALE,
            "pass update=, a function that does one update as your training does, and scaler= if it"
            " has one",
        )
    watch = ClipWatch(lambda: [] if scaler is None else [scaler], lambda: optimizers)
    factors: list[float | None] = []
    with _held_back(optimizers, lambda: factors.append(watch.factor_since())), _kept(scaler):
        remove = observe_clips(watch)
        try:
            with torch.enable_grad():
                update()
            scale = None if scaler is None else scale_now(scaler)
        finally:
            remove()
    if not factors:
        return skipped(SCALE, "update() took no optimizer step: nothing could be seen")
    return clip_check(watch, scale, max((f for f in factors if f is not None), default=None))


def clip_check(watch: ClipWatch, scale: float | None, factor: float | None) -> Check:
    """From what was seen at the clip, and by how much gradients shrank between it and the step."""
    if not watch.clips:
        return passed(
            SCALE, "no clip was seen" + (f"; the loss scale is {scale:g}" if scale else "")
        )
    found = watch.scaled
    if found is None and factor is not None and factor >= LEAST_SCALE and _is_power_of_two(factor):
        found = factor
    if found is None:
        how = f"unscaled first (the scale is {scale:g})" if scale else "not scaled"
        numbers = {"scale": scale} if scale else {}
        return passed(SCALE, f"gradients were {how} when they were clipped", **numbers)
    return failed(
        SCALE,
        "critical",
        f"gradients were clipped while {found:g} times too large: the threshold is in fact"
        f" {found:g} times smaller",
        "call scaler.unscale_(optimizer) after backward() and before clip_grad_norm_",
        numbers={"scale": found},
        confirm="print the total norm that the clip returns: it is that of the scaled gradients",
        references=("Lightning #9330", "Lightning #9694"),
    )


def _is_power_of_two(factor: float) -> bool:
    power = math.log2(factor)
    return abs(power - round(power)) < 1e-3


@contextmanager
def _held_back(optimizers: Sequence[Optimizer], stepping: Callable[[], None]) -> Iterator[None]:
    """Their steps do nothing but tell us; learning rates and the other options are as before."""
    before = [vars(optimizer).get("step") for optimizer in optimizers]
    options = [
        [{k: v for k, v in group.items() if k != "params"} for group in o.param_groups]
        for o in optimizers
    ]

    def step(closure: Callable[[], Any] | None = None, **_: Any) -> Any:
        loss = None if closure is None else closure()
        stepping()
        return loss

    for optimizer in optimizers:
        optimizer.step = step  # type: ignore[method-assign]
    try:
        yield
    finally:
        for optimizer, own, groups in zip(optimizers, before, options, strict=True):
            if own is None:
                del optimizer.step
            else:
                optimizer.step = own  # type: ignore[method-assign]
            for group, kept in zip(optimizer.param_groups, groups, strict=True):
                group.update(kept)


@contextmanager
def _kept(scaler: Any) -> Iterator[None]:
    """The scale, its growth and its notes about optimizers as they were."""
    if scaler is None:
        yield
        return
    held = {
        name: value.clone() if isinstance(value, Tensor) else value
        for name, value in vars(scaler).items()
    }
    notes = {key: dict(value) for key, value in scaler._per_optimizer_states.items()}
    # The gradients of which it has notes are out of reach meanwhile.
    scaler._per_optimizer_states.clear()
    try:
        yield
    finally:
        vars(scaler).update(held)
        scaler._per_optimizer_states.clear()
        scaler._per_optimizer_states.update(notes)
