"""The suite runs serially and under mpirun: tests see the world communicator and paths all ranks agree on."""

import os
import sys
from pathlib import Path

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
import torch  # noqa: F401  before DOLFINx, as dolfinx_door explains
from mpi4py import MPI


@pytest.fixture
def comm() -> MPI.Comm:
    return MPI.COMM_WORLD


@pytest.fixture
def shared_path(tmp_path: Path) -> Path:
    """A folder that is the same on all ranks."""
    return Path(MPI.COMM_WORLD.bcast(str(tmp_path)))


@pytest.fixture(scope="session")
def frame_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported frame: runs that start from it need no DOLFINx, and start faster."""
    from frames import case

    path = tmp_path_factory.mktemp("frames") / "quarters.npz"
    case("interval, LS")[1].save(path)
    return path


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if MPI.COMM_WORLD.rank > 0:  # rank 0 reports; a failure elsewhere is shown by the hook below
        config.option.verbose = -2
        config.pluginmanager.unregister(name="terminalreporter")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and MPI.COMM_WORLD.size > 1:
        print(f"\nrank {MPI.COMM_WORLD.rank}: {report.nodeid}\n{report.longreprtext}", file=sys.stderr, flush=True)
        MPI.COMM_WORLD.Abort(1)  # the other ranks may be waiting in a collective call
