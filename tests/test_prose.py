"""Plain English: no riddles, no inversions, few long sentences, in pages and code."""

from tests.prose import ROOT, blocks, files, findings, markdown, python, shell

LONG_AT_MOST = 20
WORDS_AT_MOST = {
    ("README.md",): 900,
    ("docs/threat-model.md",): 6550,
    ("docs/wire.md",): 3270,
    ("docs/protocols.md",): 4830,
    ("EXPERIMENTS.md",): 3120,
    ("docs/performance.md",): 1900,
    ("docs/choosing.md",): 1230,
    tuple(
        f"docs/{page}.md" for page in ("servers", "maintaining", "scaling", "troubleshooting")
    ): 4510,
}
"""As `wc -w` counts, by pages; docs/threat-model.md has 690 of them in the coordinator's table."""
ALL_WORDS_AT_MOST = 40_000


def test_sentences_begin_with_their_subject_say_no_banned_phrase_and_few_are_long() -> None:
    found = [finding for path in files() for block in blocks(path) for finding in findings(block)]
    wrong = [str(finding) for finding in found if finding.kind != "long"]
    assert not wrong, "\n".join(wrong)
    long = [str(finding) for finding in found if finding.kind == "long"]
    assert len(long) <= LONG_AT_MOST, "\n".join(long)


def test_pages_are_short() -> None:
    pages = {str(p.relative_to(ROOT)): p.read_text("utf-8") for p in files() if p.suffix == ".md"}
    for names, limit in WORDS_AT_MOST.items():
        assert sum(len(pages[name].split()) for name in names) <= limit, names
    assert sum(len(page.split()) for page in pages.values()) <= ALL_WORDS_AT_MOST


def test_what_is_wrong_is_found_wherever_it_stands() -> None:
    page = """# Where it is

What it takes is 3.
Is this fine? Where is it? It is, e.g. Where, no end.

    What stands in code counts for nothing.

- Who fails is left out.

| what | who it is |
| --- | --- |
| there is no key | none |
"""
    kinds = [(f.line, f.kind) for b in markdown("p.md", page) for f in findings(b)]
    assert kinds == [(1, "start"), (3, "start"), (8, "start"), (10, "start"), (12, "phrase")]
    code = '"""What it is.\n\nAnd anew."""\n# Where it\n# is\nx = f"which {1} is"\n'
    kinds = [(f.line, f.kind) for b in python("m.py", code) for f in findings(b)]
    assert kinds == [(1, "start"), (3, "phrase"), (6, "start"), (4, "start")]
    assert not [f for b in python("m.py", code, strings=False) for f in findings(b) if f.line == 6]
    assert [f.line for b in shell("s", "#!/bin/sh\n\n# Who may\n# run it\n") for f in findings(b)]
    long = " ".join(["word"] * 31) + "."
    assert [f.kind for b in markdown("p.md", long) for f in findings(b)] == ["long"]
    short = long.replace("word word", "`word word`", 1)
    assert not [f for b in markdown("p.md", short) for f in findings(b)]


def test_all_kinds_of_files_are_read() -> None:
    names = {str(path.relative_to(ROOT)) for path in files()}
    assert {"README.md", "scripts/test", "mpc/errors.py", "docs/wire.md", "setup.cfg"} <= names
    assert {"tests/test_prose.py", "operating/samples/s0.toml"} <= names
