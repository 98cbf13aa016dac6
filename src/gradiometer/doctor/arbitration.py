"""Which finding to act on: causes first, and what follows from them folded under them.

A cause folds a consequence only if it began no later, touches the same block and weighs no less; a
critical finding is never folded away. Chains count only through findings that are there: a link
nobody saw explains nothing.

The table says what brings about what. An edge says "this alone makes that happen, or makes its
reading untrustworthy", and stands where its reason is. The table has no cycles: where two things
can bring about each other, the edge goes from the one with a setting to change to the one without.
What begins with a changed line or a wrong setting is nobody's consequence, so that two such faults
at once both come out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import TypeAlias

from gradiometer.doctor.terms import Role, role_of
from gradiometer.records import Finding

__all__ = [
    "BASIS",
    "BY_ARITHMETIC",
    "CONSEQUENCES",
    "DEAD_TERM",
    "HISTORY",
    "OPPOSITES",
    "SEVERITY",
    "arbitrate",
    "brings",
    "reason",
]

DEAD_TERM: dict[str, tuple[str, ...]] = {
    # the bonus was what held the entropy up
    "entropy": ("entropy-collapse", "action-collapse", "head-collapse", "reward-plateau"),
    # the penalty was what held the policy near its reference
    "kl": ("kl-runaway",),
    # the critic is fitted by nothing
    "value": ("critic-explains-nothing", "dead-block", "noise-dominated", "reward-plateau"),
    # regularisers are all that moves the weights
    "policy": (
        "regulariser-dominates",
        "critic-dominates",
        "policy-frozen",
        "entropy-never-falls",
        "zero-gradient-steps",
        "vanishing-gradient",
        "reward-plateau",
    ),
}
"""Of a dead term, by what it is for."""

ALL_FROZEN = ("critic-explains-nothing", "advantage-scale")
"""Besides, where all weights stand still or the learning rate ended: so does the critic, and what
it would subtract from the returns is missing."""

EDGES = """
# -- Wiring. What has no path cannot be learned, and what hangs on it fails with it.
dead-term: loss-not-reaching-module  # a module that only this term reached
dead-term: router-untrained  # the task term is what trains a router
# A term nobody named has its share of every gradient: others look small, the sum looks large.
hidden-term: regulariser-dominates terms-conflict over-clipping clip-always-active reward-plateau
# No gradient: as if it were frozen, with dead units and a depth profile that shows a hole.
dead-block: vanishing-gradient depth-imbalance dormant-units head-collapse policy-frozen
  critic-explains-nothing loss-not-reaching-module reward-plateau
# Gradients arrive and no weight moves.
not-in-optimizer: policy-frozen critic-explains-nothing entropy-never-falls router-untrained
  reward-plateau
# Sums of all gradients so far: they grow, point at old data and overshoot.
gradients-not-cleared: exploding-gradient gradient-spikes over-clipping clip-always-active
  gradient-drift critic-diverges critic-explains-nothing kl-runaway entropy-collapse
  noise-dominated reward-plateau reward-declining
# Every value is pulled to the mean of all targets, every log-prob weighs the mean advantage.
shapes-broadcast: critic-explains-nothing noise-dominated policy-frozen entropy-never-falls
  vanishing-gradient reward-plateau reward-declining
# A policy term that averages to nothing: other terms look large beside it.
shapes-broadcast: critic-dominates regulariser-dominates gradient-spikes over-clipping
  terms-conflict action-noise-grows
# A policy that cannot be sure, with gradients through two flat tops.
double-softmax: entropy-never-falls vanishing-gradient policy-frozen reward-plateau
# A critic that the policy term moves fits nothing, and the advantages are made of it.
leak-between-terms: critic-explains-nothing critic-diverges terms-conflict noise-dominated
  reward-plateau reward-declining
# Log-probs of another distribution than the sampler's: a biased direction, ratios that are not 1 on
# fresh data.
score-not-zero-mean: noise-dominated ratio-explosion ppo-clip-saturated reward-plateau
  reward-declining
# Every epoch after the first is a policy gradient on another policy's actions, with no clip.
ratio-always-one: kl-runaway entropy-collapse noise-dominated reward-plateau reward-declining
# The loss itself drives the entropy down.
entropy-sign: entropy-collapse action-collapse head-collapse zero-gradient-steps
  vanishing-gradient reward-plateau
# Gradients are made, and no weight moves.
never-trained: policy-frozen critic-explains-nothing entropy-never-falls
  zero-gradient-steps reward-plateau
# What is learned is never done: the score is that of other actions, and no reward answers to the
# policy.
actions-ignore-policy: score-not-zero-mean noise-dominated entropy-never-falls reward-plateau
# The number read as entropy is another one, and a bonus on it holds up another distribution.
entropy-of-wrong-distribution: entropy-collapse entropy-never-falls reward-plateau
# The same batch gives k times the gradient: a clip for another scale, an expert-parallel router off
# by that k.
gradient-not-invariant: over-clipping clip-always-active router-untrained
# A penalty whose gradient is not that of the KL holds nothing back, or holds back the wrong way.
kl-gradient-wrong: kl-runaway kl-strangled reward-plateau reward-declining
# A norm times the loss scale is far above any threshold: the true gradient is cut to almost
# nothing.
clip-before-unscale: over-clipping clip-always-active exploding-gradient gradient-spikes
  policy-frozen reward-plateau
# Two engines disagree on the same tokens: importance weights and ratios measure that, until
# something explodes.
sampler-mismatch: score-not-zero-mean stale-data ratio-explosion ppo-clip-saturated gradient-spikes
  exploding-gradient reward-plateau reward-declining
# -- Data. What goes in wrong comes out wrong. Saturated units, a first layer of another scale,
# values that cannot be fitted; from constants only one answer.
observation-scale: dormant-units exploding-gradient vanishing-gradient depth-imbalance
  critic-explains-nothing critic-diverges entropy-collapse reward-plateau
# Each action is praised for what another one did, and each value target belongs to another state.
# Advantages or targets that are not what was paid: the critic has nothing it could fit, and the
# policy is praised for something else.
recipe-mismatch: returns-wrong critic-explains-nothing critic-diverges noise-dominated
  entropy-collapse action-collapse reward-plateau reward-declining
misaligned-data: returns-wrong critic-explains-nothing critic-diverges noise-dominated
misaligned-data: entropy-collapse  # sure of what was praised by mistake
misaligned-data: action-collapse reward-plateau
# An episode of a step or two: nothing is seen or earned, the critic has nothing to explain.
episodes-end-at-once: reward-term-dead critic-explains-nothing entropy-collapse policy-frozen
  reward-plateau
# Without an end every answer is cut.
never-ends: truncation groups-too-hard reward-term-dead reward-plateau
# Cut-off answers all score zero, and their values are targets of ends that were none.
truncation: groups-too-hard reward-term-dead returns-wrong kl-runaway reward-plateau
# -- Rewards and advantages. Their scale is the scale of everything behind them.
reward-scale: advantage-scale
reward-scale: critic-explains-nothing  # targets far from what a fresh head can reach
reward-scale: critic-diverges
reward-scale: critic-dominates  # the value loss goes with the square of the reward
reward-scale: exploding-gradient over-clipping
# The value loss goes with its square, the actor's loss with the reward itself, and the layers on
# both sides of the action are compared.
reward-scale: depth-imbalance
# rewards too small: the bonus and the penalty are all that is left
reward-scale: regulariser-dominates reward-plateau
# Too large: the entropy bonus is nothing beside it. Too small: regularisers are all that is left.
# Not the step: Adam cancels a constant scale.
advantage-scale: exploding-gradient over-clipping entropy-collapse regulariser-dominates
  reward-plateau
# One sample of weight 2000 is a spike, a jump of the ratio and a wide tail of advantages.
advantage-outliers: advantage-scale gradient-spikes ratio-explosion over-clipping noise-dominated
  reward-plateau
# Rewards that are partly luck: gradients that point at luck, returns that no critic explains.
reward-unreliable: noise-dominated critic-explains-nothing kl-runaway reward-plateau
# A reward that is the same for all has no advantages.
reward-term-dead: groups-too-hard zero-gradient-steps vanishing-gradient
  critic-explains-nothing reward-plateau
# The loud reward is learned, and it is the one that can be had without the task.
reward-term-dominates: reward-hacking reward-plateau
# Groups that agree have no advantages: no gradient, and whatever regulariser there is has the word.
groups-too-easy: zero-gradient-steps vanishing-gradient noise-dominated regulariser-dominates
  template-collapse policy-frozen reward-plateau
groups-too-hard: zero-gradient-steps vanishing-gradient noise-dominated regulariser-dominates
  template-collapse policy-frozen
groups-too-hard: entropy-never-falls  # nothing is ever reinforced
groups-too-hard: critic-explains-nothing  # returns that do not vary
groups-too-hard: reward-plateau
# Batches that disagree: successive gradients have nothing in common, and steps lead nowhere.
noise-dominated: direction-random reward-plateau
# One answer for all prompts: its groups agree more and more.
template-collapse: zero-gradient-steps reward-plateau
# -- Critic. Wrong targets, then wrong values, then wrong advantages.
returns-wrong: critic-explains-nothing critic-diverges advantage-scale noise-dominated
returns-wrong: entropy-collapse  # sure of what was praised by mistake
returns-wrong: action-collapse reward-plateau
# Targets that move with what they train run away; targets that never move teach the first guess.
target-network: critic-diverges critic-explains-nothing exploding-gradient gradient-spikes
  over-clipping reward-plateau reward-declining
# Its errors are the advantages, its loss is the largest term, its gradient the largest part.
critic-diverges: critic-explains-nothing critic-dominates exploding-gradient over-clipping
  reward-plateau reward-declining
# Explained variance of a baseline that has seen the answer says nothing about the baseline.
baseline-leak: critic-explains-nothing
# Advantages as noisy as the returns.
critic-explains-nothing: noise-dominated reward-plateau
# -- Step size. Too far, and everything that measures distance says so.
step-too-large: kl-runaway ppo-clip-saturated ratio-explosion exploding-gradient gradient-spikes
  gradient-oscillation critic-diverges dormant-units
step-too-large: vanishing-gradient  # saturated by one jump
step-too-large: groups-too-hard  # a policy that was thrown off solves nothing any more
step-too-large: zero-gradient-steps router-untrained expert-dominates entropy-collapse
  reward-plateau reward-declining
# A policy that learns from another one's data has ratios far from 1 before its first step.
stale-data: ratio-explosion ppo-clip-saturated noise-dominated reward-plateau reward-declining
# exp of a large difference is a spike, clipped where there is a clip.
ratio-explosion: gradient-spikes exploding-gradient ppo-clip-saturated reward-declining
# Clipped samples have no gradient.
ppo-clip-saturated: policy-frozen zero-gradient-steps reward-plateau
# Far from the reference: text the reward model never saw, a policy that forgot what it could.
kl-runaway: template-collapse reward-declining reward-plateau
# The penalty holds the policy where it was.
kl-strangled: policy-frozen entropy-never-falls reward-plateau
# What does not move does not learn.
policy-frozen: entropy-never-falls reward-plateau
# -- Numbers. NaN stops the steps or ruins the weights.
nonfinite-gradient: zero-gradient-steps policy-frozen reward-plateau reward-declining
# An operation refused the NaN.
nonfinite-gradient: training-crashed
# Each layer multiplies: the first are too small or too large.
depth-imbalance: vanishing-gradient exploding-gradient
# Growth overflows in the end, and till then it spikes, is clipped, and kills units.
exploding-gradient: nonfinite-gradient gradient-spikes over-clipping clip-always-active
  dormant-units gradient-drift reward-declining reward-plateau
gradient-spikes: over-clipping dormant-units reward-declining reward-plateau
# Units that answer nothing pass nothing back.
dormant-units: vanishing-gradient reward-plateau
vanishing-gradient: policy-frozen gradient-drift module-dormant module-saturated reward-plateau
zero-gradient-steps: vanishing-gradient policy-frozen reward-plateau
# -- Clipping. A ratio that varies takes the large gradients' say away; what is always clipped is
# always active.
over-clipping: clip-always-active policy-frozen critic-explains-nothing reward-plateau
# -- Balance. One part moves the shared weights and the other does not get through.
critic-dominates: terms-conflict over-clipping head-collapse reward-plateau
regulariser-dominates: entropy-never-falls kl-strangled terms-conflict template-collapse
  reward-plateau
terms-conflict: reward-plateau
head-collapse: reward-plateau
# -- Exploration. A policy that is sure has no score gradient, always does the same and finds
# nothing new.
action-noise-grows: reward-plateau reward-declining
exploration-schedule: entropy-collapse entropy-never-falls action-collapse reward-plateau
entropy-collapse: head-collapse action-collapse zero-gradient-steps vanishing-gradient
  noise-dominated gradient-drift reward-plateau
action-collapse: reward-plateau
entropy-never-falls: reward-plateau
# -- Outcome. The wrong direction shows as a fall, a fall ends on a low plateau.
update-opposes-reward: reward-declining reward-plateau
# What is praised by mistake is what the policy becomes sure of.
update-opposes-reward: entropy-collapse action-collapse
reward-declining: reward-plateau
# Longer answers are how the reward is exploited, and run into the limit.
length-exploit: reward-hacking truncation reward-plateau
# An exploit lies where the reference never goes.
reward-hacking: kl-runaway
# -- Modules. A grafted module that the loss does not reach, or that its host leaves nothing to
# learn.
loss-not-reaching-module: module-dormant
host-dominates: module-dormant module-saturated
# -- Experts. An untrained router sends tokens anywhere; skewed loads starve some and feed others.
router-untrained: routing-imbalance experts-converged regulariser-dominates
routing-imbalance: expert-starved expert-dominates
expert-dominates: expert-starved
"""
"""A cause, and what it brings about; a line that is indented goes on the one before it."""


def _table(text: str) -> tuple[dict[str, tuple[str, ...]], dict[tuple[str, str], str]]:
    """Effects by cause, and the reason of each edge: its own comment, or the one above it."""
    found: dict[str, tuple[str, ...]] = {}
    reasons: dict[tuple[str, str], str] = {}
    cause, above, fresh = "", "", True
    for line in text.strip().splitlines():
        edge, _, comment = line.partition("#")
        named, _, effects = edge.rpartition(":")
        if not edge.strip():  # comments over several lines are one
            above = f"{above} {comment.strip()}" if not fresh else comment.strip()
            fresh = False
            continue
        cause, fresh = named or cause, True
        found[cause] = (*found.get(cause, ()), *effects.split())
        said = (comment.strip() or above).rpartition("-- ")[2]
        reasons |= {(cause, effect): said for effect in effects.split()}
    return found, reasons


CONSEQUENCES, REASONS = _table(EDGES)
CONSEQUENCES["dead-term"] += tuple(dict.fromkeys(id for ids in DEAD_TERM.values() for id in ids))
"""From a cause to what it brings about, directly; what brings about nothing is left out."""


def reason(cause: str, effect: str) -> str:
    """Why one finding brings about another, in words; empty where no edge says it."""
    return REASONS.get((cause, effect), "")


FirstStep: TypeAlias = Callable[[str], int | None]

SEVERITY = {"critical": 0, "warn": 1, "info": 2}
BY_ARITHMETIC = frozenset({("groups-too-easy", "zero-gradient-steps")})
"""What follows from a mild cause for certain: a batch of solved groups has a gradient of 0, and
where most are solved because the policy learned, there is nothing to warn of."""
ROOTS: dict[str, tuple[str, ...]] = {
    "zero-gradient-steps": ("groups-too-hard", "reward-term-dead", "truncation"),
    "groups-too-hard": ("truncation",),
    "reward-term-dead": ("truncation",),
}
"""What must follow where one of these is critical too: it is shown, and comes after it. Advantages
of rewards that are all alike are 0, and so are gradients; where all that is cut off earns nothing,
rewards are all alike."""
OUTCOMES = ("reward-plateau", "reward-declining", "episodes-end-at-once")
"""What became of it is no cause: it comes after whatever might be one."""
LINES = frozenset(
    {
        "dead-term",
        "not-in-optimizer",
        "never-trained",
        "shapes-broadcast",
        "gradients-not-cleared",
        "double-softmax",
        "leak-between-terms",
        "entropy-sign",
        "ratio-always-one",
        "score-not-zero-mean",
        "recipe-mismatch",
        "misaligned-data",
    }
)
"""What one line of the program does, where it is proved. A first step that moves half of the
weights is a fact as well, but such a line may be why."""

WRONG_SIGN = "update-opposes-reward"
"""Every other reading of a run that goes the wrong way is of a policy that goes the wrong way."""
POOR, MIN_SEEN = 1 / 3, 3
"""Right in less than a third of the held-out trainings that showed it first, of three or more: such
a rule leads over none that is usually right (precision.json, which `make clinic` writes)."""
OPPOSITES: tuple[tuple[frozenset[str], frozenset[str]], ...] = (
    # a smaller step, a larger one
    (
        frozenset({"step-too-large", "exploding-gradient", "ppo-clip-saturated", "kl-runaway"})
        | {"ratio-explosion", "reward-declining", "gradient-spikes"},
        frozenset({"policy-frozen", "kl-strangled"}),
    ),
    # more entropy, less
    (
        frozenset({"entropy-collapse", "action-collapse"}),
        frozenset({"entropy-never-falls", "action-noise-grows"}),
    ),
    # a stronger penalty, a weaker one
    (frozenset({"kl-runaway", "reward-hacking"}), frozenset({"kl-strangled"})),
    # larger gradients, smaller ones
    (frozenset({"exploding-gradient"}), frozenset({"vanishing-gradient", "over-clipping"})),
    # the sign decides whether any size is right
    (frozenset({WRONG_SIGN}), frozenset({"policy-frozen", "step-too-large", "entropy-collapse"})),
)
"""Findings that ask for opposite things: of two such the later keeps its reading, not its fix."""
HISTORY = ("gradient-drift", "gradient-oscillation", "direction-random", "clip-always-active")
"""What describes the gradients and asks for nothing comes last."""
BASIS = {"proved": 0, "statistical": 1, "heuristic": 2}

TERM = re.compile(
    r"(?:/term/|actor/grad_norm/|actor/loss/|grad_norm/all/(?:loss/)?)(?P<term>[^/~]+)"
)
ALL_WEIGHTS = re.compile(r"^grad/all/update_ratio$|(^|[/_])(lr|learning_rate)$")
"""Evidence of a policy that stands still because every weight does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arbitrated:
    """Findings to act on, the first one first, and those that hang on them."""

    findings: tuple[Finding, ...]
    folded: tuple[Finding, ...]


def arbitrate(findings: Iterable[Finding], *, first_step: FirstStep = lambda _: None) -> Arbitrated:
    """Order by what to do first, and fold each consequence under the first shown cause of it.

    `first_step` says where a series begins: what held from its first measurement on was there
    before anything else, also where that series is measured once a rollout and another one at every
    step.

    Shown are those that nothing shown explains: where no chain of causes closes, exactly one set is
    like that. Where one does (advantages too small freeze a policy, and a frozen critic leaves them
    too large), the first one in the order is taken to be the cause.
    """
    given = list(findings)
    grave = {each.id for each in given if each.severity == "critical"}
    ordered = sorted(given, key=lambda each: _urgency(each, grave))
    reached = _reached(ordered, first_step)
    causes = [[i for i, found in enumerate(reached) if k in found] for k in range(len(ordered))]
    shown: dict[int, bool] = {}
    hanging: dict[int, list[str]] = {}
    for k in range(len(ordered)):
        _is_shown(k, ordered, causes, shown)
    for k in range(len(ordered)):
        first = None if shown[k] else next((i for i in causes[k] if shown[i]), None)
        shown[k] = first is None
        if first is not None:
            hanging.setdefault(first, []).append(ordered[k].id)
    return Arbitrated(
        findings=_agreeing(
            [_with(ordered[k], hanging.get(k, [])) for k in range(len(ordered)) if shown[k]]
        ),
        folded=tuple(ordered[k] for k in range(len(ordered)) if not shown[k]),
    )


def brings(finding: Finding) -> tuple[str, ...]:
    """What a finding brings about directly, by its evidence."""
    if finding.id == "dead-term" and (role := _role(finding)) in DEAD_TERM:
        return DEAD_TERM[role]
    if finding.id == "policy-frozen" and any(
        ALL_WEIGHTS.search(evidence.series) for evidence in finding.evidence
    ):
        return CONSEQUENCES[finding.id] + ALL_FROZEN
    return CONSEQUENCES.get(finding.id, ())


def _role(finding: Finding) -> Role | None:
    for evidence in finding.evidence:
        if found := TERM.search(evidence.series):
            return role_of(found["term"])
    return None


def _is_shown(
    k: int, ordered: Sequence[Finding], causes: Sequence[Sequence[int]], known: dict[int, bool]
) -> bool:
    if k not in known:
        known[k] = True  # to whom a chain of causes comes back
        folds = any(_is_shown(i, ordered, causes, known) for i in causes[k])
        known[k] = ordered[k].severity == "critical" or not folds
    return known[k]


def _reached(ordered: Sequence[Finding], first_step: FirstStep) -> list[set[int]]:
    """Of each finding those that a chain leads to, all fitting in time and block."""
    by_id: dict[str, list[int]] = {}
    for i, finding in enumerate(ordered):
        by_id.setdefault(finding.id, []).append(i)
    direct = [
        [i for id in brings(one) for i in by_id.get(id, ()) if _fits(one, ordered[i], first_step)]
        for one in ordered
    ]
    found: list[set[int]] = []
    for start, cause in enumerate(ordered):
        waiting, seen = [start], {start}
        while waiting:
            new = set(direct[waiting.pop()]) - seen
            seen |= new
            waiting += new
        found.append({i for i in seen - {start} if _fits(cause, ordered[i], first_step)})
    return found


def _fits(cause: Finding, finding: Finding, first_step: FirstStep) -> bool:
    mild = cause.severity == "info" != finding.severity
    if mild and (cause.id, finding.id) not in BY_ARITHMETIC:  # no suspicion explains a warning away
        return False
    began, followed = _began(cause, first_step), finding.since_step
    in_time = began is None or followed is None or began <= followed
    return in_time and _touch(cause.block, finding.block)


def _began(cause: Finding, first_step: FirstStep) -> int | None:
    """Since when it holds; None where it was so as soon as it was looked at."""
    first = first_step(cause.evidence[0].series) if cause.evidence else None
    at_once = first is not None and cause.since_step is not None and cause.since_step <= first
    return None if at_once else cause.since_step


def _touch(one: str | None, other: str | None) -> bool:
    """The same block, one within the other (`layer.a`, `layer.a.0`), or no block in particular."""
    if one in (None, "all") or other in (None, "all") or one == other:
        return True
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _agreeing(shown: Sequence[Finding]) -> tuple[Finding, ...]:
    """Of two findings that ask for opposite things the later waits for the earlier."""
    kept: list[Finding] = []
    for later in shown:
        first = next((earlier for earlier in kept if _opposed(earlier.id, later.id)), None)
        wait = f"Settle {first.id} first: the two ask for opposite things." if first else ""
        kept.append(replace(later, fix=(wait,)) if wait else later)
    return tuple(kept)


def _opposed(one: str, other: str) -> bool:
    return any((one in a and other in b) or (one in b and other in a) for a, b in OPPOSITES)


@cache
def _records() -> dict[str, tuple[int, int]]:
    """Of each rule, in how many held-out trainings it was right and in how many it led."""
    text = files(__package__).joinpath("precision.json").read_text(encoding="utf-8")
    return {id: (right, shown) for id, (right, shown) in json.loads(text).items()}


def _poor(finding: Finding) -> bool:
    right, shown = _records().get(finding.id, (0, 0))
    return finding.basis != "proved" and shown >= MIN_SEEN and right < POOR * shown


def _urgency(
    finding: Finding, grave: Set[str]
) -> tuple[int, bool, bool, bool, bool, int, bool, float, int, str, str, str, int]:
    """Critical and proved first; roots before what must follow; a wrong sign; causes before
    outcomes, rules with a good record before those with a poor one; proved, of a line, earlier;
    then what explains more, and names: never chance."""
    since = math.inf if finding.since_step is None else finding.since_step
    explains = -len(brings(finding))
    named = finding.id, finding.block or "", finding.title, SEVERITY[finding.severity]
    rank = SEVERITY[finding.severity] + (finding.severity == "info" and finding.id in HISTORY)
    if finding.severity == "warn" and finding.basis == "proved":
        rank = SEVERITY["critical"]  # what is certain before what a threshold says
    last = finding.id in OUTCOMES
    sign = finding.id != WRONG_SIGN or finding.basis == "heuristic"
    line = finding.basis != "proved" or finding.id not in LINES
    follows = not grave.isdisjoint(ROOTS.get(finding.id, ()))
    return rank, follows, sign, last, _poor(finding), _basis(finding), line, since, explains, *named


def _basis(finding: Finding) -> int:
    """An entropy bonus that was seen to lead the actor says why the policy stays random; what is
    silent or unequal among its layers describes the same policy."""
    led = finding.id == "entropy-never-falls" and _role(finding) == "entropy"
    return min(BASIS["statistical"], BASIS[finding.basis]) if led else BASIS[finding.basis]


def _with(finding: Finding, ids: list[str]) -> Finding:
    return (
        replace(finding, suppressed=tuple(dict.fromkeys((*finding.suppressed, *ids))))
        if ids
        else finding
    )
