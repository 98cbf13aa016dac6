"""`gradiometer experts`: do the experts learn different things, in words."""

from __future__ import annotations

import dataclasses
import textwrap

from rich.console import Console
from rich.text import Text

from gradiometer.cli.commands import ExpertsRequest
from gradiometer.cli.printing import console, print_json, table, warnings_in_a_line
from gradiometer.doctor.experts.answers import SENTENCES, Tone
from gradiometer.doctor.experts.judge import Answer, Answers, Number, judge
from gradiometer.doctor.experts.questions import plus_minus
from gradiometer.doctor.rundata import first_step
from gradiometer.errors import UsageError
from gradiometer.store.importers import Log, open_log
from gradiometer.store.reader import Run
from gradiometer.words import counted

__all__ = ["experts"]

MOST_ROWS = 8
STYLES: dict[Tone, str] = {"good": "green", "warn": "yellow", "bad": "red", "unsure": "dim"}
INSIDE = "log bottom/middle rms over expert 0's"
COLUMNS = {
    INSIDE: "bottom/middle",
    "log norm_per_weight over expert 0's": "norm/weight",
    "cos_to_0": "cosine to 0",
    "cos_mean": "cosine to all",
}
BRIEF = {
    "not waking up": "small",
    "waking up": "growing",
    "explained by routing": "routing",
    "collapses": "falls",
    "converged": "alike",
    "undecided": "?",
}


def experts(request: ExpertsRequest) -> None:
    """Judge a run or a log, and print the answers on one screen."""
    with warnings_in_a_line(), open_log(request.run) as run:
        answers = _judge(run, request.since)
        if request.json:
            print_json({"run": str(run.path), **dataclasses.asdict(answers)})
        else:
            _print(run.name, answers)


def _judge(run: Run | Log, since: int | None) -> Answers:
    try:
        return judge(run, first_step(since, run.newest_step))
    except UsageError as problem:
        # What the meter said when it looked for experts is the best hint there is.
        said = (
            [event.message for event in run.events("experts-missing")]
            if isinstance(run, Run)
            else []
        )
        hint = f". The run says: {said[0]}" if said else ""
        raise UsageError(f"{run.path}: {problem}{hint}") from problem


def _print(name: str, answers: Answers) -> None:
    out = console()
    places = f" in {len(answers.layers)} layers" if len(answers.layers) > 1 else ""
    steps = counted(answers.points, "measured step")
    seen = f"{steps}, {answers.first_step} to {answers.last_step}"
    _say(out, "", f"{name}: {len(answers.experts)} experts{places}, {seen}; {answers.reference}")
    for number, answer in enumerate(answers.answers, 1):
        _print_answer(out, number, answer)
    _print_table(out, answers)
    for line in (*answers.health, *answers.notes):
        _say(out, "", line)
    for advice in answers.next:
        _say(out, "try next: ", advice)


def _print_answer(out: Console, number: int, answer: Answer) -> None:
    out.print(f"{number}. {answer.question}")
    out.print(Text(f"   {SENTENCES[answer.verdict]}", style=STYLES[answer.tone]))
    _say(out, "   by norms: ", answer.source_reading)
    _say(out, "   adjusted: ", answer.sound_reading)
    for missing in answer.missing:
        _say(out, "   missing:  ", missing)


def _say(out: Console, head: str, text: str) -> None:
    """A paragraph whose further lines begin below its text."""
    wrapped = textwrap.wrap(
        text, max(30, out.width - len(head)), break_long_words=False, break_on_hyphens=False
    )
    out.print(head + f"\n{' ' * (len(head) or 3)}".join(wrapped), soft_wrap=True)


def _print_table(out: Console, answers: Answers) -> None:
    """An expert a row, each number with its interval; of many the furthest from expert 0 first."""
    numbers = {
        (item.name, item.expert): item for answer in answers.answers for item in answer.numbers
    }
    hidden = "cos_to_0" if answers.routing == "top-k" else "cos_mean"
    measured = {name for name, _ in numbers} - {hidden}
    columns = {name: title for name, title in COLUMNS.items() if name in measured}
    others = [expert for expert in answers.experts if expert != "0"]
    shown = (
        sorted(others, key=lambda e: -_strangeness(numbers, e))[:MOST_ROWS]
        if len(others) > MOST_ROWS
        else others
    )
    if not columns:
        return
    rows = [
        (e, *(_cell(numbers.get((name, e))) for name in columns), *_verdicts(answers, e))
        for e in shown
    ]
    titles = ("expert", *columns.values(), "by itself")
    _say(
        out,
        "",
        "log ratios to expert 0 in nats, ± half of the 95 % interval;"
        " each expert by itself on questions 1, 2, 3:",
    )
    out.print(table(*titles, rows=rows, right=columns.values()))
    if len(others) > len(shown):
        out.print(
            f"{len(others) - len(shown)} more experts, nearer to expert 0: --json has them all"
        )


def _cell(number: Number | None) -> str:
    return "-" if number is None else plus_minus(number)


def _verdicts(answers: Answers, expert: str) -> tuple[str]:
    found = [answer.experts[expert] for answer in answers.answers]
    return (" ".join(BRIEF.get(verdict, verdict) for verdict in found),)


def _strangeness(numbers: dict[tuple[str, str], Number], expert: str) -> float:
    inside = numbers.get((INSIDE, expert))
    return abs(inside.value) if inside else 0.0
