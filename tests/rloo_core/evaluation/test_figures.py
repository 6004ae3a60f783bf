"""Figures: what is drawn, told apart without colour, and apart from what trains."""

from pipelines.code_digest import code_digests, core_packages


def test_redrawing_a_study_trains_nothing_again():
    """The stages draw their run; a study's figures and statistics are no part of any stage's code."""
    for stage in ("policy", "evaluation"):
        reached = set(code_digests(f"rloo_core.stages.{stage}", core_packages()))
        assert "rloo_core.evaluation.figures.runs" in reached
        assert not reached & {"rloo_core.evaluation.figures.studies", "rloo_core.evaluation.across_seeds"}
