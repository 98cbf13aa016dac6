"""Experts and routers: who starves, who has it all, who is trained, and are they still several?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from gradiometer.doctor import thresholds
from gradiometer.doctor.experts import routers
from gradiometer.doctor.experts.answers import Answers
from gradiometer.doctor.experts.judge import judge
from gradiometer.doctor.experts.questions import listed
from gradiometer.doctor.experts.series import in_order
from gradiometer.doctor.experts.weights import ONE_EXPERT, THE_SAME, WeightDistance, read_distances
from gradiometer.doctor.rule import (
    CannotSay,
    Draft,
    Verdict,
    finding,
    rule,
    too_short,
    unlogged,
    words,
)
from gradiometer.doctor.rundata import RunData
from gradiometer.doctor.signs import enough, level, mapping, shown, since
from gradiometer.errors import UsageError
from gradiometer.records import Evidence
from gradiometer.words import fmt

__all__: list[str] = []

limits = thresholds.group("experts")

TOP_K = ("num_experts_per_tok", "moe_top_k", "moe_router_topk", "experts_per_token", "top_k")
"""Settings of transformers, Megatron and others: experts that one token goes to."""


def _measured(run: RunData, shares: list[routers.Share]) -> list[routers.Share]:
    """The shares; the rule ends where nothing can be said yet."""
    if not shares:
        raise CannotSay(unlogged(routers.LOAD))
    found = [share.series for share in shares]
    if not any(enough(series, routers.MIN_POINTS) for series in found):
        raise CannotSay(too_short(found, routers.MIN_POINTS, metric=routers.LOAD))
    return shares


@rule(
    "expert-starved",
    """
    cause: The router has learned, or was set, to leave it out, and an expert that gets no tokens
      has nothing to learn from.
    fix: Raise the coefficient of the balance loss (transformers: router_aux_loss_coef), or use a
      bias that balances loads
    fix: Add noise to the router's logits at the start, and look for a bias or mask on this expert's
      logit
    fix: Restart the expert from a copy of a busy one
    confirm: Set the router's logits to even odds for a few hundred steps: the expert's gradient and
      load must come back.
    see: F45
    see: NeMo: expert utilisation
    """,
)
def expert_starved(run: RunData) -> Verdict:
    """An expert gets hardly any tokens, so it gets no gradient and does not improve.

    By its load where that was measured, else by a gradient far below that of the others.
    """
    shares = _measured(run, routers.loads(run) or routers.gradient_shares(run))
    found = routers.starved(run)
    if not found:
        return None
    worst = min(found, key=_times_even)
    counted = _of(len(found), len(shares), "starve")
    return _share(run, worst, found, routers.bound_of, "below", counted, worst.kind == "load")


@rule(
    "expert-dominates",
    """
    cause: A router that finds one expert slightly better uses it more, trains it more, and finds it
      better still; its gradient grows with its load.
    fix: Raise the coefficient of the balance loss (transformers: router_aux_loss_coef), or set a
      capacity factor
    fix: Lower the learning rate of the router, and divide an expert's gradient by its tokens
    confirm: Take the busiest expert away for one evaluation: a loss that jumps says that the others
      learned nothing.
    see: F48
    see: KempnerForge issue 9: gradients scaled by average over actual tokens
    """,
)
def expert_dominates(run: RunData) -> Verdict:
    """One expert gets most of the tokens, or of the gradient: the others are unused.

    Measured from an even share (0) to all that routing allows (1): with k experts for each token
    none can have more than 1/k.
    """
    loaded, shared = routers.loads(run), routers.gradient_shares(run)
    _measured(run, loaded or shared)
    top_k = _top_k(run)

    def most_of(share: routers.Share) -> float:
        load, even = share.kind == "load", 1 / share.num
        most, part = (1 / top_k, limits.dominates) if load else (1.0, limits.takes_all)
        return even + part * (most - even) if most > even else math.inf

    found = routers.surely([*loaded, *shared], most_of, below=False)
    if not found:
        return None
    worst = max(found, key=lambda share: (share.kind == "load", _times_even(share)))
    hit, places = (
        len({share.place for share in shares if share.kind == worst.kind})
        for shares in (found, [*loaded, *shared])
    )
    counted = _of(hit, places, "layers are so")
    return _share(run, worst, found, most_of, "above", counted, tested=True)


def _share(
    run: RunData,
    worst: routers.Share,
    found: list[routers.Share],
    bound: Callable[[routers.Share], float],
    side: str,
    counted: str,
    tested: bool,
) -> Draft:
    """An expert whose share is surely beyond its bound."""
    what, edge = "tokens" if worst.kind == "load" else "gradient", bound(worst)
    now = level(worst.series.last(0.5))
    return finding(
        f"Expert {worst.expert} of {worst.place} gets {_percent(now)} of the {what}, an even share"
        f" is {1 / worst.num:.0%}{counted}",
        *(_evidence(share, bound(share), side) for share in found[:4]),
        strength="strong",
        basis="statistical" if tested else "heuristic",
        since_step=since(worst.series, lambda x: x < edge if side == "below" else x > edge),
        block=_block(run, {share.place for share in found}),
    )


def _times_even(share: routers.Share) -> float:
    return share.num * level(share.series.last(0.5))


def _top_k(run: RunData) -> int:
    """Experts for each token; 1 where experts are merged, or where nobody said."""
    said = run.fact(*TOP_K) if run.has("grad/expert/<expert>/norm_per_token") else None
    return int(said) if isinstance(said, int) and not isinstance(said, bool) and said >= 1 else 1


def _evidence(share: routers.Share, bound: float, side: str) -> Evidence:
    newer = share.series.finite.last(0.5)
    of = "" if share.kind == "load" else " of the norms of its layer's experts"
    return shown(
        newer,
        f"median {fmt(level(newer))}{of}, {side} {fmt(bound)} in the newer half "
        f"({len(newer)} points)",
    )


def _percent(share: float) -> str:
    if share >= 0.5:
        return f"{share:.0%}"
    return "nothing" if share == 0 else f"{share:.1%}" if share >= 1e-3 else fmt(share)


def _of(count: int, looked: int, verb: str) -> str:
    return f" ({count} of {looked} {verb})" if count > 1 else ""


def _block(run: RunData, places: set[str]) -> str | None:
    """The block of a layer with experts, from its router's name; None where several are meant."""
    place = next(iter(places))
    if len(places) > 1 or place == "all":
        return None
    for layer in mapping(run.table("experts")).get("layers") or ():
        known = mapping(layer)
        if place in (known.get("router"), known.get("layer")):
            return str(known.get("layer"))
    return place if place.startswith("layer.") else f"layer.{place}"


@rule(
    "router-untrained",
    """
    cause: The weight an expert's output is multiplied by does not depend on the router: it is
      detached, or a single chosen weight is normalised to 1. A balance loss alone then makes the
      load even.
    fix: Multiply the experts' output by the router's probabilities, and do not detach them
    fix: With top-1 routing do not renormalise (norm_topk_prob=False): w/w is 1 whatever the router
      says
    confirm: Without the balance loss for one batch, print router.weight.grad.norm(): about 1e-9 or
      None instead of 1e-2.
    see: minimind issues 858 and 859
    see: F46
    see: transformers issue 48687
    """,
)
def router_untrained(run: RunData) -> Verdict:
    """The task loss does not train the router, even if the load is balanced.

    Proved where its gradient is exactly zero or has no path; otherwise the gradient is at most
    a millionth of the experts'.
    """
    found = routers.untrained(run)
    if found is None:
        measured = routers.ratios(run)
        if not measured:
            return unlogged(routers.TASK if run.has(routers.LOAD) else routers.WHOLE)
        short = all(len(ratio.values) < routers.MIN_TERMS for ratio in measured)
        return too_short([ratio.series for ratio in measured], routers.MIN_TERMS) if short else None
    worst = min(found.ratios, key=lambda ratio: float(np.median(ratio.values)))
    steps, now = len(worst.values), fmt(float(np.median(worst.values)))
    what, reading = {
        "cut": (
            "parameters get no gradient at all",
            "no gradient on any measured step: no loss has a path to the router's parameters",
        ),
        "zero": ("gradient is exactly zero", f"exactly 0 on {steps} measured steps"),
        "small": (
            f"gradient is {now} of the experts'",
            f"median {fmt(level(worst.series))}, {now} of the experts', on {steps} measured steps",
        ),
    }[found.how]
    own = "router" in worst.series.parts
    more = f" ({len(found.ratios)} of {found.looked} routers)" if found.looked > 1 else ""
    return finding(
        f"The task does not train the router {worst.router}{more}: its {what}",
        _of_router(worst, reading, worst.series.name if own else f"router/{worst.router}/grad"),
        severity="critical",
        strength="strong" if found.how == "small" else None,
        basis="statistical" if found.how == "small" else "proved",
        since_step=int(worst.steps[0]) if len(worst.steps) else None,
        block=_layer(worst.router, found.ratios),
    )


def _of_router(ratio: routers.Ratio, reading: str, name: str) -> Evidence:
    first, last = int(ratio.steps[0]), int(ratio.steps[-1])
    return Evidence(series=name, reading=reading, first_step=first, last_step=last)


def _layer(router: str, found: Sequence[object]) -> str | None:
    """The block of a router, where it is the only one."""
    return None if router == "all" or len(found) > 1 else f"layer.{router}"


@rule(
    "routing-imbalance",
    """
    cause: The router prefers few experts. Where the balance falls, it is collapsing to them; where
      it is steady, part of it may be specialisation.
    fix: Raise the coefficient of the balance loss (transformers: router_aux_loss_coef)
    fix: Add noise to the router's logits, or lower its learning rate
    confirm: Double the coefficient of the balance loss: the balance must rise and the task's loss
      not suffer.
    see: F45
    see: NeMo: expert balance
    see: verl: max_vio
    [led-by-aux]
    cause: The coefficient of an auxiliary loss is so large that the router learns to spread tokens,
      not to place them.
    fix: Lower the coefficient of the balance loss (transformers: router_aux_loss_coef, Megatron:
      moe_aux_loss_coeff) by about {times}
    confirm: Lower it tenfold for a few hundred steps: the task's loss falls faster, and the load
      stays spread.
    see: Megatron-LM issue 5694
    see: F29
    """,
)
def routing_imbalance(run: RunData) -> Verdict:
    """The load is unbalanced, or the balance loss dominates the router's gradient.

    Some unevenness is specialisation, and information; half of the experts idle is not.
    """
    if not run.has(routers.BALANCE) and not run.has(routers.AUX):
        return unlogged(routers.BALANCE)
    found = [each for each in (_uneven(run), _led_by_aux(run)) if each is not None]
    balance = run.every(routers.BALANCE)
    long = any(enough(series, routers.MIN_POINTS) for series in balance)
    if found or long or run.has(routers.AUX):
        return found
    return too_short(balance, routers.MIN_POINTS)


def _uneven(run: RunData) -> Draft | None:
    found, collapsing = routers.uneven(run)
    if not found:
        return None
    share, looked = found[0], len(routers.by_router(run, found[0].kind))
    what, bound = {
        routers.BALANCE: ("balance of the load", routers.UNEVEN),
        routers.DEAD: ("share of dead experts", routers.MOSTLY_DEAD),
        routers.VIOLATION: ("excess load of the busiest expert", routers.TWICE),
    }[share.kind]
    below = share.kind == routers.BALANCE
    edge = routers.COLLAPSING if below and collapsing else bound
    healthy = f"healthy is {'above' if below else 'below'} {fmt(bound)}"
    more = f", and of {len(found) - 1} more of {looked}" if len(found) > 1 else ""
    newer = [each.series.finite.last(0.5) for each in found[:4]]
    return finding(
        f"The {what} of the router {share.place} is {level(newer[0]):.2f}{more}",
        *(shown(x, f"median {level(x):.3f} of the newer half; {healthy}") for x in newer),
        strength="strong",
        role="plain" if collapsing else "note",
        basis="statistical",
        since_step=since(share.series, lambda x: x < edge if below else x > edge),
        block=_layer(share.place, found),
    )


def _led_by_aux(run: RunData) -> Draft | None:
    """Routers the auxiliary loss pushes several times as hard as a task that reaches them."""
    led, looked = routers.led_by_aux(run)
    if not led:
        return None
    worst = min(led, key=lambda ratio: float(np.median(ratio.values)))
    times = 1 / float(np.median(worst.values[-max(3, len(worst.values) // 2) :]))
    reading = f"median {times:.3g} times router/{worst.router}/grad_task lately"
    more = f" ({len(led)} of {looked} routers)" if looked > 1 else ""
    return finding(
        f"The balance loss moves the router {worst.router} {times:.3g} times as hard as the task"
        f" does{more}",
        _of_router(worst, f"{reading}, {len(worst.values)} points", worst.series.name),
        strength="strong",
        basis="statistical",
        block=_layer(worst.router, led),
        words="led-by-aux",
        times=f"{times:.0f}",
    )


DISTANCE = "grad/expert/<expert>/weight_distance"
LAYER_DISTANCE = "grad/<layer>/expert/<expert>/weight_distance"


@rule("experts-converged")
def experts_converged(run: RunData) -> Verdict:
    """The experts became the same: their weights or their gradients no longer differ.

    Gradients that are alike by construction are no finding: a merge of the whole batch gives every
    expert the same direction.
    """
    distances = read_distances(run.source)
    gone = [distance for distance in distances if distance.state == "one"]
    if gone:
        return _met(run, gone, distances)
    answers = _answers(run)
    if answers is not None:
        return _collapsed(answers) if answers.becoming_one else None
    if not distances:
        return unlogged(DISTANCE)
    if any(len(each.values) > 1 for each in distances):
        return None
    return too_short(run.every(LAYER_DISTANCE) or run.every(DISTANCE), 2)


def _answers(run: RunData) -> Answers | None:
    """What the judge says of the whole run; None where it has nothing to compare."""
    norms = [series for series in run.every("grad/expert/<expert>/middle_norm") if len(series)]
    try:
        return judge(run.source, min(int(series.steps[0]) for series in norms)) if norms else None
    except UsageError:
        return None


CONVERGED = words(
    """
    cause: {cause}
    fix: Leave the experts' parameters out of any averaging over processes (expert parallel groups),
      and of an EMA towards a mean
    fix: Route so that they see different tokens (top-k instead of a merge, per sample instead of
      per batch), and lower their weight decay
    fix: Perturb all but one of them again (prismatic: perturbation_scale=2.0)
    confirm: {confirm}
    see: mathematics: Experts
    see: F45
    """
)


def _met(run: RunData, gone: list[WeightDistance], looked: list[WeightDistance]) -> Draft:
    series_of = {x.name: x for x in run.every(LAYER_DISTANCE) or run.every(DISTANCE)}
    worst = min(gone, key=lambda distance: distance.last)
    series, layers = series_of[worst.series].finite, {each.layer for each in gone}
    bound = max(THE_SAME, ONE_EXPERT * worst.first)
    where = f" of {worst.layer.removeprefix('layer.')}" if worst.layer else ""
    experts = in_order({each.expert for each in gone})
    verb = "has" if len(experts) == 1 else "have"
    who = f"{listed(experts).capitalize()} {verb} become one with expert 0"
    return finding(
        ("The experts have become one" if len(gone) == len(looked) else who)
        + f": the weights of expert {worst.expert}{where} are {100 * worst.last:.2g}% of their size"
        f" from expert 0's ({len(gone)} of {len(looked)} so close)",
        *(
            shown(series_of[each.series], f"{fmt(each.first)} at first, {fmt(each.last)} now")
            for each in gone[:4]
        ),
        since_step=since(series, lambda x: x < bound) if len(series) > 4 else int(series.steps[-1]),
        block=next(iter(layers)) or None if len(layers) == 1 else None,
        words=CONVERGED,
        cause="Something pulls the experts' weights together: an average over processes that should"
        " leave them apart, weight decay towards a shared start, or one merged gradient for all"
        " of them.",
        confirm="Compare the experts' outputs on one batch: where they agree, replacing each by"
        " expert 0 changes no loss.",
    )


def _collapsed(answers: Answers) -> Draft:
    lasting = answers.lasting
    return finding(
        "The experts are becoming one: what sets their gradients apart beyond routing is "
        + ("collapsing" if lasting.verdict == "collapses" else "gone"),
        Evidence(
            series="grad/expert/<expert>/log_ratio_routed",
            reading=lasting.sound_reading,
            first_step=answers.first_step,
            last_step=answers.last_step,
        ),
        basis="statistical",
        fix=(*answers.next, *CONVERGED.fix),
        words=CONVERGED,
        cause="Routing no longer sends them different tokens, or their weights approach each other:"
        " they learn the same thing.",
        confirm="gradiometer experts RUN shows the three questions; compare the experts' outputs"
        " on one batch.",
    )
