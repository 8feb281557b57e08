"""What starts ended in, by hand: which points are one, and which confirm each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.engine.found import FoundPoints, LabeledPoints, Rows


def found(
    points: list[list[float]],
    hits: list[float],
    misfits: list[float],
    errors: float = 1e-6,
) -> FoundPoints:
    at = torch.tensor(points, dtype=torch.float64)
    known = torch.full_like(at[:, 0], errors)
    return FoundPoints(at, known, at.new_tensor(misfits), at.new_tensor(hits))


def test_hits_of_one_sample_add_up_and_the_better_reading_stays() -> None:
    """Of length 1, roots within 1e-4 and ten times both errors are one; 2e-4 apart they are two."""
    first = found([[1, 0], [0, 1]], [2, 1], [1e-6, 1e-6])
    both = first.joined(found([[1 + 1e-5, 0], [0, 1 + 2e-4]], [3, 4], [1e-7, 1e-5]))
    assert both.points.tolist() == [[1 + 1e-5, 0], [0, 1], [0, 1 + 2e-4]]
    assert both.hits.tolist() == [5, 1, 4]
    assert both.misfits.tolist() == [1e-7, 1e-6, 1e-5]


def test_only_starts_that_ended_in_the_same_sample_confirm_it() -> None:
    """Of length 5: 4e-4 away is within 5e-4 and a little more for the errors, 1e-3 away is another
    root."""
    one = found([[3, 4], [5, 0]], [1, 1], [0, 0])
    told = one.confirmed_by(found([[3, 4.0004], [3, 4.001], [0, 5]], [3, 7, 7], [0, 0, 0]))
    assert told.hits.tolist() == [4, 1]
    assert one.confirmed_by(one[:0]).hits.tolist() == [1, 1]


def test_however_vague_two_roots_are_a_hundredth_apart_is_not_the_same() -> None:
    vague = found([[1, 0]], [1], [0], errors=1.0)
    other = found([[1.02, 0]], [9], [0], errors=1.0)
    assert vague.confirmed_by(other).hits.tolist() == [1]


def test_what_counts_as_the_same_may_be_declared() -> None:
    """Of length 1 and 0.01 apart: within 0.02, and within 0.001 and once both errors of 0.005."""
    two = found([[1, 0], [1.01, 0]], [1, 1], [1e-6, 1e-7], errors=5e-3)
    assert two.distinct(0.02, blur=0.0).points.tolist() == [[1.01, 0]]
    assert len(two.distinct(1e-3, blur=0.0)) == 2
    assert two.distinct(1e-3, blur=1.0).hits.tolist() == [2]


def test_points_come_in_the_order_of_their_misfits_and_many_hits_are_counted() -> None:
    """Three points, none of them near another."""
    points = found([[0, 2], [1, 0], [0, 1]], [1, 1, 2], [3e-6, 2e-6, 1e-6])
    ordered = points.distinct()
    assert ordered.points.tolist() == [[0, 1], [1, 0], [0, 2]]
    assert ordered.twice == 1
    assert FoundPoints.of(points.points, points.errors, points.misfits).hits.tolist() == [1, 1, 1]


def test_points_are_grouped_by_the_best_that_is_near() -> None:
    """On a line at 0.999, 1, 1.001 and 5: the best one takes both neighbors, which are not near
    each other."""
    line = found([[0.999], [1.0], [1.001], [5.0]], [1, 1, 1, 1], [2e-6, 1e-6, 3e-6, 0.0])
    firsts, groups = line.grouped(1.5e-3, blur=0.0)
    assert firsts.tolist() == [3, 1]
    assert groups.tolist() == [1, 1, 1, 0]
    assert line.distinct(1.5e-3, blur=0.0).hits.tolist() == [1, 3]
    firsts, _ = line[[0, 2]].grouped(1.5e-3, blur=0.0)
    assert firsts.tolist() == [0, 1]


def test_of_points_without_a_rank_the_first_stays() -> None:
    points = FoundPoints.unranked(torch.tensor([[2.0], [1.0], [2.0001], [1.0]]))
    assert points.distinct(1e-3).points.flatten().tolist() == [2.0, 1.0]
    assert points.distinct(1e-3).hits.tolist() == [2, 2]


def test_points_of_two_labels_are_never_one() -> None:
    at = torch.tensor([[1.0], [1.0], [1.0], [3.0]])
    points = LabeledPoints.unranked(at, labels=torch.tensor([7, 8, 7, 7]))
    assert points.distinct().labels.tolist() == [7, 8, 7]
    assert points.distinct().hits.tolist() == [2, 1, 1]
    known = LabeledPoints.unranked(at[:1], labels=torch.tensor([8]))
    assert points.apart_from(known).tolist() == [True, False, True, True]
    assert points.apart_from(known[:0]).all()


def test_the_nearest_of_others() -> None:
    points, others = (
        found([[1, 0], [0, 4]], [1, 1], [0, 0]),
        found([[0, 1], [3, 0]], [1, 1], [0, 0]),
    )
    assert points.nearest(others).tolist() == [0, 0]
    assert others.nearest(points).tolist() == [0, 0]
    assert found([[9, 1]], [1], [0]).nearest(others).tolist() == [1]


def test_nothing_found_takes_part() -> None:
    none = FoundPoints.none(torch.zeros(5, 2))
    one = found([[3, 4]], [1], [1e-6])
    assert none.points.shape == (0, 2)
    assert none.points.dtype == torch.float64
    assert none.twice == 0
    assert len(none.joined(none)) == 0
    assert none.joined(one).points.tolist() == [[3, 4]]


@dataclass(frozen=True)
class Named(FoundPoints):
    """With a column and a name of its own."""

    masks: Tensor
    name: str = "all"


def test_columns_of_a_kind_of_their_own_follow_their_points() -> None:
    plain = found([[1, 0], [0, 1], [1, 1e-5]], [1, 1, 1], [3e-6, 2e-6, 1e-6])
    masks = torch.tensor([[10.0], [20.0], [30.0]])
    own = Named(**vars(plain), masks=masks, name="mine")
    joined = own[:2].joined(own[2:])
    assert isinstance(joined, Named)
    assert joined.masks.flatten().tolist() == [30.0, 20.0]
    assert joined.hits.tolist() == [2, 1]
    assert joined.name == "mine"


@dataclass(frozen=True)
class Read(Rows):
    labels: Tensor
    samples: FoundPoints


def test_rows_inside_rows_are_chosen_with_them() -> None:
    read = Read(torch.tensor([4, 5]), found([[1, 0], [0, 1]], [1, 2], [0, 0]))
    assert len(read) == 2
    second = read[torch.tensor([False, True])]
    assert second.labels.tolist() == [5]
    assert second.samples.hits.tolist() == [2]
