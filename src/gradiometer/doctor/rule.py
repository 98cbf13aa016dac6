"""What a rule is: a pure function from a run to a finding, to nothing, or to why it cannot say.

Three questions are kept apart. What became of the run: `outcome.py`, once. Which signs are there:
the rules; a sign has a strength (present, strong, total) and a since, whatever the reward does.
What follows: `severity.weigh`, one table. So a rule gives `finding(..., strength="strong")` and
never asks the outcome how bad it is; `role` says where it is no fault ("convergence": a policy that
is done shows it too; "harmless": runs that learn show it too). Only what is proved, and a test that
has the outcome in it, brings a `severity`. Numbers stand in `thresholds.toml`.

A rule that is one sign of one metric is data: `declare(...)` in `declared.py`. The others:

    @rule(
        "entropy-collapse",
        '''
        cause: The policy became nearly deterministic before it found anything better.
        fix: raise {key} (try ×5)
        confirm: Run the first tenth again with a larger entropy coefficient.
        see: arXiv 2505.22617
        ''',
        needs=("entropy",),
    )
    def entropy_collapse(run: RunData) -> Verdict:
        ...
        return finding("Entropy fell to 3 % of its start", shown(entropy, "..."), key="ent_coef")

`needs` are names of the catalogue; where one is missing the rule is not called and the doctor says
which metric would enable it and how to log it. The words stand with the rule, the numbers in the
finding: `{key}` in the words is what the finding was given as `key`. Words of another finding of
the same rule follow after a line `[name]`, which the finding gives as its `words`.
"""

from __future__ import annotations

import pkgutil
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np

from gradiometer import metrics
from gradiometer.doctor import thresholds
from gradiometer.doctor.audits import failed_checks, is_said, passed
from gradiometer.doctor.faultmap import failure, mathematics
from gradiometer.doctor.outcome import Outcome, outcome_of, trained_for
from gradiometer.doctor.rundata import RunData, Series
from gradiometer.doctor.severity import Role, Strength, weigh
from gradiometer.records import Basis, Evidence, Finding, Severity

__all__ = [
    "CannotSay",
    "Draft",
    "Judge",
    "Rule",
    "Skipped",
    "Verdict",
    "as_list",
    "finding",
    "needed_outcome",
    "proof",
    "rule",
    "rules",
    "sections",
    "too_short",
    "unlogged",
    "verdict_of",
    "words",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What a finding says besides what was read: why, what to change, how to make sure."""

    title: str = ""
    """Where it does not depend on numbers."""
    cause: str = ""
    fix: tuple[str, ...] = ()
    confirm: str = ""
    references: tuple[str, ...] = ()


LABELS = re.compile(r"(title|cause|fix|confirm|see): ")


def words(text: str) -> Words:
    """Words from lines `cause:`, `fix:`, `confirm:`, `see:`; an indented line goes on the last."""
    said: dict[str, list[str]] = {x: [] for x in ("title", "cause", "fix", "confirm", "see")}
    entries: list[str] = []
    for line in textwrap.dedent(text).strip().splitlines():
        if line.startswith(" "):
            entries[-1] += f" {line.strip()}"
        else:
            entries.append(line)
    for entry in entries:
        label = LABELS.match(entry)
        assert label is not None, f"{entry!r} begins with no label"
        said[label[1]].append(entry[label.end() :])
    return Words(
        title=" ".join(said["title"]),
        cause=" ".join(said["cause"]),
        fix=tuple(said["fix"]),
        confirm=" ".join(said["confirm"]),
        references=tuple(map(_reference, said["see"])),
    )


def sections(text: str) -> dict[str, Words]:
    """Words for several findings, each after a line `[name]`; those before the first have none."""
    parts = re.split(r"^\[([\w-]+)\]\n", textwrap.dedent(text), flags=re.MULTILINE)
    return {name: words(said) for name, said in zip(["", *parts[1::2]], parts[::2], strict=True)}


def _reference(text: str) -> str:
    """`F17` is in docs/failures.md, `mathematics: Reach` is a section of docs/mathematics.md."""
    if re.fullmatch(r"F\d+", text):
        return failure(text)
    return mathematics(text[13:]) if text.startswith("mathematics: ") else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A rule that cannot say, and what would let it."""

    rule: str = ""
    """Its id; the rule itself leaves it out."""
    why: str
    metric: str = ""
    """The name of the catalogue that is missing, or too short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A finding as a rule makes it; the rule's id and words are added to it."""

    title: str
    severity: Severity | None
    """Of what is proved; None where the strength of the sign decides it (`severity.weigh`)."""
    strength: Strength
    role: Role
    basis: Basis
    since_step: int | None
    block: str | None
    evidence: tuple[Evidence, ...]
    words: Words | str | None
    fix: tuple[str, ...]
    values: Mapping[str, str]


FROM_EVIDENCE = -1


def finding(
    title: str,
    *evidence: Evidence | None,
    severity: Severity | None = "warn",
    strength: Strength | None = None,
    role: Role = "plain",
    basis: Basis = "heuristic",
    since_step: int | None = FROM_EVIDENCE,
    block: str | None = None,
    words: Words | str | None = None,
    fix: tuple[str, ...] = (),
    **values: str,
) -> Draft:
    """What a rule found. Given a `strength` the outcome decides how bad it is, else `severity`
    stands as given: for what is proved, and for tests that had the outcome in them. It holds since
    its first evidence does, unless told. `words`, which may name a section of the rule's text, and
    `fix` replace the rule's own; `values` fill their braces."""
    known = tuple(each for each in evidence if each is not None)
    if since_step == FROM_EVIDENCE:
        since_step = known[0].first_step if known else None
    return Draft(
        title=title,
        severity=severity if strength is None else None,
        strength=strength or "present",
        role=role,
        basis=basis,
        since_step=since_step,
        block=block,
        evidence=known,
        words=words,
        fix=fix,
        values=values,
    )


def proof(title: str, *evidence: Evidence | None, **more: Any) -> Draft:
    """The same of what is beyond doubt: critical, unless told."""
    return finding(title, *evidence, **{"severity": "critical", "basis": "proved", **more})


Verdict: TypeAlias = Draft | Finding | Skipped | Iterable[Draft | Finding] | None
Judge: TypeAlias = Callable[[RunData], Verdict]


class CannotSay(Exception):
    """Ends a rule that lacks something, from wherever it is noticed."""

    def __init__(self, skipped: Skipped) -> None:
        super().__init__(skipped.why)
        self.skipped = skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule by its finding's id."""

    id: str
    family: str
    needs: tuple[str, ...]
    judge: Judge
    words: Words = Words()
    sections: Mapping[str, Words] = field(default_factory=dict, hash=False)
    """What it says instead, by the name that a finding gives as its `words`."""

    def __call__(self, run: RunData) -> list[Finding] | Skipped:
        """The findings, none if all is well, or why it cannot be said."""
        lacking = [template for template in self.needs if not run.has(template)]
        # a series may hold anything; what cannot be computed is not accused
        with np.errstate(all="ignore"):
            found = unlogged(lacking[0]) if lacking else verdict_of(self.judge, run)
            told = [] if isinstance(found, Skipped) else as_list(found)
            whole = [self._whole(each, run) for each in told]
        titles = [f"{each.title} {each.block!r}" for each in told]
        audited = failed_checks(run, self.id)
        new = [finding for check, finding in audited if not is_said(check, titles)]
        if isinstance(found, Skipped) and not new and not passed(run, self.id):
            return replace(found, rule=self.id)
        return [*(each for each in whole if each is not None), *new]

    def _whole(self, found: Draft | Finding, run: RunData) -> Finding | None:
        if isinstance(found, Finding):
            return found
        said = found.words or self.words
        said = self.sections[said] if isinstance(said, str) else said
        severity, title = found.severity, found.title
        if severity is None:
            weight = weigh(found.strength, outcome_of(run), found.basis, found.role)
            if weight is None:
                return None
            severity, title = weight.severity, f"Watch: {title}" if weight.watch else title

        def filled(text: str) -> str:
            for name, value in found.values.items():
                text = text.replace(f"{{{name}}}", value)
            return text

        return Finding(
            id=self.id,
            title=title,
            severity=severity,
            basis=found.basis,
            since_step=found.since_step,
            block=found.block,
            evidence=found.evidence,
            cause=filled(said.cause),
            fix=tuple(map(filled, found.fix or said.fix)),
            confirm=filled(said.confirm),
            references=said.references,
        )


def verdict_of(judge: Judge, run: RunData) -> Verdict:
    """What a rule says, also where it broke off."""
    try:
        return judge(run)
    except CannotSay as broken:
        return broken.skipped


def as_list(verdict: Draft | Finding | Iterable[Draft | Finding] | None) -> list[Draft | Finding]:
    """One finding, several, or none, as a list."""
    if verdict is None:
        return []
    return [verdict] if isinstance(verdict, Draft | Finding) else list(verdict)


_RULES: dict[str, Rule] = {}


def rule(
    id: str, text: str = "", *, needs: tuple[str, ...] = (), family: str = ""
) -> Callable[[Judge], Judge]:
    """Register the decorated function as the rule of this id, with these words. Its family is the
    file it stands in, unless told."""
    for template in needs:
        if template not in metrics.CATALOGUE:
            raise KeyError(f"rule {id!r} needs {template!r}, which is not in the catalogue")

    def register(judge: Judge) -> Judge:
        assert id not in _RULES, f"two rules are called {id!r}"
        place = family or judge.__module__.rpartition(".")[2].partition("_")[0]
        first, *others = sections(text).items()
        _RULES[id] = Rule(
            id=id, family=place, needs=needs, judge=judge, words=first[1], sections=dict(others)
        )
        return judge

    return register


@cache
def rules() -> tuple[Rule, ...]:
    """Every rule, family by family."""
    package = import_module("gradiometer.doctor.rules")
    for found in pkgutil.iter_modules(package.__path__):
        import_module(f"{package.__name__}.{found.name}")
    return tuple(sorted(_RULES.values(), key=lambda each: (each.family, each.id)))


def needed(run: RunData, template: str, least: float = 0, **parts: str) -> Series:
    """A series the rule cannot do without; the rule ends here if it is missing or too short."""
    series = run.get(template, **parts)
    if series is None:
        raise CannotSay(unlogged(template))
    if len(series.finite) < least:
        raise CannotSay(too_short(series, least))
    return series


def needed_outcome(run: RunData) -> Outcome:
    """What became of the run, for a rule that cannot do without: it ends where that is unknown."""
    found = outcome_of(run)
    if found is None:
        reward = trained_for(run)
        least = thresholds.value("course/min_rewards")
        raise CannotSay(unlogged("reward") if reward is None else too_short(reward, least))
    return found


def unlogged(template: str) -> Skipped:
    """A rule's metric is not in the log."""
    return Skipped(why=how_to_log(template), metric=template)


def too_short(
    found: Series | Iterable[Series], needed: float | str, *, metric: str | None = None
) -> Skipped:
    """Too few points in the longest series. `metric` where there may be none at all."""
    series = [found] if isinstance(found, Series) else list(found)
    name = series[0].metric.name if metric is None else metric
    most = max((len(each.finite) for each in series), default=0)
    told = f"{needed} needed" if not isinstance(needed, str) else needed
    return Skipped(why=f"{name}: {most} points, {told}", metric=name)


def how_to_log(template: str) -> str:
    """Where that metric comes from, in words for someone who does not have it."""
    metric = metrics.CATALOGUE[template]
    origins = {
        "logged": _log_it(template),
        "terms": "split the loss: with meter.terms(policy=..., value=..., entropy=...) as loss",
        "experts": "watch a model with experts: gm.watch finds them by itself",
        "anatomy": "probe it: gm.anatomy(...) or gradiometer analyze",
        "replicates": "probe it: gradiometer variance",
    }
    theirs = sorted({f"{alias.name} ({alias.library})" for alias in metric.aliases})
    known = f"; also known as {', '.join(theirs[:3])}" if theirs else ""
    how = origins.get(
        metric.origin, f"watch the training with gm.watch(..., tier={metric.origin!r})"
    )
    if template.startswith("grad/pair/"):
        how = "name two modules to compare: gm.watch(..., pairs={...})"
    return f"no {template} in this log: {how}{known}"


def _log_it(template: str) -> str:
    quantity, _, statistic = template.partition("/")
    if statistic == "<statistic>":  # meter.log takes the whole tensor of these
        return f"log it: meter.log({quantity}={quantity})"
    if "<" in template:
        return f"log {template}"
    return (
        f"log it: meter.log({template}=...)"
        if template.isidentifier()
        else f'log it: meter.log({{"{template}": ...}})'
    )
