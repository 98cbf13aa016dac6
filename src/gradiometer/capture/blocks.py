"""Blocks of parameters: `all`, the named ones (actor, critic, ...), and one per layer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from gradiometer.capture.roles import ROLES, Role, roles_by_names
from gradiometer.errors import NothingToWatch, UnknownName, UsageError

__all__ = ["Blocks", "Model", "Selector", "find_blocks", "modules_of", "named_parameters"]

Model: TypeAlias = nn.Module | Mapping[str, nn.Module] | Sequence[nn.Module]
Selector: TypeAlias = str | nn.Module | Iterable[Tensor]

# Wrappers put these before every name; a run should read the same with and without them.
WRAPPERS = re.compile(r"^((module|_orig_mod)\.)+|(?<![^.])(_orig_mod|_fsdp_wrapped_module)\.")


@dataclass(frozen=True, slots=True)
class Blocks:
    """The parameters of each block; block i is `order[starts[i]:starts[i+1]]`."""

    names: tuple[str, ...]
    members: tuple[tuple[int, ...], ...]
    num_named: int
    """`all` and the named blocks come first, then the layers."""

    @property
    def named(self) -> dict[str, tuple[int, ...]]:
        """The members of `all` and of the named blocks."""
        return dict(zip(self.names, self.members[: self.num_named], strict=False))

    @property
    def layers(self) -> dict[str, tuple[int, ...]]:
        """The members of each layer."""
        return dict(zip(self.names[self.num_named :], self.members[self.num_named :], strict=True))

    def layers_inside(self, block: str) -> list[str]:
        """The layers that lie in a block as a whole."""
        members = set(self.members[self.names.index(block)])
        return [name for name, part in self.layers.items() if members.issuperset(part)]

    def order(self) -> NDArray[np.int64]:
        """All members one after the other."""
        return np.concatenate([np.asarray(part, dtype=np.int64) for part in self.members])

    def starts(self) -> NDArray[np.int64]:
        """Where each block begins in `order`."""
        return np.cumsum([0, *(len(part) for part in self.members[:-1])])


def modules_of(model: Model) -> dict[str, nn.Module]:
    """The watched modules by the prefix their parameters get: none for a single one."""
    if isinstance(model, nn.Module):
        return {"": model}
    keyed = model.items() if isinstance(model, Mapping) else enumerate(model)
    parts = {f"{key}.": part for key, part in keyed}
    for part in parts.values():
        if not isinstance(part, nn.Module):
            raise UsageError(
                f"watch() takes a torch.nn.Module or several of them; found {type(part).__name__}"
            )
    return parts


def named_parameters(model: Model) -> dict[str, nn.Parameter]:
    """Every parameter once, by its name without wrappers, after the key of its module."""
    found: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    for prefix, part in modules_of(model).items():
        for name, parameter in part.named_parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                clean = prefix + WRAPPERS.sub("", name)
                found[clean if clean not in found else prefix + name] = parameter
    if not any(parameter.requires_grad for parameter in found.values()):
        what = "all its parameters are frozen" if found else "it has no parameters"
        raise NothingToWatch(
            f"nothing to watch in {describe(model)}: {what}; set requires_grad on those you train"
        )
    return found


def describe(model: Model) -> str:
    """A word for the model in an error message."""
    if isinstance(model, nn.Module):
        return type(model).__name__
    return f"{len(model)} modules"


def find_blocks(
    parameters: Mapping[str, nn.Parameter],
    given: Mapping[str, Selector] | None,
    roles: Mapping[str, Role] | None = None,
) -> Blocks:
    """`all`, then the blocks given by the user, or by roles (read off the names where nothing is
    known of them), then the layers."""
    names = list(parameters)
    chosen = (
        by_role(roles_by_names(names) if roles is None else roles, names)
        if given is None
        else {key: select(key, it, parameters) for key, it in given.items()}
    )
    named = {"all": tuple(range(len(names))), **chosen}
    layers: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        layers.setdefault(f"layer.{layer_of(name)}", []).append(index)
    return Blocks(
        names=(*named, *layers),
        members=(*named.values(), *(tuple(part) for part in layers.values())),
        num_named=len(named),
    )


def layer_of(name: str) -> str:
    """The module that owns the parameter; a parameter of the model itself is its own layer."""
    return name.rpartition(".")[0] or name


def by_role(roles: Mapping[str, Role], names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The blocks of roles, those that hold anything."""
    found = {
        role: tuple(i for i, name in enumerate(names) if roles.get(name) == role) for role in ROLES
    }
    return {role: members for role, members in found.items() if members}


def select(
    block: str, selector: Selector, parameters: Mapping[str, nn.Parameter]
) -> tuple[int, ...]:
    """The parameters a pattern, a module or a list of parameters stands for."""
    if "/" in block or block == "all" or block.startswith("layer."):
        raise UsageError(
            f"block name {block!r} is reserved or holds a slash; choose a plain word such as"
            " 'actor'"
        )
    if isinstance(selector, str):
        return _select_by_pattern(block, selector, list(parameters))
    wanted = {
        id(p) for p in (selector.parameters() if isinstance(selector, nn.Module) else selector)
    }
    members = tuple(index for index, p in enumerate(parameters.values()) if id(p) in wanted)
    if not members:
        raise UsageError(
            f"block {block!r} shares no parameter with the watched model; give modules or"
            " parameters of it"
        )
    return members


def _select_by_pattern(block: str, pattern: str, names: list[str]) -> tuple[int, ...]:
    try:
        compiled = re.compile(pattern)
    except re.error as problem:
        raise UsageError(
            f"block {block!r}: {pattern!r} is not a regular expression ({problem})"
        ) from problem
    members = tuple(index for index, name in enumerate(names) if compiled.search(name))
    if not members:
        words = sorted({part for name in names for part in name.split(".")} | set(names))
        known = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise UnknownName(
            "block pattern", pattern, words, hint=f"Block {block!r} matches none of: {known}"
        )
    return members
