"""The suite runs in one or several processes of its own, and under mpirun.

Tests see the world communicator and paths all ranks agree on. MPI is imported late: where pytest shares tests among
processes, the one that starts them must not initialise it, or they and the mpirun that tests start would inherit its
environment.
"""

import os
import sys
from pathlib import Path
from typing import Any

# Open MPI refuses root and more ranks than cores unless told; for the mpirun that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
for name, value in {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}.items():
    os.environ.setdefault(name, value)

import pytest
import torch  # noqa: F401  before DOLFINx, as fenicsx.door explains


def world() -> Any:
    from mpi4py import MPI

    return MPI.COMM_WORLD


@pytest.fixture
def comm() -> Any:
    return world()


@pytest.fixture
def shared_path(tmp_path: Path) -> Path:
    """A folder that is the same on all ranks."""
    return Path(world().bcast(str(tmp_path)))


@pytest.fixture(scope="session")
def frame_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported frame: runs that start from it need no DOLFINx, and start faster."""
    from frames import case

    path = tmp_path_factory.mktemp("frames") / "quarters.npz"
    case("interval, LS")[1].save(path)
    return path


@pytest.fixture(scope="session")
def frame_of_u(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An exported frame of the energy formulation on the interval, for 4 parameters."""
    from frames import case

    path = tmp_path_factory.mktemp("frames") / "u.npz"
    case("interval")[1].save(path)
    return str(path)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None):  # tests are run, and MPI is used, by others
        return
    if world().rank > 0:  # rank 0 reports; a failure elsewhere is shown by the plugin below
        config.option.verbose = -2
        config.pluginmanager.unregister(name="terminalreporter")
    if world().size > 1:
        config.pluginmanager.register(AbortOnFailure())


class AbortOnFailure:
    """A rank that fails ends all: the others may be waiting for it in a collective call."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            print(f"\nrank {world().rank}: {report.nodeid}\n{report.longreprtext}", file=sys.stderr, flush=True)
            world().Abort(1)
