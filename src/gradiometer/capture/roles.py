"""What each parameter is for: actor, critic, the trunk both stand on, a copy that nobody trains.

What loss terms reach says it best: the actor is what the policy term reaches alone, the critic what
the value term does, the trunk both. Without terms it is read off the names that the public
libraries give (Stable-Baselines3, CleanRL, Spinning Up, RLlib, torchrl, rsl_rl, rl_games, skrl,
tianshou, TRL, rl4co). Copies (target networks) are told by name, or by being what no optimizer
holds and a trained module is the twin of.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from torch import Tensor

from gradiometer.doctor.terms import role_of

__all__ = ["ROLES", "Role", "copies_among", "is_copy", "roles_by_names", "roles_by_terms"]

Role = Literal["actor", "critic", "trunk", "target", "ent_coef"]
ROLES: tuple[Role, ...] = ("actor", "critic", "trunk", "target", "ent_coef")

COPY = {"target", "targ", "tgt", "ema", "old", "ref", "reference", "frozen", "shadow"}
CRITIC = {"critic", "critics", "value", "values", "vf", "qf", "qnet", "qvalue", "quantile"}
ACTOR = {"actor", "actors", "policy", "policies", "pi"}
WEAK_ACTOR = re.compile(
    r"(fc_|net_|head_)?(log_?)?(mu|mean|std|sigma|logits|dist)(_(net|layer|head|out|parameter))?\d*"
    r"|actions?_(net|head|layer|out|logits|mean|mu|dist)"
)
"""Also parts of other things: they count where no word of the others stands on the path."""
LETTER = re.compile(
    r"(fc|head|linear|out|net|layer)?_?[qv]s?\d*(_(head|nets?|networks?|layers?|out|func|function|fn"
    r"|stream|branch)\d*)?"
)
"""`q1`, `v`, `fc_v`, `q_network`, `v_head`; not `q_proj`."""
PLAIN = {"lm_head": "actor", "memory_a": "actor", "memory_c": "critic"}
"""TRL's head, and rsl_rl's recurrent memories."""
COEFFICIENT = re.compile(r"(log_)?(alpha|ent_coef|entropy_coef|temperature)")
ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
PROJECTIONS = {
    "value": {"key", "query", "receptance"},
    "v": {"k"},
    "q": {"k"},
}
"""Beside these they are projections of an attention, and no critic."""
PROJECTING = {"key", "query", "proj", "kv", "qkv", "lora"}
TENSOR = re.compile(r"(weight|bias)(_|$)")
"""A parameter of a layer: NoisyNet's `weight_sigma` is no actor."""


def roles_by_names(names: Sequence[str], copies: Collection[str] = ()) -> dict[str, Role]:
    """The role of each parameter that its path tells; none unless there are two roles, or all is
    the critic.

    `copies` are known to be such, whatever they are called.
    """
    beside = _children(names)
    marks = {name: _marks(name, beside) for name in names}
    containers = _containers(marks)
    found: dict[str, Role] = dict.fromkeys(copies, "target")
    for name in names:
        if name not in found and (role := _role(name, marks[name], containers)):
            found[name] = role
    kinds = set(found.values())
    several = len(kinds & {"actor", "critic", "target"}) > 1 and kinds & {"actor", "critic"}
    # a policy alone is `all` and a head alone says nothing of its body; Q-learning has no actor
    if not several and not (kinds == {"critic"} and len(found) == len(names)):
        return {}
    return {name: found.get(name, "trunk") for name in names}


def is_copy(part: str) -> bool:
    """Whether a module is called a copy of another: `q_target`, `ac_targ`, `policy_old`."""
    return bool(set(re.split(r"[_\d]+", part.lower())) & COPY)


Mark = tuple[str, Role]
"""A path that ends in a word of a role, and the role."""


def _marks(name: str, beside: Mapping[str, set[str]]) -> list[Mark]:
    """The words of roles on the path of a parameter, outermost first."""
    parts, found = name.split("."), list[Mark]()
    for place, part in enumerate(parts):
        if ATTENTION.search(part):
            break
        parent, last = ".".join(parts[:place]), place == len(parts) - 1
        if last and TENSOR.match(part):
            break
        role = _role_of_part(part, beside[parent])
        if role is not None:
            found.append((".".join(parts[: place + 1]), role))
    return found


def _role_of_part(part: str, beside: set[str]) -> Role | None:
    """What one part of a path says; a part with words of both (`actor_critic`) says nothing."""
    part = part.lower().lstrip("_")
    words = set(re.split(r"[_\d]+", part))
    if PROJECTIONS.get(part, set()) & beside or words & PROJECTING:
        return None
    critic = bool(words & CRITIC) or bool(LETTER.fullmatch(part))
    actor = bool(words & ACTOR)
    if PLAIN.get(part):
        return "actor" if PLAIN[part] == "actor" else "critic"
    return None if critic == actor else "critic" if critic else "actor"


def _containers(marks: Mapping[str, Sequence[Mark]]) -> set[str]:
    """Paths that hold both roles: a `policy` with a `value_net` inside is not the actor."""
    return {
        outer
        for each in marks.values()
        for place, (outer, role) in enumerate(each)
        if any(inner != role for _, inner in each[place + 1 :])
    }


def _role(name: str, marks: Sequence[Mark], containers: Collection[str]) -> Role | None:
    parts = [part.lower() for part in name.split(".")]
    if any(map(is_copy, parts)):
        return "target"
    if len(parts) <= 2 and any(COEFFICIENT.fullmatch(part) for part in parts):
        return "ent_coef"
    for path, role in reversed(marks):
        if path not in containers:
            return role
    told = [part for part in parts if not TENSOR.match(part) and not ATTENTION.search(part)]
    weak = any(WEAK_ACTOR.fullmatch(part.lstrip("_")) for part in told)
    return "actor" if weak else None


def _children(names: Iterable[str]) -> dict[str, set[str]]:
    """The parts right below each path."""
    found: dict[str, set[str]] = {}
    for name in names:
        parts = name.split(".")
        for place, part in enumerate(parts):
            found.setdefault(".".join(parts[:place]), set()).add(part.lower())
    return found


def roles_by_terms(
    reached: Mapping[str, Collection[int]], names: Sequence[str], copies: Collection[str] = ()
) -> dict[str, Role]:
    """The role of each parameter that the policy and value terms tell; none unless both have
    something of their own (a policy term that goes through the critic, as in SAC, tells nothing).

    `reached` has the parameters of each term. What neither reaches keeps what its name says.
    """
    of: dict[str, set[int]] = {"policy": set(), "value": set()}
    for term, indices in reached.items():
        kind = role_of(term)
        if kind is not None and kind in of:
            of[kind] |= set(indices)
    policy, value = of["policy"], of["value"]
    if not policy - value or not value - policy:
        return {}
    told: dict[str, Role] = {}
    for i, name in enumerate(names):
        if i in policy | value:
            told[name] = "trunk" if i in policy & value else "actor" if i in policy else "critic"
    by_name = roles_by_names(names, copies)
    return {name: role for name in names if (role := told.get(name) or by_name.get(name))}


def copies_among(parameters: Mapping[str, Tensor], held: Collection[int]) -> set[str]:
    """Parameters of modules that no optimizer holds and that have a trained twin beside them: the
    same names and shapes below another path."""
    if all(id(p) in held for p in parameters.values()):
        return set()
    paths: dict[str, list[str]] = {}
    for name in parameters:
        parts = name.split(".")
        for place in range(1, len(parts)):
            paths.setdefault(".".join(parts[:place]), []).append(name)

    def shape(path: str) -> frozenset[tuple[str, tuple[int, ...]]]:
        return frozenset((n[len(path) :], tuple(parameters[n].shape)) for n in paths[path])

    idle = {p for p, inside in paths.items() if not any(id(parameters[n]) in held for n in inside)}
    idle = {path for path in idle if path.rpartition(".")[0] not in idle}
    trained = {
        shape(path)
        for path, inside in paths.items()
        if path not in idle and all(id(parameters[n]) in held for n in inside)
    }
    return {name for path in idle if shape(path) in trained for name in paths[path]}
