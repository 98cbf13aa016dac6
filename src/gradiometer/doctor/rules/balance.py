"""Balance of the terms of a loss: which moves the weights, and whether they undo each other.

All from the gradient of each term by itself (`meter.terms`). A term may be large where it harms
nobody: the critic's gradient matters to the actor only where they share weights, or where one clip
scales both.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from gradiometer.doctor import thresholds
from gradiometer.doctor.declared import Sign, seen
from gradiometer.doctor.outcome import outcome_of
from gradiometer.doctor.rule import CannotSay, Skipped, Verdict, too_short, unlogged
from gradiometer.doctor.rundata import RunData, Series
from gradiometer.doctor.severity import Role as SignRole
from gradiometer.doctor.severity import Strength
from gradiometer.doctor.signs import (
    NORM,
    in_words,
    level,
    persists,
    power,
    robust_sigma,
    shown,
    since,
    stays,
    trend,
    where,
)
from gradiometer.doctor.terms import (
    COSINE,
    REGULARISERS,
    SHARE,
    TERM_NORM,
    Pair,
    Role,
    cosine_of,
    log_ratio,
    named,
    norms_by_block,
    pairs_of,
    role_of,
)
from gradiometer.maths.means import holm, mean_interval
from gradiometer.records import Evidence
from gradiometer.words import fmt

__all__: list[str] = []

limits = thresholds.group("balance")

HEAD = re.compile(r"head|(^|[._])(policy|actor|action|logits?|pi)(_?(net|out|logits))?$")
TRUNK = re.compile(r"trunk|shared|gnn|encoder|backbone|body|feature|extractor|torso|embed")
CRITIC = re.compile(r"critic|value|(^|[._])(vf|qf?|v)([._0-9]|$)")


def _pairs(run: RunData, first: tuple[Role, ...], second: tuple[Role, ...], why: str) -> list[Pair]:
    """The pairs of terms of these roles; the rule ends where none can be judged."""
    pairs = pairs_of(run, first, second)
    if not pairs:
        raise CannotSay(Skipped(why=why, metric=TERM_NORM))
    longest = max((pair.ratio for pair in pairs), key=len)
    if len(longest) < limits.min_terms:
        raise CannotSay(too_short(longest, limits.min_terms))
    return pairs


def _sign(pair: Pair, strength: Strength, bound: float, **said: str) -> Sign:
    """Two norms whose ratio is beyond a bound, as the rule's sentence has it."""
    now, norms = level(pair.ratio.last(0.5)), (pair.first, pair.second)
    first, second = (each.parts["term"] for each in norms)
    sizes = " to ".join(fmt(level(each.last(0.5))) for each in norms)
    above, ratio = now > bound, fmt(power(now))
    return Sign(
        series=pair.first,
        strength=strength,
        since=since(pair.ratio, lambda x: x > bound if above else x < bound),
        reading=f"‖{first}‖/‖{second}‖ on {in_words(pair.block)} is {ratio} over the last half"
        f" ({sizes})",
        said={"block": in_words(pair.block), "term": first, "ratio": ratio, **said},
    )


@seen(
    "critic-dominates",
    """
    cause: {how}
    fix: lower vf_coef by about {times} times, or scale rewards: value targets of order one
    fix: or separate the networks (SB3: policy_kwargs=dict(share_features_extractor=False)) and clip
      each one separately
    confirm: Set the value coefficient to zero for a few hundred steps from a checkpoint: if the
      reward starts to improve, the critic was the problem.
    see: F37
    see: Andrychowicz et al. 2021, What Matters in On-Policy RL
    """,
    title="The value loss swamps the policy: its gradient is {larger} times as large on"
    " {block}{others}",
    needs=(TERM_NORM,),
    role="usual",
)
def critic_dominates(run: RunData) -> Sign | Verdict:
    """The value term's gradient is ten times the policy's where that can harm the policy.

    On a block both train it sets the direction; through one clip over both it sets the actor's step
    size. With networks and clips of their own a large critic is nobody's harm, and nothing is said.
    """
    missing = "no block with a policy and a value term: name them in meter.terms(policy=, value=)"
    pairs, bound = _pairs(run, ("policy",), ("value",), missing), np.log10(limits.swamped)
    swamped = [pair for pair in pairs if persists(pair.ratio, lambda x: x < bound)]
    whole = [pair for pair in swamped if pair.block == "all"]
    shared = [pair for pair in swamped if pair.block != "all"]
    shared = shared or [pair for pair in whole if _share_weights(run, pairs, pair)]
    clip = _common_clip(run)
    more: tuple[Evidence, ...] = ()
    role: SignRole | None = None
    if shared:
        pair = min(shared, key=lambda p: level(p.ratio.last(0.5)))
        how = f"Both terms train {in_words(pair.block)}, and the weights there follow the critic."
    elif whole and clip is not None and not _crushed_anyway(run, whole[0]):
        pair, more, role = whole[0], (clip[0],), None if clip[1] else "note"
        how = "Actor and critic share no weights, but one clip scales both by a norm that is the"
        how += " critic's: the actor's step size "
        how += clip[1] or "shrinks by a steady factor, which Adam undoes."
    else:
        return None
    ratio = power(level(pair.ratio.last(0.5)))
    others = f" (and on {len(shared) - 1} more blocks)" if len(shared) > 1 else ""
    lower = fmt(min(0.5 / ratio, 1000000.0))
    sign = _sign(pair, "strong", bound, how=how, times=lower, larger=fmt(1 / ratio), others=others)
    return replace(sign, more=more, role=role)


def _crushed_anyway(run: RunData, pair: Pair) -> bool:
    """Whether the clip would leave next to nothing of the policy's gradient alone: then it is the
    clip's doing, not the critic's."""
    factor = run.get("grad/<block>/clip/ratio", block="all")
    if factor is None or not len(factor.finite):
        return False
    alone = level(factor.finite.last(0.5)) / power(level(pair.ratio.last(0.5)))
    return bool(alone < limits.crushed)


def _share_weights(run: RunData, pairs: list[Pair], pair: Pair) -> bool:
    """Without a named block that both train: their cosine is exactly zero iff they share none."""
    if any(other.block != "all" for other in pairs):
        return False
    cosine = cosine_of(run, pair)
    return cosine is not None and bool((cosine.finite.values != 0.0).any())


def _common_clip(run: RunData) -> tuple[Evidence, str] | None:
    """A clip over everything that is active on most steps, and what harm its factor does; None
    where blocks are clipped by different factors: each has a clip of its own."""
    active, ratio = (run.get(f"grad/<block>/clip/{x}", block="all") for x in ("active", "ratio"))
    if active is None or ratio is None or not len(active.finite):
        return None
    share = active.finite.values.mean()
    parts = [each for each in run.every("grad/<block>/clip/ratio") if len(each.finite)]
    middles = [level(each.last(0.5)) for each in parts]
    apart = bool(middles) and max(middles) > limits.one_clip * min(middles)
    if share <= limits.clipped or apart:
        return None
    late = ratio.finite.last(0.5).values
    sigma, factor = robust_sigma(np.log10(late[late > 0.0])), level(ratio.last(0.5))
    harm = "is so small that Adam's ε outweighs it." if factor < limits.crushed else ""
    harm = "follows the critic's error." if sigma > limits.clip_varies else harm
    seen = f"one clip over all weights, active on {100 * share:.0f} % of the steps; its factor is"
    return shown(ratio, f"{seen} {fmt(factor)}, mostly within ×{fmt(power(sigma))} of it"), harm


@seen(
    "regulariser-dominates",
    """
    cause: The weights follow the regulariser, or settle where the two cancel: its coefficient is
      too large, or the policy's gradient is small because advantages carry no signal.
    fix: lower the coefficient of {term} by about {times} times (SB3: ent_coef; verl: entropy_coeff,
      kl_loss_coef; TRL: beta); an auxiliary loss you did not ask for: find where it is inherited
    fix: if the policy's gradient is the small one, look at the spread of the rewards within groups
      first
    confirm: Set the coefficient of {term} to zero for a few hundred steps: if the reward stays, the
      policy term is dead.
    see: RAGEN, arXiv 2504.20073
    see: F29
    see: Megatron-LM issue 5694
    see: F18
    see: F22
    """,
    title="The {term} term dominates {block}: its gradient is {ratio} times the policy's",
    needs=(TERM_NORM,),
    role="harmless",
)
def regulariser_dominates(run: RunData) -> Sign | Verdict:
    """An entropy, KL or auxiliary gradient is above the policy's, and the reward does not rise.

    Near the optimum of a regularised objective the two are equal and opposite: a policy that has
    learnt is not accused, unless it came to rest against the bonus with nearly all its entropy
    left.
    """
    missing = "no block with a policy term and a regulariser: meter.terms(policy=, entropy=, kl=)"
    pairs = _pairs(run, (*REGULARISERS, "auxiliary"), ("policy",), missing)
    bound, clearly = (float(np.log10(x)) for x in (limits.outweighs, limits.clearly))
    heavy = [pair for pair in pairs if persists(pair.ratio, lambda x: x > bound)]
    resting = [pair for pair in pairs if _standoff(run, pair)]
    progress = outcome_of(run)
    at_rest = bool(resting) and progress is not None and progress.standing
    if at_rest:
        heavy, bound = resting, -float(np.log10(limits.equal))
    named = [pair for pair in heavy if pair.block != "all"] or heavy
    if not named:
        return None
    worst = max(named, key=lambda p: level(p.ratio.last(0.5)))
    now, term = level(worst.ratio.last(0.5)), worst.first.parts["term"]
    share = run.get(SHARE, block=worst.block, term=term)
    strength: Strength = "strong" if at_rest or now > clearly else "present"
    sign = _sign(worst, strength, bound, times=fmt(2 * power(now)))
    if share is not None:
        part = shown(share, f"share of the gradient {fmt(level(share.last(0.5)))}")
        sign = replace(sign, more=(part,))
    cancels = "The {term} term cancels the policy on {block}: its gradient is {ratio} times that"
    return replace(sign, title=cancels, role="plain") if at_rest else sign


def _standoff(run: RunData, pair: Pair) -> bool:
    """Policy and entropy bonus, equal and opposite, while the entropy is still near its start."""
    entropy, cosine = run.get("entropy"), cosine_of(run, pair)
    if entropy is None or cosine is None or role_of(pair.first.parts["term"]) != "entropy":
        return False
    start = level(entropy.first(0.1))
    equal = stays(pair.ratio, lambda x: abs(x) <= np.log10(limits.equal))
    held = start > 0.0 and stays(entropy, lambda x: x >= limits.held * start)
    return equal and held and stays(cosine, lambda x: x < limits.standoff)


@seen(
    "terms-conflict",
    """
    cause: Two terms of like size cancel, so little of either reaches the weights{end}
    fix: lower the coefficient of the one that matters less ({weaker})
    fix: or give them separate weights; or project the conflict away (PCGrad)
    confirm: Drop each of the two in turn for a few hundred steps and see which one lets the reward
      rise.
    see: Yu et al. 2020, PCGrad, arXiv 2001.06782
    see: F37
    """,
    title="{a} and {b} undo each other on {shared}: cosine {mean}",
    needs=(COSINE,),
    role="harmless",
    basis="statistical",
)
def terms_conflict(run: RunData) -> Sign | Verdict:
    """Two terms of like size pull a block in opposite directions, and the reward does not rise.

    A regulariser is there to oppose the policy, and at the optimum it does so fully: only a run
    that does not learn is told. Cosines near zero are normal. Tested on all pairs and blocks at
    once (Holm).
    """
    found = [s for s in run.every(COSINE) if named(s)]
    tested = [(s, mean_interval(s.values)) for s in found]
    known = [(s, interval) for s, interval in tested if interval is not None]
    if not known:
        return too_short(found, "too few that are independent", metric=COSINE)
    opposed = holm([interval.p_below(limits.opposed) for _, interval in known])
    blocks = norms_by_block(run)
    sure = [each for each, far in zip(known, opposed, strict=True) if far]
    hits = [each for each in sure if _comparable(blocks, each[0])]
    if not hits:
        return None
    worst, mean = min(hits, key=lambda hit: hit[1].mean)
    a, b = worst.parts["term_a"], worst.parts["term_b"]
    regularisers = [term for term in (b, a) if role_of(term) in REGULARISERS]
    held = ": the policy stands where its regulariser holds it."
    shared = in_words(worst.parts["block"])
    return Sign(
        series=worst,
        strength="strong",
        since=since(worst, lambda x: x < limits.opposed),
        reading=f"mean {fmt(mean.mean)} in [{fmt(mean.low)}, {fmt(mean.high)}];"
        f" {len(hits)} of {len(known)} pairs",
        said={
            "end": held if regularisers else ".",
            "weaker": (regularisers or [a])[0],
            **{"a": a, "b": b, "shared": shared, "mean": fmt(mean.mean)},
        },
    )


def _comparable(blocks: dict[str, dict[str, Series]], cosine: Series) -> bool:
    """The two norms are within a factor of three of each other over the last half."""
    norms = blocks.get(cosine.parts["block"], {})
    a, b = norms.get(cosine.parts["term_a"]), norms.get(cosine.parts["term_b"])
    if a is None or b is None:
        return False
    ratio = log_ratio(a, b)
    return bool(len(ratio)) and abs(level(ratio.last(0.5))) <= np.log10(limits.comparable)


@seen(
    "head-collapse",
    """
    cause: A head whose choices are nearly certain passes little gradient, whatever arrives: most
      often entropy has collapsed; else its logits have grown large, or its inputs have gone flat.
    fix: raise the entropy bonus and make sure it has a gradient
    fix: bound the logits (tanh, a temperature, weight decay on the head) or normalise the trunk's
      output
    confirm: Reset the head to its initial weights at a checkpoint: its share of the gradient must
      come back.
    see: F17
    """,
    title="The policy head starves: {head} had {start} of the gradient's norm, and now {end}",
    role="convergence",
    basis="statistical",
)
def head_collapse(run: RunData) -> Sign | Verdict:
    """The policy head's share of the gradient collapses, and the trunk's does not."""
    norms = _norms_of_parts(run)
    if not norms:
        return unlogged(NORM)
    actors = {block: series for block, series in norms.items() if not CRITIC.search(block)}
    trunks = [series for block, series in actors.items() if TRUNK.search(block)]
    heads = [x for block, x in actors.items() if HEAD.search(block) and not TRUNK.search(block)]
    whole = norms.get("all")
    if whole is None or not heads or not trunks:
        why = (
            "no head and trunk among the blocks: gm.watch(..., blocks={'head': ..., 'trunk': ...})"
        )
        return Skipped(why=why, metric=NORM)
    shares = [replace(log_ratio(head, whole), name=head.name) for head in heads]
    if max(map(len, shares)) < limits.min_norms:
        return too_short(heads[0], limits.min_norms)
    kept = next((trunk for trunk in trunks if _at_ends(trunk)[1] >= limits.trunk_stays), None)
    fallen = [share for share in shares if _falls_away(share)]
    sure = holm([trend(share).p_value or 1.0 for share in fallen])
    hits = [share for share, certain in zip(fallen, sure, strict=True) if certain]
    if kept is None or not hits:
        return None
    share = min(hits, key=lambda hit: level(hit.last(0.2)))
    start, end = (power(level(x)) for x in (share.first(0.1), share.last(0.2)))
    counted = f"{len(hits)} of {len(heads)} heads"
    return Sign(
        series=share,
        strength="strong",
        since=since(share, lambda x: x <= np.log10(limits.fallen_away * start)),
        reading=f"‖head‖/‖all‖ {fmt(start)} at the start, {fmt(end)} at the end; {counted}",
        said={"head": where(share), "start": fmt(start), "end": fmt(end)},
        more=(shown(kept, f"stays: {_at_ends(kept)[0]}"),),
    )


def _norms_of_parts(run: RunData) -> dict[str, Series]:
    """By block as the meter has them; else as a script logged them, with the whole one."""
    norms = {where(series): series.finite for series in run.every(NORM)}
    if len(norms) > 1:
        return norms
    parts = {where(series): series.finite for series in run.every("part_grad_norm/<block>")}
    whole = run.get("total_grad_norm")
    return norms | parts | ({} if whole is None else {"all": whole.finite})


def _at_ends(trunk: Series) -> tuple[str, float]:
    """The norm at both ends in words, and the second over the first."""
    start, end = level(trunk.first(0.1)), level(trunk.last(0.2))
    return f"{fmt(start)} at the start, {fmt(end)} at the end", end / start if start else np.nan


def _falls_away(share: Series) -> bool:
    """From a share that mattered to a fifth of it, for good."""
    start = level(share.first(0.1)) if len(share) >= limits.min_norms else -np.inf
    matters = start >= np.log10(limits.head_matters)
    return matters and stays(share, lambda x: x <= start + np.log10(limits.fallen_away))
