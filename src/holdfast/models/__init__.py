"""One file per architecture, and what they share: base, registry, loader."""
