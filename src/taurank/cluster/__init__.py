"""Several machines: training, scoring, evaluating and tuning on Ray, to the same bits as on one machine."""

from __future__ import annotations

from taurank.cluster.connection import Cluster, connect
from taurank.cluster.log import ClusterLog

__all__ = ["Cluster", "ClusterLog", "connect"]
