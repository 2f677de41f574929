"""The sections of the page about processes, the model of many devices, and memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from fem_frames.memory import as_text
from training.scaling.model import (
    BATCH,
    BATCHES,
    COUNTS,
    DEVICES,
    NODE,
    SHARE,
    Device,
    step_seconds,
    this_processor,
)
from training.scaling.sections import Records, digits, of_study, table_lines

WORTH = 1.1  # a gain below this does not pay
ROOM = 24 * 2**30
DIMENSION = {"disks": 2, "cube": 3}
UNITS = {
    "flops": "operations / s",
    "bytes": "bytes / s, own memory",
    "call": "s to start an operation",
    "link": "bytes / s within a node",
    "network": "bytes / s between nodes",
    "latency": "s per hop within a node",
    "far_latency": "s per hop between nodes",
}

WORDS = {
    "operations": "operations take",
    "traffic": "traffic with memory takes",
    "calls": "the starts of operations take",
    "message": "the message takes",
}


# ---- processes


def processes(records: Records) -> Iterator[str]:
    found = of_study(records, "processes")
    table: dict[int, dict[int, float]] = {}
    for record in found:
        settings = record["settings"]
        table.setdefault(settings["levels"], {})[settings["processes"]] = record["step_ms"]
    if not found:
        return
    counts = sorted({count for own in table.values() for count in own})
    yield (
        f"Steps of {BATCH} samples in all, shared by processes of one thread each that torchrun starts on this "
        f"machine, which has {found[0]['machine']['cores']} cores (strong scaling). The full net with SOAP on "
        "`disks`; the least mean of five successive steps."
    )
    yield ""
    rows = []
    for J, own in sorted(table.items()):
        base = own.get(1)
        ratios = [digits(base / own[n], 2) if base and n in own else "–" for n in counts if n > 1]
        rows.append([J, *(digits(own.get(n)) for n in counts), *ratios])
    headings = [f"ms, {n} process{'es' * (n > 1)}" for n in counts]
    yield from table_lines(["J", *headings, *(f"speed-up by {n}" for n in counts if n > 1)], rows)
    yield ""
    for n in counts[1:]:
        gains = {J: own[1] / own[n] for J, own in sorted(table.items()) if 1 in own and n in own}
        if gains:
            worth = [J for J, gain in gains.items() if gain >= WORTH]
            told = f"pay at J = {', '.join(map(str, worth))}" if worth else "pay on none of these meshes"
            best = max(gains, key=lambda J: gains[J])
            yield f"- {n} processes {told}; at best they are {digits(gains[best], 2)} times as fast, at J = {best}."


def model(records: Records) -> Iterator[str]:
    """The counts of a step, the check of the model on this processor, and its predictions."""
    counted = sorted(of_study(records, "work"), key=lambda r: (DIMENSION[r["settings"]["problem"]], _levels(r)))
    if not counted:
        return
    yield (
        "**This is a model on paper. Nothing in it was measured on a GPU.** The work of a training step (full "
        "net, SOAP, stable loss) was counted operation by operation while it ran in torch: floating point "
        "operations, bytes that operations read and write, their number, and the one message per step with the "
        "gradient of all weights. The first two have a part for each sample, which devices share, and a part that "
        "each device does, mostly the optimizer's."
    )
    yield ""
    heads = ["problem", "J", "weights", "operations per sample", "per step", "bytes per sample", "per step", "calls"]
    rows = []
    for r in counted:
        each, once = r["per_sample"], r["per_step"]
        numbers = (each["flops"], once["flops"], each["bytes"], once["bytes"])
        start = [r["settings"]["problem"], _levels(r), r["facts"]["weights"]]
        rows.append([*start, *(f"{x:.2e}" for x in numbers), round(r["calls"]), as_text(r["message"])])
    yield from table_lines([*heads, "message"], rows)
    yield ""
    yield (
        "A step takes the sum of operations, traffic, calls and message over their rates, without any overlap; "
        "the message goes round a ring, 2 (n − 1) hops. On the processor that counted, whose rates were measured "
        "for products of matrices, copies and calls, the model can be compared with the measured step:"
    )
    yield ""
    told = [(r, 1e3 * step_seconds(r, this_processor(r["rates"]))["all"]) for r in counted]
    heads = ["problem", "J", "model, ms", "measured, ms", "measured / model"]
    checks = [
        [r["settings"]["problem"], _levels(r), digits(ms), digits(r["step_ms"]), digits(r["step_ms"] / ms, 2)]
        for r, ms in told
    ]
    yield from table_lines(heads, checks)
    yield ""
    ratios = [r["step_ms"] / ms for r, ms in told]
    yield (
        f"There it is off by factors of {digits(min(ratios), 2)} to {digits(max(ratios), 2)}; expect no more of it "
        "below."
    )
    yield ""
    yield f"Assumed rates, rounded from data sheets; {100 * SHARE:g} % of the first two are taken as attained:"
    yield ""
    names = [field.name for field in fields(Device) if field.name in UNITS]
    assumed = [[device.name, *(f"{getattr(device, name):.3g}" for name in names)] for device in DEVICES]
    yield from table_lines(["assumption", *(UNITS[name] for name in names)], assumed)
    for problem in DIMENSION:
        own = [r for r in counted if r["settings"]["problem"] == problem]
        if own:
            yield from _predictions(own[-1])


def _predictions(work: Mapping[str, Any]) -> Iterator[str]:
    problem, J = work["settings"]["problem"], _levels(work)
    yield ""
    yield (
        f"Predicted milliseconds of a step at J = {J} of `{problem}` ({work['facts']['unknowns']} unknowns) on n "
        f"devices, {NODE} in a node, for {' and '.join(map(str, BATCHES))} samples in all:"
    )
    yield ""
    pairs = [(device, batch) for device in DEVICES for batch in BATCHES]
    rows = [
        [
            n,
            *(
                digits(1e3 * step_seconds(work, device, n, batch)["all"]) if n <= batch else "–"
                for device, batch in pairs
            ),
        ]
        for n in COUNTS
    ]
    yield from table_lines(["n", *(f"{device.name}, {batch} samples" for device, batch in pairs)], rows)
    yield ""
    for device, batch in pairs:
        steps = {n: step_seconds(work, device, n, batch) for n in COUNTS if n <= batch}
        best = min(steps, key=lambda n: steps[n]["all"])
        gain = steps[1]["all"] / steps[best]["all"]
        best = best if gain >= WORTH else 1
        parts = {key: value for key, value in steps[best].items() if key != "all"}
        most = max(parts, key=lambda key: parts[key])
        share = 100 * parts[most] / steps[best]["all"]
        told = f"fastest on {best} of them, {digits(gain, 2)} times as fast as on one"
        told = "more than one do not pay" if best == 1 else told
        yield f"- {device.name}, {batch} samples: {told}; {WORDS[most]} {share:.0f} % of the step there."


def _levels(record: Mapping[str, Any]) -> int:
    return int(record["settings"]["levels"])


# ---- memory


def memory(records: Records) -> Iterator[str]:
    yield (
        "The peak of resident memory of a process that takes three training steps of 64 samples (full net, SOAP), "
        "or answers 64 queries by multigrid with two steps of conjugate gradients. It loads the frame from a "
        "file; torch and the modules are included. 24 GiB are 25.8 GB."
    )
    yield ""
    found = of_study(records, "memory")
    by_mesh: dict[tuple[int, str, int], dict[str, Any]] = {}
    for r in found:
        problem = r["settings"]["problem"]
        by_mesh.setdefault((DIMENSION[problem], problem, _levels(r)), {})[r["settings"]["task"]] = r
    rows = []
    for (_, problem, J), own in sorted(by_mesh.items()):
        measured = next((r for r in own.values() if "peak" in r), None)
        weights = own.get("training", {}).get("weights", "–")
        start = [problem, J, measured["unknowns"] if measured else "–", weights]
        rows.append([*start, *(_peak(own.get(task)) for task in ("training", "query"))])
    yield from table_lines(["problem", "J", "unknowns", "weights", "training", "64 queries"], rows)
    yield ""
    for problem in DIMENSION:
        for task, words in (("training", "trains"), ("query", "answers 64 queries")):
            yield from _memory_words(found, problem, task, words)


def _peak(record: Mapping[str, Any] | None) -> str:
    return "–" if record is None else as_text(record["peak"]) if "peak" in record else f"not run: {record['refused']}"


def growth(records: Records, problem: str, task: str) -> tuple[Mapping[str, Any], float] | None:
    """The record of the finest mesh that was run, and bytes per unknown from the coarser one before to it."""
    own = [r for r in of_study(records, "memory", problem=problem, task=task) if "peak" in r]
    own.sort(key=lambda r: r["unknowns"])
    if len(own) < 2:
        return None
    coarse, fine = own[-2:]
    return fine, (fine["peak"] - coarse["peak"]) / (fine["unknowns"] - coarse["unknowns"])


def predicted_peak(fine: Mapping[str, Any], each: float, problem: str, more: int) -> float:
    """Bytes on a mesh that is `more` levels finer."""
    return float(fine["peak"] + each * fine["unknowns"] * (2.0 ** (DIMENSION[problem] * more) - 1))


def largest(fine: Mapping[str, Any], each: float, problem: str) -> int:
    """The finest J with a predicted peak within `ROOM`; less than the one that was run if that took more."""
    more = 0 if fine["peak"] <= ROOM else -1
    while more >= 0 and predicted_peak(fine, each, problem, more + 1) <= ROOM:
        more += 1
    return _levels(fine) + more


def _memory_words(records: Records, problem: str, task: str, words: str) -> Iterator[str]:
    found = growth(records, problem, task)
    if found is None:
        return
    fine, each = found
    J, run = largest(fine, each, problem), _levels(fine)
    beyond = as_text(predicted_peak(fine, each, problem, J + 1 - run))
    role = "was run" if run == J else "was the finest one that was run"
    yield (
        f"- `{problem}`, {task}: {digits(each / 1000, 2)} kB per unknown between the two finest meshes. By that "
        f"J = {J} is the finest mesh that {words} in 24 GiB, and the next one takes about {beyond}. J = {run}, with "
        f"{fine['unknowns']} unknowns, {role}, with a peak of {as_text(fine['peak'])}."
    )
