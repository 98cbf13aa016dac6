"""What became of the thing that is trained for: one `Outcome`, computed once, for the whole doctor.

Which series it is (a held-out score before the training reward), where it started, its best and
when, where it stands and since when, and how sure that is. Whether it rose is `maths.gains`; that
the rise is large enough to matter is measured in a unit of the task: the way to a known maximum,
the distance of a negative reward from zero, or the reward's own size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, final
from weakref import WeakKeyDictionary

import numpy as np

from gradiometer.doctor import thresholds
from gradiometer.doctor.rundata import RunData, Series
from gradiometer.doctor.signs import level, number, robust_sigma, shown, together
from gradiometer.maths.gains import LIKELY, Gain, gain, stands_apart, without_tails
from gradiometer.maths.students import t_quantile
from gradiometer.maths.trends import LEVEL, Drift, drift, monotone
from gradiometer.names import vocabulary, words_of
from gradiometer.records import Evidence
from gradiometer.store.logs import ENV_STEPS
from gradiometer.store.reader import Floats, Ints
from gradiometer.words import fmt

__all__ = [
    "Course",
    "Fate",
    "Outcome",
    "References",
    "at_maximum",
    "at_rest",
    "became",
    "began_trained",
    "detectable_rise",
    "flat_outcome",
    "held_out",
    "judge_series",
    "known_maximum",
    "learning",
    "length_is_return",
    "near_best",
    "outcome_of",
    "rises",
    "rising_elsewhere",
    "slope",
    "stuck",
    "suffers",
    "told_best",
    "trained_for",
    "warms_up",
]

limits = thresholds.group("course")
CHECKPOINTS = (
    "start",
    "resume",
    "resume_from",
    "resume_from_checkpoint",
    "init_from",
    "init_checkpoint",
    "load_path",
)
"""Settings that name the weights a training goes on from."""
NOUNS = {
    "val/success_rate": "held-out success rate",
    "val/reward": "held-out score",
    "success_rate": "success rate",
    "val/preference/accuracy": "held-out preference accuracy",
    "preference/accuracy": "preference accuracy",
    "preference/margin": "preference margin",
    "val/loss": "held-out loss",
    "loss": "loss",
}

EPISODES_AVERAGED = {"SB3": 100, "RLlib": 100}
"""Over how many of the last episodes a trainer averages what it logs of them, unless told."""

Course: TypeAlias = Literal["best", "gained", "flat", "fell", "unclear"]
Fate: TypeAlias = Literal["best", "rises", "stands", "stuck", "fell", "still", "early", "unknown"]
"""What became of a run, as a sign is weighed by it."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """What others earn at the same task: a policy of random actions, a simple rule."""

    random: float | None = None
    baseline: float | None = None

    @property
    def in_words(self) -> str:
        """Both, as the end of a sentence; empty where neither is known."""
        random = None if self.random is None else f"a random policy earns {fmt(self.random)}"
        rule = None if self.baseline is None else f"the baseline {fmt(self.baseline)}"
        return ", ".join(filter(None, (random, rule)))


NO_REFERENCES = References()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of what is trained for."""

    series: Series
    """Without NaN and Inf; of a loss the loss itself."""
    noun: str
    course: Course
    """At the known maximum; above its start; neither; below its start or its best; not to be told
    from this many measurements with this noise."""
    start: float
    end: float
    top: float
    """The best level it had, over a tenth of the series."""
    top_step: int
    known_best: float | None
    """The known maximum, where the run wrote it down."""
    references: References
    """What others earn at the same task, where the run wrote it down."""
    spread: float
    """Of single measurements about their level in the last half."""
    quiet: float
    """The same of the quieter half, which an early or a late rise is not in."""
    unit: float
    """The size of a change that decides the task."""
    score: float
    """Of the rise, in standard errors (`maths.gains`)."""
    came_down: bool
    """Whether it lost more of its best than its noise explains."""
    constant: bool
    """Whether it tells nothing apart: every measurement is the same, or nearly."""
    apart: bool = False
    """Whether it rose to the eye where no test can tell: `_stands_above`."""
    warming: bool = False
    """Whether the learning rate rose all along, from nearly nothing."""
    over: bool = False
    """Whether the learning rate was taken down to its end: nothing more will come."""

    @property
    def way(self) -> float:
        """From start to end, up where that is better; of a loss what it fell."""
        return self.start - self.end if self.lower_is_better else self.end - self.start

    @property
    def visible(self) -> bool:
        """Whether it rose to the eye, and by enough to matter; its noise may still have done it."""
        return self.way > max(limits.by_eye * self.quiet, limits.min_gain * self.unit)

    @property
    def lost(self) -> float:
        """Of what was gained up to the best, the share that is gone; 0 where nothing was gained."""
        gained = self.start - self.top if self.lower_is_better else self.top - self.start
        return max(0.0, 1.0 - self.way / gained) if gained > 0.0 else 0.0

    @property
    def lower_is_better(self) -> bool:
        """Whether it is a loss."""
        return self.series.metric.name.endswith("loss")

    @property
    def at_random(self) -> bool:
        """Whether it ends where a policy of random actions does, or below, whatever it rose by.

        Above that by less than anybody would care about; or by little, and by no more than single
        measurements scatter: a bonus for staying alive lifts both, and hides what was learned.
        """
        random, best = self.references.random, self.references.baseline
        if random is None or self.course == "best":
            return False
        best = self.known_best if best is None else best
        way = best - random if best is not None and best > random else abs(random)
        scatter = min(limits.near_random * way, limits.by_eye * self.quiet)
        return self.end - random <= max(limits.min_gain * way, scatter)

    @property
    def below_baseline(self) -> bool:
        """Whether a simple rule is known to earn clearly more, and nothing is gained any more."""
        baseline, random = self.references.baseline, self.references.random
        if baseline is None or not (self.rests or self.stuck):
            return False
        lowest = min(self.start, self.end) if random is None else random
        return self.end - lowest < limits.short_of_best * (baseline - lowest)

    @property
    def collapsed(self) -> bool:
        """Whether it ended far below where it started, or lost all of a rise of its own size."""
        below = -self.way >= limits.large_loss * self.unit
        rise = abs(self.top - self.start) >= self.unit and self.lost >= limits.all_lost
        return self.course == "fell" and (below or (self.came_down and rise))

    @property
    def then(self) -> str:
        """What it did, to go on a sentence with."""
        if self.fate == "rises" and self.way > 0.0:
            return f"still rises: {fmt(self.start)} to {fmt(self.end)}"
        if self.course in ("best", "gained"):
            return f"stands at {fmt(self.end)}"
        if self.course == "fell":
            return f"fell: {fmt(self._fell_from)} to {fmt(self.end)}"
        return f"did not rise: {fmt(self.start)} to {fmt(self.end)}"

    @property
    def _fell_from(self) -> float:
        return self.top if self.came_down else self.start

    @property
    def in_words(self) -> str:
        """What became of it, as a sentence without its full stop."""
        known = self.references.in_words
        return f"{self._moved}; {known}" if known and self.course != "best" else self._moved

    @property
    def _moved(self) -> str:
        steps = f"from step {self.series.steps[0]} to {self.series.steps[-1]}"
        if self.course == "best":
            return f"the {self.noun} stands at its maximum, {fmt(self.end)}"
        if self.constant and self.spread <= limits.no_spread * abs(self.end):
            return f"the {self.noun} is constant at {fmt(self.end)} {steps}"
        best = f"best {fmt(self.top)} at step {self.top_step}, {fmt(self.end)} now"
        if self.came_down and self.course in ("gained", "fell"):
            return f"the {self.noun} came down: {fmt(self.start)} at the start, {best}"
        if self.course in ("gained", "fell"):
            verb = "fell" if (self.course == "fell") != self.lower_is_better else "rose"
            return f"the {self.noun} {verb} from {fmt(self.start)} to {fmt(self.end)}"
        if self.visible:
            return f"the {self.noun} went from {fmt(self.start)} to {fmt(self.end)}"
        return f"the {self.noun} stood at {fmt(self.end)} ± {fmt(self.spread)} {steps}"

    @property
    def stuck(self) -> bool:
        """Nothing was gained. Where nobody can tell, a rise larger than the noise is believed."""
        if self.course == "unclear":
            return self.way <= max(self.spread, limits.min_gain * self.unit)
        return self.course in ("flat", "fell")

    @property
    def standing(self) -> bool:
        """Something was gained, but hardly any since the third quarter, and not all there is."""
        quarter = max(2, len(self.series) // 4)
        third, last = self.series.values[-2 * quarter : -quarter], self.series.values[-quarter:]
        with np.errstate(over="ignore", invalid="ignore"):
            gained = abs(self.end - self.start)
            rest = float(last.mean() - third.mean()) <= limits.stands * gained
        return rest and not self.stuck and self.course != "best"

    @property
    def few(self) -> bool:
        """Whether nobody would judge so short a curve; an evaluation is worth more than a step,
        and what is there to see needs no test."""
        held = self.series.metric.name.startswith("val/") or self.apart
        return not held and len(self.series) < limits.min_rows

    @property
    def early(self) -> bool:
        """Whether nobody can tell yet what becomes of it."""
        short = len(self.series) < thresholds.value("state/enough_rows") and not self.over
        return self.few or (self.course == "unclear" and short and not self.apart)

    @property
    def rests(self) -> bool:
        """Something was gained, and hardly any of it from the third quarter to the last, where a
        straight rise gains a quarter; or from the second third to the last, which tells it from
        noise where the rise was early."""
        if self.stuck:
            return False
        late, early = self._since(0.25, 0.25), self._since(0.3, 0.4)
        return late <= limits.rests * abs(self.way) or early <= limits.rests_early * abs(self.way)

    def _since(self, share: float, back: float) -> float:
        """What the last share gained over the same share that lies so much further back."""
        count, step = max(2, int(share * len(self.series))), int(back * len(self.series))
        values = self.series.values
        before = values[: len(values) - step][-count:]
        with np.errstate(over="ignore", invalid="ignore"):
            up = float(without_tails(values[-count:]).mean() - without_tails(before).mean())
        return -up if self.lower_is_better else up

    @property
    def short(self) -> bool:
        """Whether more could be had, and that is known: of the way to a known maximum, or of a
        score between 0 and 1."""
        best = self.known_best
        if best is None and _is_score(self.series.values):
            best = 1.0
        best = self.references.baseline if best is None else best
        if best is None or self.lower_is_better:
            return False
        return self.end - self.start < limits.short_of_best * (best - self.start)

    @property
    def fate(self) -> Fate:
        """What became of it, as signs are weighed by it."""
        if self.few:
            return "early"
        if self.course == "best":
            return "best"
        if self.course == "fell" or suffers(self) is not None:
            return "fell"
        if self.early:
            waited = len(self.series) >= limits.still_rows and not self.warming
            return "still" if waited and not self.visible else "early"
        if self.stuck:
            return "stuck"
        return "stands" if self.rests else "rises"

    @property
    def evidence(self) -> Evidence:
        """What the series reads at both ends."""
        words = {
            "best": "at its maximum",
            "gained": "has risen",
            "flat": "has not risen",
            "fell": "has fallen",
            "unclear": "has not clearly risen",
        }
        known = "" if self.known_best is None else f"; the maximum is {fmt(self.known_best)}"
        others = self.references.in_words
        known += f"; {others}" if others else ""
        reading = (
            f"{words[self.course]}: {fmt(self.start)} at the start, {fmt(self.end)} at the"
            f" end{known}"
        )
        return shown(self.series, reading)


_KNOWN: WeakKeyDictionary[RunData, tuple[int, Outcome | None]] = WeakKeyDictionary()


def outcome_of(run: RunData) -> Outcome | None:
    """The outcome of a run; None where nothing that could be it has 8 measurements.

    Held-out scores come first, and training rewards where those do not decide.
    """
    edition, found = _KNOWN.get(run, (None, None))
    if edition != thresholds.edition():
        found = _outcome(run)
        _KNOWN[run] = (thresholds.edition(), found)
    return found


def _outcome(run: RunData) -> Outcome | None:
    found = [judge_series(run, series) for series in _candidates(run)]
    known = [each for each in found if each is not None]
    decided = [each for each in known if each.course != "unclear" and not _silent(each, known)]
    return next(iter(decided or known), None)


def _candidates(run: RunData) -> list[Series]:
    """What the training may be for, the most trustworthy first, long enough to be judged."""
    found = (run.get(name) for name in run.outcomes)
    long = (each.finite for each in found if each is not None)
    return [each for each in long if len(each) >= limits.min_rewards and not _counts(each)]


def _counts(series: Series) -> bool:
    """Whether a rate is a count: `pass` of the first, second, third pass over the data."""
    values = 100.0 * series.values if series.metric.rate else series.values[:0]
    steps = np.diff(values)
    each = bool(((np.abs(steps) < 1e-9) | (np.abs(steps - 1.0) < 1e-9)).all())
    return len(values) > 0 and each and values[-1] - values[0] >= 2.0


def _silent(outcome: Outcome, known: list[Outcome]) -> bool:
    """A score that is the same every time says less than another that rises."""
    rises = any(each.course == "gained" for each in known)
    return outcome.constant and outcome.course != "best" and rises


def judge_series(run: RunData, series: Series) -> Outcome | None:
    """What became of one series; None where its numbers are beyond computing."""
    values, sign = series.values, -1.0 if series.metric.name.endswith("loss") else 1.0
    anew, window = series.metric.name.startswith("val/"), _rows_averaged(run, series)
    with np.errstate(all="ignore"):  # rewards of 1e300 are somebody's bug, not ours
        up, down = (
            gain(each * sign * values, independent=anew, window=window) for each in (1.0, -1.0)
        )
    if up is None or down is None or not math.isfinite(up.end - up.start + up.error):
        return None
    places, levels = _levels(sign * values)
    top = int(places[int(np.argmax(levels))])
    best, end = float(levels.max()), float(levels[-1])
    start = up.start if up.certain else -down.start if down.certain else _early(sign * values)
    unit = _unit(run, series, sign * start, sign * end)
    half = len(values) // 2
    spread = float(np.std(without_tails(values[half:])))
    quiet = min(_robust_spread(values[:half]), _robust_spread(values[half:]))
    rose = best - start >= max(spread, 0.1 * (best - end))
    luck = _once_or_twice(values)
    came_down = rose and not luck and _came_down(sign * values, top, anew=anew)
    seen = max(limits.by_eye * quiet, limits.min_gain * unit)
    visible = end - start > seen
    leapt = visible and stands_apart(sign * values)
    start = float(sign * values[: max(3, len(values) // 20)].mean()) if leapt else start
    course = _course(
        up,
        down,
        unit=unit,
        leapt=leapt,
        came_down=came_down,
        visible=visible,
        gone=(start, best, end),
    )
    if luck and course in ("gained", "fell"):
        course = "unclear"
    falls = start - end > seen and float(np.ptp(values[half:])) > 0.0
    moved = visible or falls
    constant = _constant(values) and not moved and course in ("flat", "unclear", "fell")
    if sign > 0.0 and (at_maximum(run, series) or (constant and _every_step_survived(run, values))):
        course = "best"
    found = Outcome(
        series=series,
        noun=_noun(series),
        course=course,
        start=sign * start,
        end=sign * end,
        top=sign * best,
        top_step=int(series.steps[top + _window(values) // 2]),
        known_best=told_best(run),
        spread=spread,
        quiet=quiet,
        unit=unit,
        score=up.score,
        came_down=came_down and course != "best",
        constant=constant,
        references=_references(run, series),
        over=_schedule_over(run),
        warming=warms_up(run.get("learning_rate")),
    )
    return _against_random(run, _by_eye(found))


def _rows_averaged(run: RunData, series: Series) -> float | None:
    """How many rows of a log a mean over the last episodes looks back on, where the trainer's
    window, the steps of the environment and the length of an episode are known."""
    imported, length = run.source.facts.get("imported", {}), run.get("episode_length")
    episodes = EPISODES_AVERAGED.get(imported.get("library", ""))
    axis = imported.get("x_axis") == ENV_STEPS
    if not (episodes and axis and length is not None and len(length.finite) and len(series) > 1):
        return None
    if series.metric.name not in ("reward", "success_rate"):
        return None
    return episodes * level(length) / max(float(np.median(np.diff(series.steps))), 1.0)


def _noun(series: Series) -> str:
    """What to call it: a game's own score, beside a reward, was not taken on data held out."""
    words, name = set(words_of(series.name)), series.metric.name
    if name == "val/reward" and "score" in words and words.isdisjoint(vocabulary().held_out):
        return "score"
    return NOUNS.get(name, "reward")


def _schedule_over(run: RunData) -> bool:
    rate = run.get("learning_rate")
    if rate is None or len(rate.finite) < limits.min_rewards:
        return False
    values = rate.finite.values
    return 0.0 <= float(values[-1]) <= limits.rate_over * float(values.max())


def _by_eye(found: Outcome) -> Outcome:
    """What is plain to see, where no test can tell: averages over many episodes remember so much
    that a few dozen of them could have wandered anywhere, by what their steps alone show."""
    sign = -1.0 if found.lower_is_better else 1.0
    if found.few:
        return replace(found, apart=_stands_above(found, sign))
    if found.course != "unclear":
        return found
    for way, course in _ways(sign):
        if _goes(found, way):
            return replace(found, course=course, constant=False)
    if found.constant:
        return found
    if found.lost >= limits.half_lost and _clearly_down(found):
        back = found.way < limits.lost * abs(found.top - found.start)
        return replace(found, course="fell", came_down=True) if back else found
    if _stands_above(found, sign):
        return replace(found, apart=True)
    return replace(found, course="fell") if _stands_above(found, -sign) else found


def _ways(sign: float) -> tuple[tuple[float, Course], ...]:
    return (sign, "gained"), (-sign, "fell")


def _goes(found: Outcome, sign: float) -> bool:
    """Whether it goes one way under a noise that forgets: a monotone curve explains most of it, and
    its steps turn back on each other, which those of a random walk, and of averages over many
    episodes, do once in 50 times."""
    values, way = sign * found.series.values, sign * (found.end - found.start)
    if len(values) < limits.goes_rows or way < limits.min_gain * found.unit:
        return False
    left = float(np.var(values - monotone(values))) / max(float(np.var(values)), 1e-300)
    steps = np.diff(values) - float(np.diff(values).mean())
    turns = float(steps[1:] @ steps[:-1]) / max(float(steps @ steps), 1e-300)
    return left <= limits.goes_left and turns <= limits.goes_turns


def _stands_above(found: Outcome, sign: float) -> bool:
    """Whether the last third lies above the first fifth, value for value, by much of what there is
    to gain and four spreads of the quieter half, and most of the way went in one direction. A
    reward about zero has no size of its own: nearly all must have, or far from a quiet start."""
    values, way = sign * found.series.values, sign * (found.end - found.start)
    first, last = values[: max(3, len(values) // 5)], values[-max(3, len(values) // 3) :]
    enough = max(limits.apart * found.unit, limits.apart_spreads * found.quiet)
    if way < enough or float(last.min()) <= float(first.max()):
        return False
    left = float(np.var(values - monotone(values))) / max(float(np.var(values)), 1e-300)
    small, large = sorted((abs(found.start), abs(found.end)))
    if found.start * found.end > 0.0 and small >= limits.same_size * large:
        return left <= limits.one_way
    straight = left <= limits.one_way_of_none and way >= limits.apart_of_none * found.quiet
    return straight or (left <= limits.one_way and way >= limits.from_start * float(first.std()))


def _against_random(run: RunData, found: Outcome) -> Outcome:
    """A rise that ends where a random policy does is none, once there was time for another one."""
    if found.course not in ("gained", "unclear") or not found.at_random:
        return found
    trained = run.get("reward")
    updates = max(len(found.series), 0 if trained is None else len(trained.finite))
    if updates < limits.patience and not found.rests:
        return found
    return replace(found, course="flat")


def _references(run: RunData, series: Series) -> References:
    """Known of rewards only: a rate and a loss have other units."""
    if series.metric.name not in ("reward", "val/reward"):
        return NO_REFERENCES
    return References(
        random=number(run.fact("random_reward", "random_return")),
        baseline=number(run.fact("baseline_reward", "baseline_return")),
    )


def _course(
    up: Gain,
    down: Gain,
    *,
    unit: float,
    came_down: bool,
    visible: bool,
    leapt: bool,
    gone: tuple[float, float, float],
) -> Course:
    start, best, end = gone
    enough = limits.min_gain * unit
    if came_down and best - end >= enough:
        return "fell" if end - start < limits.lost * (best - start) else "gained"
    if leapt or (up.certain and up.end - up.start >= enough):
        return "gained"
    if down.certain and down.end - down.start >= enough:
        return "fell"
    seen = 3.0 * up.error <= limits.needed * unit or up.count >= limits.many * up.memory
    most = max(up.end - up.start, down.end - down.start) + 3.0 * up.error
    small = up.certain or down.certain or most < enough  # less than anybody would care about
    return "flat" if small or (seen and up.score < LIKELY and not visible) else "unclear"


def _levels(values: Floats) -> tuple[Ints, Floats]:
    """Means over a tenth of the series (medians where it has tails), and where they begin."""
    window = _window(values)
    starts = np.unique(
        np.linspace(0, len(values) - window, int(limits.most_levels)).astype(np.int64)
    )
    heavy = bool((without_tails(values) != values).any())
    middle = np.median if heavy else np.mean
    return starts, np.array([float(middle(values[at : at + window])) for at in starts])


def _window(values: Floats) -> int:
    return max(3, round(limits.window * len(values)))


def _robust_spread(values: Floats) -> float:
    """From the 10th and 90th percentile; of what is nearly always the same the plain one."""
    low, high = np.percentile(values, [10, 90])
    return float(high - low) / limits.tenth_to_tenth or float(np.std(values))


def _early(values: Floats) -> float:
    return float(without_tails(values)[: max(3, len(values) // 5)].mean())


def _constant(values: Floats) -> bool:
    """Whether the last half hardly varies, for its size."""
    late = values[len(values) // 2 :]
    return float(np.std(without_tails(late))) <= limits.constant * float(np.abs(np.median(late)))


def _once_or_twice(values: Floats) -> bool:
    """Whether it is one value and, once or twice, another: a success by luck, and no trend."""
    return bool(np.sort(np.unique(values, return_counts=True)[1])[:-1].sum() <= 2)


def _every_step_survived(run: RunData, values: Floats) -> bool:
    """Whether each step earns the same and no episode ever was longer than all of the last ones."""
    late = values[len(values) // 2 :]
    return float(np.ptp(late)) == 0.0 and late[0] == values.max() and length_is_return(run)


def _came_down(values: Floats, best: int, *, anew: bool) -> bool:
    """Whether what follows the best stretch falls, with a margin: the best was picked."""
    found = gain(-values[best:], independent=anew)
    return found is not None and found.certain and found.score >= limits.picked


def _unit(run: RunData, series: Series, start: float, end: float) -> float:
    """The size of what there is to be gained or lost."""
    best, random = known_maximum(run, series), number(run.fact("random_reward", "random_return"))
    size = max(abs(start), abs(end), 0.5 * float(np.std(without_tails(series.values))), 1e-12)
    if best is not None:
        lowest = start if random is None else random
        return best - lowest if best > lowest else size
    return min(size, max(1.0 - start, 0.1 * size)) if _is_score(series.values) else size


def _is_score(values: Floats) -> bool:
    """Whether they lie between 0 and 1, and differ."""
    return 0.0 <= float(values.min()) < float(values.max()) <= 1.0


def began_trained(run: RunData) -> bool:
    """Whether the training began with a checkpoint: it may have had nothing left to learn."""
    return isinstance(found := run.fact(*CHECKPOINTS), str) and found.lower() not in (
        "",
        "none",
        "null",
        "false",
    )


def held_out(run: RunData) -> Series | None:
    """The score on what is not trained on."""
    return run.get("val/reward") or run.get("val/success_rate")


def slope(series: Series) -> Drift | None:
    """The trend of any size; None below 8 points, without a p-value below 8 blocks."""
    finite = series.finite
    return drift(finite.steps, finite.values, min_effect=0.0)


def rises(series: Series | None) -> bool | None:
    """Whether a series rises by any amount that is not chance; None when nobody can tell."""
    found = None if series is None else slope(series)
    if found is None or found.p_value is None:
        return None
    return found.significant and found.change > 0.0


def known_maximum(run: RunData, reward: Series) -> float | None:
    """What the task allows at most, where the run wrote it down or the quantity is a rate."""
    best = told_best(run)
    if best is not None:
        return best
    if reward.metric.name in ("success_rate", "val/success_rate"):
        return 1.0
    longest, length = number(run.fact("max_episode_steps")), run.get("episode_length")
    if longest is not None and longest > 0.0 and length is not None and length_is_return(run):
        return longest * level(reward) / level(length)
    return None


def at_maximum(run: RunData, reward: Series) -> bool:
    """Whether the task is solved: the reward at its known maximum, or a score in [0, 1] near 1.
    One of the training tells nothing of a held-out score: data may be known by heart."""
    best = known_maximum(run, reward)
    if best is not None and near_best(level(reward.last(0.2)), best, level(reward.first(0.1))):
        return True
    if told_best(run) is not None:
        return False
    held_out = (reward, run.get("val/success_rate"), run.get("val/reward"))
    trained = () if reward.metric.name.startswith("val/") else (run.get("success_rate"),)
    scores = (*held_out, *trained)
    return any(score is not None and _near_one(score) for score in scores)


def _near_one(score: Series) -> bool:
    values = score.finite.values
    within = len(values) > 0 and float(values.min()) >= 0.0 and float(values.max()) <= 1.0
    return within and level(score.last(0.2)) >= 1.0 - limits.near_best


def length_is_return(run: RunData) -> bool:
    """Whether each step earns the same, so that the return is the length (CartPole)."""
    reward, length = run.get("reward"), run.get("episode_length")
    if reward is None or length is None:
        return False
    returns, lengths = (each.values for each in together(reward.finite, length.finite))
    if len(returns) < 3 or bool((lengths <= 0).any()) or bool((returns <= 0).any()):
        return False
    ratio = returns / lengths
    middle = float(np.median(ratio))
    return float(np.percentile(np.abs(ratio - middle), 90)) <= limits.same_ratio * middle


def detectable_rise(series: Series, found: Drift) -> float:
    """The rise over the window that its trend test sees in four of five runs like it.

    Of k block means with residual spread s, a change over the window has the standard error s
    √(12(k−1)/(k(k+1))), and the test at α sees t_{1−α/2} + t_{power} of those (Mann–Kendall needs 2
    % more data than least squares).
    """
    k, values = found.num_blocks, series.finite.values
    means = values[len(values) - k * found.block :].reshape(k, found.block).mean(axis=1)
    place = np.arange(k) - (k - 1) / 2.0
    residual = means - means.mean() - place * float(place @ means) / float(place @ place)
    spread = math.sqrt(float(residual @ residual) / (k - 2))
    error = spread * math.sqrt(12.0 * (k - 1) / (k * (k + 1)))
    return error * (t_quantile(k - 2, 1.0 - LEVEL / 2.0) + t_quantile(k - 2, limits.power))


def suffers(outcome: Outcome | None) -> Evidence | None:
    """The reward that fell: below its start, or well below what it had reached; else None."""
    if outcome is None or outcome.course == "best":
        return None
    if outcome.course == "fell" and not outcome.came_down:
        return outcome.evidence
    if outcome.lost < (limits.lost if outcome.came_down else limits.half_lost):
        return None
    # curves too smooth or too short for a test
    if not outcome.came_down and not _clearly_down(outcome):
        return None
    return shown(
        outcome.series,
        f"rose to {fmt(outcome.top)} by step {outcome.top_step} and came down to"
        f" {fmt(outcome.end)}",
    )


def _clearly_down(outcome: Outcome) -> bool:
    values, fell = outcome.series.values, outcome.top - outcome.end
    jitter = robust_sigma(np.diff(values))
    # an evaluation is measured anew: its spread in the last half is mostly the fall itself
    anew = outcome.series.metric.name.startswith("val/")
    noise = min(jitter, outcome.spread) if anew else outcome.spread
    enough = max(limits.clearly * jitter, limits.min_gain * outcome.unit)
    return outcome.top - outcome.start >= noise and fell >= enough and not _once_or_twice(values)


def rising_elsewhere(run: RunData, start: int) -> bool:
    """Whether another measure of success rises from that step on, as under a curriculum."""
    names = ("val/reward", "val/success_rate", "success_rate", "best_reward")
    found = [run.get(name) for name in names]
    return any(rises(series.since(start)) for series in found if series is not None)


def warms_up(rate: Series | None) -> bool:
    """Whether a learning rate rose all along, from nearly nothing."""
    if rate is None or len(rate.finite) < limits.min_rewards:
        return False
    values = rate.finite.values
    rising = float((np.diff(values) > 0.0).mean()) >= limits.warming
    return rising and float(values[0]) <= limits.warm_start * float(values[-1])


def trained_for(run: RunData) -> Series | None:
    """What the updates see of it: the training reward, or else the success rate."""
    return run.get("reward") or run.get("success_rate")


def learning(run: RunData) -> bool | None:
    """Whether the outcome rose and keeps it, or is at its maximum; None when nobody can tell."""
    found = outcome_of(run)
    if found is None or found.course == "unclear":
        return None
    return found.course in ("best", "gained") and suffers(found) is None


def told_best(run: RunData) -> float | None:
    """The most a policy can earn, where the run wrote it down."""
    return number(run.fact("max_reward", "max_return", "best_possible_reward", "reward_threshold"))


def near_best(end: float, best: float, start: float, *, within: float | None = None) -> bool:
    """Whether the end is that close to the maximum (it may be negative), by shares of the way."""
    share = limits.near_best if within is None else within
    return end >= best - share * max(abs(best), best - start)


def stuck(run: RunData) -> bool | None:
    """Whether the outcome never rose out of its noise and is not at its maximum; None: unknown."""
    found = outcome_of(run)
    return None if found is None else found.stuck


def at_rest(run: RunData) -> bool:
    """Whether the training began with a trained policy, and lost nothing of it."""
    found = outcome_of(run)
    return found is not None and found.course != "fell" and began_trained(run)


def became(run: RunData) -> Evidence | None:
    """The outcome as evidence, where it is known."""
    found = outcome_of(run)
    return None if found is None else found.evidence


def flat_outcome(run: RunData) -> tuple[Evidence, ...]:
    """The outcome as evidence where it is stuck; nothing otherwise."""
    found = outcome_of(run)
    return (found.evidence,) if found is not None and found.stuck else ()
