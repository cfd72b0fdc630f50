#!/usr/bin/env bash
# pyarrow 26.0.1: `pyarrow.fs.copy_files` drops the error with which a destination file is closed.
#
# A store takes an object, or the last part of it, when its file is closed: what it refuses then (no
# permission, no space, a server that is busy) raises from `close()`, and `copy_files` returns all the
# same. An error of `write()` is raised. Seen with S3FileSystem too, where the object is then missing.
#
# Output as seen:
#   pyarrow 26.0.1
#   by open_output_stream: OSError: the store is full
#   by copy_files: no error
#
# Fails if pyarrow behaves otherwise. Needs Python 3.10 or later and a package registry.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1
mkdir "$folder/source"
echo weights >"$folder/source/model"
"$folder/venv/bin/python" - "$folder/source" <<'PYTHON'
import sys

import pyarrow
from pyarrow import fs


class Full:
    """A file of a store that refuses what is written, once it is closed."""

    closed = False

    def writable(self):
        return True

    def readable(self):
        return False

    def seekable(self):
        return False

    def write(self, content):
        return len(content)

    def flush(self):
        pass

    def close(self):
        self.closed = True
        raise OSError("the store is full")


class Store(fs.FileSystemHandler):
    def get_type_name(self):
        return "full"

    def normalize_path(self, path):
        return path

    def get_file_info(self, paths):
        return [fs.FileInfo(path, fs.FileType.NotFound) for path in paths]

    def create_dir(self, path, recursive):
        pass

    def open_output_stream(self, path, metadata):
        return pyarrow.PythonFile(Full(), mode="w")

    def _none(self, *_):
        raise NotImplementedError

    get_file_info_selector = delete_dir = delete_dir_contents = delete_root_dir_contents = _none
    delete_file = move = copy_file = open_input_stream = open_input_file = _none
    open_append_stream = _none


store = fs.PyFileSystem(Store())
print("pyarrow", pyarrow.__version__)


def outcome(call):
    try:
        call()
    except OSError as error:
        return f"OSError: {error}"
    return "no error"


def write():
    with store.open_output_stream("checkpoint/model") as file:
        file.write(b"weights")


stream = outcome(write)
copied = outcome(
    lambda: fs.copy_files(
        sys.argv[1], "checkpoint", source_filesystem=fs.LocalFileSystem(), destination_filesystem=store
    )
)
print("by open_output_stream:", stream)
print("by copy_files:", copied)
sys.exit((stream, copied) != ("OSError: the store is full", "no error"))
PYTHON
