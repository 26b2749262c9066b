"""From offsets to Arrow batches: plans, blocks pruned by their times, events; for batches and micro-batches alike."""
