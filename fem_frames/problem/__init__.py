"""The problem: mesh, coefficient, source, boundary data and parameters. Imports neither DOLFINx nor torch."""
