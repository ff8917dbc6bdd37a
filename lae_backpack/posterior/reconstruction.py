"""What a posterior over an autoencoder says about images and codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from lae_backpack.posterior import predictive
from lae_backpack.posterior.batches import checked_images, require_reconstruction
from lae_backpack.posterior.choices import PRED_TYPES, require_one_of
from lae_backpack.posterior.chunks import Batch, chunks_of
from lae_backpack.posterior.code_parts import code_part
from lae_backpack.posterior.predictive import Run
from lae_backpack.posterior.propagated import sigmoid_moments
from lae_backpack.posterior.sampling import (
    Weights,
    WeightSampler,
    evaluating,
    run_with,
    weights_of,
    without_hooks,
)


class Reconstructions:
    """The predictives of LaplaceAE, a mixin before its structure."""

    # What it needs of the structure.
    model: Module
    bernoulli: bool
    sampler: Callable[[], WeightSampler]
    functional_samples: Callable[..., Tensor]
    propagated: Callable[..., tuple[Tensor, Tensor]]
    _known_shape: torch.Size | None = None  # of images that were asked about

    def __call__(
        self,
        x: Tensor,
        pred_type: str = "nn",
        n_samples: int = 100,
        generator: torch.Generator | None = None,
        chunk_size: int | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance of the reconstruction.

        Args:
            x: A batch.  # [N, *in]
            pred_type: ``"nn"`` samples networks, ``"glm"`` linearises,
                ``"propagated"`` needs one pass and no samples.
            n_samples: How many networks.
            generator: Where randomness comes from.
            chunk_size: Images that go through the net at once; ``None`` chooses.
            **kwargs: As for the other structures.

        Returns:
            Mean and variance of pixels, or of their probabilities.  # [N, *in] each

        Raises:
            ValueError: If the likelihood does not allow it.
        """
        require_one_of("pred_type", pred_type, PRED_TYPES)
        if self.bernoulli and pred_type == "glm":
            raise ValueError(
                "pred_type='glm' linearises logits, whose variance is not that of the "
                "pixels. Use pred_type='nn' or 'propagated' for 'bernoulli'."
            )
        chunks = self._chunks(x, chunk_size)
        if pred_type == "propagated":
            moments = self.propagated(x, chunk_size=chunk_size)
            return sigmoid_moments(*moments) if self.bernoulli else moments
        draw = self.sampler(), chunks, n_samples, generator
        with evaluating(self.model):
            if pred_type == "nn":
                return predictive.sampled_moments(self._reconstructs(), *draw)
            return predictive.linearised_moments(self._reconstructs(), *draw)

    def latent(
        self,
        x: Tensor,
        n_samples: int = 100,
        generator: torch.Generator | None = None,
        chunk_size: int | None = None,
        include: str = "weights",
        pred_type: str = "nn",
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance of the code.

        Args:
            x: A batch.  # [N, *in]
            n_samples: How many encoders are sampled.
            generator: Where randomness comes from.
            chunk_size: As for ``la(x)``.
            include: ``"weights"``, ``"code"`` (see ``LatentLaplace``) or ``"both"``.
            pred_type: As for ``la(x)``, for the weights' part alone.

        Returns:
            Mean and variance.  # [N, *code] each

        Raises:
            ValueError: If ``include`` and ``pred_type`` do not go together.
        """
        require_one_of("pred_type", pred_type, PRED_TYPES)
        if include != "weights":
            if pred_type != "nn":
                raise ValueError(
                    f"include={include!r} samples networks, got pred_type="
                    f"{pred_type!r}. Use pred_type='nn'."
                )
            return code_part(include)(self, x, n_samples, generator, chunk_size)
        chunks = self._chunks(x, chunk_size)
        if pred_type == "propagated":
            return self.propagated(x, "encoder", chunk_size)
        draw = self.sampler(), chunks, n_samples, generator
        with evaluating(self.model):
            if pred_type == "nn":
                return predictive.sampled_moments(self._encodes(), *draw)
            return predictive.linearised_moments(self._encodes(), *draw)

    def samples(
        self,
        x: Tensor,
        n_samples: int = 100,
        generator: torch.Generator | None = None,
        chunk_size: int | None = None,
    ) -> Tensor:
        """Reconstructions by sampled networks.

        Args:
            x: A batch.  # [N, *in]
            n_samples: How many networks.
            generator: Where randomness comes from.
            chunk_size: As for ``la(x)``.

        Returns:
            Pixels, or their probabilities.  # [S, N, *in]
        """
        draw = self.sampler(), self._chunks(x, chunk_size), n_samples, generator
        with evaluating(self.model):
            return predictive.samples(self._reconstructs(), *draw)

    def latent_samples(
        self,
        x: Tensor,
        n_samples: int = 100,
        generator: torch.Generator | None = None,
        chunk_size: int | None = None,
    ) -> Tensor:
        """Codes by sampled encoders.

        With equal generators they belong to the same networks as ``samples``.

        Args:
            x: A batch.  # [N, *in]
            n_samples: How many networks.
            generator: Where randomness comes from.
            chunk_size: As for ``la(x)``.

        Returns:
            The codes.  # [S, N, *code]
        """
        draw = self.sampler(), self._chunks(x, chunk_size), n_samples, generator
        with evaluating(self.model):
            return predictive.samples(self._encodes(), *draw)

    def predictive_samples(self, *args: Any, **kwargs: Any) -> Tensor:
        """As in laplace-torch; probabilities of pixels for Bernoulli likelihoods.

        Args:
            *args: As for ``functional_samples``.
            **kwargs: As for ``functional_samples``.

        Returns:
            Pixels, or their probabilities.  # [S, N, *in]
        """
        outputs = self.functional_samples(*args, **kwargs)
        return outputs.sigmoid() if self.bernoulli else outputs

    def _chunks(self, x: Tensor, chunk_size: int | None) -> tuple[Batch, ...]:
        x = checked_images(x, self.model)
        chunks = chunks_of(x, chunk_size)
        shape = x.shape[1:]
        if shape != self._known_shape:  # a trial run costs a forward pass
            require_reconstruction(self.model, x)
            self._known_shape = shape
        return chunks

    def _reconstructs(self) -> Run:
        model = without_hooks(self.model)

        def run(weights: Weights, x: Tensor) -> Tensor:
            output = run_with(model, weights, x)
            return output.sigmoid() if self.bernoulli else output

        return run

    def _encodes(self) -> Run:
        encoder: Any = without_hooks(self.model).encoder
        return lambda weights, x: run_with(encoder, weights_of("encoder", weights), x)
