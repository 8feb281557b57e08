"""Prepared models are recognized, also in disguise; honest ones raise no alarm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn
from typer.testing import CliRunner

import unsum
from support.long import long
from support.material import small_net
from unsum import active
from unsum.commands.main import app
from unsum.doctor.tampering import WeightMatrix, pair_misfit, parallel_rows, tampering, trap_rows
from unsum.models import load_model

SERVERS = ["imprint", "imprint:bins=16", "traps", "traps:rows=32", "traps:factor=0.95"]


def prepared(server: str, seed: int = 0) -> nn.Module:
    return active.modify(small_net(), server, shape=(3, 16, 16), seed=seed)[0]


def alarms(model: nn.Module | dict[str, Tensor]) -> list[str]:
    return [finding.check for finding in tampering(model) if finding.mark == "tampered"]


def rows(model: nn.Module) -> nn.Linear:
    layer = model.get_submodule("front.rows")
    assert isinstance(layer, nn.Linear)
    return layer


def scaled(model: nn.Module) -> None:
    factors = 10 ** (2 * torch.rand(len(rows(model).bias)) - 1)
    rows(model).weight *= factors[:, None]
    rows(model).bias *= factors


def permuted(model: nn.Module) -> None:
    order = torch.randperm(len(rows(model).bias))
    for parameter in rows(model).parameters():
        parameter.copy_(parameter[order])


def negated(model: nn.Module) -> None:
    for parameter in rows(model).parameters():
        parameter[::2] *= -1


def noisy(model: nn.Module) -> None:
    weight = rows(model).weight
    noise = torch.randn_like(weight)
    weight += 0.1 * noise * weight.norm(dim=1, keepdim=True) / noise.norm(dim=1, keepdim=True)


def all_at_once(model: nn.Module) -> None:
    for disguise in (scaled, permuted, negated, noisy):
        disguise(model)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("disguise", [None, scaled, permuted, negated, noisy, all_at_once])
def test_prepared_models_are_recognized_in_disguise(
    server: str, disguise: Callable[[nn.Module], None] | None
) -> None:
    torch.manual_seed(0)
    model = prepared(server)
    if disguise is not None:
        with torch.no_grad():
            disguise(model)
    assert server.partition(":")[0] in alarms(model)


def test_an_identity_in_front_and_a_layer_among_honest_rows() -> None:
    front = nn.Conv2d(3, 3, 3, padding=1)
    nn.init.dirac_(front.weight)
    assert alarms(nn.Sequential(front, prepared("imprint"))) == ["imprint"]
    hidden = nn.Linear(768, 500)
    source = rows(prepared("imprint:bins=32"))
    with torch.no_grad():
        hidden.weight[100:132], hidden.bias[100:132] = source.weight, source.bias
    assert alarms(hidden) == ["imprint"]
    traps = nn.Linear(768, 500)
    with torch.no_grad():
        traps.weight[100:132] = rows(prepared("traps:rows=32")).weight
    assert alarms(traps) == ["traps"]
    as_convolution = {"weight": source.weight.view(32, 3, 16, 16), "bias": source.bias}
    assert alarms(as_convolution) == ["imprint"]


@pytest.mark.parametrize(
    "name",
    [
        *long("alexnet"),
        "squeezenet1_1",
        "mobilenet_v3_small",
        "shufflenet_v2_x0_5",
        "mnasnet0_5",
        "resnet18",
        "regnet_y_400mf",
    ],
)
def test_honest_networks_raise_no_alarm(name: str) -> None:
    torch.manual_seed(1)
    assert [f.mark for f in tampering(torchvision.models.get_model(name, weights=None))] == [
        "ok",
        "ok",
    ]


@pytest.mark.parametrize("name", ["default", "mlp", "timm:test_vit", "timm:test_convnext"])
def test_nor_do_our_own_trained_or_not(name: str) -> None:
    assert alarms(load_model(name, classes=10).model) == []


def test_what_is_odd_in_honest_models_is_no_alarm() -> None:
    torch.manual_seed(0)
    zeros, identity, constant = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)
    with torch.no_grad():
        zeros.weight.zero_()
        identity.weight.copy_(torch.eye(64))
        constant.weight.fill_(0.1)
        constant.bias.zero_()
    assert alarms(zeros) == alarms(identity) == alarms(constant) == []
    assert tampering(constant)[0].mark == "warning"  # copies, but no bins
    centered = nn.Linear(256, 64)
    with torch.no_grad():
        centered.weight -= centered.weight.mean(1, keepdim=True)
    assert alarms(centered) == []


def test_the_two_measures() -> None:
    torch.manual_seed(0)
    h = torch.rand(100)
    layer = WeightMatrix("x", h * torch.rand(20, 1), torch.linspace(-1, 1, 20))
    assert parallel_rows(layer) == (20, 20)
    assert parallel_rows(WeightMatrix("x", torch.randn(2000, 600), torch.randn(2000))) is None
    assert trap_rows(WeightMatrix("x", torch.randn(300, 600), None)) == 0
    misfit = pair_misfit(torch.randn(200, 3072))
    assert 0.5 < float(misfit.min()) < float(misfit.max()) < 8


def test_the_doctor_tells_a_client(tmp_path: Path) -> None:
    model = prepared("imprint")
    findings = {f.check: f for f in unsum.doctor(model)}
    assert findings["imprint"].mark == "tampered"
    assert "128 different thresholds" in findings["imprint"].sentence
    save_file(
        {n: p.detach().contiguous() for n, p in model.named_parameters()},
        tmp_path / "sent.safetensors",
    )
    runner = CliRunner()
    told = runner.invoke(app, ["doctor", "--model", str(tmp_path / "sent.safetensors")])
    assert told.exit_code == 1
    assert "looks tampered with" in told.output
    save_file(
        {n: p.detach() for n, p in small_net().named_parameters()}, tmp_path / "honest.safetensors"
    )
    assert (
        runner.invoke(app, ["doctor", "--model", str(tmp_path / "honest.safetensors")]).exit_code
        == 0
    )
    assert (
        runner.invoke(app, ["doctor", "--model", str(tmp_path / "none.safetensors")]).exit_code == 2
    )
