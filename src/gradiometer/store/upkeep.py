"""What happens to a run beside writing and reading: taking it back to an earlier step, and making it smaller."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from gradiometer.errors import NotARun, RunNotFound, UsageError
from gradiometer.store import database
from gradiometer.store.batches import forget_vectors
from gradiometer.store.dynamics import experts_of, recreate_view
from gradiometer.store.lock import WriterLock

__all__ = ["prune", "rewind"]


def prune(path: str | os.PathLike[str], *, keep: int) -> int:
    """Remove all but the last `keep` vectors of each name and give the space back; how many were removed."""
    if keep < 0:
        raise UsageError(f"keep={keep}: how many vectors of each name to keep cannot be negative")
    file = _file(Path(path))
    lock = WriterLock(file.parent)
    try:
        db = database.open_for_writing(file)
        try:
            removed = _forget_all(db, keep)
            db.execute("VACUUM")
        finally:
            database.finish(db)
    finally:
        lock.release()
    return removed


def rewind(db: sqlite3.Connection, step: int) -> dict[str, int]:
    """Remove everything beyond `step`; how much of each kind went."""
    removed = {"steps": 0, "points": 0, "tables": 0, "vectors": 0, "events": 0, "findings": 0}
    db.execute("BEGIN IMMEDIATE")
    try:
        # By series, because the key of points begins with it.
        for (series,) in db.execute("SELECT id FROM series").fetchall():
            removed["points"] += db.execute(
                "DELETE FROM points WHERE series_id = ? AND step > ?", (series, step)
            ).rowcount
        db.execute("DELETE FROM series WHERE NOT EXISTS (SELECT 1 FROM points WHERE series_id = series.id)")
        recreate_view(db, experts_of(name for (name,) in db.execute("SELECT name FROM series")))
        for table in ("steps", "tables", "vectors", "events"):
            removed[table] = db.execute(f"DELETE FROM {table} WHERE step > ?", (step,)).rowcount
        removed["findings"] = db.execute("DELETE FROM findings WHERE since_step > ?", (step,)).rowcount
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    return removed


def _file(path: Path) -> Path:
    file = path / database.DATABASE_NAME if path.is_dir() else path
    if not path.exists():
        raise RunNotFound(f"no run at {path}")
    if not file.exists() or not file.stat().st_size:
        raise NotARun(f"{path} is not a run: there is nothing in it to prune")
    return file


def _forget_all(db: sqlite3.Connection, keep: int) -> int:
    names = [name for (name,) in db.execute("SELECT DISTINCT name FROM vectors")]
    db.execute("BEGIN IMMEDIATE")
    try:
        removed = sum(forget_vectors(db, name, keep) for name in names)
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    return removed
