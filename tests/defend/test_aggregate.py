from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from support.material import pictures, small_net
from unsum import Clip, SecAgg, UnsumError, Update, aggregate, capture


def one(value: float, **metadata: object) -> Update:
    return Update({"w": torch.tensor([value])}, **metadata)  # type: ignore[arg-type]


def test_the_server_sees_the_gradient_of_all_samples_together() -> None:
    net, images, labels = small_net(batch_norm=False), pictures(6), torch.tensor([1, 1, 2, 3, 4, 5])
    clients = [
        capture(net, images[rows], labels[rows]) for rows in (slice(0, 1), slice(1, 3), slice(3, 6))
    ]
    together = capture(net, images, labels)
    summed = aggregate(clients, sizes=[1, 2, 3])
    assert summed.batch_size is None
    for name, gradient in together.gradients.items():
        torch.testing.assert_close(summed.gradients[name], gradient, atol=1e-7, rtol=1e-4)


def test_weights_come_from_disclosed_sizes_else_are_equal() -> None:
    known = aggregate([one(1.0, batch_size=1), one(5.0, batch_size=3)])
    assert (float(known.gradients["w"]), known.batch_size) == (4, 4)
    assert float(aggregate([one(1.0), one(5.0)]).gradients["w"]) == 3
    assert (
        float(
            aggregate(
                [one(1.0, reduction="sum"), one(5.0, reduction="sum")], sizes=[1, 3]
            ).gradients["w"]
        )
        == 6
    )
    delta = aggregate([Update.from_delta({"w": torch.tensor([v])}, 0.5) for v in (1.0, 2.0)])
    assert (float(delta.gradients["w"]), delta.kind, delta.learning_rate) == (-3, "delta", 0.5)


def test_as_a_defense_it_keeps_its_place() -> None:
    chain = Clip(1) | SecAgg(3, others=[one(0.5), one(0.0)])
    assert repr(chain) == "Clip(1) | SecAgg(3)"
    assert float(chain(one(4.0)).gradients["w"]) == 0.5
    assert float(SecAgg(2, others=[one(0.0)], sizes=[3, 1])(one(4.0)).gradients["w"]) == 3


@pytest.mark.parametrize(
    ("updates", "sizes", "sentence"),
    [
        ([], None, "nothing to aggregate"),
        ([one(1.0, batch_size=2), one(2.0)], None, "give sizes= for all"),
        ([one(1.0), one(2.0)], [1], "one size of at least 1 for each of the 2"),
        ([one(1.0), one(2.0)], [1, 0], "one size of at least 1"),
        ([one(1.0), Update({"v": torch.ones(1)})], None, "Update 2 holds other tensors"),
        ([one(1.0), Update({"w": torch.ones(2)})], None, "Update 2 holds other tensors"),
        ([one(1.0), replace(one(2.0), reduction="sum")], None, "another reduction"),
        ([one(1.0), replace(one(2.0), kind="delta")], None, "another kind"),
    ],
)
def test_what_cannot_be_added_is_refused(
    updates: list[Update], sizes: list[int] | None, sentence: str
) -> None:
    with pytest.raises(UnsumError, match=sentence):
        aggregate(updates, sizes=sizes)
