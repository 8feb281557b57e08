from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from unsum import UnsumError
from unsum.head import find_head
from unsum.models import backbone_fingerprint, load_model


def test_the_default_is_a_trained_backbone_under_a_fresh_head() -> None:
    first, same, other = (load_model("default", classes=100, seed=seed).model for seed in (0, 0, 1))
    assert torch.equal(first.head.weight, same.head.weight)
    assert not torch.equal(first.head.weight, other.head.weight)
    assert backbone_fingerprint(first) == backbone_fingerprint(other)
    # Fresh: PyTorch's own initialization is uniform within 1/√H, which gives this spread.
    assert float(first.head.weight.detach().std()) == pytest.approx(
        (1 / 32768 / 3) ** 0.5, rel=0.01
    )


def test_the_fingerprint_sees_any_change_of_the_backbone() -> None:
    model = load_model("default", classes=10).model
    before = backbone_fingerprint(model)
    with torch.no_grad():
        model.head.weight.add_(1)
        assert backbone_fingerprint(model) == before
        next(model.backbone.parameters())[0, 0, 0, 0] += 1e-4
    assert backbone_fingerprint(model) != before


def test_loading_does_not_disturb_the_callers_random_numbers() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    load_model("default", classes=10, seed=9)
    load_model("torchvision:mobilenet_v3_small", classes=10, seed=9)
    assert torch.equal(torch.rand(1), expected)


def test_torchvision_models_get_the_classes_asked_for() -> None:
    loaded = load_model("torchvision:resnet18", classes=23, seed=1)
    assert find_head(loaded.model)[1].out_features == 23
    assert loaded.image_size == 224
    again = load_model("torchvision:resnet18", classes=23, seed=1)
    assert torch.equal(loaded.model.conv1.weight, again.model.conv1.weight)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("defualt", "did you mean 'default'"),
        ("torchvision:resnet81", "did you mean 'resnet18'"),
        ("torchvision:", "There is no torchvision model ''"),
        ("keras:resnet18", "There is no model 'keras:resnet18'"),
    ],
)
def test_unknown_models_are_refused(spec: str, sentence: str) -> None:
    with pytest.raises(UnsumError, match=sentence):
        load_model(spec, classes=10)


def test_shipped_weights_stay_within_twelve_megabytes() -> None:
    sizes = [
        len((files(f"unsum.{package}") / "weights" / name).read_bytes())
        for package, name in [
            ("models", "default-backbone.safetensors"),
            ("invert", "default-inverse.safetensors"),
        ]
    ]
    assert sum(sizes) <= 12e6


TINY = """
from dataclasses import dataclass
from torch import nn

@dataclass
class Sizes:
    width: int = 4

def net(num_classes=7):
    width = Sizes().width
    return nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(width, num_classes))

def sized(num_classes):
    model = net(num_classes)
    model.image_size = 32
    return model

def fixed():
    return net(5)

def broken():
    raise KeyError("depth")

def number():
    return 3
"""


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    (tmp_path / "tiny.py").write_text(TINY)
    return f"{tmp_path / 'tiny.py'}:net"


def trained(spec: str, classes: int) -> dict[str, Tensor]:
    """The state of a model that no seed here makes."""
    state = load_model(spec, classes=classes, seed=99).model.state_dict()
    return {
        n: (torch.rand_like(t) + 0.5).half().float() if t.is_floating_point() else t
        for n, t in state.items()
    }


def differing(model: nn.Module, state: dict[str, Tensor]) -> list[str]:
    return [
        name for name, tensor in model.state_dict().items() if not torch.equal(tensor, state[name])
    ]


def test_a_model_of_ones_own_by_its_file(tiny: str) -> None:
    first, same, other = (load_model(tiny, classes=11, seed=seed) for seed in (1, 1, 2))
    assert first.model[-1].out_features == 11
    assert first.name == "net of tiny.py, random weights, 224²"
    assert load_model(tiny, classes=11, likely_sizes=[48]).image_size == 48
    assert torch.equal(first.model[0].weight, same.model[0].weight)
    assert not torch.equal(first.model[0].weight, other.model[0].weight)
    folder = tiny.removesuffix(":net")
    assert load_model(f"{folder}:sized", classes=3).image_size == 32
    assert load_model(f"{folder}:sized", classes=3, size=48).image_size == 48
    assert load_model(f"{folder}:fixed", classes=4).model[-1].out_features == 5


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        (":nett", r"There is no function in 'tiny.py' called 'nett'; did you mean 'net'\?"),
        (":", "Name a function of 'tiny.py' after a colon; it has Sizes, net"),
        ("", "Name a function of 'tiny.py' after a colon"),
        (":broken", "'broken' of 'tiny.py' failed: KeyError: 'depth'"),
        (":number", "must return a torch.nn.Module, not a int"),
        (":fixed", "fixed of tiny.py makes 5 classes of the 10 needed"),
    ],
)
def test_what_a_file_cannot_give_is_told(tiny: str, end: str, sentence: str) -> None:
    with pytest.raises(UnsumError, match=sentence):
        load_model(tiny.removesuffix(":net") + end, classes=10)


def test_files_that_do_not_import_are_told(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("import nothing_of_this_name")
    with pytest.raises(
        UnsumError, match=r"'wrong.py' cannot be imported: ModuleNotFoundError: No module"
    ):
        load_model(f"{tmp_path / 'wrong.py'}:net", classes=10)
    with pytest.raises(UnsumError, match=r"There is no file .*absent.py"):
        load_model(f"{tmp_path / 'absent.py'}:net", classes=10)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_weights_of_half_precision_fill_the_model_in_its_own(
    tiny: str, tmp_path: Path, suffix: str
) -> None:
    state = trained(tiny, 10)
    halved = {n: t.half() if t.is_floating_point() else t for n, t in state.items()}
    path = tmp_path / f"trained{suffix}"
    save_file(halved, path) if suffix == ".safetensors" else torch.save(halved, path)
    loaded = load_model(tiny, classes=10, weights=path)
    assert differing(loaded.model, state) == []
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    assert loaded.name == f"net of tiny.py, weights of trained{suffix}, 224²"


@pytest.mark.parametrize("missing", [True, False])
def test_a_head_that_does_not_fit_is_made_fresh_only_where_that_is_asked_for(
    tiny: str, tmp_path: Path, missing: bool
) -> None:
    state = trained(tiny, 10 if missing else 20)
    if missing:
        del state["4.weight"]  # the bias alone is no head
    del state["1.num_batches_tracked"]  # as old files do
    save_file(state, tmp_path / "trained.safetensors")
    fresh = load_model(tiny, classes=10, seed=4).model.state_dict()
    if missing:
        with pytest.raises(UnsumError, match="hold no head; add --fresh-head"):
            load_model(tiny, classes=10, weights=tmp_path / "trained.safetensors")
    else:
        kept = load_model(tiny, classes=10, weights=tmp_path / "trained.safetensors")
        assert kept.trained_head
        assert torch.equal(kept.model[-1].weight, state["4.weight"])
    loaded = load_model(
        tiny, classes=10, seed=4, weights=tmp_path / "trained.safetensors", fresh_head=True
    )
    expected = state | {n: fresh[n] for n in ("4.weight", "4.bias", "1.num_batches_tracked")}
    assert differing(loaded.model, expected) == []
    assert loaded.name == "net of tiny.py, weights of trained.safetensors under a fresh head, 224²"


def test_weights_for_torchvisions_models_and_the_default(tmp_path: Path) -> None:
    for spec, classes in (("torchvision:mobilenet_v3_small", 1000), ("default", 10)):
        state = trained(spec, classes)
        save_file(state, tmp_path / "trained.safetensors")
        loaded = load_model(spec, classes=10, weights=str(tmp_path / "trained.safetensors"))
        head, _ = find_head(loaded.model)
        kept = {n: t for n, t in loaded.model.state_dict().items() if not n.startswith(head)}
        assert all(torch.equal(kept[name], state[name]) for name in kept)
        assert "weights of trained.safetensors" in loaded.name


def test_weights_that_do_not_fit_are_refused_by_name(tiny: str, tmp_path: Path) -> None:
    state = trained(tiny, 10)
    path = tmp_path / "trained.safetensors"
    for changed, sentence in [
        (
            {n: t for n, t in state.items() if n != "0.weight"},
            "do not fit the model: it lacks 0.weight",
        ),
        (
            state | {f"9.{i}": torch.zeros(1) for i in range(5)},
            "the model has no 9.0, 9.1, 9.2 and 2 more",
        ),
        (state | {"0.bias": torch.zeros(9)}, r"other shapes or types: 0.bias \(9,\) for \(4,\)"),
        (state | {"0.bias": torch.zeros(4, dtype=torch.int8)}, "other shapes or types: 0.bias"),
    ]:
        save_file(changed, path)
        with pytest.raises(UnsumError, match=sentence):
            load_model(tiny, classes=10, weights=path)


def test_weights_files_that_are_none_are_refused(tiny: str, tmp_path: Path) -> None:
    (tmp_path / "text.safetensors").write_text("no tensors at all")
    (tmp_path / "text.pt").write_text("no tensors at all")
    (tmp_path / "weights.bin").write_text("")
    torch.save(nn.Linear(2, 2), tmp_path / "module.pt")
    torch.save({"epoch": 3, "model": {}}, tmp_path / "checkpoint.pt")
    for name, sentence in {
        "text.safetensors": "cannot be read as .safetensors",
        "text.pt": r"'text.pt' (cannot be read|holds more than tensors)",
        "weights.bin": "There is no weights format '.bin'",
        "absent.pt": "There is no file",
        "module.pt": "runs no code out of files",
        "checkpoint.pt": "must map parameter names to tensors",
    }.items():
        with pytest.raises(UnsumError, match=sentence):
            load_model(tiny, classes=10, weights=tmp_path / name)


def test_sizes_that_a_model_does_not_take_are_refused() -> None:
    assert load_model("torchvision:resnet18", classes=3, size=64).image_size == 64
    assert load_model("default", classes=3, size=128).image_size == 128
    assert load_model("default", classes=3, size=64).model(torch.rand(1, 3, 64, 64)).shape == (1, 3)
    with pytest.raises(UnsumError, match="a multiple of 8 from 16², not 60²"):
        load_model("default", classes=3, size=60)
    with pytest.raises(UnsumError, match="takes photos of 64²"):
        load_model("mlp", classes=3, size=128)
    with pytest.raises(UnsumError, match="at least one pixel"):
        load_model("torchvision:resnet18", classes=3, size=0)


@pytest.mark.parametrize(
    ("factory", "size", "features"), [("pooled", 64, 2048), ("unpooled", 224, 100352)]
)
def test_the_example_is_version_one(factory: str, size: int, features: int) -> None:
    example = Path(__file__).parents[2] / "examples" / "resnet50_v1.py"
    loaded = load_model(f"{example}:{factory}", classes=2)
    assert loaded.image_size == 224
    seen: dict[str, torch.Size] = {}
    block = loaded.model.layer2[0]
    block.conv1.register_forward_hook(lambda _m, _i, out: seen.update(conv1=out.shape))
    loaded.model.fc.register_forward_pre_hook(lambda _m, inputs: seen.update(fc=inputs[0].shape))
    with torch.no_grad():
        loaded.model.eval()(torch.rand(1, 3, size, size))
    assert seen["conv1"][2] == size // 8  # the 1×1 convolution takes the step
    assert seen["fc"] == (1, features)


def test_the_example_for_larger_photos_fits_them() -> None:
    example = Path(__file__).parents[2] / "examples" / "resnet50_v1.py"
    loaded = load_model(f"{example}:unpooled_336", classes=2)
    assert loaded.image_size == 336
    with torch.no_grad():
        assert loaded.model.eval()(torch.rand(1, 3, 336, 336)).shape == (1, 2)
