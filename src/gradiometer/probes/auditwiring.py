"""Checks of the wiring, proved from the graph alone: dead terms and blocks, hidden terms, who holds which parameter."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from gradiometer.maths import gram
from gradiometer.probes.auditcheck import Check, failed, few, passed, skipped
from gradiometer.probes.auditreach import Reach, Subject

__all__ = [
    "DEAD_REFERENCES",
    "LOSS",
    "frozen_check",
    "hidden_term",
    "two_optimizers_check",
    "whole_blocks",
    "wiring",
]

LOSS = "loss|"
"""The name of the whole loss among the terms: no term can be called so."""
DEAD_REFERENCES = ("TRL #5595", "mlx-lm-lora #50", "NeMo-RL #3792")
CONTROL = 5  # times the error of the same decomposition done twice: FORMULAS section 1


def wiring(subject: Subject, reach: Reach) -> Iterator[Check]:
    """Everything that the reach matrix and the optimizers' lists prove."""
    yield from _dead_terms(subject, reach)
    yield _finite(subject, reach)
    yield _dead_blocks(subject, reach)
    yield _in_no_optimizer(subject, reach)
    yield two_optimizers_check(subject)
    yield frozen_check(subject)


def _dead_terms(subject: Subject, reach: Reach) -> Iterator[Check]:
    about = ("dead-term", "every term has a gradient")
    every = range(len(subject.named))
    dead = [term for term in reach.terms if not reach.paths[term] and not reach.outside[term]]
    for term in dead:
        yield failed(
            about,
            "critical",
            f"the term {term!r} ({reach.losses[term]:.4g}) has no gradient path to any parameter: it changes the "
            "loss and not the weights",
            numbers={"term": term, "loss": reach.losses[term]},
            fix=(
                f"compute {term!r} outside torch.no_grad(), without .detach(), .item(), .data or argmax, from the logits of "
                "this forward",
            ),
            confirm=f"multiply the coefficient of {term!r} by 100: if the gradient is the same, the term is dead",
            references=DEAD_REFERENCES,
        )
    if not dead:
        yield passed(about, f"{few(reach.terms)}: each reaches a parameter")
    still = [term for term in reach.terms if reach.cell(term, every).state == "zero"]
    if still:
        yield passed(
            ("dead-term", "stationary terms"),
            f"{few(still)}: there is a path and the gradient is exactly zero. That is right where π = π_ref, or where every "
            "advantage is zero; if neither is so, look at it again after the first steps",
            terms=still,
        )
    elsewhere = [term for term in reach.terms if reach.outside[term] and not reach.paths[term]]
    if elsewhere:
        yield passed(
            ("dead-term", "terms of other parameters"), f"{few(elsewhere)}: only parameters outside this model feel it"
        )


def _finite(subject: Subject, reach: Reach) -> Check:
    about = ("nonfinite-gradient", "gradients are finite")
    bad = {term: [i for i in sorted(reach.paths[term]) if not _is_finite(reach, term, i)] for term in reach.terms}
    guilty = [term for term, places in bad.items() if places]
    if not guilty:
        return passed(about, "no NaN and no Inf in any term's gradient")
    first = subject.names[bad[guilty[0]][0]]
    return failed(
        about,
        "critical",
        f"the gradient of {few(guilty)} is not finite, first in {first}; the loss is {reach.losses[guilty[0]]:.4g}",
        numbers={term: len(places) for term, places in bad.items() if places},
        fix=("look for log(0), 0/0, a division by a std of one sample or a masked -inf in that term",),
    )


def _is_finite(reach: Reach, term: str, place: int) -> bool:
    return bool(np.isfinite(reach.squares(term)[place]))


def _dead_blocks(subject: Subject, reach: Reach) -> Check:
    """A block that could be trained and that no term feels. A path whose gradient is zero (LoRA at its start) is fine."""
    about = ("dead-block", "every block is reached")
    reached = frozenset().union(*reach.paths.values())
    trained = {i for i, p in enumerate(subject.parameters) if p.requires_grad}
    members = subject.members()
    dead = [block for block in members if trained & set(members[block]) and not reached & set(members[block])]
    named = [block for block in dead if block in subject.named_blocks()]
    layers = [block.removeprefix("layer.") for block in dead if block.startswith("layer.")]
    if not dead:
        return passed(about, f"a gradient path leads to each of {len(members) - 1 or 1} blocks and layers")
    what = f"the block {few(named)}" if named else f"{len(layers)} of the layers ({few(layers)})"
    return failed(
        about,
        "critical" if named else "info",
        f"no term has a gradient path to {what}: it will stay as it is",
        numbers={"blocks": named, "layers": layers},
        fix=(
            "use its output in a term, outside no_grad and detach; or leave it out: requires_grad_(False)",
            "if a term is missing from this audit (the value loss?), give it in terms",
        ),
        block=named[0] if named else f"layer.{layers[0]}",
    )


def _in_no_optimizer(subject: Subject, reach: Reach) -> Check:
    about = ("not-in-optimizer", "what has a gradient is trained")
    holders, names, parameters = subject.holders(), subject.names, subject.parameters
    reached = frozenset().union(*reach.paths.values())
    lost = [i for i in sorted(reached) if id(parameters[i]) not in holders]
    strangers = {id(p): p for term in reach.terms for p in reach.outside[term] if id(p) not in holders}
    if not lost and not strangers:
        return passed(about, f"all {len(reached)} parameters that get a gradient are in an optimizer")
    whole = whole_blocks(subject, lost)
    what = few([names[i] for i in lost]) if lost else f"{len(strangers)} parameters that are not the model's"
    return failed(
        about,
        "critical" if whole or len(lost) > len(reached) / 2 else "warn",
        f"{len(lost) + len(strangers)} parameters get a gradient and are in no optimizer: {what}"
        + (f" (the whole block {few(whole)})" if whole else ""),
        numbers={"parameters": len(lost), "outside": len(strangers), "blocks": whole},
        fix=(
            "give them to an optimizer: add_param_group, or make the optimizer after the layers are made or replaced",
            "if another optimizer trains them, pass it to the audit too; if nobody should, requires_grad_(False)",
        ),
        block=whole[0] if whole else None,
    )


def whole_blocks(subject: Subject, places: Sequence[int]) -> list[str]:
    """The named blocks all of whose trained parameters are among these."""
    chosen, parameters, members = set(places), subject.parameters, subject.members()
    trained = {block: {i for i in members[block] if parameters[i].requires_grad} for block in subject.named_blocks()}
    return [block for block, inside in trained.items() if inside and inside <= chosen]


def two_optimizers_check(subject: Subject) -> Check:
    """Shared parameters that several optimizers move."""
    about = ("not-in-optimizer", "one optimizer each")
    holders = subject.holders()
    twice = [name for name, p in subject.named.items() if holders.get(id(p), 0) > 1]
    if not twice:
        return passed(about, f"no parameter is in two of {len(subject.optimizers)} optimizers")
    return failed(
        about,
        "warn",
        f"{len(twice)} parameters are in more than one optimizer ({few(twice)}): each step moves them again, with "
        "momentum of its own",
        numbers={"parameters": len(twice)},
        fix=("give shared parameters to one of the optimizers, and sum the losses before one backward",),
    )


def frozen_check(subject: Subject) -> Check:
    """An optimizer that holds what cannot be trained: fine for a few tensors, strange for a whole block."""
    about = ("dead-block", "nothing frozen by mistake")
    holders = subject.holders()
    frozen = [i for i, p in enumerate(subject.parameters) if not p.requires_grad and id(p) in holders]
    if not frozen:
        return passed(about, "no optimizer holds a frozen parameter")
    members, inside = subject.members(), set(frozen)
    whole = [block for block in subject.named_blocks() if set(members[block]) <= inside]
    names = few([subject.names[i] for i in frozen])
    if not whole:
        return passed(about, f"{len(frozen)} frozen parameters are in an optimizer ({names})", parameters=len(frozen))
    return failed(
        about,
        "warn",
        f"the whole block {few(whole)} is frozen (requires_grad=False), and an optimizer holds it",
        numbers={"parameters": len(frozen), "blocks": whole},
        fix=(f"requires_grad_(True) on {few(whole)} if it should learn; otherwise leave it out of the optimizer",),
        block=whole[0],
    )


def hidden_term(reach: Reach | None, again: float) -> Check:
    """Whether the loss is the sum of its terms: ‖g − sΣg_c‖/‖g‖, with a common factor s fitted.

    `again` is the same error between the terms and the terms once more.
    """
    about = ("hidden-term", "the terms are the loss")
    if reach is None:
        return skipped(about, "pass loss=, a function that gives the loss on which you call backward()")
    if again > reach.tolerance:
        return skipped(about, f"terms() gives another gradient when called again ({again:.2g}): let it use one batch")
    error, scale = gram.additivity(reach.products.sum(0))  # the loss is the last of them
    if math.isnan(error):
        return skipped(about, "the loss or its terms have no finite gradient here: nothing to compare")
    limit = max(reach.tolerance, CONTROL * again)
    numbers = {"additivity_error": error, "scale": scale, "limit": limit}
    if error > limit:
        return failed(
            about,
            "warn",
            f"{error:.1%} of the loss gradient comes from none of the terms: the loss has a term you did not name",
            numbers=numbers,
            fix=(
                "name every addend: auxiliary losses of a router, weight penalties, a KL inside the model's own loss",
            ),
            confirm="set the coefficient of the suspect to 0: the error falls to rounding",
            references=("Megatron-LM #5694",),
        )
    if scale < 0:
        return failed(
            about,
            "critical",
            f"the gradient of the loss is {scale:.4g} times that of the terms: a sign is turned",
            numbers=numbers,
            fix=("the loss that goes backward and the terms must have the same sign",),
        )
    factor = "" if abs(scale - 1) <= limit else f", times {scale:.4g}"
    return passed(
        about,
        f"the loss gradient is the sum of the terms{factor}, to {max(error, 1e-9):.1g}; a hidden term below {limit:.0e} "
        "of it would not show",
        **numbers,
    )
