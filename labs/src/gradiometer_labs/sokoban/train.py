"""PPO or GRPO of a small language model on Sokoban, watched by a meter: read it from top to bottom.

A training step, in RAGEN's order: rollouts, filter, advantages, critic, analysis of the gradients
when it is due, actor, checkpoint, validation. Everything random in step s is drawn from (seed,
purpose, s), so a resumed training goes on as if it had never stopped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import gradiometer as gm
from gradiometer.errors import UsageError
from gradiometer_labs import faults
from gradiometer_labs.config import torch_device
from gradiometer_labs.control import CONTROL_SEED, ControlRewards
from gradiometer_labs.sokoban import checkpoint
from gradiometer_labs.sokoban.batches import Batch, batch_of, rollouts
from gradiometer_labs.sokoban.config import Config, TrainingProgress
from gradiometer_labs.sokoban.env import play
from gradiometer_labs.sokoban.learner import Learner, make_learner, warm_up
from gradiometer_labs.sokoban.levels import ACTIONS, level_seeds
from gradiometer_labs.sokoban.looking import RolloutCheck, agreement, gain_of, look
from gradiometer_labs.sokoban.pieces import Pieces
from gradiometer_labs.sokoban.rollout import Rows, SokobanPurpose, generator_for
from gradiometer_labs.sokoban.update import log_probs_in_parts, update_actor, update_critic
from gradiometer_labs.watching import watched

if TYPE_CHECKING:
    from gradiometer.probes.anatomy import Anatomy

__all__ = ["Config", "Pieces", "Result", "TrainingProgress", "train"]

RECENT = 10
"""Training steps whose mean reward is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How the training ended."""

    mean_return: float
    """What the games of the last 10 training steps were worth, whatever a faulty reward made of
    it."""
    success_rate: float
    """The share of them that were solved."""
    episodes: int
    """Games played to train on, since the start or the checkpoint."""
    steps: int
    """The last training step."""
    entropy: float | None
    """Of the policy at the last update, nats per token; None if the actor was never updated."""
    exited_after_analysis: bool
    analyses: dict[int, Anatomy]
    """By training step."""
    run: Path | None
    checkpoint: Path | None
    """The last one written."""
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def train(config: Config, progress: Callable[[TrainingProgress], None] | None = None) -> Result:
    """Train from solver games, from given weights or from a checkpoint; all that is random comes
    from `config.seed`."""
    check_needs(config)
    pieces = faults.apply(config.fault, "sokoban", Pieces(config=config))
    learner = make_learner(pieces.config, torch_device(config.device))
    resumed = checkpoint.resume(learner, pieces.config)
    # Only a training that goes on cuts what its run holds beyond the checkpoint.
    goes_on = not pieces.config.trainer.exit_after_gradient_analysis
    first = learner.step if goes_on else 0
    control = control_of(pieces.config)
    progress = control.announced(progress)
    with watched(
        learner.actor,
        learner.actor_optimizer,
        pieces.config,
        facts=control.facts,
        first=first,
    ) as meter:
        if resumed is not None:
            meter.load_state_dict(resumed)
        training = SokobanTraining(learner, pieces, meter)
        training.prepare(progress)
        for step in range(learner.step + 1, pieces.config.trainer.total_training_steps + 1):
            training.advance(step)
            if progress is not None:
                total = pieces.config.trainer.total_training_steps
                progress(TrainingProgress(done=step, total=total, mean_return=training.mean_return))
            if training.exited:
                break
    return training.result()


def control_of(config: Config) -> ControlRewards:
    """Games of random moves, as of a player who is always understood."""
    env, settings = config.env, config.reward
    rng = np.random.default_rng(CONTROL_SEED)
    earned = []
    for level_seed in level_seeds(CONTROL_SEED, SokobanPurpose.VALIDATION, 0, count=CONTROL):
        level, total = env.level(level_seed), 0.0
        for action in rng.integers(len(ACTIONS), size=env.max_turns * env.max_actions_per_turn):
            if level.solved:
                break
            level, reward = play(level, int(action))
            total += reward
        judged = settings.solved * level.solved + settings.format
        earned.append(total if settings.kind == "game" else judged)
    return ControlRewards(random_reward=float(np.mean(earned)))


class SokobanTraining:
    """The loop's memory, and one step of it."""

    def __init__(self, learner: Learner, pieces: Pieces, meter: gm.Meter) -> None:
        self.learner, self.pieces, self.meter = learner, pieces, meter
        self.config = pieces.config
        self.exited = False
        self._episodes = 0
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)
        self._entropy: float | None = None
        self._analyses: dict[int, Anatomy] = {}
        self._saved: Path | None = None

    def prepare(self, progress: Callable[[TrainingProgress], None] | None = None) -> None:
        """Imitate the solver, unless the weights come from elsewhere; validate, if asked."""
        learner, config = self.learner, self.config
        if learner.step == 0 and config.model_path is None and config.start is None:
            say = (
                None
                if progress is None
                else partial(_warming_up, progress, config.warm_start.steps)
            )
            loss = warm_up(learner, config, say)
            if loss is not None:
                message = f"the actor has imitated the solver for {config.warm_start.steps} steps"
                self.meter.event("warm-start", message, step=0, loss=loss)
        self.meter.step(learner.step)
        if config.trainer.val_before_train:
            self.validate(learner.step)

    def advance(self, step: int) -> None:
        """One training step."""
        config, learner, meter = self.config, self.learner, self.meter
        meter.step(step)
        batch = self.pieces.batch_at(step, self.collect)
        before = look(learner.actor, batch.played, self.pieces)
        logged = self.summary(batch) | agreement(before, batch.played) | {"score_z": before.score_z}
        if batch.num_kept:
            logged |= self.update_critic(batch.kept, step)
        else:
            meter.event(
                "nothing-kept",
                f"the filter kept none of {batch.num_groups} groups: no update",
                step=step,
            )
        if config.trainer.analyses_at(step):
            self.analyse(batch, step)
            if config.trainer.exit_after_gradient_analysis:
                self.exited = True
                meter.log({**logged, "trainer/exited_after_gradient_analysis": 1.0})
                return
        if batch.num_kept:
            logged |= self.update_actor(batch, step, before)
        learner.step = step
        meter.step(step)  # an update of several optimizer steps has counted on
        meter.log(logged)
        self.save_and_test(step)

    def collect(self, step: int) -> Batch:
        """The actor's games at this step, filtered and scored."""
        size = self.config.es_manager.train
        return batch_of(
            self.learner,
            self.pieces,
            SokobanPurpose.TRAIN,
            step,
            env_groups=size.env_groups,
            group_size=size.group_size,
        )

    def summary(self, batch: Batch) -> dict[str, Any]:
        """How the games went, before the filter."""
        played = batch.played
        self._episodes += len(played["earned"])
        self._recent.append(
            (float(played["earned"].mean()), float(played["solved"].float().mean()))
        )
        said = played["tokens"][played["mask"] > 0]
        functions = [name for name in played if name.startswith("rewards/")]
        return {
            "reward": float(played["rewards"].mean()),
            "reward_std": batch.reward_std,
            "success_rate": float(played["verdicts"].mean()),
            "episode_length": float(played["mask"].sum(-1).mean()),
            "truncated_fraction": float(played["truncated"].float().mean()),
            "turns": float(played["turns"].float().mean()),
            "zero_variance_groups": batch.zero_variance,
            "filter_kept_ratio": batch.num_kept / batch.num_groups,
            "action_share": float(torch.bincount(said).max() / len(said)),
            **{f"{name}/mean": float(played[name].mean()) for name in functions},
            **{f"{name}/std": float(played[name].std()) for name in functions},
        }

    def update_critic(self, rows: Rows, step: int) -> dict[str, Any]:
        """Nothing for grpo."""
        learner = self.learner
        if learner.critic is None or learner.critic_optimizer is None:
            return {}
        chosen = rows["mask"] > 0
        returns, values = rows["returns"][chosen], rows["values"][chosen]
        generator = generator_for(
            self.config, SokobanPurpose.CRITIC_UPDATE, step, learner.actor.device
        )
        logged = update_critic(
            learner.critic, learner.critic_optimizer, rows, self.pieces, generator
        )
        if float(returns.var()) > 0:
            logged["explained_variance"] = 1 - float((returns - values).var() / returns.var())
        return {**logged, "value_mean": float(values.mean()), "returns": returns}

    def update_actor(self, batch: Batch, step: int, before: RolloutCheck) -> dict[str, Any]:
        """Under the eyes of the meter."""
        learner, config, rows = self.learner, self.config, batch.kept
        done = (step - 1) / config.trainer.total_training_steps
        learning_rate = self.pieces.learning_rate_at(config, done)
        learner.actor_optimizer.param_groups[0]["lr"] = learning_rate
        self.meter.at(rollout=step - 1, epoch=0)
        generator = generator_for(config, SokobanPurpose.ACTOR_UPDATE, step, learner.actor.device)
        logged = update_actor(
            learner.actor, learner.actor_optimizer, self.meter, rows, self.pieces, generator
        )
        self._entropy = logged["entropy"]
        after = log_probs_in_parts(learner.actor, rows, self.pieces)
        return {
            **logged,
            "learning_rate": learning_rate,
            "advantages": rows["advantages"][rows["mask"] > 0],
            "reward_gain": gain_of(rows, before.log_probs[batch.index], after),
        }

    def analyse(self, batch: Batch, step: int) -> None:
        """On the batch to be trained on, or on one of its own, which nothing else sees."""
        from gradiometer_labs.sokoban.analysis import analyse

        if self.config.analysis_batch is not None:
            groups, size = self.config.analysis_batch
            batch = batch_of(
                self.learner,
                self.pieces,
                SokobanPurpose.ANALYSIS,
                step,
                env_groups=groups,
                group_size=size,
            )
        if not batch.num_kept:
            message = (
                f"step {step} has nothing to analyse: the rollout filter kept none of"
                f" {batch.num_groups} groups"
            )
            if self.config.trainer.exit_after_gradient_analysis:
                raise UsageError(
                    f"{message}; loosen actor_rollout_ref.rollout.rollout_filter_*, or use more"
                    " groups"
                )
            self.meter.event("analysis-skipped", message, step=step)
            return
        found = analyse(self.learner.actor, batch.kept, self.pieces, step=step)
        self._analyses[step] = found
        self.meter.record(found.metrics, tables=found.tables, step=step)

    def save_and_test(self, step: int) -> None:
        """A checkpoint and a validation, when they are due."""
        trainer = self.config.trainer
        last = step == trainer.total_training_steps
        if trainer.save_freq > 0 and (last or step % trainer.save_freq == 0):
            self._saved = checkpoint.save(self.learner, self.config, self.meter.state_dict())
        if trainer.test_freq > 0 and (last or step % trainer.test_freq == 0):
            self.validate(step)

    def validate(self, step: int) -> None:
        """Play levels that are never trained on, the same ones every time."""
        size = self.config.es_manager.val
        played = rollouts(
            self.learner,
            self.pieces,
            SokobanPurpose.VALIDATION,
            step,
            env_groups=size.env_groups,
            group_size=size.group_size,
        )
        solved = float(played["solved"].float().mean())
        self.meter.log({"val/reward": float(played["earned"].mean()), "val/success_rate": solved})

    @property
    def mean_return(self) -> float:
        """Over the games of the last training steps."""
        return sum(reward for reward, _ in self._recent) / max(len(self._recent), 1)

    def result(self) -> Result:
        """Where the training stands."""
        return Result(
            mean_return=self.mean_return,
            success_rate=sum(solved for _, solved in self._recent) / max(len(self._recent), 1),
            episodes=self._episodes,
            steps=self.learner.step,
            entropy=self._entropy,
            exited_after_analysis=self.exited,
            analyses=self._analyses,
            run=self.meter.run,
            checkpoint=self._saved,
            model=self.learner.actor,
            tokenizer=self.learner.tokenizer,
        )


def check_needs(config: Config) -> None:
    """A fault that this training has no place for would change nothing, and nobody would know."""
    for found, _ in faults.chosen(config.fault, "sokoban"):
        for need in found.needs:
            key, _, wanted = need.partition("=")
            if str(attrgetter(key)(config)) != wanted:
                raise UsageError(f"fault={found.name} breaks nothing without {need}: add it")


def _warming_up(progress: Callable[[TrainingProgress], None], total: int, done: int) -> None:
    progress(
        TrainingProgress(
            done=done, total=total, unit="steps of imitation", mean_return=float("nan")
        )
    )


CONTROL = 64
"""Levels that are played at random."""
