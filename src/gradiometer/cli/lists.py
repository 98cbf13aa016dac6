"""Which word belongs to what: `--step 1 11`, `--step 1 --step 11` and `--step 1,11` are the same,
and what stands behind a script is the script's."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

from gradiometer.errors import UsageError

__all__ = ["ScriptLast", "StepLists", "WordLists", "whole_numbers", "words"]

NUMBERS = re.compile(r"\d+(,\d+)*,?")


class StepLists(TyperCommand):
    """A command whose `--step` takes all whole numbers behind it; a run called `7` is `./7`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Write `--step 1 11` as `--step 1 --step 11`, which the parser knows."""
        return super().parse_args(ctx, spelled_out(args, "--step"))


class ScriptLast(TyperCommand):
    """A command that takes a run or a script: what stands behind a script is the script's own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Write `train.py --seed 1` as `-- train.py --seed 1`, and `-m train` alike."""
        place = next((place for place, word in enumerate(args) if _is_program(args, place)), None)
        if place is not None and "--" not in args[:place]:
            args = [*args[:place], "--", *args[place:]]
        return super().parse_args(ctx, args)


def _is_program(args: list[str], place: int) -> bool:
    """Whether a file of Python or the word behind -m stands there."""
    return args[place].endswith(".py") or (place > 0 and args[place - 1] == "-m")


class WordLists(TyperCommand):
    """A command without arguments, whose list options take all the words behind them."""

    LISTS: tuple[str, ...] = ("--compare", "--values")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Write `--compare a b` as `--compare a --compare b`, and `--num-loc` as `--num_loc`."""
        known = {
            name
            for parameter in self.params
            for name in (*parameter.opts, *parameter.secondary_opts)
        }
        args = [underscored(word, known) for word in args]
        for option in self.LISTS:
            args = spelled_out(args, option, re.compile(r"[^-].*"))
        return super().parse_args(ctx, args)


def underscored(word: str, known: set[str]) -> str:
    """An option as the command knows it, if it does with underscores for hyphens."""
    name, equals, value = word.partition("=")
    other = "--" + name[2:].replace("-", "_")
    return (
        f"{other}{equals}{value}"
        if name.startswith("--") and name not in known and other in known
        else word
    )


def spelled_out(args: list[str], option: str, wanted: re.Pattern[str] = NUMBERS) -> list[str]:
    """The arguments with the option before each number (or other wanted word) that follows it."""
    words: list[str] = []
    listing = False
    for place, word in enumerate(args):
        if word == "--":
            return [*words, *args[place:]]
        behind = listing and wanted.fullmatch(word) is not None
        words += [option, word] if behind and words[-1] != option else [word]
        listing = behind or word == option or word.startswith(f"{option}=")
    return words


def words(texts: list[str]) -> list[str]:
    """The words of a list option, in order and each once."""
    return list(
        dict.fromkeys(word.strip() for text in texts for word in text.split(",") if word.strip())
    )


def whole_numbers(texts: list[str], *, option: str) -> list[int]:
    """The numbers of a list option, in order and each once."""
    found = words(texts)
    for word in found:
        if not re.fullmatch(r"\d+", word):
            raise UsageError(f"{option} {word}: expected a whole number, as in {option} 1 11 21")
    if texts and not found:
        raise UsageError(f"{option} needs a number, as in {option} 1 11 21")
    return list(dict.fromkeys(int(word) for word in found))
