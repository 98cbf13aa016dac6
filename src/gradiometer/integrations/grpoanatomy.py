"""The anatomy of a batch as TRL's `GRPOTrainer` makes it.

The trainer's own loss of the whole batch gives a slope for each token and term, ∂L/∂log π; slope · log π then has the gradient
of that term on any part of the batch. So every `loss_type` is the trainer's own here too.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from gradiometer.errors import UnknownName, UsageError
from gradiometer.integrations.grpo import Forward, loss_terms
from gradiometer.maths import losses
from gradiometer.probes.anatomy import Anatomy, anatomy
from gradiometer.probes.stillness import held_still
from gradiometer.probes.survey import NULL

__all__ = ["anatomy_of"]

# How each loss type makes one number of its tokens.
AGGREGATIONS = MappingProxyType(
    {
        **dict.fromkeys(("grpo", "sapo"), "seq-mean-token-mean"),
        **dict.fromkeys(("bnpo", "dapo", "cispo", "vespo"), "token-mean"),
        "dr_grpo": "seq-mean-token-sum-norm",
        "luspo": "seq-mean-token-sum",
    }
)
TASK = "task"  # what the keys of an anatomy call the policy term
IDS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")


def anatomy_of(trainer: Any, batch: Mapping[str, Any], rewards: Any, groups: Any = None, **options: Any) -> Anatomy:
    """`gm.anatomy` of a batch as `GRPOTrainer` makes it, by the terms of its loss and the reward variance of its groups.

    `rewards` [N] one number a completion; `groups` [N] are told by equal prompts where not given. `options` are those of
    `gm.anatomy`; `null=True` permutes advantages. The batch counts as one micro-batch, whatever the accumulation, and in
    one process. Losses are not in the result: the trainer logs its own.
    """
    _check(trainer, batch)
    model, mask = trainer.model, batch["completion_mask"] * batch.get("tool_mask", 1)
    aggregation, horizon = AGGREGATIONS[trainer.loss_type], float(trainer.max_completion_length)
    weight = losses.token_weights(mask, aggregation, horizon=horizon)
    total = losses.sequence_weights(mask, aggregation).sum()
    undo = torch.where(weight > 0, total / weight, 0.0)  # a mean over rows is taken by the anatomy, bucket by bucket
    slopes = {TASK if name == "policy" else name: slope for name, slope in _slopes(trainer, batch, mask).items()}
    rows = {name: batch[name] for name in IDS} | {name: slope * undo for name, slope in slopes.items()}

    def terms(part: Mapping[str, Tensor]) -> dict[str, Tensor]:
        log_probs, entropies, _ = _forward(trainer, model, part)
        found = {name: part[name] * (entropies if name == "entropy" else log_probs) for name in slopes}
        return found | ({NULL: part[f"null_{TASK}"] * log_probs} if f"null_{TASK}" in part else {})

    def null(order: Tensor) -> dict[str, Tensor]:
        shuffled = {**batch, "advantages": batch["advantages"][order.to(mask.device)]}
        return {TASK: _slopes(trainer, shuffled, mask)["policy"] * undo}

    options["null"] = null if options.get("null") is True else options.get("null")
    groups = [tuple(row) for row in batch["prompt_ids"].tolist()] if groups is None else groups
    meter = options.pop("meter", None)
    options = {"mask": mask, "aggregation": aggregation, "horizon": horizon, **options}
    result = anatomy(model, rows, terms, rewards=rewards, groups=groups, **options)
    # The slopes have the gradients of the losses, not their values.
    result = replace(result, metrics={name: x for name, x in result.metrics.items() if "/loss/" not in name})
    if meter is not None:
        meter.record(result.metrics, tables=result.tables)
    return result


def _slopes(trainer: Any, batch: Mapping[str, Any], mask: Tensor) -> dict[str, Tensor]:
    """∂L/∂log π of each term and each token [N, T], ∂L/∂H of the entropy bonus, for the batch as a whole."""
    with held_still(trainer.model), torch.no_grad():
        size = trainer.args.per_device_train_batch_size
        forward = _forward(trainer, trainer.model, batch, batch_size=size)
    log_probs, entropies = (tensor.detach().requires_grad_() for tensor in forward[:2])
    still = copy.copy(trainer)
    still.model, still.aux_loss_enabled = SimpleNamespace(training=False), False  # then nothing is divided over steps
    with torch.enable_grad():
        found = loss_terms(still, None, {**batch, "num_items_in_batch": mask.sum()}, (log_probs, entropies, None))
        wanted = {name: entropies if name == "entropy" else log_probs for name in found}
        return {name: torch.autograd.grad(found[name], of, retain_graph=True)[0] for name, of in wanted.items()}


def _forward(trainer: Any, model: Any, rows: Mapping[str, Tensor], **options: Any) -> Forward:
    ids = torch.cat([rows["prompt_ids"], rows["completion_ids"]], dim=1)
    seen = torch.cat([rows["prompt_mask"], rows["completion_mask"]], dim=1)
    keep = rows["completion_ids"].size(1)
    given = type(trainer)._get_per_token_logps_and_entropies(
        trainer, model, ids, seen, keep, compute_entropy=True, **options
    )
    return given  # type: ignore[no-any-return]


def _check(trainer: Any, batch: Mapping[str, Any]) -> None:
    if trainer.loss_type not in AGGREGATIONS:
        raise UnknownName("loss_type", trainer.loss_type, AGGREGATIONS)
    if trainer.accelerator.num_processes > 1:
        raise UsageError("the anatomy of a GRPO batch is taken in one process; each rank has a batch of its own here")
    if "pixel_values" in batch:
        raise UsageError("the anatomy of a GRPO batch takes text; this batch has images")
