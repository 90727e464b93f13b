"""The arguments of every command. Imports nothing heavy: `--help` must answer at once."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuild.cli import following, image_options
from imagebuild.project import BUILDER
from imagebuild.upstream import PLATFORMS

if TYPE_CHECKING:
    from collections.abc import Sequence

# Each command's module in imagebuild.cli.
COMMANDS = {
    "build": "build",
    "check": "check",
    "show": "show",
    "checkpoint": "checkpoint",
    "verify": "verify",
    "pull": "pull",
    "reproduce": "reproduce",
    "lock": "lock",
    "edit": "edit",
    "export": "edit",
    **following.COMMANDS,
}
TARGETS = ("tree", "wheel", "layer", "image", "official")

_DESCRIPTION = """\
A pinned vLLM release, a typed and tested patch set for consumer Blackwell (SM120/SM121), and what
comes out of the two: a wheel and an image layer, the same bytes on every machine.

With no command, `build` is meant:  python build.py  =  python build.py build v0.33.0
"""
_EPILOG = """\
exit status: 0 done; 2 usage; 10-15 inputs; 20-24 patches; 30-32 artifacts; 40-41 machine;
130 ended. docs/exit-codes.md lists them; every error names the file, what was expected, what was
found and the next command.
"""


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str, more: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.\n\n{more}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
    return parser


def _add_build(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    build = _add(
        commands,
        "build",
        "make the wheel, the overlay layer and the image of a line",
        "Downloads are verified while they arrive, kept by digest in the cache and resumed. What\n"
        "is in dist/ and still right is left as it is. Targets that are named must be made;\n"
        "without --target, those that cannot be made here are listed with the reason.",
    )
    build.add_argument("line", nargs="?", help="release line, such as v0.33.0; default: the lock's")
    build.add_argument(
        "--target",
        action="append",
        choices=TARGETS,
        help="make only this; may be given several times; default: wheel, layer, image",
    )
    build.add_argument(
        "--platform",
        action="append",
        choices=PLATFORMS,
        help="may be given several times: then the images stand behind one index, too; "
        f"default: {PLATFORMS[0]}",
    )
    build.add_argument(
        "--source",
        default="sdist",
        metavar="sdist|git|git:REPO|DIR",
        help="where the release's files come from: the package index, upstream's git repository, "
        "a mirror of it, or a folder; anything but the sdist is accepted only if its files "
        "equal the sdist's (default: %(default)s)",
    )
    build.add_argument(
        "--dist", type=Path, help="where artifacts go; default: dist/ beside build.py"
    )
    build.add_argument(
        "--base",
        type=Path,
        metavar="LAYOUT",
        help="an OCI layout that holds the official image, instead of the registry",
    )
    build.add_argument(
        "--export",
        nargs="?",
        const="layout",
        choices=("layout", "archive"),
        help="image: whole, with the base's layers: as an OCI layout (the default), or as one file "
        "that `docker load`, skopeo and podman read",
    )
    build.add_argument(
        "--push",
        metavar="REF",
        help="image: push it to REGISTRY/NAME[:TAG]; only what is not there yet is sent, and the "
        "tag is set when all of it is there; default tag: the version",
    )
    build.add_argument(
        "--sign",
        metavar="KEY",
        help="sign what is pushed with cosign: a key's file, or `keyless` in a CI with an identity",
    )
    build.add_argument("--record", action="store_true", help="note in release.lock what was pushed")
    build.add_argument(
        "--pull-request",
        action="store_true",
        help="with --record, in a workflow: propose the changed release.lock to main",
    )
    build.add_argument(
        "--builder-id",
        metavar="URI",
        default=BUILDER,
        help="who builds, for the provenance (default: %(default)s)",
    )
    image_options.add_official(build)
    build.add_argument("--offline", action="store_true", help="use the cache only, no network")
    build.add_argument(
        "--no-wait",
        action="store_true",
        help="fail at once if another build works in the same folder, instead of waiting",
    )


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="build.py",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_build(commands)

    check = _add(
        commands,
        "check",
        "say which patches apply",
        "Each line's series against its own sdist, or against another release or folder. Writes\n"
        "nothing outside the cache. The exit status is that of the first patch that fails.",
    )
    check.add_argument("lines", nargs="*", metavar="LINE", help="default: all lines")
    against = check.add_mutually_exclusive_group()
    against.add_argument("--release", metavar="X", help="another vLLM release, such as 0.32.0")
    against.add_argument("--tree", type=Path, metavar="DIR", help="a vLLM source tree; only read")
    check.add_argument("--offline", action="store_true", help="use the cache only, no network")

    show = _add(
        commands,
        "show",
        "say what a line's patches are for, their status and their evidence",
        "Without a line: the lines.",
    )
    show.add_argument("line", nargs="?", help="release line, such as v0.33.0")
    show.add_argument("patch", nargs="?", help="one patch, with everything that is known of it")
    show.add_argument(
        "--markdown", action="store_true", help="print docs/patches.md, the page of all lines"
    )

    checkpoint = _add(
        commands,
        "checkpoint",
        "say what stock and patched vLLM make of a quantized checkpoint",
        "Reads config.json and the headers of the safetensors files only, from a folder or the\n"
        "Hugging Face hub (pip install -e '.[hub]'). Needs neither torch nor vLLM.",
    )
    checkpoint.add_argument(
        "checkpoint", metavar="PATH|OWNER/NAME", help="a folder, or a repository of the hub"
    )
    checkpoint.add_argument("--revision", help="branch, tag or commit; default: main")
    checkpoint.add_argument("--line", help="release line, such as v0.33.0; default: the lock's")

    verify = _add(
        commands,
        "verify",
        "compare a wheel or an image with the locks, file by file",
        "Trusts no label and no file name: everything that can be computed is computed.",
    )
    verify.add_argument(
        "subject",
        metavar="WHAT",
        help="a .whl file; an image: the folder of an OCI layout, an archive of one (also of "
        "`docker save`), docker-daemon:NAME, or REGISTRY/NAME@sha256:DIGEST",
    )
    verify.add_argument(
        "--manifests-only",
        action="store_true",
        help="do not read the base's layers from the registry (some 10 GB)",
    )
    verify.add_argument(
        "--test-results",
        type=Path,
        metavar="FOLDER",
        help="show the test results (*.intoto.json, as `python -m serve verify` writes them) that "
        "are about this artifact, and their age",
    )
    image_options.add_comparison(verify)
    image_options.add_signer(verify)

    pull = _add(
        commands,
        "pull",
        "fetch an image from a registry, if it is what the locks say",
        "Verified first: nothing of a wrong image is written. A tag is resolved once, and the\n"
        "digest counts from there on.",
    )
    pull.add_argument("ref", metavar="REF", help="REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:DIGEST")
    into = pull.add_mutually_exclusive_group()
    into.add_argument(
        "--to", type=Path, metavar="DIR", help="an OCI layout; default: dist/pulled-DIGEST"
    )
    into.add_argument(
        "--load", action="store_true", help="into the running Docker, by `docker pull`"
    )
    image_options.add_comparison(pull)
    image_options.add_signer(pull)

    reproduce = _add(
        commands,
        "reproduce",
        "make again what was published, and compare",
        "What release.lock lists: wheels and images by digest. Where an image differs, its layer\n"
        "is fetched and the first file that differs is named.",
    )
    reproduce.add_argument("lines", nargs="*", metavar="LINE", help="default: all lines")
    reproduce.add_argument(
        "--base", type=Path, metavar="LAYOUT", help="an OCI layout that holds the official image"
    )
    reproduce.add_argument("--offline", action="store_true", help="use the cache only, no network")

    lock = _add(
        commands,
        "lock",
        "refresh the pins that can be resolved now",
        "Asks the package index, upstream's repository and the registry, derives the checksums,\n"
        "and shows what is different. Only --write changes upstream.lock and checksums.lock.",
    )
    lock.add_argument("lines", nargs="*", metavar="LINE", help="default: all lines")
    lock.add_argument("--write", action="store_true", help="take the differences over")
    lock.add_argument("--offline", action="store_true", help="use the cache only, no network")

    edit = _add(
        commands,
        "edit",
        "open a line's series as commits in a scratch git repository",
        "Amend, reorder and rebase there as you like, then export.",
    )
    export = _add(
        commands,
        "export",
        "write the commits of a scratch repository back as patches",
        "Byte for byte what was there, where nothing was changed. Updates checksums.lock.",
    )
    export.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    for parser_of in (edit, export):
        parser_of.add_argument("line", help="release line, such as v0.33.0")
        parser_of.add_argument(
            "--dir", type=Path, metavar="DIR", help="the scratch repository; default: in the cache"
        )
        parser_of.add_argument("--offline", action="store_true", help="use the cache only")
    following.add(functools.partial(_add, commands))
    return parser


def with_default_command(argv: Sequence[str]) -> list[str]:
    """Return `argv` with `build` put in front where no command is named."""
    if argv and argv[0] in (*COMMANDS, "-h", "--help"):
        return list(argv)
    return ["build", *argv]
