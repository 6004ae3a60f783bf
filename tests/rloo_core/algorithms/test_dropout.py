"""Dropout and gradient checkpointing change no number: of any architecture, policy and critic, at ratio 1 and KL 0."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from rloo_core.logprobs import reference_logprobs
from rloo_core.models import disable_dropout
from rloo_core.optimization import checkpoint_gradients, training_mode
from tests.rloo_core.algorithms.building import gradient, online_method, rollout_of, take
from tests.rloo_core.algorithms.composing import composed, distance, give, tiny_critic
from tests.rloo_core.algorithms.ragged import COMPLETIONS, PROMPTS, REWARDS
from tests.rloo_core.tiny import VOCAB, tiny_llama, tiny_neox

SIZES = {
    "hidden_size": 16, "n_embd": 16, "num_hidden_layers": 2, "n_layer": 2, "num_layers": 2, "num_attention_heads": 2,
    "n_head": 2, "num_heads": 2, "intermediate_size": 32, "ffn_dim": 32, "word_embed_proj_dim": 16,
    "num_key_value_heads": 2, "head_dim": 8, "rotary_dim": 4, "max_position_embeddings": 64, "n_positions": 64,
    "attention_types": [[["global"], 2]],
}  # fmt: skip
ARCHITECTURES = (
    "gpt_neox", "gpt2", "llama", "opt", "bloom", "falcon", "phi", "phi3", "gptj", "gpt_neo", "gpt_bigcode", "stablelm",
    "starcoder2", "qwen2", "qwen3", "mistral", "gemma", "olmo", "codegen",
)  # fmt: skip


def config_with_dropout(architecture):
    """A tiny config whose every dropout probability is one half."""
    plain = AutoConfig.for_model(architecture)
    computed = {name for name in SIZES if isinstance(getattr(type(plain), name, None), property)}
    known = {name: value for name, value in SIZES.items() if hasattr(plain, name) and name not in computed}
    drops = {name: 0.5 for name, value in vars(plain).items() if "drop" in name and isinstance(value, float)}
    return AutoConfig.for_model(architecture, **{"vocab_size": VOCAB, "pad_token_id": 0} | known | drops)


def loaded(architecture):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config_with_dropout(architecture))


@torch.no_grad()
def answers(model):
    rows = torch.arange(2, 20).view(2, 9)
    return [model(input_ids=rows, attention_mask=torch.ones_like(rows), use_cache=False).logits for _ in range(2)]


def differ(one, other):
    return (one - other).abs().max() > 1e-6


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_in_train_mode_a_model_says_what_it_says_in_evaluation_mode(architecture):
    model = loaded(architecture)
    first, second = answers(model.train())
    assert differ(first, second), "this architecture shows nothing: it has no dropout"
    expected, _ = answers(model.eval())
    disable_dropout(model)
    assert not model.training
    for found in answers(model.train()):
        assert not differ(found, expected)


def tiny_gpt2(seed=0):
    """With dropout 0.1, as GPT-2 comes."""
    torch.manual_seed(seed)
    config = GPT2Config(vocab_size=VOCAB, n_embd=16, n_layer=2, n_head=2, n_positions=64, initializer_range=0.5)
    assert config.attn_pdrop == config.resid_pdrop == config.embd_pdrop == 0.1
    config.pad_token_id = 0
    return disable_dropout(GPT2LMHeadModel(config))


MODELS = {"neox": (tiny_neox, 1e-9), "llama": (tiny_llama, 1e-6), "gpt2": (tiny_gpt2, 1e-9)}


def ppo(policy, critic):
    settings = composed("ppo", group_size=2, kl_coef=0.3, missing_eos_penalty=None)
    return online_method(settings, policy, reference_logprobs(policy, 1.0), critic, prompts=PROMPTS)


def _is_attention(module):
    return type(module).__name__.endswith("Attention")


@pytest.mark.parametrize("name", list(MODELS))
def test_gradient_checkpointing_changes_no_gradient(name):
    make, tolerance = MODELS[name]
    found = []
    for checkpointing in (False, True):
        policy = make().double()
        critic = tiny_critic(policy)
        disable_dropout(critic.classifier)
        calls = []
        for attention in (m for model in (policy, critic) for m in model.modules() if _is_attention(m)):
            attention.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        if checkpointing:
            checkpoint_gradients(policy)
            checkpoint_gradients(critic.classifier)
        with training_mode([policy, critic]):
            assert policy.training is critic.classifier.training is checkpointing
            metrics = take(ppo(policy, critic), rollout_of(PROMPTS, COMPLETIONS, REWARDS))
        assert not policy.training
        found.append((gradient(policy, critic), metrics, len(calls)))
    (plain, metrics, calls), (checkpointed, other_metrics, more_calls) = found
    assert more_calls > calls  # or nothing would have been recomputed
    assert distance(checkpointed, plain) < tolerance
    assert other_metrics == pytest.approx(metrics, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_model_with_dropout_in_its_config_starts_at_ratio_one_and_kl_zero(checkpointing):
    """Before any update: what the policy said when it sampled, what it says now and what the reference says agree."""
    policy, reference = tiny_gpt2(), tiny_gpt2()
    if checkpointing:
        checkpoint_gradients(policy)
    critic = tiny_critic(policy)
    settings = composed("ppo", group_size=2, kl_coef=0.3, missing_eos_penalty=None)
    method = online_method(settings, policy, reference_logprobs(reference, 1.0), critic, prompts=PROMPTS)
    give(method, rollout_of(PROMPTS, COMPLETIONS, REWARDS.float()))
    for update in method.updates(0):
        with training_mode([policy, critic]):
            for loss in update:
                loss().backward()
    found = method.metrics()
    assert found["ratio/min"] == found["ratio/max"] == 1.0
    assert found["policy/clip_frac"] == found["kl/mean"] == found["kl/k3_mean"] == 0.0
