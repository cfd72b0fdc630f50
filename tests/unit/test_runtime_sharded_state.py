"""State of which each rank holds a part: saved in parts, restored onto other ranks and meshes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from support import checkpoints
from support.sharded_checkpoints import restore, save, save_trained
from support.sharded_models import (
    FSDP_SOME_TP,
    FSDP_TP,
    FSDP_TP_COLUMNS,
    HSDP,
    WHOLE,
    Layout,
    a_model,
    columns,
    laid_out,
    one_rank,
    rows,
    same_part,
    tensors,
    whole_model,
)
from trainingrun_runtime.checkpoints import sharded_state, snapshot, state_comparison
from trainingrun_runtime.checkpoints.downloads import LocalFiles
from trainingrun_runtime.checkpoints.encoding import NotSavable
from trainingrun_runtime.checkpoints.gradients import AccumulatedGradients
from trainingrun_runtime.checkpoints.restored_tensors import DoesNotFit
from trainingrun_runtime.checkpoints.snapshot import Position
from trainingrun_runtime.session.session_context import SavedObjects
from trainingrun_runtime.survivors.last_step import LastStep
from trainingrun_runtime.survivors.noted_steps import GradientExchange
from trainingrun_runtime.survivors.watched_tensors import NotWhole


class Holder:
    """An object with any state."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return {"state": self.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state["state"]


@pytest.fixture
def two_ranks(tmp_path: Path) -> Path:
    """A checkpoint of two ranks."""
    save_trained(tmp_path, rows(2))
    return tmp_path


@pytest.mark.parametrize(
    ("saved", "restored"),
    [
        pytest.param(rows(2), rows(2), id="FSDP, the same ranks"),
        pytest.param(rows(2), rows(3), id="FSDP, more ranks, unevenly"),
        pytest.param(rows(4), rows(2), id="FSDP, fewer ranks"),
        pytest.param(rows(3), rows(1), id="FSDP, one rank"),
        pytest.param(rows(2), rows(9), id="FSDP, more ranks than rows"),
        pytest.param(rows(9), rows(4), id="FSDP, from more ranks than rows"),
        pytest.param(rows(3), columns(2), id="FSDP to tensor parallelism"),
        pytest.param(columns(4), rows(3), id="tensor parallelism to FSDP"),
        pytest.param(HSDP, rows(3), id="HSDP to FSDP"),
        pytest.param(rows(3), HSDP, id="FSDP to HSDP"),
        pytest.param(FSDP_TP, rows(3), id="FSDP and TP to FSDP"),
        pytest.param(rows(3), FSDP_TP, id="FSDP to FSDP and TP"),
        pytest.param(FSDP_TP, FSDP_TP_COLUMNS, id="FSDP and TP to other dimensions"),
        pytest.param(FSDP_TP_COLUMNS, columns(3), id="FSDP and TP to TP"),
        pytest.param(FSDP_SOME_TP, rows(3), id="FSDP and TP of the weights to FSDP"),
        pytest.param(rows(3), FSDP_SOME_TP, id="FSDP to FSDP and TP of the weights"),
        pytest.param(WHOLE, rows(3), id="replicated to FSDP"),
        pytest.param(WHOLE, FSDP_TP, id="replicated to FSDP and TP"),
        pytest.param(rows(3), WHOLE, id="FSDP to one rank without DTensors"),
        pytest.param(FSDP_TP_COLUMNS, WHOLE, id="FSDP and TP to one rank without DTensors"),
    ],
)
def test_each_rank_of_another_mesh_gets_its_part(
    tmp_path: Path, saved: Layout, restored: Layout
) -> None:
    save_trained(tmp_path, saved)
    whole = tensors(*whole_model(trained=True))
    for rank in range(restored.ranks):
        with one_rank(rank, restored.ranks):
            found = restore(tmp_path, restored, rank)
            assert found.keys() == whole.keys()
            assert [name for name in whole if not same_part(found[name], whole[name])] == []
            layouts = {type(found[name]) for name in ("weight", "bias", "0.exp_avg")}
            assert layouts == ({DTensor} if restored.placements else {torch.Tensor})


def test_a_replicated_state_has_no_parts(tmp_path: Path) -> None:
    save_trained(tmp_path, WHOLE)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "random-0.pt", "session.pt", "state-0.safetensors"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "parts"),
    [
        pytest.param(HSDP, 6 * 2, id="HSDP"),
        pytest.param(FSDP_TP, 6 * 4, id="FSDP and TP"),
        pytest.param(FSDP_SOME_TP, 3 * 4 + 3 * 2, id="FSDP and TP of the weights alone"),
    ],
)
def test_each_part_is_saved_once_and_each_rank_saves_some(
    tmp_path: Path, layout: Layout, parts: int
) -> None:
    save_trained(tmp_path, layout)
    saved = [offsets(tmp_path / f"rank-{rank}.safetensors") for rank in range(4)]
    places = [(key, place) for each in saved for key, place in each.items()]
    assert len(places) == len(set(places)) == parts, "of weight and bias, and two moments of each"
    assert all(saved)


def test_of_replicas_that_differ_the_first_one_is_saved_as_a_whole(tmp_path: Path) -> None:
    """As after a step with `set_requires_all_reduce(False)`; a mixture is the state of no rank."""

    def objects(rank: int) -> dict[str, Any]:
        model, optimizer = a_model(HSDP, trained=True)
        with torch.no_grad():
            for tensor in tensors(model, optimizer).values():
                if isinstance(tensor, DTensor):
                    tensor.to_local().fill_(rank // 2)
        return {"model": model, "optimizer": optimizer}

    save(tmp_path, HSDP.ranks, objects)
    for rank in range(HSDP.ranks):
        with one_rank(rank, HSDP.ranks):
            for found in restore(tmp_path, HSDP, rank).values():
                assert not isinstance(found, DTensor) or found.to_local().unique().tolist() == [0]


@pytest.mark.parametrize("exchanged", [True, False])
def test_a_step_that_hsdps_replicas_do_alone_is_in_doubt(exchanged: bool) -> None:
    with one_rank(0, 4):
        model = torch.nn.Linear(6, 8)
        fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "part")))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        exchange = GradientExchange({"model": model, "optimizer": optimizer})
        model.set_requires_all_reduce(exchanged)
        optimizer.step()
        assert (exchange.doubt is None) is exchanged


def offsets(file: Path) -> dict[str, tuple[int, ...]]:
    """Where the parts in a file lie in the whole tensors."""
    with safe_open(file, "pt") as opened:
        found = json.loads(opened.metadata()["DCP_SHARDING_INFO"])
        assert found.keys() == set(opened.keys())
    return {key: tuple(entry["saved_offsets"]) for key, entry in found.items()}


def test_ranks_with_different_parts_do_not_differ(tmp_path: Path) -> None:
    found = []
    for rank in range(2):
        with one_rank(rank, 2):
            model, _ = a_model(rows(2), trained=True)
            found.append(state_comparison.fingerprints(snapshot.encoded({"m": model}, {"m"}))["m"])
    assert found[0].common == found[1].common


def test_the_stages_of_a_pipeline_keep_tensors_of_one_name_apart(tmp_path: Path) -> None:
    def stage(rank: int, values: torch.Tensor) -> Holder:
        mesh = DeviceMesh("cpu", [0, 1] if rank < 2 else [2, 3])
        return Holder(DTensor.from_local(values, mesh, [Shard(0)], run_check=False))

    save(tmp_path, 4, lambda rank: {"it": stage(rank, torch.full((1, 2), float(rank)))})
    for rank in range(4):
        with one_rank(rank, 4):
            it = stage(rank, torch.zeros(1, 2))
            snapshot.restore(LocalFiles(tmp_path), {"it": it}, rank, 4)
            assert it.state.to_local().tolist() == [[rank, rank]]


def test_a_model_of_another_size_is_refused(two_ranks: Path) -> None:
    with one_rank(0, 2):
        model, _ = a_model(rows(2), trained=False, inputs=5)
        with pytest.raises(
            DoesNotFit,
            match=r"model\.weight has shape \(8, 6\) in the checkpoint and \(8, 5\) in this",
        ):
            snapshot.restore(LocalFiles(two_ranks), {"model": model}, 0, 2)


def test_a_tensor_for_which_there_is_no_place_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 1, lambda rank: {"average": Holder(laid_out(torch.ones(2, 2), rows(1)))})
    with (
        one_rank(0, 1),
        pytest.raises(DoesNotFit, match=r"average\.state, sharded, .* nothing there yet"),
    ):
        snapshot.restore(LocalFiles(tmp_path), {"average": Holder(None)}, 0, 1)


@pytest.mark.parametrize(
    ("shape", "placements", "said"),
    [
        pytest.param(
            (8, 6), (Partial(), Replicate()), "with a Partial placement", id="partial sums"
        ),
        pytest.param(
            (13, 6),
            (_StridedShard(0, split_factor=2), Shard(0)),
            "make the dimension a multiple of 2",
            id="tensor parallelism splits unevenly",
        ),
        pytest.param(
            (8, 6),
            (Shard(0), _StridedShard(0, split_factor=2)),
            "is no block of it",
            id="every second row",
        ),
    ],
)
def test_a_layout_that_cannot_be_saved_is_refused(
    shape: tuple[int, ...], placements: tuple[Any, ...], said: str
) -> None:
    with one_rank(0, 4):
        mesh = torch.distributed.init_device_mesh("cpu", (2, 2))
        part = DTensor.from_local(
            torch.zeros(shape), mesh, placements, run_check=False, shape=shape, stride=(shape[1], 1)
        )
        with pytest.raises(NotSavable, match=said):
            snapshot.encoded({"it": Holder(part)}, {"it"})


def test_a_description_names_the_device_of_a_tensor_that_is_not_on_the_cpu() -> None:
    def device(tensor: torch.Tensor, file: str | None = "state-0.safetensors") -> Any:
        found = sharded_state.described("it.state", tensor, file)
        said = sharded_state.read_description(found)
        assert said is not None
        assert said.device == found.get("device")
        return said.device

    assert device(torch.zeros(2, device="meta")) == "meta"
    assert device(torch.zeros(2)) is None
    assert device(torch.zeros(2, device="meta"), file=None) is None, "this run's DTensor has one"


@pytest.mark.parametrize(
    ("gpu", "full", "asked"),
    [
        pytest.param(True, False, ["average.state", "optimizer.lr"], id="a GPU"),
        pytest.param(True, True, ["average.state", "optimizer.lr"], id="a full GPU"),
        pytest.param(False, False, [], id="none"),
    ],
)
def test_what_was_on_a_gpu_is_put_back_on_one_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: bool, full: bool, asked: list[str]
) -> None:
    """A model copies it into its own tensors, and an optimizer to where its parameters are."""

    def objects(rank: int, values: float = 1.0) -> dict[str, Any]:
        model = torch.nn.Linear(2, 3)
        rate = torch.tensor(values)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=False, foreach=False)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        average, alone = Holder(torch.full((4, 5), values).t()), Holder(torch.tensor(values))
        return {"model": model, "optimizer": optimizer, "average": average, "alone": alone}

    on_a_gpu = {(3, 2): "model", (5, 4): "average.state", (): "optimizer.lr"}
    described = sharded_state.described

    def from_a_gpu(key: str, tensor: torch.Tensor, file: str | None = None) -> dict[str, Any]:
        own = key == "alone.state"
        return described(key, tensor, file) | ({} if own else {"device": "cuda"})

    with monkeypatch.context() as patch:
        patch.setattr(state_comparison, "described", from_a_gpu)
        save(tmp_path, 1, objects)
    moved, to = list[str](), torch.Tensor.to

    def move(self: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        if args == ("cuda",):
            moved.append(on_a_gpu[tuple(self.shape)])
            if full:
                raise torch.cuda.OutOfMemoryError
            return to(self, "cpu", copy=True)
        return to(self, *args, **options)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.Tensor, "to", move)
    with one_rank(0, 1):
        found = objects(0, values=2.0)
        snapshot.restore(LocalFiles(tmp_path), found, 0, 1)
    assert sorted(moved) == asked
    assert found["average"].state.equal(torch.ones(5, 4))
    assert found["average"].state.stride() == (1, 5)
    assert found["alone"].state == found["optimizer"].param_groups[0]["lr"] == 1
    moved.clear()
    snapshot.restore_alone(LocalFiles(tmp_path), "average", found["average"])
    assert moved == [], "outside of a run it is read on any machine"


class SeveralOptimizers:
    """One for matrices and one for each vector, in an object that returns their states."""

    def __init__(self, model: torch.nn.Module) -> None:
        parameters = list(model.parameters())
        matrices = [one for one in parameters if one.ndim == 2]
        vectors = [[one] for one in parameters if one.ndim == 1]
        self.matrices = torch.optim.SGD(matrices, lr=0.1, momentum=0.9)
        self.vectors = [torch.optim.AdamW(one, lr=0.1) for one in vectors]

    def step(self) -> None:
        for optimizer in (self.matrices, *self.vectors):
            optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        vectors = [optimizer.state_dict() for optimizer in self.vectors]
        return {"of": {"matrices": self.matrices.state_dict()}, "vectors": vectors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.matrices.load_state_dict(state["of"]["matrices"])
        for optimizer, its in zip(self.vectors, state["vectors"], strict=True):
            optimizer.load_state_dict(its)


class Listing(torch.optim.Optimizer):
    """Keeps the averages of a parameter in a list."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model.parameters(), {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            averages = [parameter.grad.clone(), torch.zeros_like(parameter)]
            self.state[parameter] = {"averages": averages}
            parameter.sub_(averages[0])


def its_tensors(state: Any) -> dict[str, torch.Tensor]:
    """The tensors in a state, by place."""
    items: Any = ()
    if isinstance(state, dict | list):
        items = state.items() if isinstance(state, dict) else enumerate(state)
    return {
        f"{key}.{place}": tensor
        for key, value in items
        for place, tensor in (
            {"": value} if isinstance(value, torch.Tensor) else its_tensors(value)
        ).items()
    }


@pytest.mark.parametrize(
    ("saved", "restored"),
    [
        pytest.param(rows(2), rows(3), id="FSDP, more ranks"),
        pytest.param(rows(2), columns(2), id="FSDP to tensor parallelism"),
        pytest.param(WHOLE, rows(3), id="replicated to FSDP"),
        pytest.param(rows(2), WHOLE, id="FSDP to one rank without DTensors"),
    ],
)
@pytest.mark.parametrize("kind", [SeveralOptimizers, Listing])
def test_optimizers_in_an_object_and_averages_in_a_list_are_laid_out_too(
    kind: Any, saved: Layout, restored: Layout, tmp_path: Path
) -> None:
    def objects(layout: Layout, *, trained: bool) -> dict[str, Any]:
        model, _ = a_model(layout, trained=trained)
        optimizer = kind(model)
        if trained:  # with the gradients of the model's first step
            optimizer.step()
            for parameter in model.parameters():
                parameter.grad = None
        return {"model": model, "optimizer": optimizer}

    save(tmp_path, saved.ranks, lambda rank: objects(saved, trained=True))
    whole = its_tensors(objects(WHOLE, trained=True)["optimizer"].state_dict())
    assert sum(tensor.numel() for tensor in whole.values()) > 8 * 6
    for rank in range(restored.ranks):
        with one_rank(rank, restored.ranks):
            mine = objects(restored, trained=False)
            SavedObjects(mine).states()
            snapshot.restore(LocalFiles(tmp_path), mine, rank, restored.ranks)
            found = its_tensors(mine["optimizer"].state_dict())
            assert found.keys() == whole.keys()
            assert [name for name in whole if not same_part(found[name], whole[name])] == []


@pytest.mark.parametrize("kind", [SeveralOptimizers, Listing])
def test_their_states_are_no_reason_to_refuse_a_step(kind: Any) -> None:
    with one_rank(0, 2):
        model, _ = a_model(rows(2), trained=True)
        optimizer = kind(model)
        saved = SavedObjects({"model": model, "optimizer": optimizer})
        assert not saved.states()["optimizer"].shards
        optimizer.step()
        assert saved.states()["optimizer"].shards


def test_an_optimizer_whose_state_has_another_shape_is_refused() -> None:
    with one_rank(0, 2):
        _, optimizer = a_model(rows(2), trained=True)
        saved = SavedObjects({"optimizer": optimizer})
        saved.states()
        parameter = optimizer.param_groups[0]["params"][0]
        optimizer.state[parameter]["row_means"] = laid_out(torch.zeros(8, 1), rows(2))
        with pytest.raises(NotSavable, match=r"keeps row_means of shape \(8, 1\) for a parameter"):
            saved.states()


def test_a_sharded_tensor_that_no_resumed_run_could_lay_out_is_refused() -> None:
    """A checkpoint with it would be committed, and end each attempt that restores it."""
    with one_rank(0, 2):
        there, later = Holder(laid_out(torch.ones(2, 2), rows(2))), Holder(None)
        saved = SavedObjects({"there": there, "later": later})
        saved.states()
        there.state = laid_out(torch.zeros(2, 2), rows(2))
        saved.states()
        later.state = laid_out(torch.ones(2, 2), rows(2))
        with pytest.raises(
            NotSavable, match=r"^later\.state is a sharded tensor that was not there"
        ):
            saved.states()


def test_a_sharded_optimizers_state_keeps_its_types(tmp_path: Path) -> None:
    def half(rank: int, trained: bool) -> dict[str, Any]:
        model, optimizer = a_model(rows(2), trained=trained)
        optimizer.zero_grad()
        return {"model": model.bfloat16(), "optimizer": optimizer}

    save(tmp_path, 2, lambda rank: half(rank, True))
    whole = tensors(*whole_model(trained=True))
    for rank in range(2):
        with one_rank(rank, 2):
            objects = half(rank, False)
            snapshot.restore(LocalFiles(tmp_path), objects, rank, 2)
            found = tensors(objects["model"], objects["optimizer"])
            assert found["weight"].dtype is torch.bfloat16
            assert found["0.exp_avg"].dtype is torch.float32
            assert same_part(found["0.exp_avg"], whole["0.exp_avg"])


def last_step_of(rank: int) -> tuple[LastStep, dict[str, Any]]:
    """What a rank of HSDP notes at the end of step 7, and its objects."""
    model, optimizer = a_model(HSDP, trained=True)
    objects = {"model": model, "optimizer": optimizer}
    optimizer.zero_grad()
    last, at = LastStep(objects, rank, AccumulatedGradients([])), Position(step=7)
    last.look(1.0)
    last.note(at, {}, lambda _: at)
    return last, objects


@pytest.mark.parametrize("left", [(0, 1), (1, 2)])
def test_ranks_that_hold_each_part_once_save_the_last_step_together(
    tmp_path: Path, left: tuple[int, ...]
) -> None:
    for rank in left:
        with one_rank(rank, HSDP.ranks):
            taken = last_step_of(rank)[0].take(7)
            trees = {name: state.tree for name, state in taken.items()}
            parts = {place: part for state in taken.values() for place, part in state.parts.items()}
            files = snapshot.rank_tensors(parts, rank)
            notes = {name: state.notes for name, state in taken.items()}
            files |= snapshot.shared(trees, notes, Position(step=7), HSDP.ranks)
            checkpoints.write(files, tmp_path)
    found, wanted = restore(tmp_path, WHOLE, 0), tensors(*whole_model(trained=True))
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if not same_part(found[name], wanted[name])] == []


def test_replicas_have_one_layout_and_other_ranks_another() -> None:
    layouts = []
    for rank in range(HSDP.ranks):
        with one_rank(rank, HSDP.ranks):
            objects = last_step_of(rank)[1]
            layouts.append(state_comparison.layout(snapshot.encoded(objects, objects)))
    first, second = layouts[:2]
    assert layouts == [first, second, first, second]
    assert len({first, second, 0}) == 3


def _change_part(objects: dict[str, Any]) -> None:
    with torch.no_grad():
        objects["model"].weight.to_local().add_(1)


def _change_whole(objects: dict[str, Any]) -> None:
    with torch.no_grad():
        objects["model"].weight.add_(1)


def _change_data(objects: dict[str, Any]) -> None:
    objects["model"].weight._local_tensor.data.add_(1)


def _change_average(objects: dict[str, Any]) -> None:
    next(iter(objects["optimizer"].state.values()))["exp_avg"].zero_()


def _change_part_of_average(objects: dict[str, Any]) -> None:
    next(iter(objects["optimizer"].state.values()))["exp_avg"].to_local().zero_()


@pytest.mark.parametrize(
    "change",
    [_change_part, _change_whole, _change_data, _change_average, _change_part_of_average],
)
def test_a_part_that_was_changed_since_is_not_handed_out(
    change: Callable[[dict[str, Any]], None],
) -> None:
    with one_rank(0, HSDP.ranks):
        last, objects = last_step_of(0)
        last.take(7)
        change(objects)
        with pytest.raises(NotWhole, match="changed"):
            last.take(7)


def test_an_optimizer_that_has_begun_a_step_leaves_no_part() -> None:
    with one_rank(0, HSDP.ranks):
        last, objects = last_step_of(0)
        objects["optimizer"].step()
        with pytest.raises(NotWhole, match="an optimizer has begun the next step"):
            last.take(7)
