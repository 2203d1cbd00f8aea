"""Workers that train on rollouts."""
