"""Everything that imports DOLFINx, PETSc or MPI. `door` is the one place that knows their releases."""
