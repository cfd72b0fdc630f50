"""A large state that all ranks hold alike: each of them saves a part and restores all of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from support import checkpoints
from trainingrun_runtime.checkpoints import snapshot, state_comparison
from trainingrun_runtime.checkpoints.downloads import LocalFiles
from trainingrun_runtime.checkpoints.restored_tensors import DamagedFiles
from trainingrun_runtime.checkpoints.snapshot import Position
from trainingrun_runtime.checkpoints.state_comparison import LEAST_FILE

WIDTH = 32
LAYERS = 9
"""Of 4 KiB each: as many bytes as two files take at least, and more."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sizes are a thousandth."""
    monkeypatch.setattr(state_comparison, "LEAST", state_comparison.LEAST // 1024)
    monkeypatch.setattr(state_comparison, "LEAST_FILE", LEAST_FILE // 1024)


def a_model(value: float = 0.0, layers: int = LAYERS) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)), nn.BatchNorm1d(WIDTH))
    model.register_buffer("means", torch.full((WIDTH, WIDTH), value))
    return model


def empty(layers: int = LAYERS) -> nn.Sequential:
    model = a_model(layers=layers)
    for tensor in model.state_dict().values():
        tensor.zero_()
    return model


def save(
    folder: Path,
    ranks: list[dict[str, Any]],
    buffers: dict[str, set[str]] | None = None,
    own: set[str] | None = None,
) -> None:
    for rank, objects in enumerate(ranks):
        states = snapshot.encoded(objects, objects)
        comparison = state_comparison.Comparison(own or set(), {}, buffers or {})
        files = snapshot.take(states, comparison, Position(step=7), rank, len(ranks))
        checkpoints.write(files, folder)


def restored(folder: Path, rank: int = 0, ranks: int = 2) -> nn.Sequential:
    model = empty()
    snapshot.restore(LocalFiles(folder), {"model": model}, rank, ranks)
    return model


def whole_tree() -> Any:
    return snapshot.encoded({"model": a_model()}, ["model"])["model"].tree


def equal(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_each_rank_saves_about_as_much_and_restores_all_of_it(tmp_path: Path) -> None:
    save(tmp_path, [{"model": a_model()}, {"model": a_model()}])
    sizes = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    assert sizes.keys() == {
        "session.pt", "state-0.safetensors", "state-1.safetensors", "random-0.pt", "random-1.pt"
    }  # fmt: skip
    saved = state_comparison.divided({"model": whole_tree()}, {}, 2)[1][1].values()
    nbytes = sum(part.local.nbytes for part in saved)
    assert 0 <= nbytes - 5 * 4 * WIDTH**2 < 4 * WIDTH**2, "of ten"
    for rank, ranks in ((0, 2), (1, 2), (2, 3), (0, 1)):
        assert equal(restored(tmp_path, rank, ranks), a_model())


def test_an_optimizers_state_is_divided_as_well(tmp_path: Path) -> None:
    def untrained() -> dict[str, Any]:
        model = nn.Linear(WIDTH, 3 * WIDTH)
        return {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}

    def trained() -> dict[str, Any]:
        things = untrained()
        things["model"](torch.ones(1, WIDTH)).sum().backward()
        things["optimizer"].step()
        return things

    torch.manual_seed(0)
    first = trained()
    torch.manual_seed(0)
    save(tmp_path, [first, trained()])
    assert (tmp_path / "state-1.safetensors").exists()
    other = untrained()
    snapshot.restore(LocalFiles(tmp_path), other, 0, 2)
    assert equal(other["model"], first["model"])
    mine, theirs = (things["optimizer"].state_dict()["state"] for things in (first, other))
    assert theirs.keys() == mine.keys() == {0, 1}
    assert all(torch.equal(mine[i][key], theirs[i][key]) for i in mine for key in mine[i])


def test_a_small_state_is_in_one_file(tmp_path: Path) -> None:
    models = [{"model": a_model(layers=2)} for _ in range(8)]
    save(tmp_path, models)
    assert len(list(tmp_path.glob("state-*"))) == 1, "12 KiB are not worth a second one"


def test_of_many_ranks_some_save_and_they_are_spread_over_the_pods() -> None:
    trees = {"it": {str(i): torch.empty(2**10) for i in range(9)}}
    assert sorted(state_comparison.divided(trees, {}, 8)[1]) == [0, 4], "36 KiB are two files"


def test_what_safetensors_does_not_have_stays_with_what_is_no_tensor() -> None:
    others = {
        "sparse": torch.eye(300).to_sparse(),
        "complex": torch.ones(300, dtype=torch.complex128),
        "array": {"__trainingrun__": "array", "bytes": torch.zeros(10**5, dtype=torch.uint8)},
        "text": "x" * 10**5,
    }
    trees = {"it": {**others, **{str(i): torch.empty(2**12) for i in range(2)}}}
    described, tensors = state_comparison.divided(trees, {}, 2)
    assert {rank: list(parts) for rank, parts in tensors.items()} == {
        0: ["it.0"], 1: ["it.1"]
    }  # fmt: skip
    assert all(described["it"][name] is other for name, other in others.items())


def test_dimensions_keep_their_order_in_memory(tmp_path: Path) -> None:
    """An optimizer's averages have that of their parameter, such as torch.channels_last."""

    class Holder:
        state: Any = torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last)

        def state_dict(self) -> dict[str, Any]:
            return {"state": self.state}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.state = state["state"]

    save(tmp_path, [{"it": Holder()}])
    other = Holder()
    other.state = None
    snapshot.restore(LocalFiles(tmp_path), {"it": other}, 0, 1)
    assert torch.equal(other.state, Holder.state)
    assert other.state.stride() == Holder.state.stride()


def test_what_rank_0_decides_is_saved_by_rank_0(tmp_path: Path) -> None:
    """In data parallelism the buffers of other ranks are their own until the next forward pass."""
    buffers = {f"model.{name}" for name, _ in a_model().named_buffers()}
    save(tmp_path, [{"model": a_model(1.0)}, {"model": a_model(2.0)}], buffers={"model": buffers})
    assert (tmp_path / "state-1.safetensors").exists()
    assert equal(restored(tmp_path, rank=1), a_model(1.0))


def test_what_differs_from_rank_to_rank_stays_with_each(tmp_path: Path) -> None:
    save(tmp_path, [{"model": a_model(1.0)}, {"model": a_model(2.0)}], own={"model"})
    assert not (tmp_path / "state-1.safetensors").exists()
    assert equal(restored(tmp_path, rank=1), a_model(2.0))


def test_one_object_is_restored_alone(tmp_path: Path) -> None:
    save(tmp_path, [{"model": a_model()}, {"model": a_model()}])
    model = empty()
    assert snapshot.restore_alone(LocalFiles(tmp_path), "model", model) == 7
    assert equal(model, a_model())


def changed(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], Any]:
    """A file with other tensors of the same names."""
    return lambda file: save_file({k: change(t) for k, t in load_file(file).items()}, file)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        pytest.param(
            Path.unlink,
            r"lacks state-1\.safetensors, with model\..*not written whole",
            id="no file",
        ),
        pytest.param(
            lambda file: file.write_bytes(b"none"),
            r"state-1\.safetensors cannot be read",
            id="another file",
        ),
        pytest.param(
            lambda file: torch.save([1], file),
            r"state-1\.safetensors cannot be read",
            id="a pickle",
        ),
        pytest.param(
            lambda file: save_file({"other": torch.ones(1)}, file),
            r"model\..* in state-1\.safetensors cannot be read",
            id="another content",
        ),
        pytest.param(
            changed(lambda tensor: tensor[:1].clone()),
            r"state-1\.safetensors does not hold model\..* as the checkpoint's state says",
            id="other shapes",
        ),
        pytest.param(
            changed(torch.Tensor.half),
            r"state-1\.safetensors does not hold model\..* as the checkpoint's state says",
            id="other types",
        ),
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_refused(
    tmp_path: Path, change: Callable[[Path], Any], sentence: str
) -> None:
    save(tmp_path, [{"model": a_model()}, {"model": a_model()}])
    change(tmp_path / "state-1.safetensors")
    with pytest.raises(DamagedFiles, match=sentence):
        restored(tmp_path)


@pytest.mark.parametrize("file", ["../state-1.safetensors", "session.pt", "/etc/passwd", 1, True])
def test_a_description_leads_to_no_other_file(tmp_path: Path, file: Any) -> None:
    save(tmp_path, [{"model": a_model()}, {"model": a_model()}])
    saved = torch.load(tmp_path / "session.pt", weights_only=True)
    for item in saved["objects"]["model"]["items"].values():
        item["file"] = file
    torch.save(saved, tmp_path / "session.pt")
    with pytest.raises(DamagedFiles, match="does not say which tensor"):
        restored(tmp_path)
