"""The three nets: their sizes are the paper's, their products are right in half precision."""

from functools import cache

import pytest
import torch
from frames import case, samples

from fem_frames import Frame, MeshHierarchy, export_frame, make_problem
from nets import NETS, make_net
from nets.blocks import ResBlock

pytestmark = pytest.mark.serial
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SMALL = ("interval", "interval, LS", "square", "square, lognormal", "cube")


@cache
def paper_frame():
    problem = make_problem("quarters")
    return problem, export_frame(MeshHierarchy.from_problem(problem, 10), problem, "least-squares")


def build(name, problem, arrays, dtype=torch.float32, **options):
    frame = Frame.from_arrays(arrays, dtype)
    levels = range(arrays.first_level + 1, arrays.finest_level + 1)
    prolongations = {field: [frame.P(j, field) for j in levels] for field in frame.level_sizes}
    options = {"first_level": arrays.first_level, "prolongations": prolongations, **options}
    return make_net(name, problem.parameters.dimension, frame.level_sizes, **options).to(dtype)


@pytest.mark.parametrize(("name", "count"), [("full", 577_036), ("separate", 577_140), ("separate-frame", 551_336)])
def test_parameter_counts_are_those_of_the_paper(name, count):
    problem, arrays = paper_frame()
    net = build(name, problem, arrays)
    assert net.parameter_count() == count
    assert NETS[name].count(4, net.level_sizes, net.rank, net.blocks) == count
    assert net(samples(problem, 2, torch.float32)).shape == (2, 4092)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nets_fit_every_frame_and_have_gradients_in_every_precision(name, kind, dtype):
    problem, arrays = case(kind)
    net = build(name, problem, arrays, dtype, rank=3, blocks=2)
    w = net(samples(problem, 5, dtype))
    assert w.shape == (5, arrays.frame_size)
    assert w.dtype == dtype
    w.float().square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in net.parameters())


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
def test_a_net_in_low_precision_is_the_net_rounded(name, dtype):
    """Outputs and gradients differ from float64 by a few roundings of each layer, not by lost sums."""
    problem, arrays = case("interval, LS")
    low = build(name, problem, arrays, dtype, seed=3)
    high = build(name, problem, arrays, torch.float64, seed=3)
    for p, q in zip(low.parameters(), high.parameters(), strict=True):
        assert torch.equal(p, q.to(dtype))  # the same numbers, rounded once
        q.data.copy_(p)
    y = samples(problem, 4, dtype)
    w, exact = low(y), high(y.double())
    depth = 60 * torch.finfo(dtype).eps
    assert (w.double() - exact).norm() < depth * exact.norm()
    direction = torch.ones_like(exact)
    w.backward(direction.to(dtype))
    exact.backward(direction)
    for p, q in zip(low.parameters(), high.parameters(), strict=True):
        assert (p.grad.double() - q.grad).norm() <= depth * q.grad.norm() + 1e-30


def test_a_block_is_its_formula():
    torch.manual_seed(0)
    block = ResBlock(7, 3).double()
    for p in block.parameters():
        p.data.normal_()
    z = torch.randn(7, 4, dtype=torch.float64)
    h = block.W @ z + block.b[:, None]
    torch.testing.assert_close(block(z), z + block.A @ (h * torch.sigmoid(h)) + block.c[:, None])


def test_the_rank_is_at_most_the_width():
    assert ResBlock(3, 8).A.shape == (3, 3)


def test_weights_are_xavier_and_biases_zero():
    problem, arrays = paper_frame()
    net = build("full", problem, arrays, seed=1)
    for name, p in net.named_parameters():
        if p.ndim == 1:
            assert not p.any(), name
        else:
            assert float(p.detach().std()) == pytest.approx((2 / sum(p.shape)) ** 0.5, rel=0.05), name
    other = build("full", problem, arrays, seed=2)
    assert not torch.equal(next(net.parameters()), next(other.parameters()))


def test_inputs_are_mapped_by_the_box_before_they_are_rounded():
    problem, arrays = case("interval")
    net = build("full", problem, arrays, torch.float16, box=([0.0, 0.5, 0.5, -1.0], [1.0, 1.5, 1.5, 3.0]))
    y = torch.tensor([[0.0, 1.5, 1.0001, 1.0]], dtype=torch.float64)
    # 1.0001 is 1 in float16; mapped first, its distance from the centre keeps its digits
    torch.testing.assert_close(net.map_inputs(y), torch.tensor([[-1.0, 1.0, 2e-4, 0.0]]).half(), rtol=1e-3, atol=0)


def test_level_decay_scales_levels_by_powers_of_two():
    problem, arrays = case("interval, LS")
    plain, scaled = (build("full", problem, arrays, level_decay=s) for s in (0.0, 1.5))
    y = samples(problem, 3, torch.float32)
    sizes = [size for sizes in Frame.from_arrays(arrays).level_sizes.values() for size in sizes]
    levels = list(range(arrays.first_level, arrays.finest_level + 1)) * 2
    factors = torch.cat([torch.full((n,), 2.0 ** (-1.5 * j)) for n, j in zip(sizes, levels, strict=True)])
    torch.testing.assert_close(scaled(y), plain(y) * factors)


def test_prolonged_nets_start_where_there_are_free_points():
    problem, arrays = case("interval, LS, level 0")
    sizes = Frame.from_arrays(arrays).level_sizes
    assert sizes["u"][0] == 0
    for name in NETS:
        net = build(name, problem, arrays)
        assert net(samples(problem, 1, torch.float32)).shape == (1, arrays.frame_size)
    assert [len(field.levels) for field in net.nets] == [sum(size > 0 for size in own) for own in sizes.values()]


@pytest.mark.parametrize("kind", ["interval, LS", "interval, LS, level 0", "square"])
@pytest.mark.parametrize("later", [None, 0, 1, 2])
def test_prolonged_nets_are_the_papers_one_by_one(kind, later):
    """Evaluated together they are what each is by itself: dense layer, then prolongation and blocks up to its level."""
    problem, arrays = case(kind)
    frame = Frame.from_arrays(arrays, "float64")
    start_level = None if later is None else arrays.first_level + later
    net = build("separate-frame", problem, arrays, torch.float64, rank=3, blocks=2, start_level=start_level)
    with torch.no_grad():
        for p in net.parameters():
            p.normal_(generator=torch.Generator().manual_seed(p.numel()))  # biases too
    y = samples(problem, 3, torch.float64)
    silu = torch.nn.functional.silu
    expected = []
    for field, nets in zip(frame.level_sizes, net.nets, strict=True):
        levels = [arrays.first_level + j for j, size in enumerate(frame.level_sizes[field]) if size]
        start = sum(level < arrays.first_level + (later or 0) for level in levels)
        assert len(nets.coarse) == start
        for dense, *blocks in nets.coarse:
            z = silu(dense.W @ y.T + dense.b[:, None])
            for block in blocks:
                z = z + block.A @ silu(block.W @ z + block.b[:, None]) + block.c[:, None]
            expected.append(z)
        for own in range(len(levels) - start):
            z = silu(nets.first.W[own] @ y.T + nets.first.b[own])
            for place in range(0 if own == 0 else 1, own + 1):
                if place:
                    z = frame.P(levels[start + place], field).to_dense() @ z
                for block in nets.levels[place]:
                    W, b, A, c = (p[own - place] for p in (block.W, block.b, block.A, block.c))
                    z = z + A @ silu(W @ z + b) + c
            expected.append(z)
    torch.testing.assert_close(net(y), torch.cat(expected).T, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["interval, LS", "square, LS", "cube"])
@pytest.mark.parametrize("name", NETS)
def test_parameters_are_counted_without_making_the_net(kind, name):
    problem, arrays = case(kind)
    starts = [None, arrays.finest_level - 1, arrays.finest_level] if name == "separate-frame" else [None]
    for start in starts:
        net = build(name, problem, arrays, rank=3, blocks=2, start_level=start)
        counted = net.count(problem.parameters.dimension, net.level_sizes, 3, 2, (start or 0) - arrays.first_level)
        assert counted == net.parameter_count()


def test_nets_that_start_on_the_finest_level_are_the_separate_ones():
    problem, arrays = case("interval, LS")
    own = build("separate-frame", problem, arrays, torch.float64, blocks=3, start_level=arrays.finest_level)
    separate = build("separate", problem, arrays, torch.float64, blocks=3)
    assert own.parameter_count() == separate.parameter_count()
    with torch.no_grad():
        for p, q in zip(own.parameters(), separate.parameters(), strict=True):
            p.copy_(q.view_as(p))
    y = samples(problem, 3, torch.float64)
    torch.testing.assert_close(own(y), separate(y))


def test_a_later_start_lets_more_of_y_through():
    """From the coarsest level, with one free point, u sees y through one number; from level 3, with 7, all of it."""
    problem, arrays = case("interval")
    y = samples(problem, 1, torch.float64)
    ranks = []
    for start_level in (arrays.first_level, 3):
        net = build("separate-frame", problem, arrays, torch.float64, start_level=start_level)
        finest = torch.autograd.functional.jacobian(net, y)[0, -arrays.families[0].level_sizes[-1] :, 0]  # (n_J, p)
        ranks.append(int(torch.linalg.matrix_rank(finest)))
    assert ranks == [1, 4]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("wide", {}, "net is 'wide'; choose from full, separate, separate-frame"),
        ("full", {"rank": 0}, "rank is 0; a whole number of at least 1"),
        ("full", {"blocks": -1}, "blocks is -1"),
        ("separate-frame", {"prolongations": None}, "needs the 4 prolongations of u, not 0"),
        ("separate-frame", {"start_level": 6}, "start_level is 6, but levels are 1 to 5: choose one of these"),
        ("separate-frame", {"start_level": 0}, "start_level is 0, but levels are 1 to 5"),
        ("separate-frame", {"start_level": 2.0}, "start_level is 2.0; a whole number"),
        ("separate", {"start_level": 2}, "start_level is for nets with prolongations"),
    ],
)
def test_bad_nets_are_refused(name, options, message):
    problem, arrays = case("interval")
    with pytest.raises(ValueError, match=message):
        build(name, problem, arrays, **options)


def test_parameters_of_the_wrong_number_are_refused():
    problem, arrays = case("interval")
    with pytest.raises(ValueError, match=r"y has shape \(2, 3\), but the net takes \(B, 4\)"):
        build("full", problem, arrays)(torch.zeros(2, 3))
