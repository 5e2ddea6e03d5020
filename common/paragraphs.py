"""The help of verbs whose description has several paragraphs."""

import argparse
import textwrap


class Paragraphs(argparse.HelpFormatter):
    """A formatter that fills each paragraph of a description to the terminal's width.

    argparse itself either joins paragraphs, or keeps the lines as they stand in the source.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = textwrap.dedent(text).strip().split("\n\n")
        return "\n\n".join(
            super(Paragraphs, self)._fill_text(one, width, indent) for one in paragraphs
        )
