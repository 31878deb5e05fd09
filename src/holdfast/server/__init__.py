"""An OpenAI-compatible HTTP server in front of an engine that has a process of its own."""
