"""`gradiometer analyze`: what each loss term does, at a checkpoint or at a lab's first step."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradiometer.cli.commands import AnalyzeRequest
from gradiometer.cli.labs import need_labs
from gradiometer.cli.printing import console, print_json, table
from gradiometer.errors import UnknownName, UsageError
from gradiometer.metrics import key
from gradiometer.words import number

if TYPE_CHECKING:
    from gradiometer.probes.anatomy import Anatomy

__all__ = ["analyze"]

USUALLY = ("trainer.gradient_analysis_null=true", "trainer.val_before_train=false")
"""Unless the overrides say otherwise."""
ONCE = (
    "trainer.gradient_analysis_mode=true",
    "trainer.gradient_analysis_every=1",
    "trainer.exit_after_gradient_analysis=true",
)
"""Whatever the overrides say: this is what the command is."""
BUCKET_COLUMNS = ("rollouts", "tokens", "groups", "reward std")
TERM_COLUMNS = ("norm", "shuffled", "signal", "95 % interval", "SNR", "share")
CHECKPOINT = re.compile(r"global_step_(\d+)")


def analyze(request: AnalyzeRequest) -> None:
    """Probe once, with the shuffled-reward null beside each number; only the critic trains."""
    need_labs("`gradiometer analyze`")
    import gradiometer_labs as labs
    from gradiometer_labs.cli.train import prepared, training_bar

    target = request.target
    # A folder called like a lab is written ./sokoban
    is_folder = target not in labs.LABS and Path(target).is_dir()
    name, given = _of_checkpoint(Path(target)) if is_folder else _of_lab(target)
    overrides = [*given, *USUALLY, *request.overrides, *ONCE]
    config = prepared(name, overrides, config_name=request.config_name)
    with training_bar(name) as progress:
        result = labs.find(name).train(config, progress)
    if not result.analyses:
        raise UsageError(
            f"{target} gave no analysis: no training step was taken;"
            " leave out the trainer.* overrides"
        )
    step, found = next(iter(result.analyses.items()))
    if request.json:
        print_json(
            {
                "run": None if result.run is None else str(result.run),
                "step": step,
                "buckets": list(found.buckets),
                "terms": list(found.terms),
                "dead": list(found.dead),
                "metrics": found.metrics,
                "tables": found.tables,
            }
        )
        return
    _print(step, found, result.run)


def _of_lab(target: str) -> tuple[str, list[str]]:
    """A lab by name, probed at step 1."""
    import gradiometer_labs as labs

    if target not in labs.LABS:
        if "/" in target or CHECKPOINT.fullmatch(target):
            raise UsageError(
                f"no checkpoint at {target}: give a folder global_step_<N>, or a lab by name"
            )
        raise UnknownName(
            "lab",
            target,
            _with_analysis(),
            hint="Or give the folder of a checkpoint, global_step_<N>.",
        )
    if target not in _with_analysis():
        raise UsageError(
            f"the {target} lab has no groups of rollouts to analyse: use"
            f" {' or '.join(_with_analysis())}, or gm.anatomy(...) in your own training"
        )
    return target, ["trainer.total_training_steps=1"]


def _with_analysis() -> list[str]:
    import gradiometer_labs as labs

    return [lab.name for lab in labs.LABS.values() if lab.length_key.startswith("trainer.")]


def _of_checkpoint(folder: Path) -> tuple[str, list[str]]:
    """The checkpoint's own config, set to resume there and take the one step that probes."""
    place = folder.resolve()
    for each in (
        folder,
        place,
        place.parent,
    ):  # people point at global_step_100/actor, which has a config.json too
        found = CHECKPOINT.fullmatch(each.name)
        if found is not None:
            folder = each
            break
    if found is None or not (folder / "config.json").exists():
        numbered = [
            (each, CHECKPOINT.fullmatch(each.name)) for each in folder.glob("**/global_step_*")
        ]
        inside = {each: int(step[1]) for each, step in numbered if step is not None}
        newest = max(inside, key=lambda each: (inside[each], str(each)), default=None)
        hint = f"; did you mean {newest}, the newest in it?" if newest else ""
        raise UsageError(
            f"{folder} is not a checkpoint:"
            f" expected a folder global_step_<N> with a config.json{hint}"
        )
    import gradiometer_labs as labs
    from gradiometer_labs.config import overrides_of

    saved = _read(folder / "config.json")
    saved.pop("run", None)
    trainer = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={folder}"]
    length = [
        f"trainer.total_training_steps={int(found[1]) + 1}",
        "trainer.save_freq=-1",
        "trainer.test_freq=-1",
    ]
    unused = labs.find("sokoban").config().NO_EFFECT
    kept = [each for each in overrides_of(saved) if each.partition("=")[0] not in unused]
    return "sokoban", [*kept, *trainer, *length]


def _read(file: Path) -> dict[str, Any]:
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as problem:
        raise UsageError(
            f"{file} cannot be read ({problem}): the checkpoint is damaged, use an earlier one"
        ) from problem
    if not isinstance(saved, dict):
        raise UsageError(f"{file} is not the config of a checkpoint")
    return saved


def _print(step: int, found: Anatomy, run: Path | None) -> None:
    out = console()
    about = found.tables["anatomy"]
    out.print(
        f"step {step}: {about['kept_groups']} groups, {about['aggregation']},"
        f" {about['bucket_mode']} buckets from the lowest to the highest reward spread;"
        f" {about['vectors']} vectors, whole groups as units\n"
    )
    shown = [_bucket(found, bucket) for bucket in found.buckets]
    out.print(table("bucket", *BUCKET_COLUMNS, rows=shown, right=BUCKET_COLUMNS))
    for term in [term for term in found.terms if term != "null"]:
        out.print(
            table(
                term,
                *TERM_COLUMNS,
                rows=[_row(found, each, term) for each in found.buckets],
                right=TERM_COLUMNS,
            )
        )
    for term in found.dead:
        out.print(
            f"{term}: no gradient path to any parameter."
            " Look for no_grad, detach or .item() on its way."
        )
    out.print(f"\n{_verdict(found)}")
    if run is not None:
        out.print(f"kept in {run}; draw it with: gradiometer plot {run}")


def _bucket(found: Anatomy, bucket: str) -> tuple[str, ...]:
    names = ("sample_count", "token_count", "group_rv_count", "reward_std_min", "reward_std_max")
    values = [found.metrics[key(f"grad_norm/<bucket>/{name}", bucket=bucket)] for name in names]
    return (
        bucket,
        *(number(value) for value in values[:3]),
        f"{_short(values[3])} … {_short(values[4])}",
    )


def _row(found: Anatomy, bucket: str, term: str) -> tuple[str, ...]:
    def value(template: str) -> float | None:
        return found.metrics.get(key(template, bucket=bucket, term=term))

    low, high = (
        value("grad_norm/<bucket>/signal_low/<term>"),
        value("grad_norm/<bucket>/signal_high/<term>"),
    )
    return (
        bucket,
        _short(value("grad_norm/<bucket>/<term>")),
        _short(value("grad_norm/<bucket>/null/<term>")),
        _short(value("grad_norm/<bucket>/signal/<term>")),
        "-" if low is None or high is None else f"{_short(low)} … {_short(high)}",
        _short(value("grad_norm/<bucket>/snr/<term>"), "{:.2g}"),
        _short(value("grad_norm/<bucket>/share/<term>"), "{:.3f}"),
    )


def _short(value: float | None, shape: str = "{:.3g}") -> str:
    """Three digits: an interval should fit on the line."""
    return "-" if value is None else shape.format(value)


def _verdict(found: Anatomy) -> str:
    """One sentence on the task's gradient of the whole batch."""
    task = found.terms[0] if found.terms else "task"
    p_value = found.metrics.get(key("grad_norm/<bucket>/p_value/<term>", bucket="all", term=task))
    snr = found.metrics.get(key("grad_norm/<bucket>/snr/<term>", bucket="all", term=task))
    if p_value is None or snr is None:
        return "Too few groups to tell signal from noise: use 4 or more, better 32."
    told = "is above its noise" if p_value < 0.05 else "cannot be told from noise"
    return (
        f"The {task} gradient of this batch {told}:"
        f" SNR {number(snr)}, sign-flip p = {number(p_value)}."
    )
