"""The patch reader takes a commit in mail form that changes text, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagebuild.errors import PatchFormatError
from imagebuild.patching import diff
from tests.support import patching, tiny

NEWLINE = b"\n"
GOOD = (
    patching.HEAD
    + b"""\
diff --git a/vllm/file.py b/vllm/file.py
index 1111111..2222222 100644
--- a/vllm/file.py
+++ b/vllm/file.py
@@ -1,4 +1,4 @@
 a
 b
-c
+C
 d
@@ -11,3 +11,4 @@ def section():
 k
 l
+m
 n
"""
)


def parsed(data: bytes) -> diff.PatchText:
    return diff.parse(data, Path("a.patch"))


def refused(data: bytes) -> PatchFormatError:
    with pytest.raises(PatchFormatError) as caught:
        parsed(data)
    assert str(caught.value.file).startswith("a.patch:")
    assert caught.value.expected
    assert caught.value.found
    assert caught.value.next_command
    return caught.value


def replaced(old: bytes, new: bytes) -> bytes:
    assert GOOD.count(old) >= 1
    return GOOD.replace(old, new, 1)


def test_a_patch_is_read() -> None:
    text = parsed(GOOD)
    assert (text.subject, text.body) == ("Do one thing", "It was wrong before.")
    (file,) = text.files
    assert file.path == "vllm/file.py"
    first, second = file.hunks
    assert first.pre == (b"a\n", b"b\n", b"c\n", b"d\n")
    assert first.post == (b"a\n", b"b\n", b"C\n", b"d\n")
    assert (second.old_start, second.section) == (11, b"def section():")
    assert second.text() == " k\n l\n+m\n n\n"


def test_what_git_writes_for_a_project_is_read() -> None:
    for name, data in tiny.mails(tiny.CHANGES).items():
        change = next(change for change in tiny.CHANGES if change.name == name)
        text = parsed(data)
        assert (text.subject, text.body) == (change.subject, change.body)
        assert {file.path for file in text.files} == {edit.path for edit in change.edits}


def test_a_folded_subject_is_one_line() -> None:
    assert parsed(replaced(b"Do one thing", b"Do one\n thing")).subject == "Do one thing"


def test_a_subject_keeps_its_own_brackets() -> None:
    data = replaced(b"[PATCH] Do", b"[PATCH v2 3/4] [Bugfix] Do")
    assert parsed(data).subject == "[Bugfix] Do one thing"


def test_a_signature_at_the_end_is_read() -> None:
    assert len(parsed(GOOD + b"-- \n2.39.5 (Apple Git-154)\n\n").files) == 1


def test_a_message_ends_at_three_dashes() -> None:
    data = replaced(b"before.\n", b"before.\n---\n vllm/file.py | 2 +-\n")
    assert parsed(data).body == "It was wrong before."


def test_carriage_returns_stay_in_their_lines() -> None:
    hunk = parsed(replaced(b"-c\n+C\n", b"-c\r\n+C\r\n")).files[0].hunks[0]
    assert hunk.pre[2] == b"c\r\n"


def test_an_empty_context_line_may_have_lost_its_mark() -> None:
    hunk = parsed(replaced(b" b\n", b"\n")).files[0].hunks[0]
    assert hunk.pre[1] == b"\n"


def test_a_line_without_newline_is_read() -> None:
    data = GOOD + b"\\ No newline at end of file\n"
    assert parsed(data).files[0].hunks[1].pre[-1] == b"n"


BROKEN = {
    "empty": b"",
    "no-mail": GOOD[len(patching.HEAD) :],
    "no-subject": replaced(b"Subject:", b"Object:"),
    "subject-only": replaced(b"It was wrong before.\n", b""),
    "no-diff": patching.HEAD,
    "message-not-utf-8": replaced(b"wrong", b"\xff"),
    "mail-with-carriage-returns": GOOD.replace(b"\n", b"\r\n"),
    "two-paths": replaced(b"b/vllm/file.py\n", b"b/vllm/other.py\n"),
    "old-path-differs": replaced(b"--- a/vllm/file.py", b"--- a/vllm/other.py"),
    "new-path-differs": replaced(b"+++ b/vllm/file.py", b"+++ b/vllm/other.py"),
    "quoted-path": GOOD.replace(b"a/vllm/file.py", b'"a/vllm/f\\303\\244.py"'),
    "path-with-space": GOOD.replace(b"vllm/file.py", b"vllm/a file.py"),
    "path-not-utf-8": GOOD.replace(b"vllm/file.py", b"vllm/\xff.py"),
    "path-up": GOOD.replace(b"vllm/file.py", b"../file.py"),
    "path-in-git": GOOD.replace(b"vllm/file.py", b".git/config"),
    "absolute-path": GOOD.replace(b"a/vllm/file.py", b"a//etc/passwd").replace(
        b"b/vllm/file.py", b"b//etc/passwd"
    ),
    "link": replaced(b"100644", b"120000"),
    "submodule": replaced(b"100644", b"160000"),
    "odd-index": replaced(b"index 1111111", b"index xyz"),
    "new-file": replaced(b"index ", b"new file mode 100644\nindex "),
    "deleted-file": replaced(b"index ", b"deleted file mode 100644\nindex "),
    "mode": replaced(b"index ", b"old mode 100644\nnew mode 100755\nindex "),
    "rename": replaced(b"index ", b"similarity index 90%\nrename from a\nindex "),
    "copy": replaced(b"index ", b"copy from a\nindex "),
    "binary": replaced(b"index ", b"GIT binary patch\nindex "),
    "binary-differ": replaced(b"index ", b"Binary files a and b differ\nindex "),
    "unknown-header": replaced(b"index ", b"weather: fine\nindex "),
    "no-hunk": GOOD[: GOOD.index(b"@@ -1,4")],
    "bad-hunk-header": replaced(b"@@ -1,4 +1,4 @@", b"@@ -1,x +1,4 @@"),
    "huge-hunk-number": replaced(b"@@ -1,4 +1,4 @@", b"@@ -1,9999999999 +1,4 @@"),
    "wrong-new-start": replaced(b"@@ -11,3 +11,4", b"@@ -11,3 +12,4"),
    "too-many-lines": replaced(b"@@ -1,4 +1,4", b"@@ -1,3 +1,3"),
    "too-few-lines": replaced(b"@@ -11,3 +11,4", b"@@ -11,4 +11,5"),
    "cut-in-a-line": GOOD[:-1],
    "cut-in-a-hunk": GOOD[:-4],
    "odd-mark": replaced(b" b\n", b"*b\n"),
    "context-only": replaced(b"+m\n", b"").replace(b"@@ -11,3 +11,4", b"@@ -11,3 +11,3"),
    "same-line-out-and-in": replaced(b"+C\n", b"+c\n"),
    "no-newline-inside": replaced(b" a\n", b" a\n\\ No newline at end of file\n"),
    "hunks-out-of-order": replaced(b"@@ -11,3 +11,4", b"@@ -1,3 +1,4"),
    "hunks-over-one-another": replaced(b"@@ -11,3 +11,4", b"@@ -4,3 +4,4"),
    "no-context": replaced(b" k\n l\n+m\n", b"+m\n").replace(b"@@ -11,3 +11,4", b"@@ -11,1 +11,2"),
    "same-file-twice": GOOD + GOOD[len(patching.HEAD) :],
    "two-mails": GOOD + GOOD,
    "text-behind": GOOD + b"and so on\n",
    "diff-behind-the-signature": GOOD + b"-- \n2.39.5\n\n" + GOOD[len(patching.HEAD) :],
    "signature-without-version": GOOD + b"-- \n",
}


def test_the_fixtures_are_broken_in_one_way_each() -> None:
    parsed(GOOD)
    assert len(set(BROKEN.values())) == len(BROKEN)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_patch_is_refused(name: str) -> None:
    refused(BROKEN[name])


def test_the_message_names_the_line() -> None:
    error = refused(BROKEN["odd-mark"])
    assert error.file == f"a.patch:{GOOD.split(NEWLINE).index(b' b') + 1}"
    assert error.found == "*b"


def test_a_new_file_is_sent_to_the_overlay() -> None:
    assert "overlay/" in str(refused(BROKEN["new-file"]).expected)


def test_ten_thousand_lines_of_blanks_in_a_subject_take_no_time_to_speak_of() -> None:
    blanks = b" \t" * 50_000
    assert parsed(replaced(b"Do one thing", blanks + b"x")).subject.endswith("x")
