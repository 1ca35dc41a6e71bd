"""Metal sources as C++: the function that mlx would make of a kernel, and a plain entry for it.

A kernel's file has a header and, after the line `// body`, a body, for which mlx writes the
signature: inputs by name (of fewer than 8 numbers in the constant space), `x_shape` and `x_ndim`
where the body names them, outputs, attributes that the body names, and template parameters. Knows
nothing of what kernels compute.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "kernels"
NAMES = tuple(sorted(path.stem for path in (KERNELS / "metal").glob("*.metal")))
MOST_CONSTANT = 7
_INCLUDE = re.compile(r'#include "([\w.]+)"')
_VARIABLE = re.compile(r"^(\s*)threadgroup ([^=;()]+?) (\w+)((?:\[[^\]]+\])*);", re.M)
_ATTRIBUTES = {
    "thread_index_in_simdgroup": ("uint", "at->index % 32"),
    "thread_index_in_threadgroup": ("uint", "at->index"),
    "thread_position_in_threadgroup": ("uint3", "uint3{at->index, 0, 0}"),
    "simdgroup_index_in_threadgroup": ("uint", "at->index / 32"),
    "threadgroup_position_in_grid": ("uint3", "uint3{at->group[0], at->group[1], at->group[2]}"),
    "threads_per_threadgroup": ("uint3", "uint3{at->size, 1, 1}"),
}
Value = int | bool | str


@dataclass(frozen=True, slots=True)
class Files:
    """The text of every Metal file, by path under kernels/."""

    texts: Mapping[str, str]

    @classmethod
    def read(cls) -> "Files":
        """Those of the repository."""
        paths = [*KERNELS.glob("metal/*.metal"), *KERNELS.glob("include/*.h")]
        return cls({str(path.relative_to(KERNELS)): path.read_text() for path in sorted(paths)})

    def changed(self, path: str, line: int, text: str) -> "Files":
        """The same with another text in a line, counted from 1."""
        lines = self.texts[path].split("\n")
        assert lines[line - 1] != text, f"{path}:{line} is the same"
        lines[line - 1] = text
        return Files({**self.texts, path: "\n".join(lines)})

    def header(self, kernel: str) -> str:
        """The kernel's header with its includes in it, which know their file and line."""
        head = self.texts[f"metal/{kernel}.metal"].partition("// body\n")[0]
        return self._included(f"metal/{kernel}.metal", head, set())

    def body(self, kernel: str) -> str:
        """The kernel's body, with its threadgroup variables in the shim's memory."""
        head, found, body = self.texts[f"metal/{kernel}.metal"].partition("// body\n")
        assert found, f"{kernel} has no line `// body`"
        ids = iter(range(100))

        def variable(match: re.Match[str]) -> str:
            indent, kind, name, dims = match.groups()
            return f"{indent}auto& {name} = shim::shared<{kind}{dims}>({next(ids)});"

        marker = f'#line {head.count(chr(10)) + 2} "{KERNELS}/metal/{kernel}.metal"\n'
        return marker + _VARIABLE.sub(variable, body)

    def _included(self, path: str, text: str, seen: set[str]) -> str:
        out = [f'#line 1 "{KERNELS}/{path}"']
        for number, line in enumerate(text.split("\n"), 1):
            match = _INCLUDE.fullmatch(line)
            if not match:
                out.append("" if line == "#pragma once" else line)
                continue
            inner = f"include/{match[1]}"
            if inner not in seen:
                seen.add(inner)
                out.append(self._included(inner, self.texts[inner], seen))
            out.append(f'#line {number + 1} "{KERNELS}/{path}"')
        return "\n".join(out)


@dataclass(frozen=True, slots=True)
class Parameter:
    """An array of a kernel: its name, its type in Metal, and whether it is of few numbers."""

    name: str
    kind: str
    is_small: bool = False


@dataclass(frozen=True, slots=True)
class Instance:
    """A kernel with values for its template, of the given arrays."""

    kernel: str
    template: tuple[tuple[str, Value], ...]
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]

    def symbol(self, files: Files) -> str:
        """Its name in the library: another for another text."""
        text = repr((self, files.header(self.kernel), files.body(self.kernel)))
        return f"{self.kernel}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def extras(instance: Instance, body: str) -> Iterable[tuple[str, str, str]]:
    """Of each input, what of its shape is passed after it: input, suffix, type."""
    for each in instance.inputs:
        for suffix, kind in (("shape", "const constant int*"), ("ndim", "const constant int&")):
            if f"{each.name}_{suffix}" in body:
                yield each.name, suffix, kind


def _function(files: Files, instance: Instance) -> tuple[str, list[str], list[str]]:
    """The kernel as a function, and the types and the values of its parameters."""
    body = files.body(instance.kernel)
    named: list[tuple[str, str]] = []
    more = [*extras(instance, body)]
    for each in instance.inputs:
        named.append((f"const {'constant' if each.is_small else 'device'} {each.kind}*", each.name))
        named += [(kind, f"{name}_{end}") for name, end, kind in more if name == each.name]
    named += [(f"device {each.kind}*", each.name) for each in instance.outputs]
    values = [
        f"*({kind[:-1]}*)arguments[{idx}]" if kind.endswith("&") else f"({kind})arguments[{idx}]"
        for idx, (kind, _) in enumerate(named)
    ]
    for name, (kind, value) in _ATTRIBUTES.items():
        if re.search(rf"\b{name}\b", body):
            named.append((kind, name))
            values.append(value)
    template = ", ".join(
        f"{'typename' if isinstance(value, str) else type(value).__name__} {name}"
        for name, value in instance.template
    )
    signature = ",\n    ".join(f"{kind} {name}" for kind, name in named)
    text = f"template <{template}>\nvoid {instance.kernel}(\n    {signature}) {{\n{body}}}\n"
    return text, [kind for kind, _ in named], values


def program(wanted: Iterable[tuple[Files, Instance]]) -> str:
    """C++ with an entry for each instance, by its symbol; each text has its own namespace."""
    out = ["#include <metal_stdlib>", "#include <metal_simdgroup_matrix>"]
    spaces: dict[str, str] = {}
    for files, instance in wanted:
        function, _, values = _function(files, instance)
        text = f"{files.header(instance.kernel)}\n{function}"
        if text not in spaces:
            # By its digest, since functions of one name are one function in all programs.
            spaces[text] = f"text_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
            out.append(f"namespace {spaces[text]} {{\n{text}}}")
        constants = ", ".join(
            str(value).lower() if isinstance(value, bool) else str(value)
            for _, value in instance.template
        )
        out.append(
            f'#line 1 "entry"\nextern "C" void {instance.symbol(files)}(\n'
            "    void** arguments, const shim::Where* at) {\n"
            f"  {spaces[text]}::{instance.kernel}<{constants}>(\n"
            f"      {', '.join(values)});\n}}"
        )
    return "\n".join(out) + "\n"
