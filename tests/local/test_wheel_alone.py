"""The wheel with its extras `cli` and `runtime` trains on this machine, without the checkout."""

from pathlib import Path

from support import installed_wheel

SAMPLE = installed_wheel.ROOT / "manifests" / "samples" / "linear.yaml"


def test_the_wheel_alone_trains_here(tmp_path: Path) -> None:
    wheel = installed_wheel.built(tmp_path)
    command = installed_wheel.installed(wheel, tmp_path / "venv", "cli", "runtime") / "trainingrun"
    (tmp_path / "run.yaml").write_text(SAMPLE.read_text())
    printed = installed_wheel.call(tmp_path, str(command), "run", "run.yaml", "--local")
    assert "linear succeeded" in printed
    listed = installed_wheel.call(tmp_path, str(command), "list", "--local")
    assert "linear" in listed
    assert "Succeeded" in listed
