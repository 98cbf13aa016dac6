"""Which recipe made these advantages? The right ones and the wrong ones people write, fitted to the
credit that an update really gave its samples.

The credit of a sample, c = −∂L/∂log π(a|s), is its advantage in the first pass over a rollout, up
to one factor and one offset for each backward (the batch size, and whatever was subtracted and
divided by when advantages were normalised). So a recipe is judged by R² of

    c_i ≈ u_k A_i + v_k,        k the backward that sample i was in,

where A is recomputed from what the environment paid and the critic said. Discount and trace decay
are fitted on one half of the samples, and R² is of the other half. u < 0 is a flipped sign.

Many programs train the critic in other units than the environment pays in: rewards divided by 100,
returns normalised before values are subtracted. A is a sum of what the rewards and what the values
make of it, so where no recipe fits as it is, each part gets a factor of its own, both of one sign.

    A_t = δ_t + γλ (1 − stop_t) A_{t+1},        δ_t = r_t + γ (1 − end_t) V(s'_t) − V(s_t)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "RECIPES",
    "AdvantageRecipe",
    "Credit",
    "Fit",
    "ReplayedRecipes",
    "Rollout",
    "advantages",
    "replay",
    "replay_values",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Factor: TypeAlias = float | Floats

GAMMAS = (0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 1.0)
LAMBDAS = (0.0, 0.5, 0.8, 0.9, 0.92, 0.95, 0.97, 0.98, 1.0)
"""What people use; where the settings are known they are fitted no more."""
FITS = 0.95
"""R² on held-back samples from which on the right recipe is taken to be what was done: ratios and
values move a little within the first epoch."""
EXPLAINS, GAP, TIMES = 0.98, 0.01, 4.0
"""R² of a wrong recipe that proves it; by how much it has to beat every right one, and how many
times as much these leave unexplained: a mistake at the ends of episodes touches few samples."""
EXACT, CLEAR, TIMES_EXACT = 1e-6, 1e-4, 100.0
"""Of the spread of the credit, as variance, in the first backward over a rollout, where nothing has
moved yet: what the recipe that made it may leave (rounding), what the right ones must leave before
a wrong one is proved, and how many times as much. While a critic says little yet, recipes differ in
the fourth digit, and this tells them apart."""
FEWEST_SPLIT = 6
"""Samples of a backward, in each half, for a factor of its own for rewards and one for values."""
SMALL_BATCH = 6
"""Samples of a backward, below which it has no line of its own."""
MIN_SAMPLES = 48
"""Held back and fitted together; below, a line through few points fits anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """What the environment paid and the critic said, [T, E]: T steps of E environments.

    Recipes also take arrays [T, 1, E] with discounts and decays [C, 1], and make [T, C, E].
    """

    rewards: Floats
    ends: Floats
    """1 where the episode was over (terminated)."""
    cuts: Floats
    """1 where a time limit cut it (truncated)."""
    values: Floats | None = None
    """V(s_t); None for a policy without a critic."""
    next_values: Floats | None = None
    """V of the observation that really followed, before any reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """What the update gave to samples of a rollout."""

    values: Floats
    """−∂L/∂log π, one for each sample."""
    rows: Ints
    """Which sample of the rollout: t·E + e."""
    calls: Ints
    """Which backward it was in."""
    places: Ints
    """Its place in the batch of that backward."""

    def __len__(self) -> int:
        return len(self.values)


Order: TypeAlias = Literal["own", "batch", "running"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageRecipe:
    """A way to make advantages, right or wrong."""

    name: str
    words: str
    """What was done, to go on a sentence with."""
    right: bool
    advantages: Callable[[Rollout, Factor, Factor], Floats]
    needs_values: bool = True
    gammas: tuple[float, ...] = GAMMAS
    lambdas: tuple[float, ...] = LAMBDAS
    splits: bool = True
    """It is a sum of a part of the rewards and a part of the values."""
    order: Order = "own"
    """Whose advantage a sample got, whichever sample it is: its `own`; the k-th of the rollout, if
    it is the k-th of its `batch`; or the next in a `running` count over the batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How much of the credit a recipe explains."""

    recipe: AdvantageRecipe
    r2: float
    """On samples that nothing was fitted on."""
    flipped: bool
    gamma: float
    lam: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRecipes:
    """The recipes by what they explain, the best first, and what follows from it."""

    fits: tuple[Fit, ...]
    samples: int
    checked: bool
    """A right recipe explains the update."""
    wrong: Fit | None
    """The wrong recipe that does, where no right one comes near."""
    right: Fit
    """The best of the right ones, taken with the right sign."""


def _stopped_sums(deltas: Floats, decay: Factor, stops: Floats) -> Floats:
    """Σ_k decay^k δ_{t+k} up to the next stop: A_t = δ_t + decay (1 − stop_t) A_{t+1}."""
    found, last = [], np.zeros_like(deltas[0])
    for delta, stop in zip(deltas[::-1], stops[::-1], strict=True):
        last = delta + decay * (1.0 - stop) * last
        found.append(last)
    return np.stack(found[::-1])


def _next_in_buffer(run: Rollout) -> Floats:
    """V of the next row of the buffer: after an end that is the start of another episode."""
    assert run.values is not None
    assert run.next_values is not None
    return np.concatenate([run.values[1:], run.next_values[-1:]])


def advantages(
    run: Rollout,
    gamma: Factor,
    lam: Factor,
    *,
    ends: Floats | None = None,
    stops: Floats | None = None,
    following: Floats | None = None,
) -> Floats:
    """Generalised advantage estimates; without a critic the discounted sum of rewards to come.

    `ends` says after which step nothing follows, `stops` where the sum is cut, and `following` what
    is expected after a step; each as it really was where it is not given.
    """
    over = np.maximum(run.ends, run.cuts)
    ends = run.ends if ends is None else ends
    stops = over if stops is None else stops
    if run.values is None or run.next_values is None:
        return _stopped_sums(run.rewards, gamma, stops)
    following = run.next_values if following is None else following
    deltas = run.rewards + gamma * (1.0 - ends) * following - run.values
    return _stopped_sums(deltas, gamma * lam, stops)


def _returns(run: Rollout, gamma: Factor, _: Factor) -> Floats:
    """What was really paid from each step on; where it is cut off, what the critic expects."""
    over = np.maximum(run.ends, run.cuts)
    if run.next_values is None:
        return _stopped_sums(run.rewards, gamma, over)
    over[-1] = 1.0
    return _stopped_sums(
        run.rewards + gamma * over * (1.0 - run.ends) * run.next_values, gamma, over
    )


def _episode_sums(run: Rollout, _: Factor, __: Factor) -> Floats:
    """Of each step the reward of its whole episode."""
    over = np.maximum(run.ends, run.cuts)
    begun = np.concatenate([np.ones_like(over[:1]), over[:-1]])
    to_come = _stopped_sums(run.rewards, 1.0, over)
    so_far = _stopped_sums(run.rewards[::-1], 1.0, begun[::-1])[::-1]
    return to_come + so_far - run.rewards


def _unmasked(run: Rollout, gamma: Factor, lam: Factor) -> Floats:
    nothing = np.zeros_like(run.ends)
    if run.values is None:
        return _stopped_sums(run.rewards, gamma, nothing)
    return advantages(run, gamma, lam, ends=nothing, stops=nothing, following=_next_in_buffer(run))


def _sum_unmasked(run: Rollout, gamma: Factor, lam: Factor) -> Floats:
    """Nothing is expected after an end, and the sum of what comes later runs on over it."""
    over, nothing = np.maximum(run.ends, run.cuts), np.zeros_like(run.ends)
    return advantages(run, gamma, lam, ends=over, stops=nothing)


def _value_unmasked(run: Rollout, gamma: Factor, lam: Factor) -> Floats:
    """The sum stops at an end, where the value of the next episode's start is expected."""
    nothing = np.zeros_like(run.ends)
    return advantages(run, gamma, lam, ends=nothing, following=_next_in_buffer(run))


def _late_mask(run: Rollout, gamma: Factor, lam: Factor) -> Floats:
    over = np.maximum(run.ends, run.cuts)
    late = np.concatenate([np.zeros_like(over[:1]), over[:-1]])
    return advantages(run, gamma, lam, ends=late, stops=late, following=_next_in_buffer(run))


def _shifted(by: int) -> Callable[[Rollout, Factor, Factor], Floats]:
    def shifted(run: Rollout, gamma: Factor, lam: Factor) -> Floats:
        return advantages(replace(run, rewards=np.roll(run.rewards, by, axis=0)), gamma, lam)

    return shifted


def _early_in_episodes(run: Rollout, gamma: Factor, lam: Factor) -> Floats:
    """Each reward a step early, and none is taken from another episode: in the place of the last
    one stands what is expected to follow, `rews[1:]` of a list that ends with it."""
    over = np.maximum(run.ends, run.cuts)
    over[-1] = 1.0
    expected = 0.0 if run.next_values is None else (1.0 - run.ends) * run.next_values
    early = np.where(over > 0, expected, np.roll(run.rewards, -1, axis=0))
    return advantages(replace(run, rewards=early), gamma, lam)


def _cut_ends(run: Rollout, gamma: Factor, lam: Factor) -> Floats:
    over = np.maximum(run.ends, run.cuts)
    return advantages(run, gamma, lam, ends=over, stops=over)


def _backward_in_time(run: Rollout, gamma: Factor, lam: Factor) -> Floats:
    """The sums over the past in place of those over the future."""
    over = np.maximum(run.ends, run.cuts)
    begun = np.concatenate([np.ones_like(over[:1]), over[:-1]])
    past = replace(run, rewards=run.rewards[::-1], ends=begun[::-1] * 0.0, cuts=begun[::-1])
    if run.values is None or run.next_values is None:
        return advantages(past, gamma, lam)[::-1]
    deltas = run.rewards + gamma * (1.0 - run.ends) * run.next_values - run.values
    return _stopped_sums(deltas[::-1], gamma * lam, begun[::-1])[::-1]


def _inverted_ends(run: Rollout, gamma: Factor, lam: Factor) -> Floats:
    """What follows counts at ends alone: the mask is the flag, not its opposite."""
    return advantages(run, gamma, lam, ends=1.0 - run.ends)


def _mixed(run: Rollout, gamma: Factor, lam: Factor) -> Floats:
    """Flattened the other way round than the samples were."""
    right = advantages(run, gamma, lam)
    turned = np.moveaxis(right, 0, -1)  # [..., E, T]
    rows, columns = right.shape[0], right.shape[-1]
    return np.moveaxis(turned.reshape(*turned.shape[:-2], rows, columns), -2, 0)


def _mixed_back(run: Rollout, gamma: Factor, lam: Factor) -> Floats:
    """Steps by environments, read as environments by steps."""
    right = np.moveaxis(advantages(run, gamma, lam), 0, -2)  # [..., T, E]
    rows, columns = right.shape[-2:]
    return np.moveaxis(right.reshape(*right.shape[:-2], columns, rows), -1, 0)


def _moved(by: int) -> Callable[[Rollout, Factor, Factor], Floats]:
    """Each sample has the advantage of its neighbour in time."""
    return lambda run, gamma, lam: np.roll(advantages(run, gamma, lam), by, axis=0)


def _by_step(run: Rollout, gamma: Factor, lam: Factor) -> Floats:
    """Centred and scaled over environments at each step, not over the batch."""
    right = advantages(run, gamma, lam)
    middle, spread = right.mean(-1, keepdims=True), right.std(-1, keepdims=True)
    scaled: Floats = (right - middle) / (spread + 1e-8)
    return scaled


def _clipped(run: Rollout, gamma: Factor, lam: Factor) -> Floats:
    return advantages(replace(run, rewards=np.clip(run.rewards, -1.0, 1.0)), gamma, lam)


def _negated(run: Rollout, gamma: Factor, lam: Factor) -> Floats:
    return advantages(replace(run, rewards=-run.rewards), gamma, lam)


def _no_baseline(run: Rollout, gamma: Factor, lam: Factor) -> Floats:
    """What is expected to be paid: the advantage with the value of its state added again."""
    assert run.values is not None
    return advantages(run, gamma, lam) + run.values


def _plus_values(
    made: Callable[[Rollout, Factor, Factor], Floats],
) -> Callable[[Rollout, Factor, Factor], Floats]:
    """Returns that are made of such advantages."""
    return lambda run, gamma, lam: made(run, gamma, lam) + _known(run.values)


def _less_values(run: Rollout, gamma: Factor, lam: Factor) -> Floats:
    """The values subtracted once more, where returns are advantages plus values."""
    assert run.values is not None
    return advantages(run, gamma, lam) - run.values


def _values_alone(run: Rollout, _: Factor, __: Factor) -> Floats:
    assert run.values is not None
    return run.values


def _recipe(
    name: str,
    words: str,
    made: Callable[[Rollout, Factor, Factor], Floats],
    *,
    right: bool = False,
    **more: Any,
) -> AdvantageRecipe:
    return AdvantageRecipe(name=name, words=words, right=right, advantages=made, **more)


ONLY = (1.0,)
RETURNS, NO_BASELINE = "returns", "no-baseline"
RECIPES: Mapping[str, AdvantageRecipe] = {
    each.name: each
    for each in (
        _recipe("gae", "rewards, values and ends as they were", advantages, right=True),
        _recipe(
            "truncation-as-end",
            "treating a time limit as an end",
            _cut_ends,
            right=True,  # the habit of many trainers, and harmless where limits are long
        ),
        _recipe(
            RETURNS,
            "what was paid from each step on, without a baseline",
            _returns,
            right=True,
            needs_values=False,
            lambdas=ONLY,
        ),
        _recipe(
            "episode-sum",
            "the reward of the whole episode for each of its steps",
            _episode_sums,
            right=True,
            needs_values=False,
            gammas=ONLY,
            lambdas=ONLY,
        ),
        _recipe(
            "ends-not-masked", "running on over the ends of episodes", _unmasked, needs_values=False
        ),
        _recipe(
            "sum-not-masked",
            "carrying the sum of errors on over the ends of episodes",
            _sum_unmasked,
        ),
        _recipe(
            "value-not-masked",
            "expecting the value of the next episode after an end",
            _value_unmasked,
        ),
        _recipe("ends-one-late", "masking ends one step late", _late_mask),
        _recipe(
            "ends-bootstrapped",
            "expecting more after the end of an episode",
            lambda run, gamma, lam: advantages(run, gamma, lam, ends=np.zeros_like(run.ends)),
        ),
        _recipe(
            "rewards-one-late", "with each reward one step late", _shifted(1), needs_values=False
        ),
        _recipe(
            "rewards-one-early", "with each reward one step early", _shifted(-1), needs_values=False
        ),
        _recipe(
            "rewards-one-early-in-episodes",
            "with each reward one step early",
            _early_in_episodes,
            needs_values=False,
        ),
        _recipe(
            "gamma-zero",
            "with a discount of 0: only the next reward counts",
            advantages,
            needs_values=False,
            gammas=(0.0,),
            lambdas=ONLY,
        ),
        _recipe(
            "past-rewards",
            "summing over the past, not the future",
            _backward_in_time,
            needs_values=False,
        ),
        _recipe(
            "order-reversed",
            "in the opposite order, the last sample's for the first",
            lambda run, gamma, lam: advantages(run, gamma, lam)[::-1],
            needs_values=False,
        ),
        _recipe("ends-inverted", "expecting more after ends alone", _inverted_ends),
        _recipe(
            "environments-mixed",
            "with environments and steps mixed up by a reshape",
            _mixed,
            needs_values=False,
        ),
        _recipe(
            "steps-mixed",
            "with steps and environments mixed up by a reshape",
            _mixed_back,
            needs_values=False,
        ),
        _recipe("advantages-one-late", "of the step before", _moved(1), needs_values=False),
        _recipe("advantages-one-early", "of the step after", _moved(-1), needs_values=False),
        _recipe(
            "wrong-axis",
            "normalised over environments at each step",
            _by_step,
            needs_values=False,
            splits=False,
        ),
        _recipe("rewards-negated", "with rewards of the opposite sign", _negated),
        _recipe("rewards-clipped", "with rewards clipped to [−1, 1]", _clipped, needs_values=False),
        _recipe(
            "rows-in-order",
            "of other samples: indices were applied to one array only",
            advantages,
            needs_values=False,
            order="batch",
        ),
        _recipe(
            "rows-running",
            "of other samples: indices were applied to one array only",
            advantages,
            needs_values=False,
            order="running",
        ),
        _recipe(
            NO_BASELINE,
            "from which the critic's value is not subtracted",
            _no_baseline,
        ),
        _recipe(
            "values-for-advantages",
            "with values in the place of advantages",
            _values_alone,
            gammas=ONLY,
            lambdas=ONLY,
        ),
    )
}


def replay(
    rollouts: Sequence[tuple[Rollout, Credit]],
    *,
    gamma: float | None = None,
    lam: float | None = None,
) -> ReplayedRecipes | None:
    """Fit every recipe to what was credited; None where there are too few samples to tell.

    `gamma` and `lam` are those of the settings; what is not given is fitted. A recipe that leaves
    out the discount on purpose keeps its own.
    """
    pairs = [(run, credit) for run, credit in rollouts if len(credit)]
    count = sum(len(credit) for _, credit in pairs)
    if count < MIN_SAMPLES:
        return None
    critic = all(run.values is not None and run.next_values is not None for run, _ in pairs)
    known = [recipe for recipe in RECIPES.values() if critic or not recipe.needs_values]
    found = _judged([_fit(recipe, pairs, gamma=gamma, lam=lam) for recipe in known], count)
    if not critic:
        return found
    bare = found.wrong is not None and found.wrong.recipe.name in (RETURNS, NO_BASELINE)
    if found.wrong is None:
        found = _exactly(known, pairs, gamma=gamma, lam=lam) or found
    if found.checked or (found.wrong is not None and not bare):
        return found
    apart = [_fit(recipe, pairs, gamma=gamma, lam=lam, split=recipe.splits) for recipe in known]
    again = _judged(apart, count)
    return again if again.checked or again.wrong is not None else found


def _exactly(
    known: Sequence[AdvantageRecipe],
    pairs: Sequence[tuple[Rollout, Credit]],
    *,
    gamma: float | None,
    lam: float | None,
) -> ReplayedRecipes | None:
    """A wrong recipe that leaves nothing of first backwards, where each right one leaves more."""
    firsts = [(run, _first_call(credit)) for run, credit in pairs]
    count = sum(len(credit) for _, credit in firsts)
    if count < 2 * MIN_SAMPLES:
        return None
    fits = [_fit(recipe, firsts, gamma=gamma, lam=lam) for recipe in known]
    found = _judged(fits, count)
    best, upright = found.fits[0], 0.0 if found.right.flipped else found.right.r2
    left, missing = 1.0 - best.r2, 1.0 - upright
    if best is found.right or left > EXACT or missing < max(CLEAR, TIMES_EXACT * left):
        return None
    return replace(found, checked=False, wrong=best)


VALUE_RECIPES = (
    _recipe("returns-by-decay", "the returns", _no_baseline, right=True),
    _recipe(
        "returns-cut",
        "the returns",
        lambda run, gamma, lam: _cut_ends(run, gamma, lam) + _known(run.values),
        right=True,
    ),
    _recipe(RETURNS, "the returns", _returns, right=True, lambdas=ONLY),
    _recipe("advantages", "the advantages, not the returns", advantages),
    _recipe("advantages", "the advantages, not the returns", _cut_ends),
    _recipe("values-subtracted", "the advantages less the values, not plus them", _less_values),
    *(
        _recipe(f"returns-{name}", f"returns {words}", _plus_values(made))
        for name, words, made in (
            ("ends-not-masked", "that run on over the ends of episodes", _unmasked),
            ("ends-one-late", "whose ends are masked one step late", _late_mask),
            ("ends-inverted", "that expect more after ends alone", _inverted_ends),
            ("rewards-one-late", "with each reward one step late", _shifted(1)),
            ("rewards-one-early", "with each reward one step early", _early_in_episodes),
            ("of-the-past", "summed over the past, not the future", _backward_in_time),
            ("one-late", "of the step before", _moved(1)),
            ("one-early", "of the step after", _moved(-1)),
        )
    ),
    _recipe(
        "rewards", "the reward of one step", lambda run, *_: run.rewards, gammas=ONLY, lambdas=ONLY
    ),
)
"""What values are trained towards."""


def _known(values: Floats | None) -> Floats:
    assert values is not None
    return values


def replay_values(
    rollouts: Sequence[tuple[Rollout, Credit]], *, gamma: float | None = None
) -> ReplayedRecipes | None:
    """What values are trained towards, where it is exactly something else than a return; here the
    `values` of a credit are targets."""
    pairs = [(run, credit) for run, credit in rollouts if len(credit) and run.values is not None]
    pairs = [(run, credit) for run, credit in pairs if run.next_values is not None]
    return _exactly(VALUE_RECIPES, pairs, gamma=gamma, lam=None) if pairs else None


def _first_call(credit: Credit) -> Credit:
    at = credit.calls == credit.calls.min()
    return Credit(
        values=credit.values[at],
        rows=credit.rows[at],
        calls=credit.calls[at],
        places=credit.places[at],
    )


def _judged(fits: list[Fit], count: int) -> ReplayedRecipes:
    """What follows from how well each recipe fits."""
    fits.sort(key=lambda fit: -fit.r2)
    # beside a critic a return without its baseline is no advantage
    critic = any(fit.recipe.name == NO_BASELINE for fit in fits)
    legal = (
        fit for fit in fits if fit.recipe.right and not (critic and fit.recipe.name == RETURNS)
    )
    right = max(legal, key=lambda fit: -1.0 if fit.flipped else fit.r2)
    upright = 0.0 if right.flipped else right.r2
    # the best of all explains it; a right recipe with a minus before it is a wrong one
    best = fits[0]
    guilty = best.flipped or not best.recipe.right or (critic and best.recipe.name == RETURNS)
    clearly = best.r2 - upright >= GAP and 1.0 - upright >= TIMES * (1.0 - best.r2)
    proved = guilty and best.r2 >= EXPLAINS and clearly
    return ReplayedRecipes(
        fits=tuple(fits),
        samples=count,
        checked=upright >= FITS and not proved,
        wrong=best if proved else None,
        right=right,
    )


def _fit(
    recipe: AdvantageRecipe,
    pairs: Sequence[tuple[Rollout, Credit]],
    *,
    gamma: float | None,
    lam: float | None,
    split: bool = False,
) -> Fit:
    """The discount and decay that fit one half best, and what they explain of the other."""
    gammas = recipe.gammas if gamma is None or recipe.gammas != GAMMAS else (gamma,)
    lambdas = recipe.lambdas if lam is None or recipe.lambdas != LAMBDAS else (lam,)
    tried = list(product(gammas, lambdas))
    parts = [
        ([_picked(recipe, each, credit, np.array(tried)) for each in _parts(run, split)], credit)
        for run, credit in pairs
    ]
    best = int(np.argmax(_explained(parts, 0)[0]))
    r2, flipped = _explained(parts, 1)
    gamma, lam = tried[best]
    return Fit(recipe=recipe, r2=float(r2[best]), flipped=bool(flipped[best]), gamma=gamma, lam=lam)


def _parts(run: Rollout, split: bool) -> list[Rollout]:
    """The rollout, or what was paid in it and what was said of it, each with nothing beside it."""
    if not split or run.values is None or run.next_values is None:
        return [run]
    nothing = np.zeros_like(run.rewards)
    return [replace(run, values=nothing, next_values=nothing), replace(run, rewards=nothing)]


def _picked(recipe: AdvantageRecipe, run: Rollout, credit: Credit, factors: Floats) -> Floats:
    """The advantages of the samples that were credited, [samples, discounts and decays]."""
    gamma, lam = factors[:, :1], factors[:, 1:]
    made = recipe.advantages(_widened(run), gamma, lam)
    made = np.broadcast_to(made, (len(made), len(factors), made.shape[-1]))
    flat = np.moveaxis(made, 1, -1).reshape(-1, len(factors))
    return flat[_order(recipe.order, credit) % len(flat)]


def _order(order: Order, credit: Credit) -> Ints:
    if order == "own":
        return credit.rows
    if order == "batch":
        return credit.places
    batches, batch = np.unique(credit.calls, return_inverse=True)
    sizes = [credit.places[batch == n].max() + 1 for n in range(len(batches))]
    before: Ints = np.cumsum([0, *sizes[:-1]])
    return credit.places + before[batch]


def _widened(run: Rollout) -> Rollout:
    """[T, 1, E]: room for several discounts at once."""
    return Rollout(
        rewards=run.rewards[:, None],
        ends=run.ends[:, None],
        cuts=run.cuts[:, None],
        values=None if run.values is None else run.values[:, None],
        next_values=None if run.next_values is None else run.next_values[:, None],
    )


def _explained(
    parts: Sequence[tuple[Sequence[Floats], Credit]], half: int
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """R² over every second sample of each backward, a line for each; and whether lines fall.

    Slopes of one sign only: where the lines of some backwards rise and of others fall, those of the
    smaller side explain nothing. Advantages are [samples, C], one array or what rewards and values
    make of them apart, and each answer is [C].
    """
    num_factors = parts[0][0][0].shape[1]
    total, rising, falling = 0.0, np.zeros(num_factors), np.zeros(num_factors)
    for made, given in _batches(parts):
        fewest = 3 if len(made) == 1 else FEWEST_SPLIT
        if len(given[half::2]) < fewest:
            continue
        spread, up, down = _lines([each[half::2] for each in made], given[half::2])
        total += spread
        rising += np.where(up > down, up, 0.0)
        falling += np.where(down > up, down, 0.0)
    explained = np.maximum(rising, falling) / total if total > 0.0 else 0.0 * rising
    return explained, falling > rising


def _batches(
    parts: Sequence[tuple[Sequence[Floats], Credit]],
) -> Iterator[tuple[Sequence[Floats], Floats]]:
    """The samples of each backward. Through the five of an A2C no line can be tested: batches that
    small have one line together, all of one size, for nobody normalises over so few."""
    small: dict[int, list[tuple[Sequence[Floats], Floats]]] = {}
    for made, credit in parts:
        for call in np.unique(credit.calls):
            at = np.flatnonzero(credit.calls == call)
            batch = [each[at] for each in made], credit.values[at]
            if len(at) >= (SMALL_BATCH if len(made) == 1 else 2 * FEWEST_SPLIT):
                yield batch
            else:
                small.setdefault(int(credit.places[at].max()) + 1, []).append(batch)
    for batches in small.values():
        columns = zip(*(made for made, _ in batches), strict=True)
        joined = [np.concatenate(column) for column in columns]
        yield joined, np.concatenate([given for _, given in batches])


def _lines(made: Sequence[Floats], credit: Floats) -> tuple[float, Floats, Floats]:
    """The spread of the credit, and of each column what slopes that rise and that fall explain."""
    y = credit - credit.mean()
    apart = [each - each.mean(0) for each in made]
    varies = [
        np.square(x).sum(0) > 1e-12 * np.maximum(1.0, np.square(each).sum(0))
        for x, each in zip(apart, made, strict=True)
    ]
    # what a constant leaves is rounding, and a plane through rounding would explain anything
    xs = [np.where(there, x, 0.0) for x, there in zip(apart, varies, strict=True)]
    xx = [np.square(x).sum(0) for x in xs]
    xy = [y @ x for x in xs]
    alone = [
        np.divide(b * b, a, out=np.zeros_like(b), where=there)
        for a, b, there in zip(xx, xy, varies, strict=True)
    ]
    up = np.max([np.where(b > 0.0, gain, 0.0) for b, gain in zip(xy, alone, strict=True)], axis=0)
    down = np.max([np.where(b < 0.0, gain, 0.0) for b, gain in zip(xy, alone, strict=True)], axis=0)
    if len(xs) == 2:
        both = _two_slopes(xs, xx, xy)
        up = np.where(both[0] > 0.0, np.maximum(up, both[1]), up)
        down = np.where(both[0] < 0.0, np.maximum(down, both[1]), down)
    return float(y @ y), up, down


def _two_slopes(
    xs: Sequence[Floats], xx: Sequence[Floats], xy: Sequence[Floats]
) -> tuple[Floats, Floats]:
    """Of a plane through two parts: the sign of both slopes, 0 where they differ, and what it
    explains."""
    cross = (xs[0] * xs[1]).sum(0)
    area = xx[0] * xx[1] - cross * cross
    flat = area > 1e-9 * xx[0] * xx[1]
    first = np.divide(xx[1] * xy[0] - cross * xy[1], area, out=np.zeros_like(area), where=flat)
    second = np.divide(xx[0] * xy[1] - cross * xy[0], area, out=np.zeros_like(area), where=flat)
    signs = np.where(first * second > 0.0, np.sign(first), 0.0)
    return signs, first * xy[0] + second * xy[1]
