"""Studies over levels, benchmarks, and their pictures."""
