"""Models of other libraries: local, silent, and refused with a way out."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import transformers
from torch import nn

from normscope.core.errors import FactoryError, InputError, MissingDependencyError, ModelNotFoundError, WeightsError
from normscope.zoo.hub import optional, timm_model, torchvision_model, transformers_model

BERT = {
    "model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
    "vocab_size": 40, "max_position_embeddings": 16,
}  # fmt: skip


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every connection fail."""

    def refuse(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def saved(folder: Path, **changes: object) -> Path:
    """Return a directory with a configuration."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(BERT | changes))
    return folder


@pytest.mark.usefixtures("no_network")
def test_a_directory_without_weights_is_random_and_says_so(tmp_path: Path) -> None:
    """Arguments override the configuration."""
    model, notes, from_files = transformers_model(saved(tmp_path / "bert"), {"num_hidden_layers": 2})
    assert type(model).__name__ == "BertModel"
    assert len(model.encoder.layer) == 2
    assert notes == ["the directory has no weights: they are random"]
    assert not from_files


@pytest.mark.usefixtures("no_network")
def test_a_directory_with_weights_gives_them_back(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Bit by bit, and without a word on the terminal."""
    torch.manual_seed(0)
    original = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**BERT))
    original.save_pretrained(tmp_path / "bert")
    capfd.readouterr()
    model, notes, from_files = transformers_model(tmp_path / "bert", {})
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")
    assert from_files
    assert notes == []
    state = original.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_weights_that_are_not_there_are_named(tmp_path: Path) -> None:
    """A part the files lack is random, and the notes say which."""
    from safetensors.torch import load_file, save_file

    transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**BERT)).save_pretrained(tmp_path / "bert")
    file = tmp_path / "bert" / "model.safetensors"
    state = {key: value for key, value in load_file(file).items() if "pooler" not in key}
    save_file(state, file, {"format": "pt"})
    _, notes, _ = transformers_model(tmp_path / "bert", {})
    assert notes == ["not in the files and therefore random: pooler.dense.bias, pooler.dense.weight"]


@pytest.mark.usefixtures("no_network")
def test_code_in_the_directory_is_not_run(tmp_path: Path) -> None:
    """A model type of its own cannot be built; nothing is asked or executed."""
    folder = saved(tmp_path / "own", model_type="mine", auto_map={"AutoConfig": "code.C", "AutoModel": "code.M"})
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(FactoryError, match=r"Building hf:.*failed with ValueError"):
        transformers_model(folder, {})
    assert not (tmp_path / "ran").exists()


def test_directories_that_hold_no_model_are_refused(tmp_path: Path) -> None:
    """Absent, empty, damaged, or of no model type."""
    with pytest.raises(ModelNotFoundError, match="Directory not found"):
        transformers_model(tmp_path / "none", {})
    with pytest.raises(ModelNotFoundError, match=r"No config\.json found"):
        transformers_model(tmp_path, {})
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelNotFoundError, match="to be JSON"):
        transformers_model(tmp_path, {})
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelNotFoundError, match="model_type"):
        transformers_model(tmp_path, {})


def test_a_directory_that_may_not_be_listed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hold weights: it is not taken for one without, and its model for a random one."""
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')

    def denied(self: Path) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(InputError, match="Permission denied"):
        transformers_model(tmp_path, {})


def test_cut_weights_are_refused(tmp_path: Path) -> None:
    """And those of another size."""
    transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**BERT)).save_pretrained(tmp_path / "bert")
    with pytest.raises(WeightsError, match=r"do not fit its config\.json"):
        transformers_model(tmp_path / "bert", {"hidden_size": 32})
    file = tmp_path / "bert" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(WeightsError, match="Save the model again"):
        transformers_model(tmp_path / "bert", {})


def test_absent_and_broken_libraries_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """None in sys.modules is how Python marks a module that cannot be imported."""
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match=r"needs timm.*pip install 'normscope\[vision\]'"):
        timm_model("resnet18", {})
    with pytest.raises(MissingDependencyError, match=r"needs torchvision.*from the same index as torch"):
        torchvision_model("resnet18", {})

    class Broken:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "broken_library_of_test":
                raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(MissingDependencyError, match="RuntimeError: operator torchvision::nms"):
        optional("broken_library_of_test", "build it")


def fake_timm(built: list[dict[str, object]]) -> ModuleType:
    """Return a module with timm's three functions."""

    def create_model(name: str, **arguments: object) -> nn.Module:
        built.append({"name": name, **arguments})
        if arguments.get("num_classes") == 0:
            raise RuntimeError("no classes")
        return nn.Linear(1, 1)

    module = ModuleType("timm")
    module.__dict__.update(
        is_model=lambda name: name == "resnet18", list_models=lambda: ["resnet18", "vit"], create_model=create_model
    )
    return module


def test_timm_models_are_never_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument pretrained is always False, and asking for it is refused."""
    built: list[dict[str, object]] = []
    monkeypatch.setitem(sys.modules, "timm", fake_timm(built))
    timm_model("resnet18", {"num_classes": 3})
    assert built == [{"name": "resnet18", "num_classes": 3, "pretrained": False}]
    with pytest.raises(FactoryError, match="never downloaded"):
        timm_model("resnet18", {"pretrained": True})
    with pytest.raises(ModelNotFoundError, match=r"no model 'resnet-18'\. Did you mean resnet18\?"):
        timm_model("resnet-18", {})
    with pytest.raises(ModelNotFoundError, match="timm has no model 'hf-hub:some/model'"):
        timm_model("hf-hub:some/model", {})
    with pytest.raises(FactoryError, match="RuntimeError: no classes"):
        timm_model("resnet18", {"num_classes": 0})


def test_torchvision_models_are_never_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the backbone a detector would fetch by default."""
    seen: list[dict[str, object]] = []

    def detector(*, weights: object = "DEFAULT", weights_backbone: object = "DEFAULT", classes: int = 3) -> nn.Module:
        seen.append({"weights": weights, "weights_backbone": weights_backbone, "classes": classes})
        return nn.Linear(1, 1)

    models = SimpleNamespace(list_models=lambda: ["detector"], get_model_builder=lambda name: detector)
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    torchvision_model("detector", {"classes": 5})
    assert seen == [{"weights": None, "weights_backbone": None, "classes": 5}]
    with pytest.raises(FactoryError, match="never downloaded, got weights_backbone"):
        torchvision_model("detector", {"weights_backbone": "IMAGENET1K_V1"})
    with pytest.raises(ModelNotFoundError, match="Did you mean detector"):
        torchvision_model("detectr", {})
