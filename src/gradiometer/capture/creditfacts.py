"""What credit and the environment say together: values of a measured step, a sample of its pairs,
and facts that need no statistics.

A sample of the loss is found again among the transitions of the newest rollout by its observation:
what the first layer took is compared with what the environment gave, number by number. Facts are
told only of losses that learn from the newest rollout (`FRESH` of their samples are in it), and
only after two rollouts: a replay buffer holds older ones by then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gradiometer.capture.credit import CreditBatch, SampledRows
from gradiometer.capture.environment import Collection, EnvironmentView, Floats
from gradiometer.capture.proofs import ProofLog
from gradiometer.capture.rollouts import RolloutKeeper
from gradiometer.capture.rounds import Round
from gradiometer.maths.credit import correlation, ranks
from gradiometer.maths.scores import score_z
from gradiometer.records import Event, Row, Table, Vector

__all__ = ["CreditNotices"]

NDIndex = NDArray[np.int64]
Put = Callable[[Row | Event | Table | Vector], None]

PAIRS = 64
"""Samples of a step that are kept."""
LOOKS, SELDOM = 24, 8
"""Rollouts whose samples are looked for one by one, and from then on every how many."""
FRESH = 0.95
"""Share of the samples that must be found again in the newest rollout; the last observation of a
rollout may be of the next one."""
NEVER = 0.2
"""Share of actions that were never taken, from which on it is told: epsilon-greedy choices and
sticky actions are rarer."""
MOSTLY = 0.5
"""Share that must be found again where each may be of an episode that began before."""
LEAST_ROWS, LEAST_ROLLOUTS = 32, 2
SAME = 0.995
"""Rank correlation from which on one action is a function of the other: squashed or scaled."""
MISMATCH = 0.02
"""Mean |log ratio| before the first update; half precision and fused kernels stay below."""
CLIPPED = 0.005
"""A ratio this far from 1 whose sample has no credit at all: the clip took it."""
EPOCHS = 1.2
"""Times that the samples of a rollout must have been used for a ratio to have moved."""
SURE = 4
"""Steps that must all say so."""

TAKEN = 0.9
"""Share of actions that are those taken at their observation, where data is stored in order."""
EPISODE = 5
"""Steps of an episode, on the mean, from which on its first observation is a rare one."""
STORED = "misaligned-data"
NEVER_TAKEN, MISMATCHED = "score-not-zero-mean", "sampler-mismatch"
CERTAIN = 1e-6
"""A log-prob this close to 0 is of an action that is always taken."""
ALWAYS_ONE, ENTROPY = "ratio-always-one", "entropy-sign"


@dataclass(slots=True, kw_only=True)
class _Matched:
    """Rows of a loss that were found again in a rollout."""

    rows: NDIndex
    places: NDIndex
    certain: NDArray[np.bool_]
    """Whether a row can be of no other transition: who stays where he is sees the same again."""
    fresh: float
    never: float | None
    """Share of actions that were never taken at their observation; None where they cannot be
    compared."""


class CreditNotices:
    """Turns the credit of measured steps into values, pairs and facts."""

    def __init__(
        self, put: Put, proofs: ProofLog, view: EnvironmentView, rollouts: RolloutKeeper
    ) -> None:
        self._put, self._proofs, self._view, self._rollouts = put, proofs, view, rollouts
        self._untaken: Counter[int] = Counter()
        """Rows by rollout whose actions were never taken, and below all rows that were compared."""
        self._compared: Counter[int] = Counter()
        self._after: Counter[str] = Counter()
        """Rows that were looked for among the observations after a step too: how many there were,
        how many have the action that led there, and how many the one that was taken there."""
        self._begun: Counter[int] = Counter()
        """Rows by rollout that were compared with the first observations of episodes."""
        self._valued: Counter[str] = Counter()
        """Rows beside which values are trained: how many there were, of how many it is the value of
        their own observation, and of how many that of the next one."""
        self._values_are_own = False
        self._mismatched: dict[int, float] = {}
        self._others_too = False
        """Others were among them."""
        self._num_one = self._num_punished = self._searches = 0
        self._moved = self._rewarded = False

    def note(self, current: Round) -> dict[str, float]:
        """The step's values; its pairs are kept beside them."""
        batch: CreditBatch | None = current.credit
        if batch is None:
            return {}
        values = dict(batch.values)
        if not batch.samples:
            if batch.unmeasurable:
                self._unmeasurable(batch.unmeasurable)
            return values
        self._judge_entropy(batch, current.step)
        collection = self._collection()
        found = [self._match(each, collection) for each in batch.samples]
        if collection is not None:
            values |= self._correlations(batch.samples, found, collection)
            values |= self._scores(batch.samples, found)
            values |= self._gain(batch.samples, found, collection)
            values |= self._stale(batch.samples, found)
            self._judge_actions(batch.samples, found, collection, current.step)
            self._judge_ratio(batch.samples, found, collection, current)
            self._keep_credit(batch.samples, found, collection, current)
        self._keep_pairs(batch.samples, found, collection, current.step)
        return values

    def _unmeasurable(self, why: str) -> None:
        for id in (NEVER_TAKEN, MISMATCHED, ALWAYS_ONE):
            self._proofs.unmeasurable(id, why)

    def _collection(self) -> Collection | None:
        """The rollout to compare with, where one is due."""
        collection, number = self._view.collection, self._view.num_collections
        if collection is None:
            if number == 0:
                self._unmeasurable("no environment was seen in this process")
            return None
        return collection if number <= LOOKS or number % SELDOM == 0 else None

    def _match(self, samples: SampledRows, collection: Collection | None) -> _Matched | None:
        seen = samples.observations
        if collection is None or seen is None or not len(seen):
            return None
        candidates = collection.places(seen)
        there = [row for row, places in enumerate(candidates) if places]
        chosen = [candidates[row][0] for row in there]
        certain = np.array([len(candidates[row]) == 1 for row in there], dtype=bool)
        never = None
        taken, trained = collection.actions, samples.actions
        if taken is not None and trained is not None and there:
            never, chosen, alone = _compare(trained, taken, candidates, there, collection.space)
            certain |= alone
        return _Matched(
            rows=np.array(there, dtype=np.int64),
            places=np.array(chosen, dtype=np.int64),
            certain=certain,
            fresh=len(there) / len(seen),
            never=never,
        )

    def _correlations(
        self, samples: list[SampledRows], found: list[_Matched | None], collection: Collection
    ) -> dict[str, float]:
        pairs = [
            (one.credit[match.rows], match.places)
            for one, match in zip(samples, found, strict=True)
            if match is not None and match.fresh >= FRESH
        ]
        if not pairs:
            return {}
        credit, places = (np.concatenate(each) for each in zip(*pairs, strict=True))
        paid = {
            "credit/corr_reward": collection.rewards[places],
            "credit/corr_return": collection.returns[places],
        }
        given = credit != 0  # of what was clipped away nothing can be said
        all_of = {name: correlation(credit[given], x[given]) for name, x in paid.items()}
        return {name: value for name, value in all_of.items() if value is not None}

    def _scores(self, samples: list[SampledRows], found: list[_Matched | None]) -> dict[str, float]:
        """Before the first update on a rollout: are its actions samples of the policy?"""
        pairs = zip(samples, found, strict=True)
        fresh = [one for one, match in pairs if match is not None and match.fresh >= FRESH]
        held = [one.residuals for one in fresh if one.residuals is not None]
        if self._view.rounds != 1 or not held or len({each.shape[1] for each in held}) > 1:
            return {}
        ratios = [one.ratio for one in fresh if one.ratio is not None]
        if any(np.abs(each - 1.0).mean() > MISMATCH for each in ratios):
            return {}  # of another policy: that is a fact of its own
        residuals = torch.from_numpy(np.concatenate(held))
        if len(residuals) < LEAST_ROWS or not bool(residuals.isfinite().all()):
            return {}
        nothing = residuals.new_empty(len(residuals), 0)
        return {"credit/score_z": score_z(residuals, nothing)}

    def _gain(
        self, samples: list[SampledRows], found: list[_Matched | None], collection: Collection
    ) -> dict[str, float]:
        """After a first pass over a rollout: did it raise the probability of what earned more?"""
        used = [
            (one, one.ratio[match.rows], match.places)
            for one, match in zip(samples, found, strict=True)
            if match is not None and match.fresh >= FRESH and one.ratio is not None
        ]
        rows = sum(one.rows for one, _, _ in used)
        if not used or self._view.rounds * rows <= len(collection):
            return {}
        ratio, places = (np.concatenate([each[k] for each in used]) for k in (1, 2))
        moved = ratio > 0
        gain = correlation(np.log(ratio[moved]), collection.returns[places][moved])
        return {} if gain is None else {"credit/reward_gain": gain}

    def _stale(self, samples: list[SampledRows], found: list[_Matched | None]) -> dict[str, float]:
        """Share of the samples that are of earlier rollouts, where all are of the environment."""
        rows = stale = 0
        for one, match in zip(samples, found, strict=True):
            if match is None or one.observations is None:
                continue
            number = len(one.observations)
            search = match.fresh < FRESH and self._searches < LOOKS
            old = self._num_older(one.observations, match) if search else 0
            if len(match.rows) + old >= FRESH * number:
                rows, stale = rows + number, stale + old
        return {"credit/stale_share": stale / rows} if rows else {}

    def _num_older(self, observations: Floats, match: _Matched) -> int:
        """Of the rows that are not in the newest rollout, those that an earlier one has."""
        self._searches += 1
        history = self._view.history()
        if history is None:
            return 0
        others = np.delete(observations, match.rows, axis=0)
        return sum(bool(places) for places in history.places(others))

    def _judge_actions(
        self,
        samples: list[SampledRows],
        found: list[_Matched | None],
        collection: Collection,
        step: int,
    ) -> None:
        """Are these the log-probs of what was done?"""
        self._judge_order(samples, collection, step)
        self._judge_first(found, collection, step)
        self._judge_values(samples, found, collection, step)
        if all(match is None or match.fresh < FRESH for match in found):
            self._unmeasurable(
                "the observations of the loss are not those of the newest rollout: a replay buffer,"
                " or a policy that prepares them"
            )
            return
        resampled = any(each.resampled for each in samples)
        for match in found:
            if match is not None and match.fresh >= FRESH and match.never is not None:
                self._compared[collection.number] += len(match.rows)
                self._untaken[collection.number] += round(match.never * len(match.rows))
        rows, untaken = sum(self._compared.values()), sum(self._untaken.values())
        guilty = [n for n, k in self._untaken.items() if k > NEVER * self._compared[n]]
        if rows < LEAST_ROWS or len(self._compared) < LEAST_ROLLOUTS:
            return
        if untaken <= NEVER * rows or len(guilty) < LEAST_ROLLOUTS:
            self._proofs.ok(NEVER_TAKEN)
            return
        how = "they are drawn anew in the training forward" if resampled else "others were taken"
        self._proofs.found(
            NEVER_TAKEN,
            f"{untaken} of {rows} log-probs in the loss are of actions that the environment was"
            f" never given at that observation: {how}",
            step=step,
            share=untaken / rows,
            rows=rows,
            rollouts=len(guilty),
            resampled=resampled,
        )

    def _judge_order(self, samples: list[SampledRows], collection: Collection, step: int) -> None:
        """Is the action beside an observation the one that led to it? Then what is stored is the
        observation after the step."""
        if self._proofs.state(STORED) is not None or collection.actions is None:
            return
        for one in samples:
            seen, trained = one.observations, one.actions
            if seen is None or trained is None or trained.shape[1] != collection.actions.shape[1]:
                continue
            seen = seen[: len(trained)]
            here, before = collection.places(seen), collection.places_after(seen)
            known = [row for row in range(len(seen)) if len(before[row]) == 1]
            self._after["rows"] += len(seen)
            self._after["led"] += _num_same(trained, collection.actions, before, known)
            self._after["taken"] += _num_same(
                trained, collection.actions, here, [row for row in known if here[row]]
            )
            self._after["both"] += sum(bool(here[row]) for row in known)
        rows, led, taken, both = (self._after[each] for each in ("rows", "led", "taken", "both"))
        if both < LEAST_ROWS or self._view.num_collections < LEAST_ROLLOUTS:
            return
        if taken > TAKEN * both:
            self._proofs.ok(STORED)
        elif led >= FRESH * rows:
            self._proofs.found(
                STORED,
                f"{led / rows:.0%} of {rows} samples have the action of the step before beside"
                f" their observation, {taken / both:.0%} the one that was taken there: what is"
                " stored is the observation after the step",
                step=step,
                subject="observations",
                how="after",
                samples=rows,
            )

    def _judge_first(self, found: list[_Matched | None], collection: Collection, step: int) -> None:
        """Has every sample the first observation of its episode? Then it is never replaced."""
        begun = collection.first.reshape(-1)
        if begun.mean() * EPISODE > 1.0 or self._proofs.state(STORED) == "found":
            return
        for match in found:
            # what is missing is of an episode that began in the rollout before
            if match is not None and match.fresh >= MOSTLY:
                first = int(begun[match.places].sum())
                many = first >= FRESH * len(match.rows) and len(np.unique(match.places)) > 1
                self._others_too = self._others_too or not many
                self._begun[collection.number] += len(match.rows)
        rows = sum(self._begun.values())
        enough = len(self._begun) >= LEAST_ROLLOUTS and rows >= 2 * LEAST_ROWS
        if enough and not self._others_too:
            self._proofs.found(
                STORED,
                f"{FRESH:.0%} and more of {rows} samples of {len(self._begun)} rollouts have the"
                " first observation of an episode, which lasts"
                f" {1.0 / max(float(begun.mean()), 1e-3):.0f} steps: the observation is not"
                " replaced after a step",
                step=step,
                subject="observations",
                how="first",
                samples=rows,
            )

    def _judge_values(
        self,
        samples: list[SampledRows],
        found: list[_Matched | None],
        collection: Collection,
        step: int,
    ) -> None:
        """Beside the log-probs of these samples, whose values are trained?"""
        told = [each for each in self._rollouts.values_of if each.device.type == "cpu"]
        if not told or self._values_are_own or self._proofs.state(STORED) == "found":
            return
        for one, match in zip(samples, found, strict=True):
            fitting = [each for each in told if len(each) == one.rows]
            if match is None or match.fresh < FRESH or len(match.rows) < 2 or not fitting:
                continue
            own, after = (f(match.places) for f in (collection.began_with, collection.led_to))
            rows = one.stride * match.rows
            if own is None or after is None or any(x.shape[1] != own.shape[1] for x in fitting):
                continue
            over = (collection.ends + collection.cuts).reshape(-1)[match.places] > 0
            other = (own != after).any(1) & ~over
            valued = [each.float().numpy()[rows] for each in fitting]
            for name, wanted in (("own", own), ("next", after)):
                same = np.any([(each == wanted).all(1) for each in valued], axis=0)
                self._valued[name] += int(same[other].sum())
            self._valued["rows"] += int(other.sum())
        self._tell_values(step)

    def _tell_values(self, step: int) -> None:
        rows, own, following = (self._valued[each] for each in ("rows", "own", "next"))
        enough = rows >= 2 * LEAST_ROWS and self._view.num_collections > LEAST_ROLLOUTS
        self._values_are_own = enough and own >= FRESH * rows
        if enough and following >= FRESH * rows and own <= (1.0 - FRESH) * rows:
            self._proofs.found(
                STORED,
                f"{following / rows:.0%} of {rows} samples have the value of the next observation"
                f" beside the log-prob of their own, {own / rows:.0%} that of their own: the error"
                " of the value is of V(next)",
                step=step,
                subject="values",
                how="next-values",
                samples=rows,
            )

    def _judge_ratio(
        self,
        samples: list[SampledRows],
        found: list[_Matched | None],
        collection: Collection,
        current: Round,
    ) -> None:
        """1 before the first update on a rollout; not 1 any more after some."""
        fresh = [
            (one.ratio, one.rows)
            for one, match in zip(samples, found, strict=True)
            if one.ratio is not None and match is not None and match.fresh >= FRESH
        ]
        if not fresh:
            return
        ratio = np.concatenate([each for each, _ in fresh])
        rows = sum(rows for _, rows in fresh)
        if self._view.rounds == 1:
            self._judge_first_ratio(ratio, collection, current.step)
        elif (
            self._view.rounds * rows > EPOCHS * len(collection)
            and _moves(current)
            and not any(map(_certain, samples))
        ):
            self._judge_later_ratio(ratio, current.step)

    def _judge_first_ratio(self, ratio: Floats, collection: Collection, step: int) -> None:
        with np.errstate(divide="ignore"):
            error = float(np.abs(np.log(ratio)).mean())
        if error < MISMATCH:
            self._proofs.ok(MISMATCHED)
            return
        self._mismatched[collection.number] = error
        if len(self._mismatched) >= LEAST_ROLLOUTS and self._proofs.state(MISMATCHED) != "ok":
            self._proofs.found(
                MISMATCHED,
                "before the first update on a rollout the log-probs of its actions differ from"
                f" those at sampling by {error:.3g} nats on the mean; the weights are the same",
                step=step,
                error=error,
                rollouts=len(self._mismatched),
            )

    def _judge_later_ratio(self, ratio: Floats, step: int) -> None:
        if np.any(ratio != 1.0):
            self._moved = True
            self._proofs.ok(ALWAYS_ONE)
            return
        self._num_one += 1
        if self._num_one >= SURE and not self._moved:
            self._proofs.found(
                ALWAYS_ONE,
                f"the ratio is exactly 1 for every sample of {self._num_one} measured steps that"
                " use their rollout again: the old log-probs follow the new ones",
                step=step,
                steps=self._num_one,
            )

    def _judge_entropy(self, batch: CreditBatch, step: int) -> None:
        slope = batch.values.get("credit/entropy_slope")
        if not batch.num_entropies or slope is None or slope == 0 or not np.isfinite(slope):
            return
        if slope < 0:
            self._rewarded = True
            self._proofs.ok(ENTROPY)
            return
        self._num_punished += 1
        if self._num_punished >= SURE and not self._rewarded:
            self._proofs.found(
                ENTROPY,
                f"dL/dH = {slope:+.3g} over {self._num_punished} measured steps: the loss falls"
                " when the entropy of the policy does",
                step=step,
                slope=slope,
            )

    def _keep_credit(
        self,
        samples: list[SampledRows],
        found: list[_Matched | None],
        collection: Collection,
        current: Round,
    ) -> None:
        """For the replay: what the samples of a rollout's first epoch were given."""
        if self._rollouts.done:
            return
        if self._view.rounds == 1:
            self._rollouts.begin(collection, current.step)
        starts = np.cumsum([0, *(one.rows for one in samples)])
        parts = [
            _certain_part(one, match, int(start))
            for one, match, start in zip(samples, found, starts, strict=False)
            if match is not None and match.fresh >= FRESH and match.certain.any()
        ]
        if parts:
            self._rollouts.add(collection, current.number, parts)

    def _keep_pairs(
        self,
        samples: list[SampledRows],
        found: list[_Matched | None],
        collection: Collection | None,
        step: int,
    ) -> None:
        """Rows of credit, log-prob, first action, reward and return; NaN for what is not known."""
        one, match = samples[0], found[0]
        table = np.full((min(PAIRS, len(one.credit)), 5), np.nan)
        table[:, 0] = one.credit[: len(table)]
        if one.log_probs is not None:
            table[:, 1] = one.log_probs[: len(table)]
        if one.actions is not None:
            table[:, 2] = one.actions[: len(table), 0]
        if match is not None and collection is not None:
            near = match.rows < len(table)
            table[match.rows[near], 3] = collection.rewards[match.places[near]]
            table[match.rows[near], 4] = collection.returns[match.places[near]]
        self._put(Vector(step=step, name="credit/pairs", values=table.reshape(-1)))


def _certain_part(
    samples: SampledRows, match: _Matched, start: int
) -> tuple[Floats, NDIndex, NDIndex]:
    """Credit, transition and place in the batch of the rows that are of one transition alone.

    The credit of a ratio is ratio · A: it is divided out, and what was clipped away is left out.
    """
    ratio = np.ones_like(samples.credit) if samples.ratio is None else samples.ratio
    clipped = (samples.credit == 0) & (np.abs(ratio - 1.0) > CLIPPED)
    kept = match.certain & ~clipped[match.rows] & (ratio[match.rows] > 0)
    rows = match.rows[kept]
    return samples.credit[rows] / ratio[rows], match.places[kept], start + samples.stride * rows


def _certain(samples: SampledRows) -> bool:
    """Whether every action had probability 1: the ratio of such a policy is 1 however it moves."""
    return samples.log_probs is not None and bool(np.all(np.abs(samples.log_probs) < CERTAIN))


def _moves(current: Round) -> bool:
    """Whether a step of this size can be seen in a ratio of single precision."""
    rates = [rate for group in current.learning_rates.values() for rate in group]
    return bool(rates) and max(rates) > 1e-6


def _compare(
    trained: Floats,
    taken: Floats,
    candidates: list[list[int]],
    there: list[int],
    space: tuple[Floats, Floats] | None,
) -> tuple[float | None, list[int], NDArray[np.bool_]]:
    """Share of the rows whose action was never taken at their observation; of each row the
    transition that it is most likely of, and whether its action was taken in no other."""
    if trained.shape[1] != taken.shape[1]:
        return None, [candidates[row][0] for row in there], np.zeros(len(there), dtype=bool)
    clipped = trained if space is None else np.clip(trained, *space)
    equal = _same_actions(trained, taken, candidates, there)
    if clipped is not trained:
        equal = equal | _same_actions(clipped, taken, candidates, there)
    counts = [len(candidates[row]) for row in there]
    starts = np.cumsum([0, *counts[:-1]])
    times = np.add.reduceat(equal.astype(np.int64), starts)
    never = float(np.mean(times == 0))
    chosen = [candidates[row][0] for row in there]
    if max(counts) > 1:
        of_rows = zip(there, np.split(equal, starts[1:]), strict=True)
        # the first of equals, or of none
        chosen = [candidates[row][int(its.argmax())] for row, its in of_rows]
    if never > 0 and _is_function(trained[there], taken[chosen]):
        never = 0.0
    return never, chosen, times == 1


def _same_actions(
    trained: Floats, taken: Floats, candidates: list[list[int]], rows: list[int]
) -> NDArray[np.bool_]:
    """Of every transition that a row may be of, row by row: whether it took the row's action."""
    of = np.repeat(rows, [len(candidates[row]) for row in rows])
    places = [place for row in rows for place in candidates[row]]
    a, b = taken[places], trained[of]
    with np.errstate(invalid="ignore"):
        # np.isclose does this too, at four times the price
        close = (a == b) | (np.abs(a - b) <= 1e-5 + 1e-4 * np.abs(b))
    found: NDArray[np.bool_] = close.all(1)
    return found


def _num_same(trained: Floats, taken: Floats, candidates: list[list[int]], rows: list[int]) -> int:
    """Rows whose action was taken in one of their transitions."""
    known = [row for row in rows if candidates[row]]
    if not known:
        return 0
    same = _same_actions(trained, taken, candidates, known)
    starts = np.cumsum([0, *(len(candidates[row]) for row in known[:-1])])
    return int(np.logical_or.reduceat(same, starts).sum())


def _is_function(trained: Floats, taken: Floats) -> bool:
    """Whether what was taken follows from what is trained: numbered otherwise, scaled, squashed."""
    if len(trained) < LEAST_ROWS:
        return False
    kinds = {tuple(row) for row in trained.tolist()}
    if len(kinds) <= len(trained) // 8:
        pairs = {
            (tuple(a), tuple(b)) for a, b in zip(trained.tolist(), taken.tolist(), strict=True)
        }
        return 1 < len(kinds) == len(pairs)
    columns = zip(trained.T, taken.T, strict=True)
    found = [correlation(ranks(a), ranks(b)) for a, b in columns]
    return all(each is not None and abs(each) > SAME for each in found)
