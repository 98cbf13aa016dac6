"""The facts of a run: script, versions, commit, machine; never a secret."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gradiometer.extras import MISSING, extras, version_of
from gradiometer.store.strictjson import plain
from gradiometer.version import __version__

__all__ = ["collect", "redact", "redact_argv"]

REDACTED = "[redacted]"
GIT_SECONDS = 2.0

SECRET_KEY = re.compile(
    r"secret|passw(or)?d|passphrase|credential|authori[sz]ation|bearer|(api|access|private|auth|account|signing)[-_."
    r" ]?key",
    re.IGNORECASE,
)
TOKEN_KEY = re.compile(r"token$|^auth$", re.IGNORECASE)
VOCABULARY = re.compile(
    r"(bos|eos|pad|unk|sep|cls|mask|start|end|stop|image|video|audio|decoder|special|first|last|per|new)[-_."
    r" ]?token$",
    re.IGNORECASE,
)
"""Words of the model, which end like a secret and are none: pad_token, reward_per_token."""
SECRET_TEXT = re.compile(
    r"\b(hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{8,}|github_pat_\w{8,}|xox[a-z]-[\w-]{8,}|AKIA[A-Z0-9]{12,})"
)
URL_USER = re.compile(r"(\w://)[^/\s@]+@")
URL_OPTION = re.compile(r"([?&](?:ssl)?password=)[^&\s]+", re.IGNORECASE)


def collect(config: Mapping[str, Any] | None = None, seed: int | None = None) -> dict[str, Any]:
    """All that is worth knowing about this process, ready for JSON; what is unknown is absent."""
    known = {
        "script": sys.argv[0] if sys.argv else None,
        "argv": redact_argv(sys.argv),
        "cwd": str(Path.cwd()),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": _versions(),
        "git": _git(),
        "hardware": _hardware(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "config": None if config is None else redact(config),
    }
    return {key: value for key, value in known.items() if value is not None}


def redact(value: Any, key: str = "") -> Any:
    """The same value as JSON knows it, with what looks like a secret blotted out."""
    return _redact_plain(plain(value), key)


def redact_argv(argv: Sequence[str]) -> list[str]:
    """A command line without its secrets: `--token X`, `--token=X`, `api_key=X`, known patterns."""
    shown, owner = [], ""
    for word in argv:
        name, equals, value = word.partition("=")
        if equals and not _names_secret(owner):
            shown.append(_redact_text(name) + equals + _redact_plain(value, _option(name)))
        else:
            shown.append(_redact_plain(word, "" if word.startswith("-") else owner))
        owner = _option(word) if word.startswith("-") and not equals else ""
    return shown


def _redact_plain(value: Any, key: str) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if SECRET_KEY.search(key) or (isinstance(value, str) and _names_secret(key)):
        return REDACTED
    if isinstance(value, dict):
        return {_redact_text(name): _redact_plain(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_redact_plain(item, key) for item in value]
    return _redact_text(value) if isinstance(value, str) else value


def _names_secret(key: str) -> bool:
    return bool(SECRET_KEY.search(key) or (TOKEN_KEY.search(key) and not VOCABULARY.search(key)))


def _redact_text(text: str) -> str:
    text = URL_OPTION.sub(rf"\1{REDACTED}", SECRET_TEXT.sub(REDACTED, text))
    return URL_USER.sub(rf"\1{REDACTED}@", text)


def _option(word: str) -> str:
    return word.lstrip("-+~")


def _versions() -> dict[str, str]:
    """Of ours, and of what we can work with where the training has loaded it."""
    groups = (("numpy", "torch"), *extras().values())
    known = {name: name.replace("-", "_") for group in groups for name in group}
    loaded = {name: version_of(name) for name, module in known.items() if module in sys.modules}
    known = {name: found for name, found in loaded.items() if found != MISSING}
    return {"gradiometer": __version__} | known


def _git() -> dict[str, Any] | None:
    command = ["git", "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    # Without optional locks: a `git commit` in the next terminal must not find the index locked by
    # us.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            env=environment,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.splitlines()
    headers = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch."))
    return {
        "commit": headers.get("branch.oid"),
        "branch": headers.get("branch.head"),
        "dirty": any(not line.startswith("#") for line in lines),
    }


def _hardware() -> dict[str, Any]:
    hardware: dict[str, Any] = {"cpu": _cpu_model(), "cores": os.cpu_count()}
    if {"SC_PAGE_SIZE", "SC_PHYS_PAGES"} <= os.sysconf_names.keys():
        hardware["memory_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return hardware | _gpus()


def _cpu_model() -> str:
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        model = re.search(r"^model name\s*:\s*(.+)$", listing.read_text(), re.MULTILINE)
        if model:
            return model[1]
    return platform.processor() or platform.machine()


def _gpus() -> dict[str, list[str]]:
    # Only where CUDA is up already: asking would start it, and take memory and a moment from the
    # training.
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    count = torch.cuda.device_count()
    return {"gpus": [torch.cuda.get_device_name(index) for index in range(count)]}
