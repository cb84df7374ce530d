package org.apache.flink.api.common.eventtime; // CombinedWatermarkStatus is for its own package only

import java.util.HashMap;
import java.util.Map;
import org.apache.flink.api.common.eventtime.CombinedWatermarkStatus.PartialWatermark;

/** A micro-batch on Flink's CombinedWatermarkStatus: all splits report, then the minimum is taken. */
public final class CombinedBatch {
    private final CombinedWatermarkStatus combined = new CombinedWatermarkStatus();
    private final Map<Long, PartialWatermark> bySplit = new HashMap<>();
    private final PartialWatermark[] inOrder;
    public long listened; // what the listener saw, so that calling it is not optimised away

    public CombinedBatch(long[] splits) {
        inOrder = new PartialWatermark[splits.length];
        for (int i = 0; i < splits.length; i++) {
            inOrder[i] = new PartialWatermark(new WatermarkOutputMultiplexer.WatermarkUpdateListener() {
                @Override
                public void onWatermarkUpdate(long watermark) {
                    listened = watermark;
                }

                @Override
                public void onIdleUpdate(boolean idle) {}
            });
            combined.add(inOrder[i]);
            bySplit.put(splits[i], inOrder[i]);
        }
    }

    /** The splits are looked up by id, as WatermarkOutputMultiplexer does (its ids are strings, which costs more). */
    public long byId(long[] splits, long[] watermarks) {
        for (int i = 0; i < splits.length; i++) {
            bySplit.get(splits[i]).setWatermark(watermarks[i]);
        }
        combined.updateCombinedWatermark();
        return combined.getCombinedWatermark();
    }

    /** No look-up: the caller holds a reference to every split, in the order of the reports. */
    public long byReference(long[] watermarks) {
        for (int i = 0; i < inOrder.length; i++) {
            inOrder[i].setWatermark(watermarks[i]);
        }
        combined.updateCombinedWatermark();
        return combined.getCombinedWatermark();
    }

    public void report(long split, long watermark) {
        bySplit.get(split).setWatermark(watermark);
    }

    public long advance() {
        combined.updateCombinedWatermark();
        return combined.getCombinedWatermark();
    }
}
