"""What was earned in another way than meant: the reward against the held-out score, the length, and its own parts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.goals import (
    at_maximum,
    held_out,
    length_is_return,
    reads,
    rises,
)
from gradiometer.doctor.lacking import too_short, unlogged
from gradiometer.doctor.rule import Skipped, Verdict, rule
from gradiometer.doctor.signs import enough, learning, level, number, outcome, persists, since, trend
from gradiometer.maths.trends import correlation
from gradiometer.records import Evidence, Finding, Severity
from gradiometer.words import fmt

__all__ = ["length_exploit", "reward_hacking", "reward_term_dominates", "truncation"]

GAP, WIDE_GAP = 0.15, 0.30
"""Training score minus held-out score, over the size of each: public log doctors' two levels."""
GROWTH, TOGETHER, CARRIED_OVER = 0.5, 0.6, 0.25
"""Length growth, its rank correlation with the reward, and the part of the gain the held-out score shares: log doctors'
numbers. Length grows by half with better answers too, so the third decides."""
CUT, CUT_OFTEN, CUT_MOSTLY = 0.05, 0.15, 0.30
"""Public log doctors' three levels. From 0.15 on a sixth of the batch teaches that a good start is worth nothing."""
MIN_WINDOWED = 9
"""Three windows of three measurements."""
DOMINATES, RULES_ALONE = 0.7, 0.9
"""Share of the variance of the reward, hence of the advantages: public log doctors' two levels."""
UNDECIDED = 0.2
"""Std over |mean| above which a reward still tells good from bad. A solved one hardly varies, and is no victim."""
MIN_EVALUATIONS = 6
"""Held-out scores of which the first and the last third can be compared at all."""


@rule("reward-hacking", needs=("reward",))
def reward_hacking(chart: Chart) -> Verdict:
    """The training reward rises while the held-out score falls, over the whole run or its last half."""
    reward, held = chart.get("reward"), held_out(chart)
    if held is None:
        return unlogged("reward-hacking", "val/reward")
    assert reward is not None
    if trend(held).direction is None and trend(held.last(0.5)).direction is None:
        return too_short("reward-hacking", held, "16 evaluations, 8 independent blocks of two, needed")
    for share in (1.0, 0.5):
        scores = held.finite.last(share)
        proxies = reward.finite.since(int(scores.steps[0]))
        up, down = trend(proxies), trend(scores)
        if up.direction == "rises" and down.direction == "falls":
            gap = up.change / _size(proxies) - down.change / _size(scores)
            if gap >= GAP:
                worse = level(held.last(0.2)) < level(held.first(0.2))
                return _hacked(proxies, scores, up.change, down.change, gap=gap, ruined=worse and gap >= WIDE_GAP)
    return None


def _size(series: Series) -> float:
    """What a change of a series is compared with: its typical size, or its spread if that is larger."""
    values = series.finite.values
    return max(abs(level(series)), float(np.subtract(*np.percentile(values, [90, 10]))), 1e-12)


def _hacked(proxies: Series, scores: Series, up: float, down: float, *, gap: float, ruined: bool) -> Finding:
    return Finding(
        id="reward-hacking",
        title=f"The reward rises by {fmt(up)} while the held-out score falls by {fmt(-down)}",
        severity="critical" if ruined else "warn",
        basis="statistical",
        since_step=int(scores.steps[0]),
        evidence=(
            reads(proxies, f"rises by {fmt(up)} over these steps"),
            reads(scores, f"falls by {fmt(-down)} over the same steps: a gap of {gap:.0%} of their sizes"),
        ),
        cause="The policy earns the reward in a way that was not meant: it exploits the reward model or the verifier, or it "
        "has learned the training prompts and levels by heart.",
        fix=(
            "Stop at the step where the held-out score was best.",
            "Raise the KL penalty to the reference (beta in TRL, actor_rollout_ref.actor.kl_loss_coef in verl).",
            "Read the twenty best-rewarded samples: what they share is the exploit; take it out of the reward.",
            "If the samples are honest, train on more prompts or levels.",
        ),
        confirm="Score the same samples with a judge that was not trained on: it hardly agrees with the reward.",
        references=("arXiv 2210.10760 (scaling laws for reward model overoptimization)",),
    )


@rule("length-exploit", needs=("reward", "episode_length"))
def length_exploit(chart: Chart) -> Verdict:
    """Episodes grow by half and the reward with them, while the held-out score hardly gains."""
    reward, length, held = chart.get("reward"), chart.get("episode_length"), chart.get("val/reward")
    assert reward is not None
    assert length is not None
    if held is None:
        return unlogged("length-exploit", "val/reward")
    if not enough(held, MIN_EVALUATIONS):
        return too_short("length-exploit", held, f"{MIN_EVALUATIONS} evaluations needed")
    if length_is_return(chart):
        return None
    short, long = level(length.finite.first(0.2)), level(length.finite.last(0.2))
    _, mine, theirs = np.intersect1d(reward.finite.steps, length.finite.steps, return_indices=True)
    together = correlation(reward.finite.values[mine], length.finite.values[theirs])
    if together is None:
        return too_short("length-exploit", length, "8 steps with both a reward and a length needed")
    grown = short > 0.0 and long >= (1.0 + GROWTH) * short and trend(length).direction == "rises"
    gain, carried = _gain(reward), _gain(held)
    if not grown or together.rho < TOGETHER or gain <= 0.0 or carried >= CARRIED_OVER * gain:
        return None
    return Finding(
        id="length-exploit",
        title=f"Episodes grew from {fmt(short)} to {fmt(long)} and the reward with them; the held-out score hardly gained",
        severity="warn",
        basis="heuristic",
        since_step=since(length, lambda x: x > 0.5 * (short + long)),
        evidence=(
            reads(length, f"{fmt(short)} in the first fifth, {fmt(long)} in the last: {long / short - 1.0:+.0%}"),
            reads(reward, f"gained {fmt(gain)}; rank correlation with the length {fmt(together.rho)}"),
            reads(held, f"gained {fmt(carried)}, {carried / gain:.0%} of that"),
        ),
        cause="The reward pays for length itself, or the loss weighs long answers more, so the policy learned to go on.",
        fix=(
            "Reward what an answer says and not how long it is: subtract the length's part, or score it per token.",
            "Take the length bias out of the loss: loss_type='dr_grpo' in TRL, "
            "actor_rollout_ref.actor.loss_agg_mode='seq-mean-token-sum-norm' in verl.",
        ),
        confirm="Cut the longest answers to the old length and score them again: the reward falls, the other does not.",
        references=("arXiv 2310.03716 (length correlations in RLHF)", "arXiv 2503.20783 (Dr. GRPO)"),
    )


def _gain(series: Series) -> float:
    """From the median of the first fifth, or two measurements, to that of the last."""
    values = series.finite.values
    ends = max(2, round(0.2 * len(values)))
    return float(np.median(values[-ends:]) - np.median(values[:ends]))


@rule("truncation", needs=("truncated_fraction",))
def truncation(chart: Chart) -> Verdict:
    """Many episodes are cut off at the largest length. Where longer is better, or the horizon is fixed, that is success."""
    cut = chart.get("truncated_fraction")
    assert cut is not None
    if not enough(cut, MIN_WINDOWED):
        return too_short("truncation", cut, MIN_WINDOWED)
    if not persists(cut, lambda x: x > CUT) or bool((cut.finite.values >= 1.0).all()):
        return None  # all of them on every step: a task of fixed length
    reward = outcome(chart)
    if reward is not None and (at_maximum(chart, reward) or length_is_return(chart) or _earns(cut, reward)):
        return None
    often, mostly = persists(cut, lambda x: x > CUT_OFTEN), persists(cut, lambda x: x > CUT_MOSTLY)
    severity: Severity = "warn" if mostly or (often and not learning(chart)) else "info"
    share = level(cut.last(0.5))
    return Finding(
        id="truncation",
        title=f"{share:.0%} of the episodes are cut off at the largest length",
        severity=severity,
        basis="heuristic",
        since_step=since(cut, lambda x: x > (CUT_OFTEN if severity == "warn" else CUT)),
        evidence=(reads(cut.last(0.5), f"median {fmt(share)}; above {CUT} worth knowing, above {CUT_OFTEN} harmful"),),
        cause="What is cut off gets the reward of a failure however good its beginning was, and a value target as if the "
        "episode had ended there: the gradient teaches noise about those samples.",
        fix=_longer(cut.library),
        confirm="Leave the cut-off samples out of the loss for a tenth of the run and compare the held-out score.",
        references=("arXiv 2503.14476 (DAPO, overlong filtering)", "arXiv 1712.00378 (time limits in RL)"),
    )


def _earns(cut: Series, reward: Series) -> bool:
    """Whether more is earned where more is cut off: a time limit that good policies reach."""
    _, mine, theirs = np.intersect1d(cut.finite.steps, reward.finite.steps, return_indices=True)
    together = correlation(cut.finite.values[mine], reward.finite.values[theirs])
    return together is not None and together.rho >= TOGETHER


def _longer(library: str) -> tuple[str, ...]:
    known = {
        "TRL": (
            "max_completion_length: allow longer completions.",
            "mask_truncated_completions=True: leave cut ones out.",
        ),
        "verl": (
            "data.max_response_length: allow longer responses.",
            "reward_model.overlong_buffer.enable=True (DAPO).",
        ),
    }
    general = (
        "Allow longer episodes or completions, or leave those that were cut off out of the loss.",
        "Bootstrap the value at a time limit instead of treating it as an end (truncated, not terminated, in Gymnasium).",
    )
    return known.get(library, general)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """How much of the training signal each reward function gives."""

    shares: dict[str, float]
    what: str
    evidence: tuple[Evidence, ...]


@rule("reward-term-dominates")
def reward_term_dominates(chart: Chart) -> Verdict:
    """One reward function gives nearly all of the signal while another one that still varies is not learned."""
    parts = _by_gradient(chart) or _by_variance(chart)
    if parts is None:
        if not (chart.has("rewards/<function>/<statistic>") or chart.has("grad/<block>/reward/<reward>/share")):
            return unlogged("reward-term-dominates", "rewards/<function>/<statistic>")
        why = f"two reward functions with {MIN_WINDOWED} measurements of rewards/<function>/std each are needed"
        return Skipped(rule="reward-term-dominates", why=why, metric="rewards/<function>/<statistic>")
    first = max(parts.shares, key=lambda name: parts.shares[name])
    share = parts.shares[first]
    victims = [name for name in parts.shares if name != first and _unlearned(chart, name)]
    success = _success(chart)
    if share < DOMINATES or not victims or success or (success is None and share < RULES_ALONE):
        return None
    known = success is False
    return Finding(
        id="reward-term-dominates",
        title=f"The reward {first!r} gives {share:.0%} of the {parts.what}; {', '.join(map(repr, victims))} is not learned",
        severity="warn" if known and share >= RULES_ALONE else "info",
        basis="heuristic",
        evidence=parts.evidence,
        cause="Advantages are differences of the summed reward, so a function of small spread hardly moves them: the policy "
        "learns the loud one (often the format) and not what matters."
        + ("" if known else " Whether that is meant cannot be told: no held-out score or success rate is logged."),
        fix=(
            "Weigh the functions by what they should decide: reward_weights in TRL, the sum in a reward function in verl.",
            "Or normalise each reward function's advantages by itself before adding them.",
        ),
        confirm=f"Multiply {victims[0]!r} by ten for a tenth of the run: its mean must now rise.",
        references=("failure catalogue F7",),
    )


def _by_gradient(chart: Chart) -> _Parts | None:
    """Shares of the policy gradient, of all parameters where measured: they know the weights."""
    found = [series for series in chart.every("grad/<block>/reward/<reward>/share") if enough(series, MIN_WINDOWED)]
    blocks = sorted({series.parts["block"] for series in found}, key=lambda block: block != "all")
    of_block = [series for series in found if series.parts["block"] == blocks[0]]
    if len(of_block) < 2:
        return None
    shares = {series.parts["reward"]: level(series.last(0.5)) for series in of_block}
    evidence = tuple(reads(s.last(0.5), f"{shares[s.parts['reward']]:.0%} of the policy gradient") for s in of_block)
    return _Parts(shares=shares, what="policy gradient", evidence=evidence)


def _by_variance(chart: Chart) -> _Parts | None:
    """Shares of the variance of the reward, as if the functions were independent."""
    found = [
        series
        for series in chart.every("rewards/<function>/<statistic>")
        if series.parts.get("statistic") == "std" and enough(series, MIN_WINDOWED)
    ]
    halves = [_spreads(chart, [part(series) for series in found]) for part in (_early, _late)]
    spread = max(halves, key=_largest_share)  # a loud function is often learned by half time, and falls silent
    total = sum(x * x for x in spread.values())
    if len(spread) < 2 or total <= 0.0:
        return None
    shares = {name: x * x / total for name, x in spread.items()}
    evidence = tuple(
        reads(s.last(0.5), f"std {fmt(spread[s.parts['function']])}: {shares[s.parts['function']]:.0%} of the variance")
        for s in found
    )
    return _Parts(shares=shares, what="variance of the reward", evidence=evidence)


def _early(series: Series) -> Series:
    return series.first(0.5)


def _late(series: Series) -> Series:
    return series.last(0.5)


def _spreads(chart: Chart, found: list[Series]) -> dict[str, float]:
    return {s.parts["function"]: level(s) * _weight(chart, s.parts["function"]) for s in found}


def _largest_share(spread: dict[str, float]) -> float:
    total = sum(x * x for x in spread.values())
    return max(x * x for x in spread.values()) / total if spread and total > 0 else 0.0


def _weight(chart: Chart, function: str) -> float:
    """What the run multiplies this reward with, where its facts say so by name."""
    weight = number(chart.fact(f"reward_weights.{function}"))
    return 1.0 if weight is None else weight


def _unlearned(chart: Chart, function: str) -> bool:
    """Whether a function still tells good from bad and its mean does not rise. Without its numbers nobody can say."""
    mean = chart.get("rewards/<function>/<statistic>", function=function, statistic="mean")
    spread = chart.get("rewards/<function>/<statistic>", function=function, statistic="std")
    if mean is None or spread is None or not enough(mean, MIN_WINDOWED) or not enough(spread, MIN_WINDOWED):
        return False
    varies = level(spread.last(0.5)) > UNDECIDED * abs(level(mean.last(0.5)))
    return varies and rises(mean) is not True


def _success(chart: Chart) -> bool | None:
    """Whether what is meant by the reward gets better; None when it is not logged or too short."""
    held = held_out(chart) or chart.get("success_rate")
    if held is None:
        return None
    return True if at_maximum(chart, held) else rises(held)
