# SPDX-License-Identifier: Apache-2.0
"""Weight decay and learning rate of each parameter of BERT4Rec."""

from collections.abc import Sequence

from torch import nn

from bert4rec.config import OptimizerConfig
from bert4rec.model.network import Bert4Rec
from recsys.train.optimizers.dense import Rates


def parameter_rates(
    model: Bert4Rec, config: OptimizerConfig, parameters: Sequence[nn.Parameter]
) -> list[Rates]:
    """Returns the rates of some parameters of a model, in their order.

    BERT decays neither biases nor norms (Devlin et al. 2018); position embeddings, which every
    sequence trains, go with them.

    Args:
        model: network that has the parameters; another one's get the plain rates.
        config: settings of the optimizer.
        parameters: parameters that an optimizer moves.
    """
    embeddings = {id(model.embedding.items), id(model.embedding.positions)}
    undecayed = {id(model.embedding.positions)}
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            undecayed.add(id(parameter))
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            undecayed |= {id(parameter) for parameter in module.parameters()}
    exempt = undecayed if config.no_decay_bias_norm else set()
    return [
        Rates(
            weight_decay=0.0 if id(parameter) in exempt else config.weight_decay,
            lr_factor=config.embedding_lr_factor if id(parameter) in embeddings else 1.0,
        )
        for parameter in parameters
    ]
