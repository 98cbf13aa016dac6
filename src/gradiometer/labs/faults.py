"""The faults a lab can train with: each one changes a line of a real training, as someone once did by mistake.

A lab gathers the lines that may break in a frozen dataclass of pieces, plain functions each, and calls them from there.
A fault takes one healthy piece and returns the broken one, so the training itself reads as if no fault existed.
Labs give the same piece the same name, so one fault can serve several. This module is torch-free until a fault is used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from gradiometer.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from gradiometer.labs.prismatic.config import Config as PrismaticConfig

__all__ = ["FAULTS", "Fault", "apply", "fault", "faults_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A changed line, what it should look like to the doctor, and how to change it."""

    name: str
    labs: tuple[str, ...]
    piece: str
    """The field of the lab's pieces that changes; `config` for a wrong setting."""
    summary: str
    """What the line says now, and what follows."""
    expected: tuple[str, ...]
    """The finding ids any of which names this fault; empty if the doctor should stay silent."""
    catalogue: str
    """Its number in the failure catalogue."""
    needs: tuple[str, ...]
    """Overrides without which the lab does not have the line."""
    breaks: Callable[[Any], Any]
    """Healthy piece in, broken piece out."""


FAULTS: dict[str, Fault] = {}

Break = TypeVar("Break", bound=Callable[[Any], Any])
PiecesT = TypeVar("PiecesT")


def fault(
    name: str,
    *,
    labs: tuple[str, ...],
    piece: str,
    summary: str,
    expected: tuple[str, ...],
    catalogue: str,
    needs: tuple[str, ...] = (),
) -> Callable[[Break], Break]:
    """Register the decorated function as a fault."""

    def register(breaks: Break) -> Break:
        assert name not in {"none", *FAULTS}, f"fault {name!r} is registered twice"
        FAULTS[name] = Fault(
            name=name,
            labs=labs,
            piece=piece,
            summary=summary,
            expected=expected,
            catalogue=catalogue,
            needs=needs,
            breaks=breaks,
        )
        return breaks

    return register


def faults_of(lab: str) -> list[Fault]:
    """The faults that lab can train with."""
    return [each for each in FAULTS.values() if lab in each.labs]


def apply(name: str, lab: str, pieces: PiecesT) -> PiecesT:
    """The lab's pieces with that fault's line changed; `none` changes nothing."""
    if name == "none":
        return pieces
    known = {each.name: each for each in faults_of(lab)}
    if name not in known:
        elsewhere = FAULTS[name].labs if name in FAULTS else ()
        has = f"has: {', '.join(known)}" if known else "has no faults yet"
        hint = f"It is a fault of: {', '.join(elsewhere)}." if elsewhere else f"The {lab} lab {has}."
        raise UnknownName("fault", name, ["none", *known], hint=hint)
    chosen = known[name]
    broken = chosen.breaks(getattr(pieces, chosen.piece))
    return dataclasses.replace(pieces, **{chosen.piece: broken})  # type: ignore[type-var]


@fault(
    "entropy_no_grad",
    labs=("cartpole", "sokoban"),
    piece="entropy_of",
    summary="the entropy is computed under torch.no_grad(): the loss shows the bonus, no weight ever feels it",
    expected=("dead-term",),
    catalogue="F19",
)
def entropy_no_grad(entropy_of: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """As TRL once had it (pull requests 5595 and 5596)."""
    import torch

    def broken(logits: Tensor) -> Tensor:
        with torch.no_grad():
            return entropy_of(logits)

    return broken


@fault(
    "router_detached",
    labs=("prismatic",),
    piece="routing_weights_of",
    summary="the weight of an expert is divided by itself (topk) or detached (prismatic): the task never trains the router",
    expected=("router-untrained",),
    catalogue="F46",
)
def router_detached(
    routing_weights_of: Callable[[Tensor, PrismaticConfig], Tensor],
) -> Callable[[Tensor, PrismaticConfig], Tensor]:
    """As minimind once had it (issue 858): the weight of a top-1 expert, made to sum to 1, is 1 whatever the router says."""

    def broken(chosen: Tensor, config: PrismaticConfig) -> Tensor:
        if config.router_type == "topk":
            return chosen / (chosen + 1e-20) / config.top_k
        return routing_weights_of(chosen, config).detach()

    return broken


@fault(
    "expert_starved",
    labs=("prismatic",),
    piece="router_logits_of",
    summary="the last expert's logit is lowered by 20: the router cannot choose it, so it does not learn",
    expected=("expert-starved",),
    catalogue="F45",
)
def expert_starved(
    router_logits_of: Callable[[Tensor, nn.Linear], Tensor],
) -> Callable[[Tensor, nn.Linear], Tensor]:
    """A probability of 2e-9 leaves a gradient below Adam's eps, so that nothing brings the expert back."""

    def broken(hidden: Tensor, gate: nn.Linear) -> Tensor:
        logits = router_logits_of(hidden, gate)
        lowered = logits.new_zeros(logits.shape[-1])
        lowered[-1] = 20.0
        return logits - lowered

    return broken


@fault(
    "experts_consensus",
    labs=("prismatic",),
    piece="after_step",
    summary="after each step every expert is moved a fifth of the way to the experts' mean: soon they are one expert",
    expected=("experts-converged",),
    catalogue="F45",
)
def experts_consensus(
    after_step: Callable[[Sequence[nn.Module]], None],
) -> Callable[[Sequence[nn.Module]], None]:
    """As when experts are averaged between processes like the weights that all of them share."""
    import torch

    def broken(pool: Sequence[nn.Module]) -> None:
        after_step(pool)
        with torch.no_grad():
            for alike in zip(*(expert.parameters() for expert in pool), strict=True):
                mean = torch.stack(alike).mean(0)
                for parameter in alike:
                    parameter.lerp_(mean, 0.2)

    return broken


@fault(
    "aux_dominates",
    labs=("prismatic",),
    piece="config",
    summary="with router_type=topk, the balance loss counts ten thousand times as much: it leads the router, not the task",
    expected=("routing-imbalance", "regulariser-dominates"),
    catalogue="F29",
    needs=("router_type=topk",),
)
def aux_dominates(config: PrismaticConfig) -> PrismaticConfig:
    """As a coefficient that was inherited and never looked at (Megatron-LM issue 5694)."""
    if config.router_type != "topk":
        raise UsageError(
            f"fault=aux_dominates: router_type={config.router_type} has no balance loss; add router_type=topk"
        )
    return dataclasses.replace(config, aux_coef=10_000 * config.aux_coef)
