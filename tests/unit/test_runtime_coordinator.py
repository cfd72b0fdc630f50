"""Where workers, Ray's controller and the driver meet."""

from pathlib import Path

import pytest

from trainingrun.api.contract import ContractStorage, ProgressResult, RunContract, RunState
from trainingrun_runtime.checkpoints.manifest import FileDigest, Manifest
from trainingrun_runtime.checkpoints.uploaded_checkpoint import Upload
from trainingrun_runtime.coordination.coordinator import Board
from trainingrun_runtime.progress import document as progress_document

CONTRACT = RunContract(
    name="digits", namespace="default", uid="0", attempt=1, storage=ContractStorage(uri="s3://b/r")
)


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(CONTRACT, 3, 1000.0, tmp_path / "progress.json", None)


def an_upload(step: int, group: int) -> Upload:
    return Upload(f"b/r/checkpoints/0001-000003/step-{step:010d}-{group}", step, 2, {})


def commit(board: Board, upload: Upload) -> None:
    path = upload.path.removeprefix("b/r/")
    manifest = Manifest(
        path=path, step=upload.step, world_size=2, attempt=1, epoch=3, index=1,
        files={"state.pt": FileDigest(1, "0" * 64)}, time=1000.0,
    )  # fmt: skip
    board.uploaded(upload)
    board.committed(upload, manifest, f"s3://b/r/{path}")


def test_a_later_step_of_a_former_group_does_not_count_as_this_groups_commit(board: Board):
    """After a fallback to an older checkpoint the steps begin again from there."""
    commit(board, an_upload(step=50, group=1))
    assert not board.settled("step-0000000040-2")
    commit(board, an_upload(step=40, group=2))
    assert board.settled("step-0000000040-2")


def test_uploads_are_handed_out_in_order_until_each_is_settled(board: Board):
    first, second = an_upload(10, 1), an_upload(20, 1)
    board.uploaded(first)
    board.uploaded(second)
    assert board.next_upload(0) == first
    assert board.next_upload(0) == first
    board.abandoned(first)
    assert board.next_upload(0) == second
    assert board.uploads_waiting() == 1
    board.abandoned(second)
    assert board.next_upload(0) is None


def test_the_oldest_trouble_with_the_store_is_shown_until_all_are_over(board: Board):
    board.storage("rank 0", "nobody answers")
    board.storage("lease", "refused")
    since = board.document().storage_error_since
    board.storage("rank 0", "still nobody answers")
    assert board.document().storage_error == "still nobody answers"
    assert board.document().storage_error_since == since
    board.storage("rank 0", None)
    assert board.document().storage_error == "refused"
    board.storage("lease", None)
    assert board.document().storage_error is None
    assert board.document().storage_error_since is None


def test_what_a_former_groups_ranks_told_of_the_store_goes_with_them(board: Board):
    board.storage("rank 1", "nobody answers")
    board.storage("commits", "nobody answers")
    board.group_started(2, 0, [])
    assert board.document().storage_error is not None
    board.storage("commits", None)
    assert board.document().storage_error is None


def test_a_group_that_ended_for_the_stores_sake_is_no_loss(board: Board):
    board.group_started(2, 0, [])
    records = board.document().records
    board.interrupted()
    assert board.document().state is RunState.RECOVERING
    assert board.document().records == records


def test_the_final_document_is_the_one_that_is_there(board: Board, tmp_path: Path):
    result = ProgressResult(metrics={"accuracy": 0.9})
    board.succeeded(result)
    found = progress_document.read(tmp_path / "progress.json")
    assert found is not None
    assert (found.state, found.result) == (RunState.SUCCEEDED, result)
