# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Which files of a checkout a run needs: the imports of its entries, without running them.

A module that the stand-ins have is theirs, whatever the checkout holds; every other module of the
package is the checkout's own. Packages are taken as namespaces, without their __init__.py: those
of TensorRT-LLM import its compiled parts.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

PACKAGE = "tensorrt_llm"

# Takes a path such as "tensorrt_llm/logger.py" and returns the file, or None.
Read = Callable[[str], bytes | None]


@dataclass(frozen=True)
class Import:
    """One imported module, and one name taken from it.

    Attributes:
        module: Absolute name.
        name: What is taken from it; None for the module itself, "*" for everything.
        line: Where it stands.
        required: It runs whenever the file is imported, and nothing catches its failure.
    """

    module: str
    name: str | None
    line: int
    required: bool


def walk(entries: tuple[str, ...], own: Read, stand_in: Read) -> tuple[dict[str, bytes], list[str]]:
    """Collects the checkout's files that the entries import, directly or not.

    A file that is reached through imports in functions alone comes along, whatever it lacks.

    Args:
        entries: Paths in the checkout to begin with.
        own: Reads a file of the checkout.
        stand_in: Reads a file of the stand-ins.

    Returns:
        The files by path, and what is missing: "file:line: text", empty when a run can be made.
    """
    files: dict[str, bytes] = {}
    missing: list[str] = []
    # What runs for certain comes first: it decides what is missing.
    waiting, later = list(entries), []
    while waiting or later:
        certain = bool(waiting)
        path = (waiting or later).pop()
        if path in files:
            continue
        source = own(path)
        if source is None:
            missing.append(f"{path}: the checkout lacks it")
            continue
        files[path] = source
        try:
            found = list(imports(source, path))
        except SyntaxError as error:
            if certain:
                missing.append(f"{path}:{error.lineno}: this Python cannot read it ({error.msg})")
            continue
        for entry in found:
            place, problem = _resolve(entry, own, stand_in)
            required = certain and entry.required
            if place is not None:
                (waiting if required else later).append(place)
            if problem and required:
                missing.append(f"{path}:{entry.line}: {problem}")
    return files, sorted(set(missing))


def _resolve(entry: Import, own: Read, stand_in: Read) -> tuple[str | None, str | None]:
    """Returns the checkout's file to take along, if any, and what is wrong, if anything."""
    module = entry.module
    if entry.name not in (None, "*"):
        # "from package import module" names a file; so it does where the package has none.
        inner = _place(f"{module}.{entry.name}", own, stand_in)
        if inner is not None:
            return inner[0], None
    place = _place(module, own, stand_in)
    if place is None:
        return None, f"neither the checkout nor the stand-ins have {module}"
    path, source = place
    if entry.name in (None, "*") or entry.name in names(source):
        return path, None
    return path, f"{module}{'' if path else ' (a stand-in)'} has no {entry.name}"


def _place(module: str, own: Read, stand_in: Read) -> tuple[str | None, bytes] | None:
    """Returns where a module is, None for a stand-in, and its text; None where it is nowhere."""
    path = module.replace(".", "/")
    for file in (f"{path}.py", f"{path}/__init__.py"):
        source = stand_in(file)
        if source is not None:
            return None, source
    source = own(f"{path}.py")
    return None if source is None else (f"{path}.py", source)


def imports(source: bytes, path: str) -> Iterator[Import]:
    """Yields what a file imports from the package, at its top level and inside functions."""
    package = path.removesuffix(".py").split("/")[:-1]

    def visit(nodes, required: bool) -> Iterator[Import]:
        for node in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0] == PACKAGE:
                        yield Import(alias.name, None, node.lineno, required)
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                if node.level:
                    base = package[: len(package) - node.level + 1]
                    module = ".".join([*base, module] if module else base)
                if module.split(".")[0] == PACKAGE:
                    for alias in node.names:
                        yield Import(module, alias.name, node.lineno, required)
            elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                yield from visit(node.orelse, required)
            else:
                runs = not isinstance(
                    node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Try)
                )
                yield from visit(ast.iter_child_nodes(node), required and runs)

    yield from visit(ast.parse(source).body, True)


def names(source: bytes) -> set[str]:
    """Returns the names that a module has at its top level."""
    found: set[str] = set()

    def visit(nodes) -> None:
        for node in nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                found.update((a.asname or a.name).split(".")[0] for a in node.names)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            else:
                visit(ast.iter_child_nodes(node))

    visit(ast.parse(source).body)
    return found
