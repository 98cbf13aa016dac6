"""The anatomy of the actor's gradient on a batch: by loss term and by reward variance of the
groups."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from transformers import PreTrainedModel

from gradiometer.probes.anatomy import Anatomy, anatomy
from gradiometer_labs.sokoban.batches import permuted_advantages
from gradiometer_labs.sokoban.pieces import Pieces, task_losses, token_losses
from gradiometer_labs.sokoban.rollout import Rows

__all__ = ["analyse"]


def analyse(actor: PreTrainedModel, rows: Rows, pieces: Pieces, *, step: int) -> Anatomy:
    """What each loss term does on which groups of a filtered, scored batch; changes nothing."""
    config = pieces.config
    rollout, actor_settings = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor

    def loss_terms(part: Mapping[str, Tensor]) -> dict[str, Tensor]:
        tokens = token_losses(actor, part, pieces)
        terms = dict(tokens.terms)
        if "null_advantages" in part:  # the same forward serves the permuted rewards
            terms["null"] = task_losses(
                tokens.log_probs, part["old_log_probs"], part["null_advantages"], pieces
            )
        return terms

    def null(order: Tensor) -> Mapping[str, Tensor]:
        return permuted_advantages(rows, order, pieces)

    return anatomy(
        actor,
        rows,
        loss_terms,
        rewards=rows["rewards"],
        groups=rows["groups"].tolist(),
        mask=rows["mask"],
        aggregation=actor_settings.loss_agg_mode,
        rollout_filter=None,
        bucket_mode=rollout.gradient_analysis_bucket_mode,
        num_buckets=rollout.gradient_analysis_num_buckets,
        micro_batch_size=actor_settings.ppo_micro_batch_size_per_gpu,
        trim="mask",
        null=null if config.trainer.gradient_analysis_null else None,
        seed=config.seed + step,
    )
