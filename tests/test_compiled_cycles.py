"""Compiled multigrid cycles: equal to those in torch, on every frame; what happens without a C compiler or a cache."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from frames import samples
from test_multigrid import FRAMES, OTHERS, formulation

from fem_frames import Cycle, Frame, Multigrid, compiling, make_formulation, make_problem, solve
from fem_frames.frame.graph_order import Chunks, reordered
from fem_frames.solvers import compiled_cycles
from fem_frames.solvers.compiled_cycles import source_code
from fem_frames.solvers.cycle_plans import Chebyshev, Plan
from fem_frames.studies.levels import cached_frame

pytestmark = pytest.mark.serial
REALS = ("float64", "float32")


class Uneven(Plan):
    """Other weights on every level and in every cycle, as learned ones are."""

    def weights(self, j, top, last):
        return (0.6 + 0.01 * j,), (0.7 - 0.01 * top, 0.55), 1.1 - 0.02 * j

    def start(self, j, last):
        return 1.0 + 0.01 * j


PLANS = (
    Chebyshev(Cycle()),
    Chebyshev(Cycle(1, 0)),
    Chebyshev(Cycle(0, 2)),
    Chebyshev(Cycle(3, 1)),
    Chebyshev(Cycle(2, 2, visits=2)),
    Uneven(),
)


def both(made, y):
    multigrid = Multigrid(made)
    assert multigrid.kernels == "compiled"
    return multigrid.at(y), multigrid.recorded(y)


def assert_near(found, expected, rounding=2e3):
    size = float(expected.abs().max())
    tolerance = rounding * torch.finfo(expected.dtype).eps * size
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("name", FRAMES + OTHERS)
def test_compiled_cycles_are_those_in_torch(name, dtype):
    made = formulation(name, dtype)
    y = samples(made.problem, 5, made.wide)
    compiled, plain = both(made, y)
    b = made.nodal_load(y).T.contiguous()
    for plan in PLANS:
        assert_near(compiled.full_cycle(b, plan), plain.full_cycle(b.clone(), plan))
        assert_near(compiled.preconditioned(b, plan), plain.preconditioned(b.clone(), plan))
    v = compiled.full(b.T)
    assert_near(compiled.A(v), plain.A(v))
    assert_near(compiled.residual(0.5 * v, b.T), plain.residual(0.5 * v, b.T))
    torch.testing.assert_close(compiled.estimate(0.5 * v, b.T), plain.estimate(0.5 * v, b.T), rtol=1e-4, atol=0)
    for steps in (0, 1, 3):
        assert_near(compiled.answer(b.T, steps), plain.answer(b.T, steps))
        assert_near(compiled.refined(b.T, 0.5 * v, steps), plain.refined(b.T, 0.5 * v, steps))
    (found, share), (expected, its_share) = (at.judged_cycle(b, Uneven()) for at in (compiled, plain))
    assert_near(found, expected)
    torch.testing.assert_close(share, its_share, rtol=1e-3, atol=1e3 * torch.finfo(share.dtype).eps)


@pytest.mark.parametrize("chunk", [1, 2, 7, 40])
@pytest.mark.parametrize(
    "name", ["square, mixed", "interval", "cube", "algebraic Robin", "curved", "square, one level"]
)
def test_answers_do_not_depend_on_chunks(name, chunk, monkeypatch):
    """Steps that go through a level together do what they do one after the other."""
    made = formulation(name)
    y = samples(made.problem, 5)
    plain, b = Multigrid(made).recorded(y), made.nodal_load(y)
    monkeypatch.setattr(compiled_cycles, "CHUNK", chunk)
    monkeypatch.setattr(compiled_cycles, "CACHED", 0)
    found = Multigrid(made).at(y)
    rows, start = b.T.contiguous(), 0.5 * plain.full(b)
    for plan in PLANS:
        assert_near(found.full_cycle(rows, plan), plain.full_cycle(rows.clone(), plan))
        assert_near(found.preconditioned(rows, plan), plain.preconditioned(rows.clone(), plan))
    assert_near(found.A(start), plain.A(start))
    torch.testing.assert_close(found.estimate(start, b), plain.estimate(start, b), rtol=1e-8, atol=0)
    for steps, cycle in ((0, Cycle()), (1, Cycle()), (4, Cycle()), (2, Cycle(1, 1, visits=2))):
        assert_near(found.answer(b, steps, cycle), plain.answer(b, steps, cycle))
        assert_near(found.refined(b, start, steps, cycle), plain.refined(b, start, steps, cycle))


def elastic(dtype):
    problem = make_problem("elastic")
    return make_formulation(Frame.from_arrays(cached_frame(problem, 2, "energy"), dtype), problem)


@pytest.mark.parametrize("count", [5, 16, 37])
@pytest.mark.parametrize("name", ["algebraic Robin", "elastic"])
def test_data_need_not_be_copied(name, count, monkeypatch):
    """Small data are copied before the set-up, large ones are read where they are."""
    made = elastic("float32") if name == "elastic" else formulation(name, "float32")
    y = samples(made.problem, count, torch.float32)
    b = made.nodal_load(y)
    copied = Multigrid(made).at(y).answer(b, 2)
    monkeypatch.setattr(compiled_cycles, "COPIED", 0)
    torch.testing.assert_close(Multigrid(made).at(y).answer(b, 2), copied, rtol=0, atol=0)


@pytest.mark.parametrize("as_wave", [True, False])
@pytest.mark.parametrize("size", [1, 6, 1000])
@pytest.mark.parametrize("name", ["square, mixed", "cube", "algebraic Robin"])
def test_chunks_know_what_they_depend_on(name, size, as_wave):
    tables, order = reordered(Multigrid(formulation(name))._tables, as_wave)
    assert sorted(order) == [*range(tables.levels[-1].graph.size)]
    for level in tables.levels:
        chunks, graph = Chunks.of(level, size), level.graph
        count = len(chunks.reach)
        begin = chunks.first[chunks.points]
        chunk_of = [next(k for k in range(count) if i < begin[k + 1]) for i in range(graph.size)]
        neighbours = [{chunk_of[i]} for i in range(graph.size)]
        for i, j in graph.edges:
            neighbours[i].add(chunk_of[j])
            neighbours[j].add(chunk_of[i])
        for k in range(count):
            assert chunks.reach[k] == 1 + max(max(neighbours[i]) for i in range(begin[k + 1]))
            assert {chunk_of[i] for i in graph.edges[chunks.edges[k] : chunks.edges[k + 1], 0]} <= {k}
        assert chunks.edges[-1] == len(graph.edges)
        if level.prolongation is not None:
            P = level.prolongation.to_scipy().tocsc()
            last = [max((chunk_of[i] for i in P[:, [c]].indices), default=0) for c in range(P.shape[1])]
            for k in range(count + 1):
                assert max(last[: chunks.coarse[k]], default=-1) < k
            assert chunks.coarse[-1] == P.shape[1]


def test_a_wave_through_a_square_is_as_narrow_as_its_side():
    tables, _ = reordered(Multigrid(formulation("square"))._tables, as_wave=True)
    for level in tables.levels:
        side = round(level.graph.size**0.5)
        assert side**2 == level.graph.size
        assert int((level.graph.edges[:, 1] - level.graph.edges[:, 0]).max()) <= 2 * side


def test_answers_do_not_depend_on_how_many_samples_go_together(monkeypatch):
    made = formulation("square, mixed", "float32")
    y = samples(made.problem, 53, torch.float32)
    multigrid = Multigrid(made)
    whole = multigrid.answer(y)
    monkeypatch.setattr(compiled_cycles, "TOGETHER", 0)
    assert multigrid._compiled.together == 16 * torch.get_num_threads()
    assert_near(multigrid.answer(y), whole, 100)


@pytest.mark.parametrize("dtype", REALS)
def test_answers_do_not_depend_on_the_batch(dtype):
    """Nor on the number of threads: samples are independent, whatever the vectors that hold them."""
    made = formulation("square, mixed", dtype)
    y = samples(made.problem, 53, made.wide)
    multigrid = Multigrid(made)
    whole = multigrid.answer(y)
    for size in (1, 2, 3, 4, 7, 8, 9, 16, 17, 40):
        assert_near(torch.cat([multigrid.answer(part) for part in y.split(size)]), whole, 100)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(multigrid.answer(y), whole)
    finally:
        torch.set_num_threads(before)


def test_several_threads_may_solve_at_once():
    made = formulation("square", "float32")
    y = samples(made.problem, 40, torch.float32)
    multigrid, found = Multigrid(made), {}
    expected = multigrid.answer(y)

    def run(number):
        found[number] = [multigrid.answer(y) for _ in range(20)]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4
    assert all(torch.equal(v, expected) for made in found.values() for v in made)


def test_a_forked_process_has_threads_of_its_own():
    """As tools for sampling fork; torch's own threads are left out, since they do not survive a fork."""
    program = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch
from test_multigrid import formulation
from frames import samples
from fem_frames import Multigrid
torch.set_num_threads(1)
made = formulation("square", "float32")
y = samples(made.problem, 40, torch.float32)
at, b = Multigrid(made).at(y), made.nodal_load(y).contiguous()
torch.get_num_threads = lambda: 2
expected = at.answer(b, 1)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(at.answer(b, 1), expected) else 1)
print(os.waitpid(child, 0)[1])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "0", done.stderr


def test_one_sample_s_matrix_serves_several_vectors():
    made = formulation("square, mixed")
    compiled, plain = both(made, samples(made.problem, 1))
    x = torch.randn(4, made.frame.arrays.nodal_size, dtype=torch.float64)
    assert_near(compiled.A(x), plain.A(x))
    assert_near(compiled.v_cycle()(x), plain.v_cycle()(x))


def test_gradients_are_recorded_or_refused():
    made = formulation("square, mixed")
    y = samples(made.problem, 3)
    multigrid, b = Multigrid(made), made.nodal_load(y)
    with pytest.raises(ValueError, match=r"record no gradients: use Multigrid.recorded\(y\)"):
        multigrid.at(y).full(b.clone().requires_grad_())
    free = b.clone().requires_grad_()
    multigrid.recorded(y).full(free).sum().backward()
    assert float(free.grad.abs().max()) > 0
    assert multigrid.at(y.clone().requires_grad_()).A.weights.requires_grad  # torch's own


def test_wrong_vectors_are_refused():
    made = formulation("square", "float32")
    y = samples(made.problem, 3, torch.float32)
    at, b = Multigrid(made).at(y), made.nodal_load(y)
    for wrong in (b[:2], b[:, 1:], torch.cat([b, b])):
        with pytest.raises(ValueError, match=f"takes 3 vectors of length {b.shape[1]} in torch.float32, but got"):
            at.full(wrong)


def test_wrong_arguments_are_refused():
    made = formulation("square", "float32")
    y = samples(made.problem, 3, torch.float32)
    for steps in (-1, 1.5, None):
        with pytest.raises(ValueError, match="steps is"):
            Multigrid(made).answer(y, steps)
    with pytest.raises(ValueError, match="a Cycle is expected"):
        Multigrid(made).answer(y, 1, None)
    with pytest.raises(ValueError, match="takes a formulation, not Problem"):
        Multigrid(made.problem)


@pytest.mark.parametrize("bad", [float("nan"), -1.0, 0.0])
def test_an_indefinite_matrix_is_refused(bad):
    made = formulation("square", "float32")
    multigrid = Multigrid(made)
    data = made.cell_diffusion(samples(made.problem, 20, torch.float32)).clone()
    data[:, 17] = bad
    with pytest.raises(ValueError, match="not positive definite"):
        multigrid._compiled.at(data)


def test_the_variable_chooses_torch(monkeypatch):
    made = formulation("square", "float32")
    monkeypatch.setenv(compiling.VARIABLE, "torch")
    assert Multigrid(made).kernels == "torch"
    monkeypatch.setenv(compiling.VARIABLE, "fortran")
    with pytest.raises(ValueError, match="FEM_FRAMES_KERNELS is 'fortran'; choose from auto, torch"):
        Multigrid(made)


def test_half_precision_uses_torch():
    assert Multigrid(formulation("square", "float16")).kernels == "torch"


PROGRAM = """
import torch
from fem_frames.solvers.compiled_cycles import kernels
print(kernels(torch.float32, torch.device("cpu")) is not None)
"""


def kernels_with(**environment):
    """Whether a new process has compiled functions."""
    env = {**os.environ, **{name: str(value) for name, value in environment.items()}}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() == "True"


def test_libraries_are_kept_in_the_user_s_cache(tmp_path):
    assert kernels_with(XDG_CACHE_HOME=tmp_path)
    (library,) = (tmp_path / "fem-frames").glob("*.so")
    first = library.stat().st_mtime_ns
    assert kernels_with(XDG_CACHE_HOME=tmp_path, PATH=os.environ["PATH"])
    assert library.stat().st_mtime_ns == first
    assert (tmp_path / "fem-frames").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("size", [0, 100, 10_000])
def test_a_damaged_library_is_compiled_again(tmp_path, size):
    assert kernels_with(XDG_CACHE_HOME=tmp_path)
    (library,) = (tmp_path / "fem-frames").glob("*.so")
    whole = library.stat().st_size
    os.truncate(library, size)
    assert kernels_with(XDG_CACHE_HOME=tmp_path)
    assert library.stat().st_size == whole


def test_a_relative_cache_is_ignored(tmp_path):
    assert kernels_with(XDG_CACHE_HOME="relative", HOME=tmp_path)
    assert (tmp_path / ".cache" / "fem-frames").is_dir()
    assert not Path("relative").exists()


def test_processes_that_compile_at_once_all_succeed(tmp_path):
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    running = [subprocess.Popen([sys.executable, "-c", PROGRAM], env=env, stdout=subprocess.PIPE) for _ in range(3)]
    assert [process.communicate(timeout=300)[0].strip() for process in running] == [b"True"] * 3
    assert len([*(tmp_path / "fem-frames").iterdir()]) == 1


def test_no_compiler_means_torch(tmp_path):
    empty = tmp_path / "bin"
    empty.mkdir()
    assert not kernels_with(PATH=empty, CC="", XDG_CACHE_HOME=tmp_path)
    broken = empty / "cc"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert not kernels_with(PATH=f"{empty}:/usr/bin:/bin", CC=broken, XDG_CACHE_HOME=tmp_path)


def test_a_cache_that_others_may_write_to_is_not_used(tmp_path):
    folder = tmp_path / "fem-frames"
    folder.mkdir()
    folder.chmod(0o777)
    assert kernels_with(XDG_CACHE_HOME=tmp_path)  # compiled for this process alone
    assert not [*folder.iterdir()]
    (tmp_path / "file").write_text("")
    assert kernels_with(XDG_CACHE_HOME=tmp_path / "file")


def test_the_source_compiles_without_warnings(tmp_path):
    compiler = compiling._compiler()
    for real in ("float", "double"):
        flags = ["-std=c11", "-Wall", "-Wextra", "-Wno-psabi", "-Werror", f"-DREAL={real}", "-DWIDTH=64"]
        command = [compiler, *flags, "-c", "-x", "c", "-", "-o", str(tmp_path / "cycles.o")]
        done = subprocess.run(command, input=source_code(), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr


def test_memory_is_used_within_its_bounds(tmp_path):
    """The sanitizers of the compiler watch cycles, estimates and products on several frames."""
    compiler = compiling._compiler()
    flags = [*compiling.FLAGS, "-O1", "-g", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"]
    library = tmp_path / "cycles.so"
    command = [compiler, *flags, "-DREAL=float", "-DWIDTH=64", "-x", "c", "-", "-o", str(library)]
    if subprocess.run(command, input=source_code().encode(), capture_output=True, timeout=120).returncode:
        pytest.skip("the compiler has no sanitizers")
    tests = Path(__file__).parent
    program = f"""
import ctypes, sys
sys.path.insert(0, {str(tests)!r})
import torch
from fem_frames.solvers import compiled_cycles
compiled_cycles.compiled = lambda *a: ctypes.CDLL({str(library)!r})
compiled_cycles.WIDTHS = (64, 64)
compiled_cycles.CHUNK, compiled_cycles.CACHED = 5, 0
from test_multigrid import formulation
from frames import samples
from fem_frames import Multigrid
for name in ("interval", "square, mixed", "algebraic Robin", "curved"):
    made = formulation(name, "float32")
    y = samples(made.problem, 19, torch.float32)
    at, b = Multigrid(made).at(y), made.nodal_load(y)
    v = at.answer(b, 2)
    assert torch.isfinite(at.estimate(v, b)).all() and torch.isfinite(at.A(v)).all()
print("done")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "done", done.stderr


def test_solutions_agree_with_those_of_torch(monkeypatch):
    made = formulation("square, mixed", "float32")
    y = samples(made.problem, 6, torch.float32)
    found = solve(made, y, 1e-11)
    monkeypatch.setenv(compiling.VARIABLE, "torch")
    again = formulation("square, mixed").to("float32")
    other = solve(again, y, 1e-11)
    exact = made.to("float64")
    torch.testing.assert_close(exact.frame.H(found.w), exact.frame.H(other.w), rtol=0, atol=1e-10)
    assert int((found.iterations - other.iterations).abs().max()) <= 1
