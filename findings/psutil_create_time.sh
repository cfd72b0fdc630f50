#!/usr/bin/env bash
# psutil 7.2.2 on Linux: `Process.create_time()` is up to a second before the process was started.
#
# It adds the process's start, in clock ticks after boot, to `btime` of /proc/stat, which is the
# time of boot without its fraction of a second. So each process of a machine seems to be older by
# that fraction, which stays the same until the next boot: a child began before the line that has
# started it. CLOCK_BOOTTIME has the fraction.
#
# Output as seen:
#   psutil 7.2.2: the child began 0.36 s before it was started; the fraction of the boot time is 0.36 s
#
# Fails if psutil behaves otherwise, on a machine whose fraction is more than 0.1 s. Needs Linux,
# Python 3.10 or later, and a package registry.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet psutil==7.2.2
cat > "$folder/try.py" <<'PYTHON'
import subprocess
import sys
import time

import psutil

booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
fraction = booted % 1
early = []
for _ in range(5):
    before = time.time()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    early.append(before - psutil.Process(child.pid).create_time())
    child.communicate(b"\n")
seen = sorted(early)[2]
print(
    f"psutil {psutil.__version__}: the child began {seen:.2f} s before it was started; "
    f"the fraction of the boot time is {fraction:.2f} s"
)
assert abs(seen - fraction) < 0.05, early
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
