"""Whether the rewards teach anything: groups that all fail or all succeed, and a policy that answers every prompt alike.

A share accuses nobody by itself: late in a healthy run most groups are solved. So each rule also asks what became of the
reward. Noise is in signal_noise.py, the scale of advantages and rewards in signal_scale.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.goals import began_trained
from gradiometer.doctor.lacking import too_short, unlogged
from gradiometer.doctor.progress import Progress, key_of, number, progress_of, shown
from gradiometer.doctor.roles import REGULARISERS, Role, role_of
from gradiometer.doctor.rule import Skipped, Verdict, rule
from gradiometer.doctor.signs import level, persists, since, told_best, trend
from gradiometer.records import Evidence, Finding, Severity
from gradiometer.words import fmt

__all__ = ["groups_too_easy", "groups_too_hard", "template_collapse"]

MIN_POINTS = 9
"""Three windows of three: what `persists` needs."""

IDLE = 0.5
"""Share of groups without reward variance; public log doctors warn here: half of the rollouts are paid for and thrown away."""
MOSTLY_IDLE = 0.75
"""Their second threshold: a batch is worth a quarter of its size."""
ALL_IDLE = 0.98
"""No group is left that could teach: with groups in the hundreds, at most a few."""
EASY, HARD = 0.85, 0.15
"""Share of what can be earned (public log doctors). Eight rollouts all agree in 27 % of groups at p = 0.85, in half at 0.92."""
NO_SPREAD = 0.01
"""Spread inside groups, in shares of the range of rewards, at which hardly any group has two different rewards."""

MIN_TREND = 16
"""Points of mutual information: eight blocks of two."""
LOST_SHARE = 0.3
"""Of the mutual information: below a third lost, prompts of another mix explain it."""
HELD_SHARE = 0.7
"""Of the entropy at least: below, the policy collapsed as a whole, which is another finding."""
LOW_BUCKETS = 0.25
"""Share of the samples in buckets that the regularisers rule: less is not what moves the policy."""

GROUP_KEYS = {
    "TRL": "the dataset's difficulty, num_generations and temperature",
    "verl": "data.train_files, actor_rollout_ref.rollout.n and .temperature",
    "RAGEN": "env_configs, es_manager.train.group_size and rollout_filter_value",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Idle:
    """Groups without reward variance, and how much of what can be earned is earned."""

    groups: Series
    share: float
    earned: Series | None
    """As a share of what can be earned; None when its range is not known."""
    progress: Progress | None
    by_std: bool

    @property
    def level(self) -> float:
        return math.nan if self.earned is None else level(self.earned.last(0.5))

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        spread = "reward spread inside groups below a hundredth of its range"
        what = spread if self.by_std else "median share of groups whose rollouts all earn the same"
        found = [shown(self.groups, f"{what}: {fmt(self.share)} over the last half")]
        if self.earned is not None:
            reading = f"{fmt(100 * self.level)} % of what can be earned over the last half"
            found.append(shown(self.earned, reading))
        elif self.progress is not None:
            found.append(self.progress.evidence)
        return tuple(found)


def _range(chart: Chart, reward: Series) -> tuple[float, float] | None:
    """Least and most a rollout can earn: as the run says, or [0, 1] where no mean ever left it."""
    values = reward.finite.values
    if not len(values):
        return None
    least = number(chart.fact("min_reward", "min_return"))
    most = told_best(chart)
    if least is None and float(values.min()) >= 0.0:
        least = 0.0
    if most is None and least == 0.0 and float(values.max()) <= 1.0:
        most = 1.0
    return None if least is None or most is None or most <= least else (least, most)


def _earned(chart: Chart) -> Series | None:
    rate = chart.get("success_rate")
    if rate is not None and len(rate.finite):
        return rate.finite
    reward = chart.get("reward")
    bounds = None if reward is None else _range(chart, reward)
    if reward is None or bounds is None:
        return None
    return replace(reward.finite, values=(reward.finite.values - bounds[0]) / (bounds[1] - bounds[0]))


def _idle(chart: Chart, id: str) -> _Idle | Skipped | None:
    groups, by_std = chart.get("zero_variance_groups"), False
    spread, reward = chart.get("reward_std"), chart.get("reward")
    if groups is None and spread is not None and reward is not None and (bounds := _range(chart, reward)):
        low = spread.finite.values < NO_SPREAD * (bounds[1] - bounds[0])
        groups, by_std = replace(spread.finite, values=low.astype(np.float64)), True
    if groups is None:
        return unlogged(id, "zero_variance_groups")
    held = persists(groups, lambda share: share >= IDLE)
    if held is None:
        return too_short(id, groups, MIN_POINTS)
    if not held:
        return None
    share = level(groups.last(0.5))
    return _Idle(groups=groups, share=share, earned=_earned(chart), progress=progress_of(chart), by_std=by_std)


def _groups_finding(
    idle: _Idle, id: str, *, title: str, severity: Severity, cause: str, fix: tuple[str, ...]
) -> Finding:
    return Finding(
        id=id,
        title=title,
        severity=severity,
        basis="heuristic",
        since_step=since(idle.groups, lambda share: share >= IDLE),
        evidence=idle.evidence,
        cause=cause,
        fix=fix,
        confirm="Sample 16 rollouts for each of 50 prompts and count how many are always right and how many always wrong; "
        "train 20 steps on those in between: zero_variance_groups falls and the gradient norm rises.",
        references=("DAPO, arXiv 2503.14476: dynamic sampling", "TRL: frac_reward_zero_std"),
    )


HARDER = "Harder prompts, or drop those that are always right (dynamic sampling)"
EASIER = "Easier prompts or a curriculum, more rollouts a prompt, partial credit in the reward"
VERIFIER = "Score ten known right answers with the reward function: a verifier that fails returns zero for all"
NO_CONTRAST = (
    "A group's advantage is its reward minus the group's mean: where all earn the same, its gradient is exactly zero."
)


def _unclear(idle: _Idle, id: str) -> Finding | None:
    """The share is high and the level is unknown or in the middle: both are said."""
    if idle.progress is not None and not idle.progress.stuck:
        return None
    known = idle.earned is not None
    severity: Severity = "info" if known and idle.share < MOSTLY_IDLE else "warn"
    why = f"at {fmt(100 * idle.level)} % earned, some too easy and some too hard" if known else "too easy or too hard"
    return _groups_finding(
        idle, id, severity=severity,
        title=f"{fmt(100 * idle.share)} % of the groups earn one and the same reward: {why}",
        cause=f"{NO_CONTRAST} " + ("" if known else "Which of the two it is needs the range of the reward or success_rate."),
        fix=(f"If rewards are near their maximum: {HARDER[0].lower()}{HARDER[1:]}", f"If near their minimum: "
             f"{EASIER[0].lower()}{EASIER[1:]}", f"See {key_of(idle.groups, GROUP_KEYS, 'group size and temperature')}"),
    )  # fmt: skip


@rule("groups-too-easy")
def groups_too_easy(chart: Chart) -> Verdict:
    """Most groups are solved by every rollout (F1). Solved by this training is information; solved from the start is waste."""
    idle = _idle(chart, "groups-too-easy")
    if not isinstance(idle, _Idle):
        return idle
    if idle.earned is None or 0.5 <= idle.level < EASY:
        return _unclear(idle, "groups-too-easy")
    if idle.level < EASY:
        return None
    learnt = level(idle.earned.first(0.1)) < EASY or began_trained(chart)
    return _groups_finding(
        idle, "groups-too-easy", severity="info" if learnt else "warn",
        title=f"{fmt(100 * idle.share)} % of the groups are solved by every rollout, {fmt(100 * idle.level)} % is earned",
        cause=NO_CONTRAST + (" This training got them there." if learnt else " They were that easy from the start."),
        fix=(HARDER, "Or stop: there is little left to learn here" if learnt else "Larger groups find the rare failure",
             f"See {key_of(idle.groups, GROUP_KEYS, 'the sampler of prompts')}"),
    )  # fmt: skip


@rule("groups-too-hard")
def groups_too_hard(chart: Chart) -> Verdict:
    """Most groups are failed by every rollout, or the verifier fails them (F2). Silent while rare successes are learnt from."""
    idle = _idle(chart, "groups-too-hard")
    if not isinstance(idle, _Idle):
        return idle
    if idle.earned is None or HARD < idle.level < 0.5:
        return _unclear(idle, "groups-too-hard")
    if idle.level > HARD or (idle.progress is not None and not idle.progress.stuck):
        return None
    return _groups_finding(
        idle, "groups-too-hard", severity="critical" if idle.share >= ALL_IDLE else "warn",
        title=f"{fmt(100 * idle.share)} % of the groups are failed by every rollout, {fmt(100 * idle.level)} % is earned",
        cause=f"{NO_CONTRAST} Either the prompts are beyond the policy or the verifier rejects what is right.",
        fix=(VERIFIER, EASIER, f"See {key_of(idle.groups, GROUP_KEYS, 'group size and temperature')}"),
    )  # fmt: skip


@rule("template-collapse")
def template_collapse(chart: Chart) -> Verdict:
    """Outputs depend ever less on inputs while the entropy holds, or regularisers rule the groups without variance (F27).

    With the entropy falling too it is a collapse of the policy as a whole, and entropy-collapse says so.
    """
    information, entropy = chart.get("mutual_information"), chart.get("entropy")
    ruled = _ruled_buckets(chart)
    if information is None or entropy is None:
        if ruled is None and not chart.has("grad_norm/<bucket>/sample_pct"):
            metric = "mutual_information" if information is None else "entropy"
            return unlogged("template-collapse", metric)
        return None if ruled is None else _template(chart, (ruled,), severity="info", start=None)
    if len(information.finite) < MIN_TREND:
        return too_short("template-collapse", information, MIN_TREND)
    lost, held, falling = _lost(information), 1.0 - _lost(entropy), trend(information)
    if falling.direction != "falls" or lost < LOST_SHARE or held < HELD_SHARE:
        return None if ruled is None else _template(chart, (ruled,), severity="info", start=None)
    first, last = level(information.finite.first(0.2)), level(information.finite.last(0.2))
    start = since(information, lambda x: x < (1.0 - LOST_SHARE) * first)
    evidence = (
        shown(
            information.finite,
            f"fell from {fmt(first)} to {fmt(last)}, Mann-Kendall p {fmt(trend(information).p_value or 0.0)}",
        ),
        shown(entropy.finite, f"kept {fmt(100 * held)} % of its level"),
    )
    progress = progress_of(chart)
    severity: Severity = "warn" if progress is None or progress.stuck else "info"
    return _template(chart, (*evidence, *(() if ruled is None else (ruled,))), severity=severity, start=start)


def _lost(series: Series) -> float:
    """Share of its early level that a series has lost, by medians of the first and last fifth."""
    first, last = level(series.finite.first(0.2)), level(series.finite.last(0.2))
    return 1.0 - last / first if first > 0.0 else 0.0


def _ruled_buckets(chart: Chart) -> Evidence | None:
    """The low-variance half of the buckets, where in the last analysis entropy and KL outweigh the task; None when not so."""
    spreads = {x.parts["bucket"]: x for x in chart.every("grad_norm/<bucket>/reward_std_mean") if len(x.finite)}
    names = sorted((name for name in spreads if name != "all"), key=lambda name: float(spreads[name].finite.values[-1]))
    ruled: list[str] = []
    for name in names[: len(names) // 2]:
        task, rest = (_last_norm(chart, name, roles) for roles in (("policy",), REGULARISERS))
        if task is not None and rest is not None and task < rest:
            ruled.append(name)
    held = [chart.get("grad_norm/<bucket>/sample_pct", bucket=name) for name in ruled]
    share = sum(float(x.finite.values[-1]) for x in held if x is not None and len(x.finite))
    if share < LOW_BUCKETS:
        return None
    reading = f"entropy and KL outweigh the task in {', '.join(ruled)}: {fmt(100 * share)} % of the rollouts"
    return shown(spreads[ruled[0]].finite, reading)


def _last_norm(chart: Chart, bucket: str, roles: tuple[Role, ...]) -> float | None:
    """The summed norms of the terms in these roles on a bucket in the last analysis."""
    found = [x for x in chart.every("grad_norm/<bucket>/<term>") if x.parts["bucket"] == bucket]
    norms = [float(x.finite.values[-1]) for x in found if role_of(x.parts["term"]) in roles and len(x.finite)]
    return sum(norms) if norms else None


def _template(chart: Chart, evidence: tuple[Evidence, ...], *, severity: Severity, start: int | None) -> Finding:
    sure = severity == "warn" or len(evidence) > 1
    progress = progress_of(chart)
    return Finding(
        id="template-collapse",
        title="The policy answers ever more alike whatever the prompt, while its entropy holds" if sure
        else "In groups without reward variance regularisers move the policy more than the task",
        severity=severity,
        basis="statistical" if sure else "heuristic",
        since_step=start,
        evidence=(*evidence, *(() if progress is None else (progress.evidence,))),
        cause="Where rewards do not vary only entropy and KL have a gradient, and they know nothing of the prompt.",
        fix=("Filter groups by reward variance (RAGEN: actor_rollout_ref.rollout.rollout_filter_value below 1, top_p)",
             "Lower the regularisers (verl: actor_rollout_ref.actor.entropy_coeff, kl_loss_coef; TRL: beta)"),
        confirm="gradiometer analyze: norms of task, entropy and KL by bucket of reward variance; train 50 steps with the "
        "filter on and see whether mutual_information recovers.",
        references=("RAGEN-2: template collapse",),
    )  # fmt: skip
