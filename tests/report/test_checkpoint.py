"""The report on a checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from normscope.analysis.checkpoint import analyze_checkpoint
from normscope.report.checkpoint import checkpoint_sections
from normscope.report.table import ROWS, plain_text


def test_every_tensor_has_its_row(tmp_path: Path) -> None:
    """Every tensor has its row."""
    tensors = {
        "conv.weight": torch.ones(1, 1, 2, 2),
        "fc.weight": 3 * torch.eye(2),
        "bn.running_var": torch.tensor([4.0, 16.0]),
    }
    save_file(tensors, tmp_path / "m.safetensors")
    lines = plain_text(checkpoint_sections(analyze_checkpoint(tmp_path / "m.safetensors"))).splitlines()
    rows = {line.split()[0]: line.split() for line in lines if line.strip()}
    assert rows["conv.weight"][1:] == ["convolution", "1x1x2x2", "float32", "2", "4", "2", "-"]
    assert rows["fc.weight"][1:] == ["matrix", "2x2", "float32", "3", "3", "-", "-"]
    assert rows["bn.running_var"][-6:] == ["std", "min", "2;", "std", "max", "4"]
    assert lines[0] == "weights: m.safetensors"
    assert lines[1] == "  3 tensors, 10 numbers, 40 bytes in 1 file"
    assert lines[2] == "  1 running statistics, 1 convolution, 1 matrix"


def test_several_tensors_of_a_role_and_the_counter_of_batches(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 2), torch.nn.BatchNorm2d(2), torch.nn.Conv2d(2, 2, 2))
    torch.save(model.state_dict(), tmp_path / "m.pt")
    text = plain_text(checkpoint_sections(analyze_checkpoint(tmp_path / "m.pt")))
    assert "2 convolutions, 3 biases, 1 normalizer scale, 3 running statistics" in text
    assert "integers" not in text


def test_long_lists_keep_the_norms_and_count_the_rest(tmp_path: Path) -> None:
    """Long lists keep the norms and count the rest."""
    tensors = {f"l{i}.weight": torch.eye(2) for i in range(ROWS + 5)} | {f"l{i}.bias": torch.ones(2) for i in range(9)}
    save_file(tensors, tmp_path / "m.safetensors")
    result = analyze_checkpoint(tmp_path / "m.safetensors")
    assert f"... {5 + 9} more rows" in plain_text(checkpoint_sections(result))
    assert ".bias" not in plain_text(checkpoint_sections(result))
    assert plain_text(checkpoint_sections(result, everything=True)).count(".bias") == 9
