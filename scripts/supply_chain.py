"""What unsum is built from: are its licenses known, has it known holes, and what is in it?

    uv run python scripts/supply_chain.py licenses      every installed package has a license of the list, or fails
    uv run python scripts/supply_chain.py advisories    pip-audit over requirements.lock, where its database can be reached
    uv run python scripts/supply_chain.py sbom          CycloneDX of requirements.lock, into build/sbom.json

Licenses come from the metadata of what is installed, without a network. pip-audit and cyclonedx-py
run through `uvx`, apart from the project's own environment. Where the database of advisories cannot
be reached, `advisories` says so and ends with 0, or with 1 where UNSUM_REQUIRE_ADVISORIES=1: a
check that did not run must not look like one that passed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from importlib.metadata import Distribution, distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK, SBOM = ROOT / "requirements.lock", ROOT / "build" / "sbom.json"
# Licenses by what their names hold; permissive ones, and MPL, which asks for nothing but its own
# files.
ALLOWED = {
    "MIT", "MIT-CMU", "MIT LICENSE", "APACHE-2.0", "APACHE 2.0", "APACHE 2.0 LICENSE",
    "APACHE SOFTWARE LICENSE", "BSD", "BSD LICENSE", "BSD-2-CLAUSE", "BSD-3-CLAUSE",
    "BSD 2-CLAUSE LICENSE", "BSD 3-CLAUSE LICENSE", "3-CLAUSE BSD LICENSE", "0BSD", "ISC",
    "ISC LICENSE", "ISC LICENSE (ISCL)", "PSF-2.0", "PYTHON SOFTWARE FOUNDATION LICENSE", "MPL-2.0",
    "MOZILLA PUBLIC LICENSE 2.0 (MPL 2.0)", "ZLIB", "CC0-1.0", "BSL-1.0", "CNRI-PYTHON",
    "APACHE-2.0 WITH LLVM-EXCEPTION", "UNLICENSE",
}  # fmt: skip
# Packages outside of the list, each with its reason; a new one needs a reason of its own.
EXCEPTIONS = {
    "directsearch": (
        "GPL-3.0: comes with nevergrad, of the extra `matching` alone, and is not part of unsum"
    ),
    "axe-playwright-python": "its metadata names none; MIT by its repository; a tool of the tests",
    "codespell": "GPL-2.0: a tool of .ci/run, and not part of unsum",
    "cuda-toolkit": "NVIDIA's own terms: comes with PyTorch's builds for CUDA",
}
# PyTorch's builds for CUDA bring NVIDIA's libraries under its own terms
_NVIDIA = ("nvidia-", "cuda-")
# a release with published advisories: whether the database answers is tried with it
_VULNERABLE = "jinja2==3.1.2"


def licenses() -> int:
    strange = []
    for package in sorted(distributions(), key=lambda one: one.metadata["Name"].lower()):
        name = re.sub(r"[-_.]+", "-", package.metadata["Name"]).lower()
        if name in ("unsum", "unsum-bench") or name in EXCEPTIONS or name.startswith(_NVIDIA):
            continue
        found = licenses_of(package)
        if not found or not found <= ALLOWED:
            strange.append(
                f"{name} {package.version}: "
                f"{', '.join(sorted(found - ALLOWED)) or 'no license named'}"
            )
    for line in strange:
        print(f"not on the list of licenses: {line}")
    if not strange:
        print("Every installed package has a license of the list, or a reason beside its name.")
    return 1 if strange else 0


def licenses_of(package: Distribution) -> set[str]:
    """The names in upper case: of an expression its parts, else the classifiers, else the first
    line of the text."""
    metadata = package.metadata
    expression = metadata.get("License-Expression")
    if expression:
        parts = re.split(r"\s+(?:AND|OR)\s+|[()]", expression)
        return {part.strip().upper() for part in parts if part.strip()}
    classifiers = [
        c.rpartition(" :: ")[2]
        for c in metadata.get_all("Classifier") or []
        if c.startswith("License ::")
    ]
    text = (metadata.get("License") or "").strip().splitlines()[:1]
    named = [line for line in classifiers or text if line and line != "OSI Approved"]
    return {part.strip().upper() for line in named for part in re.split(r"\s+AND\s+", line)}


def advisories() -> int:
    if not _answers():
        print("ADVISORIES WERE NOT CHECKED: pip-audit or its database cannot be reached from here.")
        return 1 if os.environ.get("UNSUM_REQUIRE_ADVISORIES") == "1" else 0
    checked = subprocess.run([*_PIP_AUDIT, "--require-hashes", "-r", str(LOCK)], timeout=600)
    print(
        "pip-audit found nothing."
        if checked.returncode == 0
        else "pip-audit found packages with advisories."
    )
    return checked.returncode


_PIP_AUDIT = ["uvx", "pip-audit", "--disable-pip", "--progress-spinner", "off"]


def _answers() -> bool:
    """A release that is known to be vulnerable must be reported as such: silence would prove
    nothing."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as pins:
        pins.write(_VULNERABLE + "\n")
        pins.flush()
        try:
            tried = subprocess.run(
                [*_PIP_AUDIT, "--no-deps", "-r", pins.name],
                capture_output=True,
                text=True,
                timeout=120,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
    return (
        tried.returncode == 1 and re.search(r"jinja2\s+3\.1\.2\s+\S+-\d", tried.stdout) is not None
    )


def sbom() -> int:
    SBOM.parent.mkdir(exist_ok=True)
    command = [
        "uvx",
        "--from",
        "cyclonedx-bom",
        "cyclonedx-py",
        "requirements",
        str(LOCK),
        "--output-reproducible",
    ]
    made = subprocess.run([*command, "--of", "JSON", "-o", str(SBOM)], timeout=300)
    print(
        f"{SBOM.relative_to(ROOT)}: {SBOM.stat().st_size:,} bytes."
        if made.returncode == 0
        else "No SBOM was made."
    )
    return made.returncode


if __name__ == "__main__":
    steps = {"licenses": licenses, "advisories": advisories, "sbom": sbom}
    if len(sys.argv) != 2 or sys.argv[1] not in steps:
        raise SystemExit(__doc__)
    raise SystemExit(steps[sys.argv[1]]())
