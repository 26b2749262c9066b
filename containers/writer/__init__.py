"""The storage writer: aggregators, flush, reconcile, acknowledge."""
