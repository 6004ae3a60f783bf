"""How many points fit: free memory of a machine and of a container, from made-up files; GPUs, clusters."""

import pytest

from pipelines.config_errors import ConfigError
from pipelines.studies import gpus, run
from pipelines.studies.budget import GIB, free_memory, workers
from pipelines.studies.run import Options
from tests.pipelines.studies.examples import small

V2 = ("memory.max", "memory.current", "memory.stat", "inactive_file")
V1 = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file")


@pytest.fixture
def machine(tmp_path):
    """A machine with 10 GiB free, and a container in it."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable:   {10 * GIB // 1024} kB\n")

    def free(names=(), most="max", used=0, cache=0):
        for name, content in zip(names, (most, used, f"anon 7\n{names[-1]} {cache}" if names else ""), strict=False):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(f"{content}\n")
        return free_memory(tmp_path / "meminfo", tmp_path)

    return free


def test_without_a_container_it_is_the_machines(machine):
    assert machine() == 10.0


@pytest.mark.parametrize("names", [V2, V1])
def test_a_containers_limit_counts_where_it_is_smaller(machine, names):
    assert machine(names, 4 * GIB, 1 * GIB) == 3.0
    assert machine(names, 4 * GIB, 3 * GIB, cache=2 * GIB) == 3.0  # of files that were written: it is given back
    assert machine(names, 40 * GIB, 1 * GIB) == 10.0
    assert machine(names, 4 * GIB, 5 * GIB) == 0.0


@pytest.mark.parametrize(("names", "none"), [(V2, "max"), (V1, 9223372036854771712)])
def test_a_container_without_a_limit_has_the_machines(machine, names, none):
    assert machine(names, none, 1 * GIB) == 10.0


def test_as_many_as_cores_and_memory_allow(monkeypatch):
    monkeypatch.setattr("pipelines.studies.budget.os.sched_getaffinity", lambda _: set(range(8)))
    assert workers(threads=2, memory=1.0, budget=100.0) == 4
    assert workers(threads=2, memory=1.0, budget=3.5) == 3
    assert workers(threads=16, memory=1.0, budget=100.0) == 1


def test_no_more_points_than_gpus(monkeypatch):
    monkeypatch.setattr("pipelines.studies.budget.os.sched_getaffinity", lambda _: set(range(8)))
    assert workers(threads=1, memory=1.0, budget=100.0, gpus=3) == 3
    assert workers(threads=1, memory=1.0, wanted=2, budget=100.0, gpus=3) == 2
    with pytest.raises(ConfigError, match=r"--workers 4: .* set --workers to at most 3, or compute\.device=cpu"):
        workers(threads=1, memory=1.0, wanted=4, budget=100.0, gpus=3)


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        (None, ["0", "1", "2"]),
        ("2, 0", ["2", "0"]),
        ("GPU-8932f937,MIG-7", ["GPU-8932f937", "MIG-7"]),
        ("1,-1,0", ["1"]),
        ("0,9,1", ["0"]),
        ("", []),
    ],
)
def test_what_cuda_may_use_of_three_gpus(tmp_path, monkeypatch, said, seen):
    driver, devices = tmp_path / "driver", tmp_path / "dev"
    devices.mkdir()
    for place, name in enumerate(("0000:01:00.0", "0000:02:00.0", "0000:03:00.0")):
        (driver / name).mkdir(parents=True)
        (devices / f"nvidia{place}").touch()
    (devices / "nvidiactl").touch()
    monkeypatch.delenv(gpus.VISIBLE, raising=False)
    if said is not None:
        monkeypatch.setenv(gpus.VISIBLE, said)
    assert gpus.visible(driver, devices) == seen
    assert gpus.visible(tmp_path / "no driver", devices) == [name for name in seen if not name.isdigit()]


def test_a_container_has_the_gpus_that_it_was_given(tmp_path, monkeypatch):
    monkeypatch.delenv(gpus.VISIBLE, raising=False)
    for place in range(8):
        (tmp_path / "driver" / str(place)).mkdir(parents=True)
    (tmp_path / "nvidia0").touch()
    assert gpus.visible(tmp_path / "driver", tmp_path) == ["0"]


def test_each_point_gets_as_many_gpus_as_it_has_processes():
    assert gpus.shares(["3", "1", "0"], 1) == ["3", "1", "0"]
    assert gpus.shares(["3", "1", "0", "5", "6"], 2) == ["3,1", "0,5"]
    assert gpus.shares(["3"], 2) == ["3"]
    assert gpus.shares([], 1) == [""]


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """Four points that ask for a device, on a machine with two GPUs, eight cores and 100 GiB."""
    monkeypatch.setattr(run, "visible", lambda: ["4", "7"])
    monkeypatch.setattr("pipelines.studies.budget.os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr("pipelines.studies.budget.free_memory", lambda: 100.0)

    def make(device, **options):
        study = small(tmp_path, overrides=[f"compute.device={device}"], seeds={"count": 1, "vary": "policy"})
        return run.prepare(study, Options(tmp_path, **options))

    return make


def test_points_that_compute_on_gpus_have_one_each(prepared):
    assert (prepared("cuda").gpus, prepared("cuda").workers) == (["4", "7"], 2)
    with pytest.raises(ConfigError, match="--workers 3"):
        prepared("cuda", workers=3).check_fits()
    with pytest.raises(ConfigError, match="--runner dask"):
        _ = prepared("cuda", runner="dask").gpus
    assert (prepared("cpu").gpus, prepared("cpu").workers) == ([], 4)
    assert prepared("cuda", runner="dask", address="tcp://a:1", workers=3).workers == 3


def test_a_cluster_is_not_asked_for_devices_and_memory_here(prepared, monkeypatch):
    """This machine has none of what the points need, and checks what their settings name."""
    monkeypatch.setattr("pipelines.studies.budget.free_memory", lambda: 0.1)
    monkeypatch.setattr(run, "check_runner", lambda kind: None)
    looked_at = []

    def no_device(compute):
        raise ValueError("no device")

    monkeypatch.setattr("pipelines.own_functions.check_own_functions", looked_at.append)
    monkeypatch.setattr("rloo_core.trainer.check_device", no_device)
    run.check(prepared("cuda", runner="dask", address="tcp://a:1", workers=3))
    assert looked_at
    with pytest.raises(ConfigError, match=r"may take 2\.0 GiB"):
        run.check(prepared("cpu", runner="dask"))
    monkeypatch.setattr("pipelines.studies.budget.free_memory", lambda: 100.0)
    with pytest.raises(ConfigError, match="no device"):
        run.check(prepared("cpu", runner="dask"))
