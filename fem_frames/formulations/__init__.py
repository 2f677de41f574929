"""Variational formulations over a frame, one per file."""
