"""Two processes do what one does on the same batch: the same advantages, losses, gradients and metrics."""

import subprocess

import pytest
import torch

from rloo_core.stages.launch import launch_command, launch_environment
from tests.rloo_core import two_processes
from tests.rloo_core.two_processes import OFFLINE, ONLINE, Trained

TOLERANCE = {"float64": 1e-9, "float32": 1e-5}
ROUNDING = {"float64": 1e-8, "float32": 1e-3}  # of what follows from updates that differ by rounding
CASES = [(name, precision) for precision in TOLERANCE for name in (*ONLINE, *OFFLINE)]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """Every case in this process."""
    return two_processes.every_case(tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What both processes of one `accelerate launch` found, by process."""
    place = tmp_path_factory.mktemp("two")
    command = launch_command(place, 2, [two_processes.__file__, str(place)])
    done = subprocess.run(command, env=launch_environment(1), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    found = [torch.load(place / f"process-{rank}.pt", weights_only=True) for rank in (0, 1)]
    assert [each.pop("processes") for each in found] == [2, 2]
    return [{key: Trained(**case) for key, case in each.items()} for each in found]


def distance(found, expected):
    """Relative to what is expected; 0 where both are nothing."""
    return ((found - expected).norm() / expected.norm().clamp(min=1e-30)).item()


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_gradients_are_those_of_one_process(one, two, name, precision):
    """Of every update in float64. In float32 of the first: after it the weights themselves differ by rounding."""
    expected = one[name, precision].gradients
    largest = max(gradient.norm().item() for gradient in expected)
    assert largest > 1
    compared = len(expected) if precision == "float64" else 1
    assert compared == 1 or compared >= two_processes.STEPS
    for process in two:
        found = process[name, precision].gradients
        assert len(found) == len(expected)
        for a, b in list(zip(found, expected, strict=True))[:compared]:
            size = max(b.norm().item(), 1e-3 * largest)  # some updates are clipped away but for rounding
            assert (a - b).norm() / size < TOLERANCE[precision]


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_metrics_are_those_of_one_process(one, two, name, precision):
    """Losses, KL, lengths, clip fractions, ratios, value statistics, gradient norms: over all processes."""
    expected = one[name, precision].history
    assert len(expected[0]) > (10 if name in ONLINE else 3)
    for process in two:
        found = process[name, precision].history
        assert [sorted(row) for row in found] == [sorted(row) for row in expected]
        for a, b in zip(found, expected, strict=True):
            assert a == pytest.approx(b, rel=ROUNDING[precision], abs=ROUNDING[precision])


@pytest.mark.parametrize(("name", "precision"), [case for case in CASES if case[0] in ONLINE])
def test_advantages_are_those_of_one_process(one, two, name, precision):
    expected = one[name, precision].advantages
    assert len(expected) == two_processes.STEPS
    for process in two:
        for a, b in zip(process[name, precision].advantages, expected, strict=True):
            assert a.shape == b.shape
            assert distance(a, b) < ROUNDING[precision]


@pytest.mark.parametrize("name", ONLINE)
def test_processes_sample_what_one_process_samples(one, two, name):
    """Their random numbers are those of the place in the step: neither the same in both, nor others than one draws."""
    assert two[0][name, "float64"].completions == two[1][name, "float64"].completions
    found = [[(place, ids) for place, ids in step] for step in two[0][name, "float64"].completions]
    expected = [[(place, ids) for place, ids in step] for step in one[name, "float64"].completions]
    assert found == expected
    long = [tuple(ids) for step in found for _, group in step for ids in group if len(ids) > 3]
    assert len(long) > 5
    assert len(set(long)) == len(long)


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_both_processes_end_with_the_same_weights(two, name, precision):
    assert torch.equal(two[0][name, precision].weights, two[1][name, precision].weights)


def test_stopped_and_resumed_they_end_with_the_same_bits(two):
    """Policy, critic, both optimisers' moments, schedule: a checkpoint of two processes, taken up by two."""
    for process in two:
        whole, resumed = process["whole", "float32"], process["resumed", "float32"]
        assert torch.equal(resumed.weights, whole.weights)
        assert resumed.history == whole.history
        assert len(resumed.gradients) == len(whole.gradients) // two_processes.STEPS


def test_both_take_back_the_best_weights(two):
    """One writes them and both read them, stopped in between or not."""
    for process in two:
        expected, best = process["one step", "float32"], process["best", "float32"]
        assert torch.equal(best.weights, expected.weights)
        assert not torch.equal(best.gradients[0], best.weights)  # those of the last step
        assert best.history[0]["selected/step"] == 1
    assert torch.equal(two[0]["best", "float32"].weights, two[1]["best", "float32"].weights)
