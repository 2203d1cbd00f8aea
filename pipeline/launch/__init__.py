"""Where worker processes come from."""
