"""What users would do without a net: direct solves, reduced bases, regression."""
