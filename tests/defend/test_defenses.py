from __future__ import annotations

import pytest
import torch

from unsum import Clip, Noise, Prune, UnsumError, Update
from unsum.defend import DEFENSES, parse_defense
from unsum.defend.defense import has_strength


def update(*values: float) -> Update:
    return Update({"w": torch.tensor(values)})


def test_noise_has_the_strength_it_names() -> None:
    torch.manual_seed(0)
    clean = Update({"w": torch.full((400, 500), 3.0), "b": torch.zeros(200_000)})
    noisy = Noise(0.25)(clean)
    for name, value in clean.gradients.items():
        difference = noisy.gradients[name] - value
        assert float(difference.std()) == pytest.approx(0.25, rel=0.01)
        assert float(difference.mean()) == pytest.approx(0, abs=0.003)
    assert torch.equal(clean.gradients["b"], torch.zeros(200_000))  # the original is untouched


def test_clipping_scales_all_tensors_by_one_factor() -> None:
    clean = Update({"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0])})
    clipped = Clip(1)(clean)
    torch.testing.assert_close(clipped.gradients["a"], torch.tensor([0.6, 0.0]))
    torch.testing.assert_close(clipped.gradients["b"], torch.tensor([0.8]))
    assert torch.equal(Clip(10)(clean).gradients["b"], clean.gradients["b"])
    assert torch.equal(Clip(1)(update(0.0, 0.0)).gradients["w"], torch.zeros(2))


def test_pruning_keeps_the_largest_of_each_tensor() -> None:
    clean = Update({"w": torch.tensor([[1.0, -5.0], [2.0, 0.5]]), "b": torch.arange(1.0, 11.0)})
    pruned = Prune(0.5)(clean)
    assert pruned.gradients["w"].tolist() == [[0, -5], [2, 0]]
    assert int((Prune(0.9)(clean).gradients["b"] != 0).sum()) == 1
    assert Prune(0.999)(clean).gradients["w"].tolist() == [[0, -5], [0, 0]]
    assert torch.equal(Prune(0)(clean).gradients["w"], clean.gradients["w"])


def test_pruning_counts_exactly_with_ties() -> None:
    assert int(Prune(0.75)(Update({"w": torch.ones(8)})).gradients["w"].sum()) == 2


def test_order_is_visible_and_kept() -> None:
    chain = Noise(0.01) | Clip(4) | Prune(0.9)
    assert repr(chain) == "Noise(0.01) | Clip(4) | Prune(0.9)"
    assert repr(parse_defense("noise:0.01|clip:4|prune:0.9")) == repr(chain)
    doubled = Clip(1) | (Prune(0.5) | Clip(0.5))
    assert doubled(update(3.0, 4.0)).gradients["w"].tolist() == pytest.approx([0, 0.5])


def test_every_defense_can_be_named_on_the_command_line() -> None:
    assert {entry.name for entry in DEFENSES} == {
        "noise", "laplace", "clip", "clip-layers", "prune", "prune-global", "qsgd", "sign",
        "quantize", "float16", "bfloat16", "soteria", "dp", "smooth", "mixup", "secagg",
        "drop-bias", "drop-head", "flower:fixed-clipping", "flower:adaptive-clipping",
        "flower:local-dp", "nvflare:percentile", "nvflare:svt", "nvflare:exclude-vars",
        "opacus:readme",
    }  # fmt: skip
    for entry in DEFENSES:
        if entry.name == "secagg":  # needs other clients, whom the command line does not have
            continue
        strength = entry.method.example if has_strength(entry.method) else None
        defense = parse_defense(entry.name if strength is None else f"{entry.name}:{strength}")
        assert type(defense) is entry.method
        assert strength is None or defense.strength == strength


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nois:1", "no defense 'nois'; did you mean 'noise'"),
        ("noise", "its strength is missing"),
        ("noise:", "'' is not a number"),
        ("clip:strong", "'strong' is not a number"),
        ("noise:-1", "standard deviation"),
        ("noise:nan", "standard deviation"),
        ("clip:0", "positive norm"),
        ("clip:inf", "positive norm"),
        ("prune:1", "below 1"),
        ("prune-global:1", "below 1"),
        ("laplace:-1", "scale of at least 0"),
        ("clip-layers:0", "positive norm"),
        ("qsgd", "write it as 'qsgd:4'"),
        ("qsgd:0", "whole and at least 1"),
        ("qsgd:2.5", "whole and at least 1"),
        ("qsgd:inf", "whole and at least 1"),
        ("quantize:0", "whole and at least 1"),
        ("quantize:32", "24 or fewer"),
        ("sign:1", "takes no strength; write it as 'sign'"),
        ("drop-head:", "takes no strength"),
        ("soteria:1.5", "between 0 and 1"),
        ("dp:-1", "noise multiplier"),
        ("smooth:2", "between 0 and 1"),
        ("mixup:0", "positive alpha"),
        ("secagg:1", "whole and at least 2"),
        ("secagg:4", "needs the updates of the 3 others"),
    ],
)
def test_bad_defenses_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(UnsumError, match=sentence):
        parse_defense(text)
