"""Exploration: a policy that stopped trying too early, never starts to choose, or acts at random.

A falling entropy is how learning looks, and one action may be the answer: their role is that of
convergence, so a policy that is done is left in peace (`severity.weigh`).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from gradiometer.doctor import thresholds
from gradiometer.doctor.declared import FallsTo, Look, RisesPast, Sign, Stays, declare
from gradiometer.doctor.outcome import Outcome, outcome_of
from gradiometer.doctor.rule import (
    CannotSay,
    Draft,
    Skipped,
    Verdict,
    finding,
    needed,
    needed_outcome,
    rule,
)
from gradiometer.doctor.rundata import RunData, Series
from gradiometer.doctor.signs import in_words, level, number, persists, power, shown
from gradiometer.doctor.terms import COEFFICIENTS, SHARE, TERM_NORM, pairs_of, role_of
from gradiometer.doctor.trainers import key_for
from gradiometer.records import Evidence
from gradiometer.words import fmt

__all__: list[str] = []

limits = thresholds.group("exploration")

COUNTED = "credit/exploration_rate"
"""Of actions that were counted (capture/actingchoices.py), not of a schedule."""

COEFFICIENT = ("entropy", "the coefficient of the entropy bonus (entropy_coef)")
CLIP_HIGH = ("clip-high", "the upper clip range alone, e.g. 0.28 above and 0.2 below")


def _discrete(run: RunData) -> list[Series]:
    """The entropy of a policy that chooses: that of a density has no zero to fall to."""
    entropy = needed(run, "entropy", limits.min_collapsed).finite
    if float(entropy.values.min()) < 0.0 or run.has("action_noise"):
        why = (
            "the entropy is that of a density (continuous actions): a share of its start means"
            " nothing; watch the standard deviation of the actions"
        )
        raise CannotSay(Skipped(why=why, metric="entropy"))
    return [entropy]


def _spent(run: RunData, sign: Sign) -> Sign:
    """Next to none left under a reward that stands: more than a policy that is done gives away."""
    start = max(float(sign.series.values[0]), level(sign.series.first(0.05)))
    spent = level(sign.series.last(0.2)) <= limits.spent * start
    progress = outcome_of(run)
    stands = progress is not None and progress.fate == "stands"
    return replace(sign, role="plain") if spent and stands else sign


declare(
    "entropy-collapse",
    """
    cause: The policy became nearly deterministic before it found anything better: all samples are
      the same, advantages vanish, and no gradient leads out again.
    fix: raise {coefficient} (try ×5), and make sure its gradient reaches the policy
    fix: or let unlikely actions grow: raise {clip_high} (DAPO's clip-higher)
    fix: anneal the sampling temperature more slowly, and start again from before the collapse
    confirm: Run the first tenth again with a larger entropy coefficient: entropy must stay above a
      tenth of its start, and the reward rise above its start.
    see: arXiv 2505.22617
    see: arXiv 2503.14476 (DAPO)
    see: F17
    see: TRL #6166
    """,
    about=(
        "Entropy fell below a tenth of its start and stays there, or there was none from the first"
        " measurement on."
    ),
    family="exploration",
    metric="entropy",
    over=_discrete,
    sign=FallsTo(shares=("exploration/collapsed",)),
    title="Entropy fell to {percent} of its start by step {since}",
    role="convergence",
    beside=_spent,
    also=(
        Look(
            metric="entropy",
            over=_discrete,
            sign=Stays(below=("exploration/deterministic",)),
            title="The policy is deterministic since step {since}: its entropy is {level}",
        ),
    ),
    settings={"coefficient": COEFFICIENT, "clip_high": CLIP_HIGH},
)


declare(
    "action-noise-grows",
    """
    cause: The bonus on the entropy of a Gaussian has no upper end, so if the reward carries little
      signal, the standard deviation grows without limit; actions are then cut at their bounds.
    fix: lower {key} (÷10), or bound the standard deviation
    fix: check that the reward depends on the actions at all: scale, sign, delay
    confirm: Evaluate with the mean action: if that scores clearly higher, the noise costs return.
    see: F18
    """,
    family="exploration",
    metric="action_noise",
    sign=RisesPast(times=("exploration/noise_grows",)),
    title="The standard deviation of the actions grew from {start} to {end}, {times} times",
    settings={
        "key": (
            "action-noise",
            "the entropy coefficient and the bound of the log standard deviation",
        )
    },
)


declare(
    "action-collapse",
    """
    cause: The policy repeats itself, so it never sees anything better.
    fix: raise the entropy bonus or ε, and start again from before the collapse: see since_step
    fix: check the action mask and the scale of observations: a saturated first layer gives the same
      output for every input
    confirm: Play some episodes with uniformly random actions: if their return is not lower, the
      policy learned nothing.
    see: F42
    see: RLExplorer
    """,
    family="exploration",
    metric="action_share",
    sign=Stays(above=("exploration/stagnant",)),
    title="One action takes {percent} of all",
    role="convergence",
)


@rule(
    "entropy-never-falls",
    """
    cause: The policy is as random as it was. {led}
    fix: lower {coefficient} (try ÷10), or anneal it
    fix: check that advantages vary within a batch, and that the policy's learning rate is not near
      zero
    confirm: Train a few hundred steps with the entropy coefficient at zero: entropy must fall. If
      it does not, the policy gradient itself is missing.
    see: F18
    see: A. Jones, Debugging RL, Without the Agonizing Pain
    """,
    needs=("entropy",),
)
def entropy_never_falls(run: RunData) -> Verdict:
    """Entropy stays where it started, and so does the reward: the policy still acts at random.

    A warning where that start is known to be the largest there can be, where the entropy bonus
    leads the actor, or where a random policy is known to earn as much; otherwise (a pretrained
    policy that holds its entropy) information.
    """
    longest = max(run.every("entropy"), key=lambda each: len(each.finite))
    if len(longest.finite) < limits.min_held:
        longest = needed(run, "entropy", limits.min_held)
    entropy = longest.finite
    start = float(entropy.values[: max(3, len(entropy) // 20)].max())
    least = limits.held * start
    if float(entropy.values.min()) < max(0.0, limits.held * least):
        return None
    if start <= 0.0 or not persists(entropy, lambda x: x >= least):
        return None
    progress = needed_outcome(run)
    if len(progress.series) < limits.min_held:
        return None
    if not progress.stuck:
        return _outweighed(run, entropy, progress)
    end = level(entropy.last(0.2))
    random, bonus = _uniform_over(run, end), _bonus_leads(run)
    if random is None and any(run.fact(name) is not None for name in ACTION_COUNTS):
        return None  # the number of actions is known, and this is not their entropy
    first, last = fmt(start), fmt(end)
    uniform = f"; uniform over {random} actions is {fmt(math.log(random))}" if random else ""
    outweighs = "The entropy bonus outweighs the advantages, or they say nothing."
    return finding(
        f"Entropy never fell ({last} of {first}) and the reward {progress.then}",
        shown(entropy, f"{first} at the start, {last} at the end{uniform}"),
        progress.evidence,
        bonus,
        severity="warn" if random or bonus or progress.at_random else "info",
        led="The entropy bonus leads the actor." if bonus else outweighs,
        coefficient=key_for(run, *COEFFICIENT, entropy),
    )


def _outweighed(run: RunData, entropy: Series, progress: Outcome) -> Draft | None:
    """Learning, although a bonus a hundred times the usual one keeps the policy at random."""
    told, slope = number(run.fact(*COEFFICIENTS["entropy"])), run.get("credit/entropy_slope")
    if told is None and slope is not None and len(slope.finite):
        told = -level(slope)
    if told is None or told < limits.heavy_bonus:
        return None
    first, last = fmt(float(entropy.first(0.05).values.max())), fmt(level(entropy.last(0.2)))
    term = next((x for x in run.every(TERM_NORM) if role_of(x.parts["term"]) == "entropy"), None)
    return finding(
        f"Entropy hardly fell ({last} of {first}): its bonus has a weight of {fmt(told)}",
        shown(entropy, f"{first} at the start, {last} at the end"),
        None if term is None else shown(term, f"gradient norm {fmt(level(term.last(0.5)))}"),
        progress.evidence,
        severity="info",
        led=f"The bonus on the entropy has a weight of {fmt(told)}; 0.001 to 0.02 is usual.",
        coefficient=key_for(run, *COEFFICIENT, entropy),
    )


ACTION_COUNTS = ("num_actions", "n_actions", "action_count", "action_space.n")


def _uniform_over(run: RunData, entropy: float) -> int | None:
    """Of how many actions this is the uniform entropy: by the facts, or since e^H is whole."""
    known = number(run.fact(*ACTION_COUNTS))
    if known is not None:
        return int(known) if known >= 2 and entropy >= limits.held * math.log(known) else None
    whole = round(math.exp(min(entropy, 10.0)))
    near = abs(math.exp(min(entropy, 10.0)) - whole) <= limits.uniform * whole
    return whole if near and 2 <= whole <= limits.max_uniform else None


def _bonus_leads(run: RunData) -> Evidence | None:
    """The entropy term leads the actor, or stands up to the policy's on a block of its own."""
    for share in run.every(SHARE):
        block, entropy = share.parts["block"], role_of(share.parts["term"]) == "entropy"
        whole = entropy and block in ("actor", "policy", "all")
        if whole and persists(share, lambda x: x > limits.drives):
            part = f"{100 * level(share.last(0.5)):.0f} % of the gradient of {in_words(block)}"
            return shown(share, f"the entropy term has {part}")
    for pair in pairs_of(run, ("entropy",), ("policy",)):
        if pair.block != "all" and persists(pair.ratio, lambda x: x > limits.stands_up):
            times = power(level(pair.ratio.last(0.5)))
            return shown(pair.first, f"{fmt(times)} times the policy's gradient on {pair.block}")
    return None


def _rates(run: RunData) -> list[Series]:
    """ε over the run, as a share and long enough."""
    series = needed(run, "exploration_rate")
    least = limits.min_counted if series.name == COUNTED else limits.min_rates
    rate = needed(run, "exploration_rate", least).finite
    if (most := float(rate.values.max())) > 1.0 + 1e-6:
        why = f"exploration_rate reads {fmt(most)}: log a share between 0 and 1"
        raise CannotSay(Skipped(why=why, metric="exploration_rate"))
    return [rate]


MOSTLY_RANDOM = (
    "Most actions stay random, so neither the data nor the score ever are the agent's own."
)
GREEDY = "The agent only takes the action it already thinks best, and learns of no other."
STEPPED = "check that the schedule is stepped, and by what"


def scheduled(rate: Series) -> Sign | None:
    """ε stays high, grows, starts at zero or falls at once. A small constant ε is a choice."""
    found = _counted_schedule(rate) if rate.name == COUNTED else _schedule(rate)
    if found is None:
        return None
    title, cause, change, step = found
    first, last = float(rate.values[0]), float(rate.values[-1])
    return Sign(
        series=rate,
        strength="strong",
        since=step,
        reading=f"{fmt(first)} at the start, {fmt(last)} at the end",
        said={"what": title, "cause": cause, "change": change},
    )


def _counted_schedule(rate: Series) -> tuple[str, str, str, int] | None:
    """The same where actions were counted, which is noisy, and nobody logged ε: only that it never
    falls can be seen, or that no action is random at all."""
    half, step = len(rate) // 2, int(rate.steps[0])
    first, now = float(rate.values[:half].mean()), float(rate.values[half:].mean())
    if len(rate) >= limits.min_none and max(first, now) == 0.0:
        title = f"No action was random in {len(rate)} stretches of the run (ε = 0)"
        return title, GREEDY, "start ε at 1 and let it fall over a tenth of the run", step
    if now < limits.random or first - now > limits.counted_moves:
        return None
    title = f"ε never falls: {now:.0%} of the actions are random, {first:.0%} were at first"
    return title, MOSTLY_RANDOM, STEPPED, step


def _schedule(rate: Series) -> tuple[str, str, str, int] | None:
    """What is wrong with the schedule: title, cause, fix, and since which step."""
    values, steps = rate.values, rate.steps
    first, last, begun = float(values[0]), float(values[-1]), int(steps[0])
    if float(values.max()) <= limits.no_exploration:
        title = "Exploration is off from the start (ε = 0)"
        return title, GREEDY, "start ε at 1 and let it fall over a tenth of the run", begun
    if last >= limits.random and last > 1.5 * first:
        cause = "The schedule runs backwards: the agent acts more and more at random."
        title = f"ε grows from {fmt(first)} to {fmt(last)}"
        return title, cause, "swap the start and the end of the schedule", begun
    if last >= limits.random and float(np.ptp(values[len(values) // 2 :])) < limits.moves:
        return f"ε never falls: it stands at {fmt(last)}", MOSTLY_RANDOM, STEPPED, begun
    fallen = np.flatnonzero(values <= limits.floor)
    if first < limits.random or last > limits.floor or not len(fallen):
        return None
    step, span = int(steps[fallen[0]]), max(1, int(steps[-1]) - begun)
    if step - begun >= limits.at_once * span:
        return None
    share, low = 100 * (step - begun) / span, float(values[fallen[0]])
    title = f"ε fell from {fmt(first)} to {fmt(low)} in the first {share:.1g} % of the run"
    cause = "Exploration was over before any value was known."
    return title, cause, "let ε fall over a tenth of the run", step


declare(
    "exploration-schedule",
    """
    cause: {cause}
    fix: {change}
    fix: settings: {keys}; make sure the schedule counts the same steps as the trainer
    confirm: Print ε at the first, the tenth and the last update, and play episodes without ε: if
      they are better than those with it, the schedule hides what was learned.
    see: F41
    see: Mnih et al. 2015
    see: RLExplorer
    """,
    about=("ε stays high, grows, starts at zero or falls at once, and the reward does not rise."),
    family="exploration",
    metric="exploration_rate",
    over=_rates,
    sign=scheduled,
    title="{what}",
    role="harmless",
    settings={"keys": ("epsilon", "the schedule's start, end and length")},
)
