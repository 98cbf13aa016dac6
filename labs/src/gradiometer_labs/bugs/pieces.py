"""The lines of this training that a fault may change; see `gradiometer_labs/faults.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from gradiometer_labs.bugs import model, objective
from gradiometer_labs.bugs.config import Config
from gradiometer_labs.bugs.model import ModelPieces
from gradiometer_labs.bugs.objective import Counts

__all__ = ["Pieces"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Plain functions each."""

    config: Config
    group_statistics_of: Callable[[Tensor], tuple[Tensor, Tensor]] = objective.group_statistics_of
    others_statistics_of: Callable[[Tensor], tuple[Tensor, Tensor]] = objective.others_statistics_of
    log_softmax: Callable[[Tensor], Tensor] = objective.log_softmax
    sampled_log_probs_of: Callable[[Tensor, Tensor], Tensor] = objective.sampled_log_probs_of
    log_weights_of: Callable[[Tensor, Tensor], Tensor] = objective.log_weights_of
    entropy_of: Callable[[Tensor], Tensor] = objective.entropy_of
    normaliser_of: Callable[[Counts], Tensor] = objective.normaliser_of
    nll_scale_of: Callable[[Counts, Counts], Tensor] = objective.nll_scale_of
    train_data_of: Callable[..., dict[str, Tensor]] = objective.train_data_of
    backward: Callable[[Tensor, Config], None] = objective.backward
    routing_weights_of: Callable[[Tensor, Config], Tensor] = model.routing_weights_of
    wired: Callable[[Tensor, Tensor, Config], Tensor] = model.wired
    mixed: Callable[[Tensor, Tensor, Tensor, Iterable[nn.Module]], Tensor] = model.mixed

    @property
    def routing(self) -> ModelPieces:
        """Those that are inside the model."""
        return ModelPieces(
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(ModelPieces)}
        )

    def statistics_of(self, rewards: Tensor) -> tuple[Tensor, Tensor]:
        """What an answer is compared with, [P, G] -> baseline and standard deviation."""
        loo = self.config.use_leave_one_out_baseline
        return self.others_statistics_of(rewards) if loo else self.group_statistics_of(rewards)
