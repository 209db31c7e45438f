"""Other tools and methods, one file each."""

from __future__ import annotations

from benchmarks.peers.arpack import Arpack
from benchmarks.peers.base import Peer, Stage
from benchmarks.peers.circular import Circular
from benchmarks.peers.fantastic_four import FantasticFour
from benchmarks.peers.gram import Gram
from benchmarks.peers.matrix import MatrixNorm
from benchmarks.peers.orthogonium_norm import Orthogonium
from benchmarks.peers.power import Power
from benchmarks.peers.torch_spectral_norm import TorchSpectralNorm
from benchmarks.peers.torchlip import Torchlip

#: Every peer for norms of convolutions.
PEERS: tuple[Peer, ...] = (
    Orthogonium(),
    Torchlip(),
    TorchSpectralNorm(),
    Power(),
    Arpack(),
    Circular(),
    Gram(),
    FantasticFour(),
    MatrixNorm(),
)

__all__ = ["PEERS", "Peer", "Stage"]
