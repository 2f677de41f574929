"""One training run: how it is built, its folder, checkpoints, log, processes, and the loop."""
