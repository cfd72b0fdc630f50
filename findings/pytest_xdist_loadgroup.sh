#!/usr/bin/env bash
# pytest-xdist 3.8.0 with pytest 9.2.0: `--dist loadgroup` has no effect, and nothing says so.
#
# The tests of one `xdist_group` are to run in one process. pytest-xdist hands a test's group over as
# a suffix that it writes into the private attribute `_nodeid` of the test. pytest 9.2.0 makes
# `nodeid` of something else, so the suffix is lost, and the tests are dealt out one by one: what
# they must not use at the same time is used at the same time, and each process sets up the fixtures
# of a module again. With pytest 9.1.1 the group is kept together. `--dist loadfile` is not concerned.
#
# Output as seen:
#   pytest 9.1.1, pytest-xdist 3.8.0: 20 tests of one group in 1 process, 1 setup of their module
#   pytest 9.2.0, pytest-xdist 3.8.0: 20 tests of one group in 2 processes, 2 setups of their module
#
# Fails if that changes. Needs Python 3.10 or later, and a package registry.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/test_group.py" <<'PYTHON'
import pathlib

import pytest

pytestmark = pytest.mark.xdist_group("one")
PLACE = pathlib.Path(__file__).parent


def note(name, worker_id):
    with (PLACE / f"{name}.txt").open("a") as file:
        file.write(f"{worker_id}\n")


@pytest.fixture(scope="module", autouse=True)
def module(worker_id):
    note("setups", worker_id)


@pytest.mark.parametrize("number", range(20))
def test_it(number, worker_id):
    note("tests", worker_id)
PYTHON

# try VERSION PROCESSES: what happens with this pytest, and in how many processes it has to.
try() {
  python3 -m venv --clear "$folder/venv"
  "$folder/venv/bin/pip" install --quiet "pytest==$1" pytest-xdist==3.8.0
  rm -f "$folder"/*.txt
  (cd "$folder" && venv/bin/python -m pytest --quiet -p no:cacheprovider -n 2 --dist loadgroup test_group.py >/dev/null)
  local tests processes setups
  tests=$(wc -l < "$folder/tests.txt")
  processes=$(sort -u "$folder/tests.txt" | wc -l)
  setups=$(wc -l < "$folder/setups.txt")
  echo "pytest $1, pytest-xdist 3.8.0: $tests tests of one group in $processes process$([[ $processes == 1 ]] || echo es)," \
    "$setups setup$([[ $setups == 1 ]] || echo s) of their module"
  [[ $tests == 20 && $processes == "$2" && $setups == "$2" ]]
}

try 9.1.1 1
try 9.2.0 2
