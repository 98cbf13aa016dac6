"""Exploration: a policy that stopped trying things too early, one that never starts to choose, and ε schedules.

A falling entropy is how learning looks, and one action may be the answer: each rule here also asks what became of the reward.
"""

from __future__ import annotations

import math

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.lacking import too_short
from gradiometer.doctor.pairs import pairs_of
from gradiometer.doctor.progress import Progress, key_of, no_outcome, number, progress_of, shown
from gradiometer.doctor.roles import role_of
from gradiometer.doctor.rule import Skipped, Verdict, rule
from gradiometer.doctor.signs import level, persists, since, trend
from gradiometer.records import Evidence, Finding, Severity
from gradiometer.words import fmt

__all__ = ["action_collapse", "entropy_collapse", "entropy_never_falls", "exploration_schedule"]

COLLAPSED = 0.1
"""Of its start: failure catalogue F17. Entropy buys reward, R = b − a·e^H (arXiv 2505.22617), and nine tenths are spent."""
MIN_COLLAPSED = 9
"""Measurements since the collapse: three windows of three."""
EARLY = 0.25
"""Of the run. Without counter-measures 73 % of the entropy goes in the first twelfth (arXiv 2505.22617); later is learning."""
SHORT_OF_BEST = 0.8
"""Of the way to the known maximum: a policy that stopped exploring below it will not get there."""

HELD = 0.95
"""Of its start or of ln|A|: a relative entropy that stays near 1 is a random policy (A. Jones, debugging RL)."""
MIN_HELD = 20
"""Measurements before a policy may be called idle: every policy starts near its largest entropy."""
UNIFORM = 0.005
"""How near exp(entropy) must be to a whole number to say: uniform over that many actions."""
MAX_UNIFORM = 20
"""Actions above which every entropy is near the logarithm of some whole number. Atari has 18."""
STANDS_UP = math.log10(0.5)
"""Decades: half of the policy's gradient, which a bonus beside a signal that averages out outweighs."""
DRIVES = 0.5
"""Share of the actor's gradient above which the entropy bonus is what trains it."""

STAGNANT = 0.8
"""Share of one action: RLExplorer's bound (failure catalogue F42)."""

MIN_RATES = 20
"""Measurements of ε that show a schedule, not its beginning."""
NO_EXPLORATION = 1e-3
"""One random action in a thousand is none."""
RANDOM = 0.5
"""From here on more actions are random than chosen; usual final values are 0.01 to 0.1."""
MOVES = 0.01
"""Change of ε over the last half of the log below which the schedule stands still."""
FLOOR = 0.1
"""Usual final ε or less: the schedule is over."""
AT_ONCE = 0.02
"""Of the run. DQN on Atari takes 2 % (1 of 50 million frames), SB3's default is 10 %, CleanRL's 50 %."""


ENTROPY_KEYS = {
    "SB3": "ent_coef",
    "CleanRL": "--ent-coef",
    "verl": "actor_rollout_ref.actor.entropy_coeff",
    "TRL": "the entropy coefficient of the loss",
}
CLIP_HIGH_KEYS = {"verl": "actor_rollout_ref.actor.clip_ratio_high", "TRL": "epsilon_high"}


def _start(series: Series) -> float:
    """The largest of the first values: a collapse within the first few measurements must not hide the start."""
    return float(series.values[: max(3, len(series) // 20)].max())


def _differential(id: str, entropy: Series) -> Skipped | None:
    """The entropy of a density has no zero to fall to: shares of it mean nothing."""
    if len(entropy) and float(entropy.values.min()) < 0.0:
        why = "entropy is negative, so it is that of a density (continuous actions): a share of its start means nothing"
        return Skipped(rule=id, why=f"{why}; watch the standard deviation of the actions", metric="entropy")
    return None


@rule("entropy-collapse", needs=("entropy",))
def entropy_collapse(chart: Chart) -> Verdict:
    """Entropy fell below a tenth of its start and stays there, and the reward got nothing for it.

    Entropy that falls while the reward rises is learning; at the known maximum it is success. Where the reward did rise and
    stands, it is said as information, and only if the collapse was early.
    """
    series = chart.get("entropy")
    assert series is not None
    entropy = series.finite
    if len(entropy) < MIN_COLLAPSED:
        return too_short("entropy-collapse", series, MIN_COLLAPSED)
    if skipped := _differential("entropy-collapse", entropy):
        return skipped
    start = _start(entropy)
    step = since(entropy, lambda x: x < COLLAPSED * start) if start > 0.0 else None
    if step is None or len(entropy.since(step)) < MIN_COLLAPSED:
        return None
    progress = progress_of(chart)
    if progress is None:
        return no_outcome("entropy-collapse", chart)
    severity = _weight_of_collapse(entropy, progress, step)
    if severity is None:
        return None
    end = level(entropy.last(0.2))
    coefficient = key_of(series, ENTROPY_KEYS, "the coefficient of the entropy bonus (entropy_coef)")
    clip_high = key_of(series, CLIP_HIGH_KEYS, "the upper clip range alone, e.g. 0.28 above and 0.2 below")
    return Finding(
        id="entropy-collapse",
        title=f"Entropy fell to {100 * end / start:.2g} % of its start by step {step}, and the reward {progress.then}",
        severity=severity,
        basis="heuristic",
        since_step=step,
        evidence=(
            shown(series, f"{fmt(start)} at the start, {fmt(end)} at the end; below a tenth since step {step}"),
            progress.evidence,
        ),
        cause="The policy became nearly deterministic before it found anything better: samples are all alike, "
        "advantages vanish, and no gradient leads out again.",
        fix=(
            f"raise {coefficient} (try ×5), and make sure its gradient reaches the policy",
            f"or let unlikely actions grow: raise {clip_high} (DAPO's clip-higher)",
            "lower the learning rate, or anneal the sampling temperature more slowly",
        ),
        confirm="Run the first tenth again with a larger entropy coefficient: entropy must stay above a tenth of its start, "
        "and the reward rise above its start.",
        references=("arXiv 2505.22617", "arXiv 2503.14476 (DAPO)", "failure catalogue F17", "TRL #6166"),
    )


def _weight_of_collapse(entropy: Series, progress: Progress, step: int) -> Severity | None:
    """How bad it is, from what the reward did."""
    if progress.state == "best":
        return None
    after = progress.reward.since(step)
    if progress.stuck:
        return "warn"
    if trend(after).direction == "rises":
        return None
    if progress.best is not None and progress.end - progress.start < SHORT_OF_BEST * (progress.best - progress.start):
        return "warn"
    before = progress.reward.until(step).last(0.2)
    if len(before) and trend(after).direction == "falls" and progress.end < level(before):
        return "warn"
    span = max(1, int(entropy.steps[-1] - entropy.steps[0]))
    return "info" if progress.best is None and step - int(entropy.steps[0]) <= EARLY * span else None


@rule("entropy-never-falls", needs=("entropy",))
def entropy_never_falls(chart: Chart) -> Verdict:
    """Entropy stays where it started, and so does the reward: the policy still acts at random.

    A warning where that start is known to be the largest there can be, or where the entropy bonus leads the actor; otherwise
    (a pretrained policy that holds its entropy) information.
    """
    series = chart.get("entropy")
    assert series is not None
    entropy = series.finite
    if len(entropy) < MIN_HELD:
        return too_short("entropy-never-falls", series, MIN_HELD)
    if skipped := _differential("entropy-never-falls", entropy):
        return skipped
    start = _start(entropy)
    if start <= 0.0 or not persists(entropy, lambda x: x >= HELD * start) or entropy.values.min() < HELD**2 * start:
        return None
    progress = progress_of(chart)
    if progress is None:
        return no_outcome("entropy-never-falls", chart)
    if not progress.stuck or len(progress.reward) < MIN_HELD:
        return None
    end = level(entropy.last(0.2))
    random, bonus = _uniform_over(chart, end), _bonus_leads(chart)
    if random is None and any(chart.fact(name) is not None for name in ACTION_COUNTS):
        return None  # the number of actions is known, and this is not their entropy
    coefficient = key_of(series, ENTROPY_KEYS, "the coefficient of the entropy bonus (entropy_coef)")
    seen = f"{fmt(start)} at the start, {fmt(end)} at the end"
    seen += f"; uniform over {random} actions is {fmt(math.log(random))}" if random else ""
    led = (
        "The entropy bonus leads the actor."
        if bonus
        else "The entropy bonus outweighs the advantages, or they say nothing."
    )
    return Finding(
        id="entropy-never-falls",
        title=f"Entropy never fell ({fmt(end)} of {fmt(start)}) and the reward {progress.then}",
        severity="warn" if random or bonus else "info",
        basis="heuristic",
        since_step=int(entropy.steps[0]),
        evidence=(shown(series, seen), progress.evidence, *((bonus,) if bonus else ())),
        cause=f"The policy is as random as it was. {led}",
        fix=(
            f"lower {coefficient} (try ÷10), or anneal it",
            "check that advantages vary within a batch, and that the policy's learning rate is not near zero",
        ),
        confirm="Train a few hundred steps with the entropy coefficient at zero: entropy must fall. If it does not, the policy "
        "gradient itself is missing.",
        references=("failure catalogue F18", "A. Jones, Debugging RL, Without the Agonizing Pain"),
    )


ACTION_COUNTS = ("num_actions", "n_actions", "action_count", "action_space.n")


def _uniform_over(chart: Chart, entropy: float) -> int | None:
    """How many actions this is the entropy of a uniform choice among; from the facts, or because e^H is a whole number."""
    known = number(chart.fact(*ACTION_COUNTS))
    if known is not None:
        return int(known) if known >= 2 and entropy >= HELD * math.log(known) else None
    whole = round(math.exp(min(entropy, 10.0)))
    near = abs(math.exp(min(entropy, 10.0)) - whole) <= UNIFORM * whole
    return whole if near and 2 <= whole <= MAX_UNIFORM else None


def _bonus_leads(chart: Chart) -> Evidence | None:
    """The entropy term holds more than half of the actor's gradient, or stands up to the policy's on any block of its own."""
    for share in chart.every("grad/<block>/term/<term>/share"):
        block, entropy = share.parts["block"], role_of(share.parts["term"]) == "entropy"
        if entropy and block in ("actor", "policy", "all") and persists(share, lambda x: x > DRIVES):
            return shown(share, f"the entropy term has {100 * level(share.last(0.5)):.0f} % of the gradient of {block}")
    for pair in pairs_of(chart, ("entropy",), ("policy",)):
        if pair.block != "all" and persists(pair.ratio, lambda x: x > STANDS_UP):
            times = 10.0 ** level(pair.ratio.last(0.5))
            return shown(pair.first, f"{fmt(times)} times the policy's gradient on {pair.block}")
    return None


@rule("action-collapse", needs=("action_share",))
def action_collapse(chart: Chart) -> Verdict:
    """One action takes more than four fifths of all, and the reward does not rise: where it does, one action is the answer."""
    series = chart.get("action_share")
    assert series is not None
    held = persists(series, lambda x: x > STAGNANT)
    if held is None:
        return too_short("action-collapse", series, MIN_COLLAPSED)
    if not held:
        return None
    progress = progress_of(chart)
    if progress is None:
        return no_outcome("action-collapse", chart)
    if not progress.stuck:
        return None
    share, step = level(series.last(0.5)), since(series, lambda x: x > STAGNANT)
    return Finding(
        id="action-collapse",
        title=f"One action takes {100 * share:.0f} % of all, and the reward {progress.then}",
        severity="warn",
        basis="heuristic",
        since_step=step,
        evidence=(shown(series, f"{100 * share:.0f} % over the last half", first_step=step), progress.evidence),
        cause="The policy repeats itself, so it sees nothing that could tell it better.",
        fix=(
            "raise the entropy bonus or ε, and start again from before the collapse: see since_step",
            "check the action mask and the scale of observations: a saturated first layer answers everything alike",
        ),
        confirm="Play some episodes with uniformly random actions: if their return is not lower, the policy learnt nothing.",
        references=("failure catalogue F42", "RLExplorer"),
    )


EPSILON_KEYS = {"SB3": "exploration_initial_eps, exploration_final_eps and exploration_fraction"}


@rule("exploration-schedule", needs=("exploration_rate",))
def exploration_schedule(chart: Chart) -> Verdict:
    """ε stands high, grows, is zero from the start or falls at once, and the reward does not rise.

    A small constant ε is a choice, and so is a quick schedule of an agent that learns.
    """
    series = chart.get("exploration_rate")
    assert series is not None
    rate = series.finite
    if len(rate) < MIN_RATES:
        return too_short("exploration-schedule", series, MIN_RATES)
    if float(rate.values.max()) > 1.0 + 1e-6:
        why = f"exploration_rate reads {fmt(float(rate.values.max()))}: log a share between 0 and 1"
        return Skipped(rule="exploration-schedule", why=why, metric="exploration_rate")
    found = _schedule(rate)
    if found is None:
        return None
    progress = progress_of(chart)
    if progress is None:
        return no_outcome("exploration-schedule", chart)
    if not progress.stuck:
        return None
    title, cause, fix, step = found
    keys = key_of(series, EPSILON_KEYS, "the schedule's start, end and length")
    return Finding(
        id="exploration-schedule",
        title=f"{title}, and the reward {progress.then}",
        severity="warn",
        basis="heuristic",
        since_step=step,
        evidence=(
            shown(series, f"{fmt(float(rate.values[0]))} at the start, {fmt(float(rate.values[-1]))} at the end"),
            progress.evidence,
        ),
        cause=cause,
        fix=(fix, f"settings: {keys}; make sure the schedule counts the same steps as the trainer"),
        confirm="Print ε at the first, the tenth and the last update, and play episodes without ε: if they are better than "
        "those with it, the schedule hides what was learnt.",
        references=("failure catalogue F41", "Mnih et al. 2015", "RLExplorer"),
    )


def _schedule(rate: Series) -> tuple[str, str, str, int] | None:
    """What is wrong with the schedule: title, cause, fix, and since which step."""
    values, steps = rate.values, rate.steps
    first, last, begun = float(values[0]), float(values[-1]), int(steps[0])
    if float(values.max()) <= NO_EXPLORATION:
        title = "Exploration is off from the start (ε = 0)"
        cause = "The agent only ever takes the action it already thinks best, so it learns about no other."
        return title, cause, "start ε at 1 and let it fall over a tenth of the run", begun
    if last >= RANDOM and last > 1.5 * first:
        cause = "The schedule runs backwards: the agent acts more and more at random."
        return f"ε grows from {fmt(first)} to {fmt(last)}", cause, "swap the start and the end of the schedule", begun
    if last >= RANDOM and float(np.ptp(values[len(values) // 2 :])) < MOVES:
        cause = "Most actions stay random, so neither the data nor the score ever are the agent's own."
        return (
            f"ε never falls: it stands at {fmt(last)}",
            cause,
            "check that the schedule is stepped, and by what",
            begun,
        )
    fallen = np.flatnonzero(values <= FLOOR)
    if first < RANDOM or last > FLOOR or not len(fallen):
        return None
    step, span = int(steps[fallen[0]]), max(1, int(steps[-1]) - begun)
    if step - begun >= AT_ONCE * span:
        return None
    share, low = 100 * (step - begun) / span, float(values[fallen[0]])
    title = f"ε fell from {fmt(first)} to {fmt(low)} in the first {share:.1g} % of the run"
    return title, "Exploration was over before any value was known.", "let ε fall over a tenth of the run", step
