"""What a trainer of torchrl and its batches are made of: optimizers, the terms of a loss, rewards."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from gradiometer.capture.isolation import guarded
from gradiometer.capture.meter import Meter

__all__ = ["Splitter", "optimizers_of", "rewards"]

TERMS = {"loss": "td", "loss_objective": "policy", "loss_qvalue": "q"}
"""What the doctor calls them; any other `loss_x` is the term `x`."""


class Splitter:
    """Takes the terms out of what a loss module returns. It holds no hook, so that a lost one can be collected."""

    def __init__(self, meter: Meter) -> None:
        self.seconds = self.entered = 0.0
        self.give_up = meter.give_up
        self._meter = meter

    @guarded
    def split(self, losses: Any, trained: bool) -> None:
        """The trainer adds the terms up itself and goes backward; here each is looked at first."""
        found = {key: x for key, x in losses.items() if key.startswith("loss") and x.numel() == 1}
        if trained and found:
            with self._meter.terms(**{TERMS.get(key, key.removeprefix("loss_")): x for key, x in found.items()}):
                pass


def optimizers_of(trainer: Any) -> list[Optimizer]:
    """The trainer's own, those of its optimizer hooks, and those its stepper holds."""
    ops = [getattr(op, "__wrapped__", op) for op, _ in getattr(trainer, "_optimizer_ops", ())]
    stepper = getattr(trainer, "optimization_stepper", None)
    found = [trainer.optimizer, *(getattr(op, "optimizer", None) for op in ops), *vars(stepper or object).values()]
    return list({id(one): one for one in found if isinstance(one, Optimizer)}.values())


def rewards(batch: Any) -> dict[str, Any]:
    """The mean return of the episodes that ended (torchrl's RewardSum keeps it), or else the mean reward of a frame."""
    if batch is None:
        return {}
    if (total := batch.get(("next", "episode_reward"), None)) is not None:
        ended = total[batch.get(("next", "done")).expand_as(total)]
        return {"reward": ended.float().mean()} if ended.numel() else {}
    reward = batch.get(("next", "reward"), None)
    return {} if reward is None else {"r_training": reward.float().mean()}
