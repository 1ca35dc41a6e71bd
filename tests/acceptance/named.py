"""Which tests name which cases: in their names (`test_case_k1_...`) or at the beginning of their
docstrings."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_IN_NAME = re.compile(r"case_([a-z][0-9]+)(?:_([a-z][0-9]+))?")
_IN_DOCSTRING = re.compile(r"^((?:[A-Z][0-9]{1,2}(?:, |: | and |\.|$))+)")


def named(path: Path) -> Iterator[tuple[str, str]]:
    """The cases that the tests of a file name, with the tests' names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if not node.name.startswith("test_"):
            continue
        found = _IN_NAME.search(node.name)
        cases = [case.upper() for case in found.groups() if case] if found else []
        said = _IN_DOCSTRING.match((ast.get_docstring(node) or "").partition("\n")[0])
        cases += re.findall(r"[A-Z][0-9]{1,2}", said[1]) if said else []
        yield from ((case, node.name) for case in cases)
