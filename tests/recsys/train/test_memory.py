# SPDX-License-Identifier: Apache-2.0

from tests import harness

PROGRAM = """
import ctypes
from recsys.train.memory import keep_few_primitives
import torch

class Mallinfo(ctypes.Structure):
    _fields_ = [(f"field{i}", ctypes.c_size_t) for i in range(10)]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Mallinfo
keep_few_primitives()
for size in range(1000, 1400):
    torch.nn.functional.gelu(torch.ones(size, 64))
    if size == 1100:
        before = libc.mallinfo2().field7  # bytes in use
print(libc.mallinfo2().field7 - before)
"""


def test_code_of_shapes_that_never_return_is_not_kept():
    done = harness.python("-c", PROGRAM)
    assert int(done.stdout) < 1 << 20  # 20 MiB where oneDNN keeps them
