"""Reddit TL;DR: posts, human summaries, and comparisons of two summaries.

Read as published with summarize-from-feedback (https://github.com/openai/summarize-from-feedback): comparisons
{info, summaries, choice} and posts {subreddit, title, post, summary}; or already as {prompt, completion or label} and
{prompt, chosen, rejected}, as in the hub's trl-lib/tldr, trl-lib/tldr-preference, CarperAI/openai_summarize_tldr and
CarperAI/openai_summarize_comparisons.
"""

from collections.abc import Mapping, Set
from typing import Any

from rloo_core.data.schema import Record, Row, SourceRow, UnusableRowError, checked_prompt, checked_reply, preference

ENDING = "TL;DR:"
LOOKED_FOR = (
    "info, summaries and choice (comparisons); subreddit, title, post and summary; prompt and completion or label; "
    "or prompt, chosen and rejected"
)
# The data's own split names: https://github.com/openai/summarize-from-feedback
SPLITS = {"train": "train", "valid": "validation", "valid1": "validation", "valid2": "validation", "test": "test"}


def table_of(columns: Set[str]) -> str | None:
    """The table that rows with these columns belong to, or None."""
    if {"info", "summaries", "choice"} <= columns or {"prompt", "chosen", "rejected"} <= columns:
        return "preferences"
    posts = {"post", "title", "subreddit", "summary"} <= columns
    if posts or ("prompt" in columns and columns & {"completion", "label"}):
        return "demonstrations"
    return "ratings" if {"info", "summary"} <= columns else None


def parse(source: SourceRow, table: str) -> Record:
    """A row of one of the published forms in the columns of its table.

    Raises:
        UnusableRowError: With the reason, if the row cannot be used.
    """
    values = source.values
    if "info" in values:
        row = _comparison(values)
    elif table == "preferences":
        row = _pair(_ready_prompt(values.get("prompt")), values.get("chosen"), values.get("rejected"))
    elif "post" in values:
        row = {"prompt": post_prompt(values), "completion": _summary(values.get("summary"), "summary")}
    else:
        name = "completion" if "completion" in values else "label"
        row = {"prompt": _ready_prompt(values.get("prompt")), "completion": _summary(values.get(name), name)}
    return Record(table, row, source.where, SPLITS.get(str(values.get("split")), source.split))


def post_prompt(post: Mapping[str, Any]) -> str:
    """The prompt of a Reddit post, in the format of summarize-from-feedback (appendix of arXiv 2009.01325).

    Raises:
        UnusableRowError: If it is no Reddit post (the data also holds news articles), or a part is missing.
    """
    if "article" in post or "site" in post:
        raise UnusableRowError("not a Reddit post (a news article)")
    for name in ("subreddit", "title", "post"):
        if not isinstance(post.get(name), str):
            raise UnusableRowError(f"{name} is missing")
    if not post["post"].strip():
        raise UnusableRowError("empty prompt")
    return f"SUBREDDIT: r/{post['subreddit']}\n\nTITLE: {post['title']}\n\nPOST: {post['post']}\n\n{ENDING}"


def _comparison(values: Mapping[str, Any]) -> Row:
    """Two summaries of a post, and which one a person chose (0 or 1)."""
    info, summaries, choice = (values.get(name) for name in ("info", "summaries", "choice"))
    if not isinstance(info, Mapping):
        raise UnusableRowError("info is missing")
    prompt = post_prompt(info)
    if not isinstance(summaries, list) or len(summaries) != 2:
        raise UnusableRowError("not a comparison of two summaries")
    if choice not in (0, 1):
        raise UnusableRowError("choice is neither 0 nor 1")
    texts = [summary.get("text") if isinstance(summary, Mapping) else None for summary in summaries]
    return _pair(prompt, texts[choice], texts[1 - choice])


def _pair(prompt: str, chosen: Any, rejected: Any) -> Row:
    return preference(prompt, _summary(chosen, "chosen"), _summary(rejected, "rejected"))


def _summary(value: Any, name: str) -> str:
    """A summary as the completion of a prompt that ends with "TL;DR:": one space, the text."""
    text = checked_reply(value, name).strip().removeprefix(ENDING).strip()
    if not text:
        raise UnusableRowError("empty reply")
    return " " + text


def _ready_prompt(value: Any) -> str:
    """A prompt that ends with "TL;DR:", which some copies put in front of the summaries instead."""
    prompt = checked_prompt(value)
    if not isinstance(prompt, str):
        raise UnusableRowError("prompt is not text")
    return prompt.rstrip() if prompt.rstrip().endswith(ENDING) else f"{prompt.rstrip()}\n\n{ENDING}"
