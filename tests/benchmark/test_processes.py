# SPDX-License-Identifier: Apache-2.0
import sys

from benchmark.processes import run_process

ALLOCATE = "import time; data = bytearray({mib} << 20); data[::4096] = b'x' * len(data[::4096])"


def python(code):
    return run_process([sys.executable, "-c", code])


def test_memory_time_and_output_of_a_process():
    usage = python(ALLOCATE.format(mib=200) + "; time.sleep(1); print('done')")
    assert usage.exit_status == 0
    assert usage.output.strip() == "done"
    assert 190 < usage.peak_anon_mib < 300
    assert usage.wall_s > 1
    assert 0 < usage.cpu_s < usage.wall_s


def test_children_count_and_mapped_files_do_not(tmp_path):
    child = ALLOCATE.format(mib=120) + "; time.sleep(1)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert 110 < python(code).peak_anon_mib < 250
    path = tmp_path / "mapped"
    with path.open("wb") as file:
        file.truncate(150 << 20)
    code = (
        "import mmap, time\n"
        f"with open({str(path)!r}, 'rb') as file:\n"
        "    data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
        "sum(data[i] for i in range(0, len(data), 4096)); time.sleep(1)"
    )
    assert python(code).peak_anon_mib < 60


def test_cpu_time_counts_this_child_alone():
    before = python("sum(range(20_000_000))")
    assert python("pass").cpu_s < before.cpu_s / 2


def test_children_that_outlive_the_process_count_and_have_ended(tmp_path):
    """As Spark's Java does: it ends when its standard input does, after its parent."""
    mark = tmp_path / "ended"
    busy = "import time; end = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    child = f"import sys; sys.stdin.read()\n{busy}\nopen({str(mark)!r}, 'w')"
    code = (
        "import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}], stdin=subprocess.PIPE)"
    )
    usage = python(code)
    assert usage.exit_status == 0
    assert usage.cpu_s > 0.5
    assert mark.exists()


def test_a_failing_process_is_reported():
    usage = python("import sys; print('why', file=sys.stderr); sys.exit(7)")
    assert usage.exit_status == 7
    assert "why" in usage.output
    assert python("import os; os.kill(os.getpid(), 9)").exit_status == -9
