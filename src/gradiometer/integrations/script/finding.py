"""The models of optimizers, found among the living modules, and names for everything that is trained."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from gradiometer.capture.blocks import Model, Selector, find_blocks, named_parameters

__all__ = ["Found", "held_by", "models_of"]

TARGET = re.compile(r"(^|_)(target|ema)(_|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What `watch` is given."""

    model: Model
    blocks: Mapping[str, Selector] | None
    """A block for each of several models whose parameters tell no roles; else None, and roles are read off the names."""
    words: str
    """For people."""


def held_by(optimizers: Iterable[Optimizer]) -> dict[int, Tensor]:
    """Every parameter of the optimizers, by id."""
    return {id(p): p for one in optimizers for group in one.param_groups for p in group["params"]}


def models_of(optimizers: Sequence[Optimizer]) -> Found:
    """The largest modules that hold parameters of the optimizers, and tensors that are no module's.

    A single model keeps its names. Of several, and of loose tensors, the script's own names stand before.
    """
    held = held_by(optimizers)
    trained = frozenset(held)
    roots: list[nn.Module] = []
    for root in _roots():
        if inside := held.keys() & {id(p) for p in root.parameters()}:
            roots.append(root)
            for key in inside:
                del held[key]
        if not held:
            break
    loose, alone = list(held.values()), len(roots) == 1
    if alone and not loose and not _targets(roots[0], trained):
        return Found(model=roots[0], blocks=None, words=type(_inner(roots[0])).__name__)
    names = _names([*roots, *loose])
    parts: dict[str, nn.Module] = {}
    for name, root in zip(names, roots, strict=False):
        if alone or _targets(root, trained):
            parts |= {part if alone else f"{name}.{part}": inner for part, inner in _spread(root, trained).items()}
        else:
            parts[name] = root
    for name, tensor in zip(names[len(roots) :], loose, strict=True):
        parts[_fresh(name, parts)] = _holding({"value": tensor})
    roles = find_blocks(named_parameters(parts), None).num_named > 1
    blocks = dict(zip(names, roots, strict=False)) if len(roots) > 1 and not roles else None
    return Found(model=parts, blocks=blocks, words=", ".join(names))


def _targets(root: nn.Module, trained: frozenset[int]) -> set[str]:
    """Copies that nobody trains and whose gradients nobody misses; libraries leave `requires_grad` on in them."""
    copies = {name: part for name, part in root.named_children() if TARGET.search(name)}
    return {name for name, part in copies.items() if not any(id(p) in trained for p in part.parameters())}


def _spread(root: nn.Module, trained: frozenset[int]) -> dict[str, nn.Module]:
    """The parts of a module by name, without targets; a wrapper stays whole, for the meter must know it as one."""
    if _inner(root) is not root:
        return {"model": root}
    out = _targets(root, trained)
    own = {name: _holding({"value": p}) for name, p in root.named_parameters(recurse=False)}
    return {**{name: part for name, part in root.named_children() if name not in out}, **own}


def _roots() -> list[nn.Module]:
    """Modules that are part of no other, largest first: what wraps a model comes before it."""
    kinds: dict[type, bool] = {}
    modules: list[nn.Module] = []
    for thing in gc.get_objects():
        kind = type(thing)  # and not isinstance: proxies answer that with work of their own
        if kind not in kinds:
            kinds[kind] = issubclass(kind, nn.Module)
        if kinds[kind] and "_modules" in vars(thing):
            modules.append(thing)
    inside = {id(child) for module in modules for child in module._modules.values() if child is not None}
    roots = [module for module in modules if id(module) not in inside]
    return sorted(roots, key=lambda module: -sum(1 for _ in module.parameters()))


def _inner(module: nn.Module) -> nn.Module:
    """What a wrapper of torch (DDP, compile) wraps: its name says more."""
    for name in ("module", "_orig_mod"):
        if type(module).__module__.startswith("torch.") and isinstance(inner := getattr(module, name, None), nn.Module):
            return _inner(inner)
    return module


def _holding(tensors: dict[str, Tensor]) -> nn.Module:
    """A module of these; a plain tensor with requires_grad is no nn.Parameter, and SB3's and CleanRL's log α is one."""
    module = nn.Module()
    module._parameters.update(tensors)  # type: ignore[arg-type]
    return module


def _names(things: Sequence[Any]) -> list[str]:
    """What the script calls them: its global variables, then attributes of its objects, then their class."""
    found: dict[int, str] = {}
    wanted = {id(thing) for thing in things}
    for names in (vars(sys.modules["__main__"]), *map(_attributes, gc.get_referrers(*things))):
        for name, value in list(names.items()):
            if id(value) in wanted and isinstance(name, str) and re.fullmatch(r"[A-Za-z]\w*", name):
                found.setdefault(id(value), name)
    taken: dict[str, None] = {}
    for thing in things:
        taken[_fresh(found.get(id(thing)) or _class_word(thing), taken)] = None
    return list(taken)


def _attributes(holder: Any) -> Mapping[Any, Any]:
    if type(holder) is dict:
        return holder
    try:
        return dict(vars(holder))
    except TypeError:  # a tuple, a list, a frame
        return {}


def _class_word(thing: Any) -> str:
    kind = "Parameter" if isinstance(thing, Tensor) else type(_inner(thing)).__name__
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind).lower()


def _fresh(name: str, taken: Mapping[str, object]) -> str:
    if name == "all":  # the block of all blocks
        name = "all_models"
    number, fresh = 1, name
    while fresh in taken:
        number += 1
        fresh = f"{name}_{number}"
    return fresh
