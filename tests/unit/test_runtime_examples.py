"""The examples' own parts: batches, settings, IDX files and models."""

import gzip
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from trainingrun_runtime.examples.mnist_resnet18 import load_idx, parse_idx, resnet18
from trainingrun_runtime.examples.repeatable import (
    Pace,
    batch,
    configured,
    steps_per_epoch,
    weights_sha256,
)
from trainingrun_runtime.store.bucket import Bucket


def test_a_batch_depends_on_the_step_alone() -> None:
    straight = [batch(step, 100, 8, rank=1, workers=2, seed=3).tolist() for step in range(20)]
    again = [batch(step, 100, 8, rank=1, workers=2, seed=3).tolist() for step in range(13, 20)]
    assert straight[13:] == again
    assert straight != [batch(step, 100, 8, 1, 2, seed=4).tolist() for step in range(20)]


def test_an_epoch_takes_no_sample_twice_and_each_has_its_own_order() -> None:
    def epoch(number: int) -> list[int]:
        steps = range(number * 6, (number + 1) * 6)
        return [i for s in steps for rank in (0, 1) for i in batch(s, 100, 8, rank, 2, 0).tolist()]

    assert steps_per_epoch(100, 8, 2) == 6
    assert len(set(epoch(0))) == 96
    assert epoch(0) != epoch(1)


def test_more_samples_per_step_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="need 200 samples per step, and there are 100"):
        steps_per_epoch(100, 50, 4)


@dataclass(frozen=True)
class Settings:
    lr: float = 0.1


def test_a_misspelled_setting_is_refused_with_the_known_ones() -> None:
    assert configured(Settings, {"lr": 0.5}) == Settings(0.5)
    assert configured(Settings, None) == Settings()
    with pytest.raises(ValueError, match="has 'learning_rate'; this example knows lr"):
        configured(Settings, {"learning_rate": 0.5})


def test_the_weights_digest_sees_one_bit_and_no_wrapper() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    before = weights_sha256(model)
    wrapped = torch.nn.Module()
    wrapped.add_module("module", model)
    assert weights_sha256(wrapped) == before
    with torch.no_grad():
        model.bias[0] = torch.nextafter(model.bias[0], torch.tensor(9.0))
    assert weights_sha256(model) != before


def test_resnet18_is_a_resnet18() -> None:
    model = resnet18(width=4)
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    convolutions = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    weighted = [m for m in convolutions if m.kernel_size == (3, 3)]
    assert len(weighted) + 1 == 18, "17 convolutions and one classifier; shortcuts are not counted"
    assert sum(p.numel() for p in resnet18().parameters()) == 11_172_810


def an_idx_file(array: np.ndarray) -> bytes:
    kinds = {"uint8": 0x08, "int8": 0x09, "int16": 0x0B, "int32": 0x0C, "float32": 0x0D}
    shape = struct.pack(f">{array.ndim}I", *array.shape)
    content = array.astype(array.dtype.newbyteorder(">")).tobytes()
    return bytes([0, 0, kinds[array.dtype.name], array.ndim]) + shape + content


@pytest.mark.parametrize("kind", ["uint8", "int8", "int16", "int32", "float32"])
def test_idx_files_are_read(kind: str) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(kind)
    parsed = parse_idx(an_idx_file(array))
    np.testing.assert_array_equal(parsed, array)
    assert parsed.dtype == array.dtype
    torch.from_numpy(parsed)  # in this machine's byte order, and writable


GOOD = an_idx_file(np.arange(10, dtype="uint8"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"", "not an IDX file", id="empty"),
        pytest.param(b"<html>", "not an IDX file", id="HTML"),
        pytest.param(b"\0\0\x07\x01\0\0\0\0", "not an IDX file", id="another type"),
        pytest.param(GOOD[:6], "ends within its header", id="torn header"),
        pytest.param(GOOD[:-1], "has 17 bytes instead of 18", id="one byte short"),
        pytest.param(GOOD + b"x", "has 19 bytes instead of 18", id="one byte more"),
    ],
)
def test_what_is_not_idx_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_idx(content)


def test_idx_files_are_found_packed_or_not(tmp_path: Path) -> None:
    bucket = Bucket.open(f"file://{tmp_path}")
    bucket.put("plain", GOOD)
    bucket.put("packed.gz", gzip.compress(GOOD))
    bucket.put("broken.gz", gzip.compress(GOOD)[:-4])
    assert load_idx(bucket, "plain").tolist() == load_idx(bucket, "packed").tolist()
    with pytest.raises(ValueError, match=r"has neither absent nor absent\.gz"):
        load_idx(bucket, "absent")
    with pytest.raises(ValueError, match=r"broken\.gz cannot be used"):
        load_idx(bucket, "broken")


def test_rank_0_keeps_the_step_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEP_LOG_FOLDER", str(tmp_path))
    monkeypatch.setenv("POD_NAME", "worker-a")
    for rank in (0, 1):
        pace = Pace(0.0, rank)
        pace(0)
        pace(1)
    lines = (tmp_path / "worker-a.log").read_text().splitlines()
    assert [line.split()[1] for line in lines] == ["1", "2"]


def test_a_file_in_the_journal_folder_changes_the_pace_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEP_LOG_FOLDER", str(tmp_path))
    slow = Pace(3600.0, rank=0)
    (tmp_path / "pace").write_text("0.2")
    for step in range(2):
        slow.wait()
        slow(step)
    (journal,) = tmp_path.glob("*.log")
    first, second = (float(line.split()[0]) for line in journal.read_text().splitlines())
    assert 0.1 < second - first < 60
