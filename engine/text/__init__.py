"""Text at the engine's border: tokenizer, chat template, streaming decoder, stop strings."""
