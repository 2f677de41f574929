"""Training of surrogates: losses, optimizers, precision, checkpoints."""
