"""What can be broken in the training of a model with experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gradiometer.errors import UsageError
from gradiometer.labs.faults import fault

if TYPE_CHECKING:
    from torch import Tensor, nn

    from gradiometer.labs.prismatic.config import Config as PrismaticConfig

__all__: list[str] = []


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
