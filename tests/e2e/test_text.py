"""A language model's folder through every command: what goes in is text, and so is what comes
back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command import Run, runner
from support.text_folder import LINES, save_encoder, save_language_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "lm"
    save_language_model(path)
    return path


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text("\n".join(LINES))
    Path("wrong.jsonl").write_text('{"text": "We moved"}\n{"label": 1}')
    return runner(monkeypatch, capsys)


def test_an_audit_shows_the_text_beside_what_came_back(run: Run, folder: Path) -> None:
    result = run("audit", "--model", f"hf:{folder}", "--data", "mine.txt", "--fail-above", "0.2")
    assert result.code == 1, result.err
    assert "This update gives away every text of the client." in result.out
    content = json.loads(Path("unsum-report/result.json").read_text())
    assert [(row["label"], row["found_label"]) for row in content["samples"]] == [
        (line, line) for line in LINES
    ]
    assert [row["leakage"] for row in content["samples"]] == [1, 1]
    assert content["verdict"]["state"] == "leaks"
    assert "Tried text: 2 of 2 samples, up to 100 %" in result.out
    for name in ("report.html", "report.md"):
        page = Path("unsum-report", name).read_text("utf-8").replace("\\", "")
        assert page.count("We moved the patient to Friday .") >= 2  # as it was, and recovered


@pytest.mark.long
def test_text_leaks_without_the_last_layer_as_well(run: Run, folder: Path) -> None:
    chosen = ["--model", f"hf:{folder}", "--data", "mine.txt", "--defense", "drop-head"]
    result = run("audit", *chosen, "--fail-above", "0.2")
    assert result.code == 1
    assert "Tried text: 2 of 2 samples, up to 100 %" in result.out


@pytest.mark.long
def test_dropout_hides_the_texts_and_not_their_words(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((tmp_path / "config.json").read_text()) | {
        "resid_pdrop": 0.2,
        "embd_pdrop": 0.2,
    }
    (tmp_path / "config.json").write_text(json.dumps(settings))
    chosen = ["--model", f"hf:{tmp_path}", "--data", "mine.txt"]
    result = run("audit", *chosen, "--json", "--fail-above", "0.2")
    assert result.code == 2
    content = json.loads(result.out)
    assert (
        content["verdict"]["headline"]
        == "This update gives away the words of the texts, in no order."
    )
    (named,) = content["occurred"]
    assert (named["embedding"], named["right"]) == ("transformer.wte", named["named"])
    assert named["right"] >= named["total"] - 2  # the last word of a text sends nothing back
    assert [row["leakage"] for row in content["samples"]] == [None, None]  # never 0 %
    warned = {row["check"]: row["mark"] for row in json.loads(run("doctor", *chosen, "--json").out)}
    assert warned["dropout"] == "warning"
    assert run("audit", *chosen, "--eval-mode", "--fail-above", "0.2", "--out", "still").code == 1


def test_doctor_capture_and_attack_take_the_text_path(run: Run, folder: Path) -> None:
    model = ["--model", f"hf:{folder}"]
    said = {
        row["check"]: row["sentence"]
        for row in json.loads(run("doctor", *model, "--data", "mine.txt", "--json").out)
    }
    assert said["positions"] == (
        "2 texts have 12 distinct prefixes, fewer than the 48 features: the texts come back whole."
    )
    made = run("capture", *model, "--data", "mine.txt")
    assert (made.code, "of 2 texts" in made.out) == (0, True), made.err
    shown = run("attack", *model, "--update", "client.safetensors")
    assert all(line in shown.out for line in LINES), shown.err
    assert sorted(json.loads(Path("unsum-leak/leak.json").read_text())["texts"]) == sorted(LINES)
    captured = json.loads(run("audit", *model, "--update", "client.safetensors", "--json").out)
    assert sorted(row["found_label"] for row in captured["samples"]) == sorted(LINES)
    assert captured["verdict"]["level"] == "severe"


def test_a_classifier_takes_texts_with_their_labels(run: Run, tmp_path: Path) -> None:
    save_encoder(tmp_path / "bert", masked=False)
    entries = [{"text": LINES[0], "label": 1}, {"text": LINES[1], "label": 0}]
    Path("client.jsonl").write_text("\n".join(map(json.dumps, entries)))
    chosen = ["--model", f"hf:{tmp_path / 'bert'}", "--data", "client.jsonl"]
    said = {
        row["check"]: row["sentence"] for row in json.loads(run("doctor", *chosen, "--json").out)
    }
    assert (
        said["positions"]
        == "2 texts have 18 tokens, fewer than the 48 features: the texts come back whole."
    )
    result = run("audit", *chosen, "--fail-above", "0.2")
    assert result.code == 1, result.err
    content = json.loads(Path("unsum-report/result.json").read_text())
    assert [row["found_label"] for row in content["samples"]] == [
        f"[CLS] {line} [SEP]" for line in LINES
    ]
    assert content["attack"]["exact"]
    assert content["scores"]["rouge_2"] == 1
    run("capture", *chosen)
    shown = run("attack", "--model", f"hf:{tmp_path / 'bert'}", "--update", "client.safetensors")
    assert all(line in shown.out for line in LINES), shown.err


@pytest.mark.long
def test_a_classifier_takes_pairs_of_sentences(run: Run, tmp_path: Path) -> None:
    save_encoder(tmp_path / "bert", masked=False)
    Path("client.jsonl").write_text(json.dumps({"text": LINES[0], "pair": LINES[1], "label": 1}))
    chosen = ["--model", f"hf:{tmp_path / 'bert'}", "--data", "client.jsonl"]
    result = run("audit", *chosen, "--fail-above", "0.2")
    assert result.code == 1, result.err
    content = json.loads(Path("unsum-report/result.json").read_text())
    whole = f"[CLS] {LINES[0]} [SEP] {LINES[1]} [SEP]"
    assert [row["found_label"] for row in content["samples"]] == [whole]
    # with two classes, it may be there twice with both labels
    assert not content["attack"]["exact"]
    run("audit", *chosen, "--batch-size-known", "--out", "known")
    assert json.loads(Path("known/result.json").read_text())["attack"]["exact"]
    run("capture", *chosen)
    assert (
        whole
        in run("attack", "--model", f"hf:{tmp_path / 'bert'}", "--update", "client.safetensors").out
    )
    leak = json.loads(Path("unsum-leak/leak.json").read_text())
    ends = leak["tokens"][0].index(leak["tokens"][0][-1]) + 1
    assert leak["segments"] == [[0] * ends + [1] * (len(leak["tokens"][0]) - ends)]


def test_masked_words_come_back(run: Run, tmp_path: Path) -> None:
    save_encoder(tmp_path / "bert", masked=True)
    run("audit", "--model", f"hf:{tmp_path / 'bert'}", "--data", "mine.txt")
    content = json.loads(Path("unsum-report/result.json").read_text())
    assert [row["found_label"] for row in content["samples"]] == [
        f"[CLS] {line} [SEP]" for line in LINES
    ]
    assert content["attack"]["exact"]


def test_hostile_text_is_only_text_in_the_reports(run: Run, folder: Path, tmp_path: Path) -> None:
    """Words that the tokenizer knows, and that a browser or Markdown would take for their own."""
    hostile = "<script>alert(1)</script>"
    for file in folder.iterdir():
        content = file.read_bytes()
        known = b'"Friday"' if file.name == "tokenizer.json" else b""
        (tmp_path / file.name).write_bytes(
            content.replace(known, json.dumps(hostile).encode()) if known else content
        )
    settings = json.loads((tmp_path / "tokenizer.json").read_text()) | {
        "pre_tokenizer": {"type": "WhitespaceSplit"}
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings))
    Path("client.jsonl").write_text(json.dumps({"text": f"We moved {hostile} to the patient"}))
    result = run("audit", "--model", f"hf:{tmp_path}", "--data", "client.jsonl")
    assert result.code == 0, result.err
    page = Path("unsum-report/report.html").read_text("utf-8")
    assert hostile not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 2  # as it was, and recovered
    assert hostile not in Path("unsum-report/report.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--sweep", "sign"], "audit a language model under one --defense at a time"),
        (["--local-steps", "2"], "played as one plain step"),
        (["--data", "absent.txt"], "takes a UTF-8 file with one text in each line"),
        (["--data", "mine.txt", "--batch", "3"], "The data hold 2 texts"),
        (["--data", "wrong.jsonl"], "Line 2 of 'wrong.jsonl' is no text"),
    ],
)
def test_what_text_cannot_do_is_said_in_a_sentence(
    run: Run, folder: Path, arguments: list[str], sentence: str
) -> None:
    result = run("audit", "--model", f"hf:{folder}", *arguments)
    assert result.code == 2
    assert sentence in " ".join(result.err.split())
