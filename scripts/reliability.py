"""Everything that hostile files, faults and hard cases are tried with, counted into
docs/reliability.md.

    uv run python scripts/reliability.py --full  at full size: about half an hour on two cores;
                                                 writes the page
    uv run python scripts/reliability.py         the same at reduced size, as CI has it through
                                                 pytest; writes nothing

First a million mutated files and the search for false certificates side by side, then the tests,
two files at a time. The reports are tested in Chromium, which must be installed. `--records FOLDER`
keeps what was counted, part by part; a part that a later run is to take over instead of running it
again is named by `--fuzz`, `--fool` or `--tests`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reliability.md"
LARGER = ROOT / "bench" / "fool.json"  # the record of a larger search, with its machine and command


@dataclass(frozen=True)
class Size:
    """How much of everything; the search ends with its tries or its minutes, whichever comes
    first."""

    mutations: int
    tries: int
    minutes: float
    examples: int


FULL, REDUCED = Size(1_050_000, 6_000, 20, 40), Size(6_000, 200, 5, 12)


@dataclass(frozen=True)
class Kind:
    """A row of the table: a class of faults, and the tests that show it, by file and the beginning
    of their names."""

    section: str
    what: str
    file: str
    names: tuple[str, ...] = ("test",)
    examples: bool = False  # each test runs many random examples


KINDS = [
    Kind("Files", (
        "Updates and weights: truncated, lying headers, overlaps, wrong types, bombs, code, NaN, "
        "links"
    ), "tests/hostile/test_files.py", ("test_updates",)),
    Kind("Files", "Photos: tars, npz and folders with bombs, links, paths, devices, lies",
    "tests/hostile/test_files.py", ("test_photos",)), Kind("Files", (
        "The same through the command line, with little memory; limits; pickles; checkpoints; "
        "inverses"
    ), "tests/hostile/test_files.py",
    ("test_they", "test_what", "test_the_command", "test_a_factory", "test_published",
    "test_pickles", "test_cifar", "test_an_", "test_checkpoints")),
    Kind("App and report",
    "Requests to the live page: uploads, orders, paths, foreign hosts and sites",
    "tests/app/test_requests.py"),
    Kind("App and report", "Where it listens", "tests/app/test_serve.py"), Kind("Clients", (
        "Counters, batch sizes, steps and other numbers that a client declares; gradients of "
        "1e308; long names; with little memory"
    ), "tests/hostile/test_clients.py"),
    Kind("Clients", "Forged gradients under a time limit", "tests/running/test_deadline.py"),
    Kind("Files", "Hugging Face configs that describe more than their weights hold",
    "tests/models/test_hugging_face_config.py"),
    Kind("App and report",
    "Half-open connections, requests that never end, refused uploads, on loopback",
    "tests/app/test_patience.py"),
    Kind("App and report",
    "Reports in a real browser: hostile names, policy, no request to anywhere",
    "tests/e2e/test_report.py"),
    Kind("App and report", "The live page in a real browser", "tests/e2e/test_app.py"),
    Kind("Numerics", "Invariance: order of samples, names of classes, rotation, scale",
    "tests/properties/test_pipeline.py",
    ("test_the_order", "test_the_names", "test_a_rotation", "test_the_scale"), True),
    Kind("Numerics", "Two runs alike, bit for bit", "tests/properties/test_pipeline.py",
    ("test_two_runs",)), Kind("Numerics", (
        "Sixteen bits, ill-conditioned heads, C = 2, B = 1, H < B, H = 1, saturation, dead ReLUs, "
        "zeros, twins"
    ), "tests/properties/test_pipeline.py",
    ("test_sixteen", "test_ill", "test_strange", "test_saturated"), True),
    Kind("Numerics", "Black pictures; overconfident answers under noise",
    "tests/properties/test_pipeline.py", ("test_black", "test_auto", "test_most")),
    Kind("Certificates", "Claims that had been false once", "tests/certify/test_search.py",
    ("test_heads", "test_bred", "test_a_forged")),
    Kind("Certificates", "Gradients that something else explains as well",
    "tests/certify/test_alternatives.py", ("test_",)),
    Kind("Faults", "Disk full, files that may not grow, folders that cannot be written to",
    "tests/faults/test_disks.py"),
    Kind("Faults", "Out of memory, lost device, Ctrl-C: the sentence and the exit code",
    "tests/faults/test_sentences.py"),
    Kind("Faults", "Kill -9, Ctrl-C, little memory, lost device, clocks that jump: going on",
    "tests/faults/test_going_on.py"),
]  # fmt: skip

LIMITS = """\
## Limits

Checked before memory is taken, and changed in the environment by whoever needs more:

| variable | what a file may hold | unless set |
|---|---|---:|
| `UNSUM_MAX_TENSORS` | tensors | 100 000 |
| `UNSUM_MAX_BYTES` | bytes of all tensors together, unpacked | 64 GiB |
| `UNSUM_MAX_METADATA` | bytes of a header, or of an archive's list of members | 16 MiB |
| `UNSUM_MAX_EXPANSION` | times the file's own size that it may unpack to (64 MiB are always allowed) | 200 |
| `UNSUM_MAX_PICTURES` | files of an archive or a folder of photos | 5 000 000 |

In Python: `unsum.files.tensor_file.read_tensors(path, "update", limits=unsum.files.limits.Limits(bytes=…))`.
"""

FOUND = """\
## What was found on the way, and is mended

- By the fuzzer: reads as long as a header of an old `.pt` says; messages with whole files in them; characters in an `.npz` that are none; a
  checkpoint's values without end in a sentence; an `.npy` whose header says that it is 4 GB long.
- By the search: certificates for hard labels where a head answers every input alike (its softmax does not bend, and mixed labels send the
  same rows); a scale of 179 for a batch of saturated samples in float16; crashes on singular starts and negative scales;
  a certificate for one sample where three of one label differed by 1.3 % (only two had been thought of, and three show less);
  certificates for hard labels that were mixed, by up to 6 % between samples that are nearly alike and by any amount behind a head of zeros; answers that
  left up to 20 times the noise and were certified all the same, with errors of 2 % and more;
  the length of a sample that its zeros had given and a saturated softmax hardly tells, off by 1 %; two samples of
  six that sent 0.2 % each and were lost among the others of a scaled gradient; crashes of declared losses;
  mixed labels of a sample and its double in another length, of which only a sum is sent; three samples of one label for three alike
  ones of two, at another scale and with four times the noise left; a scale of 1 that was assumed where a flat head tells none;
  a third sample in the middle of two, out of noise that was taken for a direction.
- By measuring large batches: a false sample of a large batch, so far out that its softmax is its label, and its error small against its length.
- By looking: the adaptive separator predicted an error of 0.001 for batches with half of their labels wrong, and `auto` preferred it; Ctrl-C ended
  with the exit code of a leak; torch.hub and CIFAR unpickled whatever lay in their folders; a killed sweep lost all of its strengths.
"""

PATHS = {
    "head": "the head, cross-entropy", "many": "many updates at once",
    "losses": "other losses, declared or not", "rounds": "several rounds", "steps": "local steps",
    "text": "text", "peel": "peeled inputs", "spans": "two dense layers, local steps among them",
    "maps": "maps of convolutions", "bottlenecks": "bottlenecks of pooled networks",
    "pixels": "pictures solved for below maps", "tokens": "pictures out of vision transformers",
    "networks": "networks that do not compute what they look like",
}  # fmt: skip
# how a claim was false, in a record of the search
FOOLED = ("fooled_features", "fooled_labels", "fooled_counts")
Counts = dict[str, dict[str, int]]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="at full size, and write the page")
    parser.add_argument(
        "--records", type=Path, help="keep the records of the three parts in this folder"
    )
    parser.add_argument("--fuzz", type=Path, help="a record fuzz.json, instead of mutating files")
    parser.add_argument(
        "--fool", type=Path, help="a record fool.json, instead of searching for false certificates"
    )
    parser.add_argument(
        "--tests", type=Path, help="a record tests.json, instead of running the tests"
    )
    options = parser.parse_args()
    size, start = FULL if options.full else REDUCED, time.monotonic()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background jobs ignore Ctrl-C, and so would the tests of it
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.records or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        given = {
            name: getattr(options, name) or folder / f"{name}.json"
            for name in ("fuzz", "fool", "tests")
        }
        _run_programs(
            [name for name in ("fuzz", "fool") if not getattr(options, name)], folder, size
        )
        if not options.tests:
            _run_tests(folder, size.examples)
        fuzzed, fooled, tests = (
            json.loads(given[name].read_text()) for name in ("fuzz", "fool", "tests")
        )
    once = not (options.fuzz or options.fool or options.tests)
    how = (
        f"in one run of {(time.monotonic() - start) / 60:.0f} minutes"
        if once
        else "put together from records"
    )
    page = render(tests, fuzzed, fooled, size, how)
    if options.full:
        PAGE.write_text(page, encoding="utf-8")
    print(page)
    failed = sum(one["failed"] for one in tests.values())
    return (
        1 if failed or any(form["findings"] for form in fuzzed["formats"]) or _false(fooled) else 0
    )


def _false(fooled: dict[str, Any]) -> int:
    return sum(len(fooled[name]) for name in (*FOOLED, "crashed"))


def _run_programs(names: list[str], folder: Path, size: Size) -> None:
    """Mutations and search side by side, each on one core and with its record in `folder`."""
    commands = {
        "fuzz": ["fuzz/run.py", "--mutations", str(size.mutations), "--seed", "1"],
        "fool": ["-m", "unsum_bench.scripts.fool.run", "--tries", str(size.tries), "--minutes",
        str(size.minutes), "--seed", "1"],
    }  # fmt: skip
    running = {}
    for name in names:
        _say(f"{name}: {' '.join(commands[name])}")
        record = ["--json", str(folder.resolve() / f"{name}.json")]
        running[name] = subprocess.Popen(
            [sys.executable, *commands[name], *record], cwd=ROOT, env=_environment()
        )
    try:
        for name, process in running.items():
            if process.wait() not in (0, 1):  # 1: with findings
                raise SystemExit(f"{name} broke off with {process.returncode}; nothing is counted.")
            _say(f"{name}: done")
    finally:
        for process in running.values():
            process.kill()


def _run_tests(folder: Path, examples: int) -> None:
    """Every file of the table, two at a time; how their tests ended, by the row that they belong
    to."""
    counts: Counts = {
        kind.what: {"tried": 0, "passed": 0, "skipped": 0, "failed": 0} for kind in KINDS
    }
    environment = {**_environment(), "UNSUM_EXAMPLES": str(examples), "UNSUM_REQUIRE_BROWSER": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-m",
        "",
        "-o",
        "junit_family=xunit1",
    ]

    def run(file: str) -> None:
        found = folder.resolve() / (file.replace("/", "-") + ".xml")
        found.unlink(missing_ok=True)
        done = subprocess.run(
            [*command, f"--junitxml={found}", file],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )
        _count(file, found, counts)
        _say(f"{file}: {(done.stdout.strip().splitlines() or ['said nothing'])[-1]}")
        if done.returncode:
            print(done.stdout, done.stderr, sep="\n", flush=True)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, dict.fromkeys(kind.file for kind in KINDS)))
    (folder / "tests.json").write_text(json.dumps(counts, indent=2) + "\n")


def _count(file: str, found: Path, counts: Counts) -> None:
    """Add one file's tests; a file that did not even end counts as failed in each of its rows."""
    if not found.exists():
        for kind in KINDS:
            if kind.file == file:
                counts[kind.what]["tried"] += 1
                counts[kind.what]["failed"] += 1
        return
    for test in ElementTree.parse(found).iter("testcase"):
        name = test.get("name") or ""
        row = next(
            (kind for kind in KINDS if kind.file == file and name.startswith(kind.names)), None
        )
        if row is None:
            continue
        ended = {child.tag for child in test}
        result = (
            "failed"
            if ended & {"failure", "error"}
            else "skipped"
            if "skipped" in ended
            else "passed"
        )
        counts[row.what][result] += 1
        counts[row.what]["tried"] += result != "skipped"


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def _say(what: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {what}", flush=True)


def render(
    tests: Counts, fuzzed: dict[str, Any], fooled: dict[str, Any], size: Size, how: str
) -> str:
    larger = json.loads(LARGER.read_text()) if LARGER.exists() else None
    lines = [
        "# Reliability", "",
        "Each class of fault and bad input, how often it was tried, how often unsum survived it, "
        "and what shows it. To survive is: the right answer, or one sentence and an exit code that "
        "says so; never code of a file's, a traceback, a half-written report or a false "
        f"certificate. Written by `uv run python scripts/reliability.py --full`, {how}; CI runs "
        "all of it at reduced size through pytest.", "",
        "| | class of fault or bad input | tried | survived | shown by |",
        "|---|---|---:|---:|---|", *_test_rows(tests, size.examples),
        *_program_rows(fuzzed, fooled), "",
    ]  # fmt: skip
    left_out = [f"`{kind.file}`" for kind in KINDS if not tests[kind.what]["tried"]]
    if left_out:
        lines += [
            f"Not counted in this run, though part of it: {', '.join(dict.fromkeys(left_out))}.",
            "",
        ]
    machine = (
        f"Machine: {platform.processor() or platform.machine()}, {os.cpu_count()} cores; Python "
        f"{platform.python_version()}."
    )
    lines += [
        *_formats(fuzzed),
        "",
        *_certificates(fooled, larger),
        "",
        FOUND.rstrip(),
        "",
        LIMITS.rstrip(),
        "",
        machine,
        "",
    ]
    return "\n".join(lines)


def _test_rows(tests: Counts, examples: int) -> list[str]:
    rows = []
    for kind in KINDS:
        count, times = tests[kind.what], examples if kind.examples else 1
        if not count["tried"]:
            continue
        skipped = f" ({count['skipped']} skipped)" if count["skipped"] else ""
        tried, passed = times * count["tried"], times * count["passed"]
        rows.append(
            f"| {kind.section} | {kind.what} | {tried:,} | {passed:,}{skipped} | `{kind.file}` |"
        )
    return rows


def _program_rows(fuzzed: dict[str, Any], fooled: dict[str, Any]) -> list[str]:
    """Only claims can be false: the others among the tries are named in the text."""
    formats = fuzzed["formats"]
    whole, fine = (
        sum(form["mutations"] for form in formats),
        sum(form["read"] + form["refused"] for form in formats),
    )
    claimed, search = fooled["claimed"], "`unsum_bench.scripts.fool.run`"
    features, labels, counts = (claimed - len(fooled[name]) for name in FOOLED)
    return [
        (
            f"| Files | Mutated files, over {len(formats)} formats | {whole:,} | {fine:,} | "
            "`fuzz/run.py` |"
        ),
        (
            f"| Certificates | Claims of exactness in {fooled['tries']:,} cases bred to make one "
            f"false: features | {claimed:,} | {features:,} | {search} |"
        ),
        f"| Certificates | the same claims: labels | {claimed:,} | {labels:,} | {search} |",
        (
            f"| Certificates | the same claims: numbers of samples and copies | {claimed:,} | "
            f"{counts:,} | {search} |"
        ),
    ]


def _formats(fuzzed: dict[str, Any]) -> list[str]:
    lines = [
        "## Mutated files, format by format", "",
        (
            "| format | seed | mutations | read | refused in one sentence | anything else | "
            "mutations/s |"
        ), "|---|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    for form in fuzzed["formats"]:
        rate = form["mutations"] / form["seconds"] if form["seconds"] else 0
        others = form["mutations"] - form["read"] - form["refused"]
        counts = (
            f"{form['mutations']:,} | {form['read']:,} | {form['refused']:,} | {others} | "
            f"{rate:,.0f}"
        )
        lines.append(f"| {form['format']} | {form.get('seed', fuzzed['seed'])} | {counts} |")
    return lines


def _certificates(fooled: dict[str, Any], larger: dict[str, Any] | None) -> list[str]:
    lines = [
        "## Certificates", "",
        "Cases are bred for the largest error behind a claim, and for large errors that are nearly "
        "claimed: ill-conditioned and saturated heads, near-twins and siblings at every "
        "multiplicity, nearly flat heads, noise, sixteen bits, temperatures, weight decay, uneven "
        "weights, wrong declarations, memorized text, forged gradients, two batches in one. A "
        "claim is false when a feature of a sample is off by more than 1 %, a sample is missing or "
        "made up, an entry of a label is off by more than 0.01, or the claimed batch does not send "
        "the gradient. Samples that send less than 1e-5 of what the largest one sends need not be "
        "found: claims that miss such ones exist (6e-6 was seen, and the limit had been 1e-6 until "
        "then), for float32 hardly shows them.", "",
        f"In this run: {_searched(fooled)}",
    ]  # fmt: skip
    if larger is not None:
        lines += [
            "",
            f"A larger search, on {larger['machine']} (`{larger['command']}`): {_searched(larger)}",
        ]
    return [*lines, "", *_paths(fooled if larger is None else larger)]


def _paths(fooled: dict[str, Any]) -> list[str]:
    """One row for every path that can claim."""
    lines = [
        "| path | cases | claims | wrong features | wrong labels | wrong counts |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for path, tries in fooled["paths"].items():
        claims = sum(
            number for kind, number in fooled["claims"].items() if kind.startswith(f"{path}:")
        )
        wrong = " | ".join(
            str(sum(one.get("path") == path for one in fooled[name])) for name in FOOLED
        )
        lines.append(f"| {PATHS[path]} | {tries:,} | {claims:,} | {wrong} |")
    return lines


def _searched(fooled: dict[str, Any]) -> str:
    seeds = ", ".join(map(str, fooled["seeds"]))
    return (
        f"{fooled['tries']:,} cases (seed {seeds}; {fooled['seconds'] / 60:.0f} minutes of one "
        f"core). {fooled['claimed']:,} answers of {len(fooled['claims'])} kinds of cases claimed "
        f"to be exact; of these {len(fooled['fooled_features'])} had wrong features, "
        f"{len(fooled['fooled_labels'])} wrong labels and {len(fooled['fooled_counts'])} wrong "
        f"counts, and the largest error behind a claim was {fooled['worst_claim']:.1e}. "
        f"{fooled['refused']:,} cases were refused with a sentence, {fooled['stopped']:,} stopped "
        f"after their second, {len(fooled['crashed'])} crashed; the other answers claimed nothing."
    )


if __name__ == "__main__":
    raise SystemExit(main())
