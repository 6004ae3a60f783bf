"""The embedded "TL;DR" task: posts with known facts, summaries of known quality, and the reward that knows."""

from rloo_core.data.synthetic.gold import gold_reward, gold_rewards
from rloo_core.data.synthetic.tables import build_tables
from rloo_core.data.synthetic.vocabulary import word_tokenizer

__all__ = ["build_tables", "gold_reward", "gold_rewards", "word_tokenizer"]
