# SPDX-License-Identifier: Apache-2.0
"""Reads YAML files strictly: every error names its line."""

import dataclasses
import reprlib
from pathlib import Path
from typing import Any

import yaml

from recsys.errors import UserError

_UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors of PyYAML for an invalid date, an integer of 5,000 digits, `!!int x`."""


@dataclasses.dataclass(frozen=True, slots=True)
class YamlDocument:
    """The values of a file and their lines."""

    values: Any
    _root: yaml.Node | None

    def line(self, *at: object) -> int:
        """Returns the line of a key or entry; if it is missing, the line of its parent.

        Args:
            at: keys from the top; for lists, numbers from 0.
        """
        node, line = self._root, 1
        for name in at:
            below = {}
            if isinstance(node, yaml.MappingNode):
                below = {key.value: (key, value) for key, value in node.value}
            elif isinstance(node, yaml.SequenceNode):
                below = {str(i): (entry, entry) for i, entry in enumerate(node.value)}
            if str(name) not in below:
                break
            key, node = below[str(name)]
            line = key.start_mark.line + 1
        return line


class _Loader(yaml.SafeLoader):
    """A SafeLoader that refuses duplicate keys and whose errors have a line."""

    def get_single_node(self) -> yaml.Node | None:
        try:
            return super().get_single_node()
        except RecursionError as error:
            raise _fault("is nested too deeply", "use fewer levels", self.get_mark()) from error

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if (key.tag, key.value) in keys:
                raise _fault(f"{key.value} occurs twice", "keep one", key.start_mark)
            keys.add((key.tag, key.value))
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, int):
                str(value)  # refuses integers too long to show; hexadecimal ones pass the parser
        except _UNREADABLE as error:
            text = f"{reprlib.repr(node.value)} is not a valid number or date"
            raise _fault(
                text, "correct it, or quote it if it is a text", node.start_mark
            ) from error
        return value


def _fault(problem: str, remedy: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark, note=remedy)


def load(
    path: Path, error: type[UserError] = UserError, setting: str | None = None
) -> YamlDocument:
    """Reads a YAML file that a setting names.

    Raises:
        UserError: of the type `error`; names file, line and remedy.
    """
    try:
        content = path.read_bytes()
    except OSError as fault:
        named = "" if setting is None else f"`{setting}` "
        raise error(
            f"{named}{path}: {fault.strerror}; name another file", setting=setting, path=path
        ) from fault
    try:
        loader = _Loader(content.decode())
        root = loader.get_single_node()
        return YamlDocument(None if root is None else loader.construct_document(root), root)
    except UnicodeDecodeError as fault:
        before, problem = content[: fault.start], "not UTF-8; save it as UTF-8"
    except yaml.reader.ReaderError as fault:
        before = content.decode()[: fault.position].encode()
        problem = f"character {chr(fault.character)!r}; remove it"
    except yaml.MarkedYAMLError as fault:
        mark = fault.problem_mark or fault.context_mark
        before = b"\n" * (mark.line if mark else 0)
        problem = f"{fault.problem or fault.context}; {fault.note or 'correct it, or quote a text'}"
    line = before.count(b"\n") + 1
    raise error(f"{path}:{line}: not readable as YAML: {problem}", path=path, line=line)
