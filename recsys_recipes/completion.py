# SPDX-License-Identifier: Apache-2.0
"""Prints a shell script that completes the words and flags of `recsys-recipes`.

    recsys-recipes completion bash > ~/.local/share/bash-completion/completions/recsys-recipes

The script holds the flags of this installation: print it again after an update. For zsh:
`source <(recsys-recipes completion zsh)` in .zshrc, after compinit.
"""

import sys
from collections.abc import Sequence

from recsys import program
from recsys.errors import UserError
from recsys_recipes.command import NAME
from recsys_recipes.commands import COMMANDS

SHELLS = ("bash", "zsh")

_SCRIPT = """\
_recsys_recipes() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} words
  if ((COMP_CWORD == 1)); then
    words='{commands}'
  else
    case "${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}" in
{cases}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _recsys_recipes {name}
"""


def script(shell: str) -> str:
    """Returns the script for a shell."""
    from recsys_recipes.program_flags import flag_names  # with the flags of all programs

    cases = [f"      'completion '*) words='{' '.join(SHELLS)}' ;;"]
    for word, command in COMMANDS.items():
        names = [name for name in command.programs if name]
        for name, part_of in command.programs.items():
            flags = " ".join(f"--{flag}" for flag in flag_names(part_of.module))
            pattern = f"'{word} {name}'" if name else f"'{word} '*"
            cases.append(f"      {pattern}) words='{flags}' ;;")
        if names:
            cases.append(f"      '{word} '*) words='{' '.join(names)}' ;;")
    text = _SCRIPT.format(commands=" ".join(COMMANDS), cases="\n".join(cases), name=NAME)
    return f"autoload -U +X bashcompinit && bashcompinit\n{text}" if shell == "zsh" else text


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    shells: list[str] = []

    def run(_: object) -> None:
        if len(shells) != 1 or shells[0] not in SHELLS:
            raise UserError(f"name the shell: {NAME} completion {'|'.join(SHELLS)}")
        program.print_line(script(shells[0]).rstrip("\n"))

    return program.run_command(run, program.new_flags(), argv, __doc__, arguments=shells)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
