import torch

from rloo_core.random_streams import generator_for, seed_for, shuffled


def test_the_same_key_gives_the_same_numbers_and_another_key_others():
    keys = [(0, "a", 1), (0, "a", 2), (1, "a", 1), (0, "b", 1), (0, "a", 1, 1), (0, "a1", 1), (0, "a", 11)]
    assert len({seed_for(*key) for key in keys}) == len(keys)
    assert torch.equal(torch.rand(3, generator=generator_for(0, "a")), torch.rand(3, generator=generator_for(0, "a")))


def test_a_seed_is_what_it_was_when_results_were_published():
    assert seed_for(0, "sampling", 3, 1) == 5985797045757187290


def test_shuffled_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    assert sorted(shuffled(10, 0, "order")) == list(range(10))
    assert torch.equal(torch.rand(1), expected)
