"""Workers that sample rollouts."""
