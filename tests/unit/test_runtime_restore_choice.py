"""The ranks agree on a checkpoint, or end: no run's folder keeps them searching for ever."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from support.checkpoints import put, saved
from trainingrun_protocol.contract import ContractRestore
from trainingrun_runtime.checkpoints.encoding import TAG, UnknownForm
from trainingrun_runtime.coordinator.ranks import RestoreSearch
from trainingrun_runtime.store import restore_source, verification
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.lease import Lease
from trainingrun_runtime.worker import restore


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong in a store is asked for again without a pause."""
    monkeypatch.setattr(verification, "PAUSES_S", (0.0, 0.0, 0.0))


class Remote:
    """Calls of an actor, answered at once."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self._actor, name))


@pytest.fixture
def only_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Arguments of the only rank of a group, in this process."""
    monkeypatch.setattr(restore.ray, "get", lambda answer: answer)
    monkeypatch.setattr(restore, "broadcast_from_rank_zero", lambda value: value)
    monkeypatch.setattr(restore, "barrier", lambda: None)
    context = SimpleNamespace(get_local_world_size=lambda: 1)
    monkeypatch.setattr(restore.ray.train, "get_context", lambda: context)
    own = Bucket.open((tmp_path / "own").as_uri())
    Lease.take(own, 1, "pod", 100)
    return {
        "rank": 0,
        "world_size": 1,
        "own": own,
        "coordinator": Remote(RestoreSearch()),
        "retry": lambda call: call(),
    }


def test_a_run_whose_checkpoints_are_never_intact_is_given_up_in_a_sentence(
    only_rank: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It trains, so that there is a newer one after each."""
    other = Bucket.open((tmp_path / "other").as_uri())
    tried: list[int] = []
    choose = restore_source.choose

    def newer(*arguments: Any) -> Any:
        tried.append(len(tried) + 1)
        made = saved(other, tmp_path / "files", step=tried[-1], index=tried[-1])
        key = f"{made.path}/rank-0/state.pt"
        other.put(key, bytes(len(other.get(key) or b"")))
        return choose(*arguments)

    monkeypatch.setattr(restore, "MOST_TRIED", 5)
    monkeypatch.setattr(restore_source, "choose", newer)
    with pytest.raises(restore_source.NothingToRestore) as ended:
        restore.agree(
            **only_rank, source=ContractRestore(uri=other.root, endpoint=None, region=None)
        )
    assert tried == [1, 2, 3, 4, 5]
    assert str(ended.value).startswith("5 checkpoints were tried and none could be restored, the")
    assert "step-0000000005-5/rank-0/state.pt has another content than was commi" in str(
        ended.value
    )


@pytest.mark.parametrize("session", [False, True, None])
def test_a_file_that_is_named_like_a_sessions_makes_no_checkpoint_a_sessions(
    only_rank: dict[str, Any], tmp_path: Path, session: bool | None
) -> None:
    """Of an older manifest nobody knows, so there it does."""
    files = tmp_path / "files"
    files.mkdir()
    torch.save({"weights": torch.ones(2), "epoch": 3}, files / "session.pt")
    put(only_rank["own"], files, step=20, index=1, session=session)
    chosen = restore.agree(**only_rank, source=None)
    if session is False:
        assert chosen.fetched is not None
        assert chosen.fetched.manifest.step == 20
        chosen.fetched.close()
    else:
        assert chosen.fetched is None
        assert "session.pt cannot be read" in chosen.skipped[0]


def test_a_checkpoint_of_a_later_version_is_neither_refused_nor_passed_over(
    only_rank: dict[str, Any], tmp_path: Path
) -> None:
    """The rank fails: the run would begin at an older one, and delete this one later."""
    for step, index, state in ((20, 1, 7), (40, 2, {TAG: "newer"})):
        files = tmp_path / f"{step}"
        files.mkdir()
        torch.save({"objects": {"it": state}, "step": step}, files / "session.pt")
        put(only_rank["own"], files, step=step, index=index, session=True)
    with pytest.raises(UnknownForm, match="holds a 'newer', which this version of trainingrun"):
        restore.agree(**only_rank, source=None)
    assert only_rank["coordinator"].refused.remote() == {}


def test_a_manifest_of_another_version_is_not_passed_over(
    only_rank: dict[str, Any], tmp_path: Path
) -> None:
    """As after a rollback of the image: the run would begin at step 20, and delete step 40."""
    files = tmp_path / "files"
    files.mkdir()
    torch.save({"objects": {}, "step": 20}, files / "session.pt")
    own = only_rank["own"]
    put(own, files, step=20, index=1, session=True)
    later = own.get("manifests/000001-000001.json").replace(b'"version":2', b'"version":3')
    own.put("manifests/000002-000001.json", later)
    with pytest.raises(restore_source.NothingToRestore) as ended:
        restore.agree(**only_rank, source=None)
    said = "manifests/000002-000001.json cannot be read: it has version 3 of its format; go on with"
    assert said in str(ended.value)
    own.delete(["manifests/000002-000001.json"])
    chosen = restore.agree(**only_rank, source=None)
    assert chosen.fetched is not None
    chosen.fetched.close()
