from __future__ import annotations

import signal
import sqlite3
import time
from pathlib import Path

import pytest

from gradiometer.store.reader import load


def intact(folder: Path) -> bool:
    db = sqlite3.connect(folder / "run.db")
    (answer,) = db.execute("PRAGMA integrity_check").fetchone()
    db.close()
    return bool(answer == "ok")


@pytest.mark.slow
def test_a_killed_process_loses_at_most_the_last_second(folder: Path, start) -> None:
    process = start(
        """
        writer = Writer(folder)
        for step in range(100_000):
            writer.put(Row(step=step, wall_time=time.time(), values={"loss": 1.0}))
            if step % 100 == 0:
                print(time.time(), flush=True)
            time.sleep(0.002)
        """,
        folder,
    )
    process.stdout.readline()
    time.sleep(2)
    process.send_signal(signal.SIGKILL)
    last_put = float(process.communicate()[0].split()[-1])
    with load(folder) as run:
        wall_times = run.steps()["wall_time"]
        assert run.series("loss")[0].tolist() == list(range(len(wall_times)))
    assert wall_times[-1] > last_put - 1.0
    assert intact(folder)


def test_a_process_killed_after_a_flush_loses_nothing_and_can_be_resumed(
    folder: Path, execute
) -> None:
    killed = execute(
        """
        writer = Writer(folder)
        for step in range(50):
            writer.put(row(step))
        writer.flush()
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        folder,
    )
    assert killed.returncode == -signal.SIGKILL
    resumed = execute("with Writer(folder, resume=49) as writer: writer.put(row(50))", folder)
    assert resumed.returncode == 0, resumed.stderr
    with load(folder) as run:
        assert run.series("loss")[0].tolist() == list(range(51))
    assert [file.name for file in folder.iterdir()] == ["run.db"]


@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "raise ValueError('mine')"])
def test_a_script_that_forgets_to_close_still_ends_with_a_complete_file(
    folder: Path, execute, ending: str
) -> None:
    execute(f"writer = Writer(folder); writer.put(row(7)); writer.put(row(8))\n{ending}", folder)
    assert [file.name for file in folder.iterdir()] == ["run.db"]
    with load(folder) as run:
        assert run.newest_step == 8


def test_an_interrupt_during_training_keeps_what_was_put(folder: Path, start) -> None:
    process = start(
        "writer = Writer(folder); writer.put(row(7)); print('ready', flush=True); time.sleep(60)",
        folder,
    )
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=30)[1]
    with load(folder) as run:
        assert run.newest_step == 7


def test_closing_from_a_signal_handler_in_the_middle_of_putting_does_not_hang(
    folder: Path, start
) -> None:
    process = start(
        """
        writer = Writer(folder)
        def stop(number, frame):
            writer.close()
            sys.exit(0)
        signal.signal(signal.SIGTERM, stop)
        print("ready", flush=True)
        for step in range(10**9):
            writer.put(row(step))
            if step % 1000 == 0: writer.flush()
        """,
        folder,
    )
    process.stdout.readline()
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30)[1] == ""
    assert process.returncode == 0
    assert [file.name for file in folder.iterdir()] == ["run.db"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "leave", ["os._exit(0)", "sys.exit(0)", "del writer; import gc; gc.collect(); sys.exit(0)"]
)
@pytest.mark.parametrize("outlives", [False, True])
def test_a_forked_child_never_writes_and_does_no_harm(
    folder: Path, execute, leave: str, outlives: bool
) -> None:
    done = execute(
        f"""
        def start_child():
            read, write = os.pipe()
            pid = os.fork()
            if pid:
                os.close(read)
                return pid, write
            os.close(write)
            return 0, read
        writer = Writer(folder)
        for step in range(500):
            writer.put(row(step))
        writer.flush()
        child, pipe = start_child()
        if child == 0:
            writer.put(row(10_000))
            writer.set_facts({{"child": True}})
            writer.flush()
            if {outlives}: os.read(pipe, 1)      # until the parent closes its end, having closed the run
            writer.close()
            {leave}
        if not {outlives}: os.waitpid(child, 0)
        for step in range(500, 1000):
            writer.put(row(step))
        writer.close()
        os.close(pipe)
        if {outlives}: os.waitpid(child, 0)
        """,
        folder,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [file.name for file in folder.iterdir()] == ["run.db"]
    with load(folder) as run:
        assert run.series("loss")[0].tolist() == list(range(1000))
        assert "child" not in run.facts
    assert intact(folder)


def test_a_multiprocessing_worker_that_inherits_the_writer_does_no_harm(
    folder: Path, execute
) -> None:
    done = execute(
        """
        import multiprocessing
        def work(step): writer.put(row(step)); return step
        writer = Writer(folder)
        writer.put(row(1))
        with multiprocessing.get_context("fork").Pool(2) as pool:
            pool.map(work, range(10, 30))
        writer.put(row(2))
        writer.close()
        """,
        folder,
    )
    assert (done.returncode, done.stderr) == (0, "")
    with load(folder) as run:
        assert run.series("loss")[0].tolist() == [1, 2]


def test_a_full_disk_warns_once_counts_and_lets_the_training_go_on(folder: Path, execute) -> None:
    done = execute(
        """
        import resource, threading
        warnings.simplefilter("always")
        shown = []
        warnings.showwarning = lambda message, kind, *rest: shown.append((kind, threading.current_thread().name))
        writer = Writer(folder)
        writer.put(row(1))
        writer.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
        for step in range(2, 60):
            writer.put(row(step, **{str(index): 1.0 for index in range(500)}))
            writer.flush()
        full = writer.dropped
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        writer.put(row(100))
        writer.close()
        assert shown == [(GradiometerWarning, "MainThread")], shown
        assert 0 < full == writer.dropped < 58, (full, writer.dropped)
        print(full)
        """,
        folder,
    )
    assert (done.returncode, done.stderr) == (0, "")
    with load(folder) as run:
        assert run.newest_step == 100
        assert sum(event.detail["records"] for event in run.events("dropped")) == int(done.stdout)
        assert len(run.steps()["step"]) == 60 - int(done.stdout)
    assert intact(folder)


def test_a_disk_that_stays_full_does_not_keep_the_process_from_ending(
    folder: Path, execute
) -> None:
    done = execute(
        """
        import resource
        writer = Writer(folder)
        writer.put(row(1))
        writer.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))
        for step in range(2, 100):
            writer.put(row(step))
        """,
        folder,
    )
    assert done.returncode == 0
    assert done.stderr.count("GradiometerWarning") == 1
    with load(folder) as run:
        assert run.newest_step == 1


def test_a_folder_deleted_under_a_process_does_not_keep_it_from_ending(
    folder: Path, execute
) -> None:
    done = execute(
        """
        import shutil
        writer = Writer(folder)
        writer.put(row(1))
        writer.flush()
        shutil.rmtree(folder)
        writer.put(row(2))
        """,
        folder,
    )
    assert done.returncode == 0
    assert done.stderr.count("GradiometerWarning") == 1
    assert not folder.exists()


def test_writing_never_imports_torch(folder: Path, execute) -> None:
    done = execute(
        """
        from gradiometer.store import batches, facts
        with Writer(folder, facts=facts.collect({}, 1)) as writer: writer.put(row(1))
        load(folder).summaries()
        assert "torch" not in sys.modules
        """,
        folder,
    )
    assert (done.returncode, done.stderr) == (0, "")
