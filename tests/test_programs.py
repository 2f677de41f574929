"""Programs of scalar operations: derivatives against differences, two ways to evaluate them, and their files."""

import json
import math

import numpy as np
import pytest
import torch

from fem_frames.problem.differentiation import directional, gradient, hessian, with_gradient
from fem_frames.problem.program_values import evaluated
from fem_frames.problem.programs import BINARY, COUNTS, UNARY, NoProgramError, Operation, Program, ProgramBuilder

pytestmark = pytest.mark.serial

S = [("s", 0), ("s", 1), ("s", 2)]
SIZES = {"s": 3, "y": 2, "x": 2}
DIFFERENTIABLE = sorted(UNARY - {"logical_not"})
INSIDE = {"asin", "acos"}  # defined between -1 and 1


def of_one(name):
    """The operation applied to 0.3 + s0 s1 / 4, which is positive and below one."""
    b = ProgramBuilder()
    inner = b.add("add", 0.3, b.add("div", b.add("mul", S[0], S[1]), 4.0))
    return b.program(b.add("mul", b.add(name, inner), S[2]))


def of_two(name):
    b = ProgramBuilder()
    first, second = b.add("add", S[0], b.add("mul", S[1], S[1])), b.add("add", 1.2, b.add("mul", S[0], S[2]))
    return b.program(b.add("mul", b.add(name, first, second), S[1]))


def run(program, s, **others):
    s = np.asarray(s, np.float64)
    inputs = {"s": s, **others}
    found = evaluated(program, lambda given: np.asarray(inputs[given[0]][given[1]]), s)
    return [float(value) for value in found]


def differences(program, s, step=1e-6):
    found = []
    for k in range(len(s)):
        above, below = np.array(s, float), np.array(s, float)
        above[k] += step
        below[k] -= step
        found.append([(a - b) / (2 * step) for a, b in zip(run(program, above), run(program, below), strict=True)])
    return np.array(found).T


@pytest.mark.parametrize("name", [*DIFFERENTIABLE, *sorted(BINARY), "where"])
def test_derivatives_are_those_of_differences(name):
    if name == "where":
        b = ProgramBuilder()
        chosen = b.add("where", b.add("gt", S[0], S[1]), b.add("mul", S[0], S[2]), b.add("exp", S[1]))
        program = b.program(chosen)
    else:
        program = (of_one if name in UNARY else of_two)(name)
    for s in ([0.7, 0.4, 1.3], [0.2, 0.9, -0.8]):
        first = gradient(program, S)
        np.testing.assert_allclose(run(first, s), differences(program, s)[0], rtol=1e-7, atol=1e-8)
        np.testing.assert_allclose(run(with_gradient(program, S), s), [*run(program, s), *run(first, s)])
        second = [[run(entry, s)[0] for entry in row] for row in hessian(program, S)]
        np.testing.assert_allclose(second, differences(first, s), rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(second, np.transpose(second), rtol=1e-12, atol=1e-12)
        along = run(directional(first, S, "v"), s, v=np.array([0.3, -1.0, 2.0]))
        np.testing.assert_allclose(along, np.array(second) @ [0.3, -1.0, 2.0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("power", [-2.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 2.7, 9.0])
def test_powers_are_simplified_and_stay_powers(power):
    b = ProgramBuilder()
    program = b.program(b.add("pow", b.add("add", S[0], 1.0), power))
    assert run(program, [0.7, 0, 0])[0] == pytest.approx(1.7**power, rel=1e-14)
    assert run(gradient(program, S), [0.7, 0, 0])[0] == pytest.approx(power * 1.7 ** (power - 1), rel=1e-13)


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_torch_and_numpy_agree(name):
    arguments = (S[0], 0.5) if name in ("at_least", "at_most") else tuple(S[: COUNTS[name]])
    program = Program((Operation(name, arguments),), (("op", 0),))
    values = np.random.default_rng(0).uniform(0.1, 0.9, (3, 40))
    values[0, :5] = values[1, :5]  # equal arguments
    (one,) = evaluated(program, lambda given: values[given[1]], values)
    tensor = torch.as_tensor(values)
    (other,) = evaluated(program, lambda given: tensor[given[1]], tensor)
    np.testing.assert_allclose(np.asarray(one, float), other.double().numpy(), rtol=1e-14)


def test_operations_without_effect_are_left_out():
    b = ProgramBuilder()
    zero, same = b.add("mul", 0.0, S[0]), b.add("add", b.add("mul", S[1], 1.0), 0.0)
    assert (zero, same) == (0.0, S[1])
    assert b.add("sub", S[0], S[0]) == 0.0
    assert b.add("mul", 2.0, b.add("mul", 0.5, S[0])) == S[0]
    assert b.add("add", S[0], S[1]) == b.add("add", S[1], S[0])
    assert b.add("mul", 3.0, 4.0) == 12.0
    assert len(b.program(b.add("add", S[0], S[1])).operations) == 1


def test_numbers_that_do_not_exist_are_refused():
    for name, *arguments in (("log", -1.0), ("div", 1.0, 0.0), ("sqrt", -2.0), ("exp", 1e4)):
        with pytest.raises(NoProgramError, match=name):
            ProgramBuilder().add(name, *arguments)


def test_programs_travel_as_json():
    program = of_two("atan2")
    again = Program.from_record(json.loads(json.dumps(program.record())), SIZES)
    assert again == program


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"operations": [["system", ["s", 0]]], "results": []}, "unknown"),
        ({"operations": [["add", ["s", 0]]], "results": []}, "unknown"),
        ({"operations": [["neg", ["op", 0]]], "results": []}, "does not exist"),
        ({"operations": [["neg", ["s", 3]]], "results": []}, "does not exist"),
        ({"operations": [["neg", ["v", 0]]], "results": []}, "does not exist"),
        ({"operations": [["neg", math.inf]], "results": []}, "does not exist"),
        ({"operations": [["neg", True]], "results": []}, "does not exist"),
        ({"operations": [["neg", ["s", 0]]] * 5000, "results": []}, "at most"),
        ({"operations": []}, "lists"),
        ([], "lists"),
    ],
)
def test_damaged_programs_are_refused(damage, message):
    with pytest.raises(ValueError, match=message):
        Program.from_record(damage, SIZES)
