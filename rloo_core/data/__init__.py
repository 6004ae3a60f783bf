"""Data: every source becomes three tables early, and everything later knows only these.

    prompts         {prompt, reference?}           what the policy writes completions for
    demonstrations  {prompt, completion}           what SFT imitates
    preferences     {prompt, chosen, rejected}     what the reward model learns from

A prompt is text or a list of chat messages {role, content}; the other columns are text. Further columns stay.

    files, readers ──► hh | tldr | records ──► prepare (derive, split, filter, cap) ──► tables (Parquet)
"""
