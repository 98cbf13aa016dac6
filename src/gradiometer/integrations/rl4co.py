"""rl4co: POMO checkpoints that it trained, with their multi-start rollouts and instances from its
own generator; and what of its modules is trained, for the callback of Lightning.

A checkpoint holds pickled objects, so opening it runs what it says: it is opened only when somebody
says that it is trusted. Before anything runs, the names in it are read, and a file that names
nothing of rl4co is refused.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Mapping
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

__all__ = [
    "MultiStart",
    "blocks",
    "has_attention_policy",
    "is_rl4co",
    "open_checkpoint",
    "open_random",
    "trained",
]

UNREADABLE = (AttributeError, ImportError, LookupError, TypeError, RuntimeError, pickle.PickleError)
FIRST_WEIGHT = "policy.encoder.init_embedding.init_embed.weight"
DEFAULT_HEADS = 8
"""rl4co's own default, where the width allows it; the shapes of the weights do not tell."""
HEAD_UNIT = 8
"""The width of a head is a multiple of this in rl4co."""
PROBLEMS = ("tsp", "cvrp", "op", "pctsp", "sdvrp", "pdp")
MAXK = ("k", "K", "max_k", "maxk", "maxk_k", "k_max")
"""What subclasses call the K of max@K."""
MAXK_BASELINES = ("none", "sample_loo", "sample_loo_scaled", "subloo", "hybrid", "hybrid_source")
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
    """A checkpoint of rl4co's POMO or a subclass; by default with the `num_starts` it was trained
    with.

    rl4co's trainer pickles whole objects, so opening such a file runs whatever is in it: only with
    `trust=True`. Where a subclass left environment and policy out of its hyper-parameters, the
    first is made anew by `problem` and `num_loc`, the second by the shapes of the weights.
    """
    names = _check_names(path := Path(path))
    if names and not trust:
        others = sorted(name for name in names if not name.startswith("rl4co."))
        raise UsageError(
            f"{path} holds pickled objects ({some(others, 4)}), and opening it runs whatever is in"
            " it: if you trust who made it, add --trust-checkpoint (trust=True)"
        )
    _check_starts(num_starts)
    hyper = _read(path, problem, num_loc)
    config = _config_of(path, hyper)
    for name, wanted in (("problem", problem), ("num_loc", num_loc)):
        if config[name] != wanted:
            raise UsageError(
                f"{path} was trained with {name} {config[name]}, not {wanted}: ask for"
                f" {config[name]}"
            )
    load = partial(_load, path, problem, num_loc)
    return _opened(hyper, load, num_starts, device, config)


def open_random(
    *, problem: str, num_loc: int, device: str, num_starts: int | None = None
) -> OpenedPolicy:
    """rl4co's own POMO for a problem as it is before any training: what a random policy's gradient
    varies by, without a checkpoint."""
    _need_rl4co("a random policy of rl4co")
    _check_starts(num_starts)
    hyper = _fresh(problem, num_loc)
    config = {
        "model": "POMO",
        "policy": type(hyper["policy"]).__name__,
        "problem": problem,
        "num_loc": num_loc,
        "trained_with": None,
    }
    return _opened(hyper, partial(_load_fresh, problem, num_loc), num_starts, device, config)


def _opened(
    hyper: dict[str, Any],
    load: Callable[..., Subject],
    num_starts: int | None,
    device: str,
    config: dict[str, Any],
) -> OpenedPolicy:
    env = hyper["env"]
    draw = partial(_draw, hyper["policy"], env.generator)
    starts = num_starts or hyper.get("num_starts") or env.get_num_starts(env.reset(draw(1, 0)))
    config["num_starts"] = starts
    ready = partial(load, starts, device)
    return OpenedPolicy(
        load=ready,
        load_random=partial(ready, fresh=True),
        instances=draw,
        config=config,
        library="rl4co",
        rollouts=starts,
        options=_estimator_of(hyper),
    )


def _check_starts(num_starts: int | None) -> None:
    if num_starts is not None and num_starts < 2:
        raise UsageError(
            "num_starts is 2 or more, for rollouts are compared with each other; found"
            f" {num_starts}"
        )


def _estimator_of(hyper: Mapping[str, Any]) -> dict[str, Any]:
    """K and baseline of a max@K subclass, whatever it calls them; nothing for plain POMO."""
    ks = [hyper[name] for name in MAXK if isinstance(hyper.get(name), int)]
    baselines = [
        value
        for name, value in hyper.items()
        if value in MAXK_BASELINES and ("baseline" in name or "variance" in name)
    ]
    if not ks:
        return {}
    return {"k": ks[0], **({"baseline": baselines[0]} if baselines else {})}


def _need_rl4co(what: str) -> None:
    try:
        import rl4co  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtra("rl4co", "rl4co", what) from error


def _check_names(path: Path) -> list[str]:
    """Nothing of the file is run here."""
    _need_rl4co("checkpoints of rl4co")
    check_torch(path)
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except (OSError, ValueError, RuntimeError, pickle.UnpicklingError) as error:
        raise UsageError(
            f"{path} is not a checkpoint: give a file that rl4co's trainer wrote"
        ) from error
    if not any(name.startswith("rl4co.") for name in names) and not has_attention_policy(path):
        raise UsageError(
            f"{path} is not a checkpoint of rl4co: it holds no environment or policy of rl4co"
        )
    return list(names)


def has_attention_policy(path: Path) -> bool:
    """Whether a file that pickles nothing holds the weights of a policy of rl4co's: a subclass may
    leave environment and policy out of its hyper-parameters."""
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    except Exception:  # of any bytes, torch raises nearly anything
        return False
    return isinstance(weights, Mapping) and any(name == FIRST_WEIGHT for name in weights)


def check_torch(path: Path) -> None:
    """Raise where torch cannot be relied upon to read a foreign file without running it."""
    version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if version < FIRST_TORCH:
        raise UsageError(
            f"{path} is not opened with torch {torch.__version__}: reading a checkpoint from"
            f" elsewhere safely takes {'.'.join(map(str, FIRST_TORCH))}; pip install -U torch"
        )


def _read(path: Path, problem: str, num_loc: int) -> dict[str, Any]:
    """What the trainer was made with; the policy among it has the trained weights."""
    try:
        with torch.random.fork_rng(devices=[]):  # an environment seeds torch when unpickled
            content = torch.load(path, map_location="cpu", weights_only=False)
            hyper = dict(content.get("hyper_parameters") or {})
            named = content["state_dict"].items()
            weights = {name[7:]: w for name, w in named if name.startswith("policy.")}
            hyper["env"] = hyper.get("env") or _environment(problem, num_loc)
            if not isinstance(hyper.get("policy"), nn.Module):
                hyper |= _policy_like(path, hyper, weights)
        hyper["policy"].load_state_dict(weights)
        return hyper
    except UNREADABLE as error:
        raise UsageError(
            f"{path} cannot be read as a checkpoint of rl4co's trainer: {error!r}"
        ) from error


def _environment(problem: str, num_loc: int) -> Any:
    from rl4co.envs import get_env

    try:
        return get_env(problem, generator_params={"num_loc": num_loc})
    except (AssertionError, LookupError, ValueError) as error:
        raise UsageError(
            f"--problem {problem}: rl4co has no such environment; try {', '.join(PROBLEMS)}"
        ) from error


def _policy_like(path: Path, hyper: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Any:
    """POMO's own policy with the sizes that the weights have; `assumed` is what they do not say."""
    from rl4co.models import POMO

    if FIRST_WEIGHT.removeprefix("policy.") not in weights:
        raise UsageError(f"{path} holds no weights of rl4co's attention policy")
    told = dict(hyper.get("policy_kwargs") or {})
    shapes = _sizes_of(weights)
    fits = (n for n in range(DEFAULT_HEADS, 0, -1) if shapes["embed_dim"] % (n * HEAD_UNIT) == 0)
    heads = told.get("num_heads") or next(fits, None)
    if heads is None:
        raise UsageError(
            f"{path} does not say how many heads its policy has, and its width"
            f" {shapes['embed_dim']} fits none: keep policy_kwargs among the hyper-parameters"
        )
    policy = POMO(hyper["env"], policy_kwargs={**told, **shapes, "num_heads": heads}).policy
    assumed = [] if "num_heads" in told else [f"num_heads={heads}"]
    return {"policy": policy, "assumed": assumed}


def _sizes_of(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    layers = {name.split(".")[3] for name in weights if name.startswith("encoder.net.layers.")}
    hidden = next(
        (len(w) for name, w in weights.items() if name.endswith("0.2.module.lins.0.weight")), 512
    )
    norms = [name for name in weights if ".normalizer." in name]
    batch = any(name.endswith("running_mean") for name in norms)
    return {
        "embed_dim": weights["decoder.project_node_embeddings.weight"].shape[1],
        "num_encoder_layers": len(layers),
        "feedforward_hidden": hidden,
        "normalization": "batch" if batch else "instance" if norms else "layer",
    }


def _fresh(problem: str, num_loc: int) -> dict[str, Any]:
    """The environment, and a policy that is the same each time: workers must agree."""
    from rl4co.models import POMO

    with torch.random.fork_rng(devices=[]):
        env = _environment(problem, num_loc)
        torch.manual_seed(0)
        try:
            policy = POMO(env).policy
        except (AssertionError, LookupError, NotImplementedError, TypeError, ValueError) as error:
            raise UsageError(
                f"--problem {problem}: rl4co's POMO has no policy for it ({error}); try"
                f" {', '.join(PROBLEMS)}"
            ) from error
    return {"env": env, "policy": policy}


def _load_fresh(
    problem: str, num_loc: int, num_starts: int, device: str, *, fresh: bool = False
) -> Subject:
    hyper = _fresh(problem, num_loc)
    if fresh:  # another one, so that the control is not the same policy
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            _renew(hyper["policy"])
    return _subject(hyper, num_starts, device)


def _config_of(path: Path, hyper: dict[str, Any]) -> dict[str, Any]:
    # Lightning does not write the name of the class; the arguments it was made with tell.
    made_with = {"num_starts", "num_augment", "first_aug_identity"}
    ours = _estimator_of(hyper)
    shared = hyper.get("baseline", "shared") == "shared" or hyper["baseline"] in MAXK_BASELINES
    if not shared or not (made_with <= hyper.keys() or ours):
        raise UsageError(
            f"{path} was trained with another algorithm than POMO: train it with rl4co.models.POMO"
            " or a subclass, and keep its arguments (save_hyperparameters)"
        )
    return {
        "model": "POMO",
        "policy": type(hyper["policy"]).__name__,
        "problem": hyper["env"].name,
        "num_loc": getattr(hyper["env"].generator, "num_loc", None),
        "trained_with": "maxk_pomo" if ours else "pomo",
        **({"assumed": hyper["assumed"]} if hyper.get("assumed") else {}),
    }


def _load(
    path: Path, problem: str, num_loc: int, num_starts: int, device: str, *, fresh: bool = False
) -> Subject:
    hyper = _read(path, problem, num_loc)
    if fresh:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # workers must agree
            _renew(hyper["policy"])
    return _subject(hyper, num_starts, device)


def _subject(hyper: Mapping[str, Any], num_starts: int, device: str) -> Subject:
    policy = hyper["policy"].to(device).train()
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
