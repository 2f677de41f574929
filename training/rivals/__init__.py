"""Alternatives to neural nets: direct solves, reduced bases, regression."""
