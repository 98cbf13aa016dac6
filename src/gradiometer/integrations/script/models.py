"""The models of optimizers, found among the living modules, and names for what is trained."""

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
from gradiometer.capture.living import living, outermost
from gradiometer.capture.roles import is_copy

__all__ = ["TrainedModels", "held_by", "models_of", "without_superseded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModels:
    """What `watch` is given."""

    model: Model
    blocks: Mapping[str, Selector] | None
    """One for each of several models without roles; None where roles are read off the names."""
    words: str
    """For people."""


def held_by(optimizers: Iterable[Optimizer]) -> dict[int, Tensor]:
    """Every parameter of the optimizers, by id."""
    return {id(p): p for one in optimizers for group in one.param_groups for p in group["params"]}


def without_superseded(optimizers: list[Optimizer]) -> list[Optimizer]:
    """Without those whose parameters a later one holds: an optimizer that was made anew."""
    held = [held_by([one]).keys() for one in optimizers]
    return [
        one
        for i, one in enumerate(optimizers)
        if not any(held[i] <= later for later in held[i + 1 :])
    ]


def models_of(optimizers: Sequence[Optimizer]) -> TrainedModels:
    """The largest modules that hold parameters of the optimizers, and tensors that are no module's.

    A single model keeps its names. Of several, and of loose tensors, the script's own names stand
    before.
    """
    held = held_by(optimizers)
    trained = frozenset(held)
    roots: list[nn.Module] = []
    for root in outermost(living(nn.Module)[nn.Module]):
        if inside := held.keys() & {id(p) for p in root.parameters()}:
            roots.append(root)
            for key in inside:
                del held[key]
        if not held:
            break
    loose, alone = list(held.values()), len(roots) == 1
    if alone and not loose and not _targets(roots[0], trained):
        return TrainedModels(model=roots[0], blocks=None, words=type(_unwrapped(roots[0])).__name__)
    names = _names_of([*roots, *loose])
    parts: dict[str, nn.Module] = {}
    for name, root in zip(names, roots, strict=False):
        if alone or _targets(root, trained):
            inner = _spread(root, trained)
            parts |= inner if alone else {f"{name}.{part}": x for part, x in inner.items()}
        else:
            parts[name] = root
    for name, tensor in zip(names[len(roots) :], loose, strict=True):
        parts[_fresh(name, parts)] = _holding({"weight": tensor})
    roles = find_blocks(named_parameters(parts), None).num_named > 1
    blocks = dict(zip(names, roots, strict=False)) if len(roots) > 1 and not roles else None
    return TrainedModels(model=parts, blocks=blocks, words=", ".join(names))


def _targets(root: nn.Module, trained: frozenset[int]) -> set[str]:
    """Copies that nobody trains; libraries leave `requires_grad` on in them."""
    copies = {name: part for name, part in root.named_children() if is_copy(name)}
    return {
        name
        for name, part in copies.items()
        if not any(id(p) in trained for p in part.parameters())
    }


def _spread(root: nn.Module, trained: frozenset[int]) -> dict[str, nn.Module]:
    """The parts of a module without targets; a wrapper stays whole, as the meter must see it."""
    if _unwrapped(root) is not root:
        return {"model": root}
    out = _targets(root, trained)
    own = {name: _holding({"weight": p}) for name, p in root.named_parameters(recurse=False)}
    return {**{name: part for name, part in root.named_children() if name not in out}, **own}


def _holding(tensors: dict[str, Tensor]) -> nn.Module:
    """A module of these; SB3's and CleanRL's log α is a plain tensor and no nn.Parameter. It is
    called a weight, which says nothing of a role, as `value` would."""
    module = nn.Module()
    module._parameters.update(tensors)  # type: ignore[arg-type]
    return module


def _unwrapped(module: nn.Module) -> nn.Module:
    """What a wrapper of torch (DDP, compile) wraps: its name says more."""
    for name in ("module", "_orig_mod"):
        if type(module).__module__.startswith("torch.") and isinstance(
            inner := getattr(module, name, None), nn.Module
        ):
            return _unwrapped(inner)
    return module


def _names_of(things: Sequence[Any]) -> list[str]:
    """What the script calls them: its global variables, else attributes, else their class."""
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
    kind = "Parameter" if isinstance(thing, Tensor) else type(_unwrapped(thing)).__name__
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind).lower()


def _fresh(name: str, taken: Mapping[str, object]) -> str:
    if name == "all":  # the block of all blocks
        name = "all_models"
    number, fresh = 1, name
    while fresh in taken:
        number += 1
        fresh = f"{name}_{number}"
    return fresh
