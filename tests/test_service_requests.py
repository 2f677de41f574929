"""Requests to the service `fem-frames serve` that it cannot answer: each gets a reason, and none ends it."""

import socket

import pytest
from services import NAMED, Service, post, trained

from training.service.requests import EVALUATE, GRADIENT

pytestmark = pytest.mark.serial
umbridge = pytest.importorskip("umbridge")
requests = pytest.importorskip("requests")
GOOD = [0.5, 0.5, 0.15]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """Four outputs of a learned multigrid."""
    with Service(trained(tmp_path_factory.mktemp("service"), "multigrid"), *NAMED) as started:
        yield started


def body(**changes):
    return {"name": "forward", "input": [GOOD], **changes}


def derivative(**changes):
    whole = body(outWrt=0, inWrt=0, sens=[1.0] * 4, vec=[1.0] * 3) | changes
    return {key: value for key, value in whole.items() if value != "left"}


def text_of(value):
    """The body of an Evaluate request with this text for the first parameter."""
    return b'{"name": "forward", "input": [[%s, 0.5, 0.15]]}' % value


BAD = {
    "no JSON": (EVALUATE, b"y = 1", "the body is no JSON"),
    "nothing": (EVALUATE, b"", "the body is no JSON"),
    "no text": (EVALUATE, b"\xff\xfe\x00", "the body is no JSON"),
    "a list": (EVALUATE, b"[1, 2]", "a JSON object is expected"),
    "a number": (EVALUATE, b"3", "a JSON object is expected"),
    "nested": (EVALUATE, b"[" * 200_000, "nested too deeply"),
    "no name": (EVALUATE, {"input": [GOOD]}, "the key name is missing"),
    "another model": (EVALUATE, body(name="backward"), "there is no model 'backward'"),
    "a list as name": (EVALUATE, body(name=["forward"]), "there is no model"),
    "another model's info": ("ModelInfo", {"name": "backward"}, "there is no model 'backward'"),
    "no input": (EVALUATE, {"name": "forward"}, "the key input is missing"),
    "a text as input": (EVALUATE, body(input="0.5"), "a list with one vector of 3 parameters is expected"),
    "two vectors": (EVALUATE, body(input=[GOOD, GOOD]), "input is 2 vectors"),
    "no vector": (EVALUATE, body(input=[]), "input is 0 vectors"),
    "a flat vector": (EVALUATE, body(input=GOOD), "input is 3 vectors"),
    "a number as vector": (EVALUATE, body(input=[0.5]), "a list of 3 numbers is expected"),
    "short": (EVALUATE, body(input=[GOOD[:2]]), "has 2 entries; 3 are expected"),
    "long": (EVALUATE, body(input=[[*GOOD, 1.0]]), "has 4 entries; 3 are expected"),
    "text": (EVALUATE, text_of(b'"0.5"'), "a number is expected"),
    "null": (EVALUATE, text_of(b"null"), "a number is expected"),
    "true": (EVALUATE, text_of(b"true"), "entry 0 of the vector in input is True; a number is expected"),
    "nested number": (EVALUATE, text_of(b"[0.5]"), "a number is expected"),
    "NaN": (EVALUATE, text_of(b"NaN"), "NaN is no number of JSON"),
    "Infinity": (EVALUATE, text_of(b"-Infinity"), "Infinity is no number of JSON"),
    "1e999": (EVALUATE, text_of(b"1e999"), "too large"),
    "a large whole number": (EVALUATE, text_of(b"9" * 400), "too large"),
    "a very large whole number": (EVALUATE, text_of(b"9" * 9000), "the body is no JSON"),
    "outside": (EVALUATE, text_of(b"1e300"), "is outside the parameters"),
    "unknown setting": (EVALUATE, body(config={"Tol": 1}), "the known ones are tol, bound, adjoint"),
    "config": (EVALUATE, body(config=[1]), "config is a list of 1 entries; a JSON object is expected"),
    "tol of 0": (EVALUATE, body(config={"tol": 0}), "a positive bound for the error is expected"),
    "true tol": (EVALUATE, body(config={"tol": True}), "tol in config is True; a number is expected"),
    "tol as text": (EVALUATE, body(config={"tol": "1"}), "a number is expected"),
    "bound as number": (EVALUATE, body(config={"bound": 1}), "true or false is expected"),
    "adjoint as text": (EVALUATE, body(config={"adjoint": "yes"}), "true or false is expected"),
    "tol without bound": (EVALUATE, body(config={"tol": 1.0, "bound": False}), "come with bounds: leave out bound"),
    "unreachable": (EVALUATE, body(config={"tol": 1e-30}), "rounding allows no smaller one"),
    "sizes of unknown settings": ("OutputSizes", body(config={"x": 1}), "unknown key 'x'"),
    "input sizes": ("InputSizes", body(config=3), "config is 3; a JSON object is expected"),
    "outWrt": (GRADIENT, derivative(outWrt=1), "outWrt is 1; a whole number from 0 to 0 is expected"),
    "negative outWrt": (GRADIENT, derivative(outWrt=-1), "outWrt is -1"),
    "outWrt as text": (GRADIENT, derivative(outWrt="0"), "outWrt is '0'"),
    "true outWrt": (GRADIENT, derivative(outWrt=False), "outWrt is False"),
    "inWrt": ("ApplyJacobian", derivative(inWrt=1), "inWrt is 1"),
    "no inWrt": (GRADIENT, derivative(inWrt="left"), "the key inWrt is missing"),
    "no sens": (GRADIENT, derivative(sens="left"), "the key sens is missing"),
    "short sens": (GRADIENT, derivative(sens=[1.0]), "sens has 1 entries; 4 are expected"),
    "sens with text": (GRADIENT, derivative(sens=[1.0, "2", 3.0, 4.0]), "entry 1 of sens is '2'; a number is expected"),
    "long vec": ("ApplyJacobian", derivative(vec=[1.0] * 4), "vec has 4 entries; 3 are expected"),
    "bounds": (GRADIENT, derivative(config={"tol": 1.0}, outWrt=1), "the vector of bounds, which has no derivatives"),
    "too large": (EVALUATE, b" " * 2**22, "the body is too large"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_requests_are_refused_with_a_reason(service, case):
    path, content, message = BAD[case]
    status, error = post(service, path, content)
    assert status == 400
    assert message in error["message"], error
    assert error["type"] == ("ModelNotFound" if "there is no model" in message else "InvalidInput")
    assert len(error["message"]) < 400
    assert "Traceback" not in service.log


def test_what_the_protocol_has_beyond_is_answered_with_its_errors(service):
    client = umbridge.HTTPModel(service.url, "forward")
    with pytest.raises(Exception, match=r"InvalidInput: y = .* is outside the parameters"):
        client([[5.0, 5.0, 5.0]])
    with pytest.raises(Exception, match="ApplyHessian not supported"):
        client.apply_hessian(0, 0, 0, [GOOD], [1.0] * 4, [1.0] * 3)
    status, error = post(service, "ApplyHessian", body())
    assert (status, error["type"]) == (400, "UnsupportedFeature")
    assert post(service, "Nowhere", body())[0] == 404
    assert requests.get(f"{service.url}/Evaluate", timeout=60).json()["error"]["message"].startswith("GET /Evaluate")
    with socket.create_connection(("127.0.0.1", int(service.url.rpartition(":")[2])), timeout=60) as raw:
        raw.sendall(b"\x00\x01 this is no HTTP\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.")
    assert post(service, EVALUATE, body(config=None))[0] == 200
    shared = umbridge.HTTPModel(service.url, "forward", use_shmem=True)  # there is none, and the client goes on by HTTP
    assert not shared.supports_shmem()
    assert shared([GOOD]) == client([GOOD])
    assert "Traceback" not in service.log
