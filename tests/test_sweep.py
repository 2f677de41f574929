"""Reference solutions in shards: what is done is kept, what is foreign is refused."""

import json

import numpy as np
import pytest

from fem_frames import (
    ByRegion,
    Grid,
    Pointwise,
    Problem,
    ReferenceSolutions,
    Sweep,
    Uniform,
    make_problem,
    run_sweep,
    solve_reference,
)
from fem_frames.fenicsx.sweep import problem_digest

SAMPLES = 12  # each a shard of its own


def sweep(**changes):
    return Sweep(**(dict(problem=make_problem("checkerboard"), levels=3, samples=SAMPLES, seed=1) | changes))


@pytest.mark.parametrize("distribute", ["samples", "mesh"])
def test_a_sweep_is_the_batch_of_its_samples(shared_path, distribute):
    out = shared_path / "r.npz"
    done = run_sweep(sweep(), out, distribute=distribute)
    expected = solve_reference(sweep().problem, sweep().problem.parameters.sample(SAMPLES, 1), 3)
    np.testing.assert_allclose(done.u, expected.u, atol=1e-10)
    np.testing.assert_array_equal(done.y, expected.y)
    np.testing.assert_array_equal(ReferenceSolutions.load(out).u, done.u)
    assert not (shared_path / "r.npz.parts").exists()


class StoppedError(Exception):
    """Ends a sweep in its middle, on every rank."""


def interrupted(out, after, **options):
    def progress(done, count):
        if done >= after:
            raise StoppedError

    with pytest.raises((StoppedError, RuntimeError)):
        run_sweep(sweep(), out, progress=progress, **options)


@pytest.mark.parametrize("distribute", ["samples", "mesh"])
def test_an_interrupted_sweep_continues_where_it_stopped(shared_path, comm, distribute):
    out, parts = shared_path / "r.npz", shared_path / "r.npz.parts"
    interrupted(out, 2, distribute=distribute)
    assert not out.exists()
    kept = len(list(parts.glob("shard-*")))
    assert 2 <= kept < SAMPLES
    comm.Barrier()
    seen = []
    done = run_sweep(sweep(), out, distribute=distribute, progress=lambda done, count: seen.append(done))
    if comm.rank == 0:
        assert (seen[0], seen[-1]) == (kept, SAMPLES)
        assert seen == sorted(seen)
    expected = solve_reference(sweep().problem, done.y, 3)
    np.testing.assert_allclose(done.u, expected.u, atol=1e-10)
    assert not parts.exists()


def test_a_complete_file_is_not_solved_again(shared_path, comm):
    out = shared_path / "r.npz"
    run_sweep(sweep(), out)
    before = out.stat().st_mtime_ns
    comm.Barrier()
    run_sweep(sweep(), out)
    assert out.stat().st_mtime_ns == before


def test_a_damaged_shard_is_solved_again(shared_path, comm):
    out, parts = shared_path / "r.npz", shared_path / "r.npz.parts"
    interrupted(out, 2)
    comm.Barrier()
    if comm.rank == 0:
        shard = min(parts.glob("shard-*"))
        shard.write_bytes(shard.read_bytes()[:100])
        (parts / ".shard-0003.npz.77.part").write_bytes(b"rest of a killed write")
    comm.Barrier()
    done = run_sweep(sweep(), out)
    np.testing.assert_allclose(done.u, solve_reference(sweep().problem, done.y, 3).u, atol=1e-10)


def test_another_sweep_does_not_overwrite_unless_forced(shared_path, comm):
    out = shared_path / "r.npz"
    run_sweep(sweep(), out)
    with pytest.raises(ValueError, match=r"holds another sweep .*seed 1 instead of 2.*force=True"):
        run_sweep(sweep(seed=2), out)
    assert ReferenceSolutions.load(out).record["seed"] == 1
    comm.Barrier()
    assert run_sweep(sweep(seed=2), out, force=True).record["seed"] == 2


def test_an_unfinished_run_of_another_sweep_is_kept(shared_path):
    out = shared_path / "r.npz"
    interrupted(out, 2)
    with pytest.raises(ValueError, match=r"unfinished run of another sweep .*levels 3 instead of 4"):
        run_sweep(sweep(levels=4), out)
    assert json.loads((shared_path / "r.npz.parts" / "plan.json").read_text())["levels"] == 3


def test_foreign_files_are_kept(shared_path, comm):
    out = shared_path / "r.npz"
    if comm.rank == 0:
        out.write_text("precious")
    comm.Barrier()
    with pytest.raises(ValueError, match="left as it is"):
        run_sweep(sweep(), out)
    assert out.read_text() == "precious"


def test_places_that_cannot_be_written_are_named_before_any_work(shared_path):
    for out in (shared_path, shared_path / "absent" / "r.npz"):
        with pytest.raises(ValueError, match="cannot write"):
            run_sweep(sweep(), out)


@pytest.mark.parametrize("distribute", ["samples", "mesh"])
def test_a_failure_keeps_what_was_done(shared_path, comm, distribute):
    """a ≤ 0 for one sample: all ranks say so, the shards that the failing rank has done before it stay."""
    bad = Pointwise(lambda x, y: np.where(y[..., 0] > 0.9, -1.0, 1.0) + 0 * x[..., 0])
    problem = Problem(Grid((1, 1)), bad, Uniform((0.0,), (1.0,)))
    y = problem.parameters.sample(20, 3)[:, 0]
    assert (y > 0.9).any()
    with pytest.raises(ValueError, match="a_y must be positive"):
        run_sweep(Sweep(problem, 2, 20, 3), shared_path / "r.npz", distribute=distribute)
    assert not (shared_path / "r.npz").exists()
    first = np.flatnonzero(y > 0.9)[0]
    step = comm.size if distribute == "samples" else 1
    kept = {int(p.stem.removeprefix("shard-")) for p in (shared_path / "r.npz.parts").glob("shard-*")}
    assert kept >= set(range(first % step, first, step))
    assert first not in kept


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(samples=0), "samples is 0"),
        (dict(samples=2.0), "samples is 2.0"),
        (dict(samples=10**11), "at most 10000000"),
        (dict(formulation="mixed"), "choose from energy, least-squares"),
        (dict(problem=make_problem("cube"), formulation="least-squares", solver="cg"), "dimension 3; use solver='lu'"),
        (dict(seed=-1), "seed is -1"),
        (dict(levels=0), "levels = 0"),
    ],
)
def test_bad_sweeps_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        sweep(**changes)


def test_shards_cover_all_samples_once():
    for samples in (1, 7, 64, 65, 1000, 5000):
        shards = sweep(samples=samples).shards()
        assert [i for shard in shards for i in shard] == list(range(samples))
        assert len(shards) <= max(64, samples / 64 + 1)


def disk(radius=0.2, value=1.0, source=1.0, neumann=0.0):
    """Regions that only the finer levels see."""
    return Problem(
        Grid((1, 1)),
        ByRegion({1: 0}, fixed={0: value}),
        Uniform((0.5,), (1.5,)),
        source=source,
        regions=lambda x: (np.linalg.norm(x - 0.5, axis=1) < radius).astype(int),
        dirichlet=lambda x: np.isclose(x[:, 0], 0),
        neumann={"rest": neumann},
    )


def test_problems_of_the_same_name_are_told_apart():
    changes = [{}, {"radius": 0.05}, {"value": 2.0}, {"source": lambda x, y: 1.0 + (x[..., 0] > 0.9)}, {"neumann": 1.0}]
    digests = [problem_digest(disk(**change), 5, "energy") for change in changes]
    assert len(set(digests)) == len(changes)
    assert digests[0] == problem_digest(disk(), 5, "energy")


def test_a_changed_problem_or_solver_is_another_sweep(shared_path):
    out = shared_path / "r.npz"
    run_sweep(Sweep(disk(), 4, 2), out)
    with pytest.raises(ValueError, match=r"holds another sweep .digest"):
        run_sweep(Sweep(disk(radius=0.05), 4, 2), out)
    with pytest.raises(ValueError, match=r"holds another sweep .petsc_options"):
        run_sweep(Sweep(disk(), 4, 2, petsc_options={"ksp_rtol": 0.1}), out)


def test_a_folder_of_other_things_is_kept(shared_path, comm):
    parts = shared_path / "r.npz.parts"
    if comm.rank == 0:
        parts.mkdir()
        (parts / "thesis.txt").write_text("precious")
    comm.Barrier()
    with pytest.raises(ValueError, match=r"holds thesis\.txt, which no sweep wrote"):
        run_sweep(sweep(), shared_path / "r.npz")
    assert (parts / "thesis.txt").read_text() == "precious"


def test_work_that_cannot_begin_leaves_no_folder(shared_path, comm):
    for petsc_options in ({"pc_type": "nonsense"}, {"ksp_type": "nonsense"}):
        with pytest.raises(ValueError, match="PETSc refuses"):
            run_sweep(sweep(petsc_options=petsc_options), shared_path / "r.npz")
        comm.Barrier()
        assert not list(shared_path.iterdir())
        comm.Barrier()


@pytest.mark.serial
def test_two_runs_do_not_work_on_the_same_file(tmp_path):
    from fem_frames.files import lock

    (tmp_path / "r.npz.parts").mkdir()
    held = lock(tmp_path / "r.npz.parts" / "lock")
    with pytest.raises(ValueError, match="another run is at work"):
        lock(tmp_path / "r.npz.parts" / "lock", patience=0.3)
    held.release()
    lock(tmp_path / "r.npz.parts" / "lock", patience=0.3).release()
    run_sweep(sweep(), tmp_path / "r.npz")
    assert [p.name for p in tmp_path.iterdir()] == ["r.npz"]
