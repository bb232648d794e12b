"""RQ-VAE: residual quantization of a learnt, smaller space (Lee et al., CVPR'22; TIGER)."""

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.generative import residual
from pipeline.generative.item_vectors import ItemVectors
from pipeline.generative_config import RqVaeSettings

log = logging.getLogger(__name__)

_WARM_UP = 10  # epochs as a plain autoencoder, so that k-means starts from latents that mean much
_HELD_OUT = 0.1
_BLANKED = 0.3  # share of training rows that show their content only, as cold items will
_BLOCK_ROWS = 16_384


class _Network(nn.Module):
    def __init__(self, width: int, hidden: int, latent: int, levels: int, size: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, latent))
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, width))
        self.codebooks = nn.Parameter(torch.zeros(levels, size, latent))

    def quantize(self, latents: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Quantized latents, codes (n, levels), codebook loss and commitment loss."""
        left, total = latents, torch.zeros_like(latents)
        book_loss = commitment = latents.new_zeros(())
        codes = []
        for book in self.codebooks:
            code = (book.square().sum(1) - 2 * left.detach() @ book.T).argmin(1)
            chosen = functional.embedding(code, book)
            book_loss = book_loss + (chosen - left.detach()).square().sum(1).mean()
            commitment = commitment + (left - chosen.detach()).square().sum(1).mean()
            total, left = total + chosen, left - chosen.detach()
            codes.append(code)
        return total, torch.stack(codes, 1), book_loss, commitment


@dataclass(frozen=True)
class RqVae:
    """Encoder, codebooks and decoder, trained."""

    network: _Network

    def encode(self, vectors: ItemVectors) -> np.ndarray:
        """Nearest codes: (n, levels) int32."""
        return residual.quantize(self._latents(vectors), self._codebooks())

    def last_level_choices(self, vectors: ItemVectors) -> np.ndarray:
        """All codes of the last level, the nearest first: (n, k)."""
        return residual.last_level_choices(self._latents(vectors), self._codebooks())

    def reconstruct(self, codes: np.ndarray) -> np.ndarray:
        """Standardised vectors that `codes` (n, some levels) stand for: (n, width)."""
        latents = residual.reconstruct(codes, self._codebooks())
        with torch.no_grad():
            return self.network.decoder(torch.from_numpy(latents)).numpy()

    def arrays(self) -> dict[str, np.ndarray]:
        """All that is needed to encode, by name."""
        return {name: value.numpy() for name, value in self.network.state_dict().items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "RqVae":
        """The quantizer that `arrays` was made of."""
        hidden, width = arrays["encoder.0.weight"].shape
        levels, size, latent = arrays["codebooks"].shape
        network = _Network(width, hidden, latent, levels, size)
        network.load_state_dict({name: torch.from_numpy(arrays[name]) for name in arrays})
        return cls(network.requires_grad_(False))

    def _codebooks(self) -> np.ndarray:
        return self.network.codebooks.detach().numpy()

    def _latents(self, vectors: ItemVectors) -> np.ndarray:
        """A block that is not known is zero, its mean; training has seen such rows."""
        blocks = range(0, len(vectors), _BLOCK_ROWS)
        with torch.no_grad():
            found = [
                self.network.encoder(torch.from_numpy(vectors.values[start : start + _BLOCK_ROWS]))
                for start in blocks
            ]
        return (
            torch.cat(found).numpy()
            if found
            else np.empty((0, self._codebooks().shape[2]), np.float32)
        )


def fit_rq_vae(
    vectors: ItemVectors, levels: int, size: int, seed: int, settings: RqVaeSettings
) -> RqVae:
    """Train on items of which all blocks are known; one seed gives one result on one machine."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        shape = (settings.hidden_dim, settings.latent_dim, levels, size)
        network = _Network(vectors.values.shape[1], *shape)
        training = _Training(network, vectors, settings, seed)
        training.run()
    return RqVae(network.requires_grad_(False))


class _Training:
    def __init__(
        self, network: _Network, vectors: ItemVectors, settings: RqVaeSettings, seed: int
    ) -> None:
        rows = torch.from_numpy(np.random.default_rng(seed).permutation(len(vectors)))
        values = torch.from_numpy(vectors.values)
        held_out = max(1, int(_HELD_OUT * len(vectors)))
        self._valid, self._train = values[rows[:held_out]], values[rows[held_out:]]
        self._content = vectors.widths[0]
        self._network, self._settings, self._seed = network, settings, seed
        self._optimizer = torch.optim.Adam(network.parameters(), settings.learning_rate)

    def run(self) -> None:
        """Keep the state that reconstructs held-out items best."""
        for _ in range(_WARM_UP):
            self._epoch(is_quantized=False)
        self._start_codebooks()
        epoch, best_epoch, best = 0, 0, self._valid_error()
        state = copy.deepcopy(self._network.state_dict())
        for epoch in range(1, self._settings.max_epochs + 1):
            self._reset_dead(self._epoch(is_quantized=True))
            error = self._valid_error()
            if error < best:
                best, best_epoch = error, epoch
                state = copy.deepcopy(self._network.state_dict())
            if epoch - best_epoch >= self._settings.patience:
                break
        self._network.load_state_dict(state)
        log.info("rq-vae: epoch %d of %d kept, held-out error %.4f", best_epoch, epoch, best)

    def _epoch(self, is_quantized: bool) -> Tensor:
        """One pass over the training rows; how often each code was used: (levels, k)."""
        network = self._network
        used = torch.zeros(network.codebooks.shape[:2], dtype=torch.int64)
        for rows in torch.randperm(len(self._train)).split(self._settings.batch_size):
            wanted = self._train[rows]
            latents = network.encoder(self._blanked(wanted))
            loss = latents.new_zeros(())
            if is_quantized:
                quantized, codes, book_loss, commitment = network.quantize(latents)
                loss = book_loss + self._settings.commitment * commitment
                latents = latents + (quantized - latents).detach()  # straight through
                for level, own in enumerate(codes.T):
                    used[level] += torch.bincount(own, minlength=used.shape[1])
            loss = loss + (network.decoder(latents) - wanted).square().sum(1).mean()
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
        return used

    def _blanked(self, values: Tensor) -> Tensor:
        """Some rows without collaborative block; the decoder has to guess it."""
        values = values.clone()
        values[torch.rand(len(values)) < _BLANKED, self._content :] = 0
        return values

    @torch.no_grad()
    def _start_codebooks(self) -> None:
        """k-means of all latents, level by level on what is left over."""
        latents = self._network.encoder(self._train).numpy()
        levels, size, _ = self._network.codebooks.shape
        rows = np.sort(np.random.default_rng(self._seed).permutation(len(latents))[: 256 * size])
        books = residual.fit_codebooks(latents[rows], levels, size, self._seed)
        self._network.codebooks.copy_(torch.from_numpy(books))

    @torch.no_grad()
    def _reset_dead(self, used: Tensor) -> None:
        """Move codes that no row used to what is left over of a random row, at rest."""
        dead = used == 0
        if not dead.any():
            return
        books = self._network.codebooks
        moments = self._optimizer.state[books]
        left = self._network.encoder(self._train[torch.randperm(len(self._train))[:_BLOCK_ROWS]])
        for level, book in enumerate(books):
            code = (book.square().sum(1) - 2 * left @ book.T).argmin(1)
            rest = left - book[code]
            numbers = dead[level].nonzero().squeeze(1)
            book[numbers] = left[torch.randint(len(left), (len(numbers),))]
            for name in ("exp_avg", "exp_avg_sq"):
                moments[name][level, numbers] = 0
            left = rest

    @torch.no_grad()
    def _valid_error(self) -> float:
        """Share of the held-out items' squared lengths that codes do not hold."""
        quantized = self._network.quantize(self._network.encoder(self._valid))[0]
        error = (self._network.decoder(quantized) - self._valid).square().sum()
        return float(error / self._valid.square().sum().clamp(min=1e-12))
