"""The store: finished or not there at all, and never trusted blindly."""

import multiprocessing
import os
import shutil
import signal
import threading
import time
from datetime import UTC, datetime

import pytest

from pipelines.store import MANIFEST, Manifest, Store

FINGERPRINT = "f" * 32


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs")


def finish(store, files=None, stage="sft", fingerprint=FINGERPRINT, **known):
    work = store.work(stage, fingerprint)
    for name, content in (files or {"model/weights": "abc", "table": "12"}).items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(content)
    return store.publish(stage, fingerprint, **{"parts": {}, "inputs": {}, "summary": {}, "duration": 1.0} | known)


def test_what_is_published_is_found(store):
    data = finish(store, stage="data")
    made = finish(store, parts={"settings/sft.epochs": 1.0}, inputs={"data": data}, summary={"loss": 0.5}, run_id="r1")
    found, reason = store.find("sft", FINGERPRINT, verify=True)
    assert reason == ""
    assert found == made
    assert found.inputs == {"data": {"fingerprint": FINGERPRINT, "digest": data.digest}}
    assert (found.summary, found.parts, found.run_id) == ({"loss": 0.5}, {"settings/sft.epochs": 1.0}, "r1")
    assert (store.path("sft", FINGERPRINT) / "model/weights").read_text() == "abc"
    assert not (store.root / "work" / "sft" / FINGERPRINT).exists()


def test_nothing_is_found_before(store):
    assert store.find("sft", FINGERPRINT) == (None, "")
    store.work("sft", FINGERPRINT)
    assert store.find("sft", FINGERPRINT) == (None, "")


def test_a_missing_file_is_named(store):
    finish(store)
    (store.path("sft", FINGERPRINT) / "model/weights").unlink()
    assert store.find("sft", FINGERPRINT) == (None, "output missing: model/weights")


def test_a_pruned_output_is_known_as_such_until_it_is_made_again(store):
    finish(store)
    store.note_pruned("sft", FINGERPRINT)
    assert store.find("sft", FINGERPRINT)[1] == ""  # not yet
    shutil.rmtree(store.path("sft", FINGERPRINT))
    assert store.find("sft", FINGERPRINT) == (None, f"output pruned on {datetime.now(UTC):%Y-%m-%d}")
    assert store.find("sft", "0" * 32) == (None, "")
    finish(store)
    shutil.rmtree(store.path("sft", FINGERPRINT))  # by hand
    assert store.find("sft", FINGERPRINT) == (None, "")


def test_a_short_file_is_named(store):
    finish(store)
    (store.path("sft", FINGERPRINT) / "table").write_text("1")
    assert store.find("sft", FINGERPRINT) == (None, "output damaged: table has 1 bytes, not 2")


def test_other_content_of_the_same_size_is_noticed_by_its_time(store):
    finish(store)
    file = store.path("sft", FINGERPRINT) / "table"
    file.write_text("21")
    os.utime(file, ns=(1, 1))
    assert store.find("sft", FINGERPRINT) == (None, "output damaged: table has other content")


def test_other_content_of_the_same_size_and_time_is_noticed_by_verifying(store):
    made = finish(store)
    file = store.path("sft", FINGERPRINT) / "table"
    file.write_text("21")
    os.utime(file, ns=(1, made.files["table"].mtime_ns))
    assert store.find("sft", FINGERPRINT)[1] == ""
    assert store.find("sft", FINGERPRINT, verify=True)[1] == "output damaged: table has other content"


def test_a_copied_store_is_as_good(store, tmp_path):
    made = finish(store)
    shutil.copytree(store.root, tmp_path / "copy", copy_function=shutil.copyfile)
    assert Store(tmp_path / "copy").find("sft", FINGERPRINT)[0] == made


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"files": {}}'])
def test_a_damaged_manifest_is_no_manifest(store, content):
    finish(store)
    (store.path("sft", FINGERPRINT) / MANIFEST).write_text(content)
    assert store.find("sft", FINGERPRINT) == (None, "output damaged: manifest.json")
    assert store.manifests("sft") == []


def test_a_manifest_names_nothing_outside_its_directory(store):
    made = finish(store)
    with pytest.raises(ValueError, match="below its directory"):
        Manifest.from_json(made.to_json().replace("model/weights", "../weights"))


def test_the_digest_tells_names_and_bytes_and_nothing_else(store):
    first = finish(store)
    assert finish(store, fingerprint="a" * 32, duration=9.0, run_id="other").digest == first.digest
    assert finish(store, {"model/weights": "abd", "table": "12"}, fingerprint="b" * 32).digest != first.digest
    assert finish(store, {"model/w": "abc", "table": "12"}, fingerprint="c" * 32).digest != first.digest


def test_checkpoints_go_and_logs_do_not_count(store):
    files = {"table": "12", "checkpoints/step-1/state": "x", "logs/times": "now"}
    made = finish(store, files)
    assert set(made.files) == {"table"}
    assert (store.path("sft", FINGERPRINT) / "logs/times").read_text() == "now"
    assert not (store.path("sft", FINGERPRINT) / "checkpoints").exists()


def test_checkpoints_stay_until_the_output_is_in_its_place(store, monkeypatch):
    """Whoever is stopped while gigabytes are hashed goes on from them."""

    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("pipelines.store.write_atomically", full)
    with pytest.raises(OSError, match="No space"):
        finish(store, {"table": "12", "checkpoints/step-1/state": "x"})
    assert (store.work("sft", FINGERPRINT) / "checkpoints/step-1/state").read_text() == "x"


def test_a_forced_run_replaces_what_was_there(store):
    finish(store)
    made = finish(store, {"other": "xyz"})
    assert store.find("sft", FINGERPRINT, verify=True)[0] == made
    assert not (store.path("sft", FINGERPRINT) / "table").exists()
    assert list((store.root / "work" / "sft").iterdir()) == []


def test_a_forced_run_with_the_same_bytes_leaves_the_files_to_their_readers(store):
    finish(store, {"table": "12", "logs/times": "1"}, run_id="r1")
    inode = (store.path("sft", FINGERPRINT) / "table").stat().st_ino
    made = finish(store, {"table": "12", "logs/times": "2"}, run_id="r2")
    assert (store.path("sft", FINGERPRINT) / "table").stat().st_ino == inode
    assert (store.path("sft", FINGERPRINT) / "logs/times").read_text() == "2"
    assert store.find("sft", FINGERPRINT)[0] == made
    assert made.run_id == "r2"


def test_a_stage_that_left_nothing_is_an_error(store):
    store.work("sft", FINGERPRINT)
    with pytest.raises(ValueError, match="left no file"):
        store.publish("sft", FINGERPRINT, parts={}, inputs={}, summary={}, duration=0.0)


def test_links_are_refused(store, tmp_path):
    (tmp_path / "elsewhere").write_text("x")
    (store.work("sft", FINGERPRINT) / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="link is a link"):
        finish(store)


def test_the_run_can_be_noted_later(store):
    changed = store.set_run(finish(store), "r9")
    assert store.find("sft", FINGERPRINT)[0] == changed
    assert changed.run_id == "r9"


def test_manifests_come_newest_first(store):
    finish(store, fingerprint="a" * 32)
    time.sleep(0.002)
    finish(store, fingerprint="b" * 32)
    assert [manifest.fingerprint[0] for manifest in store.manifests("sft")] == ["b", "a"]


def test_two_runs_compute_a_stage_one_after_the_other(store):
    told, waits, got_it = [], threading.Event(), threading.Event()

    def second():
        with store.lock("sft", FINGERPRINT, lambda text: (told.append(text), waits.set())):
            got_it.set()

    with store.lock("sft", FINGERPRINT):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(60)
        assert not got_it.wait(0.1)
    thread.join(60)
    assert got_it.is_set()
    assert told == ["waiting: another run computes sft with the same settings"]


def test_different_stages_do_not_wait(store):
    with store.lock("sft", FINGERPRINT), store.lock("sft", "0" * 32), store.lock("data", FINGERPRINT):
        pass


def hold(root, ready):
    with Store(root).lock("sft", FINGERPRINT):
        ready.set()
        time.sleep(600)


def test_a_killed_holder_blocks_nobody(store):
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    holder = context.Process(target=hold, args=(store.root, ready))
    holder.start()
    assert ready.wait(60)
    os.kill(holder.pid, signal.SIGKILL)
    holder.join(60)
    with store.lock("sft", FINGERPRINT, lambda text: pytest.fail(text)):
        pass
