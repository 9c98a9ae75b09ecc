"""A small backbone: word pieces -> residual convolutions, for rankers distilled from a large one.

A position sees its neighbours only, so a prompt costs a tenth of a millisecond. transformers loads
and saves it like any other model.
Shapes: B prompts, L tokens, H width, V vocabulary.
"""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

CONVOLUTION: Final = "convolution"
"""Its name as a backbone."""
_WINDOW: Final = 3
"""Neighbouring tokens that a position of a layer sees, itself among them."""
_PLACES: Final = 8
"""Weighted means over all tokens, each with weights of its own."""
_FAR: Final = 1e4
"""Below every value of a token."""


class ConvolutionConfig(PretrainedConfig):  # type: ignore[misc]
    """Sizes of the network."""

    model_type = "lengthwise-convolution"
    vocab_size: int = 0
    hidden_size: int = 128
    num_hidden_layers: int = 3
    dropout: float = 0.1


class ConvolutionModel(PreTrainedModel):  # type: ignore[misc]
    """Embeddings and layers; a layer adds what it finds in each window of tokens.

    At the end every vector has a part from weighted means and the maxima over all tokens.
    """

    config_class = ConvolutionConfig

    def __init__(self, config: ConvolutionConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.embeddings = nn.Embedding(config.vocab_size, width)
        self.layers = nn.ModuleList(
            nn.Linear(_WINDOW * width, width) for _ in range(config.num_hidden_layers)
        )
        self.places = nn.Linear(width, _PLACES)
        self.whole = nn.Linear((_PLACES + 1) * width, width)
        self.dropout = nn.Dropout(config.dropout)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> BaseModelOutput:
        """Return a vector per token, (B, L, H), independent of the padding."""
        # The export stores embeddings in half precision.
        x_BLH = self.embeddings(input_ids).float() if inputs_embeds is None else inputs_embeds
        mask_BL1 = attention_mask.unsqueeze(2).to(x_BLH.dtype)  # type: ignore[union-attr]
        x_BLH = self.dropout(x_BLH) * mask_BL1
        size, side = x_BLH.shape[1], _WINDOW // 2
        for layer in self.layers:
            padded = functional.pad(x_BLH, (0, 0, side, side))
            # A product of matrices: ONNX Runtime's convolution takes a quarter longer.
            windows = torch.cat([padded[:, n : n + size] for n in range(_WINDOW)], dim=2)
            x_BLH = (x_BLH + self.dropout(functional.relu(layer(windows)))) * mask_BL1
        far_BL1 = (1 - mask_BL1) * _FAR
        weights_BPL = (self.places(x_BLH) - far_BL1).softmax(1).transpose(1, 2)
        means_BN = (weights_BPL @ x_BLH).flatten(1)
        max_BH = (x_BLH - far_BL1).amax(1)
        whole_BH = functional.relu(self.whole(torch.cat([means_BN, max_BH], dim=1)))
        return BaseModelOutput(last_hidden_state=(x_BLH + whole_BH.unsqueeze(1)) * mask_BL1)


AutoConfig.register(ConvolutionConfig.model_type, ConvolutionConfig)
AutoModel.register(ConvolutionConfig, ConvolutionModel)


def build_convolution(
    embeddings_VH: NDArray[np.float32], *, width: int, layers: int | None
) -> ConvolutionModel:
    """Return a network with the principal components of the larger one's vectors, of variance 1.

    The layers, by default 3, are drawn from torch's seed.
    """
    centred = embeddings_VH - embeddings_VH.mean(axis=0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    reduced = centred @ axes[:, ::-1][:, :width]
    config = ConvolutionConfig(
        vocab_size=len(embeddings_VH),
        hidden_size=reduced.shape[1],
        num_hidden_layers=3 if layers is None else layers,
    )
    model = ConvolutionModel(config)
    with torch.no_grad():
        model.embeddings.weight.copy_(torch.from_numpy(reduced / reduced.std()))
    return model
