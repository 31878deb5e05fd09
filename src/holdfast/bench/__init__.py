"""How fast: an engine alone, and any OpenAI-compatible server under load."""
