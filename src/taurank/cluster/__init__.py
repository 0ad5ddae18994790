"""Several machines: training, scoring, evaluating and tuning on Ray, to the same bits as on one machine.

>>> with taurank.cluster.connect(workers=2) as cluster:
...     log = cluster.read_log("log/")
...     model = taurank.DLCE(random_state=0).fit(log)
...     model.save("model")
"""

from __future__ import annotations

from taurank.cluster.connection import Cluster, connect
from taurank.cluster.log import ClusterLog

__all__ = ["Cluster", "ClusterLog", "connect"]
