"""The values printed in the paper: MRE, MSE and loss of its Tables 1 to 3 (arXiv 2601.23185)."""

from __future__ import annotations

from typing import NamedTuple


class Printed(NamedTuple):
    """One row of a table, without its labels."""

    mre: float
    mse: float
    loss: float


TABLE_1 = {
    ("sgd", "nodal", "float32"): Printed(7.35e-1, 8.53e1, 7.50e-1),
    ("sgd", "nodal", "float64"): Printed(9.35e-1, 8.53e1, 7.51e-1),
    ("sgd", "bpx", "float32"): Printed(1.45e-1, 2.62, 1.06e-2),
    ("sgd", "bpx", "float64"): Printed(1.44e-1, 2.60, 1.06e-2),
    ("adam", "nodal", "float32"): Printed(1.59e-1, 3.17, 1.78e-2),
    ("adam", "nodal", "float64"): Printed(1.57e-1, 3.09, 1.67e-2),
    ("adam", "bpx", "float32"): Printed(1.01e-3, 1.52e-4, 1.19e-6),
    ("adam", "bpx", "float64"): Printed(1.26e-3, 2.20e-4, 1.14e-6),
    ("lbfgs", "nodal", "float32"): Printed(1.37e-1, 2.33, 1.04e-2),
    ("lbfgs", "nodal", "float64"): Printed(1.37e-1, 2.32, 9.34e-3),
    ("lbfgs", "bpx", "float32"): Printed(4.76e-3, 3.32e-3, 3.43e-5),
    ("lbfgs", "bpx", "float64"): Printed(1.33e-3, 2.99e-4, 2.93e-6),
    ("ngd", "nodal", "float32"): Printed(9.65e-1, 9.08e1, 8.05e-1),
    ("ngd", "nodal", "float64"): Printed(9.65e-1, 9.08e1, 8.06e-1),
    ("ngd", "bpx", "float32"): Printed(3.89e-3, 2.38e-3, 1.20e-5),
    ("ngd", "bpx", "float64"): Printed(2.78e-3, 1.26e-3, 6.08e-6),
}
"""By optimizer, loss and precision."""

TABLE_2 = {
    ("sgd", "float16"): Printed(1.85e-1, 3.83, 1.86e-2),
    ("sgd", "float32"): Printed(1.45e-1, 2.62, 1.06e-2),
    ("sgd", "float64"): Printed(1.44e-1, 2.60, 1.06e-2),
    ("adam", "float16"): Printed(7.25e-3, 6.73e-3, 1.02e-4),
    ("adam", "float32"): Printed(1.01e-3, 1.52e-4, 1.20e-6),
    ("adam", "float64"): Printed(1.26e-3, 2.19e-4, 1.14e-6),
    ("lbfgs", "float16"): Printed(1.47e-1, 2.70, 1.21e-2),
    ("lbfgs", "float32"): Printed(5.93e-3, 6.02e-3, 4.84e-5),
    ("lbfgs", "float64"): Printed(9.46e-4, 1.36e-4, 1.14e-6),
    ("ngd", "float16"): Printed(3.34e-2, 1.58e-1, 1.73e-3),
    ("ngd", "float32"): Printed(3.29e-3, 1.80e-3, 1.05e-5),
    ("ngd", "float64"): Printed(2.62e-3, 1.26e-3, 5.08e-6),
}
"""By optimizer and precision, for the stable loss."""

TABLE_3 = {
    ("full", "float16"): Printed(7.25e-3, 6.73e-3, 1.02e-4),
    ("full", "float32"): Printed(1.01e-3, 1.52e-4, 1.20e-6),
    ("full", "float64"): Printed(1.26e-3, 2.19e-4, 1.14e-6),
    ("separate", "float16"): Printed(8.83e-3, 1.10e-2, 1.65e-4),
    ("separate", "float32"): Printed(3.09e-3, 1.52e-3, 2.46e-6),
    ("separate", "float64"): Printed(3.59e-3, 2.11e-3, 3.52e-6),
    ("separate-frame", "float16"): Printed(1.83e-2, 5.12e-2, 3.29e-4),
    ("separate-frame", "float32"): Printed(3.28e-3, 1.58e-3, 1.63e-5),
    ("separate-frame", "float64"): Printed(3.57e-3, 1.92e-3, 1.29e-5),
}
"""By net and precision, for the stable loss and Adam."""
