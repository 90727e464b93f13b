"""The options about images that several commands share, and those of the official build."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def add_official(build: argparse.ArgumentParser) -> None:
    """Add the options of the target `official`."""
    group = build.add_argument_group(
        "official", "upstream's own Dockerfile over the patched tree, with docker buildx"
    )
    group.add_argument(
        "--dry-run", action="store_true", help="prove what can be proven without building"
    )
    group.add_argument("--builder", metavar="NAME", help="a buildx builder, such as a remote one")
    group.add_argument("--cache-from", action="append", metavar="SPEC", help="as buildx takes it")
    group.add_argument("--cache-to", action="append", metavar="SPEC", help="as buildx takes it")
    group.add_argument(
        "--build-arg", action="append", metavar="NAME=VALUE", help="such as sccache's"
    )
    group.add_argument("--max-jobs", type=int, metavar="N", help="default: by cores and memory")
    group.add_argument("--nvcc-threads", type=int, metavar="N", help="default: by architectures")
    group.add_argument("--network", metavar="MODE", help="of the build's steps, such as `host`")
    group.add_argument("--load", action="store_true", help="give the image to the running Docker")
    group.add_argument("--output", type=Path, metavar="DIR", help="write it as an OCI archive")


def add_comparison(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what an artifact is compared with."""
    parser.add_argument(
        "--base", type=Path, metavar="LAYOUT", help="an OCI layout that holds the official image"
    )
    parser.add_argument("--line", help="default: the line whose version the artifact has")
    parser.add_argument("--offline", action="store_true", help="use the cache only, no network")


def add_signer(parser: argparse.ArgumentParser) -> None:
    """Add the options that say who must have signed an image in a registry."""
    parser.add_argument("--key", type=Path, metavar="FILE", help="the signer's public key (cosign)")
    parser.add_argument("--identity", help="of a keyless signature: the certificate's identity")
    parser.add_argument("--issuer", help="of a keyless signature: who vouched for the identity")
