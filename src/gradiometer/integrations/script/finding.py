"""The models of optimizers, found among the living modules, and names for everything that is trained."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer

from gradiometer.capture.blocks import Model, Selector, find_blocks, named_parameters
from gradiometer.integrations.script.naming import fresh, names_of, unwrapped

__all__ = ["Found", "held_by", "models_of", "without_superseded"]

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


def without_superseded(optimizers: list[Optimizer]) -> list[Optimizer]:
    """Without those whose parameters a later one holds: an optimizer that was made anew."""
    held = [held_by([one]).keys() for one in optimizers]
    return [one for i, one in enumerate(optimizers) if not any(held[i] <= later for later in held[i + 1 :])]


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
        return Found(model=roots[0], blocks=None, words=type(unwrapped(roots[0])).__name__)
    names = names_of([*roots, *loose])
    parts: dict[str, nn.Module] = {}
    for name, root in zip(names, roots, strict=False):
        if alone or _targets(root, trained):
            parts |= {part if alone else f"{name}.{part}": inner for part, inner in _spread(root, trained).items()}
        else:
            parts[name] = root
    for name, tensor in zip(names[len(roots) :], loose, strict=True):
        parts[fresh(name, parts)] = _holding({"value": tensor})
    roles = find_blocks(named_parameters(parts), None).num_named > 1
    blocks = dict(zip(names, roots, strict=False)) if len(roots) > 1 and not roles else None
    return Found(model=parts, blocks=blocks, words=", ".join(names))


def _targets(root: nn.Module, trained: frozenset[int]) -> set[str]:
    """Copies that nobody trains and whose gradients nobody misses; libraries leave `requires_grad` on in them."""
    copies = {name: part for name, part in root.named_children() if TARGET.search(name)}
    return {name for name, part in copies.items() if not any(id(p) in trained for p in part.parameters())}


def _spread(root: nn.Module, trained: frozenset[int]) -> dict[str, nn.Module]:
    """The parts of a module by name, without targets; a wrapper stays whole, for the meter must know it as one."""
    if unwrapped(root) is not root:
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


def _holding(tensors: dict[str, Tensor]) -> nn.Module:
    """A module of these; a plain tensor with requires_grad is no nn.Parameter, and SB3's and CleanRL's log α is one."""
    module = nn.Module()
    module._parameters.update(tensors)  # type: ignore[arg-type]
    return module
