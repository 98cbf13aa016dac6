"""What a rule is: a small pure function from a chart to a finding, to nothing, or to why it cannot say.

    @rule("entropy-collapse", needs=("entropy", "reward"))
    def entropy_collapse(chart: Chart) -> Verdict: ...

`needs` are names of the catalogue; where one is missing the rule is not called and the doctor says which metric would enable
it and how to log it.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TypeAlias

import numpy as np

from gradiometer import metrics
from gradiometer.doctor.chart import Chart
from gradiometer.records import Finding

__all__ = ["Rule", "Skipped", "Verdict", "rule", "rules"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A rule that cannot say, and what would let it."""

    rule: str
    why: str
    metric: str = ""
    """The name of the catalogue that is missing, or too short."""


Verdict: TypeAlias = Finding | Skipped | Iterable[Finding] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule by its finding's id."""

    id: str
    family: str
    needs: tuple[str, ...]
    judge: Callable[[Chart], Verdict]

    def __call__(self, chart: Chart) -> list[Finding] | Skipped:
        """The findings, none if all is well, or why it cannot be said."""
        for template in self.needs:
            if not chart.has(template):
                return Skipped(rule=self.id, why=how_to_log(template), metric=template)
        with np.errstate(all="ignore"):  # a series may hold anything; what cannot be computed is not accused
            found = self.judge(chart)
        if found is None:
            return []
        if isinstance(found, Finding | Skipped):
            return found if isinstance(found, Skipped) else [found]
        return list(found)


_RULES: dict[str, Rule] = {}


def rule(id: str, *, needs: tuple[str, ...] = ()) -> Callable[[Callable[[Chart], Verdict]], Callable[[Chart], Verdict]]:
    """Register the decorated function as the rule that makes findings of this id."""
    for template in needs:
        if template not in metrics.CATALOGUE:
            raise KeyError(f"rule {id!r} needs {template!r}, which is not in the catalogue")

    def register(judge: Callable[[Chart], Verdict]) -> Callable[[Chart], Verdict]:
        assert id not in _RULES, f"two rules are called {id!r}"
        family = judge.__module__.rpartition(".")[2].partition("_")[0]
        _RULES[id] = Rule(id=id, family=family, needs=needs, judge=judge)
        return judge

    return register


@cache
def rules() -> tuple[Rule, ...]:
    """Every rule, family by family."""
    package = import_module("gradiometer.doctor.rules")
    for found in pkgutil.iter_modules(package.__path__):
        import_module(f"{package.__name__}.{found.name}")
    return tuple(sorted(_RULES.values(), key=lambda each: (each.family, each.id)))


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
    how = origins.get(metric.origin, f"watch the training with gm.watch(..., tier={metric.origin!r})")
    if template.startswith("grad/pair/"):
        how = "name two modules to compare: gm.watch(..., pairs={...})"
    return f"no {template} in this log: {how}{known}"


def _log_it(template: str) -> str:
    if "<" in template:
        return f"log {template}"
    return (
        f"log it: meter.log({template}=...)" if template.isidentifier() else f'log it: meter.log({{"{template}": ...}})'
    )
