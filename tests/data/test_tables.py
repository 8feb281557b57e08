"""Tables from files: what columns are, how rows become numbers and back, and one sentence for
everything that does not fit."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from unsum.data.table_file import TableFile, is_table
from unsum.data.tables import ClientTable
from unsum.errors import UnsumError

PEOPLE = """age,job,sex,hours,answer
42,farmer,m,19.5,yes
45,nurse,f,18.7,no
38,clerk,m,43.4,yes
27,farmer,f,30.1,no
"""


def table(folder: Path, text: str, name: str = "people.csv") -> Path:
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def opened(
    folder: Path, text: str, target: str = "answer", columns: str | None = None
) -> ClientTable:
    return ClientTable.open(table(folder, text), target, columns)


def test_columns_are_standardized_coded_and_read_back_in_their_units(tmp_path) -> None:
    found = opened(tmp_path, PEOPLE)
    age, job, sex, hours = found.schema.columns
    assert (age.kind, job.kind, sex.kind, hours.kind) == (
        "number",
        "category",
        "category",
        "number",
    )
    assert age.mean == 38
    assert age.deviation == pytest.approx((186 / 4) ** 0.5)  # of 4, 7, 0, −11
    assert hours.decimals == 1
    assert (job.values, sex.values) == (("clerk", "farmer", "nurse"), ("f", "m"))
    batch = found.batch(4)
    assert batch.images.shape == (4, 1 + 3 + 1 + 1)  # sex is one input of 0 and 1
    place = batch.titles.index("line 3")
    expected = [7 / (186 / 4) ** 0.5, 0, 0, 1, 0, (18.7 - hours.mean) / hours.deviation]
    assert torch.allclose(batch.images[place], torch.tensor(expected))
    assert found.schema.decode(batch.images)[place] == ["45", "nurse", "f", "18.7"]
    assert [batch.class_names[label] for label in batch.targets] == [
        {"line 2": "yes", "line 3": "no", "line 4": "yes", "line 5": "no"}[title]
        for title in batch.titles
    ]


def test_categories_for_embeddings_are_codes(tmp_path) -> None:
    coded = opened(tmp_path, PEOPLE).with_embeddings()
    batch = coded.batch(4)
    assert batch.images.shape == (4, 4)
    assert coded.schema.shape.sizes == [3]
    assert list(coded.schema.shape.plain) == [0, 2, 3]
    place = batch.titles.index("line 4")
    assert batch.images[place, 1] == 0  # clerk
    assert coded.schema.decode(batch.images)[place] == ["38", "clerk", "m", "43.4"]


def test_mean_and_deviation_of_many_rows_are_those_of_all(tmp_path) -> None:
    draw = random.Random(0)
    numbers = [
        draw.gauss(1e6, 3) for _ in range(9000)
    ]  # three pieces, and a mean that naive sums of squares lose digits to
    text = "x,answer\n" + "".join(f"{x:.4f},{i % 2}\n" for i, x in enumerate(numbers))
    column = opened(tmp_path, text).schema.columns[0]
    truth = torch.tensor([float(f"{x:.4f}") for x in numbers], dtype=torch.float64)
    assert column.mean == pytest.approx(float(truth.mean()), rel=1e-12)
    assert column.deviation == pytest.approx(float(truth.std(correction=0)), rel=1e-9)


def test_other_delimiters_quotes_and_tabs_are_read(tmp_path) -> None:
    text = 'name;size;answer\n"a;b";1,5;0\nc;2,5;1\nd;3;1\n'
    found = ClientTable.open(table(tmp_path, text), "answer", None)
    assert [column.values for column in found.schema.columns] == [
        ("a;b", "c", "d"),
        ("3", "1,5", "2,5"),
    ]
    assert TableFile(table(tmp_path, "a\tb\n1\t2\n", "t.tsv")).names == ["a", "b"]


def test_parquet_is_read_as_csv_is(tmp_path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "age": [42, 45, None, 27],
        "job": ["farmer", None, "clerk", "farmer"],
        "answer": ["yes", "no", "yes", "no"],
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "people.parquet")
    found = ClientTable.open(tmp_path / "people.parquet", "answer", None)
    batch = found.batch(4)
    cells = dict(zip(batch.titles, found.schema.decode(batch.images), strict=True))
    assert cells["row 2"] == ["45", "missing"]
    assert cells["row 3"] == ["38", "clerk"]  # the mean of 42, 45 and 27


def test_missing_values_lose_no_row_and_are_told(tmp_path) -> None:
    text = "age,job,answer\n42,?,yes\n,nurse,no\n38,clerk,yes\n27,clerk,no\n30,clerk,\n"
    found = opened(tmp_path, text)
    assert found.schema.columns[1].values == ("clerk", "missing", "nurse")
    assert found.notes == (
        "1 cells of 'age' hold no number; the column's mean stands there.",
        "1 of 5 rows have no 'answer' and are left out.",
    )
    assert sorted(found.batch(4).titles) == ["line 2", "line 3", "line 4", "line 5"]
    with pytest.raises(UnsumError, match="The data hold 4 rows; choose a batch of 1 to 4, not 5"):
        found.batch(5)


def test_mixed_types_are_categories_or_numbers_as_said(tmp_path) -> None:
    text = "age,answer\n42,yes\nold,no\n38,yes\n"
    assert opened(tmp_path, text).notes == (
        "'age' holds numbers and text ('old' in line 3): it is read as categories.",
    )
    as_number = opened(tmp_path, text, columns="age=number")
    assert as_number.schema.columns[0].mean == 40
    assert as_number.notes == ("1 cells of 'age' hold no number; the column's mean stands there.",)


def test_a_constant_column_is_left_out_and_named(tmp_path) -> None:
    found = opened(tmp_path, "age,land,answer\n42,x,yes\n45,x,no\n38,x,yes\n")
    assert [column.name for column in found.schema.columns] == ["age"]
    assert found.notes == ("Left out, being the same in every row: 'land'.",)


@pytest.mark.parametrize(
    ("text", "columns", "sentence"),
    [
        (
            "age,answer\n1,yes\n2,yes\n3,yes\n",
            None,
            "has the one value 'yes'; choose another --target",
        ),
        ("age,answer\n", None, "has no rows below its first line"),
        ("age,answer\n1,yes\n1,no\n", None, "has no column beside 'answer' that differs"),
        ("age,answer\n1,yes\n2\n", None, "Line 3 of 'people.csv' has 1 cells and the first line 2"),
        ("age,age,answer\n1,2,yes\n", None, "two columns called 'age'"),
        ("answer\nyes\n", None, "has 1 columns; a table needs 2 to"),
        (
            "age,answer\n1,yes\n2,no\n",
            "age=text",
            "'age' is said to be 'text'; say number, category, skip",
        ),
        ("age,answer\n1,yes\n2,no\n", "aged=number", "There is no column 'aged'"),
        (
            "name,answer\n" + "".join(f"n{i},{i % 2}\n" for i in range(1200)),
            None,
            "leave it out with --columns 'name=skip'",
        ),
        (
            "age,answer\n" + "".join(f"{i},{i % 2}\n" for i in range(1200)) + "old,1\n",
            None,
            "'age' holds numbers and text ('old' in line 1202); say --columns 'age=number'",
        ),
        (
            "age,answer\n" + "".join(f"{i % 7},{i}\n" for i in range(1200)),
            None,
            "has more than 1,000 values",
        ),
    ],
)
def test_what_does_not_fit_is_told_in_one_sentence(
    tmp_path, text: str, columns: str | None, sentence: str
) -> None:
    with pytest.raises(UnsumError) as refused:
        opened(tmp_path, text, columns=columns)
    assert sentence in str(refused.value)
    assert str(refused.value).count("\n") == 0


def test_what_is_no_table_is_told(tmp_path) -> None:
    (tmp_path / "x.csv").write_bytes(b"a,b\n\xff\xfe\xfa,1\n")
    with pytest.raises(UnsumError, match="cannot be read as CSV in UTF-8"):
        ClientTable.open(tmp_path / "x.csv", "a", None)
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(UnsumError, match="cannot be read as Parquet"):
        ClientTable.open(tmp_path / "x.parquet", "a", None)
    with pytest.raises(UnsumError, match="There is no file"):
        ClientTable.open(tmp_path / "none.csv", "a", None)
    assert is_table("a/b.CSV")
    assert not is_table("a/b.npz")
    assert not is_table(None)
