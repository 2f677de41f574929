"""The service `fem-frames serve`: the client of UM-Bridge against the library, many at once, its end."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from processes import run_program
from services import NAMED, Service, post, trained
from test_imports import ABSENT

from fem_frames import BoundaryFlux, OutputMap, PointValues, RegionMean, solve
from training import Surrogate
from training.service.batching import answer_each
from training.service.model import Forward
from training.service.requests import EVALUATE, GRADIENT, Question, RequestError, Settings

pytestmark = pytest.mark.serial
umbridge = pytest.importorskip("umbridge")
requests = pytest.importorskip("requests")
GOOD = [0.5, 0.5, 0.15]
OUTPUTS = [PointValues([[0.5, 0.5], [0.3, 0.6]]), RegionMean(), BoundaryFlux("all")]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run, trained when it is first asked for."""
    folder = tmp_path_factory.mktemp("service")
    return lambda name: trained(folder, name)


@pytest.fixture(scope="module")
def service(run):
    """Four outputs of a learned multigrid."""
    with Service(run("multigrid"), *NAMED) as started:
        yield started


@pytest.fixture(scope="module")
def nodal(run):
    """All nodal values of a net in float64."""
    with Service(run("net")) as started:
        yield started


@pytest.fixture(scope="module")
def surrogate(run):
    return Surrogate.load(run("multigrid"))


def model(service):
    return umbridge.HTTPModel(service.url, "forward")


def parameters(surrogate, count, seed=3):
    """Samples that stay inside of the box if they move a little."""
    middle = surrogate.problem.parameters.nominal
    return middle + 0.95 * (surrogate.problem.parameters.sample(count, seed) - middle)


def discrete_outputs(surrogate, y):
    """(B, s) outputs of the discrete solutions."""
    exact, samples = surrogate.formulation, torch.as_tensor(y)
    return OutputMap(exact, OUTPUTS).values(solve(exact, samples, 1e-12).w, samples).numpy()


# ---- answers


def test_values_are_those_of_the_surrogate(service, surrogate):
    client, y = model(service), parameters(surrogate, 3)
    assert client.get_input_sizes() == [3]
    assert client.get_output_sizes() == [4]
    assert client.supports_evaluate()
    assert client.supports_gradient()
    assert client.supports_apply_jacobian()
    assert not client.supports_apply_hessian()
    assert service.record["outputs"] == ["u(0.5, 0.5)", "u(0.3, 0.6)", "mean u", "flux all"]
    found = np.array([client([row.tolist()])[0] for row in y])
    np.testing.assert_allclose(found, surrogate.output(y, OUTPUTS).values, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("config", [{"bound": True}, {"tol": 1e-4}, {"adjoint": True}, {"adjoint": True, "tol": 1e-3}])
def test_bounds_hold_against_the_discrete_solution(service, surrogate, config):
    client, y = model(service), parameters(surrogate, 4, 8)
    assert client.get_output_sizes(config) == [4, 4]
    found = np.array([client([row.tolist()], config) for row in y])  # (B, 2, s)
    error = np.abs(found[:, 0] - discrete_outputs(surrogate, y))
    assert (error <= found[:, 1] + 1e-12).all()  # what the reference leaves
    assert found[:, 1].max() < {"bound": 1.0, "tol": 1e-3, "adjoint": 1e-6}[next(iter(config))]


def test_derivatives_of_outputs_agree_with_differences(service, surrogate):
    client, y, config = model(service), parameters(surrogate, 1)[0], {"tol": 1e-10}
    step, J = 1e-4, np.zeros((4, 3))
    for k in range(3):
        low, high = (np.array(client([(y + s * np.eye(3)[k]).tolist()], config)[0]) for s in (-step, step))
        J[:, k] = (high - low) / (2 * step)
    sens, v = [1.0, -2.0, 0.5, 0.25], [0.3, -0.2, 0.1]
    for settings in (config, {"adjoint": True}):
        gradient = client.gradient(0, 0, [y.tolist()], sens, settings)
        np.testing.assert_allclose(gradient, sens @ J, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(client.apply_jacobian(0, 0, [y.tolist()], v, settings), J @ v, rtol=1e-5, atol=1e-6)
    free = torch.tensor(y, requires_grad=True)
    goal = surrogate.differentiable_output(free, OUTPUTS)[0] @ torch.tensor(sens, dtype=torch.float64)
    (expected,) = torch.autograd.grad(goal, free)
    np.testing.assert_allclose(client.gradient(0, 0, [y.tolist()], sens), expected, rtol=1e-4, atol=1e-6)
    tangent = surrogate.output_tangent(y, v, OUTPUTS)[0]
    np.testing.assert_allclose(client.apply_jacobian(0, 0, [y.tolist()], v), tangent, rtol=1e-4, atol=1e-6)


def test_without_outputs_there_are_nodal_values_and_one_bound(nodal, run):
    client, loaded = model(nodal), Surrogate.load(run("net"))
    y = parameters(loaded, 1)[0]
    expected = loaded(y[None])["u"][0].numpy()
    n, p = len(expected), len(y)
    assert client.get_output_sizes() == [n]
    assert client.get_output_sizes({"bound": True}) == [n, 1]
    np.testing.assert_allclose(client([y.tolist()])[0], expected, rtol=1e-10, atol=1e-12)
    exact, samples = loaded.formulation, torch.as_tensor(y)[None]
    truth = solve(exact, samples, 1e-12).w
    off = float(exact.energy_norm(exact.frame.D(loaded.coefficients(y) - truth), samples))
    ((bound,),) = client([y.tolist()], {"bound": True})[1:]
    assert off <= bound == pytest.approx(float(loaded.error_bound(y)))
    values, (small,) = client([y.tolist()], {"tol": 1e-6})
    assert small <= 1e-6
    np.testing.assert_allclose(values, exact.synthesise(truth, samples)["u"][0], rtol=0, atol=1e-5)
    # Derivatives are those of the net's own answers.
    step, v, sens = 1e-5, np.linspace(-1, 1, p), np.linspace(0, 1, n)
    low, high = (np.array(client([(y + s * v).tolist()])[0]) for s in (-step, step))
    tangent = client.apply_jacobian(0, 0, [y.tolist()], v.tolist())
    np.testing.assert_allclose(tangent, (high - low) / (2 * step), rtol=1e-5, atol=1e-6)
    gradient = client.gradient(0, 0, [y.tolist()], sens.tolist())
    assert gradient @ v == pytest.approx(sens @ tangent, rel=1e-8)


def test_least_squares_has_values_and_derivatives_but_nothing_called_a_bound(run):
    loaded = Surrogate.load(run("least squares"))
    forward, y = Forward(loaded), tuple(loaded.problem.parameters.nominal[0].tolist())
    values = forward.answers([Question(EVALUATE, Settings(), y)])[0]
    assert [len(vector) for vector in values] == [*forward.sizes(Settings())]
    assert len(values) == 2  # u and sigma
    assert len(forward.answers([Question(GRADIENT, Settings(), y, 1, (1.0,) * len(values[1]))])[0]) == 4
    with Service(run("least squares")) as started:
        assert started.record["bounds"] is False
        for config in ({"tol": 0.1}, {"bound": True}, {"adjoint": True}):
            for path in ("Evaluate", "OutputSizes"):
                status, error = post(started, path, {"name": "forward", "input": [list(y)], "config": config})
                assert (status, error["type"]) == (400, "InvalidInput")
                assert "no bound in the energy norm" in error["message"] or "adjoint corrects" in error["message"]


# ---- many at once


def test_two_clients_at_once_are_batched_and_get_the_answers_of_one(service, surrogate):
    y = parameters(surrogate, 48, 21)
    clients, sens = (model(service), model(service)), [1.0, 0.0, 2.0, 0.0]
    kinds = {
        "Evaluate {}": lambda i: clients[i % 2]([y[i].tolist()])[0],
        'Evaluate {"tol": 0.0001}': lambda i: clients[i % 2]([y[i].tolist()], {"tol": 1e-4})[0],
        "Gradient {}": lambda i: clients[i % 2].gradient(0, 0, [y[i].tolist()], sens),
        "ApplyJacobian {}": lambda i: clients[i % 2].apply_jacobian(0, 0, [y[i].tolist()], [1.0, 2.0, -1.0]),
    }
    jobs = [(ask, i) for i in range(len(y)) for ask in kinds.values()]
    alone = [ask(i) for ask, i in jobs[:16]]
    before = len(service.log.splitlines())
    with ThreadPoolExecutor(32) as pool:
        together = list(pool.map(lambda job: job[0](job[1]), jobs))
    for one, other in zip(alone, together, strict=False):
        np.testing.assert_allclose(other, one, rtol=2e-4, atol=1e-6)
    lines = service.log.splitlines()[before:]
    sizes = {kind: [int(n) for n in re.findall(re.escape(kind) + r": (\d+) in", "\n".join(lines))] for kind in kinds}
    assert all(sum(counts) == len(y) for counts in sizes.values()), sizes
    assert max(map(max, sizes.values())) > 1, sizes


@pytest.mark.parametrize("kind", [EVALUATE, GRADIENT, "ApplyJacobian"])
@pytest.mark.parametrize("settings", [Settings(), Settings(1e-6), Settings(bound=True), Settings(adjoint=True)])
def test_batching_changes_rounding_only(surrogate, kind, settings):
    forward, y = Forward(surrogate, OUTPUTS), parameters(surrogate, 5, 2).tolist()
    vector = {EVALUATE: (), GRADIENT: (1.0, -1.0, 0.5, 2.0)}.get(kind, (0.1, 0.2, 0.3))
    questions = [Question(kind, settings, tuple(row), 0, vector) for row in y]
    together, alone = forward.answers(questions), [forward.answers([one])[0] for one in questions]
    np.testing.assert_allclose(np.array(together), np.array(alone), rtol=1e-5, atol=2e-7)


def test_a_question_without_an_answer_does_not_spoil_its_batch():
    def roots(questions):
        if any(q.y[0] < 0 for q in questions):
            raise ValueError("y of sample 0 is negative")
        if any(q.y[0] == 7 for q in questions):
            raise ZeroDivisionError("seven")
        return [[q.y[0] ** 0.5 if q.y[0] != 5 else float("nan")] for q in questions]

    found = answer_each(roots, [Question(EVALUATE, Settings(), (float(k),)) for k in (1, -1, 4, 5, 7, 9, 16)])
    errors = {k: found[k] for k in (1, 3, 4)}
    assert [f[0] for k, f in enumerate(found) if k not in errors] == [1, 2, 3, 4]
    assert all(isinstance(e, RequestError) for e in errors.values())
    assert [(e.status, e.kind, str(e)) for e in errors.values()] == [
        (400, "InvalidInput", "y is negative"),
        (500, "InvalidOutput", "the answer is not finite: ask for other parameters"),
        (500, "InternalError", "ZeroDivisionError: seven"),
    ]


def test_bad_requests_among_good_ones_fail_alone(service, surrogate):
    y = parameters(surrogate, 16, 4).tolist()
    bodies = [{"name": "forward", "input": [row if i % 4 else [9.0, 9.0, 9.0]]} for i, row in enumerate(y)]
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda body: post(service, "Evaluate", body), bodies))
    assert [status for status, _ in replies] == [200 if i % 4 else 400 for i in range(16)]


# ---- clients that go, and the end


def body(**changes):
    return {"name": "forward", "input": [GOOD], **changes}


def test_clients_that_disconnect_leave_the_service_alive(service):
    address = ("127.0.0.1", int(service.url.rpartition(":")[2]))
    content = json.dumps(body(config={"tol": 1e-8})).encode()
    head = b"POST /Evaluate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(content)
    for sent in (b"", b"POST /Eva", head, head + content[:20], head + content):
        for _ in range(5):
            with socket.create_connection(address, timeout=60) as raw:
                raw.sendall(sent)
    program = (
        "import sys, threading, umbridge\n"
        f"model = umbridge.HTTPModel({service.url!r}, 'forward')\n"
        f"ask = lambda: [model([{GOOD}], {{'tol': 1e-8}}) for _ in range(1000)]\n"
        "threads = [threading.Thread(target=ask, daemon=True) for _ in range(8)]\n"
        "[t.start() for t in threads]\nprint('asks', flush=True)\n[t.join(60) for t in threads]\n"
    )
    before = len(service.log)
    client = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert client.stdout.readline() == b"asks\n"
        until_logged(service, before)
    finally:
        client.kill()
        client.wait()
        client.stdout.close()
    assert post(service, EVALUATE, body())[0] == 200
    assert service.process.poll() is None
    assert "Traceback" not in service.log


def until_logged(service, before):
    """Waits until the service has answered a batch since then, for 30 seconds at most."""
    tick = threading.Event()
    for _ in range(600):
        if len(service.log) > before:
            return
        tick.wait(0.05)
    raise AssertionError("no batch was answered")


def test_a_signal_ends_it_also_while_clients_ask(run):
    """SIGTERM here, with connections that are kept and a client in the middle of its requests; SIGINT below."""
    with Service(run("multigrid"), *NAMED, batch=2) as started, requests.Session() as kept:
        kept.get(f"{started.url}/Info", timeout=60)
        seen, before = [], len(started.log)

        def ask():
            try:
                for _ in range(500):
                    reply = requests.post(f"{started.url}/Evaluate", json=body(config={"tol": 1e-8}), timeout=60)
                    seen.append(reply.status_code)
            except requests.RequestException:
                seen.append(None)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        until_logged(started, before)
        assert started.end(signal.SIGTERM) == 0
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert {*seen} <= {200, 503, None}
        assert "Traceback" not in started.log


def test_ctrl_c_ends_it_and_ports_in_use_are_named(service, run):
    port = service.url.rpartition(":")[2]
    command = [sys.executable, "-m", "fem_frames.commands", "serve", str(run("multigrid")), "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert (
        done.stderr
        == f"fem-frames: port {port} of 127.0.0.1 is in use: choose another one, or --port 0 for a free one\n"
    )
    with Service(run("multigrid"), "--mean", "all") as started:
        assert started.end(signal.SIGINT) == 0
        assert started.log == ""


# ---- the command


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--port", "70000"], "--port 70000: give a number from 0 to 65535"),
        (["--batch", "0"], "--batch 0: give at least one"),
        (["--host", "no.such.host.invalid", "--port", "0"], "cannot listen on port 0 of no.such.host.invalid"),
        (["--mean", "steel"], "there is no region 'steel'"),
        (["--point", "7,7"], "outside the domain"),
    ],
)
def test_options_that_cannot_be_used_are_named(run, options, message):
    program = f"from fem_frames.commands import main\nmain(['serve', {str(run('multigrid'))!r}, *{options}])"
    done = run_program(program)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_service_alone_needs_aiohttp(run):
    program = f"""
Absent.names = {{"aiohttp"}}
import fem_frames.commands.parser, training
from fem_frames.commands import main
fem_frames.commands.parser.make_parser().format_help()
main(["serve", {str(run("multigrid"))!r}])
"""
    done = run_program(ABSENT + program)
    assert done.returncode == 2
    assert 'pip install "fem-frames[serve]"' in done.stderr
    assert len(done.stderr.splitlines()) == 1
