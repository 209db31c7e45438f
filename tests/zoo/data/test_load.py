"""Data by name or path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from normscope.core.errors import InputError
from normscope.zoo.data.load import DATASETS, load_data


def test_digits_need_nothing() -> None:
    """The first examples of the test split, scaled, with labels."""
    data = load_data("digits", limit=10, batch_size=4)
    assert [tuple(batch.inputs.shape) for batch in data] == [(4, 1, 8, 8), (4, 1, 8, 8), (2, 1, 8, 8)]
    assert data.name == "digits"
    assert data.normalization.top == 16
    labels = load_data("digits").tensors().labels
    assert torch.equal(data.tensors().labels, labels[:10])


def test_files_are_scaled_only_if_they_hold_bytes(tmp_path: Path) -> None:
    """Floats are taken as they are, integers stay ids, a normalization may be asked for."""
    torch.save(torch.full((2, 3, 4, 4), 255, dtype=torch.uint8), tmp_path / "bytes.pt")
    torch.save(torch.full((2, 3, 4, 4), 7.0), tmp_path / "floats.pt")
    torch.save(torch.full((2, 5), 7), tmp_path / "ids.pt")
    assert load_data(tmp_path / "bytes.pt").tensors().inputs.unique().tolist() == [1.0]
    assert load_data(tmp_path / "bytes.pt", normalize="raw").tensors().inputs.unique().tolist() == [255.0]
    assert load_data(tmp_path / "floats.pt").tensors().inputs.unique().tolist() == [7.0]
    assert load_data(tmp_path / "ids.pt").tensors().inputs.dtype == torch.int64
    normalized = load_data(str(tmp_path / "bytes.pt"), normalize="imagenet").tensors().inputs
    assert normalized[0, :, 0, 0].tolist() == pytest.approx([0.515 / 0.229, 0.544 / 0.224, 0.594 / 0.225])


def test_mistakes_are_named(tmp_path: Path) -> None:
    """Unknown names list the known ones; a preset is given once."""
    with pytest.raises(InputError, match=rf"one of {', '.join(DATASETS)} .*got 'cifar100'"):
        load_data("cifar100")
    with pytest.raises(InputError, match="File not found"):
        load_data(tmp_path / "none.npy")
    with pytest.raises(InputError, match="is a directory"):
        load_data(tmp_path)
    with pytest.raises(InputError, match="Normalization given twice"):
        load_data("digits:mnist", normalize="raw")
    with pytest.raises(InputError, match="imagenet has 3 means"):
        load_data("digits:imagenet")
    with pytest.raises(InputError, match="Expected normalize to be"):
        load_data("digits:imagnet")
    assert load_data("digits:mnist").normalization.mean == (0.1307,)


def test_a_normalization_of_ids_is_refused(tmp_path: Path) -> None:
    """It would not be applied; as stored they may be taken."""
    torch.save(torch.ones(2, 3, dtype=torch.int32), tmp_path / "ids.pt")
    for choice in ("unit", "mnist", ((0.5,), (0.5,))):
        with pytest.raises(InputError, match=r"has dtype int32, which is treated as ids"):
            load_data(tmp_path / "ids.pt", normalize=choice)
    assert load_data(tmp_path / "ids.pt", normalize="raw").tensors().inputs.dtype == torch.int64


def test_names_are_public_and_lazy() -> None:
    """The package imports nothing heavy before a name is used."""
    code = "import sys, normscope.zoo.data as d; dir(d); assert 'torch' not in sys.modules; d.load_data('digits')"
    subprocess.run([sys.executable, "-c", code], check=True)
