"""The multilevel frame in NumPy: elements, export, `FrameArrays` and its matrices. Imports no torch."""
