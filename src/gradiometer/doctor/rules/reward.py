"""Whether the reward is earned as it was meant: against a held-out score, by its parts, or not at
all.

A log with several reward functions shows more than their sum: which of them the rise is, which
gives the signal, and which never moves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gradiometer.doctor import thresholds
from gradiometer.doctor.declared import Constant, Sign, seen
from gradiometer.doctor.outcome import (
    Outcome,
    at_maximum,
    became,
    held_out,
    judge_series,
    outcome_of,
    rises,
    trained_for,
)
from gradiometer.doctor.rule import (
    Draft,
    Skipped,
    Verdict,
    finding,
    needed,
    rule,
    too_short,
    unlogged,
    words,
)
from gradiometer.doctor.rundata import RunData, Series
from gradiometer.doctor.signs import both_ends, enough, level, number, reads, trend
from gradiometer.doctor.trainers import field_of, key_for
from gradiometer.maths.gains import without_tails
from gradiometer.names import vocabulary, words_of
from gradiometer.records import Evidence
from gradiometer.words import fmt

__all__: list[str] = []

limits = thresholds.group("reward")
FUNCTIONS = "rewards/<function>/<statistic>"


@rule(
    "reward-hacking",
    """
    cause: The policy earns the reward in a way that was not meant: it exploits the reward model or
      the verifier, or it has learned the training prompts and levels by heart.
    fix: Stop at the step where the held-out score was best.
    fix: Raise the KL penalty to the reference (beta in TRL, actor_rollout_ref.actor.kl_loss_coef in
      verl).
    fix: Read the twenty best-rewarded samples: what they share is the exploit; take it out of the
      reward.
    fix: If the samples are honest, train on more prompts or levels.
    confirm: Score the same samples with a judge that was not trained on: it hardly agrees with the
      reward.
    see: arXiv 2210.10760 (scaling laws for reward model overoptimization)
    """,
    needs=("reward",),
)
def reward_hacking(run: RunData) -> Verdict:
    """The reward rises while the held-out score falls, over the run or its last half; or, without
    one, only one part of the reward rises while another is not earned."""
    reward, held = needed(run, "reward"), held_out(run)
    sided = _one_sided(run)
    if sided is not None and not _is_side(sided.carrier):
        return _by_parts(run, sided)
    if held is None or not len(held.finite):
        return unlogged("val/reward")
    for share in (1.0, 0.5):
        scores = held.finite.last(share)
        proxies = reward.finite.since(int(scores.steps[0]))
        up, down = trend(proxies), trend(scores)
        if up.direction != "rises" or down.direction != "falls":
            continue
        gap = up.change / _size(proxies) - down.change / _size(scores)
        if gap >= limits.gap:
            more, less = fmt(up.change), fmt(-down.change)
            worse = level(held.last(0.2)) < level(held.first(0.2))
            wide = f"falls by {less} over the same steps: a gap of {gap:.0%} of their sizes"
            return finding(
                f"The reward rises by {more} while the held-out score falls by {less}",
                reads(proxies, f"rises by {more} over these steps"),
                reads(scores, wide),
                severity="critical" if worse and gap >= limits.wide_gap else "warn",
                basis="statistical",
            )
    untold = trend(held).direction is None and trend(held.last(0.5)).direction is None
    short = too_short(held, "16 evaluations, 8 independent blocks of two, needed")
    return _parted(run, reward, held) or (short if untold else None)


def _parted(run: RunData, reward: Series, held: Series) -> Draft | None:
    """A held-out score that lost a good part of its best while the reward rose on: what single
    evaluations show where they are too few for a trend."""
    score = None if not len(held.finite) else judge_series(run, held.finite)
    if score is None or score.fate != "fell" or score.lost < limits.parted or score.few:
        return None
    after, down = reward.finite.since(score.top_step), score.top - score.end
    little = down < thresholds.value("signs/flat_share") * _size(held)
    if little or rises(after) is not True:
        return None
    up = level(after.last(0.2)) - level(after.first(0.2))
    return finding(
        f"The held-out score fell from {fmt(score.top)} to {fmt(score.end)} since step"
        f" {score.top_step}, while the reward rose by {fmt(up)}",
        reads(after, f"rises by {fmt(up)} over these steps"),
        reads(score.series.since(score.top_step), f"falls by {fmt(down)} over the same steps"),
        severity="critical" if score.end < score.start else "warn",
        basis="statistical",
        since_step=score.top_step,
    )


def _size(series: Series) -> float:
    """What a change is compared with: the typical size, or the spread if that is larger."""
    values = series.finite.values
    return max(abs(level(series)), float(np.subtract(*np.percentile(values, [90, 10]))), 1e-12)


PARTS_WORDS = words(
    """
    cause: The policy found the part of the reward that can be had without the task, and the sum
      cannot tell the difference.
    fix: Make the part that matters decide: {key}; give the other one only where the first is earned
    fix: Read the twenty best-rewarded samples: what they share is the exploit
    fix: Easier tasks first, if {left} is never earned at all: what is never seen is never learned
    confirm: Train a tenth of the run with {left} alone: if it does not rise either, it is too hard
      or broken; if it does, the other part was in its way.
    see: F4
    see: F7
    """
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rise:
    """A reward whose rise is that of one of its parts, and the part that stayed behind."""

    carrier: Series
    left: Series
    share: float
    """Of what all parts gained, the carrier's."""

    @property
    def nothing(self) -> bool:
        """Whether hardly anything of the other part is earned."""
        least = limits.never_earned * abs(level(self.carrier.last(0.2)))
        return level(self.left.last(0.2)) <= least


def _means(run: RunData) -> list[Series]:
    """The mean of each reward function, with its weight, where it is long enough."""
    found = [each for each in run.every(FUNCTIONS) if each.parts.get("statistic") == "mean"]
    return [each.finite for each in found if enough(each, limits.min_windowed)]


def _throughout(run: RunData, progress: Outcome) -> bool:
    """Whether a reward is the same from its start on, not only since it collapsed."""
    values = progress.series.values
    spread = float(np.std(without_tails(values)))
    if not progress.constant or progress.few or float(np.ptp(values)) == 0.0:
        return progress.constant and not progress.few
    # of a return the size says nothing, of a score it does
    same = spread <= 2.0 * thresholds.value("course/constant") * abs(float(np.median(values)))
    return same and field_of(run) == "language"


def _is_side(series: Series) -> bool:
    """Whether a function is not the task: its form, its length, a bonus or a penalty."""
    side = vocabulary().side | {"penalty", "bonus", "tag", "tags", "xml", "soft", "strict"}
    return bool(set(words_of(series.parts["function"])) & side)


def _weighted(run: RunData, series: Series) -> Series:
    return replace(series, values=_weight(run, series.parts["function"]) * series.values)


def _gained(series: Series) -> float:
    return level(series.last(0.2)) - level(series.first(0.2))


def _one_sided(run: RunData) -> _Rise | None:
    """Where the reward rose, by one part alone, and another that could be the task did not."""
    parts, reward = [_weighted(run, each) for each in _means(run)], trained_for(run)
    if len(parts) < 2 or reward is None:
        return None
    whole = judge_series(run, reward.finite)
    if whole is None or whole.course != "gained" or _success(run):
        return None
    gains = [max(0.0, _gained(each)) for each in parts]
    carrier, share = parts[int(np.argmax(gains))], max(gains) / (sum(gains) or 1.0)
    explains = max(gains) >= limits.left_behind * _gained(whole.series)
    if share < limits.carries or not explains or rises(carrier) is not True:
        return None
    half = limits.left_behind * abs(level(carrier.last(0.2)))
    behind = [
        each
        for each in parts
        if each is not carrier
        and not _is_side(each)
        and rises(each) is not True
        and level(each.last(0.2)) <= half
    ]
    least = min(behind, key=lambda each: level(each.last(0.2)), default=None)
    return None if least is None else _Rise(carrier=carrier, left=least, share=share)


def _by_parts(run: RunData, found: _Rise) -> Draft:
    mine, other = (each.parts["function"] for each in (found.carrier, found.left))
    alone = "format alone" if _is_side(found.carrier) else f"{mine!r} alone"
    return finding(
        f"The reward rises by {alone}: {mine!r} has {found.share:.0%} of the gain, and {other!r}"
        f" stays at {fmt(level(found.left.last(0.2)))}",
        both_ends(found.carrier),
        both_ends(found.left),
        became(run),
        severity="critical" if found.nothing else "warn",
        basis="statistical",
        words=PARTS_WORDS,
        key=key_for(run, "reward-functions", "the weights of the reward functions", found.left),
        left=f"{other!r}",
    )


@seen(
    "reward-term-dead",
    """
    cause: A reward that is the same for every sample takes part in no advantage: the function is
      broken (it fails on every input, matches nothing, or is never called), or the task never
      reaches what it rewards.
    fix: Call it by hand on five samples that must differ: {key}
    fix: If it is right, make it reachable: easier tasks, partial credit
    confirm: Log its spread over a batch: it must not be zero.
    see: F21
    see: F2
    """,
)
def reward_term_dead(run: RunData) -> Sign | Verdict:
    """A reward, or one of its functions, that is the same at every measurement."""
    reward, progress = trained_for(run), outcome_of(run)
    key = key_for(run, "reward-functions", "the reward function", *([reward] if reward else []))
    if reward is not None and progress is not None and _throughout(run, progress):
        searching = field_of(run) == "control"  # a reward that nobody has found yet
        return Sign(
            series=progress.series,
            strength="strong" if searching else "total",
            since=int(progress.series.steps[0]),
            reading=f"{fmt(progress.end)} ± {fmt(progress.spread)} over the last half",
            title=f"The {progress.noun} is constant at {fmt(progress.end)}: nothing to learn from",
            said={"key": key},
        )
    parts = _means(run)
    if not parts:
        return unlogged(FUNCTIONS)
    constant = Constant(within="reward/same", least="reward/min_constant")
    dead = [each for each in parts if len(each) >= limits.min_constant and constant(each)]
    # one that always pays was satisfied from the start; one that never does was never reached
    unpaid = [each for each in dead if level(each) <= 0.0]
    if not unpaid:
        return None
    names = ", ".join(repr(each.parts["function"]) for each in unpaid)
    verb = "is" if len(unpaid) == 1 else "are"
    more = (reads(each, f"{fmt(level(each))} throughout") for each in unpaid[1:])
    return Sign(
        series=unpaid[0],
        strength="strong",
        since=int(unpaid[0].steps[0]),
        reading=f"{fmt(level(unpaid[0]))} at all {len(unpaid[0])} measurements",
        role="usual" if all(map(_is_side, unpaid)) else None,  # the task itself is paid
        title="The reward {names} {verb} {level} at every step: it teaches nothing",
        said={"names": names, "verb": verb, "level": fmt(level(unpaid[0])), "key": key},
        more=tuple(more),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """How much of the training signal each reward function gives."""

    shares: dict[str, float]
    what: str
    evidence: tuple[Evidence, ...]


@rule(
    "reward-term-dominates",
    """
    cause: Advantages are differences of the summed reward, so a function of small spread hardly
      moves them: the policy learns the loud one (often the format) and not what matters.{more}
    fix: Weigh the functions by what they should decide: reward_weights in TRL, the sum in a reward
      function in verl.
    fix: Or normalise each reward function's advantages by itself before adding them.
    confirm: Multiply {victim} by ten for a tenth of the run: its mean must now rise.
    see: F7
    """,
)
def reward_term_dominates(run: RunData) -> Verdict:
    """One reward function gives nearly all of the signal, and one that varies is not learned; or
    the rise is that of the format alone."""
    sided = None if _by_gradient(run) is not None else _one_sided(run)
    if sided is not None and _is_side(sided.carrier):
        return _by_parts(run, sided)
    parts = _by_gradient(run) or _by_variance(run)
    if parts is None:
        if not (run.has(FUNCTIONS) or run.has("grad/<block>/reward/<reward>/share")):
            return unlogged(FUNCTIONS)
        why = f"two reward functions with {limits.min_windowed} measurements of"
        return Skipped(why=f"{why} rewards/<function>/std each are needed", metric=FUNCTIONS)
    first = max(parts.shares, key=lambda name: parts.shares[name])
    share, success = parts.shares[first], _success(run)
    victims = [name for name in parts.shares if name != first and _unlearned(run, name)]
    least = limits.rules_alone if success is None else limits.dominates
    if not victims or success or share < max(least, limits.dominates):
        return None
    known = success is False
    untold = " Whether that is meant cannot be told: no held-out score or success rate is logged."
    return finding(
        f"The reward {first!r} gives {share:.0%} of the {parts.what};"
        f" {', '.join(map(repr, victims))} is not learned",
        *parts.evidence,
        severity="warn" if known and share >= limits.rules_alone else "info",
        since_step=None,  # the halves that were read say nothing of when it began
        more="" if known else untold,
        victim=f"{victims[0]!r}",
    )


def _by_gradient(run: RunData) -> _Parts | None:
    """Shares of the policy gradient, of all parameters where measured: they know the weights."""
    every = run.every("grad/<block>/reward/<reward>/share")
    found = [series for series in every if enough(series, limits.min_windowed)]
    blocks = sorted({series.parts["block"] for series in found}, key=lambda block: block != "all")
    of_block = [series for series in found if series.parts["block"] == blocks[0]]
    if len(of_block) < 2:
        return None
    shares = {series.parts["reward"]: level(series.last(0.5)) for series in of_block}
    evidence = tuple(
        reads(x.last(0.5), f"{shares[x.parts['reward']]:.0%} of the policy gradient")
        for x in of_block
    )
    return _Parts(shares=shares, what="policy gradient", evidence=evidence)


def _by_variance(run: RunData) -> _Parts | None:
    """Shares of the variance of the reward, as if the functions were independent."""
    found = [
        series
        for series in run.every(FUNCTIONS)
        if series.parts.get("statistic") == "std" and enough(series, limits.min_windowed)
    ]
    halves = ([x.first(0.5) for x in found], [x.last(0.5) for x in found])
    # a loud function is often learned by half time, and falls silent
    spread = max((_spreads(run, half) for half in halves), key=_largest_share)
    total = sum(x * x for x in spread.values())
    if len(spread) < 2 or total <= 0.0:
        return None
    shares = {name: x * x / total for name, x in spread.items()}
    read = {name: f"std {fmt(x)}: {shares[name]:.0%} of the variance" for name, x in spread.items()}
    evidence = tuple(reads(x, read[x.parts["function"]]) for x in halves[1])
    return _Parts(shares=shares, what="variance of the reward", evidence=evidence)


def _spreads(run: RunData, found: list[Series]) -> dict[str, float]:
    return {s.parts["function"]: level(s) * _weight(run, s.parts["function"]) for s in found}


def _largest_share(spread: dict[str, float]) -> float:
    total = sum(x * x for x in spread.values())
    return max(x * x for x in spread.values()) / total if spread and total > 0 else 0.0


def _weight(run: RunData, function: str) -> float:
    """What the run multiplies this reward with, where its facts say so by name."""
    weight = number(run.fact(f"reward_weights.{function}"))
    return 1.0 if weight is None else weight


def _unlearned(run: RunData, function: str) -> bool:
    """Whether a function still tells good from bad and its mean does not rise."""
    mean, spread = (
        run.get(FUNCTIONS, function=function, statistic=statistic) for statistic in ("mean", "std")
    )
    if mean is None or spread is None:
        return False
    if min(len(mean.finite), len(spread.finite)) < limits.min_windowed:
        return False
    varies = level(spread.last(0.5)) > limits.undecided * abs(level(mean.last(0.5)))
    return varies and rises(mean) is not True


def _success(run: RunData) -> bool | None:
    """Whether what is meant by the reward gets better; None when it is not logged or too short."""
    held = held_out(run) or run.get("success_rate")
    if held is None:
        return None
    return True if at_maximum(run, held) else rises(held)
