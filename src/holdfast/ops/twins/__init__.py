"""What the Triton twins of several operations share."""
