"""What a reward model of the embedded task sees: `python -m tests.diagnostics.reward_model_edits REWARD_MODEL DATA`.

Prints, for each kind of edit, how often the model scores the better of two summaries higher that differ in it only.
REWARD_MODEL and DATA are outputs of the two stages, e.g. runs/store/reward_model/… and runs/store/data/….
"""

import random
import sys
from pathlib import Path
from unittest.mock import patch

from rloo_core.data.synthetic import drafts
from rloo_core.data.synthetic.gold import gold_reward
from rloo_core.data.synthetic.posts import write_post
from rloo_core.evaluation.intervals import win_rate, wins
from rloo_core.reward_models import load_reward_model, score_completions
from rloo_core.tokenization import encode_completion, encode_prompt, load_tokenizer
from rloo_core.types import CompletionGroups

PAIRS = 400
FIRST_SEED = 1_000_000  # far from anything the data stage draws


def pairs(kind: str) -> list[tuple[str, str, str]]:
    """Prompt, better and worse summary of fresh posts, with one edit of a kind between the two."""
    found = []
    with patch.object(drafts, "EDITS", {kind: 1.0}):
        for seed in range(FIRST_SEED, FIRST_SEED + PAIRS):
            rng = random.Random(seed)
            post = write_post(rng)
            facts = post.facts_column()
            worse, better = sorted(drafts.edited_pair(rng, post), key=lambda text: gold_reward(text, facts))
            found.append((post.prompt, better, worse))
    return found


def main(reward_model: Path, data: Path) -> None:
    tokenizer = load_tokenizer(str(data / "tokenizer"))
    model = load_reward_model(reward_model / "model", tokenizer)
    for kind in drafts.EDITS:
        rows = pairs(kind)
        groups = CompletionGroups.from_ids(
            [encode_prompt(tokenizer, prompt) for prompt, _, _ in rows],
            [[encode_completion(tokenizer, text) for text in texts] for _, *texts in rows],
            tokenizer.pad_token_id,
        )
        better, worse = score_completions(model, groups, max_tokens=16384).T.tolist()
        share, low, high = win_rate(wins(better, worse))
        print(f"{kind:<8} {100 * share:5.1f} % [{100 * low:.1f}, {100 * high:.1f}]")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
