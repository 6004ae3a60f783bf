# ruff: noqa: E501  (sentences on one line)
"""Plans: what is reused, what runs, and the reason that a person would give."""

from itertools import product

import pytest

from pipelines.config import load_settings
from pipelines.config_errors import ConfigError
from pipelines.plan import Planner, Selection, explain, make_plan
from pipelines.store import Store
from rloo_core.stages import STAGES


@pytest.fixture
def root(tmp_path):
    return tmp_path / "runs"


def settings_for(root, *overrides):
    return load_settings(["experiment=tiny", f"paths.root={root}", *overrides])


def pretend_to_run(root, *overrides, selection=None, same_output=False):
    """Run the selected stages without computing anything: each leaves its fingerprint as its output."""
    store = Store(root)
    planner = Planner(settings_for(root, *overrides), store, selection)
    manifests, ran = {}, []
    for name, stage in STAGES.items():
        planned = planner.resolve(name, {n: manifests[n] for n in stage.inputs if n in manifests})
        if planned.action == "run":
            ran.append(name)
            inputs = {n: manifests[n] for n in stage.inputs}
            output = "always the same" if same_output else planned.fingerprint
            (store.work(name, planned.fingerprint) / "output").write_text(output)
            manifests[name] = store.publish(
                name, planned.fingerprint, parts=planned.parts, inputs=inputs, summary={}, duration=0.0
            )
        elif planned.action == "reuse":
            manifests[name] = planned.manifest
    return ran


def plan(root, *overrides, **options):
    planned = make_plan(settings_for(root, *overrides), Store(root), options.pop("selection", None), **options)
    return {stage.name: (stage.action, stage.reason) for stage in planned}


def actions(root, *overrides, **options):
    return [action for action, _ in plan(root, *overrides, **options).values()]


def test_nothing_is_there_yet(root):
    assert plan(root) == {
        "data": ("run", "first run"),
        "sft": ("depends", "after data"),
        "reward_model": ("depends", "after sft"),
        "policy": ("depends", "after reward_model"),
        "evaluation": ("depends", "after policy"),
    }
    assert not root.exists()


def test_everything_is_there(root):
    assert pretend_to_run(root) == list(STAGES)
    assert actions(root) == ["reuse"] * 5
    assert pretend_to_run(root) == []


def test_a_changed_setting_runs_its_stage_and_what_reads_it(root):
    pretend_to_run(root)
    planned = plan(root, "algorithm.kl_coef=0.3")
    assert planned["policy"] == ("run", "algorithm.kl_coef 0.1 → 0.3")
    assert planned["evaluation"] == ("depends", "after policy")
    assert actions(root, "algorithm.kl_coef=0.3")[:3] == ["reuse"] * 3
    assert pretend_to_run(root, "algorithm.kl_coef=0.3") == ["policy", "evaluation"]
    assert actions(root) == ["reuse"] * 5  # and back


def test_a_stage_that_waits_tells_its_own_change_too(root):
    pretend_to_run(root)
    planned = plan(root, "sft.epochs=1", "algorithm.kl_coef=0.3")
    assert planned["sft"] == ("run", "sft.epochs 2.0 → 1.0")
    assert planned["policy"] == ("depends", "after reward_model; algorithm.kl_coef 0.1 → 0.3")


def test_the_reason_compares_with_the_most_similar_result(root):
    pretend_to_run(root)
    pretend_to_run(root, "algorithm.kl_coef=0.3", "algorithm.steps=5", "algorithm.group_size=2")
    assert plan(root, "algorithm.kl_coef=0.2")["policy"] == ("run", "algorithm.kl_coef 0.1 → 0.2")
    many = plan(
        root, "algorithm.kl_coef=0.2", "algorithm.steps=9", "algorithm.group_size=8", "algorithm.temperature=0.5"
    )
    assert many["policy"][1].endswith(" and 1 more")


def test_the_same_bytes_stop_the_cascade(root):
    pretend_to_run(root, same_output=True)
    assert pretend_to_run(root, "sft.epochs=1", same_output=True) == ["sft"]


def test_a_deleted_output_is_made_again(root):
    pretend_to_run(root)
    next((root / "store" / "sft").glob("*/output")).unlink()
    planned = plan(root)
    assert planned["sft"] == ("run", "output missing: output")
    assert planned["data"][0] == "reuse"
    assert pretend_to_run(root) == ["sft"]


def test_forced(root):
    pretend_to_run(root)
    planned = plan(root, selection=Selection(force=("sft",)))
    assert planned["sft"] == ("run", "forced")
    assert planned["reward_model"] == ("depends", "after sft")
    assert pretend_to_run(root, selection=Selection(force=("sft",))) == ["sft"]  # it came out the same
    both = plan(root, selection=Selection(force=("sft", "policy")))
    assert both["policy"] == ("run", "forced, after reward_model")


def test_until_leaves_out_what_comes_later(root):
    planned = plan(root, selection=Selection(until="sft"))
    assert planned["sft"] == ("depends", "after data")
    assert planned["reward_model"] == ("skip", "left out by --until sft")
    assert pretend_to_run(root, selection=Selection(until="sft")) == ["data", "sft"]


def test_only_and_from_reuse_what_they_read(root):
    pretend_to_run(root)
    assert actions(root, selection=Selection(only=("sft",))) == ["reuse", "reuse", "skip", "skip", "skip"]
    changed = plan(root, "algorithm.kl_coef=0.3", selection=Selection(from_stage="policy"))
    assert [action for action, _ in changed.values()] == ["reuse", "reuse", "reuse", "run", "depends"]


def test_only_without_its_inputs_names_the_command_that_makes_them(root):
    with pytest.raises(ConfigError) as caught:
        plan(root, selection=Selection(only=("policy",)), overrides=["experiment=tiny", "name=a b"])
    assert str(caught.value) == (
        "--only policy needs the output of data, which is not there for these settings (it never ran); "
        "make it with: rloo run experiment=tiny 'name=a b' --until reward_model"
    )


def test_from_refuses_a_change_upstream(root):
    pretend_to_run(root)
    with pytest.raises(ConfigError, match=r"--from policy needs the output of sft, .* \(sft\.epochs 2\.0 → 1\.0\)"):
        plan(root, "sft.epochs=1", selection=Selection(from_stage="policy"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"only": ("sfft",)}, "--only sfft: the stages are data, sft, reward_model, policy and evaluation; did you mean sft?"),
        ({"from_stage": "rm"}, "--from rm: the stages are"),
        ({"only": ("sft",), "until": "policy"}, "--only names the stages to run, so it does not go with --from or --until"),
        ({"from_stage": "policy", "until": "sft"}, "--from policy --until sft: policy comes after sft"),
        ({"only": ("sft",), "force": ("data",)}, "--force data, but --only sft leaves it out; the selected stages are sft"),
        ({"until": "sft", "force": ("policy",)}, "--force policy, but --until sft leaves it out; the selected stages are data and sft"),
    ],
)  # fmt: skip
def test_contradictions(options, sentence):
    with pytest.raises(ConfigError) as caught:
        Selection(**options)
    assert str(caught.value).startswith(sentence)


MAYBE = (None, *STAGES)


def test_every_combination_of_the_options_is_planned_or_refused(root):
    """Against what the options mean, written out again: 1,296 combinations, of which 106 make sense."""
    pretend_to_run(root)
    planner_settings, store, names = settings_for(root), Store(root), list(STAGES)
    sensible = 0
    for only, first, last, force in product(MAYBE, MAYBE, MAYBE, MAYBE):
        wanted = names[names.index(first or "data") : names.index(last or "evaluation") + 1]
        wanted = [name for name in wanted if only in (None, name)]
        contradiction = (only and (first or last)) or not wanted or (force and force not in wanted)
        options = {
            "only": (only,) if only else (),
            "from_stage": first,
            "until": last,
            "force": (force,) if force else (),
        }
        if contradiction:
            with pytest.raises(ConfigError):
                Selection(**options)
            continue
        sensible += 1
        expected, again = {}, {force}
        for name in names:
            after = again & set(STAGES[name].inputs)
            if name in wanted:
                expected[name] = "run" if name == force else "depends" if after else "reuse"
                again |= {name} if after else set()
            else:
                read = any(name in STAGES[each].inputs for each in wanted)
                expected[name] = "reuse" if read else "skip"
        found = {stage.name: stage.action for stage in make_plan(planner_settings, store, Selection(**options))}
        assert found == expected, options
    assert sensible == 106


def test_which_stages_are_selected():
    assert Selection().stages == tuple(STAGES)
    assert Selection(from_stage="sft", until="policy").stages == ("sft", "reward_model", "policy")
    assert Selection(only=("policy", "data")).stages == ("data", "policy")


def test_differences_in_words():
    before = {
        "settings/a.b": 0.05,
        "settings/c": None,
        "code/rloo_core.kl": "1",
        "files/data/x.csv": "1",
        "libraries/torch": "2.12",
    }
    after = {
        "settings/a.b": 0.1,
        "settings/c": True,
        "code/rloo_core.kl": "2",
        "files/data/x.csv": "2",
        "libraries/torch": "2.13",
    }
    assert explain(before, after) == [
        "a.b 0.05 → 0.1",
        "c null → true",
        "data file changed: x.csv",
        "code changed: rloo_core/kl.py",
        "torch 2.12 → 2.13",
    ]  # fmt: skip
    assert explain({}, {"files/model/w": "1", "inputs/sft": "2"}) == ["model file added: w", "input added: sft"]
    assert explain(after, after) == []
