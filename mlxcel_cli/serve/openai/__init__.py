"""OpenAI's API: chat completions, legacy completions, the list of models."""
