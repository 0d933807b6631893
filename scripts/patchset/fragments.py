# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Does a hunk still make sense as Python, without the file around it?

A fragment is wrapped in the statements that it must have stood in, and compiled. That is not
possible for each (inside a docstring, behind an ``except``), so a fragment is only held against the
author when the text that it replaces could be wrapped and it cannot.

And, for the parts that compile: do the names that it uses from the new modules exist there, and do
the calls fit their signatures?
"""

import ast
import re
import warnings
from collections.abc import Iterator

_PAIRS = {")": "(", "]": "[", "}": "{"}
_CLOSERS = {v: k for k, v in _PAIRS.items()}
_SKIP = re.compile(r"#.*|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'")


def fragment(lines: list[str]) -> ast.Module | None:
    """Return the syntax tree of a fragment of a file, wrapped so that it compiles, or None."""
    for source in _wrapped(lines):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(source)
                compile(tree, "<fragment>", "exec")
            return tree
        except (SyntaxError, ValueError):
            continue
    return None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _wrapped(lines: list[str]) -> Iterator[str]:
    """Yield the fragment in each of the surroundings that it may have stood in."""
    if not any(line.strip() for line in lines):
        return
    missing, still_open, outer = _brackets(lines)
    # The line that closes what was open before the fragment has the statement's indent.
    level = _indent(lines[outer])
    text = "\n".join(lines)
    closed = "".join(_CLOSERS[b] for b in reversed(still_open))
    heads = ["", "_f("] if not missing else []
    if missing:
        rest = "".join(missing[1:][::-1])
        heads = [f"def _f{rest}(", f"{rest}_f{missing[0]}"]
    elif lines[outer].rstrip().endswith(","):
        heads = ["def _f(", "_f("]
        closed = ")" + closed
    for block in ("for _ in _:", "if _:"):
        chain = ["def _():"] + [" " * k + block for k in range(4, level, 4)] if level else []
        for head in heads:
            opened = [" " * level + head] if head else []
            tail = closed if (missing or head == "" or closed) else ")"
            for end in (tail, f"{tail}: pass", f"{tail}\n{' ' * (_deepest(lines) + 4)}pass"):
                yield "\n".join([*chain, *opened, text + ("\n" if closed else "") + end])


def _deepest(lines: list[str]) -> int:
    return max(_indent(line) for line in reversed(lines) if line.strip())


def _brackets(lines: list[str]) -> tuple[list[str], list[str], int]:
    """Return the brackets that miss their opener, those left open, and the first outer line.

    The first outer line is the one that closes the last missing bracket, or else the first with
    text on it.
    """
    missing: list[str] = []
    stack: list[str] = []
    outer = next(i for i, line in enumerate(lines) if line.strip())
    for number, line in enumerate(lines):
        for char in _SKIP.sub("", line):
            if char in _CLOSERS:
                stack.append(char)
            elif char in _PAIRS:
                if stack:
                    stack.pop()
                else:
                    missing.append(_PAIRS[char])
                    outer = number
    return missing, stack, outer


class Modules:
    """The names that the new modules define, for :meth:`problems`."""

    def __init__(self, folder: str, files: dict[str, str]) -> None:
        """Parse the new modules.

        Args:
            folder: the upstream folder whose modules can be imported relatively.
            files: upstream path -> text.
        """
        self.folder = folder
        self.names: dict[str, dict[str, ast.AST]] = {}
        for path, text in files.items():
            if path.endswith(".py"):
                module = path[: -len(".py")].replace("/", ".")
                self.names[module] = dict(_top_level(ast.parse(text)))

    def problems(self, trees: list[ast.Module], ours: str) -> tuple[list[str], int]:
        """Check what the new lines of one file take from the new modules.

        Args:
            trees: the fragments that compile, in the order of the file.
            ours: our lines of the file after the series; imports are found here too, where a
                fragment does not compile or a later patch adds to one.

        Returns:
            The problems, and how many uses were looked at.
        """
        package = self.folder.replace("/", ".")
        known: dict[str, ast.AST] = {}
        found: list[str] = []
        uses = 0
        imports = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
        for match in re.finditer(r"(?m)^ *(from \S+ import (?:\([^)]*\)|[\w, ]+))$", ours):
            imports += ast.parse(match[1]).body
        for node in imports:
            module = f"{package}.{node.module}" if node.level == 1 else node.module or ""
            if module not in self.names:
                if module.startswith(f"{package}."):
                    found.append(f"line 'from {'.' * node.level}{node.module}': no such new module")
                continue
            for alias in node.names:
                uses += 1
                target = self.names[module].get(alias.name)
                if target is None:
                    found.append(f"{node.module} has no {alias.name}")
                else:
                    known[alias.asname or alias.name] = target
        exported = {n for names in self.names.values() for n in names if not n.startswith("_")}
        types = self._types(trees, known)
        for node in (n for tree in trees for n in ast.walk(tree)):
            if isinstance(node, ast.Name) and node.id in exported - set(known):
                found.append(f"{node.id} is used but not imported")
            elif isinstance(node, ast.Attribute):
                owner = self._class(node.value, known, types)
                if owner is not None:
                    uses += 1
                    if _member(owner, node.attr, known) is None:
                        found.append(f"{owner.name} has no {node.attr} ({ast.unparse(node)})")
            elif isinstance(node, ast.Call):
                target, bound = self._target(node.func, known, types)
                if target is not None:
                    uses += 1
                    why = _misbinding(node, target, bound)
                    if why:
                        found.append(f"{ast.unparse(node)[:70]}: {why}")
        return sorted(set(found)), uses

    def _types(self, trees: list[ast.Module], known: dict[str, ast.AST]) -> dict[str, str]:
        """Map expressions, as text, to the new class (or list of it) that they hold."""
        types: dict[str, str] = {}
        for node in (n for tree in trees for n in ast.walk(tree)):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                target, _ = self._target(node.value.func, known, types)
                if isinstance(target, ast.ClassDef):
                    types[ast.unparse(node.targets[0])] = target.name
                elif target is not None and target.returns is not None:
                    types[ast.unparse(node.targets[0])] = _annotation(target.returns)
            elif isinstance(node, (ast.arg, ast.AnnAssign)) and node.annotation is not None:
                name = node.arg if isinstance(node, ast.arg) else ast.unparse(node.target)
                types[name] = _annotation(node.annotation)
        return types

    def _class(self, node: ast.AST, known: dict, types: dict[str, str]) -> ast.ClassDef | None:
        """Return the new class that an expression is, or is an instance of."""
        if isinstance(node, ast.Name) and isinstance(known.get(node.id), ast.ClassDef):
            return known[node.id]
        if isinstance(node, ast.Subscript):
            element = re.fullmatch(r"(?:list|tuple)\[(\w+)(?:, \.\.\.)?\]", self._text(node, types))
            name = element[1] if element else ""
        else:
            name = types.get(ast.unparse(node), "")
        for names in self.names.values():
            if isinstance(names.get(name), ast.ClassDef):
                return names[name]
        return None

    @staticmethod
    def _text(node: ast.Subscript, types: dict[str, str]) -> str:
        return types.get(ast.unparse(node.value), "")

    def _target(self, func: ast.AST, known: dict, types: dict[str, str]) -> tuple:
        """Return the definition that a call reaches, and whether its first argument is bound."""
        if isinstance(func, ast.Name):
            target = known.get(func.id)
            if isinstance(target, (ast.ClassDef, ast.FunctionDef)):
                return target, False
        if isinstance(func, ast.Attribute):
            owner = self._class(func.value, known, types)
            member = _member(owner, func.attr, known) if owner is not None else None
            if isinstance(member, ast.FunctionDef):
                decorators = [ast.unparse(d) for d in member.decorator_list]
                by_class = isinstance(func.value, ast.Name) and func.value.id in known
                bound = "classmethod" in decorators or not by_class
                return member, bound and "staticmethod" not in decorators
        return None, False


def _top_level(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name, node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    yield target.id, node


def _annotation(node: ast.AST) -> str:
    """Return an annotation as text, without quotes and without Optional."""
    text = ast.unparse(node).replace("'", "").replace('"', "")
    return re.sub(r"^Optional\[(.*)\]$|^(.*) \| None$", r"\1\2", text)


def _member(owner: ast.ClassDef, name: str, known: dict) -> ast.AST | None:
    """Return the definition of an attribute; ``owner`` itself where a base class may have it."""
    for node in owner.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    for node in ast.walk(owner):
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) in (name, f"self.{name}"):
            return node
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if name in [ast.unparse(t).removeprefix("self.") for t in _flat(target)]:
                    return node
    unknown = [b for b in owner.bases if ast.unparse(b) not in ("object", "NamedTuple")]
    return owner if unknown or name.startswith("__") else None


def _flat(target: ast.AST) -> list[ast.AST]:
    return list(target.elts) if isinstance(target, (ast.Tuple, ast.List)) else [target]


def _misbinding(call: ast.Call, target: ast.AST, bound: bool) -> str:
    """Return why the arguments of a call do not fit a definition, or ''."""
    if isinstance(target, ast.ClassDef):
        init = next((n for n in target.body if getattr(n, "name", "") == "__init__"), None)
        if init is None:
            return _misbinding_of_fields(call, target)
        target, bound = init, True
    spec = target.args
    names = [a.arg for a in (*spec.posonlyargs, *spec.args)][bound:]
    required = names[: len(names) - len(spec.defaults)] if spec.defaults else list(names)
    required += [a.arg for a, d in zip(spec.kwonlyargs, spec.kw_defaults) if d is None]
    keywords = names + [a.arg for a in spec.kwonlyargs]
    return _binding(call, names, required, keywords, bool(spec.vararg), bool(spec.kwarg))


def _misbinding_of_fields(call: ast.Call, target: ast.ClassDef) -> str:
    fields = [n for n in target.body if isinstance(n, ast.AnnAssign)]
    decorated = any("dataclass" in ast.unparse(d) for d in target.decorator_list)
    if not decorated and "NamedTuple" not in [ast.unparse(b) for b in target.bases]:
        return "" if target.bases or not (call.args or call.keywords) else "it takes no arguments"
    names = [ast.unparse(n.target) for n in fields]
    required = [ast.unparse(n.target) for n in fields if n.value is None]
    return _binding(call, names, required, names, False, False)


def _binding(call, names, required, keywords, rest, any_keyword) -> str:
    given = [k.arg for k in call.keywords]
    if None in given or any(isinstance(a, ast.Starred) for a in call.args):
        return ""  # *args and **kwargs: not known here
    if len(call.args) > len(names) and not rest:
        return f"{len(call.args)} positional arguments, it takes {len(names)}"
    unknown = [k for k in given if k not in keywords]
    if unknown and not any_keyword:
        return f"no parameter {', '.join(unknown)}"
    filled = set(names[: len(call.args)]) | set(given)
    lacking = [n for n in required if n not in filled]
    return f"missing {', '.join(lacking)}" if lacking else ""
