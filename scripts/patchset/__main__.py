# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Command line: ``python -m patchset COMMAND`` with ``scripts/`` on the import path."""

import argparse
import sys
from pathlib import Path

from . import check, checkout, export, overlay, pr
from .git import GitError
from .patch import PatchError
from .project import Project, line_table
from .report import Misfit, Refusal, Report, note

ROOT = Path(__file__).resolve().parents[2]


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    top = argparse.ArgumentParser(prog="python -m patchset", description=__doc__)
    top.add_argument("--project", type=Path, default=ROOT, help="folder with UPSTREAM and patches/")
    commands = top.add_subparsers(dest="command", required=True)

    def add(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text)

    def directory(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--dir", type=Path, help="a checkout; default: a clone under build/")

    add("check", "check the series of every base offline against its line hashes")
    sub = add("export", "rewrite the new files in the patches from overlay/")
    sub.add_argument("--check", action="store_true", help="only tell what differs; exit 1 if any")
    add("table", "print the line table of a file").add_argument("file", type=Path)
    sub = add("tree", "make a small git checkout of a base's file, to edit its series in")
    sub.add_argument("folder", type=Path, help="the checkout to make")
    sub.add_argument("--pinned", type=Path, required=True, help="the base's file, or its tree")
    sub = add("refresh", "rewrite a base's patches from the commits of such a checkout")
    sub.add_argument("--tree", type=Path, required=True, help="the checkout")
    sub.add_argument("--base", help="commit below the series; default: tag base, or a base")
    sub = add("apply", "commit the series on a branch of its own and check it out")
    directory(sub)
    sub.add_argument(
        "--try", dest="anywhere", action="store_true", help="take a file of no base too"
    )
    sub.add_argument("--url", help="clone from here instead")
    sub = add("unapply", "go back to what was checked out before apply")
    directory(sub)
    sub = add("check-upstream", "tell which base a commit has, and whether hunks fit")
    directory(sub)
    sub.add_argument("--ref", help="branch, tag or commit; fetched if the checkout lacks it")
    sub.add_argument("--file", type=Path, help="hold it against this copy of the file instead")
    sub.add_argument("--base", help="take this base's series, whatever the file is of")
    sub.add_argument("--url", help="clone from here instead")

    def interpreter(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--python", help="the interpreter with tensorrt_llm; default: this one")

    for name, text in (
        (
            "overlay",
            "make a folder for PYTHONPATH that patches an installed tensorrt_llm on import",
        ),
        ("wheel", "make a wheel that does the same; looks at a tensorrt_llm only if one is named"),
    ):
        sub = add(name, text)
        interpreter(sub)
        sub.add_argument("--out", type=Path, help="the folder; default: build/overlay, or build")
        sub.add_argument("--package", type=Path, help="the package's folder, instead of --python")
        sub.add_argument("--accept-version", help="take this version too")
        sub.add_argument("--accept-digest", help="take a file with this sha256, if every hunk fits")
    interpreter(add("overlay-status", "tell which processes an overlay reaches, and for what"))
    for name, text in (
        ("pr", "prepare branch and cover text of a pull request, and check them"),
        ("check-pr", "check that branch and text again"),
    ):
        sub = add(name, text)
        directory(sub)
        sub.add_argument("--pr", help="which of the base's; default: its first")
    return top


def run(args: argparse.Namespace, project: Project, report: Report) -> int:
    """Run one command."""
    match args.command:
        case "check":
            return check.run(project, report)
        case "export":
            return export.export(project, report, args.check)
        case "table":
            print(line_table(args.file.read_bytes().decode()), end="")
            return 0
        case "tree":
            return export.tree(project, args.folder, args.pinned, report)
        case "refresh":
            return export.refresh(project, args.tree, args.base, report)
        case "apply":
            return checkout.apply(project, args.dir, report, args.anywhere, args.url)
        case "unapply":
            return checkout.unapply(project, args.dir, report)
        case "check-upstream":
            return checkout.check_upstream(project, args, report)
        case "overlay":
            return overlay.make(project, args, report)
        case "wheel":
            return overlay.make_wheel(project, args, report)
        case "overlay-status":
            return overlay.show_status(args)
        case "pr":
            return pr.prepare(project, args.dir, args.pr, report)
        case "check-pr":
            return pr.check_branch(project, args.dir, args.pr, report)
    raise AssertionError(args.command)


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, 1 a check failed, 2 usage."""
    args = parser().parse_args(argv)
    try:
        return run(args, Project(args.project.resolve()), Report())
    except (Misfit, PatchError) as error:
        note(f"failed: {error}")
        return 1
    except (Refusal, GitError, OSError) as error:
        note(f"refused: {error}")
        return 2
    except KeyboardInterrupt:
        note("interrupted; nothing is half done")
        return 130


if __name__ == "__main__":
    sys.exit(main())
