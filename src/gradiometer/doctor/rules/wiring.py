"""Wiring: is what is trained what was meant? Terms of the loss, blocks of weights, and scale."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np

from gradiometer.doctor import thresholds
from gradiometer.doctor.proofs import BRACES, Way, known_events, looked, told
from gradiometer.doctor.rule import (
    Draft,
    Skipped,
    Verdict,
    finding,
    needed,
    proof,
    rule,
    too_short,
    unlogged,
)
from gradiometer.doctor.rundata import RunData, Series
from gradiometer.doctor.signs import NORM as RAW
from gradiometer.doctor.signs import layered, level, mapping, number, shown, since, where
from gradiometer.doctor.terms import COEFFICIENTS, Role, role_of
from gradiometer.maths.students import t_quantile
from gradiometer.metrics import key
from gradiometer.records import Basis, Event, Evidence
from gradiometer.store.reader import Floats, Ints
from gradiometer.words import fmt

__all__: list[str] = []

# Loss terms: one that no weight feels, and one that nobody was told about

NORM, LOSS = "grad/<block>/term/<term>/norm", "grad/<block>/term/<term>/loss"
ADDITIVITY = "grad/all/term/additivity_error"

limits = thresholds.group("wiring")

ROUNDING = {"float32": 5e-3, "float16": 1e-2, "bfloat16": 2.5e-2}
"""Additivity error that rounding may make. bfloat16: five times the 5e-3 of healthy models
(docs/guide/meter.md). float32 has 5e-7 there, but a GPU may multiply in TF32 (5e-4): ten times
that, and less than that of a gradient is not worth acting on."""

NEEDED = ("policy", "value")
"""What a loss cannot do without."""
SCALAR_LOSSES = {"task": "policy"}
"""RAGEN's gradient analysis calls the task's loss `policy`."""
FIXES: dict[Role | None, tuple[str, ...]] = {
    "entropy": (
        "Compute the entropy outside of torch.no_grad() from the logits that are trained: "
        "entropy = Categorical(logits=logits).entropy().mean()",
        "Look for .detach(), .item(), .numpy() or a stored rollout entropy between the logits"
        " and the bonus",
    ),
    "kl": (
        "Take the policy's log-probs with gradient and only the reference's under"
        " torch.no_grad(): d = ref_log_prob.detach() - log_prob",
    ),
    "policy": (
        "Recompute log_prob from the current weights inside the update: ratio = (log_prob -"
        " old_log_prob.detach()).exp(); detach only the old one and the advantages",
    ),
    "value": (
        "Compute the values from the current critic inside the update, not from the rollout's"
        " stored ones",
    ),
}
"""Of a dead term, by what it is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Term:
    """What was measured of a term of the loss."""

    name: str
    norm: Series
    loss: Series | None
    structural: bool
    """Whether the meter split it, and knows that there is a path."""


@rule(
    "dead-term",
    """
    cause: {cause}
    fix: Look for torch.no_grad(), .detach(), .item() or numpy between the weights and this term
    confirm: {confirm}
    see: TRL pull requests 5595 and 5596
    see: mlx-lm-lora issue 50
    see: NeMo-RL issue 3792
    [times-zero]
    cause: Nothing else trains what this term is for: a critic whose loss counts for nothing stays
      as it was initialised, and what is subtracted as its value is noise.
    fix: Set its coefficient above 0 ({key})
    fix: Or take the term and what it would train out of the program
    confirm: gradiometer wiring shows the coefficient of each term and the blocks it reaches.
    [no-advantages]
    cause: The term has a path to the weights, and what its log-probabilities are multiplied by is
      zero: advantages that were never filled in or that cancel, rewards that are all alike, or a
      mask of zeros.
    fix: Follow the rewards to the advantages: which of them is the first that is zero everywhere?
    confirm: Print advantages.abs().max() where the loss is computed; it must not be 0.
    [dead-reward]
    cause: Its advantages were given to meter.terms, but no term of the loss depends on them.
    fix: Add these advantages to those that the policy term uses, or leave them out of meter.terms
    confirm: Scale this reward by ten: today the policy gradient does not change.
    """,
)
def dead_term(run: RunData) -> Verdict:
    """A term of the loss that trains no weight: its coefficient has no effect.

    Proved at once where the autograd graph has no path. A path whose gradient is exactly zero is
    stationary, information only, until it has been so on 20 measured steps on which the term had
    something to push.
    """
    without_path, norms = dict(_without_path(run)), list(_norms(run))
    cut = [each for each in without_path.items() if not _switched_off(run, each[0])]
    found = [*(_no_path(run, *each) for each in cut), *_dead_rewards(run), *_times_zero(run)]
    for term in norms:
        if term.name not in without_path and not _switched_off(run, term.name):
            found += _stationary(run, term)
    if not found and not norms and not without_path and not run.has(LOSS):
        return unlogged(NORM)
    return found


def _without_path(run: RunData) -> Iterator[tuple[str, int]]:
    """Terms that reach no parameter, and since when; not those with a gradient since."""
    begun: dict[str, int] = {}
    for table in run.tables("terms"):
        for name, row in mapping(table.content).items():
            term = str(name)
            if set(mapping(row).values()) == {"none"}:
                begun.setdefault(term, table.step)
            else:
                begun.pop(term, None)
    for event in run.events("dead-term"):
        if term := str(event.detail.get("term") or ""):
            begun[term] = min(event.step, begun.get(term, event.step))
    for term, step in begun.items():
        norm = run.get(NORM, block="all", term=term)
        if norm is None or not norm.values[norm.steps > step].any():  # a NaN is a gradient too
            yield term, step


def _no_path(run: RunData, term: str, step: int) -> Draft:
    loss = run.get(LOSS, block="all", term=term)
    empty = loss is not None and len(loss) > 0 and not loss.values.any()
    never = ", or was never filled in: it is exactly zero."
    why = never if empty else ". Its coefficient has no effect at all."
    value, read = "", None
    if loss is not None and len(loss):
        size = fmt(level(loss))
        value = f", while its loss reads {size}" if len(loss.finite) else ""
        read = shown(loss, f"{size} on {len(loss)} measured steps: in the loss, and in no gradient")
    reading = f"no autograd path from {term!r} to any parameter"
    return proof(
        f"The loss term {term!r} has no gradient: no path leads from it to any weight{value}",
        Evidence(series="terms", reading=reading, first_step=step),
        read,
        severity="warn" if empty else "critical",
        fix=FIXES.get(role_of(term), ()),
        cause=f"The term was computed from values that are cut off from the weights{why}",
        confirm=f"Print {term}.requires_grad before backward(): it must be True. Then multiply its"
        " coefficient by ten: today that changes no weight.",
    )


def _times_zero(run: RunData) -> Iterator[Draft]:
    """A policy or value loss whose coefficient is 0 at every look: that of an entropy bonus is
    often meant."""
    coefficients: dict[str, list[tuple[int, float | None, Role]]] = {}
    for table in run.tables("wiring"):
        rows = mapping(table.content).get("terms")
        for row in map(mapping, rows if isinstance(rows, list) else ()):
            if row.get("role") in NEEDED:
                held = coefficients.setdefault(str(row.get("name")), [])
                held.append((table.step, row.get("coefficient"), row["role"]))
    for term, seen in coefficients.items():
        step, _, role = seen[0]
        if all(coefficient == 0 for _, coefficient, _ in seen):
            reading = f"{term!r} has the coefficient 0 in the loss, and no other way to the weights"
            yield proof(
                f"The {role} loss {term!r} is multiplied by 0: it trains nothing",
                Evidence(series="wiring", reading=reading, first_step=step),
                words="times-zero",
                key="vf_coef, value_loss_coef" if role == "value" else "its factor in the sum",
            )


def _dead_rewards(run: RunData) -> Iterator[Draft]:
    for event in run.events("dead-reward"):
        yield proof(
            f"The reward {event.detail.get('reward', '?')!r} has no part in any gradient",
            Evidence(series="events", reading=event.message, first_step=event.step),
            severity="warn",
            words="dead-reward",
        )


def _norms(run: RunData) -> Iterator[_Term]:
    """Ours, else those of a gradient analysis."""
    ours = {series.parts["term"]: series for series in run.every(NORM) if where(series) == "all"}
    for term, series in ours.items():
        loss = run.get(LOSS, block="all", term=term)
        yield _Term(name=term, norm=series, loss=loss, structural=True)
    bucketed = [s for s in run.every("grad_norm/<bucket>/<term>") if s.parts["bucket"] == "all"]
    analysed = [*bucketed, *run.every("actor/grad_norm/<term>")]
    for term, series in {series.parts["term"]: series for series in analysed}.items():
        if term != "total" and term not in ours:
            name = SCALAR_LOSSES.get(term, term)
            loss = run.get("actor/loss/<name>", name=name)
            other = run.get("grad_norm/<bucket>/loss/<name>", bucket="all", name=name)
            yield _Term(name=term, norm=series, loss=loss or other, structural=False)


def _pushes(run: RunData, term: _Term, steps: Ints) -> int:
    """On how many steps its input was not zero: KL > 1e-6, advantages ≠ 0, else its value."""
    role, source, least = role_of(term.name), term.loss, limits.no_input
    if role == "kl" and run.has("kl_ref"):
        source = run.get("kl_ref")
    for statistic in ("max_abs", "std") if role == "policy" else ():
        if (advantages := run.get("advantages/<statistic>", statistic=statistic)) is not None:
            source, least = advantages, 0.0
    return 0 if source is None else int((np.abs(_at(source, steps)) > least).sum())


def _at(series: Series, steps: Ints) -> Floats:
    """The value that held at each step: the newest up to it, else the first; NaN without any."""
    if not len(series):
        return np.full(len(steps), np.nan)
    return series.values[np.maximum(np.searchsorted(series.steps, steps, side="right") - 1, 0)]


PASSING = (
    "At π = π_ref, or with advantages of zero, a gradient of exactly zero is right; it should pass."
)
CUT = (
    "Nothing of it reaches a weight although its value is not zero: it is cut off, or every part"
    " that depends on the weights cancels or is clamped."
)


def _stationary(run: RunData, term: _Term) -> list[Draft]:
    """Exact zeros at the end of its norms. Dead after 20 of them with something to push; a note
    before, a sign for entropy analysed: no policy stands at even odds, or at none, for five
    steps."""
    there = np.flatnonzero(term.norm.values != 0)
    steps = term.norm.steps[there[-1] + 1 if len(there) else 0 :]
    count, pushed, role = len(steps), _pushes(run, term, steps), role_of(term.name)
    if role == "policy" and not len(there) and count >= limits.dead_after > pushed:
        return list(_without_advantages(run, term))
    proved = pushed >= limits.dead_after
    dead = proved or (pushed >= limits.noted_after and role == "entropy" and not term.structural)
    if not count or (not dead and count < limits.noted_after):
        return []
    been = "has been" if dead else "is stationary: it has been"
    reading = f"exactly 0 on {count} measured steps, on {pushed} of which it had something to push"
    found = finding(
        f"The gradient of the loss term {term.name!r} {been} exactly zero on {count} measured"
        " steps",
        shown(term.norm, reading, steps=steps),
        severity="critical" if proved else "warn" if dead else "info",
        basis="proved" if proved else "heuristic",
        fix=FIXES.get(role, ()),
        cause=CUT if dead else PASSING,
        confirm=f"Print torch.autograd.grad({term.name}, parameters, allow_unused=True): every"
        " entry is None or zero.",
    )
    return [found]


def _without_advantages(run: RunData, term: _Term) -> Iterator[Draft]:
    """A policy that nothing has ever pushed. Groups that earn the same have rules of their own."""
    if run.get("zero_variance_groups") is None:
        reading = f"exactly 0 on all of {len(term.norm)} measured steps"
        yield finding(
            f"The policy has had no gradient: that of its loss {term.name!r} is {reading}",
            shown(term.norm, reading),
            severity=None,
            strength="total",
            basis="statistical",
            words="no-advantages",
        )


def _switched_off(run: RunData, term: str) -> bool:
    """Whether the run says that the term's coefficient is zero: then it is meant to do nothing."""
    role = role_of(term)
    return role is not None and number(run.fact(*COEFFICIENTS.get(role, ()))) == 0


@rule(
    "hidden-term",
    """
    cause: The loss contains a term that was not given to meter.terms (an auxiliary loss a model
      adds by itself, gradients left over from an earlier backward), or a hook changes gradients on
      their way.
    fix: Give every part of the loss to meter.terms, also what a model adds by itself (transformers:
      router_aux_loss_coef)
    fix: Call zero_grad() for every parameter before each backward, also for those of no optimizer:
      model.zero_grad()
    confirm: Switch off what is suspected (its coefficient to 0): {name} must fall to rounding.
    see: Megatron-LM issue 5694: an inherited auxiliary loss made the gradient 3.4 times as long
    """,
)
def hidden_term(run: RunData) -> Verdict:
    """The gradient differs from the sum of the named terms by more than rounding.

    A difference thousands of times above rounding on every step needs no statistics. One below it
    cannot be seen.
    """
    if any(known_events(run, id) for id in LEAVE_GRADIENTS) or run.events("term-weight"):
        return None  # of terms that do not count once the sum is another one
    finite, dtype = needed(run, ADDITIVITY, limits.min_additivity).finite, _dtype(run)
    bound = ROUNDING.get(dtype, max(ROUNDING.values()))
    newer = finite.values[-max(limits.min_additivity, len(finite) // 2) :]
    if float(np.median(newer)) <= bound or float(newer.min()) <= limits.typical * bound:
        return None
    first = since(finite, lambda x: x > limits.typical * bound)
    error, of = float(np.median(newer)), dtype if dtype in ROUNDING else "any precision"
    reading = f"median {fmt(error)} of the newest {len(newer)}; rounding of {of} stays"
    return proof(
        f"A part of {error:.{0 if error >= 0.1 else 1}%} of the gradient comes from no term"
        " that was named",
        shown(finite, f"{reading} below {fmt(bound)}", first_step=first),
        severity="warn",
        since_step=first,
        name=key(ADDITIVITY),
    )


DTYPES = {"bfloat16": "bfloat16|bf16", "float16": "float16|fp16|half|16-mixed", "float32": "32"}
LEAVE_GRADIENTS = ("gradients-not-cleared", "not-in-optimizer")
"""Facts that say what else is in the gradient: that of earlier steps."""


def _dtype(run: RunData) -> str:
    """What the run calculates in, as far as it says; empty when it does not."""
    names = ("torch_dtype", "dtype", "precision", "mixed_precision", "amp_dtype")
    flags = [flag for flag in ("bf16", "fp16") if run.fact(flag) is True]
    said = (*flags, str(run.fact(*names) or "").lower())[0]
    return next((name for name, spelt in DTYPES.items() if re.search(spelt, said)), "")


# Blocks of weights: one that no loss reaches, one that has a gradient and never moves

UPDATE = "grad/<block>/norm/update"

ROUTERS = re.compile(r"router|gate", re.I)
"""Blocks that router-untrained judges, where routers were found."""
POLICY = re.compile(r"policy|actor|action|logit|lm_head|(^|[._])(pi|mu)([._0-9]|$)", re.I)
CRITIC = re.compile(r"critic|value|target|(^|[._])(vf|qf?|v)([._0-9]|$)", re.I)


def _is_layer(block: str) -> bool:
    return block.startswith("layer.")


@rule(
    "dead-block",
    """
    cause: Its output is detached, computed under torch.no_grad(), replaced by a stored value, or
      not used by the loss.
    fix: Compute the output of {module} with gradients inside the update, and let a term of the loss
      depend on it
    fix: If it is not to be trained, say so: requires_grad_(False), and leave it out of the
      optimizer
    confirm: Print torch.autograd.grad(loss, parameters of {module}, allow_unused=True): every entry
      is None.
    see: F34
    see: F36
    [silent]
    cause: There is a path, but no gradient passes: dead ReLUs, a mask or a clamp, or a product with
      an exact zero.
    fix: Look at the outputs of this block: what multiplies them is zero on every sample
    confirm: Replace the ReLU behind it by a leaky one, or take the mask away, for one batch: a
      gradient appears.
    see: AutoTrainer: dying ReLU
    [unused-layers]
    cause: No loss depends on them. An unused head or pooler is harmless; a layer that was meant to
      learn is not.
    fix: Leave them out of the optimizer, or find where their output is detached or dropped
    confirm: Print torch.autograd.grad(loss, their parameters, allow_unused=True): every entry is
      None.
    """,
)
def dead_block(run: RunData) -> Verdict:
    """A trained block that no loss reaches: no path, or a gradient of exactly zero.

    Weights that are frozen on purpose are no finding, nor are experts and routers, which have rules
    of their own. Single layers without a path (an unused pooler or value head) are information,
    unless they are the policy's.
    """
    whole, waiting = needed(run, RAW, limits.min_steps, block="all"), _waiting(run)
    found = [
        _unreached(run, block, whole)
        for block in _blocks(run)
        if block not in waiting and _is_dead(run, block)
    ]
    return [*found, *_silent(run, whole)] or _unused_layers(run, whole)


def _waiting(run: RunData) -> set[str]:
    """Blocks and layers whose optimizer has not stepped yet (a critic may begin later), and those
    that the script steps by hand, as TRPO does."""
    content = run.table("waiting")
    moved = [event.detail.get("blocks") for event in run.source.events("moved-by-hand")]
    lists = [each for each in (content, *moved) if isinstance(each, list)]
    return {str(name) for each in lists for name in each}


def _blocks(run: RunData) -> list[str]:
    """Named blocks: those of the terms' table, and those that the optimizer holds."""
    rows = map(mapping, mapping(run.table("terms")).values())
    named = {str(block) for row in rows for block in row} | set(map(where, run.every(UPDATE)))
    return sorted(block for block in named if block != "all" and not _is_layer(block))


def _others(run: RunData, block: str) -> bool:
    """Whether experts or routers are meant: those are judged by rules of their own."""
    path = block.removeprefix("layer.")
    layers = mapping(run.table("experts")).get("layers")
    within = [str(mapping(x).get("layer", "")).removeprefix("layer.") for x in layers or ()]
    routed = run.has("router/<router>/load/<expert>") and ROUTERS.search(block) is not None
    return routed or path.startswith(tuple(x for x in within if x))


def _is_dead(run: RunData, block: str) -> bool:
    """No gradient was measured, no term has a path, and it is not frozen on purpose, nor a target
    network or another one beside those that learn, which no optimizer holds."""
    rows = list(map(mapping, mapping(run.table("terms")).values()))
    reached = any(row.get(block, "none") != "none" for row in rows)
    if _others(run, block) or run.get(RAW, block=block) is not None or reached:
        return False
    kinds = set(mapping(run.table("states")).values())
    follows = block == "target" or "frozen" in kinds
    return run.get(UPDATE, block=block) is not None or ("missing" in kinds and not follows)


def _unreached(run: RunData, block: str, whole: Series) -> Draft:
    terms = ", ".join(map(repr, mapping(run.table("terms")))) or "the loss"
    reading = f"no autograd path from {terms} to {block!r}"
    missing = f"missing on all of {len(whole)} steps on which the rest has a gradient"
    return proof(
        f"No loss reaches the block {block!r}: it has had no gradient on any of {len(whole)}"
        " measured steps",
        Evidence(series="terms", reading=reading, first_step=int(whole.steps[0])),
        replace(shown(whole, missing), series=f"grad/{block}/norm/raw"),
        block=block,
        module=repr(block),
    )


def _silent(run: RunData, whole: Series) -> Iterator[Draft]:
    """Blocks and layers with a path along which exactly zero arrives, while others get something;
    a layer within a block that is told already is not told again."""
    alive = whole.steps[whole.values > 0]
    told: list[str] = []
    for series in sorted(run.every(RAW), key=lambda each: (layered(each), where(each))):
        block, zero = where(series), np.intersect1d(series.steps, alive)
        path = block.removeprefix("layer.")
        within = any(f"{path}.".startswith(f"{other}.") for other in told)
        if series.values.any() or len(zero) < limits.zero_steps or within or _others(run, block):
            continue
        told.append(path)
        policy = not layered(series) or _of_policy(path)
        reading = f"exactly 0 on {len(zero)} steps on which grad/all/norm/raw is"
        yield proof(
            f"The gradient of the {'layer' if layered(series) else 'block'} {path!r} is exactly"
            f" zero on all of {len(zero)} measured steps",
            shown(series, f"{reading} {fmt(level(whole))}", steps=zero),
            strength=None if policy else "strong",
            block=block,
            words="silent",
        )


def _of_policy(path: str) -> bool:
    """Whether a layer is what chooses the actions: without a gradient nothing is learned."""
    return POLICY.search(path) is not None and CRITIC.search(path) is None


def _unused_layers(run: RunData, whole: Series) -> Draft | None:
    """Layers whose parameters are all missing since the newest table, experts aside."""
    tables = run.tables("states")
    states = mapping(tables[-1].content) if tables else {}
    if not states or (whole.steps >= tables[-1].step).sum() < limits.min_steps:
        return None
    layers: dict[str, set[str]] = {}
    for name, state in states.items():
        layers.setdefault(str(name).rpartition(".")[0], set()).add(str(state))
    missing, waiting = [x for x, kinds in layers.items() if kinds == {"missing"}], _waiting(run)
    unused = [x for x in missing if not _others(run, x) and f"layer.{x}" not in waiting]
    if not unused:
        return None
    policy = [name for name in unused if _of_policy(name)]
    listed = [*policy, *(name for name in unused if name not in policy)]
    some = ", ".join(listed[:3]) + (", ..." if len(unused) > 3 else "")
    # in the order of the forward
    below = list(takewhile(lambda kinds: kinds == {"missing"}, layers.values()))
    cut = limits.cut_off <= len(below) < len(layers)
    place = f": nothing below {list(layers)[len(below)]!r} does" if cut else ""
    return proof(
        f"{len(unused)} of {len(layers)} layers get no gradient{place}: {some}",
        Evidence(series="states", reading=f"missing: {some}", first_step=tables[-1].step),
        severity="critical" if cut else "warn" if policy else "info",
        words="unused-layers",
    )


@rule(
    "not-in-optimizer",
    """
    cause: No optimizer was given these parameters (the model was changed, wrapped or copied after
      the optimizer was made), their parameter group has a learning rate of 0, or a step is smaller
      than half precision can add.
    fix: Make the optimizer after the model is complete and on its device: optimizer =
      Adam(model.parameters())
    fix: If they are not to be trained, requires_grad_(False) saves their gradients; otherwise those
      pile up, for optimizer.zero_grad() does not clear them
    confirm: Compare the ids: {id(p) for g in optimizer.param_groups for p in g['params']} lacks
      those of the block.
    """,
)
def not_in_optimizer(run: RunData) -> Verdict:
    """Weights with a gradient that never move: in no optimizer, or with a learning rate of zero.

    Proved where the meter has looked through all optimizers of the process, else a guess: there may
    be one that it was not given. A run in which nothing moves because the learning rate is zero, or
    steps are skipped, is told by other rules.
    """
    if facts := told(run, "not-in-optimizer", _untrained):
        return facts
    moved = {where(series): series for series in run.every(UPDATE)}
    if not moved:
        return unlogged(UPDATE)
    asked = {where(series): series for series in run.every(RAW) if "block" in series.parts}
    # where all optimizers were looked through, what none of them holds is told as a fact
    known = looked(run, "not-in-optimizer")
    stuck = [
        block
        for block, raw in asked.items()
        if _stuck(raw, moved.get(block)) and not (known and block not in moved)
    ]
    layers = [block for block in stuck if _is_layer(block)]
    named = [block for block in stuck if block not in layers] or layers[:1]
    if "all" in stuck:
        named, layers = ([] if _stands_still(run) else ["all"]), []
    found = [_never_moved(block, asked[block], moved.get(block), layers) for block in named]
    if not known:
        return found
    if _clipped_away(run):
        return []
    # an optimizer does hold them then: that they stand still is a fact, the reason is not
    return [replace(each, severity="warn", basis="statistical") for each in found]


HEADS = ("actor", "critic")
"""Blocks that are there to be trained; a body whose head alone is trained may be frozen lazily."""


def _untrained(run: RunData, event: Event) -> Way:
    if event.detail.get("subject") == "loss":
        return Way(
            title="The loss reaches nothing that an optimizer steps: no step has had a gradient"
        )
    if event.detail.get("subject") == "policy":
        return Way(title="The policy's loss trains nothing: no optimizer that steps holds it")
    given = event.detail.get("blocks")
    blocks = [str(block) for block in given] if isinstance(given, list) else []
    if heads := [block for block in blocks if block in HEADS]:
        title = f"The block {heads[0]!r} gets a gradient and no optimizer steps it"
        return Way(title=title.translate(BRACES), block=heads[0])
    title = "{parameters} parameters get a gradient and no optimizer steps them"
    return Way(title=title, severity="warn", block=blocks[0] if blocks else None)


def _stuck(raw: Series, update: Series | None) -> bool:
    pushed = int((raw.values > 0).sum())
    return pushed >= limits.min_steps and (
        update is None or (len(update) >= limits.min_steps and not update.values.any())
    )


def _clipped_away(run: RunData) -> bool:
    """Whether a clip leaves next to nothing, so that steps are lost in the rounding of weights."""
    ratio = run.get("grad/<block>/clip/ratio", block="all")
    return ratio is not None and level(ratio.finite) < thresholds.value("clipping/below_adam")


def _stands_still(run: RunData) -> bool:
    rates = [*run.every("optimizer/<number>/lr"), *run.every("learning_rate")]
    idle = bool(rates) and all(len(rate) and not rate.values.any() for rate in rates)
    return idle or bool(run.events("skipped-step"))


def _never_moved(block: str, raw: Series, update: Series | None, layers: list[str]) -> Draft:
    whole = block == "all"
    what = "No weight" if whole else f"The block {block!r}"
    held = "has never moved" if update is not None else "is stepped by no optimizer"
    more = f" ({len(layers)} layers)" if len(layers) > 1 else ""
    reading = "missing: no optimizer that watch() was given steps these weights"
    if update is not None:
        reading = f"exactly 0 on {len(update)} steps"
    return finding(
        f"{what}{more} {'has moved' if whole else held} in {len(raw)} measured steps, though it"
        " has a gradient",
        shown(raw, f"median {fmt(level(raw))}"),
        replace(shown(raw, reading), series=f"grad/{block}/norm/update"),
        severity="warn" if update is None or _is_layer(block) else "critical",
        basis="heuristic" if update is None else "proved",
        block=None if whole else block,
    )


# Scale: a gradient that depends on how the batch was cut, a clip that saw the loss scale

SCALE = "grad/all/term/scale"


@rule(
    "gradient-not-invariant",
    """
    cause: Once by hand, and once more by the trainer or accelerator. Adam hides it; clipping, SGD
      and weight decay are affected.
    fix: Divide the loss by gradient_accumulation_steps in one place only: accelerate and
      transformers do it in backward
    confirm: gm.audit(..., micro_batches=loss_of, batch=batch): one batch as 1×N and as N×1 must
      give the same gradient.
    see: ms-swift issue 10117: g/4
    see: TRL issue 6024: ×0.5 and ×4
    see: Megatron-LM issue 7452
    """,
)
def gradient_not_invariant(run: RunData) -> Verdict:
    """The same samples must give the same gradient however they are cut into micro-batches. The
    audit tests it; a log shows one case of it: a loss divided by the number of micro-batches twice,
    where the terms were given undivided.
    """
    scale, parts = run.get(SCALE), run.get("meter/micro_batches")
    if scale is None or len(scale.finite) < limits.min_scales:
        why = "cut one batch in several ways: gm.audit(..., micro_batches=loss_of, batch=batch)"
        return Skipped(why=f"{why} compares the gradients", metric=SCALE)
    said = run.fact("gradient_accumulation_steps", "accumulate_grad_batches", "grad_accum_steps")
    count = level(parts) if parts is not None else number(said) or math.nan
    off = np.abs(scale.finite.values * count * count - 1)
    if not count >= 2 or off.max() > limits.factor_error:
        return None
    reading = f"{fmt(level(scale))} = 1/{count:.0f}² from terms to gradient, on"
    return finding(
        f"The gradient is {count:.0f} times too small: the loss is divided by {count:.0f}"
        " micro-batches twice",
        shown(scale.finite, f"{reading} {len(scale.finite)} steps"),
    )


@rule(
    "clip-before-unscale",
    """
    cause: clip_grad_norm_ ran before the GradScaler divided the gradients by its scale: every step
      is cut to max_norm and then divided by some 65,536, so the true norm is far below max_norm and
      sinks as the scale grows.
    fix: Call scaler.unscale_(optimizer) before torch.nn.utils.clip_grad_norm_(...), then
      scaler.step(optimizer)
    fix: With bfloat16 leave the GradScaler out: it is not needed
    confirm: Print the norm that clip_grad_norm_ returns with init_scale=1024 and with 65536: it
      must not change.
    see: Lightning issues 9330 and 9694
    see: F30
    """,
)
def clip_before_unscale(run: RunData) -> Verdict:
    """Clipping acted on gradients times the loss scale, so hardly any gradient is left.

    Proved where the terms say by which power of two the gradient at the clip was too long.
    Otherwise the norm must follow the loss scale, or jump by exact factors of two at an absurd
    height while the clip cuts it to nothing.
    """
    raw, scale = run.get(RAW, block="all"), run.get(SCALE)
    clips = run.has("grad/<block>/clip/ratio") or run.has("grad/<block>/clip/active")
    if scale is not None and clips and len(scale.finite) >= limits.min_scales:
        reading = f"{fmt(level(scale))}: a power of two on {len(scale.finite)} measured steps"
        if not _powers_of_two(scale.finite.values):
            return None
        return _clipped_scaled(run, scale, f"{reading}, 1 once unscaled", basis="proved")
    least = 2 * limits.side * limits.min_changes
    if raw is None or len(raw.finite) < least:
        told = f"{least} needed; or split the loss with meter.terms"
        return too_short([] if raw is None else raw, told, metric=RAW)
    followed = _follows(raw.finite, run.get("loss_scale"))
    if followed is not None:
        return _clipped_scaled(run, raw, followed, basis="statistical")
    ratio = run.get("grad/<block>/clip/ratio", block="all")
    cut = ratio is not None and level(ratio) < 1 / limits.loss_scale
    jumps = _jumps(raw.finite) if cut else None
    return None if jumps is None else _clipped_scaled(run, raw, jumps, basis="heuristic")


def _powers_of_two(values: Floats) -> bool:
    if (values < limits.loss_scale * (1 - limits.factor_error)).any():
        return False
    exponents = np.log2(values)
    return bool((np.abs(exponents - np.round(exponents)) < limits.factor_error).all())


def _follows(raw: Series, scale: Series | None) -> str | None:
    """Whether the norm's level moves with the logged loss scale; the reading when it does."""
    if scale is None or not (scale.finite.values > 0).all() or len(scale.finite) < 2:
        return None
    kept = raw.values > 0
    steps, logs = raw.steps[kept], np.log2(raw.values[kept])
    powers = np.log2(scale.finite.values)
    slopes = []
    for i in np.flatnonzero(np.diff(powers)):
        at = int(np.searchsorted(steps, scale.finite.steps[i + 1]))
        before, after = logs[max(0, at - limits.side) : at], logs[at : at + limits.side]
        if len(before) >= 3 and len(after) >= 3:
            up = float(np.median(after) - np.median(before))
            slopes.append(up / float(powers[i + 1] - powers[i]))
    if len(slopes) < limits.min_changes:
        return None
    mean, error = float(np.mean(slopes)), float(np.std(slopes, ddof=1) / math.sqrt(len(slopes)))
    if mean - t_quantile(len(slopes) - 1, 0.975) * error <= limits.follows:
        return None
    moves = f"log2 of the norm moves {mean:.2f} ± {error:.2f} with log2 of the loss scale"
    return f"{moves}, over {len(slopes)} changes; 0 once unscaled"


def _jumps(raw: Series) -> str | None:
    """Whether a huge norm changes its level by nothing but factors of two, at least three times."""
    if level(raw) < limits.huge or not (raw.values > 0).all():
        return None
    logs, side = np.log2(raw.values), int(limits.side)
    windows = np.median(np.lib.stride_tricks.sliding_window_view(logs, side), axis=1)
    shifts = windows[side:] - windows[:-side]
    sizes: list[float] = []
    for i in np.argsort(-np.abs(shifts), kind="stable") if len(shifts) else ():
        if abs(shifts[i]) < limits.jump:
            break
        neighbours = np.abs(shifts[max(0, i - limits.side) : i + limits.side + 1])
        if abs(shifts[i]) == neighbours.max():
            sizes.append(float(abs(shifts[i])))
    if len(sizes) < limits.min_changes or max(abs(size - 1) for size in sizes) > limits.jump_error:
        return None
    return f"{len(sizes)} lasting changes, each by a factor of two, at a norm of {fmt(level(raw))}"


def _clipped_scaled(run: RunData, series: Series, reading: str, *, basis: Basis) -> Draft:
    ratio, finite = run.get("grad/<block>/clip/ratio", block="all"), series.finite
    left = None
    if ratio is not None and len(ratio.finite):
        cut = f"median {fmt(level(ratio))}: the clip leaves that much of the gradient"
        left = shown(ratio, cut, steps=finite.steps)
    return proof(
        "Gradients are clipped while they still hold the loss scale of half precision",
        shown(finite, reading),
        left,
        strength=None if basis == "proved" else "strong",
        basis=basis,
    )
