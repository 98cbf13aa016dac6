"""A policy term that trains the critic: advantages that were not detached.

The head of the critic is the layer with one output that lies next to the value term. Where a policy
term reaches it, and the head is stepped with that gradient, the policy term trains the critic. The
actor's loss of SAC, TD3 and DDPG runs through a critic too, and is harmless: what it leaves there
is cleared before the critic's own backward. A trunk that both share has no part in this.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gradiometer.capture.proofs import (
    BINARY,
    LOSSES,
    NORMALISES,
    REDUCED,
    UNARY,
    VIEWS,
    ProofLog,
    children,
    every_node,
)

__all__ = ["GraphTerm", "TermLeaks", "leaf_tensors", "leak_words", "leaves_of", "value_heads"]

ID = "leak-between-terms"
PASSED = (UNARY, BINARY, REDUCED, LOSSES, VIEWS)
CHOICE = re.compile(r"GatherBackward\d*")
MOST_NODES = 200
"""Between a value term and the layer below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphTerm:
    """A term of a loss that is about to go backward."""

    name: str
    role: str | None
    nodes: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Leak:
    term: str
    value_term: str
    place: int
    """The head's parameter."""


def leaves_of(nodes: Iterable[Any]) -> set[int]:
    """The leaves below some nodes, by id."""
    return set(leaf_tensors(nodes))


def leaf_tensors(nodes: Iterable[Any]) -> dict[int, Tensor]:
    """The leaves below some nodes, with their ids."""
    found = (getattr(node, "variable", None) for node in every_node(nodes))
    return {id(leaf): leaf for leaf in found if leaf is not None}


def value_heads(nodes: Iterable[Any]) -> list[Tensor]:
    """Parameters of the first layer below a value term: with one output, or with several among
    which the term chooses."""
    waiting = list(nodes)
    seen, found, choices = set(waiting), list[Tensor](), set[Any]()
    while waiting and len(seen) < MOST_NODES:
        node = waiting.pop()
        leaves = [leaf for child, _ in children(node) if (leaf := _leaf(child)) is not None]
        if leaves:
            found += [leaf for leaf in leaves if leaf.shape[:1] == (1,) or node in choices]
            continue
        name = node.name()
        chosen = CHOICE.fullmatch(name) is not None
        if chosen or any(kind.fullmatch(name) for kind in PASSED):
            new = [child for child, _ in children(node) if child not in seen]
            if chosen or (node in choices and VIEWS.fullmatch(name)):
                choices.update(new)
            seen.update(new)
            waiting += new
    return found


def _logits_of(nodes: Iterable[Any]) -> set[int]:
    """Parameters of the layers whose outputs a policy term makes probabilities of, by id: where the
    policy is the softmax of action values, it trains them rightly."""
    normalised = [each for each in every_node(nodes) if NORMALISES.fullmatch(each.name())]
    found = set[int]()
    waiting = [child for each in normalised for child, _ in children(each)]
    seen = set(waiting)
    while waiting and len(seen) < MOST_NODES:
        node = waiting.pop()
        leaves = [leaf for child, _ in children(node) if (leaf := _leaf(child)) is not None]
        found |= set(map(id, leaves))
        new = [] if leaves else [child for child, _ in children(node) if child not in seen]
        seen.update(new)
        waiting += new
    return found


def _leaf(node: Any) -> Tensor | None:
    """The parameter that a node hands on as it is."""
    while VIEWS.fullmatch(node.name()) and len(children(node)) == 1:
        node = children(node)[0][0]
    leaf = getattr(node, "variable", None)
    return leaf if isinstance(leaf, Tensor) else None


class TermLeaks:
    """Follows what policy terms leave in the heads of value terms until those are stepped."""

    def __init__(self, log: ProofLog) -> None:
        self._log = log
        self._names: Sequence[str] = ()
        self._parameters: Sequence[Tensor] = ()
        self._owner: Mapping[int, int] = {}
        self._heads: dict[int, str] = {}
        """Of value terms: the parameter, and the term's name."""
        self._reached: dict[str, set[int]] = {}
        """By policy term, since the last step."""
        self._waiting: list[_Leak] = []
        self._is_looked_at = False
        """The backward that comes next is that of the terms that were looked at last."""

    def scan(
        self, names: Sequence[str], parameters: Sequence[Tensor], owner: Mapping[int, int]
    ) -> None:
        """The parameters, and which optimizer steps each."""
        self._names, self._parameters, self._owner = names, parameters, owner
        self._heads.clear()
        self._forget()

    def look(self, terms: Collection[GraphTerm]) -> None:
        """The terms of a loss that is about to go backward."""
        if self._log.state(ID) == "found":
            return
        places = {id(p): i for i, p in enumerate(self._parameters)}
        self._forget_cleared()
        self._is_looked_at = True
        for term in terms:
            if term.role == "value":
                heads = [id(p) for p in value_heads(term.nodes)]
                self._heads.update({places[key]: term.name for key in heads if key in places})
        for term in terms:
            if term.role == "policy":
                below = leaves_of(term.nodes) - _logits_of(term.nodes)
                reached = {i for key, i in places.items() if key in below}
                self._reached.setdefault(term.name, set()).update(reached)
        self._waiting = [
            _Leak(name, value_term, place)
            for name, reached in self._reached.items()
            for place, value_term in self._heads.items()
            if place in reached
        ]

    @property
    def is_looking(self) -> bool:
        """Whether a backward can change what is known."""
        return self._is_looked_at or bool(self._waiting)

    def before_backward(self) -> None:
        """Gradients may have been cleared since a policy term reached them."""
        if not self._is_looked_at:
            self._forget_cleared()

    def after_backward(self) -> None:
        """That of the terms is over."""
        self._is_looked_at = False

    def stepping(self, optimizer: int) -> None:
        """An optimizer is about to use its gradients."""
        self._is_looked_at = False
        if not self._reached:
            return
        self._forget_cleared()
        leaks = [leak for leak in self._waiting if self._owner.get(leak.place) == optimizer]
        if leaks:
            self._tell(leaks[0])
        elif self._heads and self._reached:
            self._log.ok(ID)

    def stepped(self, optimizer: int) -> None:
        """What was in its gradients is used."""
        if not self._reached:
            return
        mine = {i for i, owner in self._owner.items() if owner == optimizer}
        self._reached = {name: left for name, i in self._reached.items() if (left := i - mine)}
        self._waiting = [leak for leak in self._waiting if leak.place not in mine]

    def _forget(self) -> None:
        self._reached, self._waiting = {}, []

    def _forget_cleared(self) -> None:
        """What was cleared since is nobody's. A sync, where a policy term reached a head."""
        if not self._waiting:
            return
        gone = {i for i in self._heads if _is_clear(self._parameters[i].grad)}
        self._waiting = [leak for leak in self._waiting if leak.place not in gone]
        for reached in self._reached.values():
            reached -= gone

    def _tell(self, leak: _Leak) -> None:
        name = self._names[leak.place]
        id, message = leak_words(leak.term, leak.value_term, name)
        self._log.found(id, message, term=leak.term, into=leak.value_term, parameter=name)


def leak_words(term: str, value_term: str, parameter: str) -> tuple[str, str]:
    """The id of the fact, and the fact in words."""
    return ID, (
        f"the term {term!r} reaches {parameter}, the head that {value_term!r} trains: what it is"
        " multiplied with was not detached"
    )


def _is_clear(gradient: Tensor | None) -> bool:
    return gradient is None or not bool(gradient.any())
