# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Several bases: which one a file is of, and each command on the right one."""

import re
import shutil
from dataclasses import replace

import pytest
from patchset.export import exported
from patchset.overlay import run_time
from patchset.pr import request
from patchset.project import BRANCH, Project, sha256
from patchset.recognise import by_date, nearest, recognise
from patchset.report import Refusal
from support.synthetic import (
    BODY,
    FILE,
    MODULE,
    MODULES,
    ROOT,
    TEST_FILE,
    World,
    add_later,
    cover,
    git,
    statuses,
    write,
)

MODULE_PATH = f"{MODULES}/text_sample.py"


@pytest.fixture(scope="session")
def made(worlds, tmp_path_factory):
    """The sample with a second base, made once."""
    folder = tmp_path_factory.mktemp("later")
    sample = worlds("sample")
    shutil.copytree(sample.root, folder / "project", ignore=shutil.ignore_patterns("build"))
    shutil.copytree(sample.origin, folder / "upstream")
    world = World("later", folder / "project", folder / "upstream")
    return add_later(world)


@pytest.fixture
def later(made, tmp_path):
    """The same with a project of this test's own."""
    shutil.copytree(made.root, tmp_path / "project")
    return replace(made, root=tmp_path / "project")


def file_of(world, name):
    return git(world.origin, "show", f"{world.project.base(name).commit}:{FILE}") + "\n"


# Recognition.


@pytest.mark.parametrize("name", ["pin", "later"])
def test_recognise_each_base_vs_its_lines(later, name):
    found = recognise(later.project, file_of(later, name), "it")
    assert found.base.name == name and found.exact and found.share == 1
    assert f"base {name} (" in found.said and "at their numbers" in found.said
    moved = recognise(later.project, "# above\n" * 24 + file_of(later, name), "it")
    assert moved.base.name == name and not moved.exact
    assert "moved by +24 lines" in moved.said


def test_recognise_other_line_is_not_exact(later):
    """Marks say which base it is; any other line that is known says that it is not to the line."""
    text = file_of(later, "pin").replace("class Attention:", "class Attention2:")
    found = recognise(later.project, text, "it")
    assert found.base.name == "pin" and not found.exact and found.different == [640]


@pytest.mark.parametrize("name", ["pin", "later"])
def test_recognise_none_says_what_differs(later, name):
    text = file_of(later, name).replace("lengths", "sizes")
    with pytest.raises(Refusal) as error:
        recognise(later.project, text, "the file")
    for says in ("the file is of no known base", "base pin (", "base later (", "sizes"):
        assert says in str(error.value)
    assert nearest(later.project, text).base.name == name
    text = "\n".join(f"# {n}" for n in range(1800))
    with pytest.raises(Refusal, match=r"\(lines \d+-\d+\): not in the file"):
        recognise(later.project, text, "the file")


def test_recognise_empty_is_none(later):
    with pytest.raises(Refusal, match="no known base"):
        recognise(later.project, "", "nothing")


def test_real_bases_know_their_marks():
    """Each mark of a real base stands at one place in its own file, by its hashes."""
    for base in Project(ROOT).bases:
        hashes = [base.lines[n][0] for n in range(1, max(base.lines) + 1)]
        for name, (first, last) in base.facts["marks"].items():
            run = hashes[first - 1 : last]
            places = [i for i in range(len(hashes)) if hashes[i : i + len(run)] == run]
            assert places == [first - 1], (base.name, name)


def test_real_bases_lack_each_other_s_marks():
    bases = Project(ROOT).bases
    for base in bases:
        for other in bases:
            hashes = [digest for digest, _ in (other.lines[n] for n in sorted(other.lines))]
            runs = [
                [base.lines[n][0] for n in range(first, last + 1)]
                for first, last in base.facts["marks"].values()
            ]
            has = [any(hashes[i : i + len(run)] == run for i in range(len(hashes))) for run in runs]
            assert all(has) == (base is other)


@pytest.mark.parametrize(
    "version, says",
    [
        ("1.3.0rc25", "base pin (2026-09-04, has the padding bug)"),
        ("1.3.0rc29", "base pin"),
        ("1.4.0rc0", "no base for sure"),
        ("1.4.0rc1", "base main"),
        ("9.9", "not listed"),
        (None, "not listed"),
    ],
)
def test_by_date_says_what_a_release_is_like(version, says):
    assert says in by_date(Project(ROOT), version)


# check.


def test_check_tells_bases_and_origins(later):
    done = later.run("check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS pin/base" in done.stdout and "PASS later/base" in done.stdout
    assert re.search(r"PASS pin/hunk/0002-1 .* \d+ vouched for", done.stdout)
    # The module that the first patch adds is patched by the second: its lines are ours.
    assert re.search(r"PASS later/hunk/0002-\d text_sample.py line \d+: 1 ours", done.stdout)
    assert "graphs: 1 patches; one-launch: 1 patches" in done.stdout


def test_check_real_bases_tells_origins(capsys):
    from patchset import check
    from patchset.report import Report

    check.run(Project(ROOT), Report())
    out = capsys.readouterr().out
    assert "numbers assembled from stored texts, not seen on main" in out
    assert re.search(r"PASS pin/hunk/\d+-\d+ transformer_cosmos3.py line \d+: .*vouched for", out)


def test_check_reconstructed_lines_named(later):
    """A hunk on lines that only the second table has says so."""
    folder = later.base.folder
    rows = (folder / "lines.tsv").read_text().splitlines(keepends=True)
    write(folder / "sure.tsv", "".join(rows[1:4] + rows[648:655]))
    digest = sha256((folder / "sure.tsv").read_bytes())
    head = "[base.later.tables]\n"
    before, after = (later.root / "UPSTREAM").read_text().split(head)
    sure = f'"sure.tsv" = ["{digest}", "vouched for"]\n'
    after = after.replace("vouched for", "reconstructed", 1)
    write(later.root / "UPSTREAM", before + head + sure + after)
    done = later.run("check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"PASS later/hunk/0001-1 .*: 1 reconstructed, 2 vouched for", done.stdout), (
        done.stdout
    )
    # A table that contradicts the surer one fails.
    rows[648] = f"648\t{'0' * 16}\n"
    write(folder / "lines.tsv", "".join(rows))
    assert statuses(later.run("check").stdout)["later/tables"] == "FAIL"


def test_check_base_without_series_skips(later):
    for path in (*later.base.folder.glob("*.patch"), later.base.folder / "series"):
        path.unlink()
    done = later.run("check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SKIP later/series no patches yet" in done.stdout
    assert later.run("export", "--check").returncode == 0


@pytest.mark.parametrize("kind", ["left-over", "without-comments"])
def test_check_base_half_made_fails(later, kind):
    series = later.base.folder / "series"
    series.unlink() if kind == "left-over" else series.write_text("")
    assert statuses(later.run("check").stdout)["later/series"] == "FAIL"


def test_check_request_begun_twice_fails(later):
    path = later.base.folder / later.base.series[1]
    path.write_text(path.read_text().replace("Request: one-launch", "Request: graphs"))
    assert statuses(later.run("check").stdout)["later/requests"] == "FAIL"


# Commands.


@pytest.mark.parametrize("name", ["pin", "later"])
def test_apply_takes_the_base_s_series(later, tmp_path, name):
    world = replace(later, base_name=name)
    checkout = world.checkout(tmp_path / "checkout")
    done = world.run("apply", "--dir", checkout)
    assert done.returncode == 0 and f"PASS base base {name} (" in done.stdout, done.stderr
    subjects = [patch.subject for patch in world.base.patches]
    log = git(checkout, "log", "--reverse", "--format=%s", f"{world.base.commit}..HEAD")
    assert log.split("\n") == subjects
    assert (checkout / MODULE_PATH).read_text() == MODULE
    assert f"already, to base {name} (" in world.run("apply", "--dir", checkout).stdout
    done = world.run("unapply", "--dir", checkout)
    assert done.returncode == 0 and f"base {name} (" in done.stdout
    assert git(checkout, "rev-parse", "HEAD") == world.base.commit


def test_apply_by_lines_not_by_commit(later, tmp_path):
    """Another commit with a base's lines is that base; a base's commit with other lines is not."""
    checkout = later.checkout(tmp_path / "checkout")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "another")
    assert later.run("apply", "--dir", checkout).returncode == 0
    assert later.run("unapply", "--dir", checkout).returncode == 0
    write(checkout / FILE, file_of(later, "later").replace("lengths", "sizes"))
    git(checkout, "commit", "-qam", "other")
    done = later.run("apply", "--dir", checkout)
    assert done.returncode == 2 and "no known base" in done.stderr and "sizes" in done.stderr


def test_apply_base_without_patches_refused(later, tmp_path):
    checkout = later.checkout(tmp_path / "checkout")
    (later.base.folder / "series").unlink()
    done = later.run("apply", "--dir", checkout)
    assert done.returncode == 2 and re.search(r"base later \(.*\) has no patches yet", done.stderr)
    done = later.run("check-upstream", "--file", checkout / FILE)
    assert done.returncode == 0 and "PASS base" in done.stdout and "SKIP hunks" in done.stdout


@pytest.mark.parametrize("name", ["pin", "later"])
def test_check_upstream_takes_the_nearest(later, tmp_path, name):
    copy = tmp_path / "copy.py"
    write(copy, file_of(later, name))
    done = later.run("check-upstream", "--file", copy)
    assert done.returncode == 0 and f"PASS base base {name} (" in done.stdout
    write(copy, file_of(later, name).replace("lengths", "sizes"))
    done = later.run("check-upstream", "--file", copy)
    assert done.returncode == 1 and f"FAIL base not base {name} (" in done.stdout
    assert "sizes" in done.stderr


def test_tree_refresh_round_trip_of_each_base(later, tmp_path):
    for name in ("pin", "later"):
        pinned, tree = tmp_path / f"{name}.py", tmp_path / name
        write(pinned, file_of(later, name))
        before = {p: p.read_bytes() for p in (later.root / "patches").rglob("*") if p.is_file()}
        assert later.run("tree", tree, "--pinned", pinned).returncode == 0
        done = later.run("refresh", "--tree", tree)
        assert done.returncode == 0 and f"{name}/refresh/0001" in done.stdout, done.stderr
        assert before == {p: p.read_bytes() for p in before}


def test_refresh_takes_the_base_below_head(later, tmp_path):
    """A checkout of one base that has the other's commit too."""
    checkout = replace(later, base_name="pin").checkout(tmp_path / "checkout")
    assert git(checkout, "rev-parse", later.base.commit)
    assert later.run("apply", "--dir", checkout).returncode == 0
    done = later.run("refresh", "--tree", checkout)
    assert done.returncode == 0 and "pin/refresh/0001" in done.stdout


def test_adding_a_base_as_documented(later, tmp_path):
    """Table, facts, tree, commits, refresh, cover: the steps of patches/README.md."""
    file, folder = tmp_path / "newer.py", later.root / "patches" / "newer"
    text = file_of(later, "later").replace("    host = max(mask)", "    host = sorted(mask)[-1]")
    write(file, text)
    done = later.run("check-upstream", "--file", file, "--base", "pin")
    assert done.returncode == 1 and "FAIL base not base pin (" in done.stdout
    assert later.run("check-upstream", "--file", file, "--base", "none").returncode == 2
    table = later.run("table", file).stdout
    write(folder / "all.tsv", table)
    number = text.split("\n").index("    host = sorted(mask)[-1]") + 1
    facts = {
        "newer": 'commit = "0123456789"\ndate = "2026-11-01"\nstate = "newer"\nsizes = [50, 50]',
        "newer.tables": f'"all.tsv" = ["{sha256(table.encode())}", "seen"]',
        "newer.marks": f"longest = [{number}, {number}]",
    }
    upstream = later.root / "UPSTREAM"
    told = "".join(f"\n[base.{name}]\n{lines}\n" for name, lines in facts.items())
    write(upstream, upstream.read_text() + told)
    done = later.run("check")
    assert done.returncode == 0 and "SKIP newer/series no patches yet" in done.stdout, done.stderr
    # Both bases have their marks in it; the surer one has more of its lines.
    assert recognise(later.project, text, "it").base.name == "newer"
    tree = tmp_path / "tree"
    assert later.run("tree", tree, "--pinned", file).returncode == 0
    write(tree / MODULE_PATH, MODULE)
    write(tree / FILE, (tree / FILE).read_text().replace("sorted(mask)[-1]", "max(mask)"))
    git(tree, "add", "-A", ".")
    git(tree, "commit", "-qm", f"Take the longest\n\n{BODY}Pull-Request: longest")
    assert later.run("refresh", "--tree", tree).returncode == 0
    assert statuses(later.run("check").stdout)["newer/requests"] == "FAIL"
    cover(later.root, "newer", "longest")
    done = later.run("check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"PASS newer/hunk/0001-1 \S+ line \d+: 3 seen", done.stdout)


# overlay/ and export: a change goes into the patch whose lines it changes.


def edited(world, old, new):
    path = world.root / "overlay" / MODULE_PATH
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def lines_of(world, number):
    patch = world.base.patches[number]
    return [
        (tag, text)
        for diff in patch.files
        if diff.path == MODULE_PATH
        for hunk in diff.hunks
        for tag, text in hunk.lines
    ]


@pytest.mark.parametrize(
    "old, new, owner",
    [
        ("Lengths of a prompt.", "How long a prompt is.", 0),
        ("        self.lengths = lengths\n", "        self.lengths = lengths\n\n", 0),
        ('    return "patched"', '    return "patched"  # always', 1),
        ('    return "patched"\n', '    attn = "patched"\n    return attn\n', 1),
    ],
)
def test_export_change_vs_the_patch_it_is_in(later, old, new, owner):
    before = [lines_of(later, number) for number in (0, 1)]
    edited(later, old, new)
    assert later.run("export", "--check").returncode == 1
    assert statuses(later.run("check").stdout)["later/overlay"] == "FAIL"
    done = later.run("export")
    assert done.returncode == 0, done.stderr
    done = later.run("check")
    assert done.returncode == 0, done.stdout + done.stderr
    after = [lines_of(later, number) for number in (0, 1)]
    assert after[owner] != before[owner] and after[1 - owner] == before[1 - owner]


def test_export_removed_function_vs_both_patches(later):
    """The later patch's part goes, and with it the diff; then the whole module."""
    edited(later, MODULE[MODULE.index("\n\ndef install") :], "")
    assert exported(later.base)[1].files != later.base.patches[1].files
    assert MODULE_PATH not in [diff.path for diff in exported(later.base)[1].files]
    (later.root / "overlay" / MODULE_PATH).unlink()
    assert not [d for p in exported(later.base) for d in p.files if d.path == MODULE_PATH]


# Pull requests.


@pytest.fixture
def ready(later, tmp_path):
    import test_patchset_pr

    git(later.root, "init", "-q", ".")
    git(later.root, "add", "-A", ".")
    git(later.root, "commit", "-qm", "project")
    for kind in ("parity", "bench"):
        test_patchset_pr.result(later, kind)
    checkout = later.checkout(tmp_path / "checkout")
    assert later.run("apply", "--dir", checkout).returncode == 0
    return later, checkout


def test_pr_each_request_vs_its_commits(ready):
    world, checkout = ready
    for name, own in (("graphs", "Keep graphs fresh"), ("one-launch", "Launch once")):
        done = world.run("pr", "--dir", checkout, "--pr", name)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 commits" in done.stdout and "on base later (" in done.stdout
        text = (world.root / "build" / "pr" / f"later-{name}" / "cover.md").read_text()
        assert f"- {own}\n" in text
        assert TEST_FILE.replace("sample", name.replace("-", "_")) in text
        assert text.count("- `tests/") == 1
    log = git(checkout, "log", "--format=%s%n%b", f"{world.base.commit}..{BRANCH}-pr-one-launch")
    assert "Keep graphs fresh" in log and "Launch once" in log and "Pull-Request" not in log
    first = git(checkout, "rev-parse", f"{BRANCH}-pr-graphs")
    assert git(checkout, "rev-parse", f"{BRANCH}-pr-one-launch^") == first


def test_pr_cover_vs_results_and_releases_of_its_base(ready):
    """Of results on a checkout's files those of its own base; a host's speak for every base."""
    import test_patchset_pr

    world, checkout = ready
    for day, base in (("01", "pin"), ("02", "later"), ("03", None)):
        checks = [{"name": f"on-{base}", "status": "PASS", "measured": 2.0, "limit": 1.0}]
        changes = {"command": f"make parity {base}", "checks": checks, "tables": None}
        changes |= {"checkout": base and {"base": base}}
        test_patchset_pr.result(world, "parity", f"2026-12-{day}T00:00:00+00:00", **changes)
    releases = '\n[releases]\n"1.4.0rc0" = "unclear"\n"1.4.0rc1" = "later"\n'
    write(world.root / "UPSTREAM", (world.root / "UPSTREAM").read_text() + releases)
    done = world.run("pr", "--dir", checkout)
    assert statuses(done.stdout)["pr/cover-results"] == "PASS", done.stderr
    text = (world.root / "build" / "pr" / "later-graphs" / "cover.md").read_text()
    assert "on-later" in text and "on-None" in text and "on-pin" not in text
    assert "(by their dates: 1.4.0rc1, 1.4.0rc0 unclear)" in text


def test_real_covers_name_their_releases():
    for base in Project(ROOT).bases:
        for name in base.requests:
            assert "{{releases}}" in request(base, name).template[1], (base.name, name)


def test_pr_unknown_request_refused(ready):
    world, checkout = ready
    done = world.run("pr", "--dir", checkout, "--pr", "ring")
    assert done.returncode == 2 and "PR=graphs or PR=one-launch" in done.stderr


def test_pr_default_is_the_first(ready):
    world, checkout = ready
    assert world.run("pr", "--dir", checkout).returncode == 0
    assert (world.root / "build" / "pr" / "later-graphs" / "title.txt").exists()


def test_check_pr_lower_request_changed_fails(ready):
    world, checkout = ready
    assert world.run("pr", "--dir", checkout, "--pr", "one-launch").returncode == 0
    branch = f"{BRANCH}-pr-one-launch"
    git(checkout, "checkout", "-q", "--detach", f"{branch}~1")
    write(checkout / MODULE_PATH, "# other\n")
    git(checkout, "commit", "-q", "--amend", "-a", "--no-edit")
    git(checkout, "branch", "-f", branch)
    git(checkout, "checkout", "-q", BRANCH)
    done = world.run("check-pr", "--dir", checkout, "--pr", "one-launch")
    assert done.returncode == 1 and "does not stand on the requests before it" in done.stderr


# The overlay.


def installed(later, folder, name, version):
    """A package with a base's file, of a release; UPSTREAM says that 1.4.0rc0 is unclear."""
    package = folder / "tensorrt_llm"
    write(folder / FILE, file_of(later, name))
    write(package / "version.py", f'__version__ = "{version}"\n')
    releases = '\n[releases]\n"1.4.0rc0" = "unclear"\n"1.4.0rc1" = "later"\n'
    write(later.root / "UPSTREAM", (later.root / "UPSTREAM").read_text() + releases)
    return package


def overlay(later, folder, package, *args):
    return later.run("overlay", "--package", package, "--out", folder / "out", *args)


@pytest.mark.parametrize(
    "name, version, says",
    [
        ("pin", "1.3.0rc26", ["the padding bug is there", "fix: Attend to exact text keys"]),
        ("pin", "1.4.0rc0", ["the padding bug is there", "is like no base for sure"]),
        ("later", "1.4.0rc0", ["the padding bug is gone", "is like no base for sure"]),
        ("later", "1.4.0rc1", ["the padding bug is gone", "is like base later (", "one-launch: "]),
    ],
)
def test_overlay_says_what_a_release_has_and_gets(later, tmp_path, name, version, says):
    done = overlay(later, tmp_path, installed(later, tmp_path, name, version))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"PASS overlay/base base {name} (" in done.stdout
    for text in says:
        assert text in done.stderr
    assert ("graphs: " in done.stderr) == (name == "later")
    hook = run_time()
    found = hook.Series.read(tmp_path / "out" / "cosmos3_text_kv").match(tmp_path / "tensorrt_llm")
    assert found[0]["name"] == name and found[2] == version


@pytest.mark.parametrize(
    "name, version, says",
    [
        # By its date another base, or listed nowhere: the lines say which it is all the same.
        ("pin", "1.4.0rc1", "nobody has tried with base pin (2026-09-04, pin is so); release"),
        ("later", "1.3.0rc26", "is like base pin (2026-09-04, pin is so) by its date"),
        ("later", "1.4.0rc2", "release 1.4.0rc2 is not listed in UPSTREAM"),
    ],
)
def test_overlay_version_of_another_base_refused(later, tmp_path, name, version, says):
    package = installed(later, tmp_path, name, version)
    done = overlay(later, tmp_path, package)
    assert done.returncode == 2 and not (tmp_path / "out").exists()
    assert f"PASS overlay/base base {name} (" in done.stdout and says in done.stderr
    assert overlay(later, tmp_path, package, "--accept-version", version).returncode == 0


def test_overlay_unknown_file_is_told_what_differs(later, tmp_path):
    package = installed(later, tmp_path, "later", "1.4.0rc1")
    write(tmp_path / FILE, file_of(later, "later").replace("lengths", "sizes"))
    done = overlay(later, tmp_path, package)
    assert done.returncode == 2 and "FAIL overlay/base not base later (" in done.stdout
    assert "one_by_one" in done.stderr and "n in sizes" in done.stderr
    assert "padding bug" not in done.stderr


def test_wheel_says_what_each_base_gets(later, tmp_path):
    done = later.run("wheel", "--out", tmp_path)
    assert done.returncode == 0 and "PASS wheel/made" in done.stdout
    for text in ("the padding bug is there", "the padding bug is gone", "one-launch: "):
        assert text in done.stderr
