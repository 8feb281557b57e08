"""Everything that hostile files, faults and hard cases are tried with, counted into docs/reliability.md.

    uv run python scripts/reliability.py --full        at full size: about a million mutations, hours of search; writes the page
    uv run python scripts/reliability.py               the same at reduced size, as CI has it through pytest; writes nothing

`--fuzz FILE` and `--fool FILE` take the records that fuzz/run.py and benchmarks/fool_certificate.py wrote earlier with `--json`,
and `--tests FILE` the counts of tests that `--keep FILE` wrote, instead of running them again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reliability.md"
MUTATIONS, TRIES, EXAMPLES = 1_050_000, 20_000, 40
FEW_MUTATIONS, FEW_TRIES, FEW_EXAMPLES = 6_000, 40, 12


@dataclass(frozen=True)
class Kind:
    """A row of the table: a class of faults, and the tests that show it, by file and the beginning of their names."""

    section: str
    what: str
    file: str
    names: tuple[str, ...] = ("test",)
    examples: bool = False  # each test runs many random examples


KINDS = [
    Kind("Files", "Updates and weights: truncated, lying headers, overlaps, wrong types, bombs, code, NaN, links", "tests/hostile/test_files.py", ("test_updates",)),
    Kind("Files", "Photos: tars, npz and folders with bombs, links, paths, devices, lies", "tests/hostile/test_files.py", ("test_photos",)),
    Kind("Files", "The same through the command line, with little memory; limits; pickles; checkpoints; inverses", "tests/hostile/test_files.py", ("test_they", "test_what", "test_the_command", "test_a_factory", "test_published", "test_pickles", "test_cifar", "test_an_", "test_checkpoints")),
    Kind("App and report", "Requests to the live page: uploads, orders, paths, foreign hosts and sites", "tests/app/test_requests.py"),
    Kind("App and report", "Where it listens", "tests/app/test_serve.py"),
    Kind("App and report", "Reports in a real browser: hostile names, policy, no request to anywhere", "tests/e2e/test_report.py"),
    Kind("App and report", "The live page in a real browser", "tests/e2e/test_app.py"),
    Kind("Numerics", "Invariance: order of samples, names of classes, rotation, scale", "tests/properties/test_pipeline.py", ("test_the_order", "test_the_names", "test_a_rotation", "test_the_scale"), True),
    Kind("Numerics", "Two runs alike, bit for bit", "tests/properties/test_pipeline.py", ("test_two_runs",)),
    Kind("Numerics", "Sixteen bits, ill-conditioned heads, C = 2, B = 1, H < B, H = 1, saturation, dead ReLUs, zeros, twins", "tests/properties/test_pipeline.py", ("test_sixteen", "test_ill", "test_strange", "test_saturated"), True),
    Kind("Numerics", "Black pictures; overconfident answers under noise", "tests/properties/test_pipeline.py", ("test_black", "test_auto", "test_most")),
    Kind("Certificates", "Claims that had been false once", "tests/hostile/test_certificate.py", ("test_heads",)),
    Kind("Faults", "Disk full, files that may not grow, folders that cannot be written to", "tests/faults/test_disks.py"),
    Kind("Faults", "Out of memory, lost device, Ctrl-C: the sentence and the exit code", "tests/faults/test_sentences.py"),
    Kind("Faults", "Kill -9, Ctrl-C, little memory, lost device, clocks that jump: going on", "tests/faults/test_going_on.py"),
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

In Python: `unsum.tensor_file.read_tensors(path, "update", limits=unsum.limits.Limits(bytes=…))`.
"""

FOUND = """\
## What was found on the way, and is mended

- By the fuzzer: reads as long as a header of an old `.pt` says; messages with whole files in them; characters in an `.npz` that are none; a
  checkpoint's values without end in a sentence.
- By the search: certificates for hard labels where a head answers every input alike (its softmax does not bend, and mixed labels send the
  same rows); a scale of 179 for a batch of saturated samples in float16; crashes on singular starts and negative scales.
- By looking: the adaptive separator predicted an error of 0.001 for batches with half of their labels wrong, and `auto` preferred it; Ctrl-C ended
  with the exit code of a leak; torch.hub and CIFAR unpickled whatever lay in their folders; a killed sweep lost all of its strengths.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="at full size, and write the page")
    parser.add_argument("--fuzz", type=Path, help="a record of fuzz/run.py --json, instead of running it")
    parser.add_argument(
        "--fool", type=Path, help="a record of benchmarks/fool_certificate.py --json, instead of running it"
    )
    parser.add_argument("--tests", type=Path, help="a record of --keep, instead of running the tests")
    parser.add_argument(
        "--examples", type=int, help=f"random examples of a property, instead of {EXAMPLES} or {FEW_EXAMPLES}"
    )
    parser.add_argument("--keep", type=Path, help="write the counts of tests there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        examples = options.examples or (EXAMPLES if options.full else FEW_EXAMPLES)
        tests = _record(options.tests) if options.tests else _run_tests(Path(folder), examples, options.keep)
        fuzzed = _record(options.fuzz or _fuzz(Path(folder), MUTATIONS if options.full else FEW_MUTATIONS))
        fooled = _record(options.fool or _fool(Path(folder), TRIES if options.full else FEW_TRIES))
    page = render(tests, fuzzed, fooled, examples)
    if options.full:
        PAGE.write_text(page, encoding="utf-8")
    print(page)
    failed = sum(one["failed"] for one in tests.values())
    return 1 if failed or any(form["findings"] for form in fuzzed["formats"]) or _false(fooled) else 0


def _record(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def _run_tests(folder: Path, examples: int, keep: Path | None = None) -> dict[str, dict[str, int]]:
    """Every file of the table, one by one; how its tests ended, by the row that they belong to."""
    environment = {**os.environ, "UNSUM_EXAMPLES": str(examples), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-o", "junit_family=xunit1"]
    counts = {kind.what: {"tried": 0, "passed": 0, "skipped": 0, "failed": 0} for kind in KINDS}
    for number, file in enumerate(dict.fromkeys(kind.file for kind in reversed(KINDS))):
        found = folder / f"{number}.xml"
        subprocess.run([*command, f"--junitxml={found}", file], cwd=ROOT, env=environment)
        for test in ElementTree.parse(found).iter("testcase"):
            kind = _kind(file, test.get("name") or "")
            if kind is None:
                continue
            ended = {child.tag for child in test}
            result = "failed" if ended & {"failure", "error"} else "skipped" if "skipped" in ended else "passed"
            counts[kind.what][result] += 1
            counts[kind.what]["tried"] += result != "skipped"
        if keep is not None:
            keep.write_text(json.dumps(counts, indent=2) + "\n")
    return counts


def _kind(file: str, name: str) -> Kind | None:
    return next((kind for kind in KINDS if kind.file == file and name.startswith(kind.names)), None)


def _fuzz(folder: Path, mutations: int) -> Path:
    out = folder / "fuzz.json"
    subprocess.run(
        [sys.executable, "fuzz/run.py", "--mutations", str(mutations), "--seed", "1", "--json", str(out)], cwd=ROOT
    )
    return out


def _fool(folder: Path, tries: int) -> Path:
    out = folder / "fool.json"
    command = [
        sys.executable,
        "benchmarks/fool_certificate.py",
        "--tries",
        str(tries),
        "--seed",
        "1",
        "--json",
        str(out),
    ]
    subprocess.run(command, cwd=ROOT)
    return out


def _false(fooled: dict[str, Any]) -> int:
    return len(fooled["fooled_features"]) + len(fooled["fooled_labels"]) + len(fooled["crashed"])


def render(tests: dict[str, dict[str, int]], fuzzed: dict[str, Any], fooled: dict[str, Any], examples: int) -> str:
    lines = [
        "# Reliability", "",
        "Each class of fault and bad input, how often it was tried, how often unsum survived it, and what shows it. To survive is: the right "
        "answer, or one sentence and an exit code that says so; never code of a file's, a traceback, a half-written report or a false "
        "certificate. Written by `uv run python scripts/reliability.py --full`; CI runs all of it at reduced size through pytest.", "",
    ]  # fmt: skip
    lines += ["| | class of fault or bad input | tried | survived | shown by |", "|---|---|---:|---:|---|"]
    for kind in KINDS:
        count, times = tests[kind.what], examples if kind.examples else 1
        if not count["tried"]:
            continue
        skipped = f" ({count['skipped']} skipped)" if count["skipped"] else ""
        lines.append(
            f"| {kind.section} | {kind.what} | {times * count['tried']:,} | {times * count['passed']:,}{skipped} | `{kind.file}` |"
        )
    left_out = [f"`{kind.file}`" for kind in KINDS if not tests[kind.what]["tried"]]
    whole = sum(form["mutations"] for form in fuzzed["formats"])
    fine = sum(form["read"] + form["refused"] for form in fuzzed["formats"])
    lines.append(
        f"| Files | Mutated files, over {len(fuzzed['formats'])} formats | {whole:,} | {fine:,} | `fuzz/run.py` |"
    )
    wrong = len(fooled["fooled_features"])
    lines += [
        f"| Certificates | Cases bred to make a claim of exactness false (features) | {fooled['tries']:,} | "
        f"{fooled['tries'] - wrong:,} | `benchmarks/fool_certificate.py` |",
        f"| Certificates | the same for labels | {fooled['tries']:,} | {fooled['tries'] - len(fooled['fooled_labels']):,} | "
        "`benchmarks/fool_certificate.py` |",
        "", *([f"Not counted in this run, though part of it: {', '.join(dict.fromkeys(left_out))}.", ""] if left_out else []),
        "## Mutated files, format by format", "",
        "| format | seed | mutations | read | refused in one sentence | anything else | mutations/s |", "|---|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    for form in fuzzed["formats"]:
        rate = form["mutations"] / form["seconds"] if form["seconds"] else 0
        others = form["mutations"] - form["read"] - form["refused"]
        seed = form.get("seed", fuzzed["seed"])
        cells = [
            form["format"],
            seed,
            f"{form['mutations']:,}",
            f"{form['read']:,}",
            f"{form['refused']:,}",
            others,
            f"{rate:,.0f}",
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += [
        "", "## Certificates", "",
        f"{fooled['tries']:,} cases (seed {fooled['seed']}, {fooled['seconds']:.0f} s), bred for the largest error behind the smallest prediction: "
        f"ill-conditioned and saturated heads, near-twins, noise, sixteen bits, forged gradients, two batches in one. {fooled['claimed']:,} answers "
        f"claimed to be exact; of these {wrong} had wrong features and {len(fooled['fooled_labels'])} wrong labels. {len(fooled['crashed'])} cases "
        "crashed. The same search found the false claims named below before they were mended.",
        "", FOUND.rstrip(), "", LIMITS.rstrip(), "", f"Machine: {platform.processor() or platform.machine()}, {os.cpu_count()} cores, shared with other work; "
        f"Python {platform.python_version()}.", "",
    ]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
