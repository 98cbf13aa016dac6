"""rl4co: POMO checkpoints that it trained, with their multi-start rollouts and instances from its
own generator; and what of its modules is trained, for the callback of Lightning.

A checkpoint holds pickled objects, so opening it runs what it says: it is opened only when somebody
says that it is trusted. Before anything runs, the names in it are read, and a file that names
nothing of rl4co is refused.
"""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradiometer.capture.blocks import Model, named_parameters
from gradiometer.errors import MissingExtra, UsageError
from gradiometer.probes.replicates import OpenedPolicy, Subject
from gradiometer.probes.stillness import held_still, seed_everything
from gradiometer.words import some

__all__ = ["MultiStart", "blocks", "is_rl4co", "open_checkpoint", "trained"]

UNREADABLE = (AttributeError, ImportError, LookupError, TypeError, RuntimeError, pickle.PickleError)
FIRST_TORCH = (2, 10)
"""Before it, what weights_only promises has been broken."""

BLOCKS = {
    "actor": r"policy\.",
    "encoder": r"policy\.encoder\.",
    "decoder": r"policy\.decoder\.",
    "critic": r"(baseline\.)*critic\.",
}


@dataclass(frozen=True, slots=True)
class MultiStart:
    """Instances in; rewards [b, n] and log-likelihoods [b, n] of n sampled rollouts with forced
    starts out.

    This is POMO's training step, so the policy is in training mode: with instance norm (POMO's
    default) nothing depends on the mode; with batch norm the gradient is the one training sees, and
    the probe puts the running statistics back.
    """

    policy: nn.Module
    env: Any
    num_starts: int
    device: str

    def __call__(self, batch: Any) -> tuple[Tensor, Tensor]:
        from rl4co.utils.ops import unbatchify

        self.policy.train()
        state = self.env.reset(batch.to(self.device))
        n = self.num_starts
        how = {"phase": "train", "decode_type": "multistart_sampling", "num_starts": n}
        out = self.policy(state, self.env, **how)
        return unbatchify(out["reward"], n), unbatchify(out["log_likelihood"], n)


def open_checkpoint(
    path: str | Path,
    *,
    problem: str,
    num_loc: int,
    device: str,
    num_starts: int | None = None,
    trust: bool = False,
) -> OpenedPolicy:
    """A checkpoint of rl4co's POMO; by default with the `num_starts` it was trained with.

    rl4co's trainer pickles whole objects, so opening such a file runs whatever is in it: only
    with `trust=True`.
    """
    names = _check_names(path := Path(path))
    if not trust:
        others = sorted(name for name in names if not name.startswith("rl4co."))
        raise UsageError(
            f"{path} holds pickled objects ({some(others, 4)}), and opening it runs whatever is in"
            " it: if you trust who made it, add --trust-checkpoint (trust=True)"
        )
    if num_starts is not None and num_starts < 2:
        raise UsageError(
            "num_starts is 2 or more, for rollouts are compared with each other; found"
            f" {num_starts}"
        )
    hyper = _read(path)
    config = _config_of(path, hyper)
    for name, wanted in (("problem", problem), ("num_loc", num_loc)):
        if config[name] != wanted:
            raise UsageError(
                f"{path} was trained with {name} {config[name]}, not {wanted}: ask for"
                f" {config[name]}"
            )
    draw = partial(_draw, hyper["policy"], hyper["env"].generator)
    env = hyper["env"]
    starts = num_starts or hyper["num_starts"] or env.get_num_starts(env.reset(draw(1, 0)))
    config["num_starts"] = starts
    load = partial(_load, path, starts, device)
    return OpenedPolicy(
        load=load,
        load_random=partial(load, fresh=True),
        instances=draw,
        config=config,
        library="rl4co",
        rollouts=starts,
    )


def _check_names(path: Path) -> list[str]:
    """Nothing of the file is run here."""
    try:
        import rl4co  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtra("rl4co", "rl4co", "checkpoints of rl4co") from error
    check_torch(path)
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except (OSError, ValueError, RuntimeError, pickle.UnpicklingError) as error:
        raise UsageError(
            f"{path} is not a checkpoint: give a file that rl4co's trainer wrote"
        ) from error
    if not any(name.startswith("rl4co.") for name in names):
        raise UsageError(
            f"{path} is not a checkpoint of rl4co: it holds no environment or policy of rl4co"
        )
    return list(names)


def check_torch(path: Path) -> None:
    """Raise where torch cannot be relied upon to read a foreign file without running it."""
    version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if version < FIRST_TORCH:
        raise UsageError(
            f"{path} is not opened with torch {torch.__version__}: reading a checkpoint from"
            f" elsewhere safely takes {'.'.join(map(str, FIRST_TORCH))}; pip install -U torch"
        )


def _read(path: Path) -> dict[str, Any]:
    """What the trainer was made with; the policy among it has the trained weights."""
    try:
        with torch.random.fork_rng(devices=[]):  # an environment seeds torch when unpickled
            content = torch.load(path, map_location="cpu", weights_only=False)
        hyper = dict(content["hyper_parameters"])
        named = content["state_dict"].items()
        weights = {name[7:]: w for name, w in named if name.startswith("policy.")}
        hyper["policy"].load_state_dict(weights)
        return hyper
    except UNREADABLE as error:
        raise UsageError(
            f"{path} cannot be read as a checkpoint of rl4co's trainer: {error!r}"
        ) from error


def _config_of(path: Path, hyper: dict[str, Any]) -> dict[str, Any]:
    # Lightning does not write the name of the class; the arguments it was made with tell.
    made_with = {"num_starts", "num_augment", "first_aug_identity"}
    if not made_with <= hyper.keys() or hyper.get("baseline") != "shared":
        raise UsageError(
            f"{path} was trained with another algorithm than POMO: train it with rl4co.models.POMO"
        )
    return {
        "model": "POMO",
        "policy": type(hyper["policy"]).__name__,
        "problem": hyper["env"].name,
        "num_loc": getattr(hyper["env"].generator, "num_loc", None),
    }


def _load(path: Path, num_starts: int, device: str, *, fresh: bool = False) -> Subject:
    hyper = _read(path)
    policy = hyper["policy"].to(device).train()
    if fresh:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # workers must agree
            _renew(policy)
    return Subject(policy, MultiStart(policy, hyper["env"].to(device), num_starts, device))


@torch.no_grad()
def _renew(policy: nn.Module) -> None:
    """Each module's own initialisation; loose parameters get a linear layer's, U(±1/√size)."""
    for part in policy.modules():
        for loose in part.parameters(recurse=False):
            loose.uniform_(-(loose.numel() ** -0.5), loose.numel() ** -0.5)
        if callable(reset := getattr(part, "reset_parameters", None)):
            reset()


def _draw(policy: nn.Module, generator: Any, number: int, seed: int) -> Any:
    with held_still(policy):  # generators draw from torch's and numpy's global states
        seed_everything(seed)
        return generator([number])


def is_rl4co(module: nn.Module) -> bool:
    """Whether it is one of rl4co's own or made of one: then every batch is a rollout."""
    return any(kind.__module__.partition(".")[0] == "rl4co" for kind in type(module).__mro__)


def trained(model: Any, module: nn.Module) -> Model:
    """`model`, without the copy of the policy that a rollout baseline keeps and nobody trains."""
    copied = any(re.match(r"(baseline\.)+policy\.", name) for name, _ in module.named_parameters())
    if model is not module or not copied or not is_rl4co(module):
        return model  # type: ignore[no-any-return]
    return {name: part for name, part in module.named_children() if name != "baseline"}


def blocks(model: Model, module: nn.Module) -> dict[str, str] | None:
    """Those of rl4co's networks that are there; None for a module that is not of rl4co."""
    names = list(named_parameters(model)) if is_rl4co(module) else []
    there = (b for b, words in BLOCKS.items() if any(re.match(words, name) for name in names))
    found = {block: f"^{BLOCKS[block]}" for block in there}
    if "critic" not in found:
        found.pop("actor", None)  # it is all there is
    return found or None
