"""The critic: values of states, not of tokens; the reward model's own judgement of what stands there so far."""

import pytest
import torch
from torch.testing import assert_close

from rloo_core.layout import Layout
from rloo_core.types import CompletionGroups
from tests.rloo_core.algorithms.composing import tiny_critic, tiny_reward_model
from tests.rloo_core.tiny import tiny_llama, tiny_neox

PROMPTS = [[5, 6, 7], [8]]
COMPLETIONS = [[[3, 4, 9, 1], [4, 1]], [[2, 2, 6], [7, 8, 9]]]
MODELS = {"neox": tiny_neox, "llama": tiny_llama}


def groups(completions=COMPLETIONS, prompts=PROMPTS):
    return CompletionGroups.from_ids(prompts, completions, 0)


@pytest.fixture(params=[(kind, layout) for kind in MODELS for layout in Layout], ids=lambda p: f"{p[0]}-{p[1]}")
def critic(request):
    kind, layout = request.param
    return tiny_critic(MODELS[kind](), layout=layout)


@torch.no_grad()
def test_a_value_knows_the_tokens_before_it_and_not_the_one_that_is_chosen(critic):
    """Changing token 2 of the first completion changes its values from token 3 on, and nothing else."""
    values = critic(groups())
    changed = [[[3, 4, 10, 1], COMPLETIONS[0][1]], COMPLETIONS[1]]
    difference = (critic(groups(changed)) - values).abs() > 1e-6
    assert difference.nonzero().tolist() == [[0, 0, 3]]


@torch.no_grad()
def test_the_first_value_is_that_of_the_prompt(critic):
    """All completions of a prompt have it, and it changes with the prompt's last token."""
    values = critic(groups())
    assert_close(values[:, 0, 0], values[:, 1, 0])
    other = critic(groups(prompts=[[5, 6, 9], [8]]))
    assert abs(other[0, 0, 0] - values[0, 0, 0]) > 1e-3
    assert_close(other[1], values[1])


@torch.no_grad()
def test_after_the_end_the_value_is_zero(critic):
    values = critic(groups())
    assert (values[0, 1, 2:] == 0).all()
    assert (values[groups().response_mask] != 0).all()


@pytest.mark.parametrize("layout", list(Layout))
@torch.no_grad()
def test_started_from_a_reward_model_it_says_what_that_says_of_the_text_so_far(layout):
    """The value of token t = the reward of the completion cut off before t: the same scale, offset included."""
    policy = tiny_neox()
    model = tiny_reward_model(policy, offset=2.5)
    values = tiny_critic(policy, offset=2.5, layout=layout)(groups())
    for p, group in enumerate(COMPLETIONS):
        for k, completion in enumerate(group):
            for t in range(1, len(completion)):
                reward = model(CompletionGroups.from_ids([PROMPTS[p]], [[completion[:t]]], 0))
                assert_close(values[p, k, t], reward[0, 0], rtol=1e-5, atol=1e-6)


def test_both_layouts_have_the_same_gradient():
    found = []
    for layout in Layout:
        critic = tiny_critic(tiny_neox().double(), layout=layout)
        critic(groups()).square().sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in critic.parameters() if p.grad is not None]))
    assert (found[0] - found[1]).norm() / found[0].norm() < 1e-9


def test_padding_has_no_gradient():
    """What stands after the end of the second completion changes neither values nor gradients."""
    found = []
    for junk in (0, 11):
        critic = tiny_critic(tiny_neox().double())
        batch = groups()
        batch.completion_ids.masked_fill_(~batch.response_mask, junk)
        values = critic(batch)
        values.sum().backward()
        found.append((values.detach(), critic.classifier.score.weight.grad.clone()))
    assert torch.equal(found[0][0], found[1][0])
    assert_close(found[0][1], found[1][1], rtol=0, atol=1e-12)
