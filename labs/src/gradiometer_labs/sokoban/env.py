"""Sokoban for policies that act (`Sokoban`, a Gymnasium environment) and for those that write
(`TextGame`)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from gradiometer.errors import UsageError
from gradiometer_labs.sokoban.levels import ACTIONS, SokobanLevel, generate, push

__all__ = ["Sokoban", "TextGame", "TurnResult", "parse_actions", "play"]

STEP_REWARD = -0.1
BOX_REWARD = 1.0
SOLVED_REWARD = 10.0
FORMAT_REWARD = -0.1

SYMBOLS = "#_OX√PS\n"
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.IGNORECASE | re.DOTALL)
_INDEX = {name.lower(): index for index, name in enumerate(ACTIONS)}


def play(level: SokobanLevel, action: int) -> tuple[SokobanLevel, float]:
    """One step and its reward: -0.1, +1 for each box that came onto a target, -1 for one that left,
    +10 when solved."""
    after, moved = push(level, action)
    if not moved or after.boxes == level.boxes:
        return after, STEP_REWARD
    reward = STEP_REWARD + BOX_REWARD * (after.on_target - level.on_target)
    return after, reward + SOLVED_REWARD if after.solved else reward


class Sokoban(gymnasium.Env[str, np.int64]):
    """Push every box onto a target; a new level each episode.

    `reset(options={"level_seed": 7})` plays that level, `options={"level": level}` one of your own.
    Keyword arguments that are not named here go to `levels.generate`.
    """

    # gymnasium declares it so
    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        *,
        size: int = 6,
        max_steps: int = 50,
        render_mode: str | None = None,
        **level_settings: int,
    ) -> None:
        if max_steps < 1:
            raise UsageError(f"max_steps={max_steps} leaves nothing to play: use 1 or more")
        generate(
            0, size=size, **level_settings
        )  # what cannot be is refused now, not at the first reset
        self.size, self.max_steps, self.render_mode = size, max_steps, render_mode
        self._level_settings = level_settings
        length = size * size + size - 1
        self.action_space = gymnasium.spaces.Discrete(len(ACTIONS))
        self.observation_space = gymnasium.spaces.Text(length, min_length=length, charset=SYMBOLS)
        self.level: SokobanLevel | None = None
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """A new level, from the environment's generator unless `options` names one."""
        super().reset(seed=seed)
        given = options or {}
        level = given.get("level")
        if level is None:
            level_seed = (
                int(given["level_seed"])
                if "level_seed" in given
                else int(self.np_random.integers(2**32))
            )
            level = generate(level_seed, size=self.size, **self._level_settings)
        if level.size != self.size:
            raise UsageError(
                f"the level is of size {level.size}, the environment of size {self.size}"
            )
        self.level, self._steps = level, 0
        return level.text(), self._info()

    def step(self, action: int | np.int64) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """A step up (0), down (1), left (2) or right (3); a step against a wall costs as much as
        any other."""
        if not 0 <= action < len(ACTIONS):
            raise UsageError(f"action {action} is not one of 0 up, 1 down, 2 left, 3 right")
        self.level, reward = play(self._playing(), int(action))
        self._steps += 1
        return (
            self.level.text(),
            reward,
            self.level.solved,
            self._steps >= self.max_steps,
            self._info(),
        )

    def render(self) -> str | None:
        """The room as text, with render_mode="ansi"."""
        return self._playing().text() if self.render_mode == "ansi" else None

    def _playing(self) -> SokobanLevel:
        if self.level is None:
            raise UsageError("there is no level yet: call reset() before step() and render()")
        return self.level

    def _info(self) -> dict[str, Any]:
        level = self._playing()
        return {"solved": level.solved, "boxes_on_target": level.on_target}


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """What an answer led to."""

    observation: str
    reward: float
    done: bool
    """Solved, or out of turns."""
    solved: bool
    actions: tuple[int, ...]
    """Those carried out; none if the answer could not be read."""
    valid: bool
    """Whether the answer could be read."""
    complete: bool
    """Whether it said as many moves as a turn has room for, and no more."""


class TextGame:
    """Several turns of a game with a player who writes: `reset(level)`, then `step(text)` until
    done."""

    def __init__(self, *, max_turns: int = 10, max_actions_per_turn: int = 3) -> None:
        self.max_turns, self.max_actions_per_turn = max_turns, max_actions_per_turn
        self.level: SokobanLevel | None = None
        self.turns = 0

    def reset(self, level: SokobanLevel) -> str:
        """The first observation of that level."""
        self.level, self.turns = level, 0
        return level.text()

    def step(self, text: str) -> TurnResult:
        """Carry out the actions of an answer, one after the other, until the level is solved."""
        level = self.level
        if level is None or level.solved or self.turns >= self.max_turns:
            raise UsageError("no game is on: call reset(level) first")
        self.turns += 1
        said = parse_actions(text, limit=self.max_actions_per_turn + 1)
        wanted = said[: self.max_actions_per_turn]
        reward = 0.0 if wanted else FORMAT_REWARD
        done_actions: list[int] = []
        for action in wanted:
            level, gained = play(level, action)
            reward += gained
            done_actions.append(action)
            if level.solved:
                break
        self.level = level
        return TurnResult(
            observation=level.text(),
            reward=reward,
            done=level.solved or self.turns >= self.max_turns,
            solved=level.solved,
            actions=tuple(done_actions),
            valid=bool(wanted),
            complete=len(said) == self.max_actions_per_turn,
        )


def parse_actions(text: str, *, limit: int) -> tuple[int, ...]:
    """The first `limit` actions of "Up || Right" or "<answer>Up || Right</answer>"; none if a word
    is no action."""
    answers = _ANSWER.findall(text)
    words = [word.strip().lower() for word in (answers[-1] if answers else text).split("||")]
    if not all(word in _INDEX for word in words):
        return ()
    return tuple(_INDEX[word] for word in words[:limit])
