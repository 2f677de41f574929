"""Experiments: the paper's tables and what goes beyond them, as many runs with one protocol, and their report."""
