"""torchrl: `GradiometerHook(run="runs/ppo").register(trainer)` for its Trainer,
`.watch(loss_module, optim)` for own loops.

The trainer's `optimizer` stage computes, clips, steps and zeroes in one call; capture is torch's
own, so that does not matter. The terms of the loss are what a loss module returns as `loss_*`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

from torch import Tensor, nn
from torch.optim import Optimizer

from gradiometer.capture import hooks
from gradiometer.capture.hooks import guarded
from gradiometer.capture.meter import Meter
from gradiometer.capture.watch import Optimizers
from gradiometer.errors import MissingExtra, UsageError
from gradiometer.integrations.session import Session, SessionContext, Unfinished

try:
    with warnings.catch_warnings():  # torchrl warns of a class of its own
        warnings.simplefilter("ignore", DeprecationWarning)
        from torchrl.trainers import TrainerHookBase
except ModuleNotFoundError as error:
    raise MissingExtra("torchrl", "torchrl", "the hook for torchrl") from error

__all__ = ["GradiometerHook"]

TERMS = {"loss": "td", "loss_objective": "policy", "loss_qvalue": "q"}
"""What the doctor calls them; any other `loss_x` is the term `x`."""
TURNED = {"loss_actor": "update-opposes-reward", "loss_alpha": "entropy-sign"}
"""Losses that a module makes to be minimised, and the finding where they are subtracted."""
MOST_LOOKS, WEIGHED = 8, 1e-6
SETTINGS = (
    "total_frames",
    "frame_skip",
    "optim_steps_per_batch",
    "num_epochs",
    "clip_grad_norm",
    "clip_norm",
    "seed",
)


class GradiometerHook(SessionContext, TrainerHookBase):  # type: ignore[misc]
    """Keeps the gradients, and what the trainer logs, in the folder `run`; takes the keyword
    arguments of `gm.watch`.

    torchrl has no hook for an exception: put `with hook:` around the training, or the run is closed
    at exit.
    """

    def __init__(self, run: str | os.PathLike[str] | None = "auto", **options: Any) -> None:
        self.session = Session(run, **options)
        self._trainer: Any = None
        self._restored: dict[str, Any] = {}
        self._num_read: dict[str, int] = {}
        self._rollout = self._epoch = -1

    @contextmanager
    def watch(
        self, loss_module: nn.Module, optimizers: Optimizers, **given: Any
    ) -> Iterator[Meter]:
        """For a loop of your own: `with hook.watch(loss_module, optim) as meter`."""
        with self:
            yield self._watch(loss_module, optimizers, **given)

    def _watch(self, loss_module: nn.Module, optimizers: Optimizers, **given: Any) -> Meter:
        self.session.close(Unfinished("a training began anew before this one had ended"))
        if self._restored:
            # A new one: what this one has measured since is not what comes before.
            self.session = Session(**self.session.options)
            given["resume"] = max(self._restored["next_step"] - 1, 0)
        meter = self.session.start(loss_module, optimizers, **given)
        meter.load_state_dict(self._restored)
        self._restored = {}
        self.session.at_end(hooks.observe_forward(loss_module, _Splitter(meter).split))
        return meter

    def log_batch(self, batch: Any, env_steps: int | None = None) -> None:
        """A collected batch: its rewards belong to the data that the next step starts from."""
        self._rollout, self._epoch = self._rollout + 1, -1
        self.session.at(env_steps=env_steps, rollout=self._rollout, epoch=0)
        self.session.tell(lambda meter: meter.record({**_rewards(batch), **self._unread()}))

    def register(self, trainer: Any, name: str = "gradiometer") -> Self:
        """Put the hook into the stages of the trainer; register it after your own hooks."""
        if getattr(trainer, "learner_backend", "local") != "local":
            raise UsageError(
                "learner_backend='ray' trains in another process, which no hook reaches: use the"
                " local one"
            )
        self._trainer = trainer
        trainer.register_module(name, self)
        stages: dict[str, Any] = {"setup": self._start, "shutdown": self._end}
        stages |= {"pre_steps_log": self._batch_collected, "pre_epoch_log": self._epoch_begins}
        stages |= dict.fromkeys(("post_optim_log", "post_steps", "post_steps_log"), self._read)
        for stage, op in stages.items():
            trainer.register_op(stage, op)
        return self

    def _start(self) -> None:
        trainer = self._trainer
        config = {key: getattr(trainer, key, None) for key in SETTINGS}
        config["loss"] = type(trainer.loss_module).__name__
        self._watch(trainer.loss_module, _optimizers_of(trainer), config=config, seed=trainer.seed)

    def _batch_collected(self, batch: Any) -> None:
        self.log_batch(batch, self._trainer.collected_frames)

    def _epoch_begins(self, batch: Any) -> None:
        self._epoch += 1
        self.session.at(epoch=self._epoch)

    def _read(self, batch: Any = None) -> None:
        self.session.tell(lambda meter: meter.log(self._unread()))

    def _unread(self) -> dict[str, Any]:
        """What the trainer has logged since the last call; it keeps all of it."""
        kept = getattr(self._trainer, "_log_dict", {})
        read = self._num_read
        fresh = {key: values[-1] for key, values in kept.items() if len(values) > read.get(key, 0)}
        self._num_read = {key: len(values) for key, values in kept.items()}
        return {key: x for key, x in fresh.items() if not isinstance(x, Tensor) or x.numel() == 1}

    def _end(self) -> None:
        self._read()
        self.session.close()

    def state_dict(self) -> dict[str, Any]:
        """For the trainer's checkpoint."""
        meter = {} if self.meter is None else self.meter.state_dict()
        return {"meter": meter, "rollout": self._rollout}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there when the training starts."""
        self._restored, self._rollout = dict(state_dict["meter"]), state_dict["rollout"]


class _Splitter:
    """Takes the terms out of a loss module's output; it holds no hook, so one can be collected."""

    def __init__(self, meter: Meter) -> None:
        self.seconds = self.entered = 0.0
        self.give_up = meter.give_up
        self._meter = meter
        self._looks = 0
        self._weights: dict[str, list[float]] = {}
        """What arrives at each term when the loop goes backward: its factor in the sum."""

    def _weighed(self, key: str, gradients: tuple[Any, ...]) -> None:
        if gradients[0] is None:
            return
        held = self._weights.setdefault(key, [])
        held.append(float(gradients[0].sum()))
        if len(held) == MOST_LOOKS and any(abs(x - 1.0) > WEIGHED for x in held):
            self._meter.event(
                "term-weight", f"{key} counts {held[-1]:.3g}-fold in the loss", term=key
            )
            if key in TURNED and all(x < 0.0 for x in held):
                message = f"{key} counts {held[-1]:.3g}-fold in {len(held)} backward calls"
                self._meter.event(TURNED[key], message, subject=key, how="term")

    @guarded
    def split(self, losses: Any, trained: bool) -> None:
        """The trainer adds the terms up itself and goes backward; here each is looked at first."""
        found = {key: x for key, x in losses.items() if key.startswith("loss") and x.numel() == 1}
        if trained and found:
            if self._looks < MOST_LOOKS:
                self._looks += 1
                for key, x in found.items():
                    if x.grad_fn is not None:
                        hooks.observe_node(x.grad_fn, partial(self._weighed, key))
            terms = {TERMS.get(key, key.removeprefix("loss_")): x for key, x in found.items()}
            with self._meter.terms(**terms):
                pass


def _optimizers_of(trainer: Any) -> list[Optimizer]:
    """The trainer's own, those of its optimizer hooks, and those its stepper holds."""
    ops = [getattr(op, "__wrapped__", op) for op, _ in getattr(trainer, "_optimizer_ops", ())]
    stepper = getattr(trainer, "optimization_stepper", None)
    of_ops = (getattr(op, "optimizer", None) for op in ops)
    found = [trainer.optimizer, *of_ops, *vars(stepper or object).values()]
    return list({id(one): one for one in found if isinstance(one, Optimizer)}.values())


def _rewards(batch: Any) -> dict[str, Any]:
    """The mean return of ended episodes (RewardSum keeps it), else the mean reward of a frame."""
    if batch is None:
        return {}
    if (total := batch.get(("next", "episode_reward"), None)) is not None:
        ended = total[batch.get(("next", "done")).expand_as(total)]
        return {"reward": ended.float().mean()} if ended.numel() else {}
    reward = batch.get(("next", "reward"), None)
    return {} if reward is None else {"r_training": reward.float().mean()}
