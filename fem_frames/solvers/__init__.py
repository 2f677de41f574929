"""Conjugate gradients, spectra and error bounds."""
