import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.Random;
import org.apache.flink.api.common.eventtime.CombinedBatch;
import org.apache.flink.runtime.source.coordinator.AggregatorBatch;

/**
 * The JVM's side of the race in tests/bench/core.py. It reads a line "SPLITS BATCHES REPORTS" and answers with one line
 * of medians in nanoseconds, so that the two sides run in turns:
 *
 * <pre>combined by id, combined by reference, aggregator        of a batch of all splits
 * combined report, combined advance, aggregator report, aggregator advance        of REPORTS single ones</pre>
 *
 * What is reported is made before the clock starts, on both sides. A side that is asked again runs compiled code.
 */
public final class Race {
    private static final long SPREAD = 1_000_000_000L;
    private static long checksum; // of every minimum: it is printed, so nothing can be optimised away

    private final Random random = new Random(7);
    private final long[] splits;
    private final long[] watermarks;
    private final CombinedBatch combined;
    private final AggregatorBatch aggregator = new AggregatorBatch();
    private long turn;

    private Race(int n) {
        splits = new long[n];
        watermarks = new long[n];
        for (int i = 0; i < n; i++) {
            splits[i] = random.nextLong() >>> 1;
        }
        combined = new CombinedBatch(splits);
    }

    private interface Work {
        long run();
    }

    private interface Report {
        void to(long split, long watermark);
    }

    private void nextBatch() {
        turn++;
        for (int i = 0; i < watermarks.length; i++) {
            watermarks[i] = turn * SPREAD + (random.nextLong() >>> 1) % SPREAD;
        }
    }

    private long batches(int count, Work work) {
        long[] spent = new long[count];
        for (int i = 0; i < count; i++) {
            nextBatch();
            long began = System.nanoTime();
            checksum += work.run();
            spent[i] = System.nanoTime() - began;
        }
        return median(spent);
    }

    /** Medians of a report and of the advance after it. */
    private long[] singles(int count, Report report, Work advance) {
        long[] reports = new long[count];
        long[] advances = new long[count];
        turn++;
        for (int i = 0; i < count; i++) {
            long split = splits[random.nextInt(splits.length)];
            long watermark = turn * SPREAD + (random.nextLong() >>> 1) % SPREAD;
            long began = System.nanoTime();
            report.to(split, watermark);
            long between = System.nanoTime();
            checksum += advance.run();
            reports[i] = between - began;
            advances[i] = System.nanoTime() - between;
        }
        return new long[] {median(reports), median(advances)};
    }

    private static long median(long[] values) {
        Arrays.sort(values);
        return values.length == 0 ? 0 : values[values.length / 2];
    }

    public static void main(String[] arguments) throws Exception {
        Race race = null;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] asked = line.trim().split(" ");
            int n = Integer.parseInt(asked[0]);
            int batches = Integer.parseInt(asked[1]);
            int reports = Integer.parseInt(asked[2]);
            if (race == null || race.splits.length != n) {
                race = new Race(n);
            }
            Race now = race;
            long byId = now.batches(batches, () -> now.combined.byId(now.splits, now.watermarks));
            long byReference = now.batches(batches, () -> now.combined.byReference(now.watermarks));
            long aggregated = now.batches(batches, () -> now.aggregator.batch(now.splits, now.watermarks));
            long[] one = now.singles(reports, now.combined::report, now.combined::advance);
            long[] heap = now.singles(reports, now.aggregator::report, now.aggregator::advance);
            System.out.println(byId + " " + byReference + " " + aggregated + " " + one[0] + " " + one[1] + " " + heap[0]
                    + " " + heap[1] + " " + checksum);
        }
    }
}
