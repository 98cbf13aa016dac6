"""The application `gradiometer`, its panels, and how a request becomes a command.

A command is a request: a dataclass whose fields are arguments and options and whose docstring is
the help. Requests are light to import, so `--help` stays quick; what a verb does is the function of
its name in the file of its name, which takes the request and is imported when the verb runs.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from keyword import iskeyword
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo, OptionInfo

__all__ = ["DIAGNOSE", "LOOK", "MEASURE", "Json", "app", "command", "plain_call", "sign"]


class Verbs(TyperGroup):
    """Lists the verbs by panel in plain text: typer's way with rich loads half a second of Markdown
    for one page. A verb's own help is typer's."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Usage, what it is for, options, verbs."""
        super(TyperGroup, self).format_help(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """A section a panel."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, verb in self.commands.items():
            if not verb.hidden:
                panel = getattr(verb, "rich_help_panel", None) or "Commands"
                said = " ".join((verb.help or "").partition("\n\n")[0].split())
                panels.setdefault(panel, []).append((name, said))
        for panel, verbs in panels.items():
            with formatter.section(panel):
                formatter.write_dl(verbs, col_spacing=2 + WIDEST - max(len(v) for v, _ in verbs))


WIDEST = 10
"""Room for every verb, so that the sections line up."""

app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Find out why a policy does not learn: measures the gradients of PyTorch RL trainings.",
)

MEASURE, DIAGNOSE, LOOK = "Measure", "Diagnose", "Look"

Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]

T = TypeVar("T")


def command(
    panel: str, *, cls: type[TyperCommand] | None = None, **context_settings: bool
) -> Callable[[type[T]], type[T]]:
    """Make a command of a request: `DoctorRequest` is the verb `doctor`, of `cli/doctor.py`."""

    def register(request: type[T]) -> type[T]:
        verb = request.__name__.removesuffix("Request").lower()
        settings = context_settings or None
        if cls is None and not settings:
            PLAIN[verb] = request
        make = app.command(verb, cls=cls, rich_help_panel=panel, context_settings=settings)
        make(function := _function(request, verb))
        _unsigned.append((function, request))
        return request

    return register


_unsigned: list[tuple[Callable[..., None], type[Any]]] = []
"""Functions of verbs whose parameters typer cannot see yet."""


def sign() -> None:
    """Give the verbs their parameters, which the list of verbs does without: to read the types of
    two hundred takes as long as all else that it shows."""
    while _unsigned:
        function, request = _unsigned.pop()
        hints = get_type_hints(request, include_extras=True)
        parameters = [_parameter(each, hints[each.name]) for each in dataclasses.fields(request)]
        function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        function.__annotations__ = {**hints, "return": None}


PLAIN: dict[str, type[Any]] = {}
"""The requests of verbs whose arguments typer reads in its usual way."""


def plain_call(arguments: Sequence[str]) -> Callable[[], int | None] | None:
    """What `gradiometer VERB WORD...` calls, if there is nothing in it but words: typer is not
    asked then, which imports pydantic to read options (a tenth of a second)."""
    verb, *words = arguments or ("",)
    if verb not in PLAIN or not words or any(not word or word[0] == "-" for word in words):
        return None
    request = PLAIN[verb]
    hints = get_type_hints(request, include_extras=True)
    told = [(name, one) for name, hint in hints.items() for one in _said(hint)]
    takes = [name for name, one in told if isinstance(one, ArgumentInfo)]
    if len(takes) != 1 or any(one.envvar or one.callback for _, one in told):
        return None
    kind = get_args(hints[takes[0]])[0]
    if kind == list[str] and _is_enough(request, takes[0]):
        asked = request(**{takes[0]: words})
    elif kind is str and len(words) == 1 and _is_enough(request, takes[0]):
        asked = request(**{takes[0]: words[0]})
    else:
        return None
    name = f"{request.__module__.rpartition('.')[0]}.{_module(verb)}"
    return lambda: getattr(import_module(name), _module(verb))(asked)


def _said(hint: Any) -> list[Any]:
    """What typer is told of a parameter."""
    said = getattr(hint, "__metadata__", ())
    return [one for one in said if isinstance(one, ArgumentInfo | OptionInfo)]


def _is_enough(request: type[Any], argument: str) -> bool:
    return all(
        field.name == argument
        or field.default is not dataclasses.MISSING
        or field.default_factory is not dataclasses.MISSING
        for field in dataclasses.fields(request)
    )


def _module(verb: str) -> str:
    return f"{verb}_" if iskeyword(verb) else verb


def _function(request: type[Any], verb: str) -> Callable[..., None]:
    """What typer wants: a function; `sign` gives it a parameter for each field of the request."""
    name = _module(verb)
    package = request.__module__.rpartition(".")[0]

    def run(**given: Any) -> None:
        # typer gives None for a list of which nothing was said
        fields = dataclasses.fields(request)
        lists = {field.name for field in fields if field.default_factory is list}
        asked = {key: value or [] if key in lists else value for key, value in given.items()}
        code = getattr(import_module(f"{package}.{name}"), name)(request(**asked))
        if code:
            raise typer.Exit(code)

    run.__signature__ = inspect.Signature()  # type: ignore[attr-defined]
    run.__doc__, run.__name__ = request.__doc__, name
    return run


def _parameter(field: dataclasses.Field[Any], hint: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
    if field.default_factory is list:
        default = None
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint
    )
