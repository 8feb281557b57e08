"""Wrong wishes get one sentence that says what to do, before anything is optimized."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from match.cases import convnet, crops, lenet
from support.material import small_net
from support.progress import Heard
from unsum import UnsumError, Update, attack, capture
from unsum.match import match
from unsum.match.problem import picture_shape


def sent(net: nn.Module, batch: int = 2) -> Update:
    return capture(net, crops(batch), torch.arange(batch) + 1, train=net.training)


@pytest.mark.parametrize(
    ("method", "wishes", "sentence"),
    [
        (
            "dlg",
            {},
            (
                r"'dlg' needs the batch size; give batch_size= \(unsum audit: "
                r"--batch-size-known\), or use 'ig'"
            ),
        ),
        ("gradinversion", {}, "'gradinversion' needs the batch size"),
        ("idlg", {"batch_size": 2}, "'idlg' is for one sample; for 2 samples use 'ig'"),
        ("ig", {"stepps": 3}, "The attack 'ig' has no option 'stepps'; did you mean 'steps'"),
        ("ig", {"steps": 0}, "'steps' must be a whole number of at least 1, not 0"),
        ("ig", {"total_variation": "much"}, "'total_variation' must be a number of at least 0"),
        ("ig", {"masked": 1}, "'masked' must be True or False"),
        ("ig", {"image_size": 40}, r"The model does not take a batch of \(2, 3, 40, 40\)"),
        ("ig", {"image_size": -1}, "must be a whole number of at least 1, not -1"),
        (
            "ig",
            {"image_size": (3, 32)},
            r"must be the side of the pictures or \(channels, height, width\)",
        ),
        (
            "ig",
            {"checkpoint": "state.pt"},
            "A checkpoint is a .safetensors file; rename 'state.pt'",
        ),
        ("ig", {"label_rule": "none"}, "There is no label rule 'none'"),
        ("ig", {"labels": torch.tensor([1, 99])}, "label 99 is outside the model's classes"),
        ("soft-gf", {"distance": "l3"}, "There is no distance 'l3'"),
        ("igg", {}, "did you mean 'ig'"),
    ],
)
def test_refused(method: str, wishes: dict[str, Any], sentence: str) -> None:
    net = convnet()
    with pytest.raises(UnsumError, match=sentence):
        match(net, sent(net), method, **({"image_size": 32} | wishes))


def test_an_update_of_the_head_alone_is_refused() -> None:
    net = convnet()
    whole = sent(net)
    head = Update({name: g for name, g in whole.gradients.items() if name.startswith("7.")})
    with pytest.raises(
        UnsumError, match="no gradient but the head's, so 'ig' has nothing to match; use 'exact'"
    ):
        match(net, head, "ig", image_size=32)


def test_dropout_is_refused_in_train_mode_alone() -> None:
    net = nn.Sequential(*convnet()[:-1], nn.Dropout(0.5), nn.Linear(4096, 10))
    update = sent(net)
    with pytest.raises(UnsumError, match=r"cannot match gradients through dropout \('7'\)"):
        match(net, update, "ig", image_size=32)
    net.eval()
    assert match(net, sent(net), "ig", image_size=32, steps=1).images is not None


def test_a_gradient_of_unknown_scale_is_refused_where_it_matters() -> None:
    net = convnet()
    delta = Update.from_delta({name: -0.1 * g for name, g in sent(net, 1).gradients.items()})
    with pytest.raises(UnsumError, match="'dlg' needs the gradient's scale"):
        match(net, delta, "dlg", image_size=32, batch_size=1)
    assert (
        match(net, delta, "ig", image_size=32, labels=torch.tensor([1]), steps=1).images is not None
    )


def test_the_size_is_found_where_only_one_fits() -> None:
    assert picture_shape(lenet(), None) == (3, 32, 32)
    net = small_net()  # pools: any size fits
    with pytest.raises(UnsumError, match=r"the model takes several .*; give it with image_size="):
        picture_shape(net, None)
    net.image_size = 16  # type: ignore[assignment]
    assert picture_shape(net, None) == (3, 16, 16)
    assert picture_shape(net, (1, 8, 9)) == (1, 8, 9)


def test_attacks_refuse_what_matchers_do_not_do() -> None:
    net = convnet()
    update = sent(net)
    with pytest.raises(UnsumError, match="leave refine= out"):
        attack(net, update, "ig", refine="features")
    with pytest.raises(UnsumError, match="'exact' takes no options here; leave 'steps' out"):
        attack(net, update, "exact", options={"steps": 3})
    with pytest.raises(UnsumError, match="'exact' takes no options here; leave 'steps=3' out"):
        attack(net, update, "exact:steps=3")
    with pytest.raises(UnsumError, match="'steps' has no '='"):
        attack(net, update, "ig:steps")
    with pytest.raises(UnsumError, match="has no option 'stpes'"):
        attack(net, update, "ig:stpes=3")


def test_options_can_stand_behind_the_name() -> None:
    net = convnet()
    heard = Heard()
    leak = attack(net, sent(net), "ig:steps=3,restarts=2,image_size=32", progress=heard)
    assert [step for step, *_ in heard.steps] == [0, 1, 2, 3]
    assert "the lowest of 2 restarts" in leak.notes[-1]
    assert sorted(leak.labels.tolist()) == [1, 2]
    assert leak.knowledge.granted() == ["The model's weights and one client update."]
