"""Other tools and methods, one file each."""

from __future__ import annotations

from benchmarks.peers.arpack import Arpack
from benchmarks.peers.base import Peer, Stage
from benchmarks.peers.circular import Circular
from benchmarks.peers.fantastic_four import FantasticFour
from benchmarks.peers.gram import Gram
from benchmarks.peers.matrix import MatrixNorm
from benchmarks.peers.orthogonium_norm import Orthogonium
from benchmarks.peers.own_lower import OwnLower
from benchmarks.peers.power import Power
from benchmarks.peers.torch_spectral_norm import TorchSpectralNorm
from benchmarks.peers.torchlip import Torchlip

#: Every peer for norms of convolutions; the first is Normscope's own value from below, for comparison with the others.
PEERS: tuple[Peer, ...] = (
    OwnLower(),
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

#: The methods that give a value from below and nothing else: equal work.
ONE_SIDED = (OwnLower.name, Power.name, Arpack.name)

__all__ = ["ONE_SIDED", "PEERS", "Peer", "Stage"]
