# SPDX-License-Identifier: Apache-2.0
"""Version policies: the versions of a model that a server answers with.

`latest:N`, `all` or `specific:1,3`, as Triton's config.pbtxt defines them. A request that does not
name a version gets the highest served one.
"""

import re
from collections.abc import Sequence

from recsys.errors import UserError

DEFAULT_POLICY = "latest:1"
_POLICY = re.compile(r"latest:[1-9]\d{0,8}|all|specific:[1-9]\d*(,[1-9]\d*)*")
_LINE = re.compile(r"^version_policy \{ (.*) \}\n", re.MULTILINE)
_OTHER_LINE = re.compile(r"^\s*version_policy(?! \{ .* \}$)", re.MULTILINE)


def check_policy(policy: str) -> None:
    """Refuses a text that is not a version policy.

    Raises:
        UserError: says which forms are valid.
    """
    if not _POLICY.fullmatch(policy):
        raise UserError(
            f"`version_policy` must be latest:N, all, or specific: and versions with commas "
            f"between, such as specific:1,3; got {policy!r}",
            setting="version_policy",
        )


def policy_line(policy: str) -> str:
    """Returns the line of config.pbtxt."""
    kind, _, numbers = policy.partition(":")
    fields = {"latest": f"num_versions: {numbers}", "specific": f"versions: [ {numbers} ]"}
    return f"version_policy {{ {kind} {{ {fields.get(kind, '')} }} }}"


def policy_of(config: str) -> str:
    """Returns the policy in the text of a config.pbtxt."""
    line = _LINE.search(config)
    if line is None:  # written by a release without policies
        return DEFAULT_POLICY
    kind = line[1].split()[0]
    numbers = ",".join(re.findall(r"\d+", line[1]))
    return f"{kind}:{numbers}" if numbers else kind


def is_handwritten(config: str) -> bool:
    """Returns whether a config.pbtxt has a policy in another form than `policy_line` writes."""
    return _OTHER_LINE.search(config) is not None


def with_policy(config: str, policy: str) -> str:
    """Returns the text of a config.pbtxt with another policy."""
    return _LINE.sub("", config) + policy_line(policy) + "\n"


def served_versions(policy: str, existing: Sequence[int]) -> list[int]:
    """Returns the existing versions that a policy chooses, ascending.

    Raises:
        UserError: the policy names a version that does not exist.
    """
    kind, _, numbers = policy.partition(":")
    if kind != "specific":
        return sorted(existing)[-int(numbers or len(existing)) :]
    named = {int(number) for number in numbers.split(",")}
    missing = sorted(named - set(existing))
    if missing:
        raise UserError(
            f"`version_policy` {policy}: there is no version {missing[0]}, only "
            f"{', '.join(map(str, existing))}",
            setting="version_policy",
        )
    return sorted(named)
