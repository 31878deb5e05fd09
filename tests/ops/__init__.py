"""Each operation against something that was written without it."""
