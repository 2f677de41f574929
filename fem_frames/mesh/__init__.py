"""Meshes of simplices: coarse ones, gmsh files, and nested hierarchies. DOLFINx is imported only to refine."""
