"""Whether answers and training feel the mesh, the parameters, the contrast and the number of processes."""
