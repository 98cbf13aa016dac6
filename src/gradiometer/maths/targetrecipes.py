"""Which recipe made these targets? Q-learning, TD3 and SAC train values towards

    y = r + γ (1 − end) (X − α log π(a'|s')),

and X is what some network said of the next observation. The answers are those that the training
itself computed, so the recipe that made the targets leaves nothing but rounding unexplained. Each
is fitted by least squares, a batch at a time, on one half of the rows:

    y_i ≈ a + k r_i + γ m_i X_i − γα m_i log π_i,        m_i = 1 − end_i,

and judged by what it explains of the other half, beyond what a and k r explain there. A shift and a
scale of rewards are a program's own choice, and α changes from step to step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "LogProbs",
    "ReplayedTargets",
    "TargetBatch",
    "TargetFit",
    "TargetRecipe",
    "replay_targets",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

EXACT, CLEAR, TIMES = 1e-7, 1e-5, 100.0
"""Of the spread (as variance): what the recipe that made the targets may leave (rounding), what the
right ones must leave before a wrong one is proved, and how many times as much as the wrong one."""
FITS = 1e-5
"""What a right recipe may leave to count as checked."""
LEAST_ROWS, LEAST_BATCHES, LEAST_HALF = 64, 2, 12
ROUNDING = 1e-6
"""Of the largest target: a spread below it is that of rounded numbers."""
SPREAD = 1e-3
"""Of the largest target: what answers must spread by, or rewards, for their factor to be known."""
NO_REWARD, ABOVE_ONE, NO_ENTROPY = 1e-3, 1.0005, 1e-5
"""A factor of the rewards that is none, a discount that is no rounded 1, and a share of the targets
that no temperature in use would leave to the entropy."""
MOST_CRITICS = 2
"""More share their targets in ensembles, which have recipes of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogProbs:
    """Log-probabilities of the next actions, before and after a correction for squashing."""

    normal: Floats
    slopes: tuple[Floats, ...] = ()
    """log |da/du|, summed over actions, in the forms that people write; empty where actions are not
    squashed, or where the distribution has done it."""

    @property
    def whole(self) -> tuple[Floats, ...]:
        """Corrected."""
        return tuple(self.normal - each for each in self.slopes) or (self.normal,)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetBatch:
    """Samples of one loss: what they are trained towards, and what that may be made of."""

    targets: Floats
    rewards: Floats
    ends: Floats
    target: tuple[Floats, ...]
    """What each copy of the trained network said of the next observations, [N] or [N, actions]."""
    online: tuple[Floats, ...]
    """What the trained networks themselves said of them."""
    critics: int = 1
    """Trained networks that share these targets."""
    copies: int = 0
    """Copies of trained networks that there are, asked or not."""
    is_soft: bool = False
    """The actor is paid for its entropy: its loss has log-probabilities of what it draws."""
    has_target: bool = False
    """There is a network that is called a target, and it is kept up to date."""
    log_probs: tuple[LogProbs, ...] = ()
    taken: Ints | None = None
    """The action of each sample, and of the step after it; −1 where that is not known."""
    next_taken: Ints | None = None
    paid_before: Floats | None = None
    """What the environment paid at the step before that of each sample, and at the one after it."""
    paid_after: Floats | None = None

    @property
    def is_discrete(self) -> bool:
        """Whether there is a value for each action."""
        return any(each.ndim > 1 for each in (*self.target, *self.online))

    @property
    def form(self) -> tuple[int, ...]:
        """What batches must share to be judged together."""
        kinds = self.target, self.online, self.log_probs
        return (*map(len, kinds), self.critics, self.is_discrete)


Entropy: TypeAlias = Literal["", "whole", "bare"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRecipe:
    """A way to make targets, right or wrong."""

    name: str
    words: str
    """What was done, to go on a sentence with."""
    right: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFit:
    """How much of the targets a recipe explains."""

    recipe: TargetRecipe
    r2: float
    """On rows that nothing was fitted on, beyond what rewards explain."""
    gamma: float
    scale: float
    """Of the rewards; NaN where they are all alike."""
    temperature: float
    """Of the entropy; NaN where it is not in the recipe."""
    entropy: float = np.nan
    """What the entropy adds to the targets, as a share of the largest."""
    flipped: bool = False

    @property
    def left(self) -> float:
        """What it does not explain."""
        return 1.0 - self.r2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedTargets:
    """The recipes by what they explain, the best first, and what follows from it."""

    fits: tuple[TargetFit, ...]
    samples: int
    checked: bool
    """A right recipe explains the targets."""
    wrong: TargetFit | None
    """The wrong recipe that does, where no right one comes near."""
    right: TargetFit | None
    """The best of the right ones; None where what they are made of was never asked for."""

    @property
    def made_by(self) -> TargetFit | None:
        """The recipe that made the targets, right or wrong; None where nothing fits."""
        return self.wrong or (self.right if self.checked else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """A recipe, and how its answers are made of a batch."""

    recipe: TargetRecipe
    answers: tuple[tuple[str, int], ...]
    """Whose: ("target", 0), ...; a recipe is tried with each set of them."""
    join: str
    entropy: Entropy = ""
    masked: bool = True
    clipped: bool = False


@dataclass(slots=True)
class _Sums:
    """Over batches: squares that are left, squares there were, and the factors of each."""

    left: float = 0.0
    whole: float = 0.0
    factors: list[tuple[float, float, float, float]] = field(default_factory=list)


def replay_targets(batches: Sequence[TargetBatch]) -> ReplayedTargets | None:
    """Fit every recipe to the targets; None where there is too little to tell."""
    found = _replayed(batches)
    if found is None or found.checked or found.wrong is not None:
        return found
    for recipe, paid in ((PAID_LATE, "paid_before"), (PAID_EARLY, "paid_after")):
        moved = [
            replace(each, rewards=rewards)
            for each in batches
            if (rewards := getattr(each, paid)) is not None
        ]
        again = _replayed(moved)
        if again is not None and again.checked and again.right is not None:
            wrong = replace(again.right, recipe=recipe)
            return replace(found, fits=(wrong, *found.fits), wrong=wrong)
    return found


def _replayed(batches: Sequence[TargetBatch]) -> ReplayedTargets | None:
    used = _alike(batches)
    count = sum(len(each.targets) for each in used)
    if len(used) < LEAST_BATCHES or count < LEAST_ROWS:
        return None
    if _is_reward_alone(used):
        return _alone(count)
    best: dict[str, TargetFit] = {}
    for way in _ways(used):
        fit = _fit(way, used)
        if fit is not None and fit.r2 > best.get(fit.recipe.name, NOTHING).r2:
            best[fit.recipe.name] = fit
    if ADDED.name in best and RIGHT not in best and MISSING in best:
        # with the right sign nothing of the entropy fits: what is left is the recipe without it
        best[RIGHT] = replace(best[MISSING], recipe=SOFT)
    others = (fit.left for name, fit in best.items() if name != CLIPPED and fit.recipe.right)
    if best.get(CLIPPED, NOTHING).left > EXACT or min(others, default=1.0) <= EXACT:
        best.pop(CLIPPED, None)  # a clip that changes nothing is none
    fits = sorted(best.values(), key=lambda fit: -fit.r2)
    soft = any(each.is_soft for each in used)
    return _judged(fits, count, is_soft=soft) if fits else None


def _judged(fits: list[TargetFit], count: int, *, is_soft: bool) -> ReplayedTargets:
    """Only the recipe that leaves nothing but rounding made the targets; a right one goes first."""
    right = next((fit for fit in fits if fit.recipe.right), None)
    first = fits[0]
    left = 1.0 if right is None else right.left
    clearly = left >= CLEAR and left >= TIMES * first.left
    wrong = first if not first.recipe.right and first.left <= EXACT and clearly else None
    if first.recipe.name == "target-worst" and first.scale < 0:
        wrong = None  # costs, of which the least is wanted
    if wrong is None and right is not None:
        wrong = _wrong_factor(right, is_soft=is_soft)
        if wrong is not None:
            others = [fit for fit in fits if fit.recipe.name not in (RIGHT, wrong.recipe.name)]
            fits = [wrong, *(fit for fit in others if fit is not right)]
    return ReplayedTargets(
        fits=tuple(fits),
        samples=count,
        checked=left <= FITS and wrong is None,
        wrong=wrong,
        right=right,
    )


def _wrong_factor(fit: TargetFit, *, is_soft: bool) -> TargetFit | None:
    """A right recipe with a factor that cannot be."""
    if fit.left > EXACT:
        return None
    if abs(fit.scale) < NO_REWARD:
        return replace(fit, recipe=REWARD_MISSING)
    if fit.scale < 0:
        return replace(fit, recipe=REWARD_NEGATED)
    if fit.gamma > ABOVE_ONE:
        return replace(fit, recipe=GAMMA_ABOVE)
    missing = is_soft and fit.entropy < NO_ENTROPY
    return replace(fit, recipe=ENTROPY_MISSING, temperature=0.0) if missing else None


def _alike(batches: Sequence[TargetBatch]) -> list[TargetBatch]:
    """Those of the most common form, with rows enough to fit on a half of them."""
    large = [each for each in batches if (each.ends == 0).sum() >= 2 * LEAST_HALF]
    large = [each for each in large if each.target or each.online]
    forms = Counter(each.form for each in large)
    common = forms.most_common(1)[0][0] if forms else None
    return [each for each in large if each.form == common]


NOTHING = TargetFit(
    recipe=TargetRecipe(name="", words="", right=False),
    r2=-np.inf,
    gamma=np.nan,
    scale=np.nan,
    temperature=np.nan,
)
GAMMA_ZERO = TargetRecipe(
    name="gamma-zero", words="with a discount of 0: only the reward counts", right=False
)
GAMMA_ABOVE = TargetRecipe(name="gamma-above-one", words="with a discount above 1", right=False)
REWARD_MISSING = TargetRecipe(name="reward-missing", words="without the reward", right=False)
REWARD_NEGATED = TargetRecipe(
    name="reward-negated", words="with the reward subtracted, not added", right=False
)
MISSING, CLIPPED = "entropy-missing", "rewards-clipped"
ENTROPY_MISSING = TargetRecipe(name=MISSING, words="without the entropy of the policy", right=False)
ADDED = TargetRecipe(
    name="entropy-added", words="with the entropy subtracted, not added", right=False
)
PAID_LATE = TargetRecipe(
    name="reward-one-late", words="with the reward of the step before", right=False
)
PAID_EARLY = TargetRecipe(
    name="reward-one-early", words="with the reward of the step after", right=False
)
RIGHT = "right"
UNMASKED = "running on over the ends of episodes"
SOFT = TargetRecipe(name=RIGHT, words="the value of the next state, with its entropy", right=True)
DISCOUNTED = TargetRecipe(
    name="discounted", words="the reward and what follows, discounted", right=True
)


def _is_reward_alone(batches: Sequence[TargetBatch]) -> bool:
    """Whether the targets are a line in the rewards, although networks were asked what follows."""
    for each in batches:
        size = float(np.abs(each.targets).max())
        answers = (x.std() for x in (*each.target, *each.online))
        left = each.targets - _line(each.targets, each.rewards)
        if size == 0.0 or np.abs(left).max() > 10 * ROUNDING * size:
            return False
        if max(answers) < SPREAD * size:
            return False
    return True


def _line(y: Floats, rewards: Floats) -> Floats:
    """The nearest a + k r."""
    columns = np.stack([np.ones_like(y), rewards], 1)
    found: Floats = columns @ np.linalg.lstsq(columns, y, rcond=None)[0]
    return found


def _alone(count: int) -> ReplayedTargets:
    fits = [
        TargetFit(recipe=recipe, r2=r2, gamma=0.0, scale=np.nan, temperature=np.nan)
        for recipe, r2 in ((GAMMA_ZERO, 1.0), (DISCOUNTED, 0.0))
    ]
    return ReplayedTargets(
        fits=tuple(fits), samples=count, checked=False, wrong=fits[0], right=fits[1]
    )


# The recipes that fit together with what was heard.


def _way(
    name: str,
    words: str,
    answers: tuple[tuple[str, int], ...],
    join: str,
    *,
    right: bool = False,
    entropy: Entropy = "",
    masked: bool = True,
    clipped: bool = False,
) -> _Way:
    recipe = TargetRecipe(name=name, words=words, right=right)
    return _Way(
        recipe=recipe,
        answers=answers,
        join=join,
        entropy=entropy,
        masked=masked,
        clipped=clipped,
    )


def _ways(batches: Sequence[TargetBatch]) -> Iterator[_Way]:
    first = batches[0]
    has_target = any(each.has_target for each in batches)
    ended = any(bool((each.ends > 0).any()) for each in batches)
    if first.is_discrete:
        yield from _choosing(first, legal_online=not has_target, ended=ended)
    elif first.critics <= MOST_CRITICS:
        yield from _evaluating(first, legal_online=not has_target, ended=ended)


def _choosing(batch: TargetBatch, *, legal_online: bool, ended: bool) -> Iterator[_Way]:
    """One value for each action: DQN and its like."""
    for place in range(len(batch.target)):
        one = (("target", place),)
        best = "the best value of the target network"
        yield _way("target-best", best, one, "max", right=True)
        yield _way(
            "rewards-clipped", f"{best}, rewards clipped", one, "max", right=True, clipped=True
        )
        yield _way("target-worst", "with the worst action in the place of the best", one, "min")
        if batch.next_taken is not None:
            words = "the value of the action that was taken next"
            yield _way("sarsa", words, one, "next", right=True)
        if batch.taken is not None:
            yield _way("same-action", "with the action of the step before", one, "taken")
        if ended:
            yield _way("ends-not-masked", UNMASKED, one, "max", masked=False)
        for other in range(len(batch.online)):
            both = (*one, ("online", other))
            words = "the target network's value of the online choice"
            yield _way("double", words, both, "double", right=True)
            if ended:
                yield _way("ends-not-masked", UNMASKED, both, "double", masked=False)
            swapped = "with the online network's value of the target's choice"
            yield _way("double-exchanged", swapped, both[::-1], "double")
    for place in range(len(batch.online)):
        words = "asking the online network, not the target network"
        yield _way("online", words, (("online", place),), "max", right=legal_online)


JOINS = {
    "min": "the smaller value of both critics",
    "max": "with the larger value of both critics",
    "mean": "with the mean of both critics",
    "one": "with one of the two critics only",
}


def _evaluating(batch: TargetBatch, *, legal_online: bool, ended: bool) -> Iterator[_Way]:
    """A value of a state, or of a state and an action: TD3, SAC, DDPG."""
    entropy: Entropy = "whole" if batch.log_probs else ""
    all_target = tuple(("target", n) for n in range(len(batch.target)))
    all_online = tuple(("online", n) for n in range(len(batch.online)))
    several = batch.critics > 1
    for group, whose in ((all_target, "target"), (all_online, "online")):
        if not group:
            continue
        right = whose == "target" or legal_online
        base = "right" if whose == "target" else "online"
        words = JOINS["min"] if len(group) > 1 and several else "the value of the next state"
        if whose == "online":
            words = "asking the online network, not the target network"
        if several and len(group) > 1:
            yield _way(base, words, group, "min", right=right, entropy=entropy)
        elif not several:
            for one in group:
                yield _way(base, words, (one,), "min", right=right, entropy=entropy)
    if not all_target:
        return
    sets = [all_target] if several else [(one,) for one in all_target]
    if several and batch.copies > 1:
        yield from _of_twins(all_target, entropy)
    for group in sets:
        if ended:
            yield _way("ends-not-masked", UNMASKED, group, "min", entropy=entropy, masked=False)
        yield _way(
            "rewards-clipped",
            "the right answers, rewards clipped",
            group,
            "min",
            right=True,
            entropy=entropy,
            clipped=True,
        )
        if batch.log_probs:
            yield _way(MISSING, ENTROPY_MISSING.words, group, "min")
            if any(each.slopes for each in batch.log_probs):
                words = "with log-probs that are not corrected for tanh"
                yield _way("tanh-missing", words, group, "min", entropy="bare")


def _of_twins(group: tuple[tuple[str, int], ...], entropy: Entropy) -> Iterator[_Way]:
    if len(group) > 1:
        yield _way("twins-largest", JOINS["max"], group, "max", entropy=entropy)
        yield _way("twins-mean", JOINS["mean"], group, "mean", entropy=entropy)
    for one in group:
        yield _way("twins-one", JOINS["one"], (one,), "min", entropy=entropy)


def _joined(way: _Way, batch: TargetBatch) -> Floats | None:
    """X of each row."""
    held = [getattr(batch, whose)[place] for whose, place in way.answers]
    if not batch.is_discrete:
        stacked = np.stack(held)
        if way.join == "mean":
            middle: Floats = stacked.mean(0)
            return middle
        chosen: Floats = stacked.max(0) if way.join == "max" else stacked.min(0)
        return chosen
    first: Floats = held[0]
    if way.join in ("max", "min"):
        best: Floats = first.max(1) if way.join == "max" else first.min(1)
        return best
    if way.join == "double":
        return _at(first, held[1].argmax(1))
    return _at(first, batch.next_taken if way.join == "next" else batch.taken)


def _at(values: Floats, actions: Ints | None) -> Floats | None:
    if actions is None or actions.max() >= values.shape[1]:
        return None
    return np.take_along_axis(values, np.maximum(actions, 0)[:, None], 1)[:, 0]


# Fitting.


def _fit(way: _Way, batches: Sequence[TargetBatch]) -> TargetFit | None:
    """With the log-probabilities and the form of their correction that fit best."""
    best: TargetFit | None = None
    for which in _log_probs(way, batches[0]):
        sums = _Sums()
        for batch in batches:
            if not _add(way, batch, which, sums):
                return None
        found = _summed(way, sums)
        if found is not None and (best is None or found.r2 > best.r2):
            best = found
    return best


def _log_probs(way: _Way, batch: TargetBatch) -> list[tuple[int, int] | None]:
    """Which of those heard, and which form of it; None for none."""
    if not way.entropy:
        return [None]
    if way.entropy == "bare":
        return [(n, -1) for n, each in enumerate(batch.log_probs) if each.slopes]
    return [(n, k) for n, each in enumerate(batch.log_probs) for k in range(len(each.whole))]


def _add(way: _Way, batch: TargetBatch, which: tuple[int, int] | None, sums: _Sums) -> bool:
    """Fit one half of a batch, and add what is left of the other."""
    ahead = _joined(way, batch)
    if ahead is None:
        return False
    paid = np.clip(batch.rewards, -1.0, 1.0) if way.clipped else batch.rewards
    mask = 1.0 - batch.ends if way.masked else np.ones_like(batch.ends)
    columns = [np.ones_like(paid), paid, mask * ahead]
    if which is not None:
        columns.append(mask * _logs(batch, which))
    rows = np.ones(len(paid), bool)
    if way.join == "next" and batch.next_taken is not None:
        rows = (batch.next_taken >= 0) | (batch.ends > 0)
    x, y = np.stack(columns, 1)[rows], batch.targets[rows]
    if len(y) < 2 * LEAST_HALF:
        return False
    factors = _least_squares(x[::2], y[::2])
    plain = _least_squares(x[::2, :2], y[::2])
    sums.left += float(np.square(y[1::2] - x[1::2] @ factors).sum())
    sums.whole += float(np.square(y[1::2] - x[1::2, :2] @ plain).sum())
    varies = paid.std() >= SPREAD * np.abs(y).max()
    entropy = factors[3] if which is not None else np.nan
    share = abs(entropy) * float(x[:, -1].std()) / max(float(np.abs(y).max()), 1e-12)
    scale = factors[1] if varies else _sign_of_all(paid, factors)
    sums.factors.append((factors[2], scale, entropy, share))
    return True


def _sign_of_all(paid: Floats, factors: Floats) -> float:
    """Of rewards that are all alike a shift and a scale cannot be told apart; but a loss in the
    place of a gain of the same size is a sign that was turned."""
    level = float(paid.mean())
    if level == 0.0 or paid.std() > ROUNDING * abs(level):
        return np.nan
    scale = float(factors[0] / level + factors[1])
    return scale if abs(scale + 1.0) <= 1e-3 else np.nan


def _logs(batch: TargetBatch, which: tuple[int, int]) -> Floats:
    number, form = which
    each = batch.log_probs[number]
    return each.normal if form < 0 else each.whole[form]


def _least_squares(x: Floats, y: Floats) -> Floats:
    """Columns are scaled first: answers may be a thousand times as large as rewards."""
    sizes = np.maximum(np.sqrt(np.square(x).mean(0)), 1e-12)
    found: Floats = np.linalg.lstsq(x / sizes, y, rcond=1e-9)[0] / sizes
    return found


def _summed(way: _Way, sums: _Sums) -> TargetFit | None:
    gammas, scales, entropies, shares = (np.array(each) for each in zip(*sums.factors, strict=True))
    temperatures = -entropies / np.where(gammas == 0.0, np.nan, gammas)
    recipe = way.recipe
    turned = bool((temperatures < 0).all()) and float(shares.max()) >= NO_ENTROPY
    if way.entropy == "whole" and recipe.right and turned:
        if recipe.name != RIGHT:
            return None
        recipe = ADDED  # a soft value of the wrong sign is another recipe
    return TargetFit(
        recipe=recipe,
        r2=1.0 - sums.left / sums.whole if sums.whole > 0.0 else 0.0,
        gamma=float(np.median(gammas)),
        scale=_common(scales),
        temperature=float(np.median(temperatures)) if way.entropy else np.nan,
        entropy=float(shares.max()),
    )


def _common(scales: Floats) -> float:
    """The factor of the rewards, where it is known and batches agree on its sign."""
    known = scales[np.isfinite(scales)]
    if not len(known) or not (bool((known > 0).all()) or bool((known < 0).all())):
        agreed = len(known) > 0 and bool((np.abs(known) < NO_REWARD).all())
        return 0.0 if agreed else np.nan
    return float(np.median(known))
