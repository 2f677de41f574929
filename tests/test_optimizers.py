"""Steps, Gauss-Newton products against dense matrices, and why optimizers stop."""

import copy
import math

import pytest
import pytorch_optimizer
import torch
from frames import dense_forms, nodal_forms
from small_runs import flat, small_objective
from torch.func import functional_call, jacrev

from training.optimizers.natural_gradient import NGD
from training.optimizers.soap import SOAP
from training.optimizers.steppers import cosine_rate, make_stepper
from training.precision import PRECISIONS, MasterWeights
from training.registry import OPTIMIZERS

pytestmark = pytest.mark.serial


def stepper_for(name, objective, precision="float64", rate=None):
    return make_stepper(name, objective.weights, PRECISIONS[precision], rate or OPTIMIZERS[name].rate)


def dense_gauss_newton(objective, net):
    """1/B Σ Jᵀ M J from the net's whole Jacobian and the matrix M of the form, from basix's tables."""
    batch, loss = objective._batch, objective.loss
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    jacobians = jacrev(lambda p: functional_call(net, p, (batch.y,)))(parameters)
    J = torch.cat([j.reshape(*j.shape[:2], -1) for j in jacobians.values()], dim=2)  # (B, n, P)
    formulation = loss.formulation
    forms = nodal_forms if loss.nodal else dense_forms
    M = 2 * formulation.factor * torch.as_tensor(forms(formulation.problem, formulation.frame.arrays, batch.y.numpy()))
    return torch.einsum("bip,bij,bjq->pq", J, M, J) / len(J)


@pytest.mark.parametrize(
    ("kind", "loss", "net"),
    [
        ("interval, LS", "stable", "full"),
        ("interval, LS", "bpx", "full"),
        ("interval, LS", "nodal", "full"),
        ("interval, LS", "stable", "separate-frame"),
        ("square", "stable", "separate"),
    ],
)
def test_the_gauss_newton_product_is_exact(kind, loss, net):
    objective, made = small_objective(kind, loss, net=net)
    dense = dense_gauss_newton(objective, made)
    torch.manual_seed(0)
    product = objective.gauss_newton()
    for _ in range(3):
        v = torch.randn(len(dense), dtype=torch.float64)
        torch.testing.assert_close(product(v), dense @ v, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-5), ("float16", 2e-2), ("bfloat16", 1e-1)])
def test_the_gauss_newton_product_in_low_precision(dtype, bound):
    low, net = small_objective(dtype=dtype)
    high, other = small_objective()
    for p, q in zip(other.parameters(), net.parameters(), strict=True):
        p.data.copy_(q)
    torch.manual_seed(0)
    v = torch.randn(sum(p.numel() for p in net.parameters()))
    want = high.gauss_newton()(v.double())
    assert float((low.gauss_newton()(v).double() - want).norm() / want.norm()) < bound


def test_a_natural_gradient_step_solves_what_is_linear_in_the_parameters():
    """Least squares |J θ - b|²/2: one step with enough iterations ends at the minimum, with fewer on the way to it."""
    torch.manual_seed(0)
    J, b = torch.randn(30, 12, dtype=torch.float64), torch.randn(30, dtype=torch.float64)
    theta = torch.nn.Parameter(torch.zeros(12, dtype=torch.float64))

    class LeastSquares:
        def __call__(self):
            return 0.5 * (J @ theta.detach() - b).square().sum()

        def gradient(self):
            return J.T @ (J @ theta.detach() - b)

        def gauss_newton(self):
            return lambda v: J.T @ (J @ v)

    problem, losses = LeastSquares(), [float(LeastSquares()())]
    for iterations in (3, 12):
        optimizer = NGD([theta], iterations=iterations, regularisation=1e-14)
        optimizer.step(problem)
        losses.append(float(problem()))
        assert optimizer.reason is None
    least = float(0.5 * (J @ torch.linalg.lstsq(J, b).solution - b).square().sum())
    assert losses[0] > losses[1] > losses[2] == pytest.approx(least, rel=1e-10)


def test_natural_gradients_need_few_steps():
    losses = {}
    for name in ("adam", "ngd"):
        objective, _ = small_objective(count=8, rank=4, blocks=2)
        step = stepper_for(name, objective)
        for _ in range(15):
            outcome = step(objective)
        losses[name] = float(outcome.loss)
    assert losses["ngd"] < 0.05 * losses["adam"]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(
    ("dtype", "mixed"),
    [
        *(("float16", False), ("bfloat16", False), ("float32", False), ("float64", False)),
        *(("float16", True), ("bfloat16", True)),
    ],
)
def test_every_optimizer_lowers_the_loss_in_every_precision(name, dtype, mixed):
    objective, _ = small_objective(dtype=dtype, mixed=mixed, count=8, rank=4, blocks=2)
    precision = "float32" if mixed else dtype
    step = stepper_for(name, objective, precision, rate=1e-2 if name in ("sgd", "adam", "soap") else None)
    losses = []
    for _ in range(30 if name in ("sgd", "adam", "soap") else 6):
        outcome = step(objective)
        if outcome.finite:
            objective.weights.succeeded()
            losses.append(float(outcome.loss))
        else:
            assert objective.weights.failed(), "only a loss scale that is too high may fail"
    assert min(losses) < 0.8 * losses[0]


def test_the_cosine_schedule_is_the_papers():
    rate = [cosine_rate(t, 5000, 1e-3, 1e-6) for t in (0, 1250, 2500, 5000, 6000)]
    middle = 1e-6 + 0.5 * (1e-3 - 1e-6)
    quarter = 1e-6 + 0.5 * (1e-3 - 1e-6) * (1 + math.cos(math.pi / 4))
    assert rate == pytest.approx([1e-3, quarter, middle, 1e-6, 1e-6])


def test_settings_are_those_of_the_paper():
    assert [PRECISIONS[p].adam_epsilon for p in ("float16", "float32", "float64")] == [1e-4, 1e-8, 1e-16]
    assert [PRECISIONS[p].minimum_rate for p in ("float16", "float32", "float64")] == [1e-4, 1e-6, 1e-10]
    assert [PRECISIONS[p].tolerance for p in ("float16", "float32", "float64")] == [1e-4, 1e-8, 1e-12]
    assert [PRECISIONS[p].natural_gradient for p in ("float16", "float32", "float64")] == [1e-9, 1e-12, 1e-14]
    objective, _ = small_objective()
    group = stepper_for("lbfgs", objective).optimizer.param_groups[0]
    settings = {k: group[k] for k in ("lr", "max_iter", "max_eval", "history_size", "line_search_fn")}
    assert settings == {
        "lr": 1.0,
        "max_iter": 20,
        "max_eval": 25,
        "history_size": 100,
        "line_search_fn": "strong_wolfe",
    }
    group = stepper_for("ngd", objective).optimizer.param_groups[0]
    assert (group["lr"], group["iterations"], group["line_search_steps"]) == (1.0, 20, 20)
    assert stepper_for("adam", objective, "float16").optimizer.param_groups[0]["eps"] == 1e-4


SHAPES = [(40, 5), (40,), (3, 40), (3,), (40, 3), (2, 3, 40), (2, 3, 1), (2, 50, 3), (2, 50, 1)]


def soap_beside_the_other(steps, dtype, **options):
    """Parameters after each step of our SOAP, and after that of another library, which takes matrices one by one."""
    torch.manual_seed(0)
    sizes = [math.prod(shape) for shape in SHAPES]
    vector = torch.nn.Parameter(torch.randn(sum(sizes), dtype=dtype))
    single = []
    for shape, part in zip(SHAPES, vector.detach().clone().split(sizes), strict=True):
        single += [
            torch.nn.Parameter(p.squeeze(-1)) for p in (part.view(shape) if len(shape) == 3 else [part.view(shape)])
        ]
    ours = SOAP(vector, SHAPES, **options)
    theirs = pytorch_optimizer.SOAP(single, weight_decay=0.0, max_precondition_dim=5, **options)
    mixing = torch.randn(sum(sizes), 4, dtype=dtype)  # gradients with a few directions in common
    for _ in range(steps):
        vector.grad = mixing @ torch.randn(4, dtype=dtype) + 0.1 * torch.randn_like(vector)
        for p, g in zip(single, vector.grad.split([p.numel() for p in single]), strict=True):
            p.grad = g.view(p.shape).clone()
        ours.step()
        theirs.step()
        yield vector.detach().clone(), torch.cat([p.detach().reshape(-1) for p in single])


def test_soap_is_that_of_matrices_one_by_one():
    """Up to the first change of bases to rounding; the other library computes these in float32."""
    for step, (ours, theirs) in enumerate(soap_beside_the_other(60, torch.float64, lr=1e-2)):
        close = 1e-12 if step <= 10 else 1e-5
        torch.testing.assert_close(ours, theirs, rtol=0, atol=close)
    assert float((ours - theirs).abs().max()) > 0  # not the same memory


def test_soap_moves_all_but_in_its_first_step():
    before, after = (ours for ours, _ in soap_beside_the_other(2, torch.float32))
    torch.manual_seed(0)
    assert torch.equal(before, torch.randn(len(before)))
    assert (before != after).all()


def test_soap_goes_on_from_its_state():
    """Through `state_dict`, to the same bits."""

    def run(steps, again):
        torch.manual_seed(1)
        vector = torch.nn.Parameter(torch.zeros(330))
        shapes = [(30, 5), (6, 30)]
        made = SOAP(vector, shapes)
        for step in range(steps):
            vector.grad = torch.randn(330)
            made.step()
            if step == again:
                state = copy.deepcopy(made.state_dict())
                made = SOAP(vector, shapes)
                made.load_state_dict(state)
        return vector.detach()

    assert torch.equal(run(25, 14), run(25, None))


def test_lbfgs_says_that_the_gradient_is_small():
    objective, _ = small_objective(count=1)
    step = stepper_for("lbfgs", objective)
    for _ in range(30):
        step(objective)
    outcome = stepper_for("lbfgs", objective, "float16")(objective)
    assert outcome.reason.startswith("the gradient, at most")
    assert outcome.reason.endswith("is below the tolerance 1e-04")
    assert not outcome.moved


def test_lbfgs_says_that_it_goes_nowhere():
    objective, _ = small_objective(count=1)
    step = stepper_for("lbfgs", objective, "float16")  # with tolerances that are soon met
    reasons = [step(objective).reason for _ in range(40)]
    assert reasons[-1] is not None
    assert "below the tolerance 1e-04" in reasons[-1]


def test_natural_gradients_say_that_there_is_nothing_to_do():
    _, net = small_objective()
    optimizer = NGD(net.parameters())

    class Flat:
        def __call__(self):
            return torch.tensor(0.0)

        def gradient(self):
            return torch.zeros(3)

    optimizer.step(Flat())
    assert optimizer.reason == "the gradient is zero"
    assert not optimizer.moved


def test_natural_gradients_say_that_the_line_search_failed_and_that_there_is_no_curvature():
    """A closure whose slope promises descent where there is none, and a matrix that is not positive."""
    parameter = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))

    class Lying:
        sign = 1.0

        def __call__(self):
            return (parameter.detach() ** 2).sum()

        def gradient(self):
            return torch.ones(2, dtype=torch.float64)

        def gauss_newton(self):
            return lambda v: self.sign * v

    optimizer = NGD([parameter])
    optimizer.step(Lying())
    assert optimizer.reason.startswith("the line search failed after")
    assert not optimizer.moved
    assert torch.equal(parameter, torch.zeros(2, dtype=torch.float64))
    lying = Lying()
    lying.sign = -1.0
    optimizer.step(lying)
    assert "line search failed" in optimizer.reason or "no curvature" in optimizer.reason


def test_a_line_search_that_ends_in_nonsense_leaves_the_parameters_alone():
    objective, net = small_objective(dtype="float16")
    with torch.no_grad():
        net.layers[0].b.fill_(torch.inf)
    spoilt = flat(net.parameters()).clone()
    for name in ("lbfgs", "ngd", "adam"):
        outcome = stepper_for(name, objective, "float16")(objective)
        assert not outcome.finite
        assert torch.equal(flat(net.parameters()), spoilt)


def test_a_line_search_that_leaves_the_range_is_undone(monkeypatch):
    objective, net = small_objective(dtype="float16")
    before = flat(net.parameters()).clone()
    step = stepper_for("lbfgs", objective, "float16")

    def overflowing(closure):
        loss = closure()
        with torch.no_grad():
            objective.weights.vector.fill_(torch.nan)
        return loss

    monkeypatch.setattr(step.optimizer, "step", overflowing)
    outcome = step(objective)
    assert outcome.reason == "the line search failed: it left the range of torch.float16"
    assert not outcome.moved
    assert torch.equal(flat(net.parameters()), before)


def test_a_line_search_comes_back_from_where_the_loss_is_no_number():
    class Cliff:
        """|p - 1|² up to p = 0.5, NaN beyond."""

        def __init__(self):
            self.vector = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))

        def __call__(self):
            p = self.vector.detach()
            self.vector.grad = torch.where(p > 0.5, torch.nan, 2 * (p - 1))
            return torch.where(p > 0.5, torch.nan, (p - 1) ** 2).sum()

        def finite(self, loss):
            return bool(torch.isfinite(loss))

        def gradient(self):
            return self.vector.grad

        def gauss_newton(self):
            return lambda v: 0.5 * v

    for name in ("lbfgs", "ngd"):
        cliff = Cliff()
        outcome = make_stepper(name, cliff, PRECISIONS["float64"], 1.0)(cliff)
        assert outcome.finite
        assert 0 <= float(cliff.vector.detach()) <= 0.5


def test_the_loss_scale_halves_on_overflow_and_doubles_after_a_while():
    objective, net = small_objective(dtype="float16", mixed=True)
    weights = objective.weights
    weights.scale = 2.0**24
    assert not objective.finite(objective())  # overflows in half
    while not objective.finite(objective()):
        assert weights.failed()
    scale = weights.scale
    gradient = objective.gradient()
    weights.scale = scale / 4
    objective()
    torch.testing.assert_close(objective.gradient(), gradient, rtol=2e-2, atol=1e-4)  # the scale itself does not show
    for _ in range(MasterWeights.GROWTH_INTERVAL):
        weights.succeeded()
    assert weights.scale == scale / 2
    for _ in range(60):
        alive = weights.failed()
    assert not alive
    assert next(net.parameters()).dtype == torch.float16
    assert weights.vector.dtype == torch.float32


def test_master_weights_keep_updates_that_half_precision_loses():
    objective, net = small_objective(dtype="float16", mixed=True)
    weights = objective.weights
    with torch.no_grad():
        weights.vector.fill_(1.0)
        for _ in range(100):
            weights.vector.add_(1e-5)  # vanishes against 1 in float16
    weights.push()
    assert float(next(net.parameters()).detach().float().min()) > 1.0


def test_samples_of_a_batch_count_alike_in_half_precision():
    """The mean is taken last: gradients of many samples are as accurate as those of one."""
    low, net = small_objective(dtype="float16", count=64)
    high, other = small_objective(count=64)
    for p, q in zip(other.parameters(), net.parameters(), strict=True):
        p.data.copy_(q)
    low(), high()
    off = low.gradient().double() - high.gradient()
    assert float(off.norm() / high.gradient().norm()) < 5e-3


def test_gradients_whose_sum_half_precision_cannot_hold_are_averaged_first():
    """Means of large gradients fit where their sum over a batch does not."""
    count = 64
    for power in range(60):
        exact, net = small_objective(dtype="float64", count=count)
        with torch.no_grad():
            for p in net.parameters():
                p.copy_((p * 1.1**power).half())
        exact()
        largest = float(exact.gradient().abs().max())
        if largest > 2000:
            break
    assert 65504 / count < largest < 65504
    objective, low = small_objective(dtype="float16", count=count)
    with torch.no_grad():
        objective.weights.vector.copy_(flat(net.parameters()))
    assert torch.equal(flat(low.parameters()).double(), flat(net.parameters()))
    assert objective.finite(objective())
    off = objective.gradient().double() - exact.gradient()
    assert off.norm() < 0.02 * exact.gradient().norm()
