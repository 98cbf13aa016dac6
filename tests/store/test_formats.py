from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from pkgutil import iter_modules

import pytest

from gradiometer.errors import NotARun
from gradiometer.store import formats
from gradiometer.store.formats import called, log_format
from gradiometer.store.importers import load, logs_in
from gradiometer.store.logs import Log

NAME = "rewards.made-up"


@pytest.fixture
def made_up() -> Iterator[None]:
    """A format that exists for one test."""

    @log_format(
        "made-up",
        rank=25,
        title="a rewards.made-up",
        detect=lambda path, start: start.startswith(b"MADE UP"),
        find=called(NAME),
    )
    def read_made_up(path: Path) -> Log:
        numbers = path.read_text().split()[2:]
        rows = [(step, {"reward": float(number)}) for step, number in enumerate(numbers)]
        return Log(path, name=path.stem, run_id="0", rows=rows)

    formats.formats.cache_clear()
    yield
    del formats._registered["made-up"]
    formats.formats.cache_clear()


def test_every_file_of_the_folder_is_a_format_and_each_has_its_own_rank() -> None:
    known = formats.formats()
    files = {f"{formats.__name__}.{module.name}" for module in iter_modules(formats.__path__)}
    assert {each.read.__module__ for each in known} == files
    assert len({each.rank for each in known}) == len(known)
    assert [each.rank for each in known] == sorted(each.rank for each in known)


@pytest.mark.usefixtures("made_up")
def test_a_registered_format_is_known_by_its_content_found_in_folders_and_named_in_errors(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    (folder / NAME).write_text("MADE UP 1.5 2.5")
    (folder / "log.txt").write_text("MADE UP 7.0")
    assert load(folder).series("reward")[1].tolist() == [1.5, 2.5]
    assert load(folder / "log.txt").series("reward")[1].tolist() == [7.0]
    assert logs_in(tmp_path / "runs") == [folder]
    (tmp_path / "no.bin").write_bytes(b"\0\0")
    with pytest.raises(NotARun, match=r"a dynamics\.db, a rewards\.made-up, a trainer_state\.json"):
        load(tmp_path / "no.bin")


def test_without_it_nobody_reads_it(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("MADE UP 1.5 2.5")
    with pytest.raises(NotARun, match="not a run, nor a log that can be read"):
        load(tmp_path / NAME)
