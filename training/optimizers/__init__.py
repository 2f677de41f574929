"""The optimizers, behind one call."""
