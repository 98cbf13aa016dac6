"""`gradiometer variance`: how much estimators' gradients vary, and how many rollouts are enough."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradiometer.cli.commands import VarianceRequest
from gradiometer.cli.labs import need_labs
from gradiometer.cli.lists import whole_numbers, words
from gradiometer.cli.printing import console, print_json, table
from gradiometer.cli.progress import progress_bar
from gradiometer.errors import MissingExtra, UsageError
from gradiometer.store.strictjson import to_json
from gradiometer.store.writer import keeps_nothing

if TYPE_CHECKING:
    from gradiometer.probes.replicates import OpenedPolicy, Replicates

__all__ = ["variance"]

SUFFIXES = (".json", ".jsonl", ".pkl")
RANDOM = "random"
"""In the place of a checkpoint: rl4co's own model for the problem, untrained."""
BASELINES = ("none", "sample_loo", "sample_loo_scaled", "subloo", "hybrid", "hybrid_source")
CURVES = ("rollouts", "k")


def variance(request: VarianceRequest) -> None:
    """Measure, print, keep in a run, and write the file that was asked for."""
    target, folder = _checked_target(request.save_path), _checked_run(request.run)
    algorithms, compare = words([request.algorithm]), words(request.compare)
    values = whole_numbers(request.values, option="--values")
    if len(algorithms) > 1:  # several algorithms are a comparison
        compare = words([*algorithms, *compare])
    _check(request, compare, values)
    names, studies = _curve(request, values) if request.curve else _studies(request, compare)
    extra = _extra(names, studies, compare=bool(compare), curve=request.curve, values=values)
    records = [study.record for study in studies]
    if target is not None:
        _save(target, records)
    if folder is not None:
        _keep(folder, studies, extra)
    if request.json:
        print_json({"run": None if folder is None else str(folder), "records": records, **extra})
        return
    _print(studies, extra, names)
    out = console()
    for kept in filter(None, (target, folder)):
        out.print(f"kept in {kept}")


def _check(request: VarianceRequest, compare: list[str], values: list[int]) -> None:
    curve = request.curve
    for name in ("num_loc", "num_instances", "batch_size", "num_replicates"):
        if getattr(request, name) < 1:
            raise UsageError(f"--{name} is 1 or more; found {getattr(request, name)}")
    if not 0 <= request.seed < 2**62:
        raise UsageError(f"--seed is a whole number from 0 to 2**62; found {request.seed}")
    if request.num_loc < 4:
        raise UsageError(
            f"--num_loc {request.num_loc} is too small for a choice of tours: use 4 or more"
        )
    for rollouts in [request.num_starts, *(values if curve == "rollouts" else [])]:
        if rollouts is not None and rollouts < 2:
            raise UsageError(
                f"{rollouts} rollouts of an instance have"
                " nothing to be compared with: use 2 or more"
            )
    for name in ("alpha", "lam"):
        if not math.isfinite(getattr(request, name)):
            raise UsageError(f"--{name} is a finite number; found {getattr(request, name)}")
    if curve and curve not in CURVES:
        raise UsageError(f"--curve is {' or '.join(CURVES)}; found {curve!r}")
    if curve and compare:
        raise UsageError("--curve and --compare cannot be combined")
    if curve and not values:
        raise UsageError("--curve needs --values, e.g. --curve rollouts --values 4 8 16")
    if (curve or compare) and not request.extended:
        raise UsageError("--curve and --compare need the extended pass: omit --no-extended")


def _opened(request: VarianceRequest, *, algorithm: str | None) -> OpenedPolicy:
    """A last.ckpt of the tsp lab, or a checkpoint that rl4co wrote; `algorithm=None` takes any."""
    path, library = request.ckpt_path, request.library
    if library not in ("auto", "gradiometer", "rl4co"):
        raise UsageError(f"--library is auto, gradiometer or rl4co; found {library!r}")
    if path != RANDOM and not Path(path).exists():
        raise UsageError(
            f"there is no checkpoint {path}: train one with `gradiometer train tsp run=runs/tsp`,"
            f" or take --ckpt_path {RANDOM} for an untrained policy of rl4co"
        )
    asked: dict[str, Any] = {
        "problem": request.problem,
        "num_loc": request.num_loc,
        "device": request.device,
        "num_starts": request.num_starts,
    }
    if path == RANDOM:
        from gradiometer.integrations import rl4co

        return rl4co.open_random(**asked)
    if library == "rl4co" or (library == "auto" and _is_of_rl4co(Path(path))):
        from gradiometer.integrations import rl4co

        return rl4co.open_checkpoint(path, trust=request.trust_checkpoint, **asked)
    need_labs(f"{path}, unless rl4co wrote it,")
    from gradiometer_labs.tsp.opened import open_checkpoint

    return open_checkpoint(path, algorithm=algorithm, **asked)


def _is_of_rl4co(path: Path) -> bool:
    """Whether the file names something of rl4co; nothing of it is run to find out."""
    import torch

    if path.is_dir():
        return False
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except (OSError, ValueError, RuntimeError):
        return False
    named = any(name.startswith("rl4co.") for name in names)
    if not named and not names and find_spec("rl4co") is not None:
        from gradiometer.integrations.rl4co import has_attention_policy

        return has_attention_policy(path)
    if named and find_spec("rl4co") is None:
        raise MissingExtra("rl4co", "rl4co", f"{path}, a checkpoint of rl4co,")
    return named


def _recipe(
    request: VarianceRequest, name: str, trained: dict[str, Any] | None = None
) -> tuple[str, dict[str, Any]]:
    """An estimator, or max@K with one of its baselines, and the options that it has.

    What is not asked for is as the checkpoint was `trained`, or else the default.
    """
    from gradiometer.maths import estimators

    algorithm = "maxk" if name in BASELINES else name
    found = estimators.find(algorithm)
    known = {"k": 8, "baseline": "none", **(trained or {})}
    given = {
        "k": known["k"] if request.k is None else request.k,
        "baseline": name if name in BASELINES else request.baseline or known["baseline"],
        "lam": request.lam,
        "alpha": request.alpha,
        "zscore": request.zscore,
        "min_gap": request.min_gap,
    }
    if found.name != "maxk":
        given.pop("baseline")
    takes = (*found.required, *found.options)
    return algorithm, {
        option: value
        for option, value in given.items()
        if option in takes and (option in found.required or value != found.options[option])
    }


def _study(
    request: VarianceRequest,
    opened: OpenedPolicy,
    name: str,
    progress: Callable[[int, int], None],
    *,
    swept: bool = False,
) -> Replicates:
    from gradiometer.probes.replicates import Recipe, label_of, study

    algorithm, options = _recipe(request, name, dict(opened.options))
    config = {
        **dataclasses.asdict(request),
        "problem": request.problem,
        "num_loc": request.num_loc,
        "ckpt_path": request.ckpt_path,
        "device": request.device,
        "num_starts": opened.rollouts,
        "library": opened.library,
        **opened.config,
        "conflicts": _conflicts(request, opened, algorithm, options),
    }
    return study(
        opened.load,
        opened.instances(request.num_instances, request.seed),
        Recipe(
            algorithm=algorithm,
            options=options,
            reduction=request.reduction,
            batch_size=request.batch_size,
        ),
        num_replicates=request.num_replicates,
        seed=request.seed,
        extended=request.extended,
        controls=request.controls,
        load_random=opened.load_random,
        iid=opened.iid,
        engine=request.engine,
        workers=request.workers,
        threads=request.threads,
        # In a sweep over rollouts the algorithm alone would be one name for several studies.
        label=label_of(algorithm, {**options, "rollouts": opened.rollouts}) if swept else None,
        config=config,
        progress=progress,
    )


def _conflicts(
    request: VarianceRequest, opened: OpenedPolicy, algorithm: str, options: dict[str, Any]
) -> list[str]:
    """Where what is measured is not what the checkpoint was trained with."""
    from gradiometer.maths import estimators

    trained = dict(opened.options)
    assumed = opened.config.get("assumed", [])
    found = [f"the checkpoint does not say {each}: rl4co's default is taken" for each in assumed]
    if trained and estimators.find(algorithm).name != "maxk":
        found.append(
            f"the checkpoint was trained with max@K (k={trained['k']}): this is the gradient of"
            f" {algorithm} at its policy"
        )
        return found
    known = {"k": 8, "baseline": "none", **options}
    for name, value in trained.items():
        if known[name] != value:
            found.append(
                f"the checkpoint was trained with {name}={value}; measured with"
                f" {name}={known[name]}, as asked"
            )
    return found


def _studies(request: VarianceRequest, compare: list[str]) -> tuple[list[str], list[Replicates]]:
    names = compare or [request.algorithm]
    for name in names:
        _recipe(request, name)  # an unknown one is told before anything is measured
    wanted = None if compare or request.any_algorithm else request.algorithm
    opened = _opened(request, algorithm=wanted)
    for name in names:
        _try(request, opened, name)
    studies = []
    for name in names:
        with _progress(name) as progress:
            studies.append(_study(request, opened, name, progress))
    return names, studies


def _try(request: VarianceRequest, opened: OpenedPolicy, name: str) -> None:
    """Try the estimator on zeros: what cannot be done is told before anything is measured."""
    import torch

    from gradiometer.maths import estimators

    algorithm, options = _recipe(request, name, dict(opened.options))
    zeros = torch.zeros(1, opened.rollouts)
    estimators.find(algorithm)(zeros, **options)


def _curve(request: VarianceRequest, values: list[int]) -> tuple[list[str], list[Replicates]]:
    curve = request.curve
    asked = [
        replace(request, num_starts=n) if curve == "rollouts" else replace(request, k=n)
        for n in values
    ]
    opened = [_opened(each, algorithm=None) for each in asked]
    for each, policy in zip(asked, opened, strict=True):
        _try(each, policy, request.algorithm)
    studies = []
    for value, each, policy in zip(values, asked, opened, strict=True):
        with _progress(f"{curve} {value}") as progress:
            studies.append(
                _study(each, policy, request.algorithm, progress, swept=curve == "rollouts")
            )
    return [f"{curve} {value}" for value in values], studies


def _extra(
    names: Sequence[str],
    studies: Sequence[Replicates],
    *,
    compare: bool,
    curve: str,
    values: list[int],
) -> dict[str, Any]:
    from gradiometer.probes.spread import compared, curve_of, sentence

    if curve:
        return {"curve": curve_of(curve, values, studies).plain()}
    if compare:
        rows = compared(studies, names)
        said = [sentence(row, rows[0]) for row in rows[1:]]
        return {"comparison": {"rows": [row.plain() for row in rows], "sentences": said}}
    return {}


def _print(studies: Sequence[Replicates], extra: dict[str, Any], names: Sequence[str]) -> None:
    out = console()
    ratios = [row["variance_ratio"] for row in extra.get("comparison", {}).get("rows", [])]
    columns = (
        ("tr Cov", "ratio", "SNR", "|ESS|", "s")
        if ratios
        else ("grad norm", "tr Cov", "SNR", "|ESS|", "s")
    )
    shown = zip(names, studies, ratios or [None] * len(studies), strict=True)
    rows = [_row(name, study, ratio) for name, study, ratio in shown]
    out.print(table("", *columns, rows=rows, right=columns))
    for line in extra.get("comparison", {}).get("sentences", []):
        out.print(line)
    if "curve" in extra:
        out.print(extra["curve"]["answer"])
    for line, whose in _notes(studies, names).items():
        out.print(f"{', '.join(whose)}: {line}")


def _notes(studies: Sequence[Replicates], names: Sequence[str]) -> dict[str, list[str]]:
    """What there is to know about the numbers, each said once, with whom it concerns."""
    found: dict[str, list[str]] = {}
    for name, study in zip(names, studies, strict=True):
        extended = study.record.get("extended", {})
        lines = [
            *extended.get("notes", []),
            *(f"biased by {source}" for source in extended.get("bias", [])),
            *study.record["config"].get("conflicts", []),
            *_scale_note(study),
        ]
        for control, numbers in extended.get("controls", {}).items():
            if numbers["snr"] is not None:
                lines.append(f"SNR {_interval(numbers['snr'])} with {control.replace('_', ' ')}")
        for line in lines:
            found.setdefault(line, []).append(name)
    return found


def _scale_note(study: Replicates) -> list[str]:
    scale = study.record["config"].get("gradient_scale")
    if scale in (None, 1.0):
        return []
    return [
        f"norms and traces are those of {_times(scale)} of its objective's gradient: its weights"
        " hold the 1/n already (--reduction source gives the whole); ratios are put right"
    ]


def _times(scale: float) -> str:
    return f"1/{1 / scale:.6g}" if scale < 1 else f"{scale:.6g} times"


def _row(name: str, study: Replicates, ratio: list[float | None] | None) -> tuple[str, ...]:
    extended, metrics = study.record.get("extended"), study.record["metrics"]
    norm, seconds = (
        f"{metrics['grad_norm_mean']:.3g} ± {metrics['grad_norm_std']:.2g}",
        f"{study.seconds:.1f}",
    )
    if extended is None:
        return name, norm, "-", "-", "-", seconds
    trace = "-" if extended["trace"] is None else f"{extended['trace']['value']:.3g}"
    scale = study.record["config"].get("gradient_scale", 1.0)
    whole = "" if scale == 1.0 else f" ({_times(scale)})"
    first = (norm + whole, trace) if ratio is None else (trace + whole, _ends(*ratio))
    return (
        name,
        *first,
        _interval(extended["snr"]),
        f"{extended['concentration']['ess_abs']:.3g}",
        seconds,
    )


def _ends(value: float | None, low: float | None, high: float | None) -> str:
    """The interval alone: a ratio of its middle says nothing more."""
    if value is None or low is None or high is None or low == high:
        return "-" if value is None else f"{value:.2g}"
    return f"{low:.2g}–{high:.2g}"


def _interval(found: dict[str, float | None] | None) -> str:
    if found is None or found["value"] is None:
        return "-"
    ends = "" if found["low"] is None else f" ({found['low']:.2g}–{found['high']:.2g})"
    return f"{found['value']:.2g}{ends}"


def _checked_target(save_path: str) -> Path | None:
    """Told before an hour of work, not after."""
    if not save_path:
        return None
    target = Path(save_path)
    if target.suffix not in SUFFIXES:
        raise UsageError(f"--save_path {save_path}: write {', '.join(SUFFIXES)} (.jsonl appends)")
    if target.is_dir():
        raise UsageError(f"--save_path {save_path} is a folder: name a file in it")
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _save(target: Path, records: Sequence[dict[str, Any]]) -> None:
    """One record as itself, several as a list (.jsonl: a line each); never half a file."""
    content: Any = records[0] if len(records) == 1 else list(records)
    partial = target.with_name(f".{target.name}.partial")
    try:
        if target.suffix == ".jsonl":
            _append(target, "".join(to_json(record) + "\n" for record in records))
            return
        if target.suffix == ".pkl":
            partial.write_bytes(pickle.dumps(content))
        else:
            partial.write_text(
                json.dumps(json.loads(to_json(content)), indent=2) + "\n", encoding="utf-8"
            )
        os.replace(partial, target)
    except OSError as problem:
        partial.unlink(missing_ok=True)
        raise UsageError(
            f"{target} cannot be written ({problem.strerror}): nothing of it was kept"
        ) from problem


def _append(target: Path, lines: str) -> None:
    """All of it or nothing: a line cut in half would swallow the next one."""
    before = target.stat().st_size if target.exists() else 0
    try:
        with target.open("ab") as file:
            if before and not target.read_bytes().endswith(b"\n"):
                file.write(b"\n")
            file.write(lines.encode())
    except OSError:
        if target.exists():
            os.truncate(target, before)
        raise


def _checked_run(run: str) -> Path | None:
    """Where the results go; a folder that is taken is told before anything is measured."""
    if keeps_nothing(run):
        return None
    if not run:
        return _free(Path("runs") / f"variance-{time.strftime('%Y%m%d-%H%M%S')}")
    folder = Path(run)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(
            f"--run {run} already exists: choose another folder,"
            " or leave it out for one by the time"
        )
    return folder


def _keep(folder: Path, studies: Sequence[Replicates], extra: dict[str, Any]) -> None:
    """Into a run, so that `show`, `plot` and the dashboard find it."""
    from gradiometer.probes.replicates import keep_replicates

    keep_replicates(folder, studies, extra)


def _free(folder: Path) -> Path:
    """Two questions in one second are two runs."""
    others = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([folder], others) if not each.exists())


@contextmanager
def _progress(label: str) -> Iterator[Callable[[int, int], None]]:
    with progress_bar(label) as show:
        yield lambda done, total: show(done, total, unit="tasks")
