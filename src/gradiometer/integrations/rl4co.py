"""POMO checkpoints that rl4co trained: the policy, its multi-start rollouts, and instances from its own generator.

Such a file holds pickled objects, so opening it runs what it says: open only files you trust. Before anything runs, the
names in it are read, and a file that names nothing of rl4co is refused.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradiometer.errors import GradiometerWarning, MissingExtra, UsageError
from gradiometer.probes.stillness import held_still
from gradiometer.probes.subject import Subject, seed_everything

__all__ = ["MultiStart", "Opened", "open_checkpoint"]

_TRUST = "weights_only=False, which runs whatever is in it: open only checkpoints you trust"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What a checkpoint offers. Send workers its loaders, which read the file again: rl4co's environment cannot be sent."""

    load: Callable[[], Subject]
    load_random: Callable[[], Subject]
    """The same architecture with fresh weights, the same ones each time."""
    instances: Callable[[int, int], Any]
    """Number and seed in, a TensorDict on the CPU out."""
    config: dict[str, Any]
    iid: bool = False
    """Each rollout of an instance is forced to start at a node of its own."""


@dataclass(frozen=True, slots=True)
class MultiStart:
    """Instances in; rewards [b, n] and log-likelihoods [b, n] of n sampled rollouts with forced starts out.

    This is POMO's training step, so the policy is in training mode: with instance norm (POMO's default) nothing depends on
    the mode; with batch norm the gradient is the one training sees, and the probe puts the running statistics back.
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
        out = self.policy(state, self.env, phase="train", decode_type="multistart_sampling", num_starts=n)
        return unbatchify(out["reward"], n), unbatchify(out["log_likelihood"], n)


def open_checkpoint(
    path: str | Path, *, problem: str, num_loc: int, device: str, num_starts: int | None = None
) -> Opened:
    """A checkpoint that Lightning wrote of rl4co's POMO; `num_starts` defaults to the checkpoint's, then the environment's."""
    _check_names(path := Path(path))
    if num_starts is not None and num_starts < 2:
        raise UsageError(f"num_starts is 2 or more, for rollouts are compared with each other; found {num_starts}")
    warnings.warn(f"{path} is read with {_TRUST}", GradiometerWarning, stacklevel=2)
    hyper = _read(path)
    config = _config_of(path, hyper)
    for name, wanted in (("problem", problem), ("num_loc", num_loc)):
        if config[name] != wanted:
            raise UsageError(f"{path} was trained with {name} {config[name]}, not {wanted}: ask for {config[name]}")
    draw = partial(_draw, hyper["policy"], hyper["env"].generator)
    starts = num_starts or hyper["num_starts"] or hyper["env"].get_num_starts(hyper["env"].reset(draw(1, 0)))
    config["num_starts"] = starts
    load = partial(_load, path, starts, device)
    return Opened(load=load, load_random=partial(load, fresh=True), instances=draw, config=config)


def _check_names(path: Path) -> None:
    """Nothing of the file is run here."""
    try:
        import rl4co  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtra("rl4co", "rl4co", "checkpoints of rl4co") from error
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except (OSError, ValueError, RuntimeError, pickle.UnpicklingError) as error:
        raise UsageError(f"{path} is not a checkpoint: give a file that rl4co's trainer wrote") from error
    if not any(name.startswith("rl4co.") for name in names):
        raise UsageError(f"{path} is not a checkpoint of rl4co: it holds no environment or policy of rl4co")


def _read(path: Path) -> dict[str, Any]:
    """What the trainer was made with; the policy among it has the trained weights."""
    try:
        with torch.random.fork_rng(devices=[]):  # an rl4co environment seeds torch when it is unpickled
            content = torch.load(path, map_location="cpu", weights_only=False)
        hyper = dict(content["hyper_parameters"])
        weights = {name[7:]: w for name, w in content["state_dict"].items() if name.startswith("policy.")}
        hyper["policy"].load_state_dict(weights)
        return hyper
    except (AttributeError, ImportError, KeyError, TypeError, RuntimeError, pickle.UnpicklingError) as error:
        raise UsageError(f"{path} cannot be read as a checkpoint of rl4co's trainer: {error!r}") from error


def _config_of(path: Path, hyper: dict[str, Any]) -> dict[str, Any]:
    # Lightning does not write the name of the class; the arguments it was made with tell.
    if not {"num_starts", "num_augment", "first_aug_identity"} <= hyper.keys() or hyper.get("baseline") != "shared":
        raise UsageError(f"{path} was trained with another algorithm than POMO: train it with rl4co.models.POMO")
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
    """Each module's own initialisation; parameters outside torch's modules get a linear layer's, U(±1/√size)."""
    for part in policy.modules():
        for loose in part.parameters(recurse=False):
            loose.uniform_(-(loose.numel() ** -0.5), loose.numel() ** -0.5)
        if callable(reset := getattr(part, "reset_parameters", None)):
            reset()


def _draw(policy: nn.Module, generator: Any, number: int, seed: int) -> Any:
    with held_still(policy):  # generators draw from torch's and numpy's global states
        seed_everything(seed)
        return generator([number])
