"""Device bytes: what a layer keeps between steps, declared by name."""
