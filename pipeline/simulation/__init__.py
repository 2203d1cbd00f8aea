"""The played world around the real controller: scripted workers, a virtual clock, a log that fails."""
