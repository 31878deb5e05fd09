"""What models are made of. A layer takes `(x, batch)` and keeps what it keeps under its own name."""
