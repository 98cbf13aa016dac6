"""A command with many options, as data: the fields of its request are its flags, and their words its help."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, get_type_hints

from typer import Option

__all__ = ["Request", "command_of"]


def flag(name: str, help: str, metavar: str | None = None) -> Any:
    """An option spelled with underscores, as the source does; `cli.lists.WordLists` takes hyphens too."""
    return Option(f"--{name}", help=help, metavar=metavar)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """How much a policy gradient varies over fresh samples; which estimator varies less, and is that significant?"""

    ckpt_path: Annotated[str, flag("ckpt_path", "The policy: last.ckpt of the tsp lab, or a checkpoint of rl4co.")]
    problem: Annotated[str, flag("problem", "What is solved.")] = "tsp"
    num_loc: Annotated[int, flag("num_loc", "Cities of an instance.")] = 20
    algorithm: Annotated[str, flag("algorithm", "Whose gradient: pomo, leader_reward, maxk_pomo, rloo, grpo, ...")] = (
        "pomo"
    )
    num_instances: Annotated[int, flag("num_instances", "Instances that the gradient averages.")] = 128
    batch_size: Annotated[int, flag("batch_size", "Instances of one forward.")] = 64
    num_replicates: Annotated[int, flag("num_replicates", "How often the gradient is taken.")] = 8
    seed: Annotated[int, flag("seed", "Of instances and samples; the source's replicate r takes seed + r.")] = 1234
    device: Annotated[str, flag("device", "Where the tensors live.")] = "cpu"
    save_path: Annotated[str, flag("save_path", "Also write the record: .json, .jsonl (appends) or .pkl.")] = ""
    k: Annotated[int | None, flag("k", "max@K: of how many rollouts the best counts; the checkpoint's, or 8.")] = None
    baseline: Annotated[
        str | None,
        flag("baseline", "max@K: none, sample_loo(_scaled), subloo, hybrid(_source); the checkpoint's, or none."),
    ] = None
    lam: Annotated[float, flag("lam", "hybrid: the share of subloo.")] = 0.5
    alpha: Annotated[float, flag("alpha", "leader_reward: the leader's bonus.")] = 1.0
    zscore: Annotated[bool, Option("--zscore", help="max@K: standardise the weights; biased.")] = False
    min_gap: Annotated[bool, Option("--min_gap", help="max@K: floor the gaps; biased.")] = False
    num_starts: Annotated[int | None, flag("num_starts", "Rollouts of an instance; the policy's own number else.")] = (
        None
    )
    reduction: Annotated[str, flag("reduction", "Over rollouts, for all estimators alike: mean or sum; or source.")] = (
        "mean"
    )
    compare: Annotated[
        list[str] | None, flag("compare", "Estimators, or baselines of max@K, side by side.", metavar="A B ...")
    ] = None
    curve: Annotated[str, flag("curve", "Sweep the rollouts, or K, over --values.", metavar="rollouts|k")] = ""
    values: Annotated[list[str] | None, flag("values", "What --curve goes through.", metavar="N ...")] = None
    engine: Annotated[str, flag("engine", "Where replicates run.", metavar="serial|processes|ray")] = "serial"
    workers: Annotated[int, flag("workers", "Processes, or CPUs of a local Ray.")] = 1
    threads: Annotated[int, flag("threads", "Threads of each replicate; another number rounds differently.")] = 1
    extended: Annotated[bool, Option("--extended/--no-extended", help="Traces, SNR and intervals.")] = True
    controls: Annotated[bool, Option("--controls/--no-controls", help="Shuffled rewards and a random policy.")] = True
    library: Annotated[str, flag("library", "Who wrote the checkpoint.", metavar="auto|gradiometer|rl4co")] = "auto"
    any_algorithm: Annotated[
        bool, Option("--any-algorithm", help="Also where the checkpoint was trained with another algorithm.")
    ] = False
    run: Annotated[str, flag("run", "Folder of the run; runs/variance-TIME unless told, none for none.")] = ""
    json: Annotated[bool, Option("--json", help="Print one JSON object and nothing else.")] = False


def command_of(request: type[Any], verb: str) -> Callable[..., None]:
    """A command whose options are the fields of a request, and which hands it to `cli.<verb>.<verb>`."""

    def command(**given: Any) -> None:
        getattr(import_module(f"gradiometer.cli.{verb}"), verb)(request(**given))

    hints = get_type_hints(request, include_extras=True)
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(request)
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {**hints, "return": None}
    command.__doc__ = request.__doc__
    return command
