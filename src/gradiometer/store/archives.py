"""Logs that were packed: a compressed file is unpacked beside nobody's files, and read there."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from gradiometer.errors import NotARun, UsageError
from gradiometer.store.opening import open_bytes

__all__ = ["PACKED", "packed_as", "unpacked"]

OPENERS: dict[bytes, tuple[str, Any]] = {
    b"\x1f\x8b": ("gzip", gzip.open),
    b"BZh": ("bzip2", bz2.open),
    b"\xfd7zXZ": ("xz", lzma.open),
}
ZIP, ZSTD = b"PK\x03\x04", b"\x28\xb5\x2f\xfd"
PACKED = (".gz", ".bz2", ".xz", ".tgz", ".tbz2", ".txz", ".zip", ".tar")
BROKEN = (
    *(OSError, EOFError, ValueError, RuntimeError, lzma.LZMAError, zlib.error),
    *(tarfile.TarError, zipfile.BadZipFile),
)
LARGEST = 1 << 32
"""Bytes that a packed log may take on the disk while it is read."""
BLOCK = 1 << 20
TAR_AT = 257


def packed_as(start: bytes) -> str:
    """How a file is packed, by how it begins; empty when it is not."""
    for magic, (name, _) in OPENERS.items():
        if start.startswith(magic):
            return name
    if start.startswith(ZIP):
        return "zip"
    if start.startswith(ZSTD):
        return "zstd"
    return "tar" if start[TAR_AT : TAR_AT + 5] == b"ustar" else ""


@contextmanager
def unpacked(path: Path, kind: str) -> Iterator[Path]:
    """What is in a packed file, as a file or a folder that is gone afterwards."""
    if kind == "zstd":
        raise NotARun(f"{path} is not a run: it is compressed (zstd); unpack it first: zstd -d")
    with TemporaryDirectory(prefix="gradiometer-") as folder:
        try:
            inside = _unpack(path, kind, Path(folder))
        except BROKEN as problem:
            if isinstance(problem, FileNotFoundError | PermissionError | UsageError):
                raise
            raise NotARun(
                f"{path} is not a run: it is packed ({kind}) and cannot be unpacked"
                f" ({problem!s:.200}); copy it again"
            ) from problem
        yield inside


def _unpack(path: Path, kind: str, place: Path) -> Path:
    if kind == "zip":
        with open_bytes(path) as file, zipfile.ZipFile(file) as archive:
            listed = archive.infolist()
            return _members(path, place, ((each.filename, archive.open, each) for each in listed))
    if kind == "tar":
        return _tar(path, path, place)
    single = place / _without_suffix(path)
    opener = next(opener for name, opener in OPENERS.values() if name == kind)
    with open_bytes(path) as file, opener(file, "rb") as source, single.open("wb") as sink:
        _copy(source, sink, path, [0])
    with single.open("rb") as file:
        if packed_as(file.read(1 << 10)) == "tar":
            inside = place / "inside"
            inside.mkdir()
            return _tar(path, single, inside)
    return single


def _tar(path: Path, file: Path, place: Path) -> Path:
    with open_bytes(file) as opened, tarfile.open(fileobj=opened, mode="r:") as archive:
        files = [member for member in archive if member.isfile()]
        return _members(path, place, ((each.name, archive.extractfile, each) for each in files))


def _members(path: Path, place: Path, members: Any) -> Path:
    """Unpack the files of an archive under names that stay in the folder."""
    taken, made = [0], []
    for name, opened, member in members:
        parts = [part for part in Path(name).parts if part not in ("/", "..", ".")]
        if name.endswith("/") or not parts:
            continue
        target = place.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        with opened(member) as source, target.open("wb") as sink:
            _copy(source, sink, path, taken)
        made.append(target)
    return made[0] if len(made) == 1 else place


def _copy(source: IO[bytes], sink: IO[bytes], path: Path, taken: list[int]) -> None:
    while block := source.read(BLOCK):
        taken[0] += len(block)
        if taken[0] > LARGEST:
            raise UsageError(
                f"{path} takes more than {LARGEST >> 30} GB unpacked: unpack it, and give the log"
            )
        sink.write(block)


def _without_suffix(path: Path) -> str:
    return path.stem if path.suffix in PACKED else path.name
