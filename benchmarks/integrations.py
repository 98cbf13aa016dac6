"""What the callbacks with their default settings take of real trainings: SB3's PPO, TRL's GRPO, the
Hugging Face Trainer.

Two trainings, one with the callback, run in two threads of which one runs at a time: they hand over
at the end of a rollout or before a step. PPO plays CartPole-v1 as SB3 has it by default, a round is
a rollout of 2,048 steps and its update. GRPO has a Qwen2 of 0.1M parameters, 8 groups of 4
completions of 16 tokens, a KL penalty and an entropy bonus; the Trainer a GPT-2 of 0.8M parameters
on 16 × 32 tokens. Setting up, before the first step, is not in it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import integrations_trl
from benchmarks.relay import Runner, follow, overhead_rows, race
from benchmarks.rows import Row, Scale

__all__ = ["rows"]

HandOver = Callable[..., None]
ROLLOUT = 2_048


def train_sb3(
    folder: Path, rollouts: int, num_steps: int, runner: Runner, hand_over: HandOver, watched: bool
) -> None:
    """SB3's PPO on CartPole-v1: a turn is a rollout, or its update with what is logged of it."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback

    from gradiometer.integrations.sb3 import GradiometerCallback

    callback = GradiometerCallback(run=folder / "sb3") if watched else None

    class Turns(BaseCallback):
        begun = False

        def _on_rollout_start(self) -> None:
            if not self.begun:
                if callback is not None:
                    follow(runner, callback.meter, lambda: seconds_in(callback))
                runner.restart()
            hand_over(end_round=self.begun)
            self.begun = True

        def _on_rollout_end(self) -> None:
            hand_over()

        def _on_step(self) -> bool:
            return True

    model = PPO("MlpPolicy", "CartPole-v1", n_steps=num_steps, seed=0, device="cpu", verbose=0)
    model.learn(
        rollouts * num_steps, callback=[Turns()] if callback is None else [callback, Turns()]
    )


def seconds_in(callback: Any) -> float:
    """What the meter's hooks took, and the callback's own: reading the logger, saying where steps
    lie."""
    return float(
        callback.meter._observer.seconds + callback._reader.seconds + callback.session.seconds
    )


def rows(scale: Scale) -> Iterator[Row]:
    """Trainer by trainer; a first round warms up, and what follows the last whole one is
    dropped."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain, ours = race(partial(train_sb3, folder, 2 + scale.rounds(), scale.of(ROLLOUT, 128)))
        yield from overhead_rows("SB3 PPO", plain, ours, at_most=0.02)
        integrations_trl.prepare(folder)
        for trainer, train, steps in (
            ("TRL GRPO", integrations_trl.train_grpo, scale.of(25, 2)),
            ("transformers Trainer", integrations_trl.train_trainer, scale.of(30, 2)),
        ):
            plain, ours = race(partial(train, folder, 1 + scale.rounds(), steps))
            yield from overhead_rows(trainer, plain, ours, at_most=0.02)
