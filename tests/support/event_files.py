"""TensorBoard's event files, read without TensorBoard."""

import struct
from typing import NamedTuple

from tensorboardX.proto.event_pb2 import Event

from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.tracking.event_files import FOLDER


class Curve(NamedTuple):
    """What one process has written."""

    first_step: int | None
    """What former processes wrote of this step and later ones is not shown; None: all is."""
    steps: list[int]
    """Steps of its scalars."""


def curves(bucket: Bucket) -> list[Curve]:
    """What each process has written, in the order in which they began."""
    files = bucket.list(FOLDER)
    return [_curve(bucket.get(file.key) or b"") for file in files]


def shown(found: list[Curve]) -> list[int]:
    """The steps that TensorBoard shows."""
    steps: list[int] = []
    for curve in found:
        if curve.first_step is not None:
            steps = [step for step in steps if step < curve.first_step]
        steps += curve.steps
    return steps


def _curve(content: bytes) -> Curve:
    first: int | None = None
    steps: list[int] = []
    at = 0
    while at + 12 <= len(content):
        (size,) = struct.unpack_from("<Q", content, at)
        event = Event.FromString(content[at + 12 : at + 12 + size])
        at += 12 + size + 4  # length and its checksum, the event, its checksum
        if event.HasField("session_log"):
            first = event.step
        elif event.HasField("summary"):
            steps.append(event.step)
    return Curve(first, steps)
