"""Networks that map parameters to frame coefficients."""
