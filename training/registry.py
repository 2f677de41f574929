"""The losses, optimizers and sources of reference solutions by name.

The command line can list their names without importing torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fem_frames.registry import Registry

if TYPE_CHECKING:
    from training.losses import Loss
    from training.optimizers.steppers import OptimizerKind
    from training.references import ReferenceSource

LOSSES: Registry[type[Loss]] = Registry(
    "loss",
    {
        "stable": "training.losses.StableLoss",
        "bpx": "training.losses.BpxLoss",
        "nodal": "training.losses.NodalLoss",
        "supervised": "training.losses.SupervisedLoss",
        "supervised-nodal": "training.losses.SupervisedNodalLoss",
    },
)
OPTIMIZERS: Registry[OptimizerKind] = Registry(
    "optimizer",
    {
        "adam": "training.optimizers.steppers.ADAM_KIND",
        "sgd": "training.optimizers.steppers.SGD_KIND",
        "lbfgs": "training.optimizers.steppers.LBFGS_KIND",
        "ngd": "training.optimizers.steppers.NGD_KIND",
        "soap": "training.optimizers.steppers.SOAP_KIND",
    },
)
REFERENCES: Registry[type[ReferenceSource]] = Registry(
    "references",
    {
        "auto": "training.references.Automatic",
        "multigrid": "training.references.ByMultigrid",
        "petsc": "training.references.ByPetsc",
    },
)
