"""The three tables of the embedded task: prompts, demonstrations, preferences."""

import math
import random
from collections.abc import Iterator

from rloo_core.data.synthetic.drafts import demonstration, edited_pair, mistake, reference
from rloo_core.data.synthetic.gold import gold_reward
from rloo_core.data.synthetic.posts import Post, write_post
from rloo_core.random_streams import seed_for
from rloo_core.settings import SyntheticSettings

Rows = list[dict[str, object]]
EDITED_SHARE = 0.6  # of the preference pairs: a summary and the same one after an edit
MISTAKE_SHARE = 0.5  # of the other candidates: a model's mistake


def build_tables(settings: SyntheticSettings, seed: int) -> dict[str, dict[str, Rows]]:
    """All splits of all tables; no two posts anywhere tell the same facts.

    Row i of a split depends on (seed, table, split, i), not on the sizes, except that a post whose facts an
    earlier row has already told is drawn again. Evaluation splits are drawn first.

    Args:
        settings: Rows of each train split; `validation` rows for each table's validation split; `test` prompts;
            temperature of the preference labels.
        seed: Another seed gives other posts.

    Returns:
        Rows by table and split: {"prompts": {train, validation, test}, "demonstrations": {train, validation},
        "preferences": {train, validation}}. Columns: prompts {prompt, reference, facts}, demonstrations {prompt,
        completion, facts}, preferences {prompt, chosen, rejected, facts, chosen_gold, rejected_gold, label_flipped}.
    """
    sizes = {
        "prompts": {"test": settings.test, "validation": settings.validation, "train": settings.prompts},
        "demonstrations": {"validation": settings.validation, "train": settings.demonstrations},
        "preferences": {"validation": settings.validation, "train": settings.preferences},
    }
    told: set[tuple[str, ...]] = set()
    tables: dict[str, dict[str, Rows]] = {table: {} for table in sizes}
    for split in ("test", "validation", "train"):
        for table in sizes:
            if split in sizes[table]:
                drawn = _draw_posts(seed, f"synthetic/{table}/{split}", sizes[table][split], told)
                tables[table][split] = [_row(table, rng, post, settings.label_temperature) for rng, post in drawn]
    return tables


def preference(rng: random.Random, post: Post, label_temperature: float) -> dict[str, object]:
    """Two different summaries of a post, ordered by a noisy judge.

        P(a preferred to b) = sigmoid((gold(a) − gold(b)) / label_temperature)

    Each is a demonstration or, with probability `MISTAKE_SHARE`, a model's mistake. Temperature 0 is a judge without
    noise. `label_flipped` says that the judge preferred the one that is worse.
    """
    facts = post.facts_column()
    first, second = _two_summaries(rng, post)
    margin = gold_reward(first, facts) - gold_reward(second, facts)
    prefers_first = rng.random() < _preference_probability(margin, label_temperature)
    chosen, rejected = (first, second) if prefers_first else (second, first)
    chosen_gold, rejected_gold = gold_reward(chosen, facts), gold_reward(rejected, facts)
    return {
        "prompt": post.prompt,
        "chosen": chosen,
        "rejected": rejected,
        "facts": facts,
        "chosen_gold": chosen_gold,
        "rejected_gold": rejected_gold,
        "label_flipped": chosen_gold < rejected_gold,
    }


def _two_summaries(rng: random.Random, post: Post) -> tuple[str, str]:
    if rng.random() < EDITED_SHARE:
        pair = edited_pair(rng, post)
        return pair

    def draw() -> str:
        return mistake(rng, post) if rng.random() < MISTAKE_SHARE else demonstration(rng, post)

    first = second = draw()
    while second == first:
        second = draw()
    return first, second


def _preference_probability(margin: float, temperature: float) -> float:
    if temperature == 0:
        return 0.5 + 0.5 * ((margin > 0) - (margin < 0))
    return 0.5 * (1.0 + math.tanh(0.5 * margin / temperature))


def _row(table: str, rng: random.Random, post: Post, label_temperature: float) -> dict[str, object]:
    if table == "preferences":
        return preference(rng, post, label_temperature)
    if table == "demonstrations":
        return {"prompt": post.prompt, "completion": demonstration(rng, post), "facts": post.facts_column()}
    return {"prompt": post.prompt, "reference": reference(rng, post), "facts": post.facts_column()}


def _draw_posts(
    seed: int, purpose: str, count: int, told: set[tuple[str, ...]]
) -> Iterator[tuple[random.Random, Post]]:
    for index in range(count):
        attempt = 0
        while True:
            rng = random.Random(seed_for(seed, purpose, index, attempt))
            post = write_post(rng)
            key = tuple(post.facts.values())
            if key not in told:
                break
            attempt += 1
        told.add(key)
        yield rng, post
