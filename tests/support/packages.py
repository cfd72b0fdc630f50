"""Zip files with code, and wheels, made for a test."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def zipped(target: Path, files: Mapping[str, str]) -> Path:
    """A zip file with these texts."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return target


def wheel(folder: Path, name: str, version: str, code: str, requires: Sequence[str] = ()) -> Path:
    """A wheel with one module; the wheel is all that an index would have."""
    info = f"{name}-{version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
    files = {
        f"{name}/__init__.py": code,
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{each},,\n" for each in [*files, f"{info}/RECORD"])
    return zipped(folder / f"{name}-{version}-py3-none-any.whl", files)
