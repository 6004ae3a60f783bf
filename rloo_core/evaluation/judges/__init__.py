"""Who decides which of two completions is better: reward models, functions, people's labels, language models."""
