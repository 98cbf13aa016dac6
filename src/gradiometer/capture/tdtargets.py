"""What values are trained towards, against what the environment really paid.

A sample of a squared error is found again in the environment's history by its observation: then its
action, its reward and whether it ended the episode are known. Three things must hold whatever the
networks say. Nothing follows an end, so the target there is the reward alone, scaled as the program
likes. The reward is in it. And the action beside an observation is the one that was taken there.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gradiometer.capture.actingchoices import ActingChoices
from gradiometer.capture.environment import Collection, EnvironmentView
from gradiometer.capture.leaks import leaves_of
from gradiometer.capture.logprobs import (
    SeenGraph,
    TrainedValues,
    observations,
    of_one_network,
    trained_towards,
)
from gradiometer.capture.proofs import ProofLog
from gradiometer.capture.targetbatches import MatchedTargets, TargetBatches, settled

__all__ = ["TargetReader"]

Floats = NDArray[np.float64]

FIRST_LOOK, GROWTH, MOST_LOOKS = 200, (1.25, 1.7), 16
"""Steps of the environment before ends of episodes are counted, how much later each look of the
first half and of the second half comes, and how many there are: a look builds an index of the
history, 20 to 40 ms."""
EVERY_LOSS = 8
"""Losses after which the looks of the first half come at the latest: a program that fills its
buffer first, and then learns much in few steps, is looked at as soon as it learns."""
AT_ONCE, EARLIEST, SHORT = 5, 64, 2_000
"""Looks besides, at the first losses of a training, one at each, and how long a history is by then
that tells something, and whose index costs little (4 ms)."""
EARLY = 4
"""Batches for the replay that are kept of those; later ones have more ends of episodes."""
NEAR_ROWS, MOST_NEAR, FIRST_NEAR = 64, 256, 8
"""A loss on fewer samples than this may be of the newest steps alone, and one end of an episode is
in it at most: such losses are looked at one by one, beside the newest steps only (under a
millisecond). How many, and after how many it is given up where none of its samples was there."""
MOST_ERRORS, MOST_ROWS = 4, 8192
NORMAL = (0.02, 0.05)
"""How far from 0 and 1 the mean and the deviation of normalised targets may be."""
MOST_ENDS, MOST_OTHERS = 256, 2048
"""Samples that are judged together, the newest: what a network says changes."""
ALIKE = (0.5, 2.0)
"""What follows an end, by the target, against what follows elsewhere, where ends are not masked."""
LEAST_ENDS, LEAST_OTHERS, LEAST_ACTIONS = 12, 32, 64
LEAST_EXACT = 6
"""Ends whose targets are numbers of other rows, exactly."""
OF_TWO = 24
"""The same where rewards are one of two: by chance once in 2²⁴."""
ROUNDED = 1e-4
"""Of the spread of targets, what is left of a sum of one number."""
LEAST_LOOKS, APART = 3, 16
"""Losses at different times: what a network says of the next observation changes. How many losses
lie between the first and the last of them."""
EXACT, CLEAR = 0.01, 0.1
"""Of the spread of all targets: what a right recipe leaves unexplained at ends (rounding), and what
is no rounding and no slowly changing scale of rewards."""
LEAST_SCALED = 8
"""Samples that tell the scale of actions."""
RIGHT, WRONG = 0.9, 0.95
"""Share of the actions that are those taken; share that a wrong way to store them explains."""
OTHER = 0.8
"""Share of actions that are those taken, from which on the others are few."""
LEAST_FROZEN = 4
"""Losses with one observation for all samples."""
EPISODE = 5
"""Steps of an episode, on the mean, from which on its first observation is a rare one."""

RENEWED, NEVER_BY_CHANCE = 4.0, 1e-9
"""Times as many steps of the environment as there were up to the newest sample ever seen, and how
likely samples drawn from all of them would be to have none of the newer ones."""
RECIPE, STORED, STALE = "recipe-mismatch", "misaligned-data", "stale-data"
OPPOSED = "update-opposes-reward"
OTHER_REWARDS = (
    "where episodes end, targets are not above 0 where something was paid: the program changes"
    " the rewards, or negates them"
)


class TargetReader:
    """Looks at a few losses of a training, and writes down what they prove."""

    def __init__(
        self,
        proofs: ProofLog,
        view: EnvironmentView,
        batches: TargetBatches,
        choices: ActingChoices,
    ) -> None:
        self._proofs, self._view, self._batches = proofs, view, batches
        self._choices = choices
        self._inputs: dict[str, float] = {}
        self._looks, self._next, self._at_once = 0, float(FIRST_LOOK), 0
        self._losses = self._near = self._near_rows = 0
        self._ended: deque[tuple[float, float, int]] = deque(maxlen=MOST_ENDS)
        """Target, reward and number of the loss of transitions that ended an episode, and of all
        others below."""
        self._others: deque[tuple[float, float, int]] = deque(maxlen=MOST_OTHERS)
        self._beside: deque[list[float]] = deque(maxlen=MOST_ENDS)
        self._taken: deque[tuple[bool, bool, bool]] = deque(maxlen=MOST_OTHERS)
        """Of each sample: whether its action is the one taken at its observation, whether it is the
        one taken just before, and whether the observation was the first of its episode."""
        self._length = math.nan
        self._frozen = self._moving = 0
        """Losses all of whose samples have one observation, and others."""
        self._elsewhere: deque[bool] = deque(maxlen=MOST_OTHERS)
        """Of samples whose action is not the one taken at their observation: whether it was taken
        at another one, and only there."""
        self._pairs: deque[tuple[float, float]] = deque(maxlen=MOST_OTHERS)
        """Of samples of choices: the action whose value is trained, and the one that was taken."""
        self._newest: list[tuple[int, int, int]] = []
        """Of each look the steps of the environment, how many of them the newest sample has before
        it, and how many samples there were."""
        self._asked = np.zeros(3, dtype=np.int64)
        """Samples, and of how many a copy of the network was asked about their own observation, and
        about the next one."""

    def graph_seen(self, seen: SeenGraph) -> None:
        """A loss goes backward in a measured step: has it squared errors?"""
        width, steps = self._view.width, self._view.steps
        if not seen.errors or self._looks >= MOST_LOOKS or not width:
            return
        self._losses += 1
        soon = self._looks < MOST_LOOKS // 2 and self._losses >= EVERY_LOSS * self._looks
        usual = steps >= self._next or (soon and steps >= FIRST_LOOK)
        first = self._at_once < AT_ONCE and EARLIEST <= steps <= SHORT
        is_due = usual or first
        self._look_near(seen, width)
        if not is_due and self._batches.is_ready:
            self._batches.forget()
            return
        told = (trained_towards(*each) for each in seen.errors[:MOST_ERRORS])
        found = [
            (each, leaves_of([each.below]))
            for each in (None if one is None else of_one_network(one) for one in told)
            if each is not None and 8 <= each.targets.numel() <= MOST_ROWS
        ]
        if is_due and found:
            self._note_inputs(found[0][0], width)
        self._batches.learn(found, width)
        if is_due and (history := self._view.history()) is not None:
            self._at_once += 1
            if usual:
                self._looks += 1
                self._next = GROWTH[self._looks > MOST_LOOKS // 2] * steps
            self._look(found, history, width)
        self._batches.forget()
        if self._looks >= MOST_LOOKS:
            self._batches.close()

    def _note_inputs(self, found: TrainedValues, width: int) -> None:
        data = observations(found.below, found.targets.numel(), width)
        if data is not None and data.ndim == 2 and data.shape[1] >= width:
            seen = data[:, :width].detach().float()
            self._inputs = {
                "credit/input_spread": float(seen.std()),
                "credit/input_largest": float(seen.abs().max()),
            }

    def take_inputs(self) -> dict[str, float]:
        """Spread and size of the observations of the last look, once."""
        taken, self._inputs = self._inputs, {}
        return taken

    def close(self) -> None:
        """Look no more."""
        self._looks = MOST_LOOKS
        self._batches.close()

    def _look_near(self, seen: SeenGraph, width: int) -> None:
        """A loss on a few samples, which may be the newest steps."""
        if self._near >= MOST_NEAR or (self._near >= FIRST_NEAR and not self._near_rows):
            return
        told = [trained_towards(*each) for each in seen.errors[:NEAR_ROWS]]
        found = [each for each in told if each is not None]
        rows = sum(each.targets.numel() for each in found)
        if not 0 < rows < NEAR_ROWS or len(seen.errors) > NEAR_ROWS:
            return
        newest = self._view.newest(2 * NEAR_ROWS)
        if newest is None:
            return
        self._near += 1
        if _is_normalised(found):
            return  # each loss has a scale of its own
        for each in found:
            matched = self._compare(each, set(), newest, width)
            self._near_rows += 0 if matched is None else len(matched.rows)
        self._judge()

    def _look(
        self, found: list[tuple[TrainedValues, set[int]]], history: Collection, width: int
    ) -> None:
        compared = (self._compare(each, trained, history, width) for each, trained in found)
        matched = [each for each in compared if each is not None]
        for each in matched[:1]:
            self._asked += self._batches.asked_about(each, history, width)
        if self._batches.kept < EARLY or self._at_once > AT_ONCE:
            self._batches.keep(matched, history, width)
        self._judge_age()
        self._judge_next()
        self._judge()

    def _judge(self) -> None:
        self._judge_actions()
        if self._proofs.state(STORED) != "found":  # or rewards and ends are of other samples
            self._judge_targets()

    def _compare(
        self, found: TrainedValues, trained: set[int], history: Collection, width: int
    ) -> MatchedTargets | None:
        data = observations(found.below, found.targets.numel(), width)
        if data is None or data.ndim != 2 or data.shape[1] < width:
            return None
        self._note_spread(data[:, :width], history)
        candidates = history.places(_host(data[:, :width]))
        self._note_age(candidates, history)
        rows = [row for row, places in enumerate(candidates) if len(places) == 1]
        places = np.array([candidates[row][0] for row in rows], dtype=np.int64)
        if len(places):
            self._note_samples(found, data, rows, places, history)
        chosen = found.actions
        return settled(
            MatchedTargets(found=found, trained=trained, rows=np.array(rows), places=places),
            candidates,
            None if chosen is None else _host(chosen).reshape(len(candidates), -1),
            history,
        )

    def _note_samples(
        self,
        found: TrainedValues,
        data: Tensor,
        rows: list[int],
        places: NDArray[np.int64],
        history: Collection,
    ) -> None:
        """Targets, rewards, ends and actions of samples that can be of no other transition."""
        width = self._view.width
        targets = _host(found.targets.reshape(-1))[rows]
        paid, over = history.rewards[places], history.ends.reshape(-1)[places] > 0
        cut = history.cuts.reshape(-1)[places] > 0
        counts = not _is_normalised([found]) and self._view.steps >= FIRST_LOOK
        for target, reward, ended, stopped in zip(targets, paid, over, cut, strict=True):
            if not stopped and counts:
                (self._ended if ended else self._others).append((target, reward, self._losses))
        if counts:
            self._note_neighbours(rows, targets, paid, over & ~cut, len(data))
        actions = found.actions if data.shape[1] == width else data[:, width:]
        if actions is not None:
            self._compare_actions(_host(actions)[rows], places, history)

    def _note_neighbours(
        self, rows: list[int], targets: Floats, paid: Floats, over: NDArray[np.bool_], num: int
    ) -> None:
        """Of each end in a batch the target, and what was paid in it, in the row before and in the
        row after; the last row comes before the first."""
        by_row = np.full(num, np.nan)
        by_row[rows] = paid
        before, after = np.roll(by_row, 1)[rows], np.roll(by_row, -1)[rows]
        self._beside += np.stack([targets, paid, before, after], axis=1)[over].tolist()

    def _compare_actions(self, stored: Floats, places: NDArray[Any], history: Collection) -> None:
        taken, first = history.actions, history.first
        stored = stored.reshape(len(places), -1)
        if taken is None or taken.shape[1] != stored.shape[1]:
            return
        before = places - history.ends.shape[1]
        known = before >= 0
        same = _are_equal(taken[places], stored)
        earlier = np.zeros(len(places), dtype=bool)
        earlier[known] = _are_equal(taken[before[known]], stored[known])
        if history.is_whole and stored.shape[1] == 1:
            self._pairs += zip(stored[:, 0].tolist(), taken[places, 0].tolist(), strict=True)
        self._elsewhere += _is_elsewhere(stored[~same], taken)
        begun = first.reshape(-1)[places]
        self._length = 1.0 / max(float(first.mean()), 1e-9)
        self._taken += [
            (bool(a), bool(b), bool(c))
            for a, b, c, k in zip(same, earlier, begun, known, strict=True)
            if k
        ]

    def _note_spread(self, data: Tensor, history: Collection) -> None:
        """Have all samples of a loss one observation, where the environment shows many?"""
        if len(data) < NEAR_ROWS // 2 or not history.varies:
            return
        rows = _host(data)
        share = _share_of_one(rows)
        same = share >= WRONG  # all but the first steps, before it froze
        self._frozen, self._moving = self._frozen + same, self._moving + (not same)
        if self._frozen >= LEAST_FROZEN and not self._moving:
            shown = bool(np.ptp(np.median(rows, axis=0)) > 0)  # zeros come from no environment
            self._proofs.found(
                STORED,
                f"{'all' if share == 1.0 else f'{share:.0%} of the'} samples of {self._frozen}"
                " losses have one and the same observation, where the environment shows many: "
                + (
                    "the observation is not replaced after a step"
                    if shown
                    else "what it shows does not reach the network"
                ),
                subject="observations",
                how="first" if shown else "one",
                samples=self._frozen * len(data),
            )

    def _note_age(self, candidates: list[list[int]], history: Collection) -> None:
        """How new is the newest sample, if each is the newest that it can be?"""
        there = [places[-1] for places in candidates if places]
        if len(history) < FIRST_LOOK or len(there) < RIGHT * len(candidates):
            return
        steps = self._view.steps
        self._newest.append((steps, steps - len(history) + 1 + max(there), len(there)))

    def _judge_age(self) -> None:
        """Is anything ever added to what samples are drawn from?"""
        if not self._newest:
            return
        steps, newest, rows = np.array(self._newest, dtype=np.float64).T
        last = float(newest.max())
        # of all that was there, had samples been drawn from it
        chance = rows * np.log(np.minimum(last / steps, 1.0))
        if steps[-1] < RENEWED * last:
            self._proofs.withdraw(STALE)
            if last >= RENEWED * newest[0]:
                self._proofs.ok(STALE)
            return
        if len(steps) >= LEAST_LOOKS and chance.sum() <= np.log(NEVER_BY_CHANCE):
            self._proofs.found(
                STALE,
                f"none of {int(rows.sum())} samples in {len(rows)} losses is newer than step"
                f" {last:.0f} of the environment, which has made {steps[-1]:.0f}: nothing was added"
                " to what they are drawn from since",
                subject="samples",
                how="never-renewed",
                newest=int(last),
                steps=int(steps[-1]),
                samples=int(rows.sum()),
            )

    def _has_rewards_of_neighbours(self) -> bool:
        """Whether targets of ends have the reward of the row beside them, to the last digit: a line
        through a few is no chance then."""
        if len(self._beside) < LEAST_EXACT:
            return False
        table = np.array(self._beside)
        for column, words in ((2, "before"), (3, "after")):
            targets, own, beside = table[np.isfinite(table[:, column])][:, [0, 1, column]].T
            differing = int((own != beside).sum())
            kinds = len(np.unique(beside))
            if differing < LEAST_EXACT or (kinds < LEAST_EXACT - 1 and differing < OF_TWO):
                continue
            slope, at = np.polyfit(beside, targets, 1)
            left = np.abs(targets - slope * beside - at)
            if slope > 0 and bool((left <= ROUNDED * targets.std()).all()):
                self._proofs.found(
                    RECIPE,
                    f"the targets of {len(targets)} transitions that ended their episode have the"
                    f" reward of the row {words} them in the batch; in {differing} of them another"
                    " one was paid",
                    subject="targets",
                    recipe="rewards-of-others",
                    samples=len(targets),
                )
                return True
        return False

    def _judge_targets(self) -> None:
        if self._has_rewards_of_neighbours():
            return
        if len(self._ended) < LEAST_ENDS or len(self._others) < LEAST_OTHERS:
            return
        ended, others = np.array(self._ended), np.array(self._others)
        looks, ended = ended[:, 2], ended[:, :2]
        spread = float(others[:, 0].std())
        paid = float(np.abs(ended[:, 1]).mean())
        if paid > 1e-3 and np.abs(ended[:, 0]).max() <= 1e-6 * paid:
            self._proofs.found(
                RECIPE,
                f"the targets of {len(ended)} transitions that ended their episode are 0, where"
                f" {paid:.3g} was paid on the mean: the reward is not in them",
                subject="targets",
                recipe="reward-missing",
                samples=len(ended),
            )
            return
        if spread == 0:
            return  # one target for all: nothing to compare with
        left = _unexplained(ended)
        if left <= EXACT * spread:
            self._note_checked(ended)
            return
        if _varies_by_look_alone(ended, looks, spread):
            return  # returns that are normalised batch by batch
        beyond, usual = (float((each[:, 0] - each[:, 1]).mean()) for each in (ended, others))
        # no scale of rewards, however it changes, turns their sign
        turned = float((ended[:, 0] * ended[:, 1] < 0).mean()) >= CLEAR
        if left >= CLEAR * spread and (turned or abs(beyond) >= CLEAR * abs(usual)):
            masked = usual == 0 or not ALIKE[0] <= beyond / usual <= ALIKE[1]
            self._proofs.found(
                RECIPE,
                f"at {len(ended)} transitions that ended their episode the target is the reward"
                f" {beyond:+.3g} on the mean ({usual:+.3g} elsewhere): "
                + ("they must be equal" if masked else "ends are not masked"),
                subject="targets",
                recipe="targets-wrong" if masked else "ends-not-masked",
                samples=len(ended),
            )

    def _note_checked(self, ended: Floats) -> None:
        """Rewards explain the targets at ends; with which sign?"""
        targets, paid = ended.T
        varies = paid.std() > 1e-9
        follows = np.polyfit(paid, targets, 1)[0] if varies else targets.mean() * paid.mean()
        self._choices.values_are_costs = bool(follows < 0)
        if follows > 0 and (count := self._rewards_alone()):
            self._proofs.found(
                RECIPE,
                f"the targets of {count} transitions that did not end their episode are the reward"
                " alone: nothing of what follows is in them",
                subject="targets",
                recipe="reward-alone",
                samples=count,
            )
        elif follows > 0:
            self._proofs.ok(RECIPE)
        else:
            self._proofs.unmeasurable(RECIPE, OTHER_REWARDS)
            exact = ROUNDED * max(float(np.abs(paid).max()), 1e-12)
            # who takes the least value learns costs, rightly
            if np.abs(targets + paid).max() <= exact and not self._choices.may_take_worst:
                self._proofs.found(
                    OPPOSED,
                    f"at {len(ended)} transitions that ended their episode the target of the value"
                    " is what was paid with the opposite sign, to the last digit",
                    subject="rewards",
                    how="rewards",
                    samples=len(ended),
                )

    def _rewards_alone(self) -> int:
        """How many transitions without an end have one scale of their rewards as target, to the
        last digit and in several losses; 0 where that is not so."""
        targets, paid, looks = np.array(self._others).T
        often = len(np.unique(looks)) >= LEAST_LOOKS and np.ptp(looks) >= APART
        if len(targets) < LEAST_ACTIONS or not often:
            return 0
        scale = float(targets @ paid) / max(float(paid @ paid), 1e-12)
        left = float(np.abs(targets - scale * paid).max())
        alone = paid.std() > 0 and left <= ROUNDED * float(targets.std())
        return len(targets) if alone else 0

    def _is_of_others(self) -> bool:
        """Whether actions are those of other samples: real numbers, each taken somewhere else."""
        enough = len(self._elsewhere) >= LEAST_ACTIONS
        return enough and float(np.mean(self._elsewhere)) >= WRONG

    def _is_other_action(self) -> bool:
        """Whether values of other actions are trained than were taken: discrete ones, whose history
        is known from the beginning, and not those of the step before."""
        pairs = list(self._pairs)
        if len(pairs) < LEAST_ACTIONS or any(a != round(a) for a, _ in pairs):
            return False
        same, earlier, _ = np.array(self._taken).mean(0)
        several = len({b for _, b in pairs}) > 1
        # numbers of their own are no fault, unless the network acts by those of the environment
        renumbered = _is_renumbered(pairs) and not self._choices.takes_best
        return several and max(same, earlier) < OTHER and not renumbered

    def _judge_next(self) -> None:
        """Is what comes next in a sample what came next?"""
        rows, own, following = self._asked.tolist()
        if (
            min(rows, len(self._taken)) < LEAST_ACTIONS
            or np.array(self._taken)[:, 0].mean() < RIGHT
        ):
            return  # where actions are of another step, so is what comes next
        if own >= WRONG * rows and following <= (1.0 - WRONG) * rows:
            self._proofs.found(
                STORED,
                f"of {rows} samples the target network is asked about the observation of the step"
                f" itself in {own}, about the next one in {following}",
                subject="next-observations",
                how="next",
                samples=rows,
            )

    def _judge_actions(self) -> None:
        if len(self._taken) < LEAST_ACTIONS:
            return
        same, earlier, first = np.array(self._taken).mean(0)
        rows = len(self._taken)
        if first >= WRONG and self._length >= EPISODE:
            self._proofs.found(
                STORED,
                f"{first:.0%} of {rows} samples have the first observation of their episode, which"
                f" lasts {self._length:.0f} steps: the observation is not replaced after a step",
                subject="observations",
                how="first",
                samples=rows,
            )
        elif same >= RIGHT:
            self._proofs.ok(STORED)
        elif self._is_other_action():
            chosen = {a for a, _ in self._pairs}
            self._proofs.found(
                STORED,
                f"{1.0 - same:.0%} of {rows} samples train the value of another action than the one"
                " that was taken at their observation"
                + (f": always that of action {min(chosen):g}" if len(chosen) == 1 else ""),
                subject="actions",
                how="action",
                samples=rows,
            )
        elif earlier < RIGHT and self._is_of_others():
            self._proofs.found(
                STORED,
                f"{1.0 - same:.0%} of {rows} samples have an action beside their observation that"
                " was taken at another observation, and never at this one",
                subject="actions",
                how="others",
                samples=rows,
            )
        elif earlier >= WRONG:
            self._proofs.found(
                STORED,
                f"{earlier:.0%} of {rows} samples have the action of the step before beside their"
                f" observation, {same:.0%} the one that was taken there: what is stored is the"
                " observation after the step",
                subject="observations",
                how="after",
                samples=rows,
            )


def _are_equal(taken: Floats, stored: Floats) -> NDArray[np.bool_]:
    """Of each row, whether the action that is stored is the one that was taken."""
    near = np.isclose(_as_stored(taken, stored), stored, rtol=1e-4, atol=1e-5)
    return np.asarray(near.all(1))


def _as_stored(taken: Floats, stored: Floats) -> Floats:
    """Actions in the units in which they are stored, where those are others: many a program keeps
    what its actor says, and scales it for the environment. Choices have no units."""
    if len(taken) < LEAST_SCALED or bool((stored == stored.round()).all()):
        return taken
    found = taken.copy()
    for column, told in zip(found.T, stored.T, strict=True):
        if column.std() > 0.0:
            scaled = np.polyval(np.polyfit(column, told, 1), column)
            if np.median(np.abs(scaled - told)) <= ROUNDED * told.std():
                column[:] = scaled
    return found


def _share_of_one(rows: Floats) -> float:
    """Of the rows, those that are equal to the one in the middle of them, column by column."""
    return float((rows == np.sort(rows, axis=0)[len(rows) // 2]).all(1).mean())


def _is_elsewhere(stored: Floats, taken: Floats) -> list[bool]:
    """Of actions that are real numbers: whether each is one that was taken, digit by digit."""
    if not len(stored) or bool((taken == np.round(taken)).all()):
        return []
    known = {row.tobytes() for row in taken.astype(np.float32)}
    return [row.tobytes() in known for row in stored.astype(np.float32)]


def _is_renumbered(pairs: list[tuple[float, float]]) -> bool:
    """Whether each action has another number in the loss, always the same."""
    kinds = set(pairs)
    return len(kinds) == len({a for a, _ in kinds}) == len({b for _, b in kinds})


def _is_normalised(found: list[TrainedValues]) -> bool:
    """Whether the targets of a loss were brought to mean 0 and deviation 1."""
    targets = np.concatenate([_host(each.targets.reshape(-1)) for each in found])
    if len(targets) < 3 or abs(targets.mean()) > NORMAL[0]:
        return False
    return any(abs(float(targets.std(ddof=k)) - 1.0) <= NORMAL[1] for k in (0, 1))


def _varies_by_look_alone(ended: Floats, looks: Floats, spread: float) -> bool:
    """Whether targets of equal rewards at ends are equal in each loss, and not over losses."""
    groups = [ended[looks == look] for look in np.unique(looks)]
    groups = [each for each in groups if len(each) > 1]
    if len(groups) < 2:
        return False
    return bool(max(_unexplained(each) for each in groups) <= EXACT * spread)


def _unexplained(ended: Floats) -> float:
    """What is left of the targets when the rewards explain what they can: the median of it, times
    what makes it a standard deviation of normal numbers."""
    targets, paid = ended.T
    if paid.std() > 1e-9:
        slope, at = np.polyfit(paid, targets, 1)
        targets = targets - slope * paid - at
    return 1.4826 * float(np.median(np.abs(targets - np.median(targets))))


def _host(x: Tensor) -> Floats:
    found: Floats = x.detach().double().cpu().numpy()
    return found
