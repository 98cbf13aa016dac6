"""TRL: `GRPOTrainer(..., callbacks=[GradiometerCallback(run="runs/grpo")])`, and every other
trainer of TRL the same way.

With `GRPOTrainer` measured steps also split the loss into its terms, `meter.at` says which
generation and which pass over it a step belongs to, and `anatomy_every=` takes the anatomy of a
generation before it is trained on.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradiometer.capture import generations
from gradiometer.capture.meter import Meter
from gradiometer.capture.preferencepairs import PreferencePairs
from gradiometer.errors import GradiometerWarning, MissingExtra, UsageError
from gradiometer.integrations import transformers
from gradiometer.integrations.grpo import (
    Through,
    anatomy_of,
    loss_terms,
    noting_forward,
    replaced,
)
from gradiometer.probes.anatomy import Anatomy

try:
    import trl  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtra("trl", "trl", "watching a trainer of TRL") from error

__all__ = ["GradiometerCallback", "anatomy_of"]

Batch = Mapping[str, Any]
GENERATING = {"GRPOTrainer", "RLOOTrainer"}
PAIRED = "DPOTrainer"
LISTENED = ("_compute_loss", "_calculate_rewards", "_generate_and_score_completions")


class GradiometerCallback(transformers.GradiometerCallback):
    """The callback for the Hugging Face `Trainer`, and what can be seen of GRPO beside it.

    `terms=False` leaves the loss whole. `anatomy_every=n` takes the anatomy of the first generation
    in every n steps, with `anatomy` as keyword arguments of `gm.anatomy`; `callback.anatomy()`
    takes that of the last generation when you ask. With `log_completions=True` some texts of each
    generation are kept, with their rewards and advantages.
    """

    def __init__(
        self,
        run: str | os.PathLike[str] | None = "auto",
        *,
        terms: bool = True,
        anatomy_every: int | None = None,
        anatomy: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(run, terms="auto" if terms else "manual", **options)
        if anatomy_every is not None and anatomy_every < 1:
            raise UsageError(
                f"anatomy_every is a number of steps, 1 or more, or None; found {anatomy_every!r}"
            )
        self._terms, self._anatomy_every, self._anatomy = terms, anatomy_every, dict(anatomy or {})
        self._anatomy_due, self._samples, self._is_grpo = 0, True, True
        self._trainer: Callable[[], Any] = lambda: None
        self._generation: tuple[Batch, Tensor] | None = None
        self._advantages: Tensor | None = None

    def begun(self, trainer: Any) -> None:
        """Listen to the methods that make loss and rewards, until the training ends."""
        # By name: importing it would take seconds.
        kinds = {kind.__name__ for kind in type(trainer).__mro__}
        if PAIRED in kinds and hasattr(trainer, generations.LOSS):
            self._hear_pairs(trainer)
        kinds &= GENERATING
        if not kinds or not all(hasattr(trainer, name) for name in LISTENED):
            return
        if "GRPOTrainer" not in kinds:  # its loss is another; its answers are heard all the same
            self._terms, self._anatomy_every, self._is_grpo = False, None, False
        forward = (generations.FORWARD,) if hasattr(trainer, generations.FORWARD) else ()
        self._trainer, names = weakref.ref(trainer), (*LISTENED, *forward)
        own = {name: getattr(trainer, name) for name in names}
        stack = ExitStack()
        ours = {name: partial(getattr(self, name), own[name]) for name in names}
        stack.enter_context(replaced(trainer, **ours))
        self.session.at_end(stack.close)

    def _hear_pairs(self, trainer: Any) -> None:
        """What a trainer of preferences trains on, until the training ends."""

        def tell(id: str, message: str, **detail: Any) -> None:
            self.session.tell(lambda meter: meter.event(id, message, **detail))

        pairs, compute = PreferencePairs(tell), trainer._compute_loss
        filler = generations.filler_of(trainer)

        def heard(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            answer = compute(model, inputs, *args, **kwargs)
            if torch.is_grad_enabled():
                with suppress(Exception):
                    pairs.look(inputs, filler)
            return answer

        stack = ExitStack()
        stack.enter_context(replaced(trainer, _compute_loss=heard))
        self.session.at_end(stack.close)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Which generation the step trains on, and in which pass over it."""
        if (trainer := self._trainer()) is not None:
            steps = args.steps_per_generation * trainer.num_iterations
            generation, rest = divmod(trainer._step, steps)
            self.session.at(rollout=generation, epoch=rest // args.steps_per_generation)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Advantages are logged with the first step on their generation, not the one before."""
        if (advantages := self._advantages) is not None:
            self._advantages = None
            self.session.tell(lambda meter: meter.log(advantages=advantages))

    def anatomy(self, **options: Any) -> Anatomy:
        """The anatomy of the last generation; `options` of `gm.anatomy` win over the callback's."""
        trainer = self._trainer()
        if trainer is None or self._generation is None or not self._is_grpo:
            raise UsageError(
                "there is no generation to take apart: train a GRPOTrainer that has this callback"
                " first"
            )
        batch, rewards = self._generation
        groups = (torch.arange(len(rewards)) // trainer.num_generations).tolist()
        options = {"meter": self.session.open, **self._anatomy, **options}
        return anatomy_of(trainer, batch, rewards, groups, **options)

    def _log_samples(self, meter: Meter, trainer: Any, batch: Batch) -> None:
        """Texts of a generation; TRL's advantages are their credit but for a factor."""
        try:
            prompts, completions = (
                _texts(trainer, batch[f"{kind}_ids"], batch[f"{kind}_mask"])
                for kind in ("prompt", "completion")
            )
            credit = batch["advantages"] if batch["advantages"].dim() == 1 else None
        except Exception as problem:  # another version of TRL may not give what is asked for
            self._samples = False
            _say(meter, "samples-failed", f"Gradiometer keeps no more samples: {problem!r}")
            return
        meter.log_samples(prompts, completions, self._rewards, credit=credit)

    # These stand in place of the trainer's, and call them.

    def _compute_loss(self, compute: Callable[..., Tensor], model: Any, inputs: Batch) -> Tensor:
        trainer, meter = self._trainer(), self.session.open
        generations.training_on(inputs, generations.filler_of(trainer))
        if meter is None or not self._terms or not torch.is_grad_enabled() or not meter.terms_due:
            return compute(model, inputs)
        with noting_forward(trainer) as seen:
            loss = compute(model, inputs)
        try:
            terms = loss_terms(trainer, model, inputs, seen[-1])
            passed: Tensor = Through.apply(loss, *terms.values())  # type: ignore[no-untyped-call]
        except Exception as problem:  # another version of TRL may not give what is asked for
            self._terms = False
            message = f"Gradiometer cannot take GRPO's loss apart: {problem!r}"
            _say(meter, "terms-unmeasurable", message)
            return loss
        with meter.terms(**terms):  # type: ignore[arg-type]
            return passed

    def _get_per_token_logps_and_entropies(
        self, forward: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        answer = forward(*args, **kwargs)
        generations.forwarded(answer)
        return answer

    def _calculate_rewards(
        self, calculate: Callable[..., Tensor], *args: Any, **kwargs: Any
    ) -> Tensor:
        rewards, weights = calculate(*args, **kwargs), self._trainer().reward_weights
        self._rewards = (rewards * weights.to(rewards.device)).nansum(dim=1)
        return rewards

    def _generate_and_score_completions(self, generate: Callable[..., Batch], inputs: Any) -> Batch:
        trainer, meter = self._trainer(), self.session.open
        batch = generate(inputs)
        if meter is None or not trainer.model.training or trainer.accelerator.num_processes > 1:
            return batch
        self._generation, step = (batch, self._rewards), trainer.state.global_step
        generations.note(batch, self._rewards)
        if isinstance(advantages := batch.get("advantages"), Tensor) and advantages.dim() == 1:
            self._advantages = advantages
        if self._samples and trainer.log_completions:
            self._log_samples(meter, trainer, batch)
        if self._anatomy_every is not None and step >= self._anatomy_due:
            self._anatomy_due = step + self._anatomy_every
            try:
                self.anatomy()
            except Exception as problem:
                self._anatomy_every = None
                _say(meter, "anatomy-failed", f"Gradiometer takes no more anatomies: {problem!r}")
        return batch


def _texts(trainer: Any, ids: Tensor, mask: Tensor) -> list[str]:
    kept = [row[here.bool()].tolist() for row, here in zip(ids, mask, strict=True)]
    return [trainer.processing_class.decode(row, skip_special_tokens=True) for row in kept]


def _say(meter: Meter, kind: str, message: str) -> None:
    meter.event(kind, message)
    warnings.warn(message, GradiometerWarning, stacklevel=4)
