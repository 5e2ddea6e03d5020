"""The prose of the project, by file and line, and what is not plain English in it.

`python -m tests.prose [PATH ..]` prints what `tests/test_prose.py` counts.
"""

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGES = (
    *("mpc", "servers", "clients", "coordinator", "common", "operating", "plugins"),
    *("laboratory", "benchmarks", "securemedian", "examples", "deploy", "docs", "tests"),
)
LONG = 30
"""A sentence of more words is long."""

STARTS = re.compile(
    r"(?:what|who|whoever|where|which|whose|of what|that which)\b(?!'s|-)", re.IGNORECASE
)
BANNED = re.compile(
    r"\b(?:(?:is|are) no(?! longer\b| more than\b)(?=\s+[a-z`*])"
    r"|anew|but for|in place of|as it was|as far as that goes)\b",
    re.IGNORECASE,
)
END = re.compile(r"(?<=[.!?])[)\"'*`]*\s+(?=[(\"'*`\[]*[A-Z`\d])")
NO_END = re.compile(r"(?:\b(?:e\.g|i\.e|cf|vs|etc|al|Sec|Fig|Alg|No|[A-Z])\.|\.\.)[)\"'*`]*$")

Kind = Literal["start", "phrase", "long"]


class Block(NamedTuple):
    """A paragraph, an item, a cell of a table, a comment or a string: text that is read alone."""

    path: str
    line: int
    text: str
    cell: bool = False


class Finding(NamedTuple):
    """A sentence that breaks a rule."""

    path: str
    line: int
    kind: Kind
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {self.text}"


def sentences(text: str) -> Iterator[str]:
    """Split a block into sentences; an abbreviation ends none."""
    begun = ""
    for part in END.split(" ".join(text.split())):
        begun = f"{begun} {part}".strip()
        if not NO_END.search(begun):
            yield begun
            begun = ""
    if begun:
        yield begun


def words(sentence: str) -> int:
    """Count the words of a sentence; code counts as one word, the target of a link as none."""
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "code", sentence))
    return len(re.findall(r"[^\W_][\w'’./-]*", text))


def findings(block: Block) -> Iterator[Finding]:
    """Find the sentences of a block that break a rule; questions may begin as they like."""
    for sentence in sentences(block.text):
        bare = re.sub(r"`[^`]*`", "`code`", sentence)
        statement = not bare.rstrip("*_)\"'` ").endswith("?") and len(bare.split()) > 1
        found: list[Kind] = []
        if statement and STARTS.match(bare.lstrip("(*_\"'[")):
            found.append("start")
        if BANNED.search(bare):
            found.append("phrase")
        if not block.cell and words(sentence) > LONG:
            found.append("long")
        for kind in found:
            yield Finding(block.path, block.line, kind, sentence)


def markdown(path: str, text: str) -> Iterator[Block]:
    """Give the paragraphs, items, headings and cells of a page, without its blocks of code."""
    text = re.sub(r"<!--.*?-->", lambda c: "\n" * c[0].count("\n"), text, flags=re.DOTALL)
    begun: list[str] = []
    first, fenced, item = 1, False, False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        stripped = line.strip()
        fence = stripped.startswith(("```", "~~~"))
        code = fenced or fence or (line.startswith("    ") and not begun and not item)
        starts = bool(re.match(r"(?:[-*+]|\d+\.) |#|>|\||!!!", stripped))
        if begun and (not stripped or starts or code):
            yield Block(path, first, " ".join(begun))
            begun = []
        if fence:
            fenced = not fenced
        if code or not stripped:
            item = item and (not stripped or line.startswith(" "))
            continue
        if stripped.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", stripped.strip("|")):
                if re.search(r"\w", cell):
                    yield Block(path, number, cell.strip(), cell=True)
            continue
        item = bool(re.match(r"(?:[-*+]|\d+\.) ", stripped)) or (item and line.startswith(" "))
        if not begun:
            first = number
        begun.append(re.sub(r"^(?:(?:[-*+]|\d+\.) |#+ |> ?)", "", stripped))
        if stripped.startswith("#"):
            yield Block(path, number, begun.pop())


def shown(node: ast.expr) -> str:
    """Return the text of an expression, with each value between backticks."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return shown(node.left) + shown(node.right)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(shown, node.values))
    if isinstance(node, ast.FormattedValue):
        node = node.value
    return f"`{ast.unparse(node).replace('`', '')}`"


def python(path: str, source: str, strings: bool = True) -> Iterator[Block]:
    """Give the docstrings and comments of a module, and strings of two words and more if asked."""
    tree = ast.parse(source)
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    documents = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant | ast.JoinedStr) or id(node) in inside:
            continue
        text = shown(node)
        if id(node) in documents:
            for block in markdown(path, inspect.cleandoc(text)):
                yield block._replace(line=node.lineno + block.line - 1)
        elif strings and re.search(r"[a-z]+ [a-z`]", text):
            for number, paragraph in enumerate(re.split(r"\n\s*\n|\n(?=\s*[-#|])", text)):
                yield Block(path, node.lineno + number, re.sub(r"(?m)^\s*[#|-]+ ?", "", paragraph))
    yield from comments(path, source)


def literals(source: str) -> str:
    """Return the texts in a module, without what f-strings put into them."""
    texts = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            texts += [
                "".join(str(v.value) if isinstance(v, ast.Constant) else "|" for v in node.values)
            ]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)
    return "\n".join(texts)


def comments(path: str, source: str) -> Iterator[Block]:
    """Give the comments of a module; lines that follow each other are read as a page."""
    begun: list[tuple[int, int, str]] = []

    def read() -> Iterator[Block]:
        for block in markdown(path, "\n".join(text for _, _, text in begun)):
            yield block._replace(line=begun[0][0] + block.line - 1)

    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            alone = not token.line[:column].strip()
            if begun and not (alone and begun[-1][:2] == (row - 1, column)):
                yield from read()
                begun = []
            begun.append((row, column, re.sub(r"^#[#:!]* ?", "", token.string)))
    yield from read()


def shell(path: str, source: str) -> Iterator[Block]:
    """Give the comments of a script or of a sample of a configuration."""
    begun: list[str] = []
    for number, line in enumerate([*source.splitlines(), ""], 1):
        if match := re.match(r"\s*#(?!!)\s?(.*)", line):
            begun.append(match[1])
        elif begun:
            for block in markdown(path, "\n".join(begun)):
                yield block._replace(line=number - len(begun) + block.line - 1)
            begun = []


def blocks(path: Path) -> Iterator[Block]:
    """Give what a file says."""
    name, text = str(path.relative_to(ROOT)), path.read_text("utf-8")
    if path.suffix == ".md":
        return markdown(name, text)
    if path.suffix == ".py":
        return python(name, text, strings=not name.startswith("tests/"))
    return shell(name, text)


def files() -> list[Path]:
    """List the files that hold prose: pages, modules, scripts and samples."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("setup.cfg"), *ROOT.glob("scripts/*")]
    for package in PACKAGES:
        for suffix in ("md", "py", "sh", "toml", "service", "yml", "yaml"):
            found += ROOT.glob(f"{package}/**/*.{suffix}")
    return sorted(
        path
        for path in {path.resolve() for path in found}
        if path.is_file() and "__pycache__" not in path.parts and path.is_relative_to(ROOT)
    )


def main(chosen: list[str]) -> None:
    """Print what is not plain in the files whose names begin with one of those given, or in all."""
    for path in files():
        name = str(path.relative_to(ROOT))
        if not chosen or any(name.startswith(given) for given in chosen):
            for block in blocks(path):
                for finding in findings(block):
                    print(finding)


if __name__ == "__main__":
    main(sys.argv[1:])
