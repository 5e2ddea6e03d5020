"""The recurrent network for Shakespeare's next characters: 16,617 parameters.

SHARE's has two LSTM layers; this one has a GRU of 64, which two cores can train for many clients.
"""

from typing import TYPE_CHECKING

from securemedian.laboratory.data.shakespeare import CHARACTERS, CONTEXT
from securemedian.laboratory.models.base import Model

if TYPE_CHECKING:
    from torch import nn

_EMBEDDED, _HIDDEN = 8, 64


def build() -> "nn.Module":
    """Return the network, which takes the codes of characters as float32."""
    import torch
    from torch import nn

    class NextCharacter(nn.Module):
        """A GRU over embedded characters, and a linear layer on its last state."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(CHARACTERS, _EMBEDDED)
            self.recurrent = nn.GRU(_EMBEDDED, _HIDDEN, batch_first=True)
            self.output = nn.Linear(_HIDDEN, CHARACTERS)

        def forward(self, codes: torch.Tensor) -> torch.Tensor:
            """Return the logits (samples, characters) of codes (samples, context)."""
            _, state = self.recurrent(self.embedding(codes.long()))
            logits: torch.Tensor = self.output(state[0])
            return logits

    return NextCharacter()


GRU_SHAKESPEARE = Model(
    "gru-shakespeare", build, shape=(CONTEXT,), batch=25, rate=1.0, epochs=2, classes=CHARACTERS
)
