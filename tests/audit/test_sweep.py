"""Sweeps: what is tried, what leakage is, which strength is enough, and what the page says."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import unsum
from support.material import pictures, small_net
from support.progress import Heard
from unsum.audit.result import Setting
from unsum.audit.sweep import task
from unsum.audit.sweep.bench import Point, SampleLeak
from unsum.audit.sweep.plot import plot
from unsum.audit.sweep.report import Sweep, render
from unsum.audit.sweep.result import Curve, closer, headline, level, sentences
from unsum.audit.sweep.run import plan
from unsum.audit.sweep.task import Accuracy, Task
from unsum.defend import DEFENSES
from unsum.defend.defense import FRACTION, NORM, SCALE, has_strength
from unsum.score.labels import LabelsRead

pytestmark = pytest.mark.usefixtures("short_matching")
HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>']


def strengths(text: str) -> list[float]:
    return [defense.strength for defense in plan(text).defenses]


def point(
    *shares: float, strength: float | None = None, accuracy: float = 0.5, refused: str = ""
) -> Point:
    """A strength at which samples leak these shares, and whose training ends there."""
    names = HOSTILE if len(shares) == 2 else [f"photo {i}" for i in range(len(shares))]
    rows = [
        SampleLeak(name, share, share > 0.5, 1 - share, share, math.nan)
        for name, share in zip(names, shares, strict=True)
    ]
    learned = Accuracy(accuracy, accuracy - 0.05, accuracy + 0.05)
    return Point(
        f"Noise({strength})", strength, rows, method="exact", refused=refused, accuracy=learned
    )


def constructed(*curves: Curve, keep_under: float = 0.3) -> Sweep:
    setting = Setting(
        "tiny net",
        2,
        4,
        "train",
        "none",
        "exact",
        7,
        "abacus",
        f"unsum {HOSTILE[0]}",
        {"torch": "9.8.7"},
    )
    task = Task("Which is which?", 4, 100, 50, 4, 32, 60, 3, 0.25, 1.5, 7000, 4_000_000)
    baseline = replace(point(1.0, 0.9, accuracy=0.6), defenses="none", exact=True)
    return Sweep(
        setting, keep_under, [baseline], list(curves), task, ["The weights."], HOSTILE, 12.5
    )


class TestPlan:
    def test_scales_are_spaced_by_a_factor(self) -> None:
        assert strengths("noise=1e-5..1e-1") == [1e-5, 6.31e-5, 3.98e-4, 2.51e-3, 1.58e-2, 1e-1]
        assert strengths("noise=1e-4..1e-1/4") == [1e-4, 1e-3, 1e-2, 1e-1]

    def test_fractions_are_spaced_evenly(self) -> None:
        assert strengths("prune=0.1..0.9/5") == [0.1, 0.3, 0.5, 0.7, 0.9]
        assert strengths("smooth=0..1/3") == [0, 0.5, 1]

    def test_the_weakest_comes_first_whichever_way_the_numbers_run(self) -> None:
        assert strengths("clip=0.01..1/3") == [1, 0.1, 0.01]
        assert strengths("clip=0.5,4,1") == [4, 1, 0.5]
        assert strengths("noise=0.1,0.01") == [0.01, 0.1]

    def test_counts_are_whole_and_tried_once(self) -> None:
        assert strengths("quantize=1..8/24") == [8, 7, 6, 5, 4, 3, 2, 1]
        assert strengths("qsgd=1..64/4") == [64, 16, 4, 1]

    def test_a_switch_is_on(self) -> None:
        switch = plan("sign")
        assert switch.axis is None
        assert [repr(defense) for defense in switch.defenses] == ["Sign()"]

    def test_every_registered_defense_can_be_planned(self) -> None:
        """But secure aggregation, which needs the other clients' updates and says so."""
        for entry in DEFENSES:
            if entry.name == "secagg":
                with pytest.raises(unsum.UnsumError, match="needs the updates of the 3 others"):
                    plan("secagg=4")
                continue
            text = (
                f"{entry.name}={entry.method.example:g}"
                if has_strength(entry.method)
                else entry.name
            )
            assert len(plan(text).defenses) == 1

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("nosie=1..2", "did you mean 'noise'"),
            ("noise", "its strengths are missing; write it as 'noise="),
            ("noise=", "its strengths are missing"),
            ("noise=1e-5..lots", "'lots' is not a number"),
            ("noise=1,,2", "'' is not a number"),
            ("noise=1e-5..nan", "not a finite number"),
            ("noise=0.1..0.01", "the smaller number first"),
            ("noise=0.1..0.1", "the smaller number first"),
            ("noise=0..1", "must start above 0"),
            ("noise=1e-5..1e-1/1", "from 2 to 24"),
            ("noise=1e-5..1e-1/1000000", "from 2 to 24"),
            ("noise=1e-5..1e-1/six", "from 2 to 24"),
            ("noise=" + ",".join("1" * 25), "at most 24"),
            ("sign=1", "is on or off; write it as 'sign'"),
            ("prune=0.5..1.5", "a fraction of at least 0 and below 1"),
            ("noise=-1,1", "a standard deviation of at least 0"),
        ],
    )
    def test_what_cannot_be_read_gives_one_sentence(self, text: str, sentence: str) -> None:
        with pytest.raises(unsum.UnsumError) as error:
            plan(text)
        assert sentence in str(error.value)
        assert "\n" not in str(error.value)


class TestEnough:
    def test_the_weakest_that_keeps_every_sample_under(self) -> None:
        curve = Curve(
            "noise",
            SCALE,
            [point(1, 1, strength=1), point(0, 0.3, strength=2), point(0.29, 0.1, strength=3)],
        )
        enough = curve.enough(0.3)
        assert enough is not None
        assert enough.strength == 3  # at 2 a sample leaks 30 %, which is not under 30 %
        assert curve.enough(0.31) is curve.points[1]
        assert curve.enough(0.1) is None

    def test_a_strength_that_was_lucky_is_not_enough(self) -> None:
        lucky = Curve(
            "noise", SCALE, [point(0, strength=1), point(0.9, strength=2), point(0, strength=3)]
        )
        assert lucky.enough(0.3) is lucky.points[2]
        assert (
            Curve("noise", SCALE, [point(0, strength=1), point(0.9, strength=2)]).enough(0.3)
            is None
        )

    def test_a_sample_of_which_nobody_knows_is_not_under_the_level(self) -> None:
        assert (
            point(0.1, math.nan, strength=1).over(0.3),
            point(0.1, math.nan, strength=1).under(0.3),
        ) == (1, False)
        assert (point(0.1, 0.3, strength=1).over(0.3), point(0.1, 0.29, strength=1).under(0.3)) == (
            1,
            True,
        )
        assert not point(strength=1).under(0.3)  # nothing was measured

    def test_what_could_not_be_attacked_speaks_neither_for_nor_against(self) -> None:
        refused = Curve(
            "noise", SCALE, [point(0.1, strength=1), point(strength=2, refused="It is infinite.")]
        )
        assert refused.enough(0.3) is refused.points[0]
        assert (
            Curve("noise", SCALE, [point(strength=2, refused="It is infinite.")]).enough(0.3)
            is None
        )

    def test_the_words_name_it_and_its_price(self) -> None:
        curve = Curve(
            "clip", NORM, [point(1, 1, strength=4), point(0.1, 0.2, strength=0.5, accuracy=0.4)]
        )
        sweep = constructed(curve)
        kept = (
            "Clip of 0.5 keeps the attacks tried under 30 %, but ruins the model: accuracy is 40 % "
            "instead of 60 %"
        )
        assert headline(sweep) == f"{kept}; unproven: the ceiling is not known."
        assert level(sweep) == "partial"
        kept = constructed(Curve("clip", NORM, [point(0.1, 0.2, strength=0.5, accuracy=0.55)]))
        assert "under 30 %, and accuracy is 55 % instead of 60 %; unproven" in headline(kept)
        assert level(kept) == "unproven"
        strong = point(0.0, 0.0, strength=0.1, accuracy=0.5)
        both = Curve("noise", SCALE, [kept.curves[0].points[0], replace(strong, ceiling=0.1)])
        proven = constructed(both)
        assert headline(proven).startswith(
            "Noise of 0.1 proves that nobody reads 30 % of any sample, and accuracy is 50 %"
        )
        assert level(proven) == "protected"
        assert both.proven(0.1) is None
        assert sentences(sweep)[0].startswith(
            "Without any defense, 2 of 2 samples leak 30 % or more"
        )
        assert "accuracy is 40 % instead of 60 %" in sentences(sweep)[1]
        assert "--sweep clip=0.5..4 finds" in closer(sweep, curve)
        assert sweep.cost(curve.points[1]) == pytest.approx(0.2)

    def test_the_words_when_none_is_enough(self) -> None:
        weak = Curve("noise", SCALE, [point(1, 1, strength=1), point(0.1, 0.6, strength=2)])
        switch = Curve("sign", None, [point(0.1, 0.2)])
        assert (
            headline(constructed(weak))
            == "None of the strengths tried keeps every sample under 30 %."
        )
        assert (
            "at 2, the strongest, 1 of 2 samples leaks 30 % or more"
            in sentences(constructed(weak))[1]
        )
        assert level(constructed(weak)) == "severe"
        assert headline(constructed(weak, switch)) == (
            "1 of 2 defenses keeps the attacks tried under 30 %; it is not proven."
        )
        assert level(constructed(weak, switch)) == "partial"
        assert closer(constructed(weak), weak) == ""

    def test_of_several_that_are_enough_the_cheapest_is_named(self) -> None:
        dear = Curve("noise", SCALE, [point(0.1, 0.2, strength=1, accuracy=0.2)])
        cheap = Curve("sign", None, [point(0.1, 0.2, accuracy=0.5)])
        assert headline(constructed(dear, cheap)).endswith(
            "2 of 2 defenses keep the attacks tried under 30 %; sign costs least; 1 of them ruins "
            "the model; none of them is proven."
        )

    def test_the_words_when_nothing_can_be_said(self) -> None:
        refused = Curve("drop-head", None, [point(refused="The update lacks 'head.weight'.")])
        assert headline(constructed(refused)).startswith(
            "Not decidable: no strength could be attacked"
        )
        assert level(constructed(refused)) == "open"
        assert 'class="verdict open"' in render(constructed(refused))
        assert "nothing speaks for it. The update lacks" in sentences(constructed(refused))[1]

    def test_the_words_when_no_defense_is_needed(self) -> None:
        sweep = constructed(Curve("sign", None, [point(0.1, 0.2)]), keep_under=1.0)
        calm = replace(
            sweep, references=[replace(sweep.undefended, samples=point(0.2, 0.1).samples)]
        )
        assert headline(calm).startswith("Without any defense, the attacks tried already read less")


class TestPage:
    curves = (
        Curve(
            "noise",
            SCALE,
            [point(1, 1, strength=0.01), point(0.12, 0.2, strength=0.1, accuracy=0.37)],
        ),
        Curve("sign", None, [point(refused=f"It is {HOSTILE[1]}.")]),
    )

    def test_it_says_everything(self) -> None:
        page = render(constructed(*self.curves)).replace("\N{NO-BREAK SPACE}", " ")
        for expected in (
            (
                "1 of 2 defenses keeps the attacks tried under 30 %; it ruins the model; it is not "
                "proven."
            ),
            "0.1 <span",
            "tiny net",
            "abacus",
            "torch 9.8.7",
            "The weights.",
            "Which is which?",
            "37 %",
            "23.0",  # points of accuracy lost
            "Not decidable at on:",
            "may read up to the ceiling",
            "7,000 weights, the audited model 4,000,000",
        ):
            assert expected in page

    def test_hostile_names_are_escaped(self) -> None:
        page = render(constructed(*self.curves))
        assert "<script" not in page
        assert "<img src=x" not in page
        assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 2

    def test_nothing_is_loaded_and_nothing_is_styled_inline(self) -> None:
        page = render(constructed(*self.curves))
        assert "default-src 'none'" in page
        assert " style=" not in page
        assert "http:" not in page.replace('http-equiv="', "")
        assert "https:" not in page

    def test_the_drawing_marks_what_is_enough(self) -> None:
        page = render(constructed(*self.curves))
        assert page.count('class="chosen-line"') == 1
        intervals = page.count('<svg class="interval"')
        # in every row of the tables
        assert intervals == sum(1 + len(curve.points) for curve in self.curves)
        # Two drawings and the level's bar.
        assert page.count("<svg") - page.count('<svg viewBox="0 0 32 12"') - intervals == 3
        assert "not decidable" in page

    def test_a_row_has_one_of_the_verdicts_of_an_audit(self) -> None:
        named = LabelsRead(2, 2, 0.1, "exact", torch.zeros(2, 20))
        low = point(0.1, 0.0)
        assert point(0.3, 0.0).verdict(0.3) == "leaks"
        assert low.verdict(0.3) == "unproven"
        assert replace(low, ceiling=0.3).verdict(0.3) == "unproven"
        assert replace(low, ceiling=0.29).verdict(0.3) == "protected"
        # a mean proves nothing of each
        assert replace(low, ceiling_mean=0.1).verdict(0.3) == "unproven"
        assert replace(low, ceiling=0.29, labels=named).verdict(0.3) == "labels leak"
        assert point(refused="It is infinite.").verdict(0.3) == "not decidable"
        assert replace(point(refused="It is infinite."), ceiling=0.1).verdict(0.3) == "protected"
        assert replace(low, ceiling_mean=0.4).known_ceiling == 0.4
        assert replace(low, ceiling=0.6, ceiling_mean=0.4).known_ceiling == 0.6

    def test_a_defense_ruins_the_model_where_training_without_any_was_not_measured(self) -> None:
        """It was green: the best of the other strengths stands for no defense."""
        strong = replace(point(0.1, 0.0, strength=2, accuracy=0.3), ceiling=0.1)
        sweep = constructed(
            Curve("noise", SCALE, [point(0.9, 0.9, strength=1, accuracy=0.5), strong])
        )
        unpriced = replace(sweep, references=[replace(sweep.undefended, accuracy=None)])
        assert unpriced.ruins(strong)
        assert level(unpriced) != "protected"
        assert "accuracy is 30 %" in headline(unpriced)
        assert not unpriced.ruins(unpriced.curves[0].points[0])

    def test_crowded_strengths_are_drawn_evenly_and_numbers_keep_apart(self) -> None:
        crowded = Curve("prune", FRACTION, [point(1, strength=s) for s in (0.5, 0.9, 0.99, 0.999)])
        drawing = plot(constructed(crowded), crowded)
        assert [mark.x for mark in drawing.marks[1:]] == pytest.approx([168, 350.7, 533.3, 716])
        assert "not to scale" in drawing.axis
        many = Curve("noise", SCALE, [point(1, strength=1.0 + i) for i in range(24)])
        written = [mark.x for mark in plot(constructed(many), many).marks if mark.tick]
        assert all(second - first >= 50 for first, second in pairwise(written))

    def test_a_sweep_without_training_has_no_accuracy(self) -> None:
        sweep = constructed(*self.curves)
        bare = replace(
            sweep,
            task=None,
            references=[replace(sweep.undefended, accuracy=None)],
            curves=[
                replace(c, points=[replace(p, accuracy=None) for p in c.points])
                for c in sweep.curves
            ],
        )
        assert "How accuracy was measured" not in render(bare)
        assert "learned-dot" not in render(bare).split("</style>")[1]

    def test_files(self, tmp_path: Path) -> None:
        sweep = constructed(*self.curves)
        page = sweep.write(tmp_path / "sweep")
        assert page.name == "sweep.html"
        content = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
        assert content["enough"][0] == {
            "defense": "noise",
            "found": True,
            "strength": 0.1,
            "defenses": "Noise(0.1)",
            "accuracy_cost": pytest.approx(0.23),
            "ruins": True,
        }
        assert content["enough"][1]["found"] is False
        assert content["sweeps"][0]["points"][0]["samples"][0]["psnr"] is None
        assert sweep.write(tmp_path / "sweep") == page  # our own folder may be written to again
        (tmp_path / "foreign").mkdir()
        (tmp_path / "foreign" / "notes.txt").write_text("mine")
        with pytest.raises(unsum.UnsumError, match="add --force"):
            sweep.write(tmp_path / "foreign")


@pytest.fixture(scope="module")
def default_sweep() -> Sweep:
    """Two photos under noise that is far below and far above what matters."""
    return unsum.sweep(over=["noise=1e-7,1", "drop-head"], batch=2, utility=False)


@pytest.mark.long
class TestOnTheDefaultModel:
    def test_weak_noise_stops_nothing_and_strong_noise_everything(
        self, default_sweep: Sweep
    ) -> None:
        weak, strong = default_sweep.curves[0].points
        assert [round(row.leakage, 3) for row in default_sweep.undefended.samples] == [1] * 2
        assert [round(row.leakage, 3) for row in weak.samples] == [1] * 2
        assert weak.labels_right == 2
        assert strong.worst < default_sweep.keep_under
        assert not strong.exact
        assert default_sweep.curves[0].enough(default_sweep.keep_under) is strong

    def test_what_the_attack_refuses_is_part_of_the_answer(self, default_sweep: Sweep) -> None:
        (dropped,) = default_sweep.curves[1].points
        assert "lacks 'head.weight'" in dropped.refused
        assert math.isnan(dropped.worst)
        assert default_sweep.curves[1].enough(1.0) is None

    def test_the_picture_of_the_most_leaked_sample_is_on_the_page(
        self, default_sweep: Sweep
    ) -> None:
        page = render(default_sweep)
        assert page.count("data:image/jpeg") == 2 * (3 + 1)  # no defense twice, two noises
        assert "Chelsea the cat" in page
        assert "via scikit-image" in page


class TestSweep:
    data = pictures(3), torch.tensor([1, 1, 2])

    @pytest.mark.long
    def test_defenses_given_besides_come_before_and_are_shown(self) -> None:
        heard = Heard()
        sweep = unsum.sweep(
            small_net(),
            self.data,
            over="noise=1e-8,10",
            defenses=unsum.SmoothLabels(0.1) | unsum.Clip(0.5),
            utility=False,
            progress=heard,
        )
        assert [p.defenses for p in sweep.references] == ["none", "SmoothLabels(0.1) | Clip(0.5)"]
        assert sweep.curves[0].points[1].defenses == "SmoothLabels(0.1) | Clip(0.5) | Noise(10)"
        assert sweep.setting.defenses == "SmoothLabels(0.1) | Clip(0.5)"
        assert heard.parts == [(1, 4), (2, 4), (3, 4), (4, 4)]

    @pytest.mark.long
    def test_a_range_of_noise_goes_on_to_the_first_that_is_proven(self) -> None:
        limits = unsum.AuditLimits(time_limit=5.0)
        ranged = unsum.sweep(
            small_net(), self.data, over="noise=1e-3..1e-2/2", utility=False, limits=limits
        )
        (curve,) = ranged.curves
        assert curve.added
        assert [p.strength for p in curve.points[:2]] == [1e-3, 1e-2]
        added = curve.points[2]
        assert not any(p.proven(0.2) for p in curve.points[:2])
        assert added.proven(0.2)
        weaker = unsum.ceiling(small_net(), self.data, noise=added.strength / 10**0.5, level=0.2)
        assert weaker.decided(0.2) != "below"  # it is the first
        assert f"Noise of {added.strength:g} proves that nobody reads 20 % of any sample." in repr(
            ranged
        )
        assert "It was added: no strength asked for is proven." in repr(ranged)
        content = ranged.to_dict()
        assert content["proven"][0]["strength"] == added.strength
        assert content["sweeps"][0]["added"] is True
        listed = unsum.sweep(
            small_net(), self.data, over="noise=1e-3,1e-2", utility=False, limits=limits
        )
        assert (len(listed.curves[0].points), listed.curves[0].added) == (2, False)
        assert listed.to_dict()["proven"][0]["found"] is False

    def test_clipping_costs_the_attack_nothing(self) -> None:
        sweep = unsum.sweep(small_net(), self.data, over="clip=1e-3..1/3", utility=False)
        assert [round(p.worst, 3) for p in sweep.curves[0].points] == [1, 1, 1]
        assert headline(sweep).startswith("None of the strengths")

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            ({"over": []}, "nothing to sweep over"),
            ({"over": ["noise=1..2/24", "laplace=1..2/24", "dp=1..2/24"]}, "at most 60 together"),
            ({"keep_under": 0}, "above 0 and up to 1"),
            ({"keep_under": 30}, "above 0 and up to 1"),
            ({"over": "smooth=0.1", "defenses": unsum.Noise(1)}, "cannot come after Noise"),
            ({"over": "dp=1"}, "DP-SGD cannot train"),
            ({"attack": "exakt"}, "did you mean 'exact'"),
        ],
    )
    def test_what_cannot_work_is_refused_in_one_sentence(
        self, arguments: dict[str, object], sentence: str
    ) -> None:
        with pytest.raises(unsum.UnsumError, match=sentence):
            unsum.sweep(small_net(), self.data, **{"utility": False, **arguments})  # type: ignore[arg-type]


@pytest.mark.long
def test_a_defense_that_ruins_the_model_is_not_green(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ROUNDS": 6, "RUNS": 1}.items():  # enough to learn a little
        monkeypatch.setattr(task, name, value)
    data = torch.randn(3, 64), torch.tensor([4, 4, 1])
    torch.manual_seed(0)
    swept = unsum.sweep(torch.nn.Linear(64, 20), data, over="noise=1e-6,10")
    point = swept.curves[0].enough(0.2)
    assert point is not None
    assert swept.ruins(point)
    assert not swept.ruins(swept.curves[0].points[0])
    assert level(swept) == "partial"
    page = render(swept)
    assert '<section class="ruins"' in page
    assert ">proven, ruins the model</span>" in page
    assert ">enough</span>" not in page
    assert ", but ruins the model: accuracy is" in headline(swept)
    assert swept.to_dict()["enough"][0]["ruins"] is True
