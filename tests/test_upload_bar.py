"""The bar of a long upload on a terminal: `common.terminal`."""

import sys

import pytest

from securemedian.common import terminal
from securemedian.common.terminal import shown_upload, unseen


def test_nothing_is_shown_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_upload() as show:
        assert show is unseen
        show(1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_long_upload_is_shown_and_a_short_one_is_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with shown_upload() as show:
        show(1_000_000, 4_000_000)
        show(4_000_000, 4_000_000)
    assert "uploading" not in capsys.readouterr().err
    monkeypatch.setattr(terminal, "UPLOAD_S", 0.0)
    with shown_upload() as show:
        for sent in (1_000_000, 3_000_000, 4_000_000):
            show(sent, 4_000_000)
        # the next one begins again
        show(500_000, 2_000_000)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "uploading" in shown.err and "3.0/4.0 MB" in shown.err and "0.5/2.0" in shown.err
