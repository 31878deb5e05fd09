"""What followed the last tokens of a row when they last occurred in it."""
