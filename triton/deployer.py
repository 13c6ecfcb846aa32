# SPDX-License-Identifier: Apache-2.0
"""Deploys a checkpoint, as `recsys-recipes deploy` does; run by path."""

from recsys_recipes.serving import deploy
from recsys_recipes.serving.deploy import define_flags, run

__all__ = ["define_flags", "run"]
__doc__ = deploy.__doc__

if __name__ == "__main__":
    deploy.start()
