# SPDX-License-Identifier: Apache-2.0
import torch

from benchmark.bert4rec import top_items
from benchmark.record import read_records
from tests.tools import needs


@needs("compiled cuda_ext kernels")
def test_lists_are_compared_and_recorded(tmp_path, capsys):
    file = tmp_path / "results.jsonl"
    flags = ["--items=70000", "--dim=8", "--queries=70", "--repeats=2"]
    threads = torch.get_num_threads()
    try:
        assert top_items.main([*flags, "--threads=1", f"--results={file}"]) == 0
    finally:
        torch.set_num_threads(threads)
    values = {(r.candidate, r.metric): r.value for r in read_records(file)}
    for case in top_items.CASES:
        assert values[case, "identical to float64"] == 70
        assert 0 < values[case, "multiplied"] < 5
        assert values[case, "exact"] > 0
    assert "| trained |" in capsys.readouterr().out
