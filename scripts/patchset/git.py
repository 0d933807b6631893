# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Git, through its plumbing: nothing here touches a work tree, an index or a branch by itself."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .fit import patched, require_python
from .patch import Patch
from .project import join_lines, split_lines
from .report import Misfit, Refusal

# No hooks, no signing, no editor: the same commands give the same objects for everybody.
_SETTINGS = ("core.hooksPath=/dev/null", "core.quotePath=false", "core.fsmonitor=false")
_FOREIGN = ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")


class GitError(Exception):
    """A git command failed; the text has the command and what it said."""


class Git:
    """Git in one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(
        self,
        *args: str,
        stdin: str | bytes = b"",
        env: dict[str, str] | None = None,
        progress: bool = False,
        differs: bool = False,
    ) -> bytes:
        """Run git and return its standard output.

        Args:
            args: the command and its arguments.
            stdin: what it reads.
            env: variables in addition to the caller's.
            progress: let its standard error through instead of keeping it for the error.
            differs: status 1 is no failure but says that two files differ.

        Raises:
            GitError: it failed.
        """
        settings = [word for pair in _SETTINGS for word in ("-c", pair)]
        full = {k: v for k, v in os.environ.items() if k not in _FOREIGN}
        full |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1"}
        try:
            done = subprocess.run(
                ["git", *settings, *args],
                cwd=self.root,
                input=stdin.encode() if isinstance(stdin, str) else stdin,
                stdout=subprocess.PIPE,
                stderr=None if progress else subprocess.PIPE,
                env=full | (env or {}),
            )
        except FileNotFoundError as error:
            raise Refusal(f"cannot run git in {self.root}: {error}") from None
        if done.returncode not in range(1 + differs):
            said = "" if progress else done.stderr.decode(errors="replace").strip()
            raise GitError(f"git {' '.join(args[:4])}: {said or f'status {done.returncode}'}")
        return done.stdout

    def text(self, *args: str, **kwargs) -> str:
        """Run git and return its output as text without the last newline."""
        return self.run(*args, **kwargs).decode().rstrip("\n")

    def ask(self, *args: str) -> str | None:
        """Run git and return its output, or None where it fails: for questions."""
        try:
            return self.text(*args)
        except GitError:
            return None

    def path(self, name: str) -> Path:
        """Return the path of a file in the git directory of this work tree."""
        return self.root / self.text("rev-parse", "--git-path", name)

    def commit(self, name: str) -> str | None:
        """Return the id of a commit, or None."""
        return self.ask("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")

    def below_head(self, names: list[str]) -> str | None:
        """Return the id of the first of some commits that HEAD stands on, or None."""
        for commit in filter(None, map(self.commit, names)):
            if self.ask("merge-base", "--is-ancestor", commit, "HEAD") is not None:
                return commit
        return None

    def blob(self, commit: str, path: str) -> str:
        """Return the text of a file in a commit.

        Raises:
            Misfit: it is not there, or not UTF-8.
        """
        try:
            return self.run("cat-file", "blob", f"{commit}:{path}").decode()
        except (GitError, UnicodeDecodeError) as error:
            raise Misfit(f"{path} at {commit[:12]}: {error}") from None

    @contextmanager
    def index_of(self, commit: str) -> Iterator[dict[str, str]]:
        """Yield an environment with an index of its own that holds ``commit``'s tree."""
        with tempfile.TemporaryDirectory(prefix="patchset-") as folder:
            env = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
            self.run("read-tree", commit, env=env)
            yield env


def build(
    git: Git,
    base: str,
    patches: list[Patch],
    identity: Callable[[Patch], dict[str, str]],
    anywhere: bool = False,
) -> str:
    """Make one commit for each patch on top of ``base``, as objects only.

    Args:
        git: the repository.
        base: a commit id.
        patches: in order.
        identity: the GIT_AUTHOR_* and GIT_COMMITTER_* of a patch's commit.
        anywhere: take hunks that moved.

    Returns:
        The id of the last commit. It is a function of base, patches and identity alone.

    Raises:
        Misfit: a hunk does not fit, or a file that compiled no longer does.
    """
    parent = base
    with git.index_of(base) as env:
        for patch in patches:
            for diff in patch.files:
                mode = "100644"
                if diff.new:
                    if git.ask("cat-file", "-e", f"{parent}:{diff.path}") is not None:
                        raise Misfit(f"{patch.name}: {diff.path} is there already")
                    new = diff.text
                else:
                    old = git.blob(parent, diff.path)
                    new = join_lines(patched(split_lines(old), diff, anywhere))
                    mode = git.text("ls-tree", parent, "--", diff.path).split(" ")[0]
                    require_python(diff.path, old, new)
                blob = git.text("hash-object", "-w", "--stdin", stdin=new)
                entry = f"{mode},{blob},{diff.path}"
                git.run("update-index", "--add", "--cacheinfo", entry, env=env)
            tree = git.text("write-tree", "--missing-ok", env=env)
            args = ("commit-tree", tree, "-p", parent)
            parent = git.text(*args, stdin=patch.message(), env=identity(patch))
    return parent


def as_written(patch: Patch) -> dict[str, str]:
    """Identity of ``git am --committer-date-is-author-date``, with the author as committer.

    Fixed, so that the same series on the same commit always gives the same commit ids; that is
    how an applied checkout is recognised.
    """
    name, _, mail = patch.author.partition(" <")
    mail = mail.rstrip(">")
    return {
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", name), ("EMAIL", mail), ("DATE", patch.date))
    }
