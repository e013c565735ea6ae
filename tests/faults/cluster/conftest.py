"""`make test-cluster` sets APC_TEST_CLUSTER, in a private network: the run takes ten minutes and filters packets."""

import os

collect_ignore = [] if os.environ.get("APC_TEST_CLUSTER") else ["test_cluster.py"]
