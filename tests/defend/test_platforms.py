"""The filters that platforms ship, value by value; tests/integrations holds them against the
platforms' own code."""

from __future__ import annotations

import math

import pytest
import torch

import unsum
from unsum import UnsumError, Update
from unsum.defend import (
    FlowerAdaptiveClipping,
    FlowerFixedClipping,
    FlowerLocalDP,
    NvflareExcludeVars,
    NvflarePercentile,
    NvflareSVT,
    parse_defense,
)


def update(entries: int = 4000, seed: int = 0, size: float = 1e-3) -> Update:
    generator = torch.Generator().manual_seed(seed)
    parts = (
        torch.randn(entries, generator=generator)
        .mul(size)
        .split([entries // 4, entries - entries // 4])
    )
    return Update({"b": parts[0], "a": parts[1].view(-1, 4), "scalar": torch.tensor(0.7)})


def test_fixed_clipping_takes_nothing_but_the_length() -> None:
    large = Update({"a": torch.tensor([30.0, 0.0]), "b": torch.tensor([40.0])})
    assert FlowerFixedClipping()(large).gradients["b"].tolist() == [8.0]
    # of norm 0.7
    assert torch.equal(FlowerFixedClipping()(update()).gradients["a"], update().gradients["a"])
    assert FlowerAdaptiveClipping()(large).gradients["a"].tolist() == pytest.approx([0.06, 0.0])
    assert repr(FlowerAdaptiveClipping()) == "FlowerAdaptiveClipping(clipping_norm=0.1)"


def test_local_dp_clips_and_adds_noise_of_its_formula() -> None:
    torch.manual_seed(0)
    clean = Update({"w": torch.full((100_000,), 1.0)})
    found = FlowerLocalDP(epsilon=10.0)(clean).gradients["w"]
    assert float(found.std()) == pytest.approx(math.sqrt(2 * math.log(1.25e5)) / 10, rel=0.02)
    assert float(found.mean()) == pytest.approx(1 / math.sqrt(100_000), abs=0.01)
    assert FlowerLocalDP().deviation == pytest.approx(4.845, rel=1e-3)


def test_the_percentile_is_over_all_tensors_and_scalars_pass() -> None:
    clean = Update(
        {
            "a": torch.arange(1.0, 10.0) / 1000,
            "b": torch.tensor([0.5, -0.5]),
            "scalar": torch.tensor(0.7),
        }
    )
    found = NvflarePercentile(percentile=50)(clean).gradients
    # Of 12 sizes the median lies between 0.006 and 0.007.
    assert found["a"].tolist() == pytest.approx([0, 0, 0, 0, 0, 0, 0.007, 0.008, 0.009])
    assert found["b"].tolist() == pytest.approx([0.01, -0.01])
    assert float(found["scalar"]) == pytest.approx(0.7)


def test_svt_sends_a_tenth_at_most_cut_and_noisy() -> None:
    torch.manual_seed(0)
    clean = update()
    found = NvflareSVT()(clean).gradients
    sent = torch.cat([found["a"].flatten(), found["b"]])
    count = int((sent != 0).sum())
    assert 0.8 * 400 <= count <= 401  # 401 of 4001 draws; some fall on the same entry
    assert float(sent.abs().max()) <= 1e-5 * (1 + 1e-6)
    assert float(found["scalar"]) == pytest.approx(0.7)
    # Noise of scale 2e-4 on entries cut to 1e-5: hardly a sign is left of them.
    true = torch.cat([clean.gradients["a"].flatten(), clean.gradients["b"]])
    agree = float((sent[sent != 0].sign() == true[sent != 0].sign()).double().mean())
    assert agree > 0.9  # … where the entries themselves are larger than the noise: 1e-3 here
    torch.manual_seed(0)
    small = NvflareSVT()(update(size=1e-6)).gradients["a"].flatten()
    truth = update(size=1e-6).gradients["a"].flatten()
    signs = float((small[small != 0].sign() == truth[small != 0].sign()).double().mean())
    assert signs == pytest.approx(0.5, abs=0.1)


def test_exclude_vars_leaves_out_what_it_is_told_and_nothing_by_itself() -> None:
    clean = update()
    assert NvflareExcludeVars()(clean) is clean
    assert list(NvflareExcludeVars(exclude_vars=["a"])(clean).gradients) == ["b", "scalar"]
    assert list(NvflareExcludeVars(exclude_vars="^(a|sca)")(clean).gradients) == ["b"]


def test_their_names_stand_on_the_command_line() -> None:
    chain = parse_defense("nvflare:percentile|clip:4|flower:local-dp")
    assert repr(chain).startswith(
        "NvflarePercentile(percentile=10.0, gamma=0.01) | Clip(4) | FlowerLocalDP(clipping_norm=1.0"
    )
    assert repr(parse_defense("opacus:readme")) == "DPSGD(1.1, clip=1)"
    with pytest.raises(UnsumError, match="There is no defense 'flower:clipping'; did you mean"):
        parse_defense("flower:clipping")


def test_clipping_on_the_server_hides_nothing_from_it() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 20)
    data = 20 * torch.randn(3, 64), torch.tensor([4, 4, 1])
    report = unsum.audit(model, data, defenses=FlowerAdaptiveClipping())
    assert min(report.leakages) > 0.999
    assert report.leak.scale < 0.1  # and the factor is found, too
