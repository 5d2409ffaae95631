#!/usr/bin/env python3
"""Writes the licences of everything that is linked into the shipped programs, or into the library of the Python package.

    packaging/third_party.py --target TRIPLE --output FILE [--product programs|wheel]

Also prints the licence expression of the package. The file lists the crates of the normal and build dependencies of what is
shipped, for a target, with their licence expressions and texts. Equal texts appear once. The notices of Rust's standard library, which the toolchain has, follow.
The order depends on names and versions only, so that the same Cargo.lock gives the same bytes.

A crate without the text of its licence is an error, unless another crate has the text (`TEXT_IN`).
"""

import argparse
import html
import json
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple


class Product(NamedTuple):
    """What is shipped: its crates, its name in a sentence, and the licences of the package's own files."""

    crates: list[str]
    name: str
    own_licences: list[str]


PRODUCTS = {
    # With the data of the examples.
    "programs": Product(
        ["millstream-cli", "millstream-daemon"], "The programs millstream and millstreamd contain", ["Apache-2.0", "CC-BY-4.0"]
    ),
    "wheel": Product(["millstream-python"], "The library of the Python package millstream contains", ["Apache-2.0"]),
}

# Crates whose archive has no text of their licence, and the crate whose text applies.
TEXT_IN = {
    "alloc-stdlib": "alloc-no-stdlib",  # one repository, rust-alloc-no-stdlib, with one licence
    "asn1-rs-impl": "asn1-rs",  # one repository, asn1-rs, with one licence
    "flatbuffers": "sync_wrapper",  # Apache-2.0 without a notice: the same text
    "opentelemetry": "prost",  # Apache-2.0 without a notice: the same text
    "opentelemetry-otlp": "prost",
    "opentelemetry_sdk": "prost",
    "pulp-wasm-simd-flag": "pulp",  # one repository, pulp, with one licence
    "tonic-prost": "tonic",  # one repository, grpc-rust, with one licence
    "tonic-prost-build": "tonic",
}

# Texts in archives that apply to nothing in the programs.
NOT_SHIPPED = {
    ("petgraph", "assets/images/LICENSE.md"),  # pictures of its documentation
    ("zstd-sys", "zstd/COPYING"),  # zstd is under BSD-3-Clause or GPL-2.0; the former is chosen
}

TEXT = re.compile(r"(un)?licen[sc]e|copying|copyright|notice|patents", re.IGNORECASE)


class Missing(Exception):
    """What an archive or the toolchain lacks; where; what to do."""


class Crate:
    """A crate, its licence expression, and the texts in its archive by their paths."""

    def __init__(self, name: str, version: str, expression: str, texts: dict[str, str]):
        self.name = name
        self.version = version
        self.expression = normalized(expression)
        self.texts = texts

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}"


def normalized(expression: str) -> str:
    """An expression, which may be in the old notation, `MIT/Apache-2.0`, as SPDX with its parts in one order."""
    parts = [" OR ".join(sorted(part.split(" OR "))) for part in conjuncts(re.sub(r"\s*/\s*", " OR ", expression.strip()))]
    return conjunction(sorted(parts))


def conjuncts(expression: str) -> list[str]:
    """`(A OR B) AND C` as `A OR B` and `C`."""
    return [part.strip("()") for part in re.split(r" AND (?![^(]*\))", expression)]


def conjunction(parts: list[str]) -> str:
    return " AND ".join(f"({part})" if " OR " in part and len(parts) > 1 else part for part in parts)


def linked_crates(target: str, products: list[str]) -> list[Crate]:
    """The crates from registries that cargo compiles into our crates `products` or runs to build them."""
    tree = cargo("tree", "--edges", "normal,build", "--target", target, "--prefix", "none", "--format", "{p}",
                 *(argument for product in products for argument in ("--package", product)))  # fmt: skip
    linked = {tuple(line.split()[:2]) for line in tree.splitlines() if line and "(/" not in line}
    # What runs during the build is compiled for the host.
    host = re.search(r"^host: (.*)$", output_of("rustc", "-vV"), re.MULTILINE).group(1)
    metadata = json.loads(
        cargo("metadata", "--format-version", "1", "--filter-platform", target, "--filter-platform", host)
    )
    packages = {(package["name"], f"v{package['version']}"): package for package in metadata["packages"]}
    return [
        Crate(
            package["name"],
            package["version"],
            package["license"] or "",
            texts_in(package["name"], pathlib.Path(package["manifest_path"]).parent),
        )
        for package in (packages[key] for key in sorted(linked))
    ]


def cargo(command: str, *arguments: str) -> str:
    return output_of("cargo", command, "--locked", *arguments)


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def texts_in(name: str, archive: pathlib.Path) -> dict[str, str]:
    files = sorted(path for path in archive.rglob("*") if TEXT.match(path.name) and path.is_file())
    texts = {path.relative_to(archive).as_posix(): path for path in files if path.suffix not in (".rs", ".c", ".h")}
    return {
        relative: path.read_text(encoding="utf-8", errors="replace")
        for relative, path in texts.items()
        if (name, relative) not in NOT_SHIPPED
    }


def add_texts_of_others(crates: list[Crate], text_in: dict[str, str]) -> None:
    """Applies `text_in`. An exception that is not needed any more is an error, too."""
    by_name = {crate.name: crate for crate in crates}
    for name, other in text_in.items():
        if name not in by_name or by_name[name].texts:
            raise Missing(f"{name}: needs no text of {other}: packaging/third_party.py: remove it from TEXT_IN")
        if other not in by_name:
            raise Missing(f"{other}: not linked, but has the text of {name}: packaging/third_party.py: change TEXT_IN")
        by_name[name].texts = {f"{other}/{path}": text for path, text in by_name[other].texts.items()}
    for crate in crates:
        if not crate.expression:
            raise Missing(f"{crate.title}: no licence: its Cargo.toml: do without this crate")
        if not crate.texts:
            raise Missing(
                f"{crate.title}: no text of its licence, {crate.expression}: its archive: name the crate that has the "
                "text, and the reason, in TEXT_IN of packaging/third_party.py"
            )


def document(crates: list[Crate], standard_library: str, title: str, subject: str = "Millstream contains") -> str:
    """The list of crates, then each text once, with the crates that it belongs to."""
    crates = sorted(crates, key=lambda crate: (crate.name, [int(part) for part in re.findall(r"\d+", crate.version)]))
    numbers: dict[str, int] = {}
    texts: list[tuple[str, list[str]]] = []
    lines = [title, "=" * len(title), "", *f"{subject} {INTRODUCTION}".splitlines(), ""]
    if any(crate.name == "libsqlite3-sys" for crate in crates):
        lines[-1:] = ["SQLite, which libsqlite3-sys contains, is in the public domain.", ""]
    for crate in crates:
        used = []
        for path, text in crate.texts.items():
            number = numbers.setdefault(" ".join(text.split()), len(texts))
            if number == len(texts):
                texts.append((text, []))
            texts[number][1].append(f"{crate.title} ({path})")
            used.append(number + 1)
        lines.append(f"{crate.title}: {crate.expression} {sorted(set(used))}")
    for number, (text, owners) in enumerate(texts, 1):
        lines += ["", "-" * 100, f"[{number}] {', '.join(owners)}", "-" * 100, ""]
        lines += [line.rstrip() for line in text.strip("\ufeff\r\n").splitlines()]
    lines += ["", "-" * 100, "Rust's standard library", "-" * 100, "", standard_library]
    return "\n".join(lines) + "\n"


INTRODUCTION = """\
these crates, or code that these crates made during the build.
Millstream itself is under the Apache License 2.0. Numbers in brackets refer to the texts below. Where an expression has
alternatives, each of them may be chosen."""


def expression_of(crates: list[Crate], own: list[str]) -> str:
    """The licence expression of the package."""
    parts = {part for crate in crates for part in conjuncts(crate.expression)}
    return conjunction([*own, *sorted(parts - set(own))])


def standard_library_notices() -> str:
    """The notices of Rust's standard library, as text."""
    notices = pathlib.Path(output_of("rustc", "--print", "sysroot").strip()) / "share" / "doc" / "rust" / "COPYRIGHT-library.html"
    if not notices.is_file():
        raise Missing(f"no notices of Rust's standard library: {notices}: use a toolchain of rustup, which has them")
    body = notices.read_text(encoding="utf-8").partition("<body>")[2]
    lines = [html.unescape(line).rstrip() for line in re.sub(r"<[^>]*>", "", body).splitlines()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("--output", required=True, type=pathlib.Path)
    parser.add_argument("--product", choices=list(PRODUCTS), default="programs")
    arguments = parser.parse_args()
    product = PRODUCTS[arguments.product]
    try:
        crates = linked_crates(arguments.target, product.crates)
        text_in = TEXT_IN
        if arguments.product != "programs":
            # The programs have all of our crates but one, and show which exceptions are needed.
            linked = {crate.name for crate in crates}
            text_in = {name: other for name, other in TEXT_IN.items() if name in linked}
        add_texts_of_others(crates, text_in)
        title = "Third-party software in Millstream"
        text = document(crates, standard_library_notices(), title, product.name)
    except Missing as missing:
        sys.exit(f"packaging/third_party.py: {missing}")
    arguments.output.write_text(text, encoding="utf-8")
    print(expression_of(crates, product.own_licences))


if __name__ == "__main__":
    main()
