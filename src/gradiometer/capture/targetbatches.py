"""Batches of Q-learning for the replay: targets, rewards and ends beside what the networks said of
the next observations, a few hundred rows each, as tables `target-replay` in the run
(maths/targetrecipes.py has the recipes)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gradiometer.capture.environment import Collection as History
from gradiometer.capture.logprobs import TrainedValues, observations
from gradiometer.capture.nextanswers import AskedNetwork, HeardCall, HeardLogProb, NextAnswers

__all__ = ["MatchedTargets", "TargetBatches", "settled"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_BATCHES, MOST_ROWS, LEAST_ROWS = 8, 128, 24
"""Batches of a run that are kept, 10 to 20 kB each; rows of one; rows that must be found again."""
ALIGNED = 0.9
"""Of the rows: whose next observation must be what the network was given in that row."""
SAME = 1e-4
"""Of their spread, what actions may differ by from the tanh of what was drawn."""
DIGITS = 8
MOST_PLACES = 64
"""Transitions that began with one observation and are compared with each other, the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedTargets:
    """The targets of one error of a loss, and the transitions of its samples."""

    found: TrainedValues
    trained: Collection[int]
    """The parameters below the error, by id."""
    rows: Ints
    """Samples that were found again, and below their transitions."""
    places: Ints


def settled(
    matched: MatchedTargets,
    candidates: Sequence[Sequence[int]],
    chosen: Floats | None,
    history: History,
) -> MatchedTargets | None:
    """With the samples of states that were seen again, where all transitions from there with the
    chosen action paid the same and led to the same; None where no sample is known."""
    taken, found = history.actions, dict(zip(matched.rows.tolist(), matched.places, strict=True))
    again = [row for row, places in enumerate(candidates) if len(places) > 1]
    if chosen is not None and taken is not None and chosen.shape[1] == taken.shape[1] and again:
        over, cut = history.ends.reshape(-1), history.cuts.reshape(-1)
        following = history.following or [b""] * len(history)
        for row in again:
            alike = [p for p in candidates[row][-MOST_PLACES:] if (taken[p] == chosen[row]).all()]
            alike = [p for p in alike if not cut[p]]
            outcomes = {(history.rewards[p], over[p], over[p] or following[p]) for p in alike}
            if len(outcomes) == 1:
                found[row] = np.int64(alike[-1])
    rows = np.array(sorted(found), dtype=np.int64)
    places = np.array([found[row] for row in rows.tolist()], dtype=np.int64)
    return replace(matched, rows=rows, places=places) if len(rows) else None


class TargetBatches:
    """Puts batches together and writes them, as long as there is room."""

    def __init__(self, put: Callable[[dict[str, Any]], None], answers: NextAnswers) -> None:
        self._put, self._answers = put, answers
        self.kept = 0
        self._has_learned = False

    @property
    def done(self) -> bool:
        """Whether enough is kept."""
        return self.kept >= MOST_BATCHES

    @property
    def is_ready(self) -> bool:
        """Whether the networks are known, and none has been replaced since."""
        return self._has_learned and self._answers.are_alive

    def learn(self, found: Sequence[tuple[TrainedValues, Collection[int]]], width: int) -> None:
        """A loss has these errors: which networks are trained by them?"""
        if found and not self.done:
            self._has_learned = True
            choosing = any(each.actions is not None for each, _ in found)
            self._answers.learn(
                [parameters for _, parameters in found],
                distributions=not choosing,
                search=choosing or any(_is_of_actions(each, width) for each, _ in found),
            )

    def close(self) -> None:
        """Listen no more."""
        self._answers.stop()

    def forget(self) -> None:
        """A loss was looked at: what was said before it is of the past."""
        self._answers.forget()

    def keep(self, matched: Sequence[MatchedTargets], history: History, width: int) -> None:
        """The errors of one loss, with what was said before it."""
        if matched and not self.done:
            content = self._content(matched, history, width)
            if content is not None:
                self.kept += 1
                self._put(content)
        if self.done:
            self._answers.stop()

    def _content(
        self, matched: Sequence[MatchedTargets], history: History, width: int
    ) -> dict[str, Any] | None:
        first = matched[0]
        targets = _flat(first.found.targets)
        sharing = [each for each in matched if _is_same(_flat(each.found.targets), targets)]
        whole = history.cuts.reshape(-1)[first.places] == 0
        rows, places = first.rows[whole][:MOST_ROWS], first.places[whole][:MOST_ROWS]
        following = history.led_to(places) if len(rows) >= LEAST_ROWS else None
        if following is None:
            return None
        over = history.ends.reshape(-1)[places] > 0
        calls = self._aligned(following, rows, ~over, len(targets), width)
        kept = over | np.all([at >= 0 for *_, at in calls] or [over], axis=0)
        rows, places, over = rows[kept], places[kept], over[kept]
        calls = [(each, call, at[kept]) for each, call, at in calls]
        choosing = first.found.actions is not None
        target, online = (
            [
                x
                for each, call, at in calls
                if each.is_trained is own
                for x in _columns(call, choosing, at)
            ]
            for own in (False, True)
        )
        if not target and not online:
            return None
        content: dict[str, Any] = {
            "targets": _short(targets[rows]),
            "rewards": _short(history.rewards[places]),
            "paid_before": _short(_paid(history, places, -1)),
            "paid_after": _short(_paid(history, places, 1)),
            "ends": over.astype(int).tolist(),
            "target": [_short(each) for each in target],
            "online": [_short(each) for each in online],
            "critics": len({frozenset(each.trained) for each in sharing}),
            "copies": max(len(target), sum(not each.is_trained for each in self._answers.networks)),
            "has_target": self._has_target(),
        }
        if choosing:
            return content | _choices(history, places, over)
        acted = next((each for each in calls if not each[0].is_trained), calls[-1])
        logs = self._log_probs(acted[1].given[:, width:], acted[2])
        return content | {"log_probs": logs, "is_soft": self._answers.is_soft}

    def _aligned(
        self, following: Floats, rows: Ints, known: NDArray[np.bool_], num: int, width: int
    ) -> list[tuple[AskedNetwork, HeardCall, Ints]]:
        """Of each network the last call that is about the next observations of the samples, and
        which of its rows is about each."""
        found: list[tuple[AskedNetwork, HeardCall, Ints]] = []
        for each in self._answers.networks:
            for call in reversed(each.calls):
                at = _rows_about(call, following, rows, known, num, width)
                if at is not None:
                    found.append((each, call, at))
                    break
        return found

    def asked_about(
        self, matched: MatchedTargets, history: History, width: int
    ) -> tuple[int, int, int]:
        """Samples whose next observation is another than their own: how many there are, of how many
        a copy of the trained network was asked about their own, and of how many any network about
        the next one."""
        over = (history.ends + history.cuts).reshape(-1)[matched.places] > 0
        rows, places = matched.rows[~over], matched.places[~over]
        own, following = history.began_with(places), history.led_to(places)
        if own is None or following is None:
            return 0, 0, 0
        other = (own != following).any(1)
        num = matched.found.targets.numel()

        def seen(calls: Iterable[Tensor]) -> list[Floats]:
            fit = [x for x in calls if len(x) == num and x.shape[1] >= width]
            return [x[:, :width].numpy()[rows] for x in fit]

        def most(given: Iterable[Floats], wanted: Floats) -> int:
            return max(int((each == wanted).all(1)[other].sum()) for each in given)

        copies = seen(self._given_to_copies(width))
        if not copies:
            return 0, 0, 0
        every = seen(call.given for network in self._answers.networks for call in network.calls)
        return int(other.sum()), most(copies, own), most(every, following)

    def _given_to_copies(self, width: int) -> Iterator[Tensor]:
        """What copies were asked. Not the values of stored actions, which the trained network gives
        too: they may be a baseline or an advantage (IQL), and are no part of a target."""
        networks = self._answers.networks
        trained = [call.given for each in networks if each.is_trained for call in each.calls]
        for network in networks:
            if not network.is_trained:
                for call in network.calls:
                    stored = any(torch.equal(call.given, each) for each in trained)
                    if not (stored and call.given.shape[1] > width):
                        yield call.given

    def _has_target(self) -> bool:
        copies = (each for each in self._answers.networks if not each.is_trained)
        return any(each.called_target and each.has_moved for each in copies)

    def _log_probs(self, actions: Tensor, rows: Ints) -> list[dict[str, Any]]:
        """Those of the actions that the critics were asked about."""
        found = [_log_prob(each, actions) for each in self._answers.log_probs]
        return [
            {
                "normal": _short(_flat(normal)[rows]),
                "slopes": [_short(_flat(slope)[rows]) for slope in slopes],
            }
            for normal, slopes in (each for each in found if each is not None)
        ]


def _rows_about(
    call: HeardCall,
    following: Floats,
    rows: Ints,
    known: NDArray[np.bool_],
    num: int,
    width: int,
) -> Ints | None:
    """Which row of a call is about the next observation of each sample, −1 where none is; None
    where they are about something else. Some programs leave out what follows an end."""
    given = call.given[:, :width].numpy()
    if not known.any() or following.shape[1] != given.shape[1] or len(given) > num:
        return None
    if len(given) == num:
        same = (given[rows] == following).all(1)[known].mean() >= ALIGNED
        return rows if same else None
    places = {row.tobytes(): n for n, row in enumerate(given)}
    at = np.array([places.get(row.tobytes(), -1) for row in following], dtype=np.int64)
    at[~known] = -1
    in_order = bool((np.diff(at[at >= 0]) > 0).all())
    return at if in_order and (at[known] >= 0).mean() >= ALIGNED else None


def _is_of_actions(found: TrainedValues, width: int) -> bool:
    """Whether values are of observations and actions, side by side."""
    data = observations(found.below, found.targets.numel(), width)
    return data is not None and data.ndim == 2 and data.shape[1] > width


def _log_prob(heard: HeardLogProb, actions: Tensor) -> tuple[Tensor, list[Tensor]] | None:
    """Log-probabilities of these actions, and log |da/du| in three forms if they are squashed; None
    where they are of others."""
    drawn = heard.value
    if drawn.shape != actions.shape:
        return None
    if _line(drawn, actions) is not None:
        return heard.log_prob, []
    scales = _line(drawn.tanh(), actions)
    if scales is None or not heard.is_normal:
        return None
    left = 1.0 - drawn.double().tanh().square()
    exact = 2.0 * (math.log(2.0) - drawn.double() - F.softplus(-2.0 * drawn.double()))
    forms = exact, (left + 1e-6).log(), (scales * left + 1e-6).log()
    return heard.log_prob, [form.sum(1) for form in forms]


def _line(x: Tensor, y: Tensor) -> Tensor | None:
    """The slope of each column, where y is a line in x."""
    x, y = x.double(), y.double()
    x0, y0 = x - x.mean(0), y - y.mean(0)
    slopes = (x0 * y0).sum(0) / x0.square().sum(0).clamp(min=1e-12)
    left = (y0 - slopes * x0).square().mean(0).sqrt()
    return slopes if bool((left <= SAME * y0.square().mean(0).sqrt()).all()) else None


def _columns(call: HeardCall, choosing: bool, at: Ints) -> list[Floats]:
    """Values of all actions together, or of each critic by itself; 0 where nobody asked."""
    said = np.where(at[:, None] >= 0, call.said.double().numpy()[at], 0.0)
    if choosing:
        return [said] if said.shape[1] > 1 else []
    return list(said.T)


def _paid(history: History, places: Ints, steps: int) -> Floats:
    """So many steps later, in the same environment; at either end of the history what was paid."""
    moved = places + steps * history.ends.shape[1]
    there = (moved >= 0) & (moved < len(history))
    paid: Floats = history.rewards[np.where(there, moved, places)]
    return paid


def _choices(history: History, places: Ints, over: NDArray[np.bool_]) -> dict[str, Any]:
    """The action of each transition and of the one after it, −1 where that is not known."""
    taken = history.actions
    if taken is None or taken.shape[1] != 1:
        return {}
    after = places + history.ends.shape[1]
    known = (after < len(taken)) & ~over
    later = np.where(known, taken[np.minimum(after, len(taken) - 1), 0], -1)
    return {
        "taken": taken[places, 0].astype(int).tolist(),
        "next_taken": later.astype(int).tolist(),
    }


def _is_same(some: Floats, others: Floats) -> bool:
    """But for rounding: of an error written by hand the target is what is left of a difference."""
    near = 1e-5 * float(np.abs(others).max())
    return some.shape == others.shape and bool(np.allclose(some, others, rtol=0.0, atol=near))


def _flat(x: Tensor) -> Floats:
    found: Floats = x.detach().double().cpu().reshape(-1).numpy()
    return found


def _short(x: Floats) -> Any:
    """As lists, with the digits of a float."""
    if x.ndim > 1:
        return [_short(row) for row in x]
    return [float(f"{value:.{DIGITS}g}") for value in x.tolist()]
