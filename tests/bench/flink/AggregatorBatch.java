package org.apache.flink.runtime.source.coordinator; // SourceCoordinator.WatermarkAggregator is for its own package only

import org.apache.flink.api.common.eventtime.Watermark;

/** A micro-batch on the aggregator of Flink's SourceCoordinator, which takes its minimum with every report. */
public final class AggregatorBatch {
    private final SourceCoordinator.WatermarkAggregator<Long> aggregator = new SourceCoordinator.WatermarkAggregator<>();

    public long batch(long[] splits, long[] watermarks) {
        for (int i = 0; i < splits.length; i++) {
            aggregator.aggregate(splits[i], new Watermark(watermarks[i]));
        }
        return advance();
    }

    public void report(long split, long watermark) {
        aggregator.aggregate(split, new Watermark(watermark));
    }

    public long advance() {
        return aggregator.getAggregatedWatermark().getTimestamp();
    }
}
