"""Balance between the terms of a loss: which of them moves the weights, and whether they undo each other.

All from the gradient of each term by itself (`meter.terms`). A term may be large where it harms nobody: the critic's gradient
matters to the actor only where they share weights, or where one clip scales both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.lacking import too_short
from gradiometer.doctor.pairs import (
    COSINE,
    NORM,
    SHARE,
    Pair,
    cosine_of,
    log_ratio,
    named,
    norms_by_block,
    pairs_of,
)
from gradiometer.doctor.progress import Progress, progress_of, shown
from gradiometer.doctor.roles import REGULARISERS, role_of
from gradiometer.doctor.rule import Skipped, Verdict, rule
from gradiometer.doctor.signs import level, persists, robust_sigma, since, trend
from gradiometer.maths.means import holm, mean_interval
from gradiometer.records import Evidence, Finding, Severity
from gradiometer.words import fmt

__all__ = ["critic_dominates", "head_collapse", "regulariser_dominates", "terms_conflict"]

MIN_TERMS = 9
"""Measurements of a term: three windows of three. The meter takes the first five steps, then every tenth."""
SWAMPED = 0.1
"""Policy over value norm: failure catalogue F37. Under Adam the smaller of two terms has this share of the step."""
CLIPPED = 0.5
"""Share of the steps a common clip is active on: below, it is for outliers and couples nothing."""
CRUSHED = 0.01
"""Clip ratio below which Adam no longer undoes it: its ε (1e-8 to 1e-5) outweighs gradients so small."""
CLIP_VARIES = 0.15
"""Decades of robust σ of the clip ratio. A steady factor cancels under Adam; one that varies by 1.4 re-weights batches."""
OUTWEIGHS = 1.0
"""Regulariser over policy norm, with a reward that does not rise: RAGEN reads its anatomy this way."""
CLEARLY = 3.0
"""The same where no reward is known: Megatron-LM #5694, an inherited auxiliary loss, made the norm 3.4 times as large."""
HELD = 0.8
"""Of its start: a policy that has learnt to choose has less entropy than that."""
STANDOFF = -0.9
"""Cosine of a policy and an entropy term that have come to rest against each other; 2 is the ratio of their norms."""
OPPOSED = -0.5
"""Cosine: beyond it a term takes back more than half of its own length of the other. Random ones are near 0 (PCGrad)."""
COMPARABLE = 3.0
"""Ratio of norms within which a conflict costs something: a weaker term cannot undo the stronger."""
HEAD_MATTERS = 0.3
"""Share of the norm a head must have had at the start for its loss to mean anything."""
FALLEN_AWAY = 0.2
"""Of that share: source 004's policy head went from 0.99 to 0.08."""
TRUNK_STAYS = 0.5
"""Of its own norm at the start: where the trunk's gradient fades too, the policy has converged."""
MIN_NORMS = 20
"""Measurements of block norms for a trend of their shares."""

HEAD = re.compile(r"head|(^|[._])(policy|actor|action|logits?|pi)(_?(net|out|logits))?$")
TRUNK = re.compile(r"trunk|shared|gnn|encoder|backbone|body|feature|extractor|torso|embed")
CRITIC = re.compile(r"critic|value|(^|[._])(vf|qf?|v)([._0-9]|$)")


def _unmeasured(id: str, pairs: Iterable[Pair], missing: str) -> Skipped | None:
    """Why none of the pairs can be judged; None when one can."""
    found = list(pairs)
    if not found:
        return Skipped(rule=id, why=missing, metric=NORM)
    longest = max(found, key=lambda pair: len(pair.ratio))
    return too_short(id, longest.ratio, MIN_TERMS) if len(longest.ratio) < MIN_TERMS else None


def _weight(progress: Progress | None) -> Severity:
    """A warning unless the policy learns all the same."""
    return "warn" if progress is None or progress.stuck else "info"


def _norms(pair: Pair) -> Evidence:
    ratio = 10.0 ** level(pair.ratio.last(0.5))
    first, second = pair.first.parts["term"], pair.second.parts["term"]
    reading = f"‖{first}‖/‖{second}‖ on {pair.block} is {fmt(ratio)} over the last half"
    return shown(pair.first, f"{reading} ({fmt(level(pair.first.last(0.5)))} to {fmt(level(pair.second.last(0.5)))})")


@rule("critic-dominates", needs=(NORM,))
def critic_dominates(chart: Chart) -> Verdict:
    """The value term's gradient is ten times the policy's where that can harm the policy.

    On a block both train it sets the direction; through one clip over both it sets the actor's step size. With networks and
    clips of their own a large critic is nobody's harm, and nothing is said.
    """
    id = "critic-dominates"
    pairs = pairs_of(chart, ("policy",), ("value",))
    if skipped := _unmeasured(
        id, pairs, "no block with a policy and a value term: name them in meter.terms(policy=, value=)"
    ):
        return skipped
    swamped = [p for p in pairs if persists(p.ratio, lambda x: x < np.log10(SWAMPED))]
    shared = [p for p in swamped if p.block != "all"] or [p for p in swamped if _share_weights(chart, pairs, p)]
    progress = progress_of(chart)
    if shared:
        worst = min(shared, key=lambda p: level(p.ratio.last(0.5)))
        how = f"Both terms train {worst.block}, and the weights there follow the critic."
        return _critic(worst, how, (), progress, _weight(progress), len(shared))
    coupled = next((p for p in swamped if p.block == "all"), None)
    clip = _common_clip(chart)
    if coupled is None or clip is None:
        return None
    ratio, harm = clip
    how = "Actor and critic share no weights, but one clip scales both by a norm that is the critic's: the actor's step size "
    how += harm or "shrinks by a steady factor, which Adam undoes."
    severity = _weight(progress) if progress is None or not progress.standing else "warn"
    return _critic(coupled, how, (ratio,), progress, severity if harm else "info", 1)


def _share_weights(chart: Chart, pairs: list[Pair], pair: Pair) -> bool:
    """Without a named block that both train: their cosine over all weights is exactly zero iff they share none."""
    if any(other.block != "all" for other in pairs):
        return False
    cosine = cosine_of(chart, pair)
    return cosine is not None and bool((cosine.finite.values != 0.0).any())


def _common_clip(chart: Chart) -> tuple[Evidence, str] | None:
    """A clip over everything that is active on most steps, and what harm its factor does."""
    active, ratio = (chart.get(f"grad/<block>/clip/{name}", block="all") for name in ("active", "ratio"))
    if active is None or ratio is None or not len(active.finite) or active.finite.values.mean() <= CLIPPED:
        return None
    late = ratio.finite.last(0.5).values
    sigma, factor = robust_sigma(np.log10(late[late > 0.0])), level(ratio.last(0.5))
    harm = "follows the critic's error." if sigma > CLIP_VARIES else ""
    harm = harm or ("is so small that Adam's ε outweighs it." if factor < CRUSHED else "")
    seen = (
        f"one clip over all weights, active on {100 * active.finite.values.mean():.0f} % of the steps; its factor is "
    )
    return shown(ratio, f"{seen}{fmt(factor)}, σ {fmt(sigma)} decades"), harm


def _critic(
    pair: Pair, how: str, more: tuple[Evidence, ...], progress: Progress | None, severity: Severity, count: int
) -> Finding:
    ratio = 10.0 ** level(pair.ratio.last(0.5))
    others = f" (and on {count - 1} more blocks)" if count > 1 else ""
    return Finding(
        id="critic-dominates",
        title=f"The value loss swamps the policy: its gradient is {fmt(1 / ratio)} times as large on {pair.block}{others}",
        severity=severity,
        basis="heuristic",
        since_step=since(pair.ratio, lambda x: x < np.log10(SWAMPED)),
        block=pair.block,
        evidence=(_norms(pair), *more, *((progress.evidence,) if progress else ())),
        cause=how,
        fix=(
            f"lower vf_coef by about {fmt(min(0.5 / ratio, 1e6))} times, or scale rewards: value targets of order one",
            "or part the networks (SB3: policy_kwargs=dict(share_features_extractor=False)) and clip each by itself",
        ),
        confirm="Set the value coefficient to zero for a few hundred steps from a checkpoint: if the reward starts to move, "
        "the critic was in the way.",
        references=("failure catalogue F37", "Andrychowicz et al. 2021, What Matters in On-Policy RL"),
    )


@rule("regulariser-dominates", needs=(NORM,))
def regulariser_dominates(chart: Chart) -> Verdict:
    """An entropy, KL or auxiliary term has a larger gradient than the policy's, and the reward does not rise.

    Near the optimum of a regularised objective the two are equal and opposite: a policy that has learnt is not accused, unless
    it came to rest against the bonus with nearly all its entropy left.
    """
    id = "regulariser-dominates"
    pairs = pairs_of(chart, (*REGULARISERS, "auxiliary"), ("policy",))
    if skipped := _unmeasured(
        id, pairs, "no block with a policy term and a regulariser: meter.terms(policy=, entropy=, kl=)"
    ):
        return skipped
    progress = progress_of(chart)
    bound = float(np.log10(OUTWEIGHS if progress is not None else CLEARLY))
    heavy = [p for p in pairs if persists(p.ratio, lambda x: x > bound)]
    if progress is not None and not progress.stuck:
        bound = -float(np.log10(2.0))
        heavy = [p for p in pairs if progress.standing and _standoff(chart, p)]
    named = [p for p in heavy if p.block != "all"] or heavy
    if not named:
        return None
    worst = max(named, key=lambda p: level(p.ratio.last(0.5)))
    term, ratio = worst.first.parts["term"], 10.0 ** level(worst.ratio.last(0.5))
    share = chart.get(SHARE, block=worst.block, term=term)
    shares = (shown(share, f"share of the gradient {fmt(level(share.last(0.5)))}"),) if share is not None else ()
    return Finding(
        id=id,
        title=f"The {term} term holds {worst.block} against the policy: {fmt(ratio)} times its gradient",
        severity="warn",
        basis="heuristic",
        since_step=since(worst.ratio, lambda x: x > bound),
        block=worst.block,
        evidence=(_norms(worst), *shares, *((progress.evidence,) if progress else ())),
        cause="The weights follow the regulariser, or stand where the two cancel: its coefficient is too large, or "
        "the policy's gradient is small because advantages carry no signal.",
        fix=(
            f"lower the coefficient of {term} by about {fmt(2 * ratio)} times (SB3: ent_coef; verl: entropy_coeff, "
            "kl_loss_coef; TRL: beta); an auxiliary loss you did not ask for: find where it is inherited",
            "if the policy's gradient is the small one, look at the spread of the rewards within groups first",
        ),
        confirm=f"Set the coefficient of {term} to zero for a few hundred steps: if the reward stays, the policy term is dead.",
        references=(
            "RAGEN, arXiv 2504.20073",
            "failure catalogue F29: Megatron-LM #5694",
            "failure catalogue F18, F22",
        ),
    )


def _standoff(chart: Chart, pair: Pair) -> bool:
    """Policy and entropy bonus hold each other, equal and opposite, while the entropy is still near its start."""
    entropy, cosine = chart.get("entropy"), cosine_of(chart, pair)
    if entropy is None or cosine is None or role_of(pair.first.parts["term"]) != "entropy":
        return False
    start, equal = level(entropy.first(0.1)), bool(persists(pair.ratio, lambda x: abs(x) <= np.log10(2.0)))
    held = start > 0.0 and bool(persists(entropy, lambda x: x >= HELD * start))
    return equal and held and bool(persists(cosine, lambda x: x < STANDOFF))


@rule("terms-conflict", needs=(COSINE,))
def terms_conflict(chart: Chart) -> Verdict:
    """Two terms of like size pull a block in opposite directions, and the reward does not rise.

    A regulariser is there to oppose the policy, and at the optimum it does so fully: only a run that does not learn is told.
    Cosines near zero are normal. Tested on all pairs and blocks at once (Holm).
    """
    id = "terms-conflict"
    found = [s for s in chart.every(COSINE) if named(s)]
    tested = [(s, mean_interval(s.values)) for s in found]
    known = [(s, interval) for s, interval in tested if interval is not None]
    if not known:
        return too_short(id, found, "too few that are independent", metric=COSINE)
    opposed = holm([interval.p_below(OPPOSED) for _, interval in known])
    blocks = norms_by_block(chart)
    hits = [(s, i) for (s, i), far in zip(known, opposed, strict=True) if far and _comparable(blocks, s)]
    progress = progress_of(chart)
    if not hits or (progress is not None and not progress.stuck):
        return None
    worst, interval = min(hits, key=lambda hit: hit[1].mean)
    a, b, block = worst.parts["term_a"], worst.parts["term_b"], worst.parts["block"]
    regularisers = [term for term in (b, a) if role_of(term) in REGULARISERS]
    return Finding(
        id=id,
        title=f"{a} and {b} undo each other on {block}: cosine {fmt(interval.mean)}",
        severity="info" if progress is None else "warn",
        basis="statistical",
        since_step=since(worst, lambda x: x < OPPOSED),
        block=block,
        evidence=(
            shown(
                worst,
                f"mean {fmt(interval.mean)} in [{fmt(interval.low)}, {fmt(interval.high)}]; {len(hits)} of {len(known)} pairs",
            ),
            *((progress.evidence,) if progress else ()),
        ),
        cause="Two terms of like size cancel, so little of either reaches the weights"
        + (": the policy stands where its regulariser holds it." if regularisers else "."),
        fix=(
            f"lower the coefficient of the one that matters less ({(regularisers or [a])[0]})",
            "or part the weights they share; or project the conflict away (PCGrad)",
        ),
        confirm="Drop each of the two in turn for a few hundred steps and see which the reward was waiting for.",
        references=("Yu et al. 2020, PCGrad, arXiv 2001.06782", "failure catalogue F37"),
    )


def _comparable(blocks: dict[str, dict[str, Series]], cosine: Series) -> bool:
    """The two norms are within a factor of three of each other over the last half."""
    norms = blocks.get(cosine.parts["block"], {})
    a, b = norms.get(cosine.parts["term_a"]), norms.get(cosine.parts["term_b"])
    if a is None or b is None:
        return False
    ratio = log_ratio(a, b)
    return bool(len(ratio)) and abs(level(ratio.last(0.5))) <= np.log10(COMPARABLE)


@rule("head-collapse", needs=("grad/<block>/norm/raw",))
def head_collapse(chart: Chart) -> Verdict:
    """The policy's head loses its part of the gradient while the trunk keeps its own, and the reward does not rise."""
    id = "head-collapse"
    norms = {s.parts["block"]: s.finite for s in chart.every("grad/<block>/norm/raw") if "block" in s.parts}
    heads = [
        s for block, s in norms.items() if HEAD.search(block) and not CRITIC.search(block) and not TRUNK.search(block)
    ]
    trunks = [s for block, s in norms.items() if TRUNK.search(block) and not CRITIC.search(block)]
    whole = norms.get("all")
    if whole is None or not heads or not trunks:
        why = "no head and trunk among the blocks: gm.watch(..., blocks={'head': ..., 'trunk': ...})"
        return Skipped(rule=id, why=why, metric="grad/<block>/norm/raw")
    shares = [(head, log_ratio(head, whole)) for head in heads]
    if max(len(share) for _, share in shares) < MIN_NORMS:
        return too_short(id, heads[0], MIN_NORMS)
    progress = progress_of(chart)
    kept = next((trunk for trunk in trunks if level(trunk.last(0.2)) >= TRUNK_STAYS * level(trunk.first(0.1))), None)
    if kept is None or (progress is not None and not progress.stuck):
        return None
    fallen = [(head, share, trend(share)) for head, share in shares if _falls_away(share)]
    significant = holm([found.p_value if found.p_value is not None else 1.0 for _, _, found in fallen])
    hits = [hit for hit, sure in zip(fallen, significant, strict=True) if sure]
    if not hits:
        return None
    head, share, _ = min(hits, key=lambda hit: level(hit[1].last(0.2)))
    return _starving(head, share, kept, progress, len(hits), len(heads))


def _falls_away(share: Series) -> bool:
    """From a share that mattered to a fifth of it, for good."""
    if len(share) < MIN_NORMS:
        return False
    start = level(share.first(0.1))
    return start >= np.log10(HEAD_MATTERS) and bool(persists(share, lambda x: x <= start + np.log10(FALLEN_AWAY)))


def _starving(head: Series, share: Series, trunk: Series, progress: Progress | None, hits: int, looked: int) -> Finding:
    start, end = 10.0 ** level(share.first(0.1)), 10.0 ** level(share.last(0.2))
    bound = float(np.log10(FALLEN_AWAY * start))
    return Finding(
        id="head-collapse",
        title=f"The policy head starves: {head.parts['block']} had {fmt(start)} of the gradient's norm, and now {fmt(end)}",
        severity="info" if progress is None else "warn",
        basis="statistical",
        since_step=since(share, lambda x: x <= bound),
        block=head.parts["block"],
        evidence=(
            shown(head, f"‖head‖/‖all‖ {fmt(start)} at the start, {fmt(end)} at the end; {hits} of {looked} heads"),
            shown(
                trunk, f"stays: {fmt(level(trunk.first(0.1)))} at the start, {fmt(level(trunk.last(0.2)))} at the end"
            ),
            *((progress.evidence,) if progress else ()),
        ),
        cause="A head whose choices are nearly certain passes little gradient, whatever arrives: most often entropy has "
        "collapsed; else its logits have grown large, or its inputs have gone flat.",
        fix=(
            "raise the entropy bonus and make sure it has a gradient",
            "bound the logits (tanh, a temperature, weight decay on the head) or normalise the trunk's output",
        ),
        confirm="Reset the head to its initial weights at a checkpoint: its share of the gradient must come back.",
        references=("failure catalogue F17",),
    )
