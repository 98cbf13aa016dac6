"""A loss as the sum of its terms: checks, the sum, and each term's and reward's gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.autograd.graph import GradientEdge
from torch.nn.parameter import is_lazy

from gradiometer.capture import hooks
from gradiometer.capture.randomness import RandomState, replayed
from gradiometer.errors import UsageError

__all__ = [
    "Contributions",
    "Edge",
    "GraphPart",
    "SavedState",
    "Split",
    "Term",
    "awaits_first_backward",
    "contributions",
    "gradients",
    "has_user_hooks",
    "leaves",
    "resolve",
    "total",
    "value_of",
]


class Edge(NamedTuple):
    """A place in the graph of a loss, and what arrives there from it."""

    node: Any
    number: int
    slope: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPart:
    """A part of a loss that was found in its graph (capture/schematic.py)."""

    name: str
    role: str | None
    """What it is for, where that can be told."""
    edges: tuple[Edge, ...]
    """None of a part without a gradient."""
    value: Tensor | None
    """What it adds to the loss; None where it is not known."""
    coefficient: float | None
    """What the named value is multiplied by."""
    named_by: str

    @property
    def requires_grad(self) -> bool:
        """Whether it has a gradient at all."""
        return bool(self.edges)

    def together(self, other: GraphPart) -> GraphPart:
        """Two parts of one name."""
        a, b, same = self.value, other.value, self.coefficient == other.coefficient
        return replace(
            self,
            edges=self.edges + other.edges,
            value=None if a is None or b is None else a + b.to(a),
            coefficient=self.coefficient if same else None,
        )


Function: TypeAlias = Callable[[Tensor], Tensor]
Term: TypeAlias = Tensor | Function


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One call of `meter.terms`, its functions evaluated at the summed advantages; or the parts of
    a loss as its graph has them."""

    terms: Mapping[str, Tensor | GraphPart]
    functions: Mapping[str, Function]
    advantages: Mapping[str, Tensor]
    """By reward; empty when the call was not about rewards."""
    random: RandomState | None
    """As it was before the functions ran, for those who run them again."""
    leaves: tuple[Tensor, ...] | None = None
    """Below the loss, where its graph was walked."""
    whole: GraphPart | None = None
    """The loss itself, where its parts were found in its graph."""
    tolerance: float | None = None
    """How far those may be from the whole gradient."""
    strangers: frozenset[str] = frozenset()
    """Operations below it with a backward of somebody's own."""

    @property
    def automatic(self) -> bool:
        """Found in the graph of a loss, and not given by hand."""
        return self.whole is not None

    @property
    def given(self) -> list[Tensor]:
        """The terms of a call of `meter.terms`; none of those found in a graph."""
        return [term for term in self.terms.values() if isinstance(term, Tensor)]


def resolve(given: Mapping[str, Term], advantages: Mapping[str, Tensor] | None = None) -> Split:
    """Check all, then evaluate the functions in order, the same as without the meter."""
    if not given:
        raise UsageError(
            "meter.terms() needs at least one term, e.g. meter.terms(policy=pg_loss, value=0.5 *"
            " v_loss)"
        )
    functions = {
        name: term
        for name, term in given.items()
        if not isinstance(term, Tensor) and callable(term)
    }
    _check_terms({name: term for name, term in given.items() if name not in functions})
    _check_names("term", given)
    _check_advantages(advantages, functions)
    by_reward = dict(advantages or {})
    if not functions:
        return Split(terms=dict(given), functions={}, advantages=by_reward, random=None)  # type: ignore[arg-type]
    random, summed = RandomState.now(), total(by_reward.values())
    terms = {
        name: functions[name](summed) if name in functions else term for name, term in given.items()
    }
    _check_terms(terms)
    return Split(terms=terms, functions=functions, advantages=by_reward, random=random)  # type: ignore[arg-type]


def _check_terms(terms: Mapping[str, object]) -> None:
    """Refuse what cannot be a term. One without a gradient path is what we look for."""
    seen: dict[int, str] = {}
    for name, term in terms.items():
        if not isinstance(term, Tensor):
            raise UsageError(
                f"term {name!r} is a {type(term).__name__}, not a tensor; drop .item() or wrap it"
                " in a tensor"
            )
        if term.numel() != 1:
            raise UsageError(
                f"term {name!r} has shape {tuple(term.shape)}; reduce it to a scalar with .mean()"
                " or .sum()"
            )
        if id(term) in seen:
            raise UsageError(
                f"terms {seen[id(term)]!r} and {name!r} are the same tensor, which would count it"
                " twice"
            )
        seen[id(term)] = name


def _check_names(kind: str, names: Iterable[str]) -> None:
    for name in names:
        if not isinstance(name, str) or "/" in name or "~" in name:
            raise UsageError(
                f"{kind} name {name!r} holds a slash or a tilde; choose a plain word such as"
                " 'policy'"
            )


def _check_advantages(
    advantages: Mapping[str, Tensor] | None, functions: Mapping[str, Function]
) -> None:
    """One tensor a reward, all of one shape, that autograd can reach from the loss."""
    if advantages is None:
        if functions:
            raise UsageError(
                f"term {next(iter(functions))!r} is a function, but there are no advantages to call"
                " it with; give advantages={'correct': a1, 'format': a2}, or the loss itself"
            )
        return
    if not isinstance(advantages, Mapping) or not advantages:
        found = "nothing in it" if isinstance(advantages, Mapping) else type(advantages).__name__
        raise UsageError(
            f"advantages is a mapping of reward to tensor, {{'correct': a1, ...}}; found {found}"
        )
    _check_names("reward", advantages)
    shapes: dict[str, tuple[int, ...]] = {}
    seen: dict[int, str] = {}
    for name, tensor in advantages.items():
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            found = f"of {tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise UsageError(
                f"the advantages of {name!r} are a tensor of floating point numbers; found {found}"
            )
        if id(tensor) in seen:
            raise UsageError(
                f"rewards {seen[id(tensor)]!r} and {name!r} have the same tensor of advantages"
            )
        shapes[name], seen[id(tensor)] = tuple(tensor.shape), name
    if len(set(shapes.values())) > 1:
        found = ", ".join(f"{name!r} {shape}" for name, shape in shapes.items())
        raise UsageError(f"the advantages of all rewards have one shape; found {found}")
    outside = [name for name, tensor in advantages.items() if not tensor.requires_grad]
    if outside and not functions:
        raise UsageError(
            f"the advantages of {outside[0]!r} are not in the graph of the loss, so nothing can be"
            " split by reward. Either give the policy term as a function of the summed advantages,"
            " policy=lambda advantages: ppo_loss(ratio, advantages); or call .requires_grad_() on"
            " the advantages of each reward before you add them up"
        )


def total(terms: Iterable[Tensor]) -> Tensor:
    """The sum in the order given, the same with and without the meter."""
    first, *others = terms
    loss = first
    for term in others:
        loss = loss + term
    return loss


def gradients(term: Tensor | GraphPart, parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """d term/d parameter, None where there is no path. The graph is kept for the real backward."""
    found: list[Tensor | None] = [None] * len(parameters)
    if term.requires_grad:
        trained = [i for i, p in enumerate(parameters) if p.requires_grad]
        inputs = [parameters[i] for i in trained]
        places: list[Any] = [term]
        if isinstance(term, GraphPart):
            places = [GradientEdge(edge.node, edge.number) for edge in term.edges]
            slopes = [edge.slope for edge in term.edges]
        else:
            slopes = [torch.ones_like(term)]
        grads = torch.autograd.grad(
            places, inputs, grad_outputs=slopes, retain_graph=True, allow_unused=True
        )
        for i, grad in zip(trained, grads, strict=True):
            found[i] = grad
    return found


def value_of(term: Tensor | GraphPart) -> Tensor | None:
    """What a term adds to the loss, where that is known."""
    return term.value if isinstance(term, GraphPart) else term


def leaves(terms: Iterable[Tensor]) -> list[Tensor]:
    """The leaves of the graph behind the terms, found by walking it: no gradient is computed."""
    found = [term for term in terms if term.grad_fn is None and term.requires_grad]
    waiting = [term.grad_fn for term in terms if term.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if type(node).__name__ == "AccumulateGrad":
            found.append(node.variable)  # type: ignore[attr-defined]
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return found


class SavedState:
    """What a backward of ours may change, as it was: generators, buffers, retained gradients.

    A checkpointed forward runs again in every backward: running statistics count it, power
    iterations go on, dropout draws.
    """

    def __init__(self, model: Iterable[nn.Module]) -> None:
        self._random = RandomState.now()
        parts = {id(part): part for root in model for part in root.modules()}
        self._buffers = [(part, dict(part._buffers)) for part in parts.values()]
        listed = [buffer for _, buffers in self._buffers for buffer in buffers.values()]
        held = {id(buffer): buffer for buffer in listed if buffer is not None}
        self._values = [
            (buffer, buffer.detach().clone(), _unsafe_preserve_version_counter(buffer))
            for buffer in held.values()
            if _may_change(buffer)
        ]
        self._grads = [(tensor, tensor.grad) for tensor in hooks.retained()]

    def rewind(self) -> None:
        """Between two passes, so that each sees what the real backward will see."""
        self._random.restore_torch()
        for part, buffers in self._buffers:
            for name in [name for name in part._buffers if name not in buffers]:
                del part._buffers[name]
            for name, buffer in buffers.items():
                if part._buffers.get(name, part) is not buffer:
                    part._buffers[name] = buffer
        for buffer, value, version in self._values:
            # By way of .data, and with the count of changes as it was: a graph may hold the buffer,
            # and looks at the count.
            buffer.data.copy_(value)
            version.__exit__()

    def restore(self) -> None:
        """Everything, when the passes are over."""
        self.rewind()
        self._random.restore()
        for tensor, grad in self._grads:
            tensor.grad = grad


def _may_change(buffer: Tensor) -> bool:
    """Neither a lazy module's empty place, nor one that torch lets nobody write to."""
    if is_lazy(buffer) or buffer.is_inference():
        return False
    return buffer.layout != torch.strided or 0 not in buffer.stride()


def awaits_first_backward(module: nn.Module) -> bool:
    """DDP with a static graph learns it from the first backward: the user's, please."""
    static = isinstance(module, nn.parallel.DistributedDataParallel) and module.static_graph
    return bool(static) and not module._static_graph_delay_allreduce_enqueued


def has_user_hooks(model: Iterable[nn.Module], parameters: Iterable[Tensor]) -> bool:
    """Whether the user listens to backward himself: a second backward would call him twice."""
    on_parameters = any(
        not isinstance(hook, hooks.OWN)
        for p in parameters
        for hook in (getattr(p, "_backward_hooks", None) or {}).values()
    )
    return on_parameters or any(
        getattr(part, "_backward_hooks", None) or getattr(part, "_backward_pre_hooks", None)
        for root in model
        for part in root.modules()
    )


# Which reward pushes the policy where. For a loss that is linear, or piecewise linear, in the
# advantages a = Σ a_r (policy gradient, PPO's clip, dual clip):
#
#     u = d loss/d a,     contribution of r = d <u(θ), a_r>/dθ,     Σ_r contribution = d loss/dθ
#
# The active set of a clip is that of the whole loss. Only the few operations between the ratio and
# the loss are differentiated twice; through the model it is one ordinary backward a reward.


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributions:
    """<u, a_r> of each reward, to be differentiated; None where it has no part in the loss."""

    dots: dict[str, Tensor | None]
    terms: tuple[str, ...]
    """The terms that the advantages enter."""


def contributions(split: Split) -> Contributions:
    """Scalars whose gradients are the rewards' contributions, from the graph of the loss.

    Functions of the advantages run a second time, on leaves of their own, with the random numbers
    of the first time: the graph of the user's loss stays as it is without us.
    """
    places = list(split.advantages.values())
    probed = {
        name: term
        for name, term in split.terms.items()
        if isinstance(term, Tensor) and term.requires_grad
    }
    if split.functions:
        assert split.random is not None
        places = [a.detach().requires_grad_() for a in places]
        summed = total(places) if len(places) > 1 else places[0].clone()
        with replayed(split.random):
            probed = {name: function(summed) for name, function in split.functions.items()}
    dots: dict[str, Tensor | None] = dict.fromkeys(split.advantages)
    entered: list[str] = []
    for name, loss in probed.items():
        if not loss.requires_grad:
            continue
        slopes = torch.autograd.grad(
            loss, places, grad_outputs=torch.ones_like(loss), create_graph=True, allow_unused=True
        )
        if any(slope is not None for slope in slopes):
            entered.append(name)
        for reward, place, slope in zip(split.advantages, places, slopes, strict=True):
            if slope is not None:
                dot, held = (slope * place.detach()).sum(), dots[reward]
                dots[reward] = dot if held is None else held + dot
    return Contributions(dots=dots, terms=tuple(entered))
