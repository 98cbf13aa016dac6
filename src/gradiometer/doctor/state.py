"""The state of a run, from what became of its outcome and what the rules found.

healthy: it rose, or is at its maximum. concern: it rose, and something is there that a careful
engineer would act on. not-learning: it went nowhere. broken: it collapsed or diverged, or there is
no signal to learn from. too-early: too few or too noisy measurements, or still in warm-up.
not-a-run: nothing that goes over steps. unknown: nothing in it says how well it does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from gradiometer.doctor import thresholds
from gradiometer.doctor.arbitration import HISTORY
from gradiometer.doctor.outcome import Outcome, judge_series, outcome_of, trained_for
from gradiometer.doctor.rundata import RunData, Series
from gradiometer.doctor.signs import level
from gradiometer.doctor.trainers import field_of
from gradiometer.maths.trends import correlation
from gradiometer.metrics import OUTCOMES
from gradiometer.records import Finding
from gradiometer.store.logs import Log
from gradiometer.words import counted, fmt, some

__all__ = ["STATES", "RunState", "State", "outcome_or_loss", "state_of"]

State: TypeAlias = Literal[
    "healthy", "concern", "not-learning", "broken", "too-early", "not-a-run", "unknown"
]
STATES: tuple[State, ...] = get_args(State)

limits = thresholds.group("state")
LIKE_OUTCOME = re.compile(r"rew|ret(urn)?s?([/_ ]|$)|score|acc|pass|succ|win|solved|fitness", re.I)
OURS = ("grad/", "meter/", "optimizer/", "router/", "grad_norm/", "variance/")
"""What the meter and the probes write is no outcome."""
NO_SIGNAL = ("reward-hacking", "reward-term-dominates")
"""Critical findings by which a rise is worth nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """What became of a run, in a word and in a line."""

    state: State
    verdict: str


def state_of(run: RunData, findings: Sequence[Finding], looked: int) -> RunState:
    """The state of a run with these findings, and the line that says it; `looked` rules could."""
    serious = [each for each in findings if each.severity != "info"]
    with np.errstate(all="ignore"):
        state, why = _state(run, serious)
    watched = [each.title for each in findings if each.title.startswith("Watch")]
    if state == "healthy" and watched:
        state = "concern"  # a strong sign that has not cost anything yet is worth acting on
    if state in ("healthy", "concern") and not serious:
        clean = f"Nothing wrong was found: {counted(looked, 'check')} could run"
        noted = [f"Note: {each.title}" for each in findings if each.id not in HISTORY]
        why += f". {next(iter([*watched, *noted]), clean)}"
    return RunState(state=state, verdict=f"{state}: {_once(why)}.")


def _once(why: str) -> str:
    """Without a second sentence that repeats the first: some findings say what became of it."""
    first, _, rest = why.partition(". ")
    second, stop, more = rest.partition(". ")
    same = second.lower() == first.lower()
    return first + (stop + more if stop else "") if same else why


def _state(run: RunData, serious: Sequence[Finding]) -> tuple[State, str]:
    if run.last_step is None:
        return "too-early", "no data was recorded yet"
    if not run.source.names():
        return "not-a-run", "it contains no series over steps"
    diverged = _diverged(run)
    if diverged:
        return "broken", diverged + _and(serious)
    outcome = outcome_or_loss(run)
    if outcome is None:
        return _without_outcome(run, serious)
    few = _too_few(outcome)
    if few:
        return "too-early", few + _and(serious)
    return _judged(run, outcome, serious)


def _judged(run: RunData, outcome: Outcome, serious: Sequence[Finding]) -> tuple[State, str]:
    said, critical = outcome.in_words, [each for each in serious if each.severity == "critical"]
    if outcome.course == "best":
        return ("concern" if serious else "healthy"), said + _and(serious)
    rose = outcome.course == "gained" or (outcome.course == "unclear" and _seems_to_rise(outcome))
    hollow = any(each.id in NO_SIGNAL for each in critical)
    dead = _no_signal(run, outcome)
    if dead or outcome.collapsed:
        # It learned all that its groups teach; where they are too hard that is nearly nothing.
        too_hard = any(each.id == "groups-too-hard" for each in serious)
        learned = rose and not (hollow or outcome.collapsed or too_hard)
        why = "; ".join(filter(None, (said, dead)))
        return "concern" if learned else "broken", why + _and(serious)
    perhaps = rose or (outcome.course == "unclear" and outcome.visible)
    # A wrong line that is proved costs something; what was gained all the same is no broken run.
    wired = rose and all(each.basis == "proved" for each in critical)
    over = outcome.fate in ("stands", "fell") and not wired
    if critical and (hollow or not perhaps or over):
        return "broken", said + _and(serious)
    if critical and not rose:
        return "concern", said + _and(serious)
    if not rose:
        return _stands(run, outcome, serious)
    if outcome.apart:
        plain = "all of its last third lies above its start, though so few values prove no rise"
        return "concern", f"{said}; {plain}{_and(serious)}"
    if outcome.course == "unclear":
        return "concern", f"{said}; it may be rising, but its noise is as large{_and(serious)}"
    return _rose(outcome, serious)


def _rose(outcome: Outcome, serious: Sequence[Finding]) -> tuple[State, str]:
    said = outcome.in_words
    if outcome.at_random:
        return "too-early", f"{said}: still the level of a random policy{_and(serious)}"
    if (serious or _modest(outcome)) and _all_at_once(outcome):
        gone = f"{said}, all of it in the first {limits.early_gain:.0%} of the run"
        return "not-learning", gone + _and(serious)
    if outcome.came_down and outcome.lost >= limits.large_part:
        return "concern", f"{said}: {outcome.lost:.0%} of the gain is lost{_and(serious)}"
    if outcome.below_baseline:
        return "concern", f"{said}: it stays below a simple baseline{_and(serious)}"
    return ("concern" if serious else "healthy"), said + _and(serious)


def _stands(run: RunData, outcome: Outcome, serious: Sequence[Finding]) -> tuple[State, str]:
    said = outcome.in_words
    if outcome.at_random and outcome.course == "flat" and not outcome.warming:
        why = f"{said}: it ends no better than random, so nothing was learned"
        return "not-learning", why + (_and(serious) or _what_would_tell(run))
    if outcome.course != "fell" and outcome.warming:
        return "too-early", f"{said}, and the learning rate is still in its warm-up{_and(serious)}"
    if outcome.early and not _plainly_flat(outcome):
        few = (
            ", at too few points to tell"
            if outcome.constant
            else ": too few points for this much noise"
        )
        return "too-early", f"{said}{few}{_and(serious)}"
    if outcome.course == "unclear" and outcome.visible and _all_at_once(outcome):
        early = f"all of it in the first {limits.early_gain:.0%} of the run"
        return "not-learning", f"{said}, {early}, and drifts since then{_and(serious)}"
    if outcome.course == "unclear" and outcome.visible:
        return (
            "too-early",
            f"{said}, but its noise is as large: too few points to tell{_and(serious)}",
        )
    if outcome.early:
        said += ", and so few points would hide a small rise"
    return "not-learning", said + (_and(serious) or _what_would_tell(run))


def _plainly_flat(outcome: Outcome) -> bool:
    """Whether a reader sees nothing rise, by a noise that would not hide all there is to gain."""
    waited = len(outcome.series) >= thresholds.value("course/still_rows")
    small = outcome.spread <= limits.small_noise * outcome.unit
    if not (waited and small) or outcome.visible:
        return False
    values = -outcome.series.values if outcome.lower_is_better else outcome.series.values
    found = correlation(values, np.arange(len(values)))
    return found is None or found.rho <= limits.in_order


def _and(serious: Sequence[Finding]) -> str:
    """The first cause, and how many more there are."""
    if not serious:
        return ""
    others = len(serious) - 1
    more = f", and {counted(others, 'more cause')}" if others else ""
    return f". {serious[0].title}{more}"


def _what_would_tell(run: RunData) -> str:
    wanted = ("entropy", "approx_kl", "grad/<block>/norm/raw", "explained_variance")
    names = {"grad/<block>/norm/raw": "grad_norm"}
    missing = [names.get(name, name) for name in wanted if not run.has(name)]
    tell = f". Log these to find out: {', '.join(missing)}" if missing else ""
    return f". It did not learn; no cause identified{tell}"


def _too_few(outcome: Outcome) -> str:
    """What is missing for a judgement; empty where there is enough."""
    if not outcome.few:
        return ""
    least = thresholds.value("course/min_rows")
    points = counted(len(outcome.series), "point")
    return f"the {outcome.noun} has {points} and {least} are needed"


def _seems_to_rise(outcome: Outcome) -> bool:
    if outcome.apart:
        return True
    clear = outcome.score >= limits.nearly and outcome.way >= limits.clear * outcome.quiet
    enough = len(outcome.series) >= limits.enough_rows
    return enough and clear and outcome.visible and outcome.lost < 0.5


def _modest(outcome: Outcome) -> bool:
    """Whether it gained less than a training is made for, from its very first values on: a small
    part of what there is to gain."""
    way = abs(outcome.end - float(outcome.series.values[:3].mean()))
    return way < limits.modest * outcome.unit and len(outcome.series) >= limits.enough_rows


def _all_at_once(outcome: Outcome) -> bool:
    """Whether everything was gained at the very start, and nothing since."""
    values = outcome.series.values
    early, late = values[: round(limits.early_gain * len(values))], values[len(values) // 2 :]
    after = values[round(limits.early_gain * len(values)) : len(values) // 2]
    if len(early) < 2 or len(after) < 2 or outcome.lower_is_better:
        return False
    # of single successes and failures the median says nothing
    middle = np.median if len(np.unique(values)) > 2 else np.mean
    level_after = float(middle(after))
    there = float(early[len(early) // 2 :].mean()) - outcome.start
    reached = there >= limits.early_share * (level_after - outcome.start)
    return reached and float(middle(late)) <= level_after and len(late) > 2


def _no_signal(run: RunData, outcome: Outcome) -> str:
    """What leaves nothing to learn from; empty where there is something."""
    # in control it is a reward that nobody found yet; an evaluation is not what is trained on
    only_seen = outcome.series.metric.name.startswith("val/") and trained_for(run) is not None
    if outcome.constant and field_of(run) != "control" and not only_seen:
        return "nothing can be learned from it"
    idle = run.get("zero_variance_groups")
    if idle is not None and len(idle.finite) >= thresholds.value("course/min_rewards"):
        share = float(idle.finite.last(0.5).values.mean())
        if share >= limits.idle:
            return f"{share:.0%} of the groups have identical rewards: no gradient"
    return ""


def _diverged(run: RunData) -> str:
    """What is not a number at the end, or grew out of all bounds; empty where all is finite."""
    for name in ("loss", "policy_loss", "value_loss", "reward"):
        series = run.get(name)
        if series is None or len(series) < thresholds.value("course/min_rewards"):
            continue
        bad = ~np.isfinite(series.values)
        if bad[-3:].all():
            first = int(series.steps[np.flatnonzero(~bad)[-1] + 1]) if not bad.all() else 0
            return f"{series.name} is not finite since step {first}"
        if name != "reward" and _explodes(run, series):
            start, end = level(series.finite.first(0.1)), level(series.finite.last(0.1))
            return f"{series.name} grew from {fmt(start)} to {fmt(end)}: it diverged"
    return ""


def _explodes(run: RunData, series: Series) -> bool:
    size = np.abs(series.finite.values)
    tenth = max(2, len(size) // 10)
    start, end = float(np.median(size[:tenth])), float(np.median(size[-tenth:]))
    outcome = outcome_of(run)
    fine = outcome is not None and outcome.course in ("best", "gained")
    return start > 0.0 and end >= max(limits.exploded * start, 100.0) and not fine


def outcome_or_loss(run: RunData) -> Outcome | None:
    """What the state is judged by: the outcome, and in supervised training the loss."""
    return outcome_of(run) or _of_loss(run)


def _of_loss(run: RunData) -> Outcome | None:
    """The loss as the outcome, in a log of supervised training: nothing of a policy is in it; an
    entropy may be where the tokens of given answers are counted."""
    policy = ["policy_loss", "approx_kl", "advantages/<statistic>", "episode_length"]
    policy += ["exploration_rate", "q_value", "td_error"]  # a loss whose targets move
    of_policy = policy if run.has("token_accuracy") else [*policy, "entropy"]
    if any(run.has(name) for name in of_policy) or any(map(run.has, OUTCOMES)):
        return None
    for name in ("val/loss", "loss"):
        series = run.get(name)
        if series is not None and len(series.finite) >= thresholds.value("course/min_rewards"):
            return judge_series(run, series.finite)
    return None


def _without_outcome(run: RunData, serious: Sequence[Finding]) -> tuple[State, str]:
    short = [series for name in OUTCOMES if (series := run.get(name)) is not None]
    if short:
        longest = max(short, key=len)
        points = counted(len(longest.finite), "finite point")
        least = thresholds.value("course/min_rows")
        return ("too-early", f"{longest.name} has {points} and {least} are needed{_and(serious)}")
    if len(run.source.steps()["step"]) <= 1:
        return "not-a-run", "there is only one row, so no series over steps" + _and(serious)
    critical = [each for each in serious if each.severity == "critical"]
    if critical and critical[0].basis == "proved":
        return "broken", f"no metric measures how well the policy does{_and(critical)}"
    hole = _hole(run)
    like = [name for name in run.source.names() if LIKE_OUTCOME.search(name)]
    maybe = [name for name in like or run.unknown if not name.startswith(OURS)]
    tell = f". It might be {some(maybe, int(limits.measures))}: assign it with --name reward=COLUMN"
    if not maybe:
        tell = "" if isinstance(run.source, Log) else ". Log it: meter.log(reward=...)"
    return (
        "unknown",
        f"no known metric measures how well the policy does{hole}{tell}{_and(serious)}",
    )


def _hole(run: RunData) -> str:
    """Where the loss is not a number, in a log that has nothing better."""
    loss = run.get("loss")
    if loss is None or bool(np.isfinite(loss.values).all()):
        return ""
    broken = loss.steps[~np.isfinite(loss.values)]
    return (
        f", and the loss is not finite at {len(broken)} of {len(loss)} steps, first at step"
        f" {int(broken[0])}"
    )
