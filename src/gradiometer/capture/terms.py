"""A loss as the sum of its terms: what may be one, their sum, and each one's gradient from the same forward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn.parameter import is_lazy

from gradiometer.capture import graphhooks
from gradiometer.capture.randomness import RandomState
from gradiometer.errors import UsageError

__all__ = [
    "Split",
    "Term",
    "Untouched",
    "awaits_first_backward",
    "gradients",
    "has_user_hooks",
    "leaves",
    "resolve",
    "total",
]

Function: TypeAlias = Callable[[Tensor], Tensor]
Term: TypeAlias = Tensor | Function


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What one call of `meter.terms` was given, the functions of the advantages evaluated at their sum."""

    terms: Mapping[str, Tensor]
    functions: Mapping[str, Function]
    advantages: Mapping[str, Tensor]
    """By reward; empty when the call was not about rewards."""
    random: RandomState | None
    """As it was before the functions ran, for those who run them again."""


def resolve(given: Mapping[str, Term], advantages: Mapping[str, Tensor] | None = None) -> Split:
    """Check everything, then evaluate the functions in the order given: the same with and without the meter."""
    if not given:
        raise UsageError("meter.terms() needs at least one term, e.g. meter.terms(policy=pg_loss, value=0.5 * v_loss)")
    functions = {name: term for name, term in given.items() if not isinstance(term, Tensor) and callable(term)}
    _check_terms({name: term for name, term in given.items() if name not in functions})
    _check_names("term", given)
    _check_advantages(advantages, functions)
    by_reward = dict(advantages or {})
    if not functions:
        return Split(terms=dict(given), functions={}, advantages=by_reward, random=None)  # type: ignore[arg-type]
    random, summed = RandomState.now(), total(by_reward.values())
    terms = {name: functions[name](summed) if name in functions else term for name, term in given.items()}
    _check_terms(terms)
    return Split(terms=terms, functions=functions, advantages=by_reward, random=random)  # type: ignore[arg-type]


def _check_terms(terms: Mapping[str, object]) -> None:
    """Refuse what cannot be a loss term. A tensor without a gradient path is not refused: it is what we look for."""
    seen: dict[int, str] = {}
    for name, term in terms.items():
        if not isinstance(term, Tensor):
            raise UsageError(
                f"term {name!r} is a {type(term).__name__}, not a tensor; drop .item() or wrap it in a tensor"
            )
        if term.numel() != 1:
            raise UsageError(
                f"term {name!r} has shape {tuple(term.shape)}; reduce it to a scalar with .mean() or .sum()"
            )
        if id(term) in seen:
            raise UsageError(f"terms {seen[id(term)]!r} and {name!r} are the same tensor, which would count it twice")
        seen[id(term)] = name


def _check_names(kind: str, names: Iterable[str]) -> None:
    for name in names:
        if not isinstance(name, str) or "/" in name or "~" in name:
            raise UsageError(f"{kind} name {name!r} holds a slash or a tilde; choose a plain word such as 'policy'")


def _check_advantages(advantages: Mapping[str, Tensor] | None, functions: Mapping[str, Function]) -> None:
    """One tensor a reward, all of one shape; the loss must hang on them in a way that autograd can follow."""
    if advantages is None:
        if functions:
            raise UsageError(
                f"term {next(iter(functions))!r} is a function, but there are no advantages to call it with; "
                "give advantages={'correct': a1, 'format': a2}, or the loss itself"
            )
        return
    if not isinstance(advantages, Mapping) or not advantages:
        found = "nothing in it" if isinstance(advantages, Mapping) else type(advantages).__name__
        raise UsageError(f"advantages is a mapping of reward to tensor, {{'correct': a1, ...}}; found {found}")
    _check_names("reward", advantages)
    shapes: dict[str, tuple[int, ...]] = {}
    seen: dict[int, str] = {}
    for name, tensor in advantages.items():
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            found = f"of {tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise UsageError(f"the advantages of {name!r} are a tensor of floating point numbers; found {found}")
        if id(tensor) in seen:
            raise UsageError(f"rewards {seen[id(tensor)]!r} and {name!r} have the same tensor of advantages")
        shapes[name], seen[id(tensor)] = tuple(tensor.shape), name
    if len(set(shapes.values())) > 1:
        found = ", ".join(f"{name!r} {shape}" for name, shape in shapes.items())
        raise UsageError(f"the advantages of all rewards have one shape; found {found}")
    outside = [name for name, tensor in advantages.items() if not tensor.requires_grad]
    if outside and not functions:
        raise UsageError(
            f"the advantages of {outside[0]!r} are not in the graph of the loss, so nothing can be split by reward. "
            "Either give the policy term as a function of the summed advantages, "
            "policy=lambda advantages: ppo_loss(ratio, advantages); or call .requires_grad_() on the advantages of "
            "each reward before you add them up"
        )


def total(terms: Iterable[Tensor]) -> Tensor:
    """The sum in the order given, the same with and without the meter."""
    first, *others = terms
    loss = first
    for term in others:
        loss = loss + term
    return loss


def gradients(term: Tensor, parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """d term/d parameter, None where there is no path. The graph is kept for the real backward."""
    found: list[Tensor | None] = [None] * len(parameters)
    if term.requires_grad:
        trained = [i for i, p in enumerate(parameters) if p.requires_grad]
        inputs, outside = [parameters[i] for i in trained], torch.ones_like(term)
        grads = torch.autograd.grad(term, inputs, grad_outputs=outside, retain_graph=True, allow_unused=True)
        for i, grad in zip(trained, grads, strict=True):
            found[i] = grad
    return found


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


class Untouched:
    """What a backward of ours may change, as it was: generators, buffers of the watched modules, retained gradients.

    A checkpointed forward runs again in every backward: running statistics count it, power iterations go on, dropout draws.
    """

    def __init__(self, model: Iterable[nn.Module]) -> None:
        self._random = RandomState.now()
        parts = {id(part): part for root in model for part in root.modules()}
        self._buffers = [(part, dict(part._buffers)) for part in parts.values()]
        held = {id(buffer): buffer for _, buffers in self._buffers for buffer in buffers.values() if buffer is not None}
        self._values = [
            (buffer, buffer.detach().clone(), _unsafe_preserve_version_counter(buffer))
            for buffer in held.values()
            if _may_change(buffer)
        ]
        self._grads = [(tensor, tensor.grad) for tensor in graphhooks.retained()]

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
            # By way of .data, and with the count of changes as it was: a graph may hold the buffer, and looks at the count.
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
    """DDP with a static graph learns it from the first backward that comes, which must be the user's."""
    static = isinstance(module, nn.parallel.DistributedDataParallel) and module.static_graph
    return bool(static) and not module._static_graph_delay_allreduce_enqueued


def has_user_hooks(model: Iterable[nn.Module], parameters: Iterable[Tensor]) -> bool:
    """Whether the user listens to backward himself: a second backward would call him twice."""
    on_parameters = any(getattr(p, "_backward_hooks", None) for p in parameters)
    return on_parameters or any(
        getattr(part, "_backward_hooks", None) or getattr(part, "_backward_pre_hooks", None)
        for root in model
        for part in root.modules()
    )
