"""Reading a study: short forms, profiles, and a sentence for everything that can be wrong in its file."""

import pytest

from pipelines.config import load_settings
from pipelines.config_errors import ConfigError
from pipelines.config_overrides import last_of_each
from pipelines.studies.loading import load_definition, profile_names, study_names
from pipelines.studies.points import points_of
from tests.pipelines.studies.examples import CONTENT, small, study_file

AXES, MEASURES = CONTENT["axes"], CONTENT["measures"]
RLOO_3 = {"method": "rloo", "sigma": 3.0}


def claim(cell, **changed):
    return {"says": "It loses", "measure": "gold", "contrast": [{"weight": 1, "cell": cell}], "margin": 0.1} | changed


def problems(tmp_path, **given):
    with pytest.raises(ConfigError) as refused:
        small(tmp_path, **given)
    return [problem.replace(str(tmp_path), "") for problem in refused.value.problems]


def test_setting_and_values_stand_for_one_override_a_value(tmp_path):
    axis = small(tmp_path).axes["sigma"]
    assert axis.values == {"0.0": ("algorithm.reward_noise=0.0",), "3.0": ("algorithm.reward_noise=3.0",)}
    assert axis.at == {"0.0": 0.0, "3.0": 3.0}
    words = {"setting": "algorithm.ratio", "values": ["none", None, True]}
    axis = small(tmp_path, axes={"ratio": words}, measures={}).axes["ratio"]
    assert axis.values == {f"{v}": (f"algorithm.ratio={v}",) for v in ("none", "null", "true")}
    assert (axis.label, axis.at) == ("algorithm.ratio", {})


def test_cells_are_all_combinations_and_can_be_picked(tmp_path):
    study = small(tmp_path)
    assert [(c["method"], c["sigma"]) for c in study.cells] == [
        ("rloo", "0.0"), ("rloo", "3.0"), ("raft", "0.0"), ("raft", "3.0")
    ]  # fmt: skip
    assert study.matching({"sigma": "3.0"}) == [study.cells[1], study.cells[3]]
    assert study.matching({}) == study.cells


def test_base_is_the_profiles_then_the_studys_then_its_profiles_then_what_was_typed(tmp_path):
    own = {"quick": {"base": ["algorithm.steps=5", "algorithm.eval_every=1"]}}
    base = ["algorithm.steps=9", "algorithm.group_size=2"]
    study = small(
        tmp_path, profile="quick", base=base, profiles=own, overrides=("algorithm.eval_every=2", "sft.epochs=3")
    )
    said = dict(text.split("=") for text in study.base)
    assert said["experiment"] == "study"  # of conf/study/_profiles.yaml
    assert said["algorithm.steps"] == "5"
    assert said["algorithm.group_size"] == "2"
    assert said["algorithm.eval_every"] == "2"
    assert said["sft.epochs"] == "3"
    assert len(said) == len(study.base)


def test_a_profile_replaces_axes_and_seeds_key_by_key(tmp_path):
    own = {"quick": {"axes": {"sigma": {"setting": "algorithm.reward_noise", "values": [5.0]}, "method": None},
                     "seeds": {"first": 7}, "memory": 0.5, "title": "Coarse"}}  # fmt: skip
    study = small(tmp_path, profile="quick", profiles=own, count=4)
    assert list(study.axes) == ["sigma"]
    assert list(study.axes["sigma"].values) == ["5.0"]
    assert (study.seeds.count, study.seeds.first, study.seeds.vary) == (4, 7, "policy")
    assert (study.memory, study.title, study.profile, study.name) == (0.5, "Coarse", "quick", "small")
    assert list(small(tmp_path, profiles=own).axes) == ["method", "sigma"]


def test_what_names_values_that_a_profile_has_not_is_left_out(tmp_path):
    wishes = {
        "claims": [claim(RLOO_3, says="goes"), claim({"method": "rloo", "sigma": 0.0}, says="stays")],
        "tables": [
            {"caption": "stays", "measures": ["gold"]},
            {"caption": "goes", "measures": ["gold"], "against": {"method": "raft"}},
        ],
        "figures": [
            {"kind": "bars", "y": ["gold"], "where": {"sigma": 3.0}, "caption": "goes"},
            {"kind": "axis", "y": ["gold"], "x": "method", "caption": "goes, too"},
            {"kind": "axis", "y": ["gold"], "x": "sigma", "caption": "stays"},
        ],
    }
    axes = {"method": None, "sigma": {"setting": "algorithm.reward_noise", "values": [0.0, 1.0]}}
    study = small(tmp_path, profile="quick", profiles={"quick": {"axes": axes}}, **wishes)
    assert study.claims == ()  # both name `method`
    assert [table.caption for table in study.tables] == ["stays"]
    assert [figure.caption for figure in study.figures] == ["stays"]
    whole = small(tmp_path, profiles={"quick": {"axes": axes}}, **wishes)
    assert (len(whole.claims), len(whole.tables), len(whole.figures)) == (2, 2, 3)


def test_a_claim_about_a_value_of_one_profile_only_is_no_mistake(tmp_path):
    axes = {"sigma": {"setting": "algorithm.reward_noise", "values": [0.0, 5.0]}}
    given = {"profiles": {"quick": {"axes": axes}}, "claims": [claim({"sigma": 5.0})]}
    assert len(small(tmp_path, profile="quick", **given).claims) == 1
    assert small(tmp_path, **given).claims == ()


def test_the_last_of_each_setting_counts_in_the_place_of_the_first():
    typed = ["experiment=a", "sft.epochs=1", "experiment=b", "++sft.epochs=2", "seed=0"]
    assert last_of_each(typed) == ["experiment=b", "++sft.epochs=2", "seed=0"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"bse": []}, "bse: there is no such key; did you mean base?"),
        ({"title": None}, "title is missing"),
        ({"base": "experiment=tiny"}, "base: experiment=tiny, but it must be a list of overrides"),
        ({"base": ["seed=3"]}, "seed=3: a study sets the seeds of its points"),
        ({"axes": [1]}, "axes: [1], but it must be a section"),
        ({"axes": {"a": {"label": "a", "values": {}}}}, "axes.a.values: it needs at least one value"),
        ({"axes": {"a": {"setting": "seed", "values": []}}}, "axes.a: with `setting: seed` come `values`"),
        ({"axes": {"a": {"label": "a", "values": {"x": "seed=1"}}}}, "axes.a.values.x: seed=1, but it must be a list"),
        ({"axes": {"a": {"label": "a", "values": {"x": [], "y": []}, "at": {"x": 1.0}}}}, "axes.a: `at` has x, but"),
        ({"seeds": 3}, "seeds: 3, but it must be a section"),
        ({"seeds": {"count": 0, "vary": "policy"}}, "seeds.count: 0, but it must be at least 1"),
        ({"seeds": {"count": 1, "vary": "all"}}, "seeds.vary: all, but it must be policy, reward_model or everything"),
        ({"profiles": {"quick": 1}}, "quick: 1, but it must be a section"),
        ({"measures": {"gold": {"label": "x", "of": "y", "take": "lst"}}}, "measures.gold.take: lst, but it must be"),
        ({"measures": {**MEASURES, "win": {"label": "x", "of": "evaluation/prompts"}}}, "the study ends with policy"),
        ({"axes": {**AXES, "s": {"setting": "algorithm.seed", "values": [1, 2]}}}, "a study sets the seeds"),
        ({"axes": {**AXES, "s": {"setting": "algorithm.reward_noise", "values": [1.0]}}}, "sigma and s both set"),
        ({"measures": {"std": {"label": "x", "of": "reward/std", "share_of": "method"}}}, "is no axis of numbers"),
        ({"tables": [{"caption": "x", "measures": ["glod"]}]}, "there is no measure glod; did you mean gold?"),
        ({"tables": [{"caption": "x", "measures": [], "where": {"mehod": 1}}]}, "where: there is no axis mehod"),
        ({"tables": [{"caption": "x", "measures": [], "against": {"sigma": 1}}]}, "sigma has no value 1; it has 0.0"),
        ({"file": "x"}, "file: there is no such key"),
        ({"title": ""}, "title: it needs at least one character"),
        ({"seeds": {"count": 2501, "vary": "policy"}}, "4 cells with 2501 seeds are more than 10000 points"),
        ({"base": ["paths.root=/x"]}, "paths.root=/x: all points share one run root; type it behind the study"),
        ({"axes": {**AXES, "none": None}}, "axes.none: null, but it must be a section"),
        ({"axes": {**AXES, "seed": {"label": "s", "values": {"x": []}}}}, "axes.seed: tables have a column of"),
        ({"axes": {**AXES, "gold": {"label": "s", "values": {"x": []}}}}, "axes.gold: tables have a column of"),
        ({"axes": {**AXES, "a\nb": {"label": "s", "values": {"x": []}}}}, "axes.a b: a key has up to 60 letters"),
        ({"axes": {**AXES, "a": {"label": "s", "values": {"x" * 101: []}}}}, "a name has 1 to 100 characters"),
        ({"axes": {**AXES, "λ": {"label": "s", "values": {"x": []}}}}, "axes.λ: a key has up to 60 letters"),
        ({"measures": {**MEASURES, "a/b": {"label": "x", "of": "y"}}}, "measures.a/b: a key has up to 60 letters"),
        ({"axes": {**AXES, "a": {"label": "s", "values": {"": []}}}}, "a name has 1 to 100 characters"),
        ({"axes": {**AXES, "a": {"setting": 3, "values": [1]}}}, "axes.a: `setting: 3` names no setting"),
        ({"axes": {**AXES, "a": {"setting": "sft.epochs", "values": [1, 2, "1"]}}}, "`values` has 1 more than once"),
        ({"measures": ["gold"]}, "measures: [gold], but it must be a section with keys of its own"),
        ({"measures": {**MEASURES, "g": {"label": "x", "of": "y", "take": "first_reach"}}}, "needs a `level`"),
        ({"measures": {**MEASURES, "g": {"label": "x", "of": "y", "level": 1.0}}}, "`level` goes with take: first"),
        ({"measures": {**MEASURES, "g": {"label": "x", "of": "y", "take": "at_kl", "kl": -1.0}}}, "nats above 0"),
        ({"measures": {**MEASURES, "g": {"label": "x", "of": "y", "scale": float("nan")}}}, "nan, but it must be a"),
        ({"claims": [claim({}, contrast=[{"weight": float("inf"), "cell": {}}])]}, "contrast.0.weight: inf, but it"),
        ({"claims": [claim({"sigma": 9})]}, "claims.0.contrast: sigma has no value 9"),
        ({"claims": [claim({}, measure="win")]}, "claims.0: there is no measure win"),
        ({"claims": [claim({}, contrast=[])]}, "claims.0.contrast: it needs at least one value"),
        ({"claims": [claim({}, margin=-1.0)]}, "claims.0.margin: -1.0, but it must be at least 0"),
        ({"figures": [{"kind": "bar", "y": ["gold"], "caption": ""}]}, "figures.0.kind: bar, but it must be curves"),
        ({"figures": [{"kind": "bars", "y": ["gold", "at"], "caption": ""}]}, "y: gold, at, but bars shows one"),
        ({"figures": [{"kind": "axis", "y": ["gold"], "x": "K", "caption": ""}]}, "figures.0.x: there is no axis K"),
        ({"figures": [{"kind": "curves", "y": ["loss"], "x": "K", "caption": ""}]}, "x: K, but curves run over step"),
        ({"figures": [{"kind": "axis", "y": ["gold"], "x": "sigma", "log_x": True, "caption": ""}]}, "numbers above 0"),
    ],
)  # fmt: skip
def test_every_mistake_has_its_sentence(tmp_path, changes, sentence):
    (problem,) = problems(tmp_path, **changes)
    assert problem.startswith("study /small.yaml: ")
    assert sentence in problem


def test_all_problems_come_at_once(tmp_path):
    assert len(problems(tmp_path, claims=[claim({"sigma": 9}, measure="win")], base=["seed=1"])) == 3


@pytest.mark.parametrize(
    ("study", "sentence"),
    [
        (
            "kll",
            r"there is no such study; conf/study has .*kl.*; did you mean kl\?; a study of your own is a YAML file",
        ),
        ("no/such.yaml", "there is no such study"),
    ],
)
def test_a_study_that_is_not_there_is_named_with_the_nearest(study, sentence):
    with pytest.raises(ConfigError, match=f"study {study}: {sentence}"):
        load_definition(study, "laptop")


def test_an_unknown_profile_is_told_with_those_there_are():
    with pytest.raises(ConfigError, match="study kl: there is no profile fast; it has laptop, quick and paper"):
        load_definition("kl", "fast")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("a: [", "cannot be read"),
        ("- a", "a mapping is expected"),
        ("title: a\ntitle: b", "x.yaml has title twice in one place"),
        ("tables: [{where: {x: 1, y: 2, x: 3}}]", "x.yaml has x twice in one place"),
        ("title: &a [*a]", "a mapping is expected|recursi"),
        ("title: 2026-13-45", "month must be in 1..12"),
    ],
)
def test_a_file_that_is_no_yaml_mapping_is_refused(tmp_path, content, sentence):
    (tmp_path / "x.yaml").write_text(content)
    with pytest.raises(ConfigError, match=sentence):
        load_definition(str(tmp_path / "x.yaml"), "laptop")


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("algorithm.reward_noise=2.0", "set by the axis sigma (0.0 and 3.0), so it would have no effect"),
        ("algorithm=ppo", "set by the axis method (rloo and raft)"),
        ("seed=3", "say how many with --seeds"),
        ("algorithm.seed=3", "say how many with --seeds"),
    ],
)
def test_what_would_have_no_effect_is_refused(tmp_path, typed, sentence):
    (problem,) = problems(tmp_path, overrides=(typed,))
    assert sentence in problem


def test_what_an_axis_sets_only_sometimes_may_be_typed():
    """conf/study/ppo_parts: without the clip from the second value on; the first one takes it from the base."""
    assert "algorithm.clip=0.1" in load_definition("ppo_parts", "quick", ("algorithm.clip=0.1",)).base


def test_the_seeds_that_served_to_design_the_studies_give_no_results(tmp_path):
    """Ours have fresh ones from 20 on (`overoptimisation` from 30: it was changed after 20 to 24); a person's own study
    begins at 0."""
    assert {load_definition(study, "laptop").seeds.first for study in study_names()} == {20, 30}
    assert {load_definition(study, "quick").seeds.first for study in study_names()} == {0}
    assert load_definition(study_file(tmp_path), "laptop").seeds.first == 0


@pytest.mark.parametrize("profile", profile_names())
@pytest.mark.parametrize("study", study_names())
def test_the_studies_of_conf_say_nothing_wrong(study, profile):
    loaded = load_definition(study, profile)
    assert loaded.claims
    assert loaded.tables
    assert (loaded.name, loaded.file) == (study, study)


@pytest.mark.parametrize("profile", ["laptop", "paper"])
@pytest.mark.parametrize("study", study_names())
def test_the_settings_of_the_studies_of_conf_exist(study, profile):
    """Every value of every axis in one cell, side by side: all combinations would take a minute."""
    loaded = load_definition(study, profile)
    values = [list(axis.values.values()) for axis in loaded.axes.values()]
    for place in range(max(map(len, values))):
        cell = [text for axis in values for text in axis[place % len(axis)]]
        load_settings(last_of_each([*loaded.base, *cell]))


# The experiment in which the paper shows what a study asks: Figure 1, Table 1.
PAPERS = {
    **dict.fromkeys(("gae_lambda", "ppo_parts"), "hh_llama_7b"),
    **dict.fromkeys(("algorithms", "group_size"), "tldr_pythia_6.9b"),
}


@pytest.mark.parametrize("study", study_names())
def test_the_papers_scale_composes(study, tmp_path):
    paper = load_definition(study, "paper")
    first = {
        name: axis.model_copy(update={"values": dict(list(axis.values.items())[:1])})
        for name, axis in paper.axes.items()
    }
    (point, *_) = points_of(paper.model_copy(update={"axes": first}), str(tmp_path))
    assert point.settings.name == PAPERS.get(study, "hh_pythia_6.9b")


@pytest.mark.parametrize("experiment", ["hh_pythia_6.9b", "hh_llama_7b"])
def test_the_other_columns_of_table_1_are_an_override(experiment, tmp_path):
    paper = load_definition("algorithms", "paper", [f"experiment={experiment}"], seeds=1)
    one = paper.axes["method"].model_copy(update={"values": {"PPO": paper.axes["method"].values["PPO"]}})
    (point,) = points_of(paper.model_copy(update={"axes": {"method": one}}), str(tmp_path))
    assert (point.settings.name, point.settings.algorithm.name) == (experiment, "ppo")


def test_a_study_is_known_by_its_file(tmp_path):
    study = small(tmp_path)
    assert (study.name, study.file) == ("small", study_file(tmp_path))
