"""A model of the time of a training step on many devices: work counted on one processor, rates taken from data sheets.

Nothing here is measured on a GPU. A step takes the sum of the times of its operations, of its traffic with memory, of
the starts of its operations and of one message, without any overlap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

BATCH = 64
BATCHES = (64, 4096)
COUNTS = (1, 2, 4, 8, 16, 64, 256)
NODE = 8  # devices in a node
SHARE = 0.5  # of the rates of data sheets that is assumed to be attained


@dataclass(frozen=True)
class Device:
    """Rates of a device. All are assumptions unless they say that they were measured."""

    name: str
    flops: float
    """Operations in float32 per second, without matrix units."""
    bytes: float
    """Bytes per second from and to its memory."""
    call: float
    """Seconds to start an operation."""
    link: float
    """Bytes per second and direction between devices of a node."""
    network: float
    """The same between nodes, for each device."""
    latency: float = 5e-6
    """Seconds until a message arrives within a node."""
    far_latency: float = 15e-6
    """The same between nodes."""
    share: float = SHARE
    """The share of flops and bytes that is attained."""


DEVICES = (
    Device("A100-like", 19.5e12, 2.0e12, 5e-6, 300e9, 25e9),
    Device("H100-like", 67e12, 3.35e12, 5e-6, 450e9, 50e9),
)


def this_processor(rates: Mapping[str, float]) -> Device:
    """The processor that the work was counted on, with its measured rates."""
    return Device("this processor", rates["flops"], rates["bytes"], rates["call"], 1.0, 1.0, share=1.0)


def step_seconds(work: Mapping[str, Any], device: Device, count: int = 1, batch: int = BATCH) -> dict[str, float]:
    """Seconds of a step of `batch` samples on `count` devices, by parts, and in all."""
    samples = ceil(batch / count)
    amount = {key: samples * work["per_sample"][key] + work["per_step"][key] for key in ("flops", "bytes")}
    parts = {
        "operations": amount["flops"] / (device.share * device.flops),
        "traffic": amount["bytes"] / (device.share * device.bytes),
        "calls": work["calls"] * device.call,
        "message": message_seconds(work["message"], device, count),
    }
    return {**parts, "all": sum(parts.values())}


def message_seconds(size: float, device: Device, count: int) -> float:
    """The sum of `size` bytes over all devices in a ring: 2 (n - 1) hops, of an n-th of the bytes each."""
    if count == 1:
        return 0.0
    far = count > NODE
    rate, latency = (device.network, device.far_latency) if far else (device.link, device.latency)
    return 2 * (count - 1) * (size / count / rate + latency)
