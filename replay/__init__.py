"""What it means: the fold of the log, its invariants, and the views that answer questions about a run."""
