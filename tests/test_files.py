"""Files and folders: whole or not at all, one writer at a time, and nothing left behind by those who were killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from credo import _files
from credo._files import (
    atomic_file,
    check_folder_writable,
    check_replaceable,
    read_json,
    recover,
    to_json,
    write_folder,
    write_lock,
)
from credo.errors import InputError, LoadError

FILES = {"a.json": b"{}", "b.bin": b"1"}
BUSY = "is being written by another process or thread"
HOLD = """
import sys
from pathlib import Path
from credo._files import write_lock, _staging
with write_lock("run") as target, _staging(target) as staging:
    (staging / "half").write_text("written")
    print("held", flush=True)
    sys.stdin.read()
"""


def elsewhere(step):
    """What ``step`` returns in another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(step).result()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_second_writer_is_told_so(tmp_path):
    write_folder(tmp_path / "run", FILES)
    with write_lock(tmp_path / "run"):
        for write in (
            lambda: write_folder(tmp_path / "run", FILES),
            lambda: check_folder_writable(tmp_path / "run", FILES),
        ):
            with pytest.raises(InputError, match=BUSY):
                elsewhere(write)
        elsewhere(lambda: write_folder(tmp_path / "other", FILES))
        write_folder(tmp_path / "run", FILES)  # the holder itself may
        assert names(tmp_path) == [".run.credo-reserved", "other", "run"]
    elsewhere(lambda: write_folder(tmp_path / "run", FILES))
    assert names(tmp_path) == ["other", "run"]


def test_a_second_writer_of_a_file_is_told_so(tmp_path):
    with atomic_file(tmp_path / "a.csv") as part:
        part.write_text("mine")
        with pytest.raises(InputError, match=BUSY):
            elsewhere(lambda: atomic_file(tmp_path / "a.csv").__enter__())
    assert (tmp_path / "a.csv").read_text() == "mine"
    assert names(tmp_path) == ["a.csv"]


def test_many_writers_leave_one_whole_folder(tmp_path):
    """Each of them writes all of it or is refused; the lock's own file comes and goes without letting two in."""
    start = threading.Barrier(8)

    def write(k):
        start.wait()
        done = 0
        for _ in range(30):
            try:
                write_folder(tmp_path / "run", {"a.json": b"%d" % k, "b.bin": b"%d" % k})
                done += 1
            except InputError as error:
                assert BUSY in str(error)  # noqa: PT017
        return done

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(write, range(8))) > 0
    assert names(tmp_path) == ["run"]
    assert (tmp_path / "run" / "a.json").read_bytes() == (tmp_path / "run" / "b.bin").read_bytes()


def test_what_a_killed_process_held_is_free_and_tidied(tmp_path):
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=BUSY):
            write_folder(tmp_path / "run", FILES)
        process.kill()
    assert len(names(tmp_path)) == 2
    write_folder(tmp_path / "run", FILES)
    assert names(tmp_path) == ["run"]


def test_strays_of_killed_writers_are_removed_and_nothing_else(tmp_path):
    write_folder(tmp_path / "r[u]n", FILES)
    (tmp_path / ".r[u]n.credo-abcd1234").mkdir()
    (tmp_path / ".r[u]n.credo-abcd1234" / "a.json").touch()
    (tmp_path / ".r[u]n.credo-previous").mkdir()
    (tmp_path / ".r[u]n.credo-efgh5678").touch()
    (tmp_path / ".r[u]n.credo-reserved").touch()
    kept = [".r[u]n-mine", ".run.credo-abcd1234", ".other.credo-abcd1234"]
    for name in kept:
        (tmp_path / name).touch()
    write_folder(tmp_path / "r[u]n", FILES)
    assert names(tmp_path) == sorted([*kept, "r[u]n"])


def test_a_stray_file_in_a_folder_does_not_make_it_foreign(tmp_path):
    write_folder(tmp_path / "run", FILES)
    (tmp_path / "run" / ".b.bin.credo-abcd1234").touch()
    write_folder(tmp_path / "run", FILES)
    assert names(tmp_path / "run") == sorted(FILES)
    (tmp_path / "run" / ".hidden").touch()
    with pytest.raises(InputError, match=r"holds other things \(\.hidden\)"):
        check_replaceable(tmp_path / "run", FILES)


def test_a_reader_waits_for_a_writer_between_its_two_renames(tmp_path):
    target, previous, new = (tmp_path / name for name in ("run", ".run.credo-previous", "new"))
    new.mkdir()
    (new / "a.json").write_text("new")
    with ThreadPoolExecutor(1) as pool:
        with write_lock(target):
            previous.mkdir()
            found = pool.submit(recover, target)
            new.rename(target)
        assert found.result() == target
    assert (target / "a.json").read_text() == "new"


def test_folders_above_stay_only_if_something_was_written(tmp_path):
    with write_lock(tmp_path / "a" / "b" / "run"):
        assert (tmp_path / "a" / "b").is_dir()
    assert not names(tmp_path)
    write_folder(tmp_path / "a" / "b" / "run", FILES)
    assert names(tmp_path / "a" / "b") == ["run"]


LONGEST = 255 - len("..credo-12345678")


@pytest.mark.parametrize("write", [lambda p: write_folder(p, FILES), lambda p: check_folder_writable(p, FILES)])
@pytest.mark.parametrize("name", ["x" * (LONGEST + 1), "é" * (LONGEST // 2 + 1), "x" * 5000, "nul\0", "file/run"])
def test_names_that_cannot_be_written_are_refused(tmp_path, write, name):
    (tmp_path / "file").touch()
    with pytest.raises(
        InputError, match=r"cannot be written: (File name too long|.*file is not a folder)|is not a path"
    ):
        write(tmp_path / name)
    assert names(tmp_path) == ["file"]


def test_what_is_rehearsed_can_be_written(tmp_path):
    """The longest name for which the rehearsal succeeds also lasts through the writing."""
    target = tmp_path / ("x" * LONGEST)
    check_folder_writable(target, FILES)
    assert not names(tmp_path)
    write_folder(target, FILES)
    with atomic_file(tmp_path / ("y" * LONGEST)) as part:
        part.touch()
    assert len(names(tmp_path)) == 2
    for folder in ("/", tmp_path.anchor):
        with pytest.raises(InputError, match="cannot be written"):
            check_folder_writable(folder, FILES)


def test_a_pipe_is_not_replaced_by_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="a pipe or a device"), atomic_file(tmp_path / "pipe"):
        pass
    assert (tmp_path / "pipe").is_fifo()


def test_a_file_is_written_through_a_link(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "real")
    with atomic_file(tmp_path / "link") as part:
        part.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "real").read_text() == "new"


def test_where_there_are_no_locks_folders_are_written_all_the_same(tmp_path, monkeypatch):
    """As on some network drives; then nobody's temporary files are touched."""

    def unsupported(handle, operation):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(_files.fcntl, "flock", unsupported)
    (tmp_path / ".run.credo-abcd1234").touch()
    write_folder(tmp_path / ".run.credo-previous", FILES)
    assert (recover(tmp_path / "run") / "a.json").exists()
    write_folder(tmp_path / ".run.credo-previous", FILES)
    write_folder(tmp_path / "run", FILES)
    assert names(tmp_path) == [".run.credo-abcd1234", "run"]


@pytest.mark.parametrize("content", ["[]," * 2**20, "0," * (2**23 + 1)], ids=["lists", "values"])
def test_json_that_would_fill_the_memory_is_not_parsed(tmp_path, monkeypatch, content):
    (tmp_path / "a.json").write_text(f'{{"a": [{content}0]}}')
    monkeypatch.setattr("json.loads", None)
    with pytest.raises(LoadError, match="more lists, objects and values than credo writes"):
        read_json(tmp_path / "a.json")


def test_json_that_could_not_be_read_back_is_not_written(monkeypatch):
    assert b"\n" in to_json({"a": [1, 2]})
    monkeypatch.setattr(_files, "_INDENTED", 10)
    assert to_json({"a": [1, 2], "b": {}}) == b'{"a":[1,2],"b":{}}'
    monkeypatch.setattr(_files, "_LARGEST_JSON", 12)
    with pytest.raises(InputError, match="too large to be written as JSON"):
        to_json({"a": [1, 2], "b": {}})
