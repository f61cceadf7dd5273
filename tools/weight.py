"""Counts the weight of the project: `python -m tools.weight`.

A line of code is a line that holds a token other than a comment or a docstring. A word holds a
letter or a digit: the bars of tables and the marks of lists are none. Words are counted in every
page under docs/, in the pages that `make docs` generates, and in those at the top of the
repository.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

from tools.reference import pages
from tools.site import FOR_MAINTAINERS

ROOT = Path(__file__).parents[1]
CODE = ("src", "tests", "chaos", "bench", "examples", "tools")
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def main() -> None:
    for folder in CODE:
        modules = sorted((ROOT / folder).rglob("*.py"))
        lines = {path: count_code_lines(path.read_text()) for path in modules}
        functions = sum(count_functions(path.read_text()) for path in modules)
        print(f"{folder}: {sum(lines.values()):,} lines of code, {len(lines)} modules,", end=" ")
        print(f"{functions:,} functions")
        if folder == "src":
            _print_packages(lines)
    _print_words()


def count_code_lines(source: str) -> int:
    """Lines with code: blank lines, comments and docstrings are left out."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE and token.type != tokenize.ENDMARKER:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - _docstring_lines(ast.parse(source)))


def count_functions(source: str) -> int:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return sum(isinstance(node, kinds) for node in ast.walk(ast.parse(source)))


def _docstring_lines(tree: ast.Module) -> set[int]:
    """The lines of every string that stands alone as a statement: docstrings of modules, classes,
    functions and attributes."""
    strings = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
    return {line for node in strings for line in range(node.lineno, (node.end_lineno or 0) + 1)}


def _print_packages(lines: dict[Path, int]) -> None:
    base = ROOT / "src" / "mainspring"
    totals: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    for path, count in lines.items():
        package = str(path.parent.relative_to(base))
        totals[package] += count
        modules[package] += 1
    for package, count in sorted(totals.items()):
        print(f"  {package:26}{count:7,} lines {modules[package]:4} modules")


def _print_words() -> None:
    words: Counter[str] = Counter()
    for path in (ROOT / "docs").rglob("*.md"):
        folder = path.parent.relative_to(ROOT)
        words[str(folder)] += count_words(path.read_text())
    print(f"docs: {sum(words.values()):,} words")
    for folder_name, count in sorted(words.items()):
        print(f"  {folder_name:26}{count:7,} words")
    by_hand = sum(
        count for folder, count in words.items() if not f"{folder}/".startswith(FOR_MAINTAINERS)
    )
    generated = sum(map(count_words, pages().values()))
    print(f"site: {by_hand + generated:,} words, of which {generated:,} are generated")
    for path in sorted(ROOT.glob("*.md")):
        print(f"{path.name}: {count_words(path.read_text()):,} words")


def count_words(text: str) -> int:
    return sum(any(map(str.isalnum, word)) for word in text.split())


if __name__ == "__main__":
    main()
