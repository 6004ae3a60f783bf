"""Products through oneDNN are the same products, with the same gradients, and leave no trace."""

import pytest
import torch
from torch.testing import assert_close

from rloo_core.cpu_products import fast_products, packed_weights, slow_bfloat16
from tests.rloo_core.tiny import tiny_llama, tiny_neox

IDS = torch.tensor([[3, 4, 5, 6, 7, 8]])


def large(make_model):
    """A model whose layers are large enough to be replaced, with vectors that are not zero."""
    model = make_model()
    torch.manual_seed(1)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module.bias is not None:
            torch.nn.init.normal_(module.bias)
    return model


@pytest.fixture(autouse=True)
def every_layer(monkeypatch):
    monkeypatch.setattr("rloo_core.cpu_products.SMALLEST", 1)


def replaced(model):
    return [module for module in model.modules() if "forward" in vars(module)]


@pytest.mark.parametrize("make_model", [tiny_neox, tiny_llama])
def test_packed_weights_give_the_same_logits(make_model):
    model = large(make_model)
    with torch.no_grad():
        expected = model(input_ids=IDS).logits
        with packed_weights(model, rows=1):
            assert replaced(model)
            assert_close(model(input_ids=IDS).logits, expected, rtol=1e-5, atol=1e-5)
    assert not replaced(model)


@pytest.mark.parametrize("make_model", [tiny_neox, tiny_llama])
def test_gradients_are_the_same(make_model):
    model = large(make_model)
    parameters = list(model.parameters())
    weights = torch.linspace(-1, 1, 23)
    expected = torch.autograd.grad((model(input_ids=IDS).logits * weights).sum(), parameters)
    with fast_products(model):
        assert replaced(model)
        loss = (model(input_ids=IDS).logits * weights).sum()
    assert not replaced(model)
    for found, wanted in zip(torch.autograd.grad(loss, parameters), expected, strict=True):
        assert ((found - wanted).norm() / wanted.norm().clamp(min=1e-12)).item() < 1e-5


def test_float64_and_models_that_compute_activations_again_are_left_alone():
    with fast_products(tiny_neox().double()) as _:
        pass
    model = tiny_neox()
    model.gradient_checkpointing_enable()
    model.train()
    with fast_products(model):
        assert not replaced(model)
    double = tiny_neox().double()
    with fast_products(double), packed_weights(double, rows=1):
        assert not replaced(double)


def test_bfloat16_that_a_processor_imitates_is_called_slow(monkeypatch):
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    monkeypatch.setattr("rloo_core.cpu_products._multiplies_bfloat16", lambda: False)
    assert "takes longer" in slow_bfloat16("bfloat16", cpu)
    assert slow_bfloat16("float32", cpu) is None
    assert slow_bfloat16("bfloat16", gpu) is None
    monkeypatch.undo()
    monkeypatch.setattr("rloo_core.cpu_products._multiplies_bfloat16", lambda: True)
    assert slow_bfloat16("bfloat16", cpu) is None
