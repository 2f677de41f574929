"""Experiments: the paper's tables and extensions of them, as many runs under one protocol, and their report."""
