"""Simplicial meshes: coarse meshes, gmsh files and nested hierarchies. Only refinement imports DOLFINx."""
