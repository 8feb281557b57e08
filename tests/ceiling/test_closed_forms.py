"""`unsum.ceiling` where the answer is known by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unsum
from unsum.audit import ceiling_words
from unsum.ceiling import Effort, Simulation, bound, prove
from unsum.ceiling.bound import against
from unsum.ceiling.client import Played, World
from unsum.ceiling.coin import known_in_gaussian, normal_cdf
from unsum.ceiling.prove import Prover
from unsum.defend.added import split_at_noise
from unsum.defend.platforms import FlowerLocalDP


def linear(inputs: int = 5, outputs: int = 3) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs)


def batch(samples: int = 1, inputs: int = 5, outputs: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(samples, inputs, generator=generator), torch.arange(samples) % outputs


def samples(*arguments: object, **how: object) -> list[float]:
    return unsum.ceiling(*arguments, **how).samples.tolist()  # type: ignore[arg-type]


def known(distance: float, sigma: float) -> float:
    return float(known_in_gaussian(np.array([(distance / (2 * sigma)) ** 2]))[0])


# Labels: ∇W = (p − y) xᵀ, ∇b = p − y, so that another label moves them by (y′ − y) [x, 1], of
# length √(2 (‖x‖² + 1)).


@pytest.mark.parametrize("sigma", [0.3, 2.0, 10.0])
def test_the_label_of_a_linear_model(sigma: float) -> None:
    x, y = batch()
    distance = math.sqrt(2 * (float(x.double().square().sum()) + 1))
    found = unsum.ceiling(linear(), (x, y), noise=sigma, pairs=1)
    assert found.labels.tolist() == pytest.approx([normal_cdf(distance / (2 * sigma))], rel=1e-6)


def test_the_label_among_four_samples_is_a_fourth_as_far() -> None:
    x, y = batch(4)
    distances = (2 * (x.double().square().sum(1) + 1)).sqrt() / 4
    found = unsum.ceiling(linear(), (x, y), noise=0.2, pairs=1)
    assert found.labels.tolist() == pytest.approx(
        [normal_cdf(float(d) / 0.4) for d in distances], rel=1e-5
    )


def test_mean_squared_error_by_hand() -> None:
    """One output, loss (w x + b − y)² of one entry: ∇ = 2 r [x, 1] with r = w x + b − y; worlds x
    and x + 2 s or x − 2 s."""
    model = nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.bias.fill_(0.1)

    def gradient(x: float) -> np.ndarray:
        r = 0.5 * x + 0.1 - 0.7
        return 2 * r * np.array([x, 1.0])

    distances = [
        float(np.linalg.norm(gradient(2.0 + step) - gradient(2.0))) for step in (0.6, -0.6)
    ]
    found = unsum.ceiling(
        model,
        (torch.tensor([[2.0]]), torch.tensor([0.7])),
        noise=1.5,
        spread=0.3,
        pairs=256,
        loss="mse",
    )
    drawn = {round(math.sqrt(one.squared), 5) for one in found.distances.found[0]}  # type: ignore[union-attr]
    assert len(drawn) == 1  # which way is drawn once for each entry
    assert drawn < {round(distance, 5) for distance in distances}
    exact = known(*drawn, 1.5)
    assert float(found.lower[0]) <= exact <= float(found.samples[0])
    assert float(found.samples[0]) - float(found.lower[0]) < 0.08
    assert float(found.guesses[0]) >= normal_cdf(*(distance / 3.0 for distance in drawn))
    assert math.isnan(float(found.labels[0]))  # a number is no class


def test_two_equal_worlds_hide_everything() -> None:
    class Blind(nn.Module):
        """Looks at nothing but a bias."""

        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.bias.expand(len(x), 3)

    found = unsum.ceiling(Blind(), batch(2), noise=0.1, pairs=64)
    assert float(found.samples.max()) < 0.12  # 64 draws of 0
    assert float(found.lower.max()) == 0
    quiet = unsum.ceiling(Blind(), batch(2), pairs=64)  # no noise, and the same bits all the same
    assert (quiet.why, float(quiet.samples.max()) < 0.12) == ("", True)
    assert quiet.labels.tolist() == [1.0, 1.0]  # labels do change the bias


def test_without_noise_the_ceiling_is_the_sample() -> None:
    found = unsum.ceiling(linear(), batch(3))
    assert found.samples.tolist() == [1.0] * 3
    assert found.labels.tolist() == [1.0] * 3
    assert "noise" in found.why
    assert found.decided() == "above"


@pytest.mark.parametrize(
    "defense",
    [
        unsum.Sign(),
        unsum.Prune(0.5),
        unsum.Quantize(8),
        unsum.Float16(),
        unsum.Clip(0.1),
        unsum.QSGD(4),
        unsum.Soteria(0.2),
    ],
    ids=repr,
)
def test_what_only_cuts_and_rounds_proves_nothing(defense: unsum.defend.Defense) -> None:
    x, y = batch(2)
    data = 0 * x, y  # so that every step changes a sign
    assert samples(linear(), data, defenses=defense, spread=3.0) == [1.0, 1.0]


@pytest.mark.parametrize(
    "defense", [unsum.Sign(), unsum.BFloat16(), unsum.Prune(0.9) | unsum.Sign()], ids=repr
)
def test_what_rounds_both_worlds_to_the_same_bits_proves_what_its_pairs_do(
    defense: unsum.defend.Defense,
) -> None:
    found = unsum.ceiling(linear(), batch(2), defenses=defense, spread=1e-6, pairs=64)
    assert all(0 < value < 0.12 for value in found.samples.tolist())


# What the noise is, and what comes after it.


def test_what_follows_the_noise_counts_for_nothing() -> None:
    alone = samples(linear(), batch(2), defenses=unsum.Noise(0.4), pairs=16)
    for after in (
        unsum.Clip(0.1),
        unsum.Sign(),
        unsum.Prune(0.9),
        unsum.Laplace(1.0),
        unsum.DropBias(),
    ):
        assert samples(linear(), batch(2), defenses=[unsum.Noise(0.4), after], pairs=16) == alone


def test_noises_in_a_row_are_one_noise() -> None:
    one = samples(linear(), batch(2), noise=0.5, pairs=16)
    assert (
        samples(linear(), batch(2), defenses=[unsum.Noise(0.3), unsum.Noise(0.4)], pairs=16) == one
    )


def test_a_defense_that_looks_at_the_samples_after_the_noise_undoes_it() -> None:
    """Soteria's mask follows from the photos, and no noise lies on it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Sigmoid(), nn.Linear(8, 3))
    chain = [unsum.Noise(9.0), unsum.Soteria(0.5)]
    assert split_at_noise(chain, 2)[1] is None
    assert samples(model, batch(2), defenses=chain) == [1.0, 1.0]
    assert max(samples(model, batch(2), defenses=[unsum.Soteria(0.5), unsum.Noise(9.0)])) < 0.2


class OnTheHead(unsum.Noise):
    """Adds its noise to one tensor alone."""

    def __call__(self, update: unsum.Update) -> unsum.Update:
        noisy = super().__call__(update)
        return update.map(lambda name, g: noisy.gradients[name] if name == "bias" else g)


class Renamed(unsum.Noise):
    """Another name and another default, and the same noise."""

    def __init__(self, std: float = 9.0) -> None:
        super().__init__(std)


def test_noise_is_counted_only_where_the_class_that_declares_it_adds_it() -> None:
    assert split_at_noise([OnTheHead(9.0)], 2)[1] is None
    assert samples(linear(), batch(2), defenses=OnTheHead(9.0)) == [1.0, 1.0]
    patched = unsum.Noise(9.0)
    patched.changed = lambda gradient: gradient  # type: ignore[method-assign]
    assert split_at_noise([patched], 2)[1] is None
    assert split_at_noise([Renamed()], 2)[1] == split_at_noise([unsum.Noise(9.0)], 2)[1]


def test_a_function_after_the_noise_may_put_back_what_the_noise_hid() -> None:
    clean = unsum.capture(linear(), *batch(2))

    def back(update: unsum.Update) -> unsum.Update:
        return update.map(lambda name, _g: clean.gradients[name])

    found = unsum.ceiling(linear(), batch(2), defenses=[unsum.Noise(9.0), back])
    assert (found.samples.tolist(), found.labels.tolist()) == ([1.0, 1.0], [1.0, 1.0])
    assert "follows the noise" in found.why
    assert max(samples(linear(), batch(2), defenses=[lambda u: u, unsum.Noise(9.0)])) < 0.2


def test_clipping_first_brings_the_worlds_together() -> None:
    free = samples(linear(), batch(2), noise=0.2, pairs=64)
    clipped = samples(linear(), batch(2), defenses=[unsum.Clip(0.1), unsum.Noise(0.2)], pairs=64)
    assert max(clipped) < max(free)


def test_flowers_local_dp_is_a_clip_and_a_noise() -> None:
    local = FlowerLocalDP(clipping_norm=0.5, epsilon=20.0)
    spelled = [unsum.Clip(0.5), unsum.Noise(local.deviation)]
    assert samples(linear(), batch(2), defenses=local, pairs=16) == samples(
        linear(), batch(2), defenses=spelled, pairs=16
    )


def test_dp_sgd_clips_every_sample_and_divides_its_noise() -> None:
    """B = 2, clip 0.1: two worlds of one sample lie at most 2 · 0.1 / 2 apart, and the noise is 3 ·
    0.1 / 2."""
    found = unsum.ceiling(linear(), batch(2), defenses=unsum.DPSGD(3.0, clip=0.1), pairs=64)
    assert found.noise is not None
    assert found.noise.scale == pytest.approx(0.15)
    assert found.worst is not None
    assert found.worst.mu == pytest.approx(2 / 3)
    assert float(found.samples.max()) <= found.worst.leakage + 1e-12
    assert float(found.labels.max()) <= found.worst.guess


def test_laplace_noise_has_a_ceiling_of_its_own() -> None:
    weak, strong = (
        unsum.ceiling(linear(), batch(2), defenses=unsum.Laplace(b), pairs=64) for b in (0.02, 20.0)
    )
    assert float(strong.samples.max()) < 0.12
    assert float(weak.samples.min()) > 0.5
    x, y = batch()
    found = unsum.ceiling(linear(), (x, y), defenses=unsum.Laplace(1.0), pairs=4)
    half = torch.cat([x[0], torch.ones(1)]).abs().double().repeat(2) / 2  # of rows y and y′, |δ|/2b
    rho = float((torch.log1p(half) - half).sum().exp())
    # Sizes are rounded up by at most 9 %, so the bound lies at the exact affinity or above it.
    assert 0 <= float(found.labels[0]) - (1 + math.sqrt(1 - rho**2)) / 2 < 0.05


# The client: local steps, buffers, and a client of the user's.


def test_one_local_step_is_the_gradient() -> None:
    plain = samples(linear(), batch(2), noise=0.4, pairs=16)
    trained = samples(linear(), batch(2), noise=0.4, pairs=16, learning_rate=0.1, local_steps=1)
    assert trained == pytest.approx(plain, abs=1e-3)


def test_epochs_say_more_and_are_played() -> None:
    """Five epochs at a rate near 0 send the sum of five gradients: as far apart as noise five times
    smaller."""
    five = samples(linear(), batch(2), noise=1.0, pairs=16, learning_rate=1e-4, epochs=5)
    assert five == pytest.approx(samples(linear(), batch(2), noise=0.2, pairs=16), abs=0.01)
    with_momentum = samples(
        linear(), batch(2), noise=1.0, pairs=16, learning_rate=1e-4, epochs=5, momentum=0.9
    )
    assert min(with_momentum) > max(five) - 0.05


def test_buffers_are_sent_without_noise() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    found = unsum.ceiling(model, batch(4), noise=50.0, buffers=True)
    assert found.samples.tolist() == [1.0] * 4
    assert "BatchNorm" in found.why
    assert float(found.labels.max()) < 0.6  # labels are not in the buffers
    assert max(samples(model, batch(4), noise=50.0)) < 0.12


def test_buffers_of_several_steps_are_refused_and_not_left_out() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(unsum.UnsumError, match="without its buffers"):
        unsum.ceiling(model, batch(4), noise=50.0, buffers=True, epochs=3, learning_rate=0.1)


@pytest.mark.parametrize("how", [{"learning_rate": 0.1}, {"weight_decay": 1e-4}], ids=str)
def test_buffers_of_one_step_are_sent_however_the_step_is_declared(how: dict[str, float]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    found = unsum.ceiling(model, batch(4), noise=50.0, buffers=True, **how)  # type: ignore[arg-type]
    assert found.samples.tolist() == [1.0] * 4
    assert "BatchNorm" in found.why


def test_the_sign_of_a_zero_is_a_bit_like_any_other_where_there_is_no_noise() -> None:
    """Whatever was pruned to 0 or to −0: an attacker that sees the bits sees which."""

    def client(world: World) -> Played:
        return Played({"w": 0.0 * world.inputs[:, 0]}, {"beside": torch.zeros(1)})

    data = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    bare = unsum.ceiling(nn.Linear(2, 2), data, client=client, pairs=64)
    assert (bare.samples.tolist(), bare.decided()) == ([1.0], "above")
    hidden = unsum.ceiling(nn.Linear(2, 2), data, client=client, noise=1e-9, pairs=64)
    assert float(hidden.samples[0]) < 0.12  # 0 and −0 with noise are one number

    def beside(world: World) -> Played:
        return Played({"w": torch.zeros(1)}, {"beside": 0.0 * world.inputs[:, 0]})

    assert samples(nn.Linear(2, 2), data, client=beside, noise=9.0) == [1.0]


def test_differences_whose_square_is_no_float_are_differences() -> None:
    def client(world: World) -> Played:
        return Played({"w": 1e-200 * world.inputs.double()})

    data = torch.tensor([[1.0, 2.0]]), torch.tensor([0])
    assert samples(nn.Linear(2, 2), data, client=client) == [1.0]


def test_noise_that_follows_from_the_number_of_samples_shows_who_is_missing() -> None:
    """DP-SGD divides its noise by the batch: two worlds of another size have another noise, and
    many entries show it."""
    how = {"presence": True, "pairs": 1}
    dp = unsum.ceiling(linear(), batch(4), defenses=unsum.DPSGD(30.0, clip=0.1), **how)
    assert dp.present is not None
    assert dp.present.tolist() == [1.0] * 4
    same = unsum.ceiling(
        linear(), batch(4), defenses=[unsum.DPSGD(0.0, clip=0.1), unsum.Noise(1.0)], **how
    )
    assert same.present is not None
    assert float(same.present.max()) < 0.6


def test_a_clip_does_not_bound_what_is_sent_beside_the_update() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    chain = [unsum.Clip(0.1), unsum.Noise(1.0)]
    found = unsum.ceiling(model, batch(4), defenses=chain, buffers=True)
    assert found.samples.tolist() == [1.0] * 4
    assert found.worst is None


def test_a_client_of_ones_own() -> None:
    """Two steps of Adam, and what its weights moved by."""
    model = linear()

    def client(world: World) -> Played:
        twin = nn.Linear(5, 3)
        twin.load_state_dict(model.state_dict())
        optimizer = torch.optim.Adam(twin.parameters(), 0.01)
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.cross_entropy(twin(world.inputs), world.targets).backward()
            optimizer.step()
        return Played(
            {
                n: p.detach() - q.detach()
                for (n, p), q in zip(twin.named_parameters(), model.parameters(), strict=True)
            }
        )

    hidden = unsum.ceiling(model, batch(2), noise=0.5, client=client, pairs=64)
    read = unsum.ceiling(model, batch(2), noise=1e-5, client=client, pairs=64)
    assert float(hidden.samples.max()) < 0.2 < float(read.samples.min())
    with_sign = unsum.ceiling(
        model,
        batch(2),
        defenses=[unsum.Sign(), unsum.Noise(0.5)],
        client=client,
        pairs=64,
        spread=3.0,
    )
    # signs lie 2 apart, not 0.02
    assert float(with_sign.samples.max()) > float(hidden.samples.max())


def test_a_clients_own_randomness_falls_alike_in_both_worlds() -> None:
    def client(world: World) -> Played:
        return Played({"sum": world.inputs.sum(0) + torch.randn(5)})

    found = unsum.ceiling(
        linear(),
        (torch.zeros(1, 5), torch.tensor([0])),
        client=client,
        noise=1.0,
        spread=1.0,
        pairs=128,
    )
    assert float(found.lower[0]) <= known(2.0, 1.0) <= float(found.samples[0])


# Any model, any loss.


def segmentation() -> tuple[nn.Module, tuple[Tensor, Tensor], Callable[[object, Tensor], Tensor]]:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    data = torch.rand(2, 3, 8, 8), torch.randint(2, (2, 8, 8))
    return model, data, lambda out, y: nn.functional.cross_entropy(out, y)  # type: ignore[arg-type]


def recurrent() -> tuple[nn.Module, tuple[Tensor, Tensor], Callable[[object, Tensor], Tensor]]:
    return (
        nn.LSTM(3, 4, batch_first=True),
        (torch.randn(2, 6, 3), torch.randn(2, 4)),
        lambda out, y: (out[0][:, -1] - y).square().mean(),  # type: ignore[index]
    )


def contrastive() -> tuple[nn.Module, tuple[Tensor, Tensor], Callable[[object, Tensor], Tensor]]:
    def loss(out: Tensor, partner: Tensor) -> Tensor:
        z = nn.functional.normalize(out)
        return nn.functional.cross_entropy(z @ z.T * 5 - 1e3 * torch.eye(len(z)), partner)

    return nn.Linear(6, 2), (torch.randn(4, 6), torch.tensor([1, 0, 3, 2])), loss  # type: ignore[return-value]


@pytest.mark.parametrize("made", [segmentation, recurrent, contrastive], ids=lambda f: f.__name__)
def test_whatever_can_be_trained_can_be_bounded(made: Callable[[], tuple]) -> None:
    torch.manual_seed(0)
    model, data, loss = made()
    assert samples(model, data, loss=loss) == [1.0] * len(data[0])
    assert min(samples(model, data, loss=loss, noise=1e-5, pairs=64)) > 0.5
    assert max(samples(model, data, loss=loss, noise=1e3, pairs=64)) < 0.12
    assert samples(model, data, loss=loss, noise=1e-5, pairs=8, epochs=2, learning_rate=0.1)


def test_binary_labels_are_turned_and_soft_ones_exchanged() -> None:
    x, _ = batch(2)
    yes = unsum.ceiling(linear(5, 1), (x, torch.tensor([0, 1])), loss="bce", noise=0.5, pairs=4)
    expected = [
        normal_cdf(math.sqrt(float(row.square().sum()) + 1) / 2 / (2 * 0.5)) for row in x.double()
    ]
    assert yes.labels.tolist() == pytest.approx(expected, rel=1e-5)
    soft = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
    found = unsum.ceiling(linear(), (x, soft), noise=0.5, pairs=4)
    assert all(0.5 < value < 1 for value in found.labels.tolist())


# Rounds, observers, and what the mechanism promises.


def test_rounds_add_up_like_less_noise() -> None:
    found = unsum.ceiling(linear(), batch(2), noise=2.0, pairs=16)
    fewer = unsum.ceiling(linear(), batch(2), noise=2.0 / math.sqrt(9), pairs=16)
    assert found.after(9).tolist() == pytest.approx(fewer.samples.tolist(), abs=1e-9)
    assert found.after(1).tolist() == found.samples.tolist()


def test_rounds_of_a_mechanism_add_up_as_well() -> None:
    found = unsum.ceiling(
        linear(), batch(4), defenses=unsum.DPSGD(4.0), local_steps=2, learning_rate=0.1
    )
    assert found.worst is not None
    assert (found.worst.mu, found.pairs) == (pytest.approx(0.5), 0)
    assert found.samples.tolist() == [found.worst.leakage] * 4
    assert found.after(4).tolist() == pytest.approx([known(1.0, 1.0)] * 4)  # μ doubles


def test_who_looks() -> None:
    """K clients' noises add up to σ √K in the sum; a server's own counts K-fold, for outsiders
    alone."""
    x, y = batch()
    distance = math.sqrt(2 * (float(x.double().square().sum()) + 1))
    expected = {
        unsum.Observer(): 1.0,
        unsum.Observer("aggregate", clients=9): 3.0,
        unsum.Observer("outsider", clients=4, noise=0.5): math.hypot(2.0, 2.0),
    }
    for observer, sigma in expected.items():
        found = unsum.ceiling(linear(), (x, y), noise=1.0, pairs=1, observer=observer)
        assert float(found.labels[0]) == pytest.approx(normal_cdf(distance / (2 * sigma)), rel=1e-6)
        assert observer.kind in found.observer.sentence or observer.kind == "aggregate"
    central = unsum.Observer("outsider", clients=10, noise=1.0)
    assert samples(linear(), (x, y), observer=central, pairs=64) < [1.0]
    # no client adds noise
    assert samples(linear(), (x, y), observer=unsum.Observer("aggregate", clients=10)) == [1.0]


@pytest.mark.parametrize("last", [unsum.Float16(), unsum.Clip(5.0), unsum.Laplace(1e-9)])
@pytest.mark.parametrize("observer", ["aggregate", "outsider"])
def test_others_noise_counts_only_where_nothing_follows_it(
    observer: Literal["aggregate", "outsider"], last: unsum.defend.Defense
) -> None:
    """Of an update that is large beside its noise, rounding, clips and signs leave none of it: then
    a mean holds this client's noise alone."""
    x, y = batch()
    distance = math.sqrt(2 * (float(x.double().square().sum()) + 1))
    who = unsum.Observer(observer, clients=100, noise=3.0 * (observer == "outsider"))
    how = {"defenses": [unsum.Noise(2.0), last], "pairs": 1, "observer": who}
    found = unsum.ceiling(linear(), (x, y), **how)
    assert float(found.labels[0]) == pytest.approx(normal_cdf(distance / 4), rel=1e-6)
    assert found.to_dict()["noise"]["processed"]


# Other clients' data, drawn from a public pool.


def summed(world: World) -> Played:
    """A client that sends the sum of its samples."""
    return Played({"sum": world.inputs.double().sum(0)})


def pooled(deviation: Tensor, samples: int = 4000) -> tuple[Tensor, Tensor]:
    x = torch.randn(samples, 5, generator=torch.Generator().manual_seed(3)) * deviation
    return x, torch.zeros(samples, dtype=torch.long)


def test_other_clients_hide_what_their_own_updates_move() -> None:
    """K = 5 clients of two samples: their sum has the variance 4 · 2 · 0.5² = 2 in entry 0, and the
    noise √5 σ."""
    spread = torch.tensor([1.0, 0, 0, 0, 0])
    data = torch.zeros(2, 5), torch.tensor([0, 1])
    how = {
        "client": summed,
        "spread": spread,
        "noise": 0.3,
        "observer": unsum.Observer("aggregate", clients=5),
    }
    own = 5 * 0.3**2
    others = pooled(torch.tensor([0.5, 0.5, 0, 0, 0]))
    found = unsum.ceiling(linear(), data, pairs=64, others=others, **how)
    one = found.distances.found[0][0]  # type: ignore[union-attr]
    deviations = one._deviations(math.sqrt(own))
    assert one.squared == pytest.approx(4.0)
    # 24 updates know a variance to a third
    assert deviations == pytest.approx(2 / math.sqrt(own + 2.0), rel=0.4)
    elsewhere = unsum.ceiling(
        linear(), data, pairs=64, others=pooled(torch.tensor([0, 0.5, 0, 0, 0])), **how
    )
    granted = unsum.ceiling(linear(), data, pairs=64, **how)
    assert float(found.samples[0]) < float(granted.samples[0]) - 0.2
    assert elsewhere.samples.tolist() == pytest.approx(granted.samples.tolist(), abs=1e-6)


def test_an_estimate_is_marked_and_never_a_proof() -> None:
    data = torch.zeros(2, 5), torch.tensor([0, 1])
    how = {"noise": 9.0, "pairs": 64, "observer": unsum.Observer("aggregate", clients=3)}
    proven = unsum.ceiling(linear(), data, **how)
    found = unsum.ceiling(linear(), data, others=pooled(torch.ones(5)), **how)
    assert (proven.decided(0.2), proven.estimate) == ("below", "")
    assert float(found.samples.max()) < 0.2
    assert found.decided(0.2) == "open"
    assert "proves nothing" in found.estimate
    assert "24 updates of 2 out of 4000 public samples each" in found.estimate
    assert "estimate" in repr(found)
    assert "estimate" in found._repr_html_()
    assert found.to_dict()["estimate"] == found.estimate
    said = [ceiling_words.headline(found, 0.2), *ceiling_words.details(found)]
    assert said[0].startswith("Estimated, not proven")
    assert not any("confidence" in sentence or "Proven" in sentence for sentence in said)


def test_what_a_mechanism_proves_stays_proven_beside_an_estimate() -> None:
    chain = [unsum.Clip(0.1), unsum.Noise(1.0)]
    observer = unsum.Observer("aggregate", clients=3)
    found = unsum.ceiling(
        linear(), batch(2), defenses=chain, observer=observer, others=pooled(torch.ones(5)), pairs=4
    )
    assert found.decided(0.2) == "below"


def test_without_noise_public_updates_hide_nothing() -> None:
    observer = unsum.Observer("aggregate", clients=3)
    found = unsum.ceiling(linear(), batch(2), observer=observer, others=pooled(torch.ones(5)))
    assert found.samples.tolist() == [1.0, 1.0]
    assert "No client adds noise" in found.why


def test_over_rounds_other_clients_are_granted() -> None:
    data = torch.zeros(2, 5), torch.tensor([0, 1])
    how = {
        "noise": 0.2,
        "pairs": 16,
        "observer": unsum.Observer("aggregate", clients=3),
        "client": summed,
        "spread": 0.1,
    }
    granted = unsum.ceiling(linear(), data, **how)
    found = unsum.ceiling(linear(), data, others=pooled(torch.ones(5)), **how)
    assert found.after(1).tolist() == found.samples.tolist()
    assert found.after(3).tolist() == granted.after(3).tolist()


@pytest.mark.parametrize(
    ("others", "observer", "says"),
    [
        (pooled(torch.ones(5), 9), unsum.Observer(), "at least two clients"),
        ("photos", unsum.Observer("aggregate", clients=3), "a folder of photos, or"),
        (
            (torch.zeros(3, 4), torch.zeros(3)),
            unsum.Observer("aggregate", clients=3),
            "samples like this client's",
        ),
        (batch(2), unsum.Observer("aggregate", clients=3), "not its own"),
    ],
)
def test_other_clients_that_cannot_be_are_refused(
    others: object, observer: unsum.Observer, says: str
) -> None:
    with pytest.raises(unsum.UnsumError, match=says):
        unsum.ceiling(linear(), batch(2), noise=1.0, others=others, observer=observer)  # type: ignore[arg-type]


def test_presence() -> None:
    """One of two samples: the update is half of the sum, or the other's own gradient."""
    x, y = batch(2)
    model = linear()
    both, alone = (unsum.capture(model, x[s], y[s]) for s in (slice(None), slice(1, None)))
    distance = math.sqrt(
        sum(float((both.gradients[n] - alone.gradients[n]).square().sum()) for n in both.gradients)
    )
    found = unsum.ceiling(model, (x, y), noise=0.7, presence=True, pairs=1)
    assert found.present is not None
    assert float(found.present[0]) == pytest.approx(normal_cdf(distance / 1.4), rel=1e-5)


def test_who_alone_cannot_be_trained_on_is_seen_to_be_missing() -> None:
    """BatchNorm needs two samples: the client without one of them sends nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    found = unsum.ceiling(model, batch(2), noise=50.0, presence=True, pairs=4)
    assert found.present is not None
    assert found.present.tolist() == [1.0, 1.0]
    assert found.labels.tolist() != [1.0, 1.0]


# Repeatable, and without traces.


def test_the_seed_decides_and_nothing_else_changes() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 3)
    ).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = unsum.ceiling(model, batch(4), noise=0.1, pairs=8, seed=1)
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.training
    assert all(p.grad is None for p in model.parameters())
    again = unsum.ceiling(model, batch(4), noise=0.1, pairs=8, seed=1)
    other = unsum.ceiling(model, batch(4), noise=0.1, pairs=8, seed=2)
    assert first.samples.tolist() == again.samples.tolist() != other.samples.tolist()


def test_a_spread_may_be_a_number_or_like_a_sample() -> None:
    number = samples(linear(), batch(2), noise=0.4, pairs=16, spread=0.5)
    assert samples(linear(), batch(2), noise=0.4, pairs=16, spread=torch.full((5,), 0.5)) == number
    first = torch.tensor([0.5, 0, 0, 0, 0])  # the first entry alone is in question
    assert all(
        0 < value < 1 for value in samples(linear(), batch(2), noise=0.4, pairs=64, spread=first)
    )


def test_a_decision_ends_the_draws() -> None:
    easy = unsum.ceiling(linear(), batch(2), noise=50.0, level=0.2)
    assert easy.decided(0.2) == "below"
    assert easy.pairs <= 2 * 2 * 40  # around the client's own world, and around others
    leaks = unsum.ceiling(linear(), batch(2), noise=1e-3, level=0.2)
    assert leaks.decided(0.2) == "above"
    assert sorted(leaks.lower.tolist())[0] == 0  # one sample settles it for both


def test_a_pair_is_one_play_and_one_that_is_drawn_again_none() -> None:
    """Five entries: the client's own world, five others of each sample, and a label of each. Worlds
    at random serve both samples, and each of them has a pair of its own."""
    seen: list[World] = []
    model = linear()

    def client(world: World) -> Played:
        seen.append(world)
        return Played(dict(unsum.capture(model, world.inputs, world.targets).gradients))

    found = unsum.ceiling(model, batch(2), noise=1.0, spread=1.0, pairs=64, client=client)
    assert found.pairs == 2 * 2 * 64
    assert len(seen) == 1 + 2 * 5 + 2 + 64 * (1 + 2)


def test_eight_samples_together_are_below_sooner_than_each_of_them_by_itself() -> None:
    """Draws of 0 refute 20 % for the largest of eight ceilings after about ln(1/(0.6 · 0.009)) /
    ln(1/0.8) = 23.4 pairs of each kind, and for all eight with a share of the doubt each only after
    42."""

    class Blind(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.bias.expand(len(x), 3)

    found = unsum.ceiling(Blind(), batch(8), noise=1.0, level=0.2)
    assert found.decided(0.2) == "below"
    assert 8 * 23 <= found.pairs / 2 <= 8 * 26


def test_a_sample_below_beside_one_above_is_drawn_until_it_is_below_together() -> None:
    """Without a decision for all at once each sample is to be decided; what bounds the highest does
    not help it."""
    model = linear()
    x, y = batch(8)
    x = torch.cat([torch.zeros(7, 5), 300 * x[:1]])  # the last alone moves the weights
    case = Simulation(model, x, y, spread=torch.tensor([1e-3, 0, 0, 0, 0]))

    def client(world: World) -> Played:
        apart = (world.inputs - x)[-1].abs().sum() * 1e6
        return Played({"one": torch.full((2,), float(apart))})

    effort = Effort(against(0.2), labels=False)
    found = prove(case, unsum.Noise(1.0), effort=effort, client=client)
    assert float(found.lower[-1]) >= 0.2
    assert float(found.samples[:-1].max()) < 0.2
    assert len(found.distances.found[0]) > 28  # type: ignore[union-attr]


def test_time_that_is_over_leaves_an_honest_limit() -> None:
    found = unsum.ceiling(linear(), batch(2), noise=50.0, time_limit=1e-9)
    assert found.samples.tolist() == [1.0, 1.0]
    assert unsum.ceiling(linear(), batch(2), noise=50.0, pairs=4, time_limit=1e6).pairs == 16


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"noise": -1.0}, "standard deviation of at least 0"),
        ({"noise": math.nan}, "standard deviation of at least 0"),
        ({"pairs": 0}, "at least 1"),
        ({"level": 1.5}, "between 0 and 1"),
        ({"time_limit": -1.0}, "must be positive"),
        ({"seed": 2**70}, "that 64 bits hold"),
        ({"spread": -1.0, "noise": 1.0}, "at least 0"),
        ({"spread": math.inf, "noise": 1.0}, "at least 0"),
        ({"spread": torch.ones(4), "noise": 1.0}, "like one sample"),
        ({"observer": "server"}, "unsum.Observer"),
        ({"defenses": "noise:1"}, r"unsum.Noise\(0.1\)"),
        ({"defenses": [3]}, r"unsum.Noise\(0.1\)"),
        (
            {"client": lambda _world: {"w": torch.zeros(1)}, "noise": 1.0},
            r"returns Played\(noisy\)",
        ),
        (
            {"loss": lambda out, _y: (out**2).mean(), "defenses": unsum.DPSGD(1.0)},
            "loss of your own",
        ),
    ],
    ids=lambda value: str(list(value)) if isinstance(value, dict) else None,
)
def test_bad_inputs_are_one_sentence(how: dict[str, object], says: str) -> None:
    with pytest.raises(unsum.UnsumError, match=says):
        unsum.ceiling(linear(), batch(2), **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "how",
    [
        {"kind": "server", "clients": 2},
        {"kind": "aggregate", "noise": 1.0},
        {"kind": "outsider", "noise": -1.0},
        {"kind": "spy"},
    ],
)
def test_an_observer_that_cannot_be_is_refused(how: dict[str, object]) -> None:
    with pytest.raises(unsum.UnsumError):
        unsum.Observer(**how)  # type: ignore[arg-type]


def test_whole_numbers_need_a_language_model() -> None:
    with pytest.raises(unsum.UnsumError, match="whole numbers"):
        unsum.ceiling(
            nn.Embedding(4, 3), (torch.tensor([[1], [2]]), torch.tensor([0, 1])), noise=1.0
        )
    with pytest.raises(unsum.UnsumError, match="as many targets as inputs"):
        unsum.ceiling(linear(), (torch.randn(3, 5), torch.tensor([0])), noise=1.0)
    with pytest.raises(unsum.UnsumError, match="as many targets as inputs"):
        unsum.ceiling(linear(), (torch.randn(0, 5), torch.zeros(0, dtype=torch.long)), noise=1.0)
    with pytest.raises(unsum.UnsumError, match="NaN or infinity"):
        unsum.ceiling(linear(), (torch.full((1, 5), math.nan), torch.tensor([0])), noise=1.0)
    with pytest.raises(unsum.UnsumError, match="a pair"):
        unsum.ceiling(linear(), (torch.randn(1, 5),), noise=1.0)  # type: ignore[arg-type]


def test_where_time_is_short_one_sample_is_decided_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Time for three labels and six cycles: enough for one sample, too little for three in
    turns."""
    left = iter([False] * 9 + [True] * 100)
    monkeypatch.setattr(bound, "out_of_time", lambda _what: next(left))
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    data = torch.rand(3, 3, 4, 4), torch.arange(3)
    found = unsum.ceiling(model, data, noise=1e-6, level=0.2)
    assert found.decided(0.2) == "above"
    assert found.labels.tolist() == pytest.approx([1.0] * 3)  # labels come first
    assert float(found.lower.max()) >= 0.2


def test_what_was_measured_is_taken_again_for_equal_defenses_alone() -> None:
    """Not for those whose names are alike: two functions, or clips that differ in the eighth
    digit."""
    case = Simulation(linear(), *batch(2))
    prover = Prover(case, effort=Effort(pairs=4, most=4, labels=False))

    def scaled(factor: float) -> Callable[[unsum.Update], unsum.Update]:
        return lambda update: update.map(lambda _name, g: g * factor)

    weak, strong = (prover([scaled(factor), unsum.Noise(1.0)]) for factor in (1.0, 100.0))
    first = [found.distances.found[0][0].squared for found in (weak, strong)]  # type: ignore[union-attr]
    assert first[1] == pytest.approx(1e4 * first[0], rel=1e-4)
    one, again, other = (
        prover([unsum.Clip(norm), unsum.Noise(1.0)]) for norm in (0.1, 0.1, 0.10000001)
    )
    assert one.distances is again.distances
    assert other.distances is not one.distances


# Worlds at random, tone, and what the mechanism proves of what is right or wrong.


class BlackAndWhite(nn.Module):
    """Reads which pixels are bright."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(side**2, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.first((x > 0.5).float().flatten(1))))


@pytest.mark.parametrize("noise", [None, 1e-6])
def test_a_picture_that_no_single_mirror_changes_is_not_proven_to_be_hidden(
    noise: float | None,
) -> None:
    torch.manual_seed(0)
    x = (torch.randn(2, 1, 32, 32) > 0.1).float()
    found = unsum.ceiling(BlackAndWhite(32), (x, torch.tensor([0, 3])), noise=noise, level=0.2)
    assert found.decided(0.2) == "above"
    if found.distances is not None and noise is not None:
        assert any(one.same for row in found.distances.found for one in row)


def test_a_deterministic_client_is_held_against_worlds_at_random() -> None:
    """It says only whether many entries are positive together: no single one shows."""

    def client(world: World) -> Played:
        return Played({"sign": (world.inputs.sum(1) > 0).float()})

    data = torch.ones(1, 12), torch.tensor([0])
    found = unsum.ceiling(nn.Linear(12, 2), data, client=client, pairs=64)
    assert (found.samples.tolist(), found.decided()) == ([1.0], "above")


def test_a_pale_picture_is_bounded_without_its_tone_as_well() -> None:
    """Nearly all of the distance from the guess is brightness, which this network takes off."""

    class Centered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(256, 16), nn.Linear(16, 4)

        def forward(self, z: Tensor) -> Tensor:
            z = z.flatten(1)
            return self.head(torch.relu(self.first(20 * (z - z.mean(1, keepdim=True)))))

    torch.manual_seed(0)
    x = 0.95 + 0.01 * torch.randn(2, 1, 16, 16).clamp(-3, 3)
    found = unsum.ceiling(Centered(), (x, torch.tensor([0, 3])), noise=1e-3, pairs=32)
    assert float(found.lower.min()) > 0.5
    whole = [found.distances.drawn[i]["own", "whole"] for i in (0, 1)]  # type: ignore[union-attr]
    # of the picture as it is next to nothing would have been read
    assert max(np.mean([one.share(found.noise) for one in row]) for row in whole) < 0.1


def test_a_label_is_luck_only_if_no_other_label_is_far_away() -> None:
    """A head that is not trained, and two classes that are alike in it: the likeliest alternative
    changes nothing, and the third class does."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        model[2].weight[1] = model[2].weight[0]
        model[2].bias.copy_(torch.tensor([1.0, 1.0, -1.0]))
    for p in model[2].parameters():
        p.requires_grad_(False)
    case = Simulation(model, batch(2)[0], torch.tensor([0, 1]))
    effort = Effort(pairs=4, every_label=True)
    near = prove(case, unsum.Noise(0.01), effort=effort)
    assert near.labels.tolist() == [0.5, 0.5]
    assert near.any_label is not None
    assert float(near.any_label.min()) > 0.99
    assert not ceiling_words.hides_labels(near)
    far = prove(case, unsum.Noise(100.0), effort=effort)
    assert ceiling_words.hides_labels(far)
    assert not ceiling_words.hides_labels(prove(case, unsum.Noise(100.0), effort=Effort(pairs=4)))
