"""The models that LaplaceAE takes."""

from __future__ import annotations

from torch import Tensor
from torch.nn import Module


class AutoEncoder(Module):
    """An encoder and a decoder. Any module with these two attributes works the same."""

    def __init__(self, encoder: Module, decoder: Module) -> None:
        """Keep both.

        Args:
            encoder: Maps inputs to codes.
            decoder: Maps codes to outputs shaped like the inputs.
        """
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, x: Tensor) -> Tensor:
        """Reconstruct.

        Args:
            x: A batch.  # [N, *in]

        Returns:
            The reconstruction.  # [N, *in]
        """
        return self.decoder(self.encoder(x))


def require_encoder_and_decoder(model: Module) -> None:
    """Refuse a model that is no autoencoder.

    Args:
        model: The model.

    Raises:
        ValueError: If it lacks one of the two parts.
    """
    for part in ("encoder", "decoder"):
        if not isinstance(getattr(model, part, None), Module):
            raise ValueError(
                f"LaplaceAE needs a model with encoder and decoder, and "
                f"{type(model).__name__} has no {part!r}. Wrap both parts: "
                "lae_backpack.AutoEncoder(encoder, decoder)."
            )
