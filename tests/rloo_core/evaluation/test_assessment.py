import pytest
import torch
from torch.testing import assert_close

from rloo_core.evaluation import assessment as assessment_module
from rloo_core.evaluation.assessment import Prompts, assess, means
from rloo_core.kl import sequence_kl
from rloo_core.layout import Layout
from rloo_core.logprobs import completion_logprobs, reference_logprobs
from rloo_core.rollout import Sampling
from rloo_core.types import CompletionGroups
from tests.rloo_core.tiny import tiny_neox, tiny_tokenizer

PROMPTS = Prompts([[3, 4, 5, 6], [7], [8, 9]], [{"prompt": name} for name in "abc"])


def assessment(policy, reference, *, temperature=1.0, max_tokens=1000, samples=2, seed=0, layout=Layout.PADDED):
    return assess(
        policy, reference, PROMPTS, tiny_tokenizer(), Sampling(temperature, 6, (1,), 0, max_tokens, layout=layout),
        samples=samples, seed=seed, proxy=lambda groups, rows: groups.response_mask.sum(-1).double(),
        gold=lambda groups, rows: torch.tensor([[ord(row["prompt"])] * groups.group_size for row in rows]),
        kl_temperature=1.0,
    )  # fmt: skip


def test_measures_stay_with_their_prompts_however_they_are_batched():
    policy, reference = tiny_neox().double(), reference_logprobs(tiny_neox(seed=1).double(), 1.0)
    whole, one_by_one = (assessment(policy, reference, max_tokens=tokens) for tokens in (1000, 1))
    assert whole.texts == one_by_one.texts
    for name in ("proxy_reward", "gold_reward", "kl", "kl_k3", "length", "finished"):
        assert_close(getattr(whole, name), getattr(one_by_one, name))
    assert whole.gold_reward[:, 0].tolist() == [ord(name) for name in "abc"]
    assert torch.equal(whole.proxy_reward, whole.length.double())


def test_kl_is_the_log_ratio_of_the_sampled_text():
    policy, reference = tiny_neox(), tiny_neox(seed=1)
    found = assessment(policy, reference_logprobs(reference, 1.0), samples=1)
    tokenizer = tiny_tokenizer()
    for i, (text,) in enumerate(found.texts):
        ids = [tokenizer.convert_tokens_to_ids(word) for word in text.split()] + [1] * int(found.finished[i, 0])
        groups = CompletionGroups.from_ids([PROMPTS.ids[i]], [[ids]], 0)
        both = [completion_logprobs(model, groups, temperature=1.0).logprobs for model in (policy, reference)]
        assert_close(
            found.kl[i, 0], sequence_kl(*both, groups.response_mask, "k1")[0, 0].detach(), rtol=1e-4, atol=1e-5
        )


def test_the_policy_reads_a_prompt_once_for_all_its_completions(monkeypatch):
    """Its log-probs are computed in the layout it was sampled in, and the KL is the same."""
    seen = []

    def noted(*arguments, layout, **options):
        seen.append(layout)
        return completion_logprobs(*arguments, layout=layout, **options)

    monkeypatch.setattr(assessment_module, "completion_logprobs", noted)
    policy, reference = tiny_neox().double(), tiny_neox(seed=1).double()
    found = {
        layout: assessment(policy, reference_logprobs(reference, 1.0, layout), samples=3, layout=layout).kl
        for layout in Layout
    }
    assert seen == list(Layout)
    assert_close(found[Layout.SHARED], found[Layout.PADDED], rtol=1e-9, atol=1e-9)


def test_a_policy_against_itself_has_kl_zero():
    model = tiny_neox()
    assert assessment(model, reference_logprobs(model, 1.0)).kl.abs().max() == 0
    assert assessment(model, None).kl is None
    assert "kl" not in assessment(model, None).first()


def test_two_policies_meet_the_same_random_numbers():
    """The same weights under another name give the same texts; another seed gives others; greedy needs no seed."""
    first, second, other = (assessment(tiny_neox(), None, seed=seed).texts for seed in (0, 0, 1))
    assert first == second != other
    greedy = [assessment(tiny_neox(), None, temperature=0.0, seed=seed).texts for seed in (0, 1)]
    assert greedy[0] == greedy[1]


def test_means():
    assert means({"a": [1.0, 2.0], "b": [0.0]}) == pytest.approx({"a": 1.5, "b": 0.0})
